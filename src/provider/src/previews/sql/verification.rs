//! Reads back what SQL statements changed: rows by their primary key, given rows by their number, and definitions.

use serde_json::Value;

use super::{
    ObservedStatement, QueryAnswer, Row,
    row_values::{
        add_row_diff, definition_text, find_assignment, is_same_row, is_same_value, names_in, parse_count, plural_rows,
        row_after, rows_text,
    },
    statement_label,
};
use crate::previews::{fault::Fault, recipe_runner::RecipeRunner, verification::diff_limits};
use countersign_domain::{
    changes::{Change, Verification, diff::DiffBuilder},
    recipes::SqlRecipe,
};
use countersign_sql::{
    DefinitionChange, Effect, Literal, ObjectDefinition, PreviewSource, ReadBack, RowPreview, TableRows, Write,
    WriteKind, may_be_same_object,
};

/// Returns `true` if the effect of the statement can be read back after the run.
pub(in crate::previews) fn is_verifiable(observed: &ObservedStatement) -> bool {
    let (Some(write), Ok(preview)) = (observed.statement.effect.as_write(), &observed.preview) else { return false };
    match (&write.read_back, preview) {
        (ReadBack::Rows(_), PreviewSource::Rows(_)) => write.kind != WriteKind::Insert,
        (ReadBack::Rows(_), PreviewSource::GivenRows { equal_count, .. }) => equal_count.is_some(),
        (ReadBack::Definitions(_), PreviewSource::Definitions(_)) => true,
        _ => false,
    }
}

/// Returns `true` if another of the statements may change one of the same tables.
fn has_shared_target(write: &Write, statements: &[ObservedStatement]) -> bool {
    let writes = statements.iter().filter_map(|observed| observed.statement.effect.as_write());
    let is_own = |target: &String| write.targets.iter().any(|own| may_be_same_object(own, target));
    // The write itself is one of the statements.
    writes.filter(|other| other.targets.iter().any(is_own)).count() > 1
}

/// Compares what the statements changed with what was approved.
pub(in crate::previews) async fn verify_statements(
    runner: &RecipeRunner<'_>,
    sql: &SqlRecipe,
    statements: &[ObservedStatement],
    change: &Change,
) -> Result<Verification, Fault> {
    let arguments = runner.parse_arguments().await?;
    let mut verifier = Verifier {
        runner,
        sql,
        arguments,
        builder: DiffBuilder::with_limits(diff_limits()),
        is_restricted: change.is_restricted(),
        is_single: statements.len() == 1,
    };
    let mut unverified = None;
    for (index, observed) in statements.iter().enumerate() {
        let result = match &observed.statement.effect {
            Effect::Read => continue,
            Effect::Unparsed { .. } => Err(Fault::new("statement", "a statement could not be parsed")),
            Effect::Write(write) if has_shared_target(write, statements) => {
                Err(Fault::new("statement", "several statements change the same table"))
            }
            Effect::Write(write) => verifier.verify(index, write, observed).await,
        };
        match result {
            Err(fault) if fault.transient_error.is_some() => return Err(fault),
            Err(fault) => _ = unverified.get_or_insert(fault.reason),
            Ok(()) => {}
        }
    }
    let diff = verifier.builder.finish();
    Ok(match unverified {
        Some(reason) if diff.fields.is_empty() => Verification::unreadable(reason),
        _ => Verification::from_diff(diff),
    })
}

/// The rows that a statement updated or deleted.
struct WrittenRows<'a> {
    /// The position of the statement.
    index: usize,
    write: &'a Write,
    table: &'a TableRows,
    /// The columns of the table's primary key.
    keys: Vec<String>,
    preview: &'a RowPreview<QueryAnswer>,
    /// The rows before the statement, as far as the preview showed them.
    shown_rows: &'a [Row],
}

struct Verifier<'a> {
    runner: &'a RecipeRunner<'a>,
    sql: &'a SqlRecipe,
    arguments: cel::Value,
    /// The differences that were found.
    builder: DiffBuilder,
    is_restricted: bool,
    is_single: bool,
}

