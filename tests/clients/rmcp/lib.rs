//! Empty: the crate exists for its tests, which drive the gateway with the official Rust SDK.
