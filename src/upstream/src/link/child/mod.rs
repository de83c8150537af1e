//! Servers that are child processes and communicate over stdin and stdout (2025-11-25/basic/transports#stdio,
//! 2026-07-28/basic/transports/stdio).
//!
//! Each child has its own guard process, which ends the child and all its descendants, whatever happens to the gateway
//! (`countersign_child`). [`ChildConnector`] starts children, and `upkeep` restarts them.

mod lines;
mod log;
mod tasks;

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Once},
};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;

use self::log::{ServerLog, StderrHistory};
use super::{Connector, Link, LinkError, LinkKind, Listener, StderrSummary};
use countersign_child::{ChildSpec, environment::InheritedEnvironment, start, this_program};
use countersign_config::{UpstreamConfig, UpstreamTarget};

/// Starts the children of one server.
pub struct ChildConnector {
    config: Arc<UpstreamConfig>,
    data: PathBuf,
    guard: PathBuf,
    max_message: usize,
    history: Arc<Mutex<StderrHistory>>,
}

impl ChildConnector {
    /// Creates a connector. `data` is the data directory, and `max_message` the maximum number of bytes of a message
    /// from the server (`transports.stdio.max_message_size`).
    pub fn new(config: &Arc<UpstreamConfig>, data: &Path, max_message: usize) -> Self {
        let (config, data) = (Arc::clone(config), data.to_owned());
        Self { config, data, guard: this_program(), max_message, history: Arc::default() }
    }

    /// Sets the program that provides the guard's subcommand. Tests need it, because their executable has no such
    /// subcommand.
    #[must_use]
    pub fn with_guard_program(mut self, program: &Path) -> Self {
        self.guard = program.to_owned();
        self
    }

    /// Starts a child in its own folder or the configured one.
    async fn start(&self, unsolicited: Arc<dyn Listener>) -> Result<Arc<dyn Link>, LinkError> {
        let UpstreamTarget::Command { command, args, env, cwd } = &self.config.target else {
            return Err(LinkError::Unreachable("it is configured with a URL, not with a command".to_owned()));
        };
        let cwd = match cwd {
            Some(cwd) if cwd.is_dir() => cwd.clone(),
            Some(cwd) => return Err(LinkError::Unreachable(format!("its `cwd` {} is not a folder", cwd.display()))),
            None => create_own_folder(&self.data, &self.config)?,
        };
        let inherited = InheritedEnvironment::from_process();
        if !inherited.withheld.is_empty() {
            static WARN_ONCE: Once = Once::new();
            WARN_ONCE.call_once(|| {
                tracing::warn!(
                    variables = inherited.withheld.join(", "),
                    "servers do not get these variables of the gateway, because their values contain a user or a \
                     password: set them in the `env` of the servers that need them"
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
        let child = start(spec).await.map_err(|error| LinkError::Unreachable(error.to_string()))?;
        Ok(Arc::new(tasks::start(child, log, self.max_message, unsolicited)))
    }
}

impl Connector for ChildConnector {
    /// Starts a child, whose tasks run on the thread of this call.
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(self.start(unsolicited))
    }

    fn kind(&self) -> LinkKind {
        LinkKind::SingleStream
    }

    fn server_name(&self) -> &str {
        &self.config.name
    }

    fn stderr(&self) -> StderrSummary {
        self.history.lock().summary.clone()
    }

    fn describe(&self) -> String {
        self.config.label.clone()
    }
}

/// Creates the folder in which a server without a configured `cwd` works.
fn create_own_folder(data: &Path, config: &UpstreamConfig) -> Result<PathBuf, LinkError> {
    let slug = config.slug();
    // A folder name must not refer to the data directory or its parent.
    let name = if slug.bytes().all(|b| b == b'.') { "-".repeat(slug.len().max(1)) } else { slug };
    let folder = data.join("servers").join(name);
    let to_unreachable = |error| LinkError::Unreachable(format!("no working directory {}: {error}", folder.display()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(to_unreachable)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(to_unreachable)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_folder_is_private_and_in_the_data_directory() {
        let data = tempfile::tempdir().unwrap();
        for (name, folder) in [
            ("GitHub", "github"),
            ("a/b c", "a-b-c"),
            ("..", "--"),
            (".", "-"),
            ("", "-"),
            ("../../etc", "..-..-etc"),
            ("é.1", "-.1"),
        ] {
            let target =
                UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
            let config = UpstreamConfig::new(name, target);
            for _ in 0..2 {
                assert_eq!(create_own_folder(data.path(), &config).unwrap(), data.path().join("servers").join(folder));
            }
        }
        for path in [data.path().join("servers/--"), data.path().join("servers")] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
