//! Acceptances and standing rules: the decisions of reviewers about tools and future calls.
//!
//! This crate never decides on a call (the *ruling* of a route does that). It records each decision, then rebuilds the route
//! table with it, and then announces it on the feed. A client that disconnects interrupts none of these steps.
//!
//! [`tool_acceptance`] lists tools, and accepts their definitions or revokes acceptances. [`standing_rules`] creates, ends
//! and counts rules that decide in place of a reviewer. [`rule_counts`] stores how often each rule of the policy
//! decided, and [`dry_run`] tries another policy on recorded calls.

mod completion;
pub mod dry_run;
pub mod rule_counts;
pub mod standing_rules;
pub mod tool_acceptance;
