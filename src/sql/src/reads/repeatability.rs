//! Refuses queries that may find other rows in a preview than when the statement runs.
//!
//! The data alone may decide. A statement that could read the time, its session, its own text or its locks could show a reviewer
//! other rows than it changes.

use sqlparser::ast::{
    BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName,
    ObjectNamePart, Query, SetExpr, TableFactor, TableWithJoins, Value,
};

use super::{Check, QueryChecker, last_part, tables::KEYWORD_FUNCTIONS};
use crate::{Dialect, dialect::is_repeatable_function, names::unquote};

/// Words that MySQL takes for functions without parentheses, unless they are in quotes.
const MYSQL_KEYWORD_FUNCTIONS: &[&str] = &["current_role", "current_user", "utc_date", "utc_time", "utc_timestamp"];

/// Columns of every table in PostgreSQL that a statement changes while it runs.
const LOCK_COLUMNS: &[&str] = &["cmax", "cmin", "xmax"];

/// Words that mean a time relative to the present one in a literal of PostgreSQL.
const TIME_WORDS: &[&str] = &["now", "today", "tomorrow", "yesterday"];

/// Words that a time in PostgreSQL may have in addition. It ignores `at` and `on`, however often they occur.
const TIME_FILLERS: &[&str] = &["ad", "am", "at", "bc", "on", "pm"];

/// A literal of more words is no time.
const MAX_TIME_WORDS: usize = 3;

/// Texts that functions of SQLite take for the present time.
const SQLITE_PRESENT_TIMES: &[&str] = &["now", "subsec", "subsecond"];

/// Schemas of MySQL that tell about the state of the server.
const MYSQL_SYSTEM_SCHEMAS: &[&str] = &["information_schema", "mysql", "performance_schema", "sys"];

impl QueryChecker {
    fn refuse_if(&self, is_state: bool, what: &dyn std::fmt::Display) -> Check {
        if self.must_repeat && is_state {
            return Err(format!("{what} is not known to depend on the data alone"));
        }
        Ok(())
    }

    /// Checks the name of a column, with the names before its dots.
    pub(super) fn check_column_name(&self, parts: &[Ident]) -> Check {
        let ([first, ..], [.., column]) = (parts, parts) else { return Ok(()) };
        let is_keyword = |functions: &[&str]| {
            let is_unquoted_word = parts.len() == 1 && first.quote_style.is_none();
            is_unquoted_word && functions.contains(&first.value.to_ascii_lowercase().as_str())
        };
        let is_state = match self.dialect {
            Dialect::Postgres => {
                is_keyword(KEYWORD_FUNCTIONS) || LOCK_COLUMNS.contains(&self.exact_name(column).as_str())
            }
            Dialect::Mysql => first.value.starts_with('@') || is_keyword(MYSQL_KEYWORD_FUNCTIONS),
            Dialect::Sqlite => false,
        };
        self.refuse_if(is_state, column)
    }

    /// Checks that a literal is not the present time. MySQL has no such literals.
    pub(super) fn check_literal(&self, value: &Value) -> Check {
        if !self.must_repeat {
            return Ok(());
        }
        let text = value.clone().into_string().unwrap_or_default();
        let is_time = match self.dialect {
            Dialect::Postgres => may_be_present_time(&text),
            Dialect::Sqlite => SQLITE_PRESENT_TIMES.iter().any(|time| text.eq_ignore_ascii_case(time)),
            Dialect::Mysql => false,
        };
        self.refuse_if(is_time, value)
    }

    /// Checks a cast: the text of a computed value may be the present time.
    pub(super) fn check_cast(&self, expression: &Expr, data_type: &DataType) -> Check {
        let name = data_type.to_string().to_ascii_lowercase();
        let may_be_time = name.contains("time")
            || name.contains("range")
            || name.contains("date") && !is_column(self.dialect, expression);
        let is_state = self.dialect == Dialect::Postgres && may_be_time && !is_literal(expression);
        self.refuse_if(is_state, &format_args!("a cast to {name}"))
    }

    /// Checks that the result of a function that only reads depends on its arguments.
    pub(super) fn check_repeatable_call(&self, name: &ObjectName, arguments: &[FunctionArg]) -> Check {
        let is_state = match last_part(name).as_deref() {
            // In SQLite and PostgreSQL, the text of a computed value may be the present time.
            Some("date") if self.dialect != Dialect::Mysql => !self.is_known_value(arguments.first()),
            Some("strftime") => !has_day_format(arguments.first()) || !self.is_known_value(arguments.get(1)),
            Some(function) => !is_repeatable_function(function),
            None => true,
        };
        self.refuse_if(is_state, &format_args!("the function {name}"))
    }

    /// Returns `true` if an argument is a literal or the value of a column.
    fn is_known_value(&self, argument: Option<&FunctionArg>) -> bool {
        argument.and_then(argument_value).is_some_and(|value| is_literal(value) || is_column(self.dialect, value))
    }

    /// Checks that a table holds data and not the state of the server.
    pub(super) fn check_ordinary_table(&self, name: &ObjectName) -> Check {
        let parts: Vec<String> = name
            .0
            .iter()
            .map(|part| part.as_ident().map_or_else(|| part.to_string(), unquote).to_ascii_lowercase())
            .collect();
        let Some((table, schemas)) = parts.split_last() else { return Ok(()) };
        let is_state = match self.dialect {
            // A statement may advance a sequence while it runs. PostgreSQL gives those of columns such names.
            Dialect::Postgres => {
                table.ends_with("_seq")
                    || parts.iter().any(|part| part.starts_with("pg_") || part == "information_schema")
            }
            Dialect::Sqlite => {
                table.starts_with("pragma_") || table.starts_with("sqlite_") && table != "sqlite_sequence"
            }
            Dialect::Mysql => schemas.iter().any(|schema| MYSQL_SYSTEM_SCHEMAS.contains(&schema.as_str())),
        };
        self.refuse_if(is_state, name)
    }
}

