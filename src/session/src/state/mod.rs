//! State that outlives a request and belongs to no session.

pub mod callers;
pub mod local_tasks;
pub mod opened_pages;
