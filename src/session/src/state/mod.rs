//! What is kept from one request to the next, beside what a session keeps of its own.

pub mod deciding_keys;
pub mod limiter;
pub mod local_tasks;
pub mod opened_pages;
