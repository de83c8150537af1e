//! What one peer can make the gateway hold or do, and what others feel of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "test code")]

mod attacks;
mod bounds;
mod http2;
mod load;
mod memory;
