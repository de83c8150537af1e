//! Rulings of reviewers: acceptances of tool definitions, and standing rules about future calls.
//!
//! This crate never decides on a call. It records each ruling, then rebuilds the route table with it, and then announces it
//! on the feed.
//!
//! [`tool_acceptance`] lists tools, and accepts their definitions or revokes acceptances. [`standing_rules`] creates, ends
//! and counts rules that decide in place of a reviewer.

pub mod standing_rules;
pub mod tool_acceptance;
