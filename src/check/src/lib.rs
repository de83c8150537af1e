//! Whether an MCP server keeps the protocol: an independent prober that speaks raw bytes, over stdio, HTTP or WebSocket, to a
//! server of any revision.
//!
//! It uses no SDK, and of the gateway, which is one of the servers that it checks, only how child processes are started and
//! ended, and TLS. `wire` carries bytes, `probe.rs` speaks JSON-RPC by the book, `catalog` has the checks, one table for each group,
//! `report.rs` is what comes out, without what `redact.rs` finds of credentials. Nothing that could write is called, unless
//! that is asked for.

mod catalog;
mod probe;
mod redact;
mod report;
mod run;
mod wire;

use std::{path::PathBuf, time::Duration};

use url::Url;

pub use catalog::{Check, Group, Level, all as checks};
pub use report::{Checked, Report, Status};
pub use run::{Progress, check};
pub use wire::ProbeError;

/// The stateless revision, and those of the handshake era from the newest.
pub const MODERN: &str = "2026-07-28";
pub const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Which server.
#[derive(Clone, Debug)]
pub enum Target {
    /// Started as a child, for each connection anew.
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
    /// As reports name it: without headers, which may be credentials, and without a user or password.
    #[must_use]
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

    /// `stdio`, `http` or `websocket`.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Command { .. } => "stdio",
            Self::Http { .. } => "http",
            Self::WebSocket { .. } => "websocket",
        }
    }
}

/// How it is checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which revision is spoken; the newest that the server has, where none is named.
    pub revision: Option<String>,
    /// Only these groups.
    pub only: Vec<Group>,
    /// Calls tools too that do not say that they only read.
    pub allow_writes: bool,
    /// For one answer.
    pub timeout: Duration,
    /// For the whole run.
    pub run_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let (timeout, run_limit) = (Duration::from_secs(5), Duration::from_secs(300));
        Self { revision: None, only: Vec::new(), allow_writes: false, timeout, run_limit }
    }
}
