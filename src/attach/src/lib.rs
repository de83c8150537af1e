//! Lets programs on this machine, above all `countersign stdio`, find and share the one gateway of a data directory.
//!
//! This crate reads only the members of messages that let a session continue when its gateway ends ([`conversation`]).
//! stdout carries only messages.
//!
//! The gateway listens on `<data>/gateway.sock` ([`socket`]); each connection begins with one line each way ([`hello`])
//! and then carries messages ([`proxy`]). If no gateway runs, [`start`] starts a detached one under a lock. A detached
//! gateway ends some time after its last user ([`users`]), or when a newer program replaces it ([`version`]).
//! [`gateway_file`] publishes its addresses and the secret with which it proves its identity ([`proof`]).

pub mod conversation;
pub mod gateway_file;
pub mod hello;
pub mod proof;
pub mod proxy;
pub mod socket;
pub mod start;
pub mod users;
pub mod version;

use std::{path::PathBuf, time::Duration};

pub use self::{gateway_file::GatewayFile, proxy::ProxyOutcome, users::Users};
use countersign_runtime::data_dir::DataDirError;

/// The reason why `countersign stdio` could not attach. The texts are for a person at a terminal or in an agent's log.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("{0}")]
    Socket(#[from] socket::SocketError),
    #[error("{0}")]
    Data(#[from] DataDirError),
    #[error("the gateway refused this connection: {0}")]
    Refused(String),
    #[error("the next gateway does not continue this session ({0}); start this agent's server again")]
    NotResumed(String),
    #[error("the gateway at {socket} accepted the connection but did not answer within {}s; is it stopped or overloaded?", within.as_secs())]
    NoAnswer { socket: PathBuf, within: Duration },
    #[error("the lock {path} cannot be used: {source}")]
    Lock { path: PathBuf, source: std::io::Error },
    #[error("another `countersign stdio` has been starting the gateway for {}s; look at {log}", within.as_secs())]
    StartTimeout { within: Duration, log: PathBuf },
    #[error("the gateway could not be started: {0}")]
    Spawn(std::io::Error),
    /// The gateway ended or did not open its socket in time. Contains the end of its log.
    #[error("the gateway did not start ({reason}){}", if log_tail.is_empty() { format!("; look at {}", log.display()) } else { format!(":\n{log_tail}") })]
    StartFailed { reason: String, log_tail: String, log: PathBuf },
    #[error("standard input or output failed: {0}")]
    Io(#[from] std::io::Error),
}
