//! Tests of the wire: HTTP of every revision, WebSocket, stdio, the feed, and hostile bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod feed;
mod fuzz_bounded;
mod http_endpoints;
mod http_modern;
mod http_raw;
mod http_sessions;
mod stdio_raw;
mod ws_raw;
