//! What several crates need of threads and memory, and what has nothing to do with MCP.
//!
//! Never knows who uses it: no session, no change, no provider.
//!
//! [`lanes`] has the threads for large messages, [`reclaim`] what gives memory back, and [`crash`] the points where
//! tests kill the process.

pub mod crash;
pub mod lanes;
pub mod reclaim;
