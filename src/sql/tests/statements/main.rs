//! Classifies the statements of `statements.txt`, and checks the result against a real PostgreSQL and a real SQLite.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a failure ends the test")]

mod corpus;
mod postgres;
mod repeatability;
mod sqlite;
