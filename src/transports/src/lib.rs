//! The transports of agents: Streamable HTTP and the plain HTTP endpoints ([`http`]), the 2024-11-05 pair, WebSocket ([`ws`]),
//! and newline-framed byte streams such as stdio ([`lines`]). They frame messages and identify callers; [`countersign_session`]
//! handles the messages. They know nothing of the REST API.
//!
//! `http/mcp.rs` is `POST /mcp`, `modern.rs` and `session.rs` beside it are the two eras, and `plain.rs` is the plain HTTP
//! endpoint. [`endpoint`] holds their shared data.

pub mod endpoint;
pub mod http;
pub mod lines;
#[cfg(test)]
mod testing;
pub mod ws;

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number that no other pump of this process has.
pub fn next_pump_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}
