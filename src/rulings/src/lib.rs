//! What reviewers say of tools and of calls to come: accepted definitions and standing rules.
//!
//! Never decides on a call. A ruling is on record before it is in force; then the route table is built anew with it, and the
//! feed tells of it.
//!
//! [`tool_acceptance`] lists tools for people, accepts their definitions and revokes that; [`standing_rules`] gives, ends
//! and counts rules that decide in a reviewer's stead.

pub mod standing_rules;
pub mod tool_acceptance;
