//! Refuses queries that may find other rows in a preview than when the statement runs.
//!
//! The data alone may decide which rows a query finds. A statement that could read the time, its session, its own text or its
//! locks could show a reviewer other rows than it changes.

use sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr,
    Ident, ObjectName, ObjectNamePart, Query, SelectItem, SetExpr, TableFactor, TableWithJoins, UnaryOperator, Value,
};

use super::{Check, QueryChecker, last_part, tables::KEYWORD_FUNCTIONS};
use crate::{
    Dialect,
    dialect::{is_repeatable_function, is_time_word},
    names::unquote,
};

/// Words that MySQL takes for functions without parentheses, unless they are in quotes.
const MYSQL_KEYWORD_FUNCTIONS: &[&str] = &["current_role", "current_user", "utc_date", "utc_time", "utc_timestamp"];

/// Columns of every table in PostgreSQL that a statement changes while it runs.
const LOCK_COLUMNS: &[&str] = &["cmax", "cmin", "xmax"];

/// Words that mean a time relative to the present one in a literal of PostgreSQL.
const PRESENT_TIME_WORDS: &[&str] = &["now", "today", "tomorrow", "yesterday"];

/// Texts that functions of SQLite take for the present time.
const SQLITE_PRESENT_TIMES: &[&str] = &["now", "subsec", "subsecond"];

/// Schemas of MySQL that tell about the state of the server.
const MYSQL_SYSTEM_SCHEMAS: &[&str] = &["information_schema", "mysql", "performance_schema", "sys"];

impl QueryChecker {
    /// Refuses `what` if the query must be repeatable and `what` is not.
    fn refuse_unrepeatable(&self, is_unrepeatable: bool, what: &dyn std::fmt::Display) -> Check {
        if self.must_repeat && is_unrepeatable {
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
        let is_unrepeatable = match self.dialect {
            Dialect::Postgres => {
                is_keyword(KEYWORD_FUNCTIONS) || LOCK_COLUMNS.contains(&self.exact_name(column).as_str())
            }
            Dialect::Mysql => first.value.starts_with('@') || is_keyword(MYSQL_KEYWORD_FUNCTIONS),
            Dialect::Sqlite => false,
        };
        self.refuse_unrepeatable(is_unrepeatable, column)
    }

    /// Checks that a literal is not the present time. Only PostgreSQL has such literals.
    pub(super) fn check_literal(&self, value: &Value) -> Check {
        let is_time = self.must_repeat
            && self.dialect == Dialect::Postgres
            && value.clone().into_string().is_some_and(|text| may_be_present_time(&text));
        self.refuse_unrepeatable(is_time, value)
    }

    /// Checks a cast: the text of a computed value may be the present time.
    pub(super) fn check_cast(&mut self, expression: &Expr, data_type: &DataType) -> Check {
        let name = data_type.to_string().to_ascii_lowercase();
        let is_time = self.dialect == Dialect::Postgres
            && ["date", "range", "time"].iter().any(|part| name.contains(part))
            && !is_literal(expression);
        self.takes_columns_for_times |= is_time;
        self.refuse_unrepeatable(
            is_time && !is_safe_as_time(self.dialect, expression),
            &format_args!("a cast to {name}"),
        )
    }

    /// Checks that the result of a function that only reads depends on its arguments.
    pub(super) fn check_repeatable_call(&mut self, name: &ObjectName, arguments: &[FunctionArg]) -> Check {
        let is_repeatable = match (self.dialect, last_part(name).as_deref()) {
            (Dialect::Postgres, Some("date"))
            | (Dialect::Sqlite, Some("date" | "datetime" | "julianday" | "time" | "unixepoch")) => {
                self.has_safe_time(arguments)
            }
            (Dialect::Sqlite, Some("strftime")) => arguments.split_first().is_some_and(|(format, time)| {
                argument_value(format).is_some_and(is_literal) && self.has_safe_time(time)
            }),
            // With one argument, it is the distance from the present day.
            (_, Some("age")) => arguments.len() == 2,
            (_, Some(function)) => is_repeatable_function(function),
            (_, None) => false,
        };
        self.refuse_unrepeatable(!is_repeatable, &format_args!("the function {name}"))
    }

    /// Returns `true` if the arguments are a time that does not depend on the present one, and literals.
    fn has_safe_time(&mut self, arguments: &[FunctionArg]) -> bool {
        let values: Option<Vec<&Expr>> = arguments.iter().map(argument_value).collect();
        let Some([time, modifiers @ ..]) = values.as_deref() else { return false };
        self.takes_columns_for_times |= !is_literal(time);
        is_safe_as_time(self.dialect, time) && modifiers.iter().all(|modifier| is_literal(modifier))
    }

    /// Checks that no column that is taken for a time may be a text that the query computes.
    pub(super) fn check_time_columns(&self) -> Check {
        let is_unrepeatable = self.takes_columns_for_times && self.has_computed_columns;
        self.refuse_unrepeatable(is_unrepeatable, &"a time in a column that it computes")
    }

    /// Checks that a table holds data and not the state of the server.
    pub(super) fn check_ordinary_table(&self, name: &ObjectName) -> Check {
        let is_changed = || self.changed_table.as_deref() == Some(name.to_string().as_str());
        let parts: Vec<String> = name
            .0
            .iter()
            .map(|part| part.as_ident().map_or_else(|| part.to_string(), unquote).to_ascii_lowercase())
            .collect();
        let Some((table, schemas)) = parts.split_last() else { return Ok(()) };
        let is_unrepeatable = match self.dialect {
            // PostgreSQL gives the sequences of columns such names, and a statement may advance them while it runs. The table
            // that it changes is none, because no statement can change the row of a sequence.
            Dialect::Postgres => {
                table.ends_with("_seq") && !is_changed()
                    || parts.iter().any(|part| part.starts_with("pg_") || part == "information_schema")
            }
            Dialect::Sqlite => {
                table.starts_with("pragma_") || table.starts_with("sqlite_") && table != "sqlite_sequence"
            }
            Dialect::Mysql => schemas.iter().any(|schema| MYSQL_SYSTEM_SCHEMAS.contains(&schema.as_str())),
        };
        self.refuse_unrepeatable(is_unrepeatable, name)
    }
}

pub(super) fn is_literal(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_literal(inner),
        // SQLite takes the bytes of such a literal for a text.
        Expr::Value(value) => !matches!(value.value, Value::HexStringLiteral(_)),
        _ => false,
    }
}

