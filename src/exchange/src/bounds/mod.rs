//! Bounds of what a peer can make the gateway hold, and who gives way when a bound is reached.

pub mod eviction;
pub mod inflow;
pub mod memory;
pub mod slots;
