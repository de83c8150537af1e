//! TODO

pub mod changes;
pub mod policy;
pub mod principal;
pub mod webhooks;