impl Verifier<'_> {
    async fn verify(&mut self, index: usize, write: &Write, observed: &ObservedStatement) -> Result<(), Fault> {
        match (&write.read_back, &observed.preview) {
            (ReadBack::Rows(table), Ok(PreviewSource::Rows(preview))) if write.kind != WriteKind::Insert => {
                let selected = &preview.rows.rows;
                let shown_rows = &selected[..selected.len().min(self.sql.rows)];
                let keys = self.key_columns(table).await?;
                let written = WrittenRows { index, write, table, keys, preview, shown_rows };
                match write.kind {
                    WriteKind::Update => self.verify_update(&written).await,
                    _ => self.verify_deletion(&written).await,
                }
            }
            (ReadBack::Rows(_), Ok(PreviewSource::GivenRows { rows, equal_count: Some(counted), .. })) => {
                let expected = parse_count(&counted.rows)? + rows.len() as u64;
                let answer = self.query(&counted.query).await?;
                let count = parse_count(&answer.rows)?;
                let text = |count| format!("{} with these values", plural_rows(count));
                let field = format!("$rows{index}");
                self.add(&field, &self.table_label(index, write), (Some(&text(expected)), Some(&text(count))), &answer);
                Ok(())
            }
            (ReadBack::Definitions(change), Ok(PreviewSource::Definitions(objects))) => {
                self.verify_definitions(index, *change, objects).await
            }
            _ => Err(Fault::new("statement", "there is no way to read back what a statement did")),
        }
    }

    /// Compares the rows with the values that the preview showed for after the update. Values that it could not know are not
    /// compared.
    async fn verify_update(&mut self, written: &WrittenRows<'_>) -> Result<(), Fault> {
        let &WrittenRows { index, write, table, ref keys, preview, shown_rows } = written;
        if keys.is_empty() {
            return Err(missing_key_fault(write));
        }
        let expected: Vec<Row> = shown_rows.iter().map(|row| row_after(row, &preview.assignments)).collect();
        let Some(first) = expected.first() else { return Ok(()) };
        let is_assigned = |name: &&str| find_assignment(&preview.assignments, name).is_some();
        let assigned: Vec<&str> = first.keys().map(String::as_str).filter(is_assigned).collect();
        let answer = self.find_rows(table, &expected, keys).await?;
        let is_unclear = |row: &&Row| {
            let found_row = answer.rows.iter().find(|found| is_same_row(row, found, keys));
            found_row.is_some_and(|found| assigned.iter().any(|name| !is_same_value(row.get(*name), found.get(*name))))
        };
        // The database may write a value in another form, such as a date. It knows which values are equal.
        let unclear: Vec<Row> = expected.iter().filter(is_unclear).cloned().collect();
        let names: Vec<String> = keys.iter().cloned().chain(assigned.iter().map(|name| (*name).to_owned())).collect();
        let equal = if unclear.is_empty() {
            Vec::new()
        } else {
            match self.find_rows(table, &unclear, &names).await {
                Err(fault) if fault.transient_error.is_some() => return Err(fault),
                equal => equal.map_or(Vec::new(), |answer| answer.rows),
            }
        };
        let (mut approved, mut present) = (Vec::new(), Vec::new());
        for row in &expected {
            let Some(found_row) = answer.rows.iter().find(|found| is_same_row(row, found, keys)) else {
                approved.push(row.clone());
                continue;
            };
            let has_equal_values = equal.iter().any(|equal| is_same_row(row, equal, keys));
            let merged = found_row.iter().map(|(name, value)| {
                // The preview could not know each value.
                let is_equal = row.get(name).is_none_or(|expected| {
                    has_equal_values && assigned.contains(&name.as_str()) || is_same_value(Some(expected), Some(value))
                });
                (name.clone(), if is_equal { value.clone() } else { row[name].clone() })
            });
            approved.push(merged.collect());
            present.push(found_row.clone());
        }
        let approved = rows_text(approved);
        let present = (!present.is_empty()).then(|| rows_text(present));
        let values = (Some(approved.as_str()), present.as_deref());
        self.add(&format!("$rows{index}"), &self.table_label(index, write), values, &answer);
        Ok(())
    }

    async fn verify_deletion(&mut self, written: &WrittenRows<'_>) -> Result<(), Fault> {
        let &WrittenRows { index, write, table, ref keys, preview, shown_rows } = written;
        if shown_rows.is_empty() {
            return Ok(());
        }
        if keys.is_empty() {
            let remaining = self.query(&preview.count.query).await?;
            return if parse_count(&remaining.rows)? == 0 { Ok(()) } else { Err(missing_key_fault(write)) };
        }
        let answer = self.find_rows(table, shown_rows, keys).await?;
        let present = (!answer.rows.is_empty()).then(|| rows_text(answer.rows.clone()));
        self.add(&format!("$rows{index}"), &self.table_label(index, write), (None, present.as_deref()), &answer);
        Ok(())
    }

    async fn verify_definitions(
        &mut self,
        index: usize,
        change: DefinitionChange,
        objects: &[ObjectDefinition<QueryAnswer>],
    ) -> Result<(), Fault> {
        for (n, ObjectDefinition { name, definition: before }) in objects.iter().enumerate() {
            let answer = self.query(&before.query).await?;
            if answer.rows != before.rows {
                continue;
            }
            let text = definition_text(&answer.rows);
            let approved_and_present = match change {
                DefinitionChange::Creation if answer.rows.is_empty() => (Some("(exists)"), None),
                DefinitionChange::Removal if !answer.rows.is_empty() => (None, Some(text.as_str())),
                _ => return Err(Fault::new("definition", "the definition that was shown did not change")),
            };
            let label = statement_label(self.is_single, index, &format!("Definition of {name}"));
            self.add(&format!("$definition{index}.{n}"), &label, approved_and_present, &answer);
        }
        Ok(())
    }

    /// Adds what was approved beside what is there, if they differ.
    fn add(
        &mut self,
        field: &str,
        label: &str,
        (approved, present): (Option<&str>, Option<&str>),
        answer: &QueryAnswer,
    ) {
        let fields = self.builder.len();
        add_row_diff(&mut self.builder, field, label, approved, present);
        self.builder.restrict_after(fields, self.is_restricted || answer.restricted);
    }

    fn table_label(&self, index: usize, write: &Write) -> String {
        statement_label(self.is_single, index, &write.targets.join(", "))
    }

    /// Returns the columns of the table's primary key. A table or view without one has none.
    async fn key_columns(&self, table: &TableRows) -> Result<Vec<String>, Fault> {
        let answer = self.query(table.key_columns_query()).await?;
        names_in(&answer.rows).ok_or_else(|| Fault::new("answer", "the answer has no columns of the primary key"))
    }

    /// Returns the rows that have the values of one of these rows in the columns.
    async fn find_rows(&self, table: &TableRows, rows: &[Row], columns: &[String]) -> Result<QueryAnswer, Fault> {
        let not_found = || Fault::new("key", "the rows cannot be found by their values");
        let mut sets = Vec::with_capacity(rows.len());
        for row in rows {
            let mut values = Vec::with_capacity(columns.len());
            for name in columns {
                let value =
                    row.get(name).ok_or_else(|| Fault::new("key", "a value of the primary key is not known"))?;
                values.push((name.as_str(), literal(value).ok_or_else(not_found)?));
            }
            sets.push(values);
        }
        self.query(&table.rows_query(&sets).ok_or_else(not_found)?).await
    }

    async fn query(&self, query: &str) -> Result<QueryAnswer, Fault> {
        self.runner.query(self.sql, query, &self.arguments).await
    }
}

