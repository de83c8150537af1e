//! What a policy makes of a call, what a person says of it, and what becomes of it then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod approval;
mod change_tasks;
mod documents;
mod held_calls;
mod policy;
mod upstream_policy;