fn is_literal(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_literal(inner),
        // SQLite takes the bytes of such a literal for a text.
        Expr::Value(value) => !matches!(value.value, Value::HexStringLiteral(_)),
        _ => false,
    }
}

/// Returns `true` for the name of a column. SQLite takes a name in double quotes for a text if there is no such column.
fn is_column(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Identifier(name) => dialect != Dialect::Sqlite || name.quote_style != Some('"'),
        Expr::CompoundIdentifier(_) => true,
        _ => false,
    }
}

fn argument_value(argument: &FunctionArg) -> Option<&Expr> {
    match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
        _ => None,
    }
}

/// Returns `true` if an argument is a format of `strftime` whose result has no time of day.
fn has_day_format(argument: Option<&FunctionArg>) -> bool {
    let Some(Expr::Value(format)) = argument.and_then(argument_value) else { return false };
    let format = format.value.clone().into_string();
    format.is_some_and(|format| format.split('%').skip(1).all(|part| part.starts_with(['Y', 'm', 'd', 'j', 'w'])))
}

/// Returns `true` if PostgreSQL may take a text for the present time, or for a time relative to it.
fn may_be_present_time(text: &str) -> bool {
    // An array or a range has several values, in which quotes and backslashes may be anywhere.
    let is_list = text.trim_start().starts_with(['{', '[', '(']);
    let text = if is_list { text.replace(['"', '\\'], "") } else { text.to_owned() };
    let is_one_of = |words: &[&str], word: &str| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    let mut words: Vec<&str> = text.split(|c: char| !c.is_alphabetic()).collect();
    words.retain(|word| !word.is_empty() && !is_one_of(TIME_FILLERS, word));
    (is_list || words.len() <= MAX_TIME_WORDS) && words.iter().any(|word| is_one_of(TIME_WORDS, word))
}

/// Replaces the present time in the condition of a query from one table, if a column is compared with it, so that the rest can
/// be checked. A row then begins or ceases to match at one time. With a second comparison, a row could match in turns, so that
/// rows could differ by chance.
pub(super) fn replace_compared_time(dialect: Dialect, query: &mut Query) {
    if let SetExpr::Select(select) = query.body.as_mut()
        && let [TableWithJoins { relation: TableFactor::Table { args: None, .. }, joins }] = select.from.as_slice()
        && joins.is_empty()
        && let Some(condition) = &mut select.selection
        && let Some(time) = find_compared_time(dialect, condition)
    {
        *time = Expr::value(Value::Null);
    }
}

fn find_compared_time(dialect: Dialect, condition: &mut Expr) -> Option<&mut Expr> {
    match condition {
        Expr::Nested(inner) => find_compared_time(dialect, inner),
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            match find_compared_time(dialect, left) {
                None => find_compared_time(dialect, right),
                found => found,
            }
        }
        Expr::BinaryOp {
            left,
            op: BinaryOperator::Lt | BinaryOperator::LtEq | BinaryOperator::Gt | BinaryOperator::GtEq,
            right,
        } => {
            if is_column(dialect, left) && is_present_time(dialect, right) {
                Some(right.as_mut())
            } else if is_column(dialect, right) && is_present_time(dialect, left) {
                Some(left.as_mut())
            } else {
                None
            }
        }
        _ => None,
    }
}

/// Returns `true` for the present time, and for a time at a fixed distance from it.
fn is_present_time(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_present_time(dialect, inner),
        Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } => {
            is_present_time(dialect, left) && is_duration(right)
        }
        Expr::Function(Function { name, args, .. }) => {
            let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return false };
            let arguments: Option<Vec<&Expr>> = match args {
                FunctionArguments::None => Some(Vec::new()),
                FunctionArguments::List(list) => list.args.iter().map(argument_value).collect(),
                FunctionArguments::Subquery(_) => None,
            };
            let Some(arguments) = arguments else { return false };
            match (dialect, name.value.to_ascii_lowercase().as_str(), arguments.as_slice()) {
                (_, "current_date" | "current_timestamp", [])
                | (Dialect::Postgres | Dialect::Mysql, "localtimestamp" | "now", [])
                | (Dialect::Mysql, "curdate", []) => name.quote_style.is_none(),
                (Dialect::Mysql, "date_add" | "date_sub", [time, duration]) => {
                    is_present_time(dialect, time) && is_duration(duration)
                }
                (Dialect::Sqlite, "date" | "datetime", [Expr::Value(first), modifiers @ ..]) => {
                    let first = first.value.clone().into_string();
                    first.is_some_and(|first| first.eq_ignore_ascii_case("now"))
                        && modifiers.iter().all(|m| is_literal(m))
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Returns `true` for an interval that is a literal.
fn is_duration(expression: &Expr) -> bool {
    match expression {
        Expr::Interval(interval) => is_literal(&interval.value),
        Expr::Cast { expr, data_type: DataType::Interval { .. }, .. } => is_literal(expr),
        other => is_literal(other),
    }
}
