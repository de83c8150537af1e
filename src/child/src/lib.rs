//! Child processes that communicate over stdin and stdout: upstream servers, and servers that `countersign check`
//! tests.
//!
//! [`environment`] is the closed list of variables that a child inherits. [`start()`] runs a child under its own guard
//! process ([`guard`]), which ends the child and all its descendants, even after this process was killed. This crate
//! does not know what is sent over the pipes.

pub mod environment;
pub mod guard;
mod processes;
mod start;

pub use start::{ChildSpec, GuardHandle, RunningChild, StartError, start, this_program};