/// Returns `true` for the name of a column. SQLite takes a name in double quotes for a text if there is no such column.
pub(super) fn is_column(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Identifier(name) if name.quote_style == Some('"') => {
            dialect != Dialect::Sqlite || is_plain_text(&name.value)
        }
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => true,
        _ => false,
    }
}

/// Returns `true` for a text that SQLite takes neither for the present time nor for JSON that contains it.
fn is_plain_text(text: &str) -> bool {
    let is_present_time = |word: &str| SQLITE_PRESENT_TIMES.iter().any(|time| word.eq_ignore_ascii_case(time));
    let mut words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
    // JSON does not begin with a parenthesis. A backslash may hide the time in it.
    text.starts_with('(') || !text.contains('\\') && !words.any(is_present_time)
}

/// Returns `true` if the value can be taken for a time without becoming the present one: a literal, the value of a column, or
/// no text. A text that a query computes may be the present time.
fn is_safe_as_time(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_safe_as_time(dialect, inner),
        Expr::Value(value) => {
            is_literal(expression) && value.value.clone().into_string().is_none_or(|text| is_plain_text(&text))
        }
        Expr::AtTimeZone { .. } => true,
        Expr::Cast { data_type, .. } => is_time(data_type),
        Expr::TypedString(literal) => is_time(&literal.data_type),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Multiply | BinaryOperator::Divide,
            right: _,
        } => is_safe_as_time(dialect, left),
        Expr::Function(function) => {
            let are_safe =
                || arguments(function).is_some_and(|values| values.iter().all(|v| is_safe_as_time(dialect, v)));
            match last_part(&function.name).as_deref() {
                Some(
                    "avg" | "count" | "date_trunc" | "make_date" | "make_timestamp" | "sum" | "to_date"
                    | "to_timestamp",
                ) => true,
                Some("coalesce" | "greatest" | "ifnull" | "least" | "max" | "min" | "nullif") => are_safe(),
                _ => false,
            }
        }
        _ => is_field(dialect, expression),
    }
}

