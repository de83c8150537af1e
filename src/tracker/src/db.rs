//! Runs statements in the embedded database or in that of a server.
//!
//! Statements are written once, and [`prefix_tables`] gives tables the names that they have beside those of the store. Only
//! the statements of the full-text search differ.

use countersign_protocol::{ErrorKind, McpError};
pub(super) use countersign_store::{
    StoreError,
    sql::{Cell, Column, Parameters, Row, Value},
    values,
};
use countersign_store::{sqlite::sql, tables::Session};

use super::words;

/// The result of reading a row.
pub(super) type Sql<T> = Result<T, StoreError>;
/// The result of a statement.
pub(super) type DbResult<T> = Result<T, DbError>;

/// A failed statement. A call fails as a read does, unless the error is mapped with [`not_written`].
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct DbError(StoreError);

impl<E: Into<StoreError>> From<E> for DbError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// A connection with its transaction.
#[derive(Clone, Copy)]
pub(super) enum Db<'a> {
    File(&'a rusqlite::Connection),
    Server(&'a Session),
}

impl Db<'_> {
    fn rows(self, sql: &str, values: &[Value<'_>]) -> Sql<Vec<Row>> {
        match self {
            Self::File(conn) => sql::rows(conn, sql, values),
            Self::Server(session) => session.rows(&prefix_tables(sql), values),
        }
    }

    /// Reads all rows.
    pub fn all<T>(self, sql: &str, values: &[Value<'_>], read: impl FnMut(&Row) -> Sql<T>) -> DbResult<Vec<T>> {
        Ok(self.rows(sql, values)?.iter().map(read).collect::<Sql<_>>()?)
    }

    /// Reads the first row, if there is one.
    pub fn find<T>(self, sql: &str, values: &[Value<'_>], read: impl FnOnce(&Row) -> Sql<T>) -> DbResult<Option<T>> {
        Ok(self.rows(sql, values)?.first().map(read).transpose()?)
    }

    /// Reads the first row, which must exist.
    pub fn one<T>(self, sql: &str, values: &[Value<'_>], read: impl FnOnce(&Row) -> Sql<T>) -> DbResult<T> {
        self.find(sql, values, read)?.ok_or_else(missing_row)
    }

    /// Runs a statement, and returns how many rows were written.
    pub fn execute(self, sql: &str, values: &[Value<'_>]) -> DbResult<u64> {
        Ok(match self {
            Self::File(conn) => sql::execute(conn, sql, values)?,
            Self::Server(session) => session.execute(&prefix_tables(sql), values)?,
        })
    }

    /// Returns `true` if this gateway still has the claim on the change, until the transaction ends. Nobody else has
    /// claims on changes in an embedded database.
    pub fn is_claimed(self, change: &str) -> DbResult<bool> {
        match self {
            Self::File(_) => Ok(true),
            Self::Server(session) => Ok(session.is_claimed(change)?),
        }
    }

    /// Adds an issue to the full-text index. The embedded database does so itself.
    pub fn index_issue(self, row: i64, key: &str, title: &str, description: &str) -> DbResult<()> {
        self.index("issues", row, &[('A', key), ('B', title), ('D', description)])
    }

    /// Adds a comment to the full-text index, as [`Self::index_issue`] does.
    pub fn index_comment(self, row: i64, content: &str) -> DbResult<()> {
        self.index("comments", row, &[('D', content)])
    }

    fn index(self, table: &str, row: i64, parts: &[(char, &str)]) -> DbResult<()> {
        if let Self::Server(_) = self {
            let sql = format!("UPDATE {table} SET words = CAST(?2 AS text)::tsvector WHERE id = ?1");
            self.execute(&sql, values![row, &words::vector(parts)])?;
        }
        Ok(())
    }
}

const TABLES: [&str; 6] = ["people", "projects", "issues", "comments", "history", "runs"];

/// Returns the statement with the names that the tracker's tables have beside those of the store.
pub(super) fn prefix_tables(sql: &str) -> String {
    let mut out = sql.to_owned();
    for keyword in ["FROM", "JOIN", "INTO", "UPDATE"] {
        for table in TABLES {
            out = out.replace(&format!("{keyword} {table}"), &format!("{keyword} tracker_{table}"));
        }
    }
    out
}

pub(super) fn missing_row() -> DbError {
    StoreError::BadRecord("a row that was there is gone".to_owned()).into()
}

/// The error of a read: the log has the cause, and the client does not learn of the gateway's files.
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

/// The error of a write that failed before its commit, so that nothing was changed.
pub(super) fn not_written(error: impl Into<DbError>) -> McpError {
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
    fn tables_on_a_server_are_prefixed() {
        for (here, there) in [
            ("SELECT id FROM issues WHERE key = ?1", "SELECT id FROM tracker_issues WHERE key = ?1"),
            (
                "SELECT i.id FROM issues i LEFT JOIN people a ON a.id = ?1 WHERE i.project IN (?2, ?3)",
                "SELECT i.id FROM tracker_issues i LEFT JOIN tracker_people a ON a.id = ?1 WHERE i.project IN (?2, ?3)",
            ),
            ("INSERT INTO runs (changes) VALUES (?1)", "INSERT INTO tracker_runs (changes) VALUES (?1)"),
            ("UPDATE projects SET issues = ?2", "UPDATE tracker_projects SET issues = ?2"),
        ] {
            assert_eq!(prefix_tables(here), there);
        }
    }
}
