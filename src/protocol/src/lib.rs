//! JSON-RPC and the MCP wire protocol: envelopes, revisions and eras, error codes, header rules, JSON text.
//!
//! This crate is pure: no I/O, no clock, no sessions and no providers. The differences between messages of revisions are in one
//! table ([`revision::Rules`]), those of client capabilities in [`negotiate`], and the methods of each revision in [`request`].
//!
//! [`envelope::parse`] borrows a message from the received bytes. [`params`] reads the members that the gateway must
//! understand, [`headers`] compares them with the HTTP headers, and [`encode`] writes the response around a result that stays
//! text ([`json`] changes single members). [`error`] contains the table of all error codes.

pub mod annotations;
pub mod arguments;
pub mod cursor;
pub mod encode;
pub mod envelope;
pub mod error;
pub mod event_stream;
pub mod headers;
pub mod json;
pub mod negotiate;
pub mod outline;
pub mod param_headers;
pub mod params;
pub mod redact;
pub mod request;
pub mod revision;
pub mod rpc_error;
pub mod suggest;
pub mod task;

pub use error::{ErrorKind, McpError, PassthroughError};
pub use request::{Method, RequestId};
pub use revision::{Era, Revision, Rules};
