//! State that outlives a request and belongs to no session.

pub mod answered_page_requests;
pub mod callers;
pub mod local_tasks;
