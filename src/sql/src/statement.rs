//! Classified statements.

use strum::IntoStaticStr;

use crate::lookup::ReadBack;

/// One statement of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The statement as it was given, with its comments.
    pub text: String,
    pub effect: Effect,
}

/// The effect of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a call has few statements, and patterns look into the variant")]
pub enum Effect {
    /// The statement changes nothing, unless it does so through a view, a computed column, or a user-defined operator or
    /// overload.
    Read,
    Write(Write),
    /// Nothing is known about the text.
    Unparsed {
        reason: String,
    },
}

impl Effect {
    pub const fn as_write(&self) -> Option<&Write> {
        match self {
            Self::Write(write) => Some(write),
            Self::Read | Self::Unparsed { .. } => None,
        }
    }
}

/// A statement that changes something, or that is not known to only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub kind: WriteKind,
    pub conflict_rule: ConflictRule,
    /// The names of the tables or other objects that it changes, as the statement has them.
    pub targets: Vec<String>,
    /// The reason why it is not a read.
    pub reason: String,
    /// The parts of the preview, or the reason why there is none.
    pub preview: Result<PreviewSource, String>,
    /// Finds the table if its definition in SQLite may make the statement remove rows with the same key
    /// (`ON CONFLICT REPLACE`). A preview would not show them.
    pub replacement_query: Option<String>,
    pub read_back: ReadBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum WriteKind {
    Insert,
    Update,
    Delete,
    /// Creates, alters or drops an object such as a table.
    Ddl,
    /// Begins a transaction, and changes no data by itself.
    Begin,
    Other,
}

/// The behavior of an insertion if the database already has a row with the key of an inserted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictRule {
    /// The statement fails, or it is no insertion.
    Refuse,
    /// The row in the database stays, and the other one is not inserted.
    Keep,
    /// The row in the database is removed.
    Replace,
    /// The row in the database is updated.
    Update,
}

/// The parts of a preview. `Q` is a query that a part needs, or the answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreviewSource<Q = String> {
    /// The rows in the database that the statement changes, removes or inserts.
    Rows(RowPreview<Q>),
    /// The rows that the statement lists, as texts of their expressions.
    GivenRows {
        columns: Vec<String>,
        rows: Vec<Vec<String>>,
        /// Counts the rows in the database that have the literals of one of these. Other values are not compared.
        equal_count: Option<Q>,
    },
    /// The objects that the statement defines or changes.
    Definitions(Vec<ObjectDefinition<Q>>),
}

/// The rows of a statement. Each of the queries only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPreview<Q = String> {
    /// Selects the rows, with the column [`ColumnAssignment::alias`] for each value after an update.
    pub rows: Q,
    /// Counts the rows in its only column.
    pub count: Q,
    /// Selects the names of the tables whose rows foreign keys delete or change with the rows, if the statement deletes some.
    pub dependents: Option<Q>,
    pub assignments: Vec<ColumnAssignment>,
}

/// An object that a statement defines or changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDefinition<Q = String> {
    /// The name as the statement has it.
    pub name: String,
    /// Selects the present definition.
    pub definition: Q,
}

/// The assignment of a value to a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnAssignment {
    /// The name of the column without quotes.
    pub column: String,
    pub expression: String,
    /// The column of [`RowPreview::rows`] with the value of the expression, or `None` if a read cannot evaluate it, or if it
    /// does not depend on the data alone. The database may convert the value when it stores it.
    pub alias: Option<String>,
}
