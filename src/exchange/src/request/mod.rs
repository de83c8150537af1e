//! One request on its way, what belongs to it, what its client is asked meanwhile, and its answer.

pub mod ask;
pub mod context;
pub mod related;
pub mod reply;
