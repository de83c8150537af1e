//! `requestState`, which clients carry from one request to the next (2026-07-28/basic/patterns/mrtr): of parked calls
//! ([`seal`]), and of stateless upstreams ([`carried`]).

pub mod carried;
pub mod seal;

use countersign_protocol::{ErrorKind, McpError};

/// For one that cannot be used.
#[must_use]
pub fn refused(why: &str) -> McpError {
    let message = format!("this requestState cannot be used: {why}; the call was not made again");
    McpError::new(ErrorKind::InvalidParams, message).with("member", "requestState")
}
