//! Types for SQL that both databases understand: statements, their values, and the rows of results.
//!
//! Statements number their parameters as `?1`. [`Dialect`] contains the few texts in which the databases differ.
//! Modules with their own tables use the same values and rows.

use std::{borrow::Cow, error::Error, time::Duration};

use jiff::Timestamp;
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut};

use crate::{
    Heads, StoreError,
    rows::{parse_time, parse_time_ms, to_postgres_text},
};

/// The value of a parameter or a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    Int(i64),
    Real(f64),
    Bool(bool),
    Text(Cow<'a, str>),
    Blob(Cow<'a, [u8]>),
}

/// An owned [`Value`].
pub type Cell = Value<'static>;

/// Builds the parameters of a statement, each converted with [`Value::from`].
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::Value::from($value)),*] };
}

macro_rules! value_from {
    ($($source:ty => |$value:ident| $converted:expr;)*) => { $(
        impl<'a> From<$source> for Value<'a> {
            fn from($value: $source) -> Self {
                $converted
            }
        }
    )* };
}

value_from! {
    i64 => |number| Self::Int(number);
    u32 => |number| Self::Int(number.into());
    u64 => |number| Self::Int(i64::try_from(number).unwrap_or(i64::MAX));
    usize => |number| Self::Int(i64::try_from(number).unwrap_or(i64::MAX));
    f64 => |number| Self::Real(number);
    bool => |is| Self::Bool(is);
    &'a str => |text| Self::Text(text.into());
    &'a String => |text| Self::Text(text.into());
    &'a [u8] => |bytes| Self::Blob(bytes.into());
    &'a [u8; 32] => |bytes| Self::Blob(bytes.as_slice().into());
}

impl<'a, T: Into<Self>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Value<'_> {
    /// Returns the same value without copying its text or bytes.
    pub fn as_value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Int(number) => Value::Int(*number),
            Self::Real(number) => Value::Real(*number),
            Self::Bool(is) => Value::Bool(*is),
            Self::Text(text) => Value::Text(Cow::Borrowed(text)),
            Self::Blob(bytes) => Value::Blob(Cow::Borrowed(bytes)),
        }
    }

    /// Returns the value with an owned text or bytes.
    pub(crate) fn into_cell(self) -> Cell {
        match self {
            Self::Null => Value::Null,
            Self::Int(number) => Value::Int(number),
            Self::Real(number) => Value::Real(number),
            Self::Bool(is) => Value::Bool(is),
            Self::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Self::Blob(bytes) => Value::Blob(Cow::Owned(bytes.into_owned())),
        }
    }
}

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Bool(is) => ValueRef::Integer((*is).into()),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Replaces U+0000 in texts, because PostgreSQL cannot store it ([`to_postgres_text`]).
impl ToSql for Value<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) if *ty == Type::INT4 => i32::try_from(*number)?.to_sql(ty, out),
            // Rows from SQLite have integers in place of booleans.
            Self::Int(number) if *ty == Type::BOOL => (*number != 0).to_sql(ty, out),
            Self::Int(number) => number.to_sql(ty, out),
            Self::Real(number) => number.to_sql(ty, out),
            Self::Bool(is) => is.to_sql(ty, out),
            Self::Text(text) => to_postgres_text(text).to_sql(ty, out),
            Self::Blob(bytes) => bytes.to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

