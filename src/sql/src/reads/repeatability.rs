//! Refuses queries that may find other rows in a preview than when the statement runs.
//!
//! The data alone may decide which rows a query finds. A statement that could read the time, its session, its own text or its
//! locks could show a reviewer other rows than it changes.

use sqlparser::ast::{DataType, Expr, FunctionArg, Ident, ObjectName, SelectItem, SetExpr, TableAlias, Value};

use super::{
    Check, UsedNames, last_part,
    present_time::may_be_present_time,
    tables::KEYWORD_FUNCTIONS,
    values::{argument_value, is_column, is_literal, is_safe_as_time},
};
use crate::{
    ALIAS_PREFIX, Dialect,
    names::{exact_name, unquote},
};

/// Words that MySQL takes for functions without parentheses, unless they are in quotes.
const MYSQL_KEYWORD_FUNCTIONS: &[&str] = &["current_role", "current_user", "utc_date", "utc_time", "utc_timestamp"];

/// Columns of every table in PostgreSQL that a statement changes while it runs.
const LOCK_COLUMNS: &[&str] = &["cmax", "cmin", "xmax"];

/// Schemas of MySQL that tell about the state of the server.
const MYSQL_SYSTEM_SCHEMAS: &[&str] = &["information_schema", "mysql", "performance_schema", "sys"];

/// Decides whether the result of a query depends on the data alone, from the nodes of the query that it is given one by one.
///
/// A text that the query computes may be the present time, wherever it is taken for a time. So a query may take columns for
/// times, or compute the texts in columns, but not both.
pub(super) struct Repeatability {
    dialect: Dialect,
    /// Refuses what does not depend on the data alone.
    is_required: bool,
    /// The table that the statement changes.
    changed_table: Option<ObjectName>,
    takes_columns_for_times: bool,
    has_computed_columns: bool,
    /// Aliases of texts that the query computes, in lower case. A condition may use them in SQLite.
    computed_aliases: Vec<String>,
}

impl Repeatability {
    pub(super) fn optional(dialect: Dialect) -> Self {
        Self {
            dialect,
            is_required: false,
            changed_table: None,
            takes_columns_for_times: false,
            has_computed_columns: false,
            computed_aliases: Vec::new(),
        }
    }

    pub(super) fn required(dialect: Dialect, changed_table: Option<&ObjectName>) -> Self {
        Self { is_required: true, changed_table: changed_table.cloned(), ..Self::optional(dialect) }
    }

    /// Refuses `what` if the query must be repeatable and `what` is not.
    fn refuse(&self, is_unrepeatable: bool, what: &dyn std::fmt::Display) -> Check {
        if self.is_required && is_unrepeatable {
            return Err(format!("{what} is not known to depend on the data alone"));
        }
        Ok(())
    }

    /// Checks the name of a column, with the names before its dots.
    pub(super) fn check_column(&self, parts: &[Ident]) -> Check {
        let ([first, ..], [.., column]) = (parts, parts) else { return Ok(()) };
        let is_keyword = |functions: &[&str]| {
            let is_unquoted_word = parts.len() == 1 && first.quote_style.is_none();
            is_unquoted_word && functions.contains(&first.value.to_ascii_lowercase().as_str())
        };
        let is_unrepeatable = match self.dialect {
            Dialect::Postgres => {
                is_keyword(KEYWORD_FUNCTIONS) || LOCK_COLUMNS.contains(&exact_name(self.dialect, column).as_str())
            }
            Dialect::Mysql => first.value.starts_with('@') || is_keyword(MYSQL_KEYWORD_FUNCTIONS),
            Dialect::Sqlite => false,
        };
        self.refuse(is_unrepeatable, column)
    }

    /// Checks that a literal is not the present time. Only PostgreSQL has such literals.
    pub(super) fn check_literal(&self, value: &Value) -> Check {
        let is_time = self.is_required
            && self.dialect == Dialect::Postgres
            && value.clone().into_string().is_some_and(|text| may_be_present_time(&text));
        self.refuse(is_time, value)
    }

    /// Checks a cast: the text of a computed value may be the present time.
    pub(super) fn check_cast(&mut self, expression: &Expr, data_type: &DataType) -> Check {
        let name = data_type.to_string().to_ascii_lowercase();
        let is_time = self.dialect == Dialect::Postgres
            && ["date", "range", "time"].iter().any(|part| name.contains(part))
            && !is_literal(expression);
        self.takes_columns_for_times |= is_time;
        self.refuse(is_time && !is_safe_as_time(self.dialect, expression), &format_args!("a cast to {name}"))
    }

