//! How programs of this machine find and share the one gateway of a data directory, `countersign stdio` above all.
//!
//! Nothing here reads or writes MCP: a line goes through untouched, and stdout carries the gateway's lines only.
//!
//! The gateway listens on `<data>/gateway.sock` ([`socket`]); each connection begins with one line each way ([`hello`])
//! and then carries messages ([`proxy`]). Where no gateway runs, [`start`] starts a detached one under a lock; it ends
//! some time after its last user ([`users`]). [`gateway_file`] says where it listens and what it proves itself by
//! ([`proof`]).

pub mod gateway_file;
pub mod hello;
pub mod proof;
pub mod proxy;
pub mod socket;
pub mod start;
pub mod users;

use std::{path::PathBuf, time::Duration};

pub use self::{gateway_file::GatewayFile, proxy::Ended, users::Users};
use countersign_store::StoreError;

/// Why `countersign stdio` could not attach. The texts are for a person at a terminal or in an agent's log.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("{0}")]
    Socket(#[from] socket::SocketError),
    #[error("{0}")]
    Data(#[from] StoreError),
    #[error("the gateway refused this connection: {0}")]
    Refused(String),
    #[error("the gateway at {socket} took the connection and did not answer within {}s; is it stopped or overloaded?", within.as_secs())]
    Silent { socket: PathBuf, within: Duration },
    #[error("the lock {path} cannot be used: {source}")]
    Lock { path: PathBuf, source: std::io::Error },
    #[error("another `countersign stdio` has been starting the gateway for {}s; look at {log}", within.as_secs())]
    Waited { within: Duration, log: PathBuf },
    #[error("the gateway could not be started: {0}")]
    Spawn(std::io::Error),
    /// It ended, or did not open its socket in time; with what it said.
    #[error("the gateway did not start ({how}){}", if said.is_empty() { format!("; look at {}", log.display()) } else { format!(":\n{said}") })]
    Failed { how: String, said: String, log: PathBuf },
    #[error("standard input or output failed: {0}")]
    Io(#[from] std::io::Error),
}
