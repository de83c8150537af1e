//! Checks whether an MCP server follows the protocol. The prober is independent, and sends raw bytes over stdio, HTTP or
//! WebSocket to a server of any revision.
//!
//! This crate uses no SDK. From the gateway, which is one of the servers that it checks, it uses only the code that runs child
//! processes and the settings of TLS. `wire` carries bytes, `probe.rs` speaks correct JSON-RPC, `catalog` has one table of checks
//! for each group, and `report.rs` formats the results, with credentials removed by `redact.rs`. Tools that could write
//! are not called unless that is allowed.

mod catalog;
mod probe;
mod redact;
mod report;
mod run;
mod wire;

use std::{path::PathBuf, time::Duration};

use url::Url;

pub use catalog::{Check, Group, Level, checks};
pub use report::{CheckResult, Report, Status};
pub use run::{Progress, check};
pub use wire::ProbeError;

/// The stateless revision.
const MODERN_REVISION: &str = "2026-07-28";
/// The handshake revisions, newest first.
const LEGACY_REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The server to check. It is not `Debug`, because its variables and headers may be credentials.
#[derive(Clone)]
pub enum Target {
    /// A command that is started as a new child for each connection.
    Command {
        program: String,
        arguments: Vec<String>,
        env: Vec<(String, String)>,
        cwd: Option<PathBuf>,
    },
    Http {
        url: Url,
        headers: Vec<(String, String)>,
    },
    WebSocket {
        url: Url,
        headers: Vec<(String, String)>,
    },
}

impl Target {
    /// Returns the name for reports, without headers, user, password or query, which may be credentials.
    pub fn label(&self) -> String {
        match self {
            Self::Command { program, arguments, .. } => format!("{program} {}", arguments.join(" ")).trim().to_owned(),
            Self::Http { url, .. } | Self::WebSocket { url, .. } => {
                let mut url = url.clone();
                let _ = url.set_username("");
                let _ = url.set_password(None);
                url.set_query(None);
                url.to_string()
            }
        }
    }

    /// Returns `stdio`, `http` or `websocket`.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Command { .. } => "stdio",
            Self::Http { .. } => "http",
            Self::WebSocket { .. } => "websocket",
        }
    }
}

/// The options of a run. It is not `Debug`, because of the secrets.
#[derive(Clone)]
pub struct Options {
    /// The revision to speak; `None` means the newest that the server supports.
    pub revision: Option<String>,
    /// Runs only these groups of checks; empty means all.
    pub groups: Vec<Group>,
    /// Also calls tools that are not marked as read-only.
    pub allow_writes: bool,
    /// The time limit for one answer.
    pub timeout: Duration,
    /// The time limit for the whole run.
    pub run_limit: Duration,
    /// Texts that every report masks, besides the credentials in the headers, the variables and the URL of the target.
    pub secrets: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        let (timeout, run_limit) = (Duration::from_secs(5), Duration::from_secs(300));
        Self { revision: None, groups: Vec::new(), allow_writes: false, timeout, run_limit, secrets: Vec::new() }
    }
}
