//! What several crates need of threads and time, and what has nothing to do with MCP.
//!
//! Never knows who uses it: no session, no change, no provider.
//!
//! [`lanes`] has the threads for large messages, [`deadline`] time-outs that hardly ever fire, [`fast_map`] the
//! maps that every request looks into, [`reclaim`] what gives memory back.

pub mod deadline;
pub mod fast_map;
pub mod lanes;
pub mod reclaim;