    /// Checks that the result of a function that only reads depends on its arguments.
    pub(super) fn check_call(&mut self, name: &ObjectName, arguments: &[FunctionArg]) -> Check {
        let is_repeatable = match last_part(name).as_deref() {
            Some(function) if self.dialect.takes_text_for_time(function) => self.has_safe_time(arguments),
            Some("strftime") if self.dialect == Dialect::Sqlite => {
                arguments.split_first().is_some_and(|(format, time)| {
                    argument_value(format).is_some_and(is_literal) && self.has_safe_time(time)
                })
            }
            // With one argument, it is the distance from the present day.
            Some("age") => arguments.len() == 2,
            Some(function) => self.dialect.result_of_function(function).is_some(),
            None => false,
        };
        self.refuse(!is_repeatable, &format_args!("the function {name}"))
    }

    /// Returns `true` if the arguments are a time that does not depend on the present one, and literals.
    fn has_safe_time(&mut self, arguments: &[FunctionArg]) -> bool {
        let values: Option<Vec<&Expr>> = arguments.iter().map(argument_value).collect();
        let Some([time, modifiers @ ..]) = values.as_deref() else { return false };
        self.takes_columns_for_times |= !is_literal(time);
        is_safe_as_time(self.dialect, time) && modifiers.iter().all(|modifier| is_literal(modifier))
    }

    /// Checks that a table holds data and not the state of the server.
    pub(super) fn check_table(&mut self, name: &ObjectName) -> Check {
        let is_changed = self.changed_table.as_ref() == Some(name);
        let parts: Vec<String> = name
            .0
            .iter()
            .map(|part| part.as_ident().map_or_else(|| part.to_string(), unquote).to_ascii_lowercase())
            .collect();
        let Some((table, schemas)) = parts.split_last() else { return Ok(()) };
        // In SQLite, a condition may give the arguments of `json_each`.
        self.has_computed_columns |= self.dialect == Dialect::Sqlite && self.dialect.is_harmless_function(table);
        let is_unrepeatable = match self.dialect {
            // PostgreSQL gives the sequences of columns such names, and a statement may advance them while it runs. The table
            // that it changes is none, because no statement can change the row of a sequence.
            Dialect::Postgres => {
                table.ends_with("_seq") && !is_changed
                    || parts.iter().any(|part| part.starts_with("pg_") || part == "information_schema")
            }
            Dialect::Sqlite => {
                table.starts_with("pragma_") || table.starts_with("sqlite_") && table != "sqlite_sequence"
            }
            Dialect::Mysql => schemas.iter().any(|schema| MYSQL_SYSTEM_SCHEMAS.contains(&schema.as_str())),
        };
        self.refuse(is_unrepeatable, name)
    }

    /// Adds the columns of a CTE or a subquery in FROM. A preview wraps a statement's query only to show its rows.
    pub(super) fn add_query(&mut self, alias: Option<&TableAlias>, rows: &SetExpr) {
        let is_wrapper = alias.is_some_and(|alias| alias.name.value.starts_with(ALIAS_PREFIX));
        self.has_computed_columns |= !is_wrapper && computes_texts(self.dialect, rows);
    }

    /// Adds the columns of a function in FROM, which may be parts of its arguments.
    pub(super) fn add_function<'a>(&mut self, mut arguments: impl Iterator<Item = Option<&'a Expr>>) {
        self.has_computed_columns |=
            !arguments.all(|argument| argument.is_some_and(|value| is_column(self.dialect, value)));
    }

    /// Adds the alias of a value that the query selects.
    pub(super) fn add_alias(&mut self, alias: &Ident, value: &Expr) {
        if self.dialect == Dialect::Sqlite && !is_safe_as_time(self.dialect, value) {
            self.computed_aliases.push(unquote(alias).to_lowercase());
        }
    }

    /// Checks that no column that is taken for a time may be a text that the query computes. `names` are those of the query.
    pub(super) fn check_times(&self, names: &UsedNames) -> Check {
        let uses_alias = || self.computed_aliases.iter().any(|alias| names.columns.contains(alias));
        let is_unrepeatable = self.takes_columns_for_times && (self.has_computed_columns || uses_alias());
        self.refuse(is_unrepeatable, &"a time in a column that it computes")
    }
}

/// Returns `true` if a column of these rows may be a text that the query computes.
fn computes_texts(dialect: Dialect, rows: &SetExpr) -> bool {
    match rows {
        SetExpr::Select(select) => select.projection.iter().any(|item| match item {
            SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, alias: _ } => {
                !is_safe_as_time(dialect, value)
            }
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => false,
            SelectItem::ExprWithAliases { .. } => true,
        }),
        SetExpr::Query(query) => computes_texts(dialect, &query.body),
        SetExpr::SetOperation { left, right, .. } => computes_texts(dialect, left) || computes_texts(dialect, right),
        SetExpr::Values(values) => {
            values.rows.iter().flat_map(|row| &row.content).any(|value| !is_safe_as_time(dialect, value))
        }
        _ => true,
    }
}
