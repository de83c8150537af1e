//! A database as the tracker's statements see it: the embedded one, or that of a server.
//!
//! Statements are written once, as SQLite has them; [`for_a_server`] says the same to PostgreSQL. Only full text is asked
//! for in two ways.

use std::error::Error;

use countersign_protocol::{ErrorKind, McpError};
use countersign_store::{
    StoreError,
    tables::{Given, Session},
};
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut};

use super::words;

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DbError {
    #[error(transparent)]
    File(#[from] rusqlite::Error),
    #[error(transparent)]
    Server(#[from] StoreError),
    #[error("it cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("column {0} holds something else")]
    Column(usize),
    #[error("a row that was there is gone")]
    Gone,
}

pub(super) type Sql<T> = Result<T, DbError>;

/// What a column holds, or a statement is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Int(i64),
    Real(f64),
    Text(&'a str),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// As [`Value`], kept.
#[derive(Debug)]
pub(super) enum Owned {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
}

impl From<Value<'_>> for Owned {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Int(number) => Self::Int(number),
            Value::Real(number) => Self::Real(number),
            Value::Text(text) => Self::Text(text.to_owned()),
        }
    }
}

impl Owned {
    pub fn lent(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Int(number) => Value::Int(*number),
            Self::Real(number) => Value::Real(*number),
            Self::Text(text) => Value::Text(text),
        }
    }
}

/// While the connection's own thread sends it.
impl ToSql for Owned {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            // A level of a hierarchy is a small one.
            Self::Int(number) if *ty == Type::INT4 => i32::try_from(*number)?.to_sql(ty, out),
            Self::Int(number) => number.to_sql(ty, out),
            Self::Real(number) => number.to_sql(ty, out),
            Self::Text(text) => text.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT4 | Type::INT8 | Type::FLOAT8 | Type::TEXT)
    }

    tokio_postgres::types::to_sql_checked!();
}

fn given(values: &[Value<'_>]) -> Vec<Given> {
    values.iter().map(|value| Box::new(Owned::from(*value)) as Given).collect()
}

impl<'a> FromSql<'a> for Value<'a> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *ty {
            Type::INT4 => Self::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::BOOL => Self::Int(bool::from_sql(ty, raw)?.into()),
            Type::FLOAT8 => Self::Real(f64::from_sql(ty, raw)?),
            _ => Self::Text(<&str>::from_sql(ty, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT4 | Type::INT8 | Type::BOOL | Type::FLOAT8 | Type::TEXT)
    }
}

/// What a column's value is read as.
pub(super) trait Column<'r>: Sized {
    fn read(value: Value<'r>) -> Option<Self>;
}

impl<'r> Column<'r> for &'r str {
    fn read(value: Value<'r>) -> Option<Self> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }
}

impl Column<'_> for String {
    fn read(value: Value<'_>) -> Option<Self> {
        <&str>::read(value).map(str::to_owned)
    }
}

impl Column<'_> for i64 {
    fn read(value: Value<'_>) -> Option<Self> {
        if let Value::Int(number) = value { Some(number) } else { None }
    }
}

impl Column<'_> for f64 {
    fn read(value: Value<'_>) -> Option<Self> {
        if let Value::Real(number) = value { Some(number) } else { None }
    }
}

impl Column<'_> for bool {
    fn read(value: Value<'_>) -> Option<Self> {
        i64::read(value).map(|number| number != 0)
    }
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn read(value: Value<'r>) -> Option<Self> {
        if value == Value::Null { Some(None) } else { T::read(value).map(Some) }
    }
}

/// A row of an answer.
#[derive(Clone, Copy)]
pub(super) enum Row<'r> {
    File(&'r rusqlite::Row<'r>),
    Server(&'r tokio_postgres::Row),
}

impl<'r> Row<'r> {
    pub fn value(self, column: usize) -> Sql<Value<'r>> {
        match self {
            Self::File(row) => Ok(match row.get_ref(column)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => Value::Int(number),
                ValueRef::Real(number) => Value::Real(number),
                ValueRef::Text(text) => Value::Text(std::str::from_utf8(text).map_err(|_| DbError::Column(column))?),
                ValueRef::Blob(_) => return Err(DbError::Column(column)),
            }),
            Self::Server(row) => row.try_get(column).map_err(|_| DbError::Column(column)),
        }
    }

    pub fn get<T: Column<'r>>(self, column: usize) -> Sql<T> {
        T::read(self.value(column)?).ok_or(DbError::Column(column))
    }
}

/// The connection that the caller has, with its transaction.
#[derive(Clone, Copy)]
pub(super) enum Db<'a> {
    File(&'a rusqlite::Connection),
    Server(&'a Session),
}

/// Values for a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::db::Value::from($value)),*] };
}
pub(super) use values;

