//! Classifies the statements of `statements.txt`, and checks the result against a real PostgreSQL and a real SQLite.

mod corpus;
mod postgres;
mod sqlite;
