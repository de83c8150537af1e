//! Upstreams over HTTP, HTTP+SSE and WebSocket, against servers that are written byte by byte and misbehave in every way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod answers;
mod detection;
mod faults;
mod pair;
mod server;
mod sessions;
mod websocket;
