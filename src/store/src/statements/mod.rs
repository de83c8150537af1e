//! Statements that both backends share: all statements except those that write changes and the audit trail.

pub mod changes;
pub mod claims;
pub mod facts;
pub mod pins;
pub mod records;
pub mod retention;
pub mod standing_rules;
pub mod trail;
