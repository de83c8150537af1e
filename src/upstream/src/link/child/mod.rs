//! Servers that are child processes and speak over stdin and stdout (2025-11-25/basic/transports#stdio,
//! 2026-07-28/basic/transports/stdio).
//!
//! Each child has a guard process of its own, which ends it and all that it started, whatever happens to the gateway
//! (`countersign_child`). [`ChildConnector`] starts them; restarting is the upstream's business (`upkeep`).

mod folder;
mod frames;
mod link;
mod log;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Once},
};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;

use self::log::{History, ServerLog};
use super::{Connector, Link, LinkError, LinkKind, Listener, Stderr};
use countersign_child::{ChildSpec, environment::InheritedEnvironment, start, this_program};
use countersign_config::{UpstreamConfig, UpstreamTarget};

/// `transports.stdio.max_message_size` where nobody says otherwise.
const MAX_MESSAGE: usize = 8 << 20;

/// Starts the children of one server.
pub struct ChildConnector {
    config: Arc<UpstreamConfig>,
    data: PathBuf,
    guard: PathBuf,
    max_message: usize,
    history: Arc<Mutex<History>>,
}

impl ChildConnector {
    /// `data` is the data directory: a server without a `cwd` works in a folder of its own there.
    #[must_use]
    pub fn new(config: &Arc<UpstreamConfig>, data: &Path) -> Self {
        Self {
            config: config.clone(),
            data: data.to_owned(),
            guard: this_program(),
            max_message: MAX_MESSAGE,
            history: Arc::default(),
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
            None => folder::own_folder(&self.data, &self.config.name)?,
        };
        let inherited = InheritedEnvironment::from_process();
        if !inherited.withheld.is_empty() {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(
                    variables = inherited.withheld.join(", "),
                    "servers do not get these variables of the gateway, since their values hold a user or a password: \
                     set them in the `env` of the servers that need them"
                );
            });
        }
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.0.as_str())).collect();
        let log = ServerLog::new(&self.config.name, env.iter().map(|(_, value)| *value), Arc::clone(&self.history));
        let spec = ChildSpec {
            guard: &self.guard,
            command,
            args,
            inherited: &inherited.variables,
            env: &env,
            cwd: Some(&cwd),
        };
        let started = start(spec).await.map_err(|error| LinkError::Unreachable(error.to_string()))?;
        Ok(Arc::new(link::start(started, log, self.max_message, unsolicited)))
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

    fn stderr(&self) -> Stderr {
        self.history.lock().shown()
    }

    fn describe(&self) -> String {
        self.config.label.clone()
    }
}
