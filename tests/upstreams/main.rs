//! Servers behind the gateway: over HTTP and as children, good ones and bad ones, of every era.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod bridge;
mod isolation;
mod upstream_child;
mod upstream_child_ends;
mod upstream_http;
mod upstream_lists;
