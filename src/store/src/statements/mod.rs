//! Statements that both backends share. Those with a single caller are written there: in `queries`, `stored_keys` and
//! `delivery_store`.

pub mod changes;
pub mod claims;
pub mod facts;
pub mod pins;
pub mod records;
pub mod retention;
pub mod standing_rules;
pub mod trail;