fn missing_key_fault(write: &Write) -> Fault {
    let table = write.targets.join(", ");
    Fault::new("key", format!("{table} has no primary key by which its rows could be found again"))
}

fn literal(value: &Value) -> Option<Literal<'_>> {
    match value {
        Value::Null => Some(Literal::Null),
        Value::Bool(value) => Some(Literal::Boolean(*value)),
        Value::Number(number) => Some(Literal::Number(number.to_string())),
        Value::String(text) => Some(Literal::Text(text)),
        Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_sql::Dialect;

    #[test]
    fn statements_for_one_table_share_their_target() {
        let shared = |text: &str| -> Vec<bool> {
            let statements: Vec<ObservedStatement> = countersign_sql::classify(Dialect::Postgres, text, 10)
                .into_iter()
                .map(|statement| ObservedStatement { statement, preview: Err(Fault::new("statement", "none")) })
                .collect();
            let writes = statements.iter().filter_map(|observed| observed.statement.effect.as_write());
            writes.map(|write| has_shared_target(write, &statements)).collect()
        };
        assert_eq!(shared("UPDATE t SET a = 1; DELETE FROM u; UPDATE t SET a = 2"), [true, false, true]);
        assert_eq!(shared("INSERT INTO public.t VALUES (1); DELETE FROM \"t\"; DELETE FROM a.u"), [true, true, false]);
        assert_eq!(shared("TRUNCATE t, u; DELETE FROM u; SELECT * FROM v; DELETE FROM v"), [true, true, false]);
    }
}
