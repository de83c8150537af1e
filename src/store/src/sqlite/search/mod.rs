//! Reading what a person looks for: pages of changes, and of the audit trail.

pub mod audit;
pub mod changes;
