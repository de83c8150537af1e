//! What is kept from one request to the next, beside what a session keeps of its own.

pub mod deciding_keys;
pub mod limiter;
pub mod local_tasks;
pub mod opened_pages;
pub mod retry_dedup;

use std::sync::Arc;

/// What all reviewed calls of a gateway share.
#[derive(Default)]
pub struct Reviewed {
    pub lost: Arc<retry_dedup::Lost>,
    pub opened: opened_pages::Opened,
}
