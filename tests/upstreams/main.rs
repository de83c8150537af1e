//! Tests of servers behind the gateway: over HTTP and as child processes, correct and faulty, of every era.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod bridge;
mod isolation;
mod upstream_child;
mod upstream_child_ends;
mod upstream_http;
mod upstream_lists;