/// Returns `true` for a column, and for a field of its JSON.
fn is_field(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_field(dialect, inner),
        Expr::BinaryOp {
            left,
            op:
                BinaryOperator::Arrow
                | BinaryOperator::LongArrow
                | BinaryOperator::HashArrow
                | BinaryOperator::HashLongArrow,
            right,
        } => is_field(dialect, left) && is_literal(right),
        _ => is_column(dialect, expression),
    }
}

/// Returns `true` if a column of these rows may be a text that the query computes.
pub(super) fn has_computed_columns(dialect: Dialect, rows: &SetExpr) -> bool {
    match rows {
        SetExpr::Select(select) => select.projection.iter().any(|item| match item {
            SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, alias: _ } => {
                !is_safe_as_time(dialect, value)
            }
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => false,
            SelectItem::ExprWithAliases { .. } => true,
        }),
        SetExpr::Query(query) => has_computed_columns(dialect, &query.body),
        SetExpr::SetOperation { left, right, .. } => {
            has_computed_columns(dialect, left) || has_computed_columns(dialect, right)
        }
        SetExpr::Values(values) => {
            values.rows.iter().flat_map(|row| &row.content).any(|value| !is_safe_as_time(dialect, value))
        }
        _ => true,
    }
}

/// Returns `true` if an item of a query has an alias that its condition may use, as SQLite allows, and its value is a text
/// that the query computes.
pub(super) fn is_computed_alias(dialect: Dialect, alias: &Ident, value: &Expr) -> bool {
    dialect == Dialect::Sqlite && !alias.value.starts_with(crate::ALIAS_PREFIX) && !is_safe_as_time(dialect, value)
}

/// Returns `true` if the columns of a function in FROM may be texts that the query computes from its arguments.
pub(super) fn has_computed_arguments(dialect: Dialect, arguments: &[FunctionArg]) -> bool {
    !arguments.iter().all(|argument| argument_value(argument).is_some_and(|value| is_column(dialect, value)))
}

fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date | DataType::Timestamp(..))
}

fn argument_value(argument: &FunctionArg) -> Option<&Expr> {
    match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
        _ => None,
    }
}

/// Returns the arguments of a call if all are plain expressions.
fn arguments(function: &Function) -> Option<Vec<&Expr>> {
    match &function.args {
        FunctionArguments::None => Some(Vec::new()),
        FunctionArguments::List(list) => list.args.iter().map(argument_value).collect(),
        FunctionArguments::Subquery(_) => None,
    }
}

/// Returns the name of the function in lower case and the arguments of a call, if the name has no schema and no quotes.
fn plain_call(expression: &Expr) -> Option<(String, Vec<&Expr>)> {
    let Expr::Function(function) = expression else { return None };
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
    name.quote_style.is_none().then_some((name.value.to_ascii_lowercase(), arguments(function)?))
}

/// Returns `true` if PostgreSQL may take a text for the present time, or for values one of which is the present time.
fn may_be_present_time(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    if !text.trim_start().starts_with(['{', '[', '(']) || begins_as_json_object(&text) {
        return is_relative_time(&text);
    }
    // In the values of an array, a range or a row, quotes and backslashes may be anywhere.
    let unquoted = text.replace(['"', '\\'], "");
    if words(&unquoted).eq(words(&text)) {
        unquoted.split(['{', '}', '[', ']', '(', ')', ',']).any(is_relative_time)
    } else {
        PRESENT_TIME_WORDS.iter().any(|word| unquoted.contains(word))
    }
}

