//! TODO ('domain', 'webhooks')

pub mod event;
pub mod format;
pub mod sign;
pub mod summary;
pub mod template;
