//! Tests of the limits on one peer's use of the gateway, and of the effect on others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "test code")]

mod attacks;
mod bounds;
mod http2;
mod load;
mod memory;