/// Returns `true` if the text begins with the first member of a JSON object. It is then no array and no range, in which no colon
/// may follow a value in quotes.
fn begins_as_json_object(text: &str) -> bool {
    let members = text.trim_ascii_start().strip_prefix('{').map_or("", str::trim_ascii_start);
    let first_name = members.strip_prefix('"').and_then(|members| members.split_once('"'));
    first_name.is_some_and(|(name, rest)| !name.contains('\\') && rest.trim_ascii_start().starts_with(':'))
}

/// Returns `true` if a text in lower case may be a time relative to the present one in PostgreSQL: each of its words may belong
/// to a time. The name of a time zone may contain any word, but also contains a slash or a digit.
fn is_relative_time(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "+-/_.:".contains(c);
    let may_belong_to_time =
        |part: &str| part.contains(|c: char| c == '/' || c.is_ascii_digit()) || words(part).all(is_time_word);
    words(text).any(|word| PRESENT_TIME_WORDS.contains(&word))
        && text.split(|c: char| !is_part(c)).all(may_belong_to_time)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty())
}

/// Replaces the present time in the condition of a query from one table, if a column is compared with it, so that the rest can
/// be checked. With one such comparison, each row begins or ceases to match once. With two, it could match only for a while,
/// and chance would decide which rows a statement changes. SQLite may compare a text in place of a missing column, as if every
/// row had this text.
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
        Expr::Nested(inner) | Expr::UnaryOp { op: UnaryOperator::Not, expr: inner } => {
            find_compared_time(dialect, inner)
        }
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
            if is_time_of_row(dialect, left) && is_present_time(dialect, right) {
                Some(right.as_mut())
            } else if is_time_of_row(dialect, right) && is_present_time(dialect, left) {
                Some(left.as_mut())
            } else {
                None
            }
        }
        _ => None,
    }
}

/// Returns `true` for a column, for its value as a time, and for a time at a fixed distance from it.
fn is_time_of_row(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_time_of_row(dialect, inner),
        Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } => {
            is_time_of_row(dialect, left) && is_duration(dialect, right)
        }
        Expr::Cast { expr, data_type, .. } => {
            dialect == Dialect::Postgres && is_time(data_type) && is_time_of_row(dialect, expr)
        }
        Expr::Function(_) => plain_call(expression).is_some_and(|(name, arguments)| {
            match (dialect, name.as_str(), arguments.as_slice()) {
                (Dialect::Sqlite, "date" | "datetime" | "julianday" | "unixepoch", [column, modifiers @ ..]) => {
                    is_column(dialect, column) && modifiers.iter().all(|modifier| is_literal(modifier))
                }
                (Dialect::Postgres | Dialect::Mysql, "date", [column]) => is_column(dialect, column),
                _ => false,
            }
        }),
        _ => is_column(dialect, expression),
    }
}

/// Returns `true` for the present time, and for a time at a fixed distance from it. Both only grow.
fn is_present_time(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_present_time(dialect, inner),
        Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } => {
            is_present_time(dialect, left) && is_duration(dialect, right)
        }
        Expr::AtTimeZone { timestamp, time_zone } => is_present_time(dialect, timestamp) && is_literal(time_zone),
        Expr::Cast { expr, data_type, .. } => {
            dialect == Dialect::Postgres && is_time(data_type) && is_present_time(dialect, expr)
        }
        _ => plain_call(expression).is_some_and(|(name, arguments)| {
            match (dialect, name.as_str(), arguments.as_slice()) {
                (_, "current_date" | "current_timestamp", [])
                | (Dialect::Postgres | Dialect::Mysql, "localtimestamp" | "now", [])
                | (Dialect::Mysql, "curdate", []) => true,
                (Dialect::Postgres | Dialect::Mysql, "current_timestamp" | "localtimestamp" | "now", [precision]) => {
                    is_literal(precision)
                }
                (Dialect::Postgres | Dialect::Mysql, "date", [time]) => is_present_time(dialect, time),
                (Dialect::Postgres, "date_trunc", [unit, time, zone @ ..]) => {
                    is_literal(unit) && is_present_time(dialect, time) && zone.iter().all(|zone| is_literal(zone))
                }
                (Dialect::Mysql, "date_add" | "date_sub", [time, duration]) => {
                    is_present_time(dialect, time) && is_duration(dialect, duration)
                }
                (Dialect::Sqlite, "date" | "datetime" | "julianday" | "unixepoch", time) => is_now(time),
                (Dialect::Sqlite, "strftime", [format, time @ ..]) => has_growing_text(format) && is_now(time),
                _ => false,
            }
        }),
    }
}

