//! The dialects of SQL, with the functions of each that have no effects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use sqlparser::dialect::{MySqlDialect, PostgreSqlDialect, SQLiteDialect};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// A dialect of SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Dialect {
    Postgres,
    Sqlite,
    /// MySQL and MariaDB.
    Mysql,
}

type Names = LazyLock<BTreeSet<&'static str>>;

static POSTGRES_FUNCTIONS: Names = LazyLock::new(|| parse_names(include_str!("functions/postgres.txt")));
static POSTGRES_TYPES: Names = LazyLock::new(|| parse_names(include_str!("functions/postgres_types.txt")));
static SQLITE_FUNCTIONS: Names = LazyLock::new(|| parse_names(include_str!("functions/sqlite.txt")));
static MYSQL_FUNCTIONS: Names = LazyLock::new(|| parse_names(include_str!("functions/mysql.txt")));
static POSTGRES_TIME_WORDS: Names = LazyLock::new(|| parse_names(include_str!("functions/postgres_time_words.txt")));
static REPEATABLE_FUNCTIONS: LazyLock<BTreeMap<&'static str, FunctionResult>> = LazyLock::new(|| {
    let entries = parse_names(include_str!("functions/repeatable.txt")).into_iter();
    entries
        .map(|entry| match entry.split_once('=') {
            Some((name, "number" | "time")) => (name, FunctionResult::NumberOrTime),
            Some((name, "argument")) => (name, FunctionResult::Argument),
            Some((name, _)) => (name, FunctionResult::Text),
            None => (entry, FunctionResult::Text),
        })
        .collect()
});

fn parse_names(text: &'static str) -> BTreeSet<&'static str> {
    text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect()
}

/// The result of a function that depends on its arguments alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionResult {
    /// Any value, which may be a text.
    Text,
    NumberOrTime,
    /// One of the arguments.
    Argument,
}

impl Dialect {
    pub(crate) fn grammar(self) -> &'static dyn sqlparser::dialect::Dialect {
        match self {
            Self::Postgres => &PostgreSqlDialect {},
            Self::Sqlite => &SQLiteDialect {},
            Self::Mysql => &MySqlDialect {},
        }
    }

    /// Returns `true` for a built-in function that changes nothing and reads no files. `name` is in lower case.
    pub(crate) fn is_harmless_function(self, name: &str) -> bool {
        let functions = match self {
            Self::Postgres => &POSTGRES_FUNCTIONS,
            Self::Sqlite => &SQLITE_FUNCTIONS,
            Self::Mysql => &MYSQL_FUNCTIONS,
        };
        functions.contains(name)
    }

    /// Returns the result of a built-in function, or `None` if it may depend on more than the arguments. `name` is in lower case.
    pub(crate) fn result_of_function(self, name: &str) -> Option<FunctionResult> {
        if self.takes_text_for_time(name) {
            return Some(FunctionResult::NumberOrTime);
        }
        REPEATABLE_FUNCTIONS.get(name).copied()
    }

    /// Returns `true` for a function that takes a text for a time, and thereby may read the present time. `name` is in lower
    /// case.
    pub(crate) fn takes_text_for_time(self, name: &str) -> bool {
        match self {
            Self::Postgres => name == "date",
            Self::Sqlite => matches!(name, "date" | "datetime" | "julianday" | "time" | "unixepoch"),
            Self::Mysql => false,
        }
    }

    /// Returns `true` if a cast to the type runs no user-defined function. `name` is in lower case.
    pub(crate) fn is_builtin_type(self, name: &str) -> bool {
        // In SQLite and MySQL, users cannot define types.
        self != Self::Postgres || is_builtin_postgres_type(name)
    }

    /// Returns the text as a literal that means the same under all settings of the database.
    pub(crate) fn literal(self, text: &str) -> String {
        let quoted = format!("'{}'", text.replace('\'', "''"));
        match self {
            Self::Postgres if text.contains('\\') => format!("E{}", quoted.replace('\\', "\\\\")),
            // A setting decides what a backslash in a text means.
            Self::Mysql if text.contains('\\') => {
                let digits: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
                format!("_utf8mb4 X'{digits}'")
            }
            _ => quoted,
        }
    }

    /// Quotes a name.
    pub(crate) fn quote_name(self, name: &str) -> String {
        let quote = if self == Self::Mysql { '`' } else { '"' };
        format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")))
    }
}

/// Returns `true` for a word that a time may contain in PostgreSQL. `word` is in lower case.
pub(crate) fn is_time_word(word: &str) -> bool {
    POSTGRES_TIME_WORDS.contains(word)
}

fn is_builtin_postgres_type(name: &str) -> bool {
    let mut parts = name.split(['(', '[']);
    let first = parts.next();
    let after_modifiers = parts.filter_map(|part| Some(part.split_once([')', ']'])?.1));
    let without_modifiers: String = first.into_iter().chain(after_modifiers).collect();
    let words: Vec<&str> = without_modifiers.split_whitespace().collect();
    match words.as_slice() {
        [word] => POSTGRES_TYPES.contains(word),
        ["double", "precision"] | ["character" | "char" | "bit", "varying"] | ["national", "character" | "char"] => {
            true
        }
        ["time" | "timestamp", "with" | "without", "time", "zone"] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_is_builtin_without_its_modifiers() {
        for builtin in ["text", "numeric(10, 2)", "int[]", "character varying(20)[][]", "timestamp(3) with time zone"] {
            assert!(Dialect::Postgres.is_builtin_type(builtin), "{builtin}");
        }
        for other in ["mood", "public.mood", "\"text\"", "text mood", "", "(text)"] {
            assert!(!Dialect::Postgres.is_builtin_type(other), "{other}");
        }
    }
}
