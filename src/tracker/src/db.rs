//! A database as the tracker's statements see it: the embedded one, or that of a server.
//!
//! Statements are written once; [`prefix_tables`] gives tables the names that they have beside those of the store. Only full
//! text is asked for in two ways.

use countersign_protocol::{ErrorKind, McpError};
pub(super) use countersign_store::{
    StoreError,
    sql::{Cell, Column, Parameters, Row, Value},
    values,
};
use countersign_store::{sqlite::sql, tables::Session};

use super::words;

pub(super) type Sql<T> = Result<T, StoreError>;

/// The connection that the caller has, with its transaction.
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

    /// Hands over the rows, one after the other.
    pub fn each(self, sql: &str, values: &[Value<'_>], each: impl FnMut(&Row) -> Sql<()>) -> Sql<()> {
        self.rows(sql, values)?.iter().try_for_each(each)
    }

    pub fn all<T>(self, sql: &str, values: &[Value<'_>], of: impl FnMut(&Row) -> Sql<T>) -> Sql<Vec<T>> {
        self.rows(sql, values)?.iter().map(of).collect()
    }

    /// Reads the first row.
    pub fn find<T>(self, sql: &str, values: &[Value<'_>], of: impl FnOnce(&Row) -> Sql<T>) -> Sql<Option<T>> {
        self.rows(sql, values)?.first().map(of).transpose()
    }

    /// Reads a row that is there.
    pub fn one<T>(self, sql: &str, values: &[Value<'_>], of: impl FnOnce(&Row) -> Sql<T>) -> Sql<T> {
        self.find(sql, values, of)?.ok_or_else(missing_row)
    }

    /// Returns how many rows were written.
    pub fn execute(self, sql: &str, values: &[Value<'_>]) -> Sql<u64> {
        match self {
            Self::File(conn) => sql::execute(conn, sql, values),
            Self::Server(session) => session.execute(&prefix_tables(sql), values),
        }
    }

    /// Whether the gateway that runs the change still has it, as long as the transaction lasts: in a database that several
    /// share. The embedded one is one gateway's alone.
    pub fn is_claimed(self, change: &str) -> Sql<bool> {
        match self {
            Self::File(_) => Ok(true),
            Self::Server(session) => session.is_claimed(change),
        }
    }

    /// Lets an issue be found by its words. The embedded database sees to that by itself.
    pub fn index_issue(self, rowid: i64, key: &str, title: &str, description: &str) -> Sql<()> {
        self.index("issues", rowid, &[('A', key), ('B', title), ('D', description)])
    }

    /// As [`Self::index_issue`].
    pub fn index_comment(self, rowid: i64, content: &str) -> Sql<()> {
        self.index("comments", rowid, &[('D', content)])
    }

    fn index(self, table: &str, rowid: i64, parts: &[(char, &str)]) -> Sql<()> {
        if let Self::Server(_) = self {
            let sql = format!("UPDATE {table} SET words = CAST(?2 AS text)::tsvector WHERE id = ?1");
            self.execute(&sql, values![rowid, &words::vector(parts)])?;
        }
        Ok(())
    }
}

const TABLES: [&str; 6] = ["people", "projects", "issues", "comments", "history", "runs"];

/// Returns the statement with the tracker's tables by the names that they have beside those of the store.
pub(super) fn prefix_tables(sql: &str) -> String {
    let mut out = sql.to_owned();
    for keyword in ["FROM", "JOIN", "INTO", "UPDATE"] {
        for table in TABLES {
            out = out.replace(&format!("{keyword} {table}"), &format!("{keyword} tracker_{table}"));
        }
    }
    out
}

pub(super) fn missing_row() -> StoreError {
    StoreError::BadRecord("a row that was there is gone".to_owned())
}

/// A read failed: the log says why, the client does not learn of our files.
pub(super) fn failed(error: &StoreError) -> McpError {
    if let StoreError::Locked = error {
        return McpError::new(ErrorKind::Timeout, "The query took too long; narrow it.");
    }
    tracing::error!(%error, "tracker: the database could not be read");
    if let StoreError::Unreachable(_) = error {
        return McpError::new(ErrorKind::StoreUnavailable, "The tracker's database does not answer; try again.");
    }
    internal()
}

/// A write failed before its commit, so nothing was changed.
pub(super) fn not_written(error: &StoreError) -> McpError {
    tracing::error!(%error, "tracker: the database could not be written");
    McpError::new(ErrorKind::StoreUnavailable, "The tracker's database could not be written; nothing was changed.")
}

pub(super) fn internal() -> McpError {
    McpError::new(ErrorKind::Internal, "The tracker failed; see the gateway's log.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_server_have_a_prefix() {
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