impl<'a> FromSql<'a> for Cell {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *ty {
            Type::INT4 => Self::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::BOOL => Self::Bool(bool::from_sql(ty, raw)?),
            Type::FLOAT8 => Self::Real(f64::from_sql(ty, raw)?),
            Type::BYTEA => Self::Blob(raw.to_vec().into()),
            _ => Self::Text(String::from_sql(ty, raw)?.into()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A row of a result.
#[derive(Clone, Debug)]
pub struct Row(pub Vec<Cell>);

impl Row {
    /// # Errors
    /// [`StoreError::BadRecord`] if there is no such column.
    pub fn value(&self, column: usize) -> Result<&Cell, StoreError> {
        self.0.get(column).ok_or_else(|| unexpected_value(column))
    }

    /// # Errors
    /// [`StoreError::BadRecord`] if the column has a value of another type.
    pub fn get<'r, T: Column<'r>>(&'r self, column: usize) -> Result<T, StoreError> {
        T::read(self.value(column)?).ok_or_else(|| unexpected_value(column))
    }
}

fn unexpected_value(column: usize) -> StoreError {
    StoreError::BadRecord(format!("column {column} is missing or has a value of another type"))
}

impl TryFrom<&rusqlite::Row<'_>> for Row {
    type Error = StoreError;

    fn try_from(row: &rusqlite::Row<'_>) -> Result<Self, StoreError> {
        let cell = |column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => Cell::Null,
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => number.into(),
                ValueRef::Text(text) => {
                    Cell::Text(std::str::from_utf8(text).map_err(|_| unexpected_value(column))?.to_owned().into())
                }
                ValueRef::Blob(bytes) => Cell::Blob(bytes.to_vec().into()),
            })
        };
        (0..row.as_ref().column_count()).map(cell).collect::<Result<_, StoreError>>().map(Self)
    }
}

impl TryFrom<&tokio_postgres::Row> for Row {
    type Error = StoreError;

    fn try_from(row: &tokio_postgres::Row) -> Result<Self, StoreError> {
        (0..row.len()).map(|column| Ok(row.try_get(column)?)).collect::<Result<_, StoreError>>().map(Self)
    }
}

/// A type that a column can be read as.
pub trait Column<'r>: Sized {
    fn read(value: &'r Value<'_>) -> Option<Self>;
}

impl<'r> Column<'r> for &'r str {
    fn read(value: &'r Value<'_>) -> Option<Self> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }
}

impl Column<'_> for String {
    fn read(value: &Value<'_>) -> Option<Self> {
        <&str>::read(value).map(str::to_owned)
    }
}

impl<'r> Column<'r> for &'r [u8] {
    fn read(value: &'r Value<'_>) -> Option<Self> {
        if let Value::Blob(bytes) = value { Some(bytes) } else { None }
    }
}

impl Column<'_> for [u8; 32] {
    fn read(value: &Value<'_>) -> Option<Self> {
        <&[u8]>::read(value)?.try_into().ok()
    }
}

impl Column<'_> for i64 {
    fn read(value: &Value<'_>) -> Option<Self> {
        if let Value::Int(number) = value { Some(*number) } else { None }
    }
}

macro_rules! unsigned_columns {
    ($($number:ty),*) => { $(
        impl Column<'_> for $number {
            fn read(value: &Value<'_>) -> Option<Self> {
                i64::read(value)?.try_into().ok()
            }
        }
    )* };
}

unsigned_columns!(u16, u32, u64, usize);

impl Column<'_> for f64 {
    fn read(value: &Value<'_>) -> Option<Self> {
        if let Value::Real(number) = value { Some(*number) } else { None }
    }
}

/// Accepts integers too, because SQLite has no booleans.
impl Column<'_> for bool {
    fn read(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Bool(is) => Some(*is),
            Value::Int(number) => Some(*number != 0),
            _ => None,
        }
    }
}

/// Accepts a text, or milliseconds since the Unix epoch.
impl Column<'_> for Timestamp {
    fn read(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Text(text) => parse_time(text).ok(),
            Value::Int(ms) => parse_time_ms(*ms).ok(),
            _ => None,
        }
    }
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn read(value: &'r Value<'_>) -> Option<Self> {
        if *value == Value::Null { Some(None) } else { T::read(value).map(Some) }
    }
}