impl Db<'_> {
    /// Hands over the rows, one after the other.
    pub fn each(self, sql: &str, values: &[Value<'_>], mut each: impl FnMut(Row<'_>) -> Sql<()>) -> Sql<()> {
        match self {
            Self::File(conn) => {
                let mut statement = conn.prepare_cached(sql)?;
                let mut rows = statement.query(rusqlite::params_from_iter(values))?;
                while let Some(row) = rows.next()? {
                    each(Row::File(row))?;
                }
                Ok(())
            }
            Self::Server(session) => {
                session.query(for_a_server(sql), given(values))?.iter().try_for_each(|row| each(Row::Server(row)))
            }
        }
    }

    pub fn all<T>(self, sql: &str, values: &[Value<'_>], mut of: impl FnMut(Row<'_>) -> Sql<T>) -> Sql<Vec<T>> {
        let mut all = Vec::new();
        self.each(sql, values, |row| {
            all.push(of(row)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Of the first row.
    pub fn find<T>(self, sql: &str, values: &[Value<'_>], of: impl FnOnce(Row<'_>) -> Sql<T>) -> Sql<Option<T>> {
        match self {
            Self::File(conn) => {
                let mut statement = conn.prepare_cached(sql)?;
                let mut rows = statement.query(rusqlite::params_from_iter(values))?;
                rows.next()?.map(|row| of(Row::File(row))).transpose()
            }
            Self::Server(session) => {
                let rows = session.query(for_a_server(sql), given(values))?;
                rows.first().map(|row| of(Row::Server(row))).transpose()
            }
        }
    }

    /// Of a row that is there.
    pub fn one<T>(self, sql: &str, values: &[Value<'_>], of: impl FnOnce(Row<'_>) -> Sql<T>) -> Sql<T> {
        self.find(sql, values, of)?.ok_or(DbError::Gone)
    }

    /// How many rows were written.
    pub fn execute(self, sql: &str, values: &[Value<'_>]) -> Sql<u64> {
        match self {
            Self::File(conn) => {
                let written = conn.prepare_cached(sql)?.execute(rusqlite::params_from_iter(values))?;
                Ok(u64::try_from(written).unwrap_or(u64::MAX))
            }
            Self::Server(session) => Ok(session.execute(for_a_server(sql), given(values))?),
        }
    }

    /// Whether the gateway that runs the change still has it, as long as the transaction lasts: in a database that several
    /// share. The embedded one is one gateway's alone.
    pub fn is_claimed(self, change: &str) -> Sql<bool> {
        match self {
            Self::File(_) => Ok(true),
            Self::Server(session) => Ok(session.is_claimed(change)?),
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

/// The statement as PostgreSQL has it: `$1` in place of `?1` (or of the first `?`), and the tracker's tables by the names
/// that they have beside those of the store.
pub(super) fn for_a_server(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len() + 32);
    let (mut rest, mut after_keyword, mut nameless) = (sql, false, 0);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, following) = rest.split_at(end);
        if token == "?" {
            out.push('$');
            if !following.starts_with(|c: char| c.is_ascii_digit()) {
                nameless += 1;
                out.push_str(&nameless.to_string());
            }
        } else {
            if after_keyword && TABLES.contains(&token) {
                out.push_str("tracker_");
            }
            out.push_str(token);
        }
        if !token.starts_with(char::is_whitespace) {
            after_keyword = ["FROM", "JOIN", "INTO", "UPDATE"].contains(&token);
        }
        rest = following;
    }
    out
}

/// A read failed: the log says why, the client does not learn of our files.
pub(super) fn failed(error: &DbError) -> McpError {
    let interrupted = match error {
        DbError::File(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted),
        DbError::Server(error) => matches!(error, StoreError::Locked),
        _ => false,
    };
    if interrupted {
        return McpError::new(ErrorKind::Timeout, "The query took too long; narrow it.");
    }
    tracing::error!(%error, "tracker: the database could not be read");
    if let DbError::Server(StoreError::Unreachable(_)) = error {
        return McpError::new(ErrorKind::StoreUnavailable, "The tracker's database does not answer; try again.");
    }
    internal()
}

/// A write failed before its commit, so nothing was changed.
pub(super) fn not_written(error: &DbError) -> McpError {
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
    fn a_statement_is_said_to_a_server() {
        for (here, there) in [
            ("SELECT id FROM issues WHERE key = ?1", "SELECT id FROM tracker_issues WHERE key = $1"),
            (
                "SELECT i.id FROM issues i LEFT JOIN people a ON a.id = ? WHERE i.project IN (?, ?)",
                "SELECT i.id FROM tracker_issues i LEFT JOIN tracker_people a ON a.id = $1 WHERE i.project IN ($2, $3)",
            ),
            ("INSERT INTO runs (changes) VALUES (?1)", "INSERT INTO tracker_runs (changes) VALUES ($1)"),
            ("UPDATE projects SET issues = ?2", "UPDATE tracker_projects SET issues = $2"),
        ] {
            assert_eq!(for_a_server(here), there);
        }
    }
}
