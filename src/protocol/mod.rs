//! The MCP wire protocol: JSON-RPC envelopes, revisions and eras, error codes, header rules.
//!
//! Pure: no I/O, no clock, nothing of sessions or providers. Everything that differs between
//! protocol revisions stands in one table ([`revision::Rules`]).

pub mod error;
pub mod id;
pub mod revision;

pub use error::{ErrorKind, McpError};
pub use id::RequestId;
pub use revision::{Era, Revision, Rules};
