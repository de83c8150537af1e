//! The present time in a query: where it may be, and the places where it does no harm.

use sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, GroupByExpr, Ident, Query, SelectItem, SetExpr, TableFactor,
    TableWithJoins, UnaryOperator, Value,
};

use super::{
    UsedNames,
    values::{is_column, is_literal, is_safe_as_time, is_time, plain_call},
};
use crate::{Dialect, dialect::is_time_word, names::unquote};

/// Words that mean a time relative to the present one in a literal of PostgreSQL.
const PRESENT_TIME_WORDS: &[&str] = &["now", "today", "tomorrow", "yesterday"];

/// Returns `true` if PostgreSQL may take a text for the present time, or for values one of which is the present time.
pub fn may_be_present_time(text: &str) -> bool {
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
pub fn replace_compared_time(dialect: Dialect, query: &mut Query) {
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
    is_time_from(dialect, expression, |origin| {
        is_column(dialect, origin)
            || plain_call(origin).is_some_and(|(name, arguments)| {
                match (dialect, name.as_str(), arguments.as_slice()) {
                    (Dialect::Sqlite, "date" | "datetime" | "julianday" | "unixepoch", [column, modifiers @ ..]) => {
                        is_column(dialect, column) && modifiers.iter().all(|modifier| is_literal(modifier))
                    }
                    (Dialect::Postgres | Dialect::Mysql, "date", [time]) => is_time_of_row(dialect, time),
                    _ => false,
                }
            })
    })
}

/// Returns `true` for the present time, and for a time at a fixed distance from it. Both only grow.
fn is_present_time(dialect: Dialect, expression: &Expr) -> bool {
    is_time_from(dialect, expression, |origin| match origin {
        Expr::AtTimeZone { timestamp, time_zone } => is_present_time(dialect, timestamp) && is_literal(time_zone),
        _ => plain_call(origin).is_some_and(|(name, arguments)| match (dialect, name.as_str(), arguments.as_slice()) {
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
        }),
    })
}

/// Returns `true` for an origin, for its value as a time, and for a time at a fixed distance from it.
fn is_time_from(dialect: Dialect, expression: &Expr, is_origin: impl Fn(&Expr) -> bool) -> bool {
    let mut expression = expression;
    loop {
        expression = match expression {
            Expr::Nested(inner) => inner,
            Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right }
                if is_duration(dialect, right) =>
            {
                left
            }
            Expr::Cast { expr, data_type, .. } if dialect == Dialect::Postgres && is_time(data_type) => expr,
            origin => return is_origin(origin),
        };
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

/// Returns `true` for an interval that is a literal, and for a number or a text in place of one. PostgreSQL may take such a text
/// for a time, and the difference between two present times would not always grow.
fn is_duration(dialect: Dialect, expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_duration(dialect, inner),
        Expr::Value(value)
            if dialect == Dialect::Postgres
                && value.value.clone().into_string().is_some_and(|text| may_be_present_time(&text)) =>
        {
            false
        }
        Expr::Interval(interval) => is_literal(&interval.value),
        Expr::Cast { expr, data_type: DataType::Interval { .. }, .. } => is_literal(expr),
        other => is_literal(other) && is_safe_as_time(dialect, other),
    }
}

/// Replaces selected times and random values by the texts of their expressions, if they do not decide which rows the source of
/// an insertion selects.
pub fn replace_times_and_random_values(dialect: Dialect, source: &Query) -> Query {
    // SQLite lets a condition use an alias, which the query replaces by another one. A name in double quotes may be either of
    // them, or a text if it is none, and `true` may be an alias. The query has no preview if it keeps the item.
    let names = UsedNames::in_query(dialect, None, Some(source)).unwrap_or_default();
    let may_be_named = |alias: &str| {
        let alias = alias.to_lowercase();
        dialect == Dialect::Sqlite
            && (names.quoted_columns.contains(&alias) || matches!(alias.as_str(), "true" | "false"))
    };
    let mut source = source.clone();
    if source.order_by.is_none()
        && let SetExpr::Select(select) = source.body.as_mut()
        && select.distinct.is_none()
        && select.having.is_none()
        && matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty())
    {
        for item in &mut select.projection {
            let (value, alias) = match item {
                SelectItem::UnnamedExpr(value) => (value, None),
                SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias)),
                _ => continue,
            };
            let text = value.to_string();
            let is_named = may_be_named(&text) || alias.as_ref().is_some_and(|alias| may_be_named(&unquote(alias)));
            if is_time_or_random(dialect, value) && !text.contains('\\') && !is_named {
                let alias = alias.filter(|_| dialect != Dialect::Sqlite).cloned();
                let alias = alias.unwrap_or_else(|| Ident::new(dialect.quote_name(&text)));
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
