//! Tests of durability: crashes, failing stores, jumping clocks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "test code"
)]

mod clock;
mod cluster_proof;
mod crash;
mod crash_proof;
mod deployment;
mod node_availability;
mod nodes;
mod nodes_that_differ;
mod plans;
mod postgres;
mod store_faults;
mod upgrade;
