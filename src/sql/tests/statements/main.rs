//! Classifies the statements of `statements.txt`, and checks the result against a real PostgreSQL and a real SQLite.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a failure ends the test")]

mod corpus;
mod postgres;
mod repeatability;
mod sqlite;

use countersign_sql::{Dialect, Effect, Write, classify};

/// Classifies a text of one statement, which writes.
fn classify_write(dialect: Dialect, sql: &str) -> Write {
    let Effect::Write(write) = classify(dialect, sql, 50).remove(0).effect else { panic!("{sql} is no write") };
    write
}
