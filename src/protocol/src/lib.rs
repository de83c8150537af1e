//! JSON-RPC and the MCP wire protocol: envelopes, revisions and eras, error codes, header rules, JSON text.
//!
//! Pure: no I/O, no clock, nothing of sessions or providers. What differs between revisions stands in one table
//! ([`revision::Rules`]), and their methods in [`method`].
//!
//! [`envelope::parse`] borrows a message from the received bytes, [`params`] reads what the gateway must understand of
//! it, [`headers`] checks what HTTP says of it, and [`encode`] writes the answer around the bytes of a result that
//! nobody took apart ([`json`] changes single members). [`error`] has the one table of error codes.

pub mod alike;
pub mod annotations;
pub mod arguments;
pub mod capabilities;
pub mod cursor;
pub mod encode;
pub mod envelope;
pub mod error;
pub mod event_stream;
pub mod headers;
pub mod id;
pub mod json;
pub mod method;
pub mod negotiate;
pub mod outline;
pub mod param_headers;
pub mod params;
pub mod redact;
pub mod revision;
pub mod rpc_error;
pub mod suggest;

pub use error::{ErrorKind, McpError, PassthroughError};
pub use id::RequestId;
pub use method::Method;
pub use revision::{Era, Revision, Rules};