/// Returns `true` if the arguments of a function of SQLite are the present time and modifiers that are literals.
fn is_now(arguments: &[&Expr]) -> bool {
    let [Expr::Value(first), modifiers @ ..] = arguments else { return false };
    let first = first.value.clone().into_string();
    first.is_some_and(|first| first.eq_ignore_ascii_case("now")) && modifiers.iter().all(|m| is_literal(m))
}

/// Returns `true` for a format of `strftime` whose text never becomes smaller as time passes, such as `%Y-%m-%d`.
fn has_growing_text(format: &Expr) -> bool {
    let Expr::Value(format) = format else { return false };
    let Some(format) = format.value.clone().into_string() else { return false };
    // `%%` leaves a part without a letter, and no such format is known to grow.
    let fields: Option<String> = format.split('%').skip(1).map(|part| part.chars().next()).collect();
    fields.is_some_and(|fields| fields == "s" || !fields.is_empty() && "YmdHMS".starts_with(&fields))
}

/// Returns `true` for an interval that is a literal, and for a number or a text in place of one.
fn is_duration(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Interval(interval) => is_literal(&interval.value),
        Expr::Cast { expr, data_type: DataType::Interval { .. }, .. } => is_literal(expr),
        other => is_literal(other) && is_safe_as_time(dialect, other),
    }
}

/// Replaces selected times and random values by the texts of their expressions, if they do not decide which rows the source of
/// an insertion selects.
pub fn replace_times_and_random_values(dialect: Dialect, source: &Query) -> Query {
    let mut source = source.clone();
    if source.order_by.is_none()
        && let SetExpr::Select(select) = source.body.as_mut()
        && select.distinct.is_none()
        && select.having.is_none()
        && matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty())
    {
        for item in &mut select.projection {
            // A condition in SQLite could use the alias, and would then read the text. So the item gets another alias there.
            let (value, alias) = match item {
                SelectItem::UnnamedExpr(value) => (value, None),
                SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias).filter(|_| dialect != Dialect::Sqlite)),
                _ => continue,
            };
            let text = value.to_string();
            if is_time_or_random(dialect, value) && !text.contains('\\') {
                let alias = alias.cloned().unwrap_or_else(|| Ident::new(dialect.quote_name(&text)));
                *item = SelectItem::ExprWithAlias { expr: expression_text(dialect, &text), alias };
            }
        }
    }
    source
}

/// Returns the text of an expression as a literal. In PostgreSQL it is cast to text, because it could otherwise count as a
/// time.
fn expression_text(dialect: Dialect, text: &str) -> Expr {
    let literal = Expr::value(Value::SingleQuotedString(format!("({})", text.replace('\'', "''"))));
    match dialect {
        Dialect::Postgres => {
            Expr::Cast { kind: CastKind::Cast, expr: Box::new(literal), data_type: DataType::Text, format: None }
        }
        Dialect::Sqlite | Dialect::Mysql => literal,
    }
}

/// Returns `true` for a value that depends on the present time, or that is random.
fn is_time_or_random(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => is_time_or_random(dialect, inner),
        _ if is_present_time(dialect, expression) => true,
        _ => plain_call(expression).is_some_and(|(name, arguments)| match (name.as_str(), arguments.as_slice()) {
            ("clock_timestamp" | "gen_random_uuid" | "rand" | "random" | "randomblob" | "uuid", literals) => {
                dialect.is_harmless_function(&name) && literals.iter().all(|literal| is_literal(literal))
            }
            ("hex" | "lower" | "upper", [inner]) => is_time_or_random(dialect, inner),
            ("strftime", [format, time @ ..]) => dialect == Dialect::Sqlite && is_literal(format) && is_now(time),
            _ => false,
        }),
    }
}