/// Texts in which the databases differ.
pub(crate) struct Dialect {
    /// The function that returns the position of one text in another, from 1 on, or 0.
    pub find: &'static str,
    /// The join that reads the first table first.
    pub join_in_order: &'static str,
    /// The clause that locks the selected rows until the transaction ends.
    pub for_update: &'static str,
    /// The expression for the title of a row of `changes`.
    pub title: &'static str,
    /// The condition that a row of `changes` has votes.
    pub has_votes: &'static str,
    /// The condition that a row of `changes` still has its contents, with the same text as in the index of large
    /// changes.
    pub not_redacted: &'static str,
    /// The condition that `s`, a row of `change_search`, was created at the time `?1` or later.
    pub created_since: &'static str,
    /// The expression for the time in milliseconds until which a row of `claims` keeps its target after the run; null
    /// during the run.
    pub target_taken_ms: &'static str,
    /// The expression for the time of an event: a text, or milliseconds.
    pub event_time: &'static str,
    /// The statement that stores a standing rule. The parameters are its id, whether it has ended, its body, and
    /// whether it allows.
    pub store_rule: &'static str,
    /// The condition that a standing rule allows.
    pub rule_allows: &'static str,
    /// The query for the recorded policies: the newest policy, whose fact is `?1`, with a null id, and the policies of
    /// nodes with their ids.
    pub policies: &'static str,
    /// The query for the table with the name `?1`, which an older schema may lack.
    pub find_table: &'static str,
}

/// A connection, with the open transaction, if any.
pub(crate) trait Sql {
    const DIALECT: Dialect;

    /// Returns all rows.
    async fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError>;

    /// Runs a statement, and returns the number of written rows.
    async fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError>;

    /// Runs a statement as a transaction of its own. Its outcome is unknown if the database does not answer.
    async fn write(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError>;

    /// Reads the ends of the feed and the audit trail.
    async fn heads(&self) -> Result<Heads, StoreError>;

    /// Appends an entry about no change to the audit trail, as the last step of the caller's transaction.
    async fn append_entry(&self, event: &'static str, actor: &str, details: &str) -> Result<(), StoreError>;

    /// Returns the first row.
    async fn first(&self, sql: &str, values: &[Value<'_>]) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }
}

/// The timeouts for statements that a request waits for, and for all other statements.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(40);

/// A database whose statements block the calling thread. Timeouts apply to servers only.
pub(crate) trait Database: Send + Sync + 'static {
    type Connection: Sql;

    /// Runs statements that change nothing.
    fn read<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;

    /// Runs statements, each as a transaction of its own.
    fn write<T>(&self, work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>) -> Result<T, StoreError>;

    /// Runs statements like [`Self::write`], but does not wait for the answer of a server. Its error is only logged.
    fn write_in_background(
        &self,
        work: impl AsyncFnOnce(&Self::Connection) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError>;

    /// Runs statements in one transaction, which is rolled back if one of them fails.
    fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;

    /// Runs a transaction that appends an audit entry, and returns its result. If its outcome is unknown, `is_written` finds out
    /// whether it was committed, after it has ended.
    fn confirmed_transaction(
        &self,
        work: impl AsyncFnOnce(&Self::Connection) -> Result<bool, StoreError>,
        is_written: impl AsyncFn(&Self::Connection) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError>;

    /// Runs an idempotent transaction, which is repeated once if the connection is lost.
    fn repeatable_transaction<T>(
        &self,
        limit: Duration,
        work: impl AsyncFn(&Self::Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;
}

/// The parameters of a statement that is built dynamically.
#[derive(Debug, Default)]
pub struct Parameters(Vec<Cell>);

impl Parameters {
    /// Adds a value, and returns its placeholder, such as `?3`.
    pub fn add<'a>(&mut self, value: impl Into<Value<'a>>) -> String {
        self.0.push(value.into().into_cell());
        format!("?{}", self.0.len())
    }

    /// Adds the values of a list, and returns the placeholders, such as `(?3, ?4)`.
    pub fn add_all<'a, V: Into<Value<'a>>>(&mut self, values: impl IntoIterator<Item = V>) -> String {
        let placeholders: Vec<String> = values.into_iter().map(|value| self.add(value)).collect();
        format!("({})", placeholders.join(", "))
    }

    pub fn values(&self) -> Vec<Value<'_>> {
        self.0.iter().map(Cell::as_value).collect()
    }
}
