//! Values in the rows of a statement, before it and with the values that it assigns, and their texts in a preview.

use serde_json::Value;

use super::Row;
use crate::previews::{fault::Fault, formats::format_of_content};
use countersign_domain::{changes::diff::DiffBuilder, text::plural};
use countersign_sql::{ALIAS_PREFIX, ColumnAssignment};

pub(super) fn plural_rows(count: u64) -> String {
    plural(usize::try_from(count).unwrap_or(usize::MAX), "row")
}

/// Returns the number in the only row of a count, which some servers give as text.
pub(super) fn parse_count(rows: &[Row]) -> Result<u64, Fault> {
    let number = match rows {
        [row] if row.len() == 1 => row.values().next(),
        _ => None,
    };
    let count = match number {
        Some(Value::Number(number)) => number.as_u64(),
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    count.ok_or_else(|| Fault::new("answer", "the number of rows is not a number"))
}

/// Returns the names in the first column.
pub(super) fn names_in(rows: &[Row]) -> Option<Vec<String>> {
    rows.iter().map(|row| row.values().next().and_then(Value::as_str).map(str::to_owned)).collect()
}

/// Checks that a row has all assigned values that the query selects, and shows the columns that get them.
///
/// # Errors
/// Fails if the row lacks one of them.
pub(super) fn check_values(row: &Row, assignments: &[ColumnAssignment]) -> Result<(), Fault> {
    let is_missing = |value: &&ColumnAssignment| value.alias.as_ref().is_some_and(|alias| !row.contains_key(alias));
    if let Some(value) = assignments.iter().find(is_missing) {
        return Err(Fault::new("answer", format!("the answer has no value for {}", value.column)));
    }
    // Some columns are not among all columns of a table, such as `rowid` in SQLite.
    let is_hidden =
        |value: &&ColumnAssignment| !own_columns(row).any(|(name, _)| name.eq_ignore_ascii_case(&value.column));
    match assignments.iter().find(is_hidden) {
        Some(value) => Err(Fault::new("answer", format!("the answer has no column {}", value.column))),
        None => Ok(()),
    }
}

/// Returns the columns of a row that belong to the table.
fn own_columns(row: &Row) -> impl Iterator<Item = (&String, &Value)> {
    row.iter().filter(|(name, _)| !name.starts_with(ALIAS_PREFIX))
}

/// Returns the columns of a row, with the assigned values in place of the present ones.
pub(super) fn assigned_row(row: &Row, assignments: &[ColumnAssignment]) -> Row {
    let columns = own_columns(row).map(|(name, value)| {
        let assigned = match find_assignment(assignments, name) {
            None => value.clone(),
            Some(ColumnAssignment { alias: Some(alias), .. }) => row[alias].clone(),
            Some(ColumnAssignment { expression, .. }) => format!("({expression})").into(),
        };
        // A server may give one number as text and the other as a number.
        let is_same = value_text(&assigned) == value_text(value);
        (name.clone(), if is_same { value.clone() } else { assigned })
    });
    columns.collect()
}

/// Returns rows as a JSON array with a row in each line, which reviewers see as a table.
pub(super) fn rows_text(rows: impl IntoIterator<Item = Row>) -> String {
    let rows: Vec<String> = rows.into_iter().map(|row| Value::Object(row).to_string()).collect();
    format!("[\n{}\n]\n", rows.join(",\n"))
}

/// Returns the assignment to the column.
pub(super) fn find_assignment<'a>(assignments: &'a [ColumnAssignment], column: &str) -> Option<&'a ColumnAssignment> {
    assignments.iter().find(|assignment| assignment.column.eq_ignore_ascii_case(column))
}

/// Returns a value as text, which is the same for a number and for its text.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) if text.parse::<f64>().is_ok() => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the rows of a definition, each with its names and texts but without the names of the columns. The column `number` only
/// orders the rows.
pub(super) fn definition_text(rows: &[Row]) -> String {
    let row_text = |row: &Row| {
        let values = row.iter().filter(|(name, value)| *name != "number" && !value.is_null());
        let texts = values.map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        texts.collect::<Vec<_>>().join(" ") + "\n"
    };
    rows.iter().map(row_text).collect()
}

/// Adds a field with the rows before and after, unless both are the same.
pub(super) fn add_row_diff(
    builder: &mut DiffBuilder,
    field: &str,
    label: &str,
    before: Option<&str>,
    after: Option<&str>,
) {
    let fields = builder.len();
    builder.add(field, label, before, after);
    if let Some(text) = after.or(before) {
        builder.set_format_after(fields, format_of_content(text));
    }
}

