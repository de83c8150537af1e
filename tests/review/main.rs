//! Tests of reviews: the policy's verdict on a call, people's decisions, and the outcome.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod approval;
mod change_tasks;
mod documents;
mod held_calls;
mod plan_previews;
mod policy;
mod stated_reason;
mod upstream_policy;
mod verification;
