//! Values of a query: literals, columns, and the results of functions.

use sqlparser::ast::{
    BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectNamePart, Value,
};

use super::last_part;
use crate::{Dialect, dialect::FunctionResult};

/// Texts that functions of SQLite take for the present time.
const SQLITE_PRESENT_TIMES: &[&str] = &["now", "subsec", "subsecond"];

pub fn is_literal(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_literal(inner),
        // SQLite takes the bytes of a hexadecimal literal for a text, and `true` for a column or an alias of this name.
        Expr::Value(value) => !matches!(value.value, Value::HexStringLiteral(_) | Value::Boolean(_)),
        _ => false,
    }
}

/// Returns `true` for the name of a column. SQLite takes a name in double quotes for a text if there is no such column.
pub fn is_column(dialect: Dialect, expression: &Expr) -> bool {
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
pub fn is_safe_as_time(dialect: Dialect, expression: &Expr) -> bool {
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
            let Some(name) = last_part(&function.name) else { return false };
            match dialect.result_of_function(&name) {
                Some(FunctionResult::NumberOrTime) => true,
                Some(FunctionResult::Argument) => {
                    arguments(function).is_some_and(|values| values.iter().all(|v| is_safe_as_time(dialect, v)))
                }
                Some(FunctionResult::Text) | None => false,
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

pub fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date | DataType::Timestamp(..))
}

pub fn argument_value(argument: &FunctionArg) -> Option<&Expr> {
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
pub fn plain_call(expression: &Expr) -> Option<(String, Vec<&Expr>)> {
    let Expr::Function(function) = expression else { return None };
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
    name.quote_style.is_none().then_some((name.value.to_ascii_lowercase(), arguments(function)?))
}
