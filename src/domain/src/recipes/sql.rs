//! Recipes for tools that run SQL statements.

use std::fmt;

use countersign_sql::Dialect;
use serde_json::Value;

use super::RecordField;
use crate::policy::{Condition, values};

/// Maximum size of arguments whose statement can be a read, in bytes.
const MAX_READ_BYTES: usize = 64 << 10;
/// Maximum number of values in such arguments, at all levels together.
const MAX_READ_VALUES: usize = 1000;
/// Maximum number of steps of the expression that finds the statement in them.
const MAX_STEPS: u64 = 100_000;

/// The preview of a tool that runs SQL statements. Its `Debug` text leaves out `is_trusted`, so that comparisons of the text
/// ignore it.
#[derive(Clone, PartialEq, Eq)]
pub struct SqlRecipe {
    pub dialect: SqlDialect,
    /// Finds the text of the statements in the arguments.
    pub statement: Condition,
    pub query: SqlQuery,
    /// Maximum number of rows of a statement that are shown and compared.
    pub rows: usize,
    /// The operator wrote the recipe, or named its set, for this server. Otherwise only a tool with an accepted definition
    /// is called, because it could run anything.
    pub is_trusted: bool,
}

impl fmt::Debug for SqlRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dialect, statement, query, rows, is_trusted: _ } = self;
        let mut fields = f.debug_struct("SqlRecipe");
        fields
            .field("dialect", dialect)
            .field("statement", statement)
            .field("query", query)
            .field("rows", rows)
            .finish()
    }
}

/// The dialect of a tool's statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlDialect {
    Fixed(Dialect),
    /// The title of the tool names it in parentheses.
    InTitle,
}

/// The tool of the same server that runs the queries of the preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlQuery {
    /// The tool's name on the server.
    pub tool: String,
    /// The argument that takes the query.
    pub argument: String,
    /// The other arguments of the call; those that are null are left out.
    pub arguments: Vec<RecordField>,
}

impl SqlRecipe {
    /// Returns the dialect of a tool with this title, if it is known.
    pub fn dialect_of(&self, title: &str) -> Option<Dialect> {
        match self.dialect {
            SqlDialect::Fixed(dialect) => Some(dialect),
            SqlDialect::InTitle => {
                let title = title.to_ascii_lowercase();
                let (_, name) = title.strip_suffix(')')?.rsplit_once('(')?;
                if name == "mariadb" { Some(Dialect::Mysql) } else { name.parse().ok() }
            }
        }
    }

    /// Returns `true` if a call of a tool with this title only reads, as far as its statements tell. `arguments` is the JSON
    /// text of the call's arguments.
    pub fn is_read(&self, title: &str, arguments: &str) -> bool {
        let statement = || {
            let arguments = values::arguments_within(arguments, MAX_READ_BYTES, MAX_READ_VALUES).ok()?;
            let statement = self.statement.evaluate(&[("arguments", &arguments)], MAX_STEPS).ok()?;
            match statement.json().ok()? {
                Value::String(text) => Some(text),
                _ => None,
            }
        };
        self.dialect_of(title).zip(statement()).is_some_and(|(dialect, text)| countersign_sql::is_read(dialect, &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(dialect: SqlDialect) -> SqlRecipe {
        let statement = Condition::compile_for("arguments.sql", crate::recipes::ARGUMENT_VARIABLES).unwrap();
        let query = SqlQuery { tool: "execute_sql".into(), argument: "sql".into(), arguments: Vec::new() };
        SqlRecipe { dialect, statement, query, rows: 50, is_trusted: false }
    }

    #[test]
    fn only_unambiguous_arguments_with_reads_are_reads() {
        let recipe = recipe(SqlDialect::Fixed(Dialect::Postgres));
        assert!(recipe.is_read("", r#"{"sql": "SELECT 1", "project": "p"}"#));
        for other in [
            r#"{"sql": "DELETE FROM t"}"#,
            r#"{"sql": "SELECT 1; DELETE FROM t"}"#,
            r#"{"sql": "SELECT 1", "sql": "DELETE FROM t"}"#,
            r#"{"sql": "SELECT 1", "SQL": "DELETE FROM t"}"#,
            r#"{"sql": ["SELECT 1"]}"#,
            r#"{"query": "SELECT 1"}"#,
            r#"{"sql": ""}"#,
            "{}",
        ] {
            assert!(!recipe.is_read("", other), "{other}");
        }
        let long = format!(r#"{{"sql": "SELECT 1", "note": "{}"}}"#, "x".repeat(MAX_READ_BYTES));
        assert!(!recipe.is_read("", &long));
    }

    #[test]
    fn dialect_is_taken_from_the_title_of_the_tool() {
        let recipe = recipe(SqlDialect::InTitle);
        assert_eq!(recipe.dialect_of("Execute SQL (postgres)"), Some(Dialect::Postgres));
        assert_eq!(recipe.dialect_of("Execute SQL (SQLite)"), Some(Dialect::Sqlite));
        assert_eq!(recipe.dialect_of("Execute SQL (mariadb)"), Some(Dialect::Mysql));
        for other in ["Execute SQL (oracle)", "Execute SQL", "postgres", "(postgres) SQL", ""] {
            assert_eq!(recipe.dialect_of(other), None, "{other}");
        }
        // Quotes in strings differ between the dialects.
        let statement = r#"{"sql": "SELECT '\\'; DELETE FROM t; --'"}"#;
        assert!(!recipe.is_read("Execute SQL (postgres)", statement) && !recipe.is_read("Execute SQL", statement));
    }
}
