//! What becomes of changes without anybody asking for it: their time ends, votes cease to count, and what is old is pruned.
//! Each is looked for again and again until the gateway closes.

pub mod expiry;
pub mod prune;
pub mod votes;
