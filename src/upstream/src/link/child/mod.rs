//! Servers that are child processes and speak over stdin and stdout (2025-11-25/basic/transports#stdio,
//! 2026-07-28/basic/transports/stdio).
//!
//! Each child has a guard process of its own, which ends it and all that it started, whatever happens to the gateway
//! ([`guard`]). [`ChildConnector`] starts them; restarting is the upstream's business (`upkeep/backoff.rs`).

mod frames;
pub mod guard;
mod link;
mod log;
mod mux;
mod processes;
mod queue;
mod start;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::LocalBoxFuture;

use self::{
    link::ChildLink,
    log::{LastLine, ServerLog},
    start::Spec,
};
use super::{Connector, Link, LinkError, LinkKind, Listener};
use countersign_config::{UpstreamConfig, UpstreamTarget};

/// This program, also after an upgrade has replaced its file.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// `transports.stdio.max_message_size` where nobody says otherwise.
const MAX_MESSAGE: usize = 8 << 20;

/// Starts the children of one server.
pub struct ChildConnector {
    config: Arc<UpstreamConfig>,
    data: PathBuf,
    guard: PathBuf,
    max_message: usize,
    last_line: LastLine,
}

impl ChildConnector {
    /// `data` is the data directory: a server without a `cwd` works in a folder of its own there.
    #[must_use]
    pub fn new(config: &Arc<UpstreamConfig>, data: &Path) -> Self {
        let this = Path::new(THIS_PROGRAM);
        let guard = if this.exists() { Ok(this.to_owned()) } else { std::env::current_exe() };
        Self {
            config: config.clone(),
            data: data.to_owned(),
            guard: guard.unwrap_or_else(|_| this.to_owned()),
            max_message: MAX_MESSAGE,
            last_line: LastLine::default(),
        }
    }

    /// The longest message that is taken from a server, in bytes (`transports.stdio.max_message_size`; 8 MiB).
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// The program that has the guard's subcommand, where this one has not (a test).
    #[must_use]
    pub fn guarded_by(mut self, program: &Path) -> Self {
        self.guard = program.to_owned();
        self
    }

    async fn start(&self, unsolicited: Arc<dyn Listener>) -> Result<Arc<dyn Link>, LinkError> {
        let UpstreamTarget::Command { command, args, env, cwd } = &self.config.target else {
            return Err(LinkError::Unreachable("it is configured with a URL, not with a command".to_owned()));
        };
        let cwd = match cwd {
            Some(cwd) if cwd.is_dir() => cwd.clone(),
            Some(cwd) => return Err(LinkError::Unreachable(format!("its `cwd` {} is not a folder", cwd.display()))),
            None => start::own_folder(&self.data, &self.config.name)?,
        };
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.0.as_str())).collect();
        let log = ServerLog::new(&self.config.name, env.iter().map(|(_, value)| *value), Arc::clone(&self.last_line));
        let started = start::start(Spec { guard: &self.guard, command, args, env: &env, cwd: &cwd }).await?;
        Ok(Arc::new(ChildLink::new(started, log, self.max_message, unsolicited)))
    }
}

impl Connector for ChildConnector {
    /// The child's tasks run on the thread of this call.
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(self.start(unsolicited))
    }

    fn kind(&self) -> LinkKind {
        LinkKind::Shared
    }

    fn probe_apart(&self) -> bool {
        true
    }

    fn last_line(&self) -> Option<String> {
        self.last_line.lock().clone()
    }

    fn describe(&self) -> String {
        self.config.label.clone()
    }
}
