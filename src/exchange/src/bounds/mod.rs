//! Bounds the resources that a peer can make the gateway hold, and chooses what is evicted when a bound is reached.

pub mod body_budget;
pub mod eviction;
pub mod memory;
pub mod slots;
