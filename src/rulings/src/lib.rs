//! Rulings of reviewers about tools and future calls: accepted definitions and standing rules.
//!
//! Never decides on a call. A ruling is recorded before it takes effect; then the route table is rebuilt with it, and the
//! feed announces it.
//!
//! [`tool_acceptance`] lists tools, and accepts their definitions or revokes acceptances. [`standing_rules`] creates, ends
//! and counts rules that decide in place of a reviewer.

pub mod standing_rules;
pub mod tool_acceptance;
