//! Runs SQL statements in SQLite or PostgreSQL.
//!
//! Both databases run the same statements, except those of the full-text search. In PostgreSQL, [`prefix_tables`] adds a
//! prefix to the table names, because the store has its tables in the same database.

use countersign_protocol::{ErrorKind, McpError};
pub(super) use countersign_store::{
    StoreError,
    sql::{Cell, Column, Parameters, Row, Value},
    values,
};
use countersign_store::{sqlite::sql, tables::ModuleConnection};

use super::words;

/// The result of reading a row.
pub(super) type RowResult<T> = Result<T, StoreError>;
/// The result of a statement.
pub(super) type DbResult<T> = Result<T, DbError>;

/// The error of a statement. It converts to the error of a failed read; [`unwritten_error`] maps it to that of a failed
/// write.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct DbError(StoreError);

impl<E: Into<StoreError>> From<E> for DbError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// A connection to the database, with its transaction if there is one.
#[derive(Clone, Copy)]
pub(super) enum Db<'a> {
    Sqlite(&'a rusqlite::Connection),
    Postgres(&'a ModuleConnection),
}

impl Db<'_> {
    fn rows(self, sql: &str, values: &[Value<'_>]) -> RowResult<Vec<Row>> {
        match self {
            Self::Sqlite(conn) => sql::rows(conn, sql, values),
            Self::Postgres(connection) => connection.rows(&prefix_tables(sql), values),
        }
    }

    /// Reads all rows.
    pub fn query_all<T>(
        self,
        sql: &str,
        values: &[Value<'_>],
        read: impl FnMut(&Row) -> RowResult<T>,
    ) -> DbResult<Vec<T>> {
        Ok(self.rows(sql, values)?.iter().map(read).collect::<RowResult<_>>()?)
    }

    /// Reads the first row, if there is one.
    pub fn query_optional<T>(
        self,
        sql: &str,
        values: &[Value<'_>],
        read: impl FnOnce(&Row) -> RowResult<T>,
    ) -> DbResult<Option<T>> {
        Ok(self.rows(sql, values)?.first().map(read).transpose()?)
    }

    /// Reads the first row, and fails if there is none.
    pub fn query_one<T>(self, sql: &str, values: &[Value<'_>], read: impl FnOnce(&Row) -> RowResult<T>) -> DbResult<T> {
        self.query_optional(sql, values, read)?.ok_or_else(missing_row)
    }

    /// Runs a statement, and returns how many rows were written.
    pub fn execute(self, sql: &str, values: &[Value<'_>]) -> DbResult<u64> {
        Ok(match self {
            Self::Sqlite(conn) => sql::execute(conn, sql, values)?,
            Self::Postgres(connection) => connection.execute(&prefix_tables(sql), values)?,
        })
    }

    /// Returns `true` if this gateway still has the claim on the change, and keeps the claim until the transaction
    /// ends. Only one gateway uses a SQLite file, so it always has the claim.
    pub fn is_claimed(self, change: &str) -> DbResult<bool> {
        match self {
            Self::Sqlite(_) => Ok(true),
            Self::Postgres(connection) => Ok(connection.is_claimed(change)?),
        }
    }

    /// Updates the full-text index of PostgreSQL with an issue. In SQLite, triggers do this.
    pub fn index_issue(self, row: i64, key: &str, title: &str, description: &str) -> DbResult<()> {
        self.index("issues", row, &[('A', key), ('B', title), ('D', description)])
    }

    /// Updates the full-text index with a comment, as [`Self::index_issue`] does.
    pub fn index_comment(self, row: i64, content: &str) -> DbResult<()> {
        self.index("comments", row, &[('D', content)])
    }

    fn index(self, table: &str, row: i64, weighted_texts: &[(char, &str)]) -> DbResult<()> {
        if let Self::Postgres(_) = self {
            let sql = format!("UPDATE {table} SET words = CAST(?2 AS text)::tsvector WHERE id = ?1");
            self.execute(&sql, values![row, &words::tsvector(weighted_texts)])?;
        }
        Ok(())
    }
}

/// The tables of both databases, by their names in SQLite. The full-text tables exist only there.
const TABLES: [&str; 6] = ["people", "projects", "issues", "comments", "history", "runs"];

/// Returns the statement with `tracker_` before each name of a table that follows a keyword.
pub(super) fn prefix_tables(sql: &str) -> String {
    let mut prefixed = sql.to_owned();
    for keyword in ["FROM", "JOIN", "INTO", "UPDATE"] {
        for table in TABLES {
            prefixed = prefixed.replace(&format!("{keyword} {table}"), &format!("{keyword} tracker_{table}"));
        }
    }
    prefixed
}

/// Returns the error for a row that another row refers to or that was just written.
pub(super) fn missing_row() -> DbError {
    StoreError::BadRecord("a row that must exist is missing".to_owned()).into()
}

/// Logs and converts the error of a failed read. Only the log shows the cause, which may name files of the gateway.
impl From<DbError> for McpError {
    fn from(DbError(error): DbError) -> Self {
        if let StoreError::Locked = error {
            return Self::new(ErrorKind::Timeout, "The query took too long; narrow it.");
        }
        tracing::error!(%error, "tracker: the database could not be read");
        if let StoreError::Unreachable(_) = error {
            return Self::new(ErrorKind::StoreUnavailable, "The tracker's database does not answer; try again.");
        }
        internal_error()
    }
}

/// Logs and converts the error of a write that failed before its commit, so that nothing was changed.
pub(super) fn unwritten_error(error: impl Into<DbError>) -> McpError {
    let DbError(error) = error.into();
    tracing::error!(%error, "tracker: the database could not be written");
    McpError::new(ErrorKind::StoreUnavailable, "The tracker's database could not be written; nothing was changed.")
}

pub(super) fn internal_error() -> McpError {
    McpError::new(ErrorKind::Internal, "The tracker failed; see the gateway's log.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_in_postgres_are_prefixed() {
        for (plain, prefixed) in [
            ("SELECT id FROM issues WHERE key = ?1", "SELECT id FROM tracker_issues WHERE key = ?1"),
            (
                "SELECT i.id FROM issues i LEFT JOIN people a ON a.id = ?1 WHERE i.project IN (?2, ?3)",
                "SELECT i.id FROM tracker_issues i LEFT JOIN tracker_people a ON a.id = ?1 WHERE i.project IN (?2, ?3)",
            ),
            ("INSERT INTO runs (changes) VALUES (?1)", "INSERT INTO tracker_runs (changes) VALUES (?1)"),
            ("UPDATE projects SET issues = ?2", "UPDATE tracker_projects SET issues = ?2"),
        ] {
            assert_eq!(prefix_tables(plain), prefixed);
        }
    }
}
