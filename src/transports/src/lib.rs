//! The transports of agents: Streamable HTTP and the plain HTTP endpoints ([`http`]), the 2024-11-05 pair, WebSocket ([`ws`]),
//! and newline-framed byte streams such as stdio ([`lines`]). They frame messages and identify callers; [`countersign_session`]
//! handles the messages. They know nothing of the REST API.
//!
//! `http/mcp.rs` is `POST /mcp`, `modern.rs` and `session.rs` beside it are the two eras, and `plain.rs` is the plain HTTP
//! endpoint. [`endpoint`] holds their shared data, and `attachment` connects them to their sessions.

mod attachment;
pub mod endpoint;
pub mod http;
pub mod lines;
#[cfg(test)]
mod testing;
pub mod ws;
