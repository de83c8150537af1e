//! The endpoints: Streamable HTTP and the plain HTTP endpoints, the 2024-11-05 pair, WebSocket, and newline-framed
//! byte streams (stdio, the attach socket). An endpoint frames messages; what they mean is the session layer's.

pub mod http;
pub mod lines;
pub mod ws;

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other pump of this process has.
#[must_use]
pub fn next_pump_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}