/// Returns the values of a row after an update, without those that the preview does not know.
pub(super) fn row_after(row: &Row, assigned: &[ColumnAssignment]) -> Row {
    own_columns(row)
        .filter_map(|(name, value)| {
            let value = match find_assignment(assigned, name) {
                None => value,
                Some(ColumnAssignment { alias: Some(alias), .. }) => row.get(alias)?,
                Some(_) => return None,
            };
            Some((name.clone(), value.clone()))
        })
        .collect()
}

pub(super) fn is_same_row(row: &Row, other: &Row, keys: &[String]) -> bool {
    keys.iter().all(|key| is_same_value(row.get(key), other.get(key)))
}

/// Compares two values of one column. Servers write numbers as numbers or as texts, with or without zeros at the end.
pub(super) fn is_same_value(one: Option<&Value>, other: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| match value {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) if text.len() <= 15 => text.parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    };
    one == other || matches!((number(one), number(other)), (Some(one), Some(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(value: Value) -> Row {
        let Value::Object(row) = value else { panic!("{value}") };
        row
    }

    #[test]
    fn row_shows_assigned_values_in_place_of_present_ones() {
        let assigned = |column: &str, expression: &str, alias: Option<&str>| ColumnAssignment {
            column: column.into(),
            expression: expression.into(),
            alias: alias.map(str::to_owned),
        };
        let values =
            [assigned("Balance", "balance + 1", Some("countersign_after_0")), assigned("n", "nextval('s')", None)];
        let mut row = row(json!({"id": 1, "balance": "5", "n": null, "owner": "a, b", "countersign_after_0": 6}));
        let present = json!({"id": 1, "balance": "5", "n": null, "owner": "a, b"});
        assert_eq!(Value::Object(assigned_row(&row, &[])), present);
        check_values(&row, &values).unwrap();
        let after = json!({"id": 1, "balance": 6, "n": "(nextval('s'))", "owner": "a, b"});
        assert_eq!(Value::Object(assigned_row(&row, &values)), after);
        let same = [assigned("balance", "5", Some("countersign_after_1"))];
        row.insert("countersign_after_1".into(), 5.into());
        assert_eq!(Value::Object(assigned_row(&row, &same)), present);
        let unknown = [assigned("balance", "SELECT x, y", None), assigned("owner", "SELECT x, y", None)];
        let after = json!({"id": 1, "balance": "(SELECT x, y)", "n": null, "owner": "(SELECT x, y)"});
        assert_eq!(Value::Object(assigned_row(&row, &unknown)), after);
    }

    #[test]
    fn nonsense_answers_are_refused() {
        for rows in
            [json!([]), json!([{"n": -1}]), json!([{"n": "x"}]), json!([{"n": 1, "m": 2}]), json!([{"n": 1}, {"n": 2}])]
        {
            let rows: Vec<Row> = rows.as_array().unwrap().iter().cloned().map(row).collect();
            assert!(parse_count(&rows).is_err(), "{rows:?}");
        }
        assert_eq!(parse_count(&[row(json!({"n": "12"}))]).unwrap(), 12);
        let value = ColumnAssignment { column: "a".into(), expression: "1".into(), alias: Some("x".into()) };
        let check = |answer| check_values(&row(answer), std::slice::from_ref(&value));
        assert!(check(json!({"A": 1, "x": 1})).is_ok());
        for answer in [json!({"a": 1}), json!({"id": 1, "x": 1}), json!({"x": 1})] {
            assert!(check(answer.clone()).is_err(), "{answer}");
        }
    }

    #[test]
    fn row_after_an_update_has_only_known_values() {
        let assigned = |column: &str, alias: Option<&str>| ColumnAssignment {
            column: column.into(),
            expression: "x".into(),
            alias: alias.map(str::to_owned),
        };
        let values = [assigned("A", Some("countersign_after_0")), assigned("at", None), assigned("n", None)];
        let before = json!({"id": 1, "a": 5, "at": "then", "n": 1, "countersign_after_0": 6});
        assert_eq!(row_after(&row(before), &values), row(json!({"id": 1, "a": 6})));
    }

    #[test]
    fn numbers_are_the_same_in_any_form() {
        let same = |one: Value, other: Value| is_same_value(Some(&one), Some(&other));
        assert!(same(json!(1), json!("1.00")) && same(json!("51"), json!("51.0")) && same(json!(null), json!(null)));
        assert!(!same(json!("1"), json!("2")) && !same(json!("a"), json!("b")) && !same(json!(null), json!("")));
        assert!(!same(json!("12345678901234567"), json!("12345678901234568")));
        assert!(!is_same_value(Some(&json!(1)), None));
    }
}
