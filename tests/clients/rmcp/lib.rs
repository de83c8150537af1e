//! Nothing: the crate exists for its test, which drives the gateway with the official Rust SDK.
