//! State that outlives a request and belongs to no session.

pub mod deciding_keys;
pub mod limiter;
pub mod local_tasks;
pub mod opened_pages;
