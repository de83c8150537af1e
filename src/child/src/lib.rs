//! Child processes that speak over stdin and stdout: upstream servers, and servers that `countersign check` looks at.
//!
//! [`environment`] is the closed list of variables that a child gets of this process. [`start()`] runs a child under a guard
//! process of its own ([`guard`]), which ends it and everything that it started, also after this process was killed.
//! Nothing here knows what is said over the pipes.

pub mod environment;
pub mod guard;
mod processes;
mod start;

pub use start::{Guard, Spec, StartError, Started, start, this_program};
