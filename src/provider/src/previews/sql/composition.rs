//! Composes the preview of SQL statements from the answers to their queries.

use serde_json::Value;

use super::{
    AnsweredPreview, ObservedStatement, QueryAnswer, Row,
    row_values::{
        add_row_diff, assigned_row, check_values, definition_text, names_in, parse_count, plural_rows, rows_text,
    },
    statement_label,
};
use crate::previews::{
    compose::{self, ProposedCall},
    fault::Fault,
    labels,
};
use countersign_domain::{
    changes::{
        FieldFormat, LineOp, Preview, PreviewKind, PreviewNote, StateEffect,
        diff::{DiffBuilder, text_lines},
        digest::PartHasher,
    },
    policy::Condition,
    recipes::{NamedArguments, Recipe, SqlRecipe},
    text::plural,
};
use countersign_sql::{ConflictRule, Effect, ObjectDefinition, PreviewSource, RowPreview, Statement, Write, WriteKind};

/// Follows the number of inserted rows if the statement skips those whose key already exists.
const SKIPPED_ROWS_NOTE: &str = "; rows whose key already exists are skipped";

/// Builds the preview.
///
/// # Errors
/// Fails if no statement has a preview, with the reason of the first one.
pub(in crate::previews) fn compose_statements(
    recipe: &Recipe,
    sql: &SqlRecipe,
    may_confirm: bool,
    conditions: &[&Condition],
    call: ProposedCall<'_>,
    statements: &[ObservedStatement],
) -> Result<Preview, Fault> {
    let ProposedCall { arguments, arguments_preview, .. } = call;
    let mut hasher = compose::fingerprint_hasher(arguments_preview);
    let mut composer = Composer::new(sql.rows, statements.len());
    let mut first_fault = None;
    let mut has_preview = false;
    for (index, observed) in statements.iter().enumerate() {
        match composer.add_statement(index, observed, &mut hasher) {
            Ok(()) => has_preview = true,
            Err(fault) => {
                hasher.add_part(b"failed").add_part(fault.kind.as_bytes());
                composer.add_note(index, "No preview", &fault.reason);
                first_fault.get_or_insert(fault);
            }
        }
    }
    match first_fault {
        Some(fault) if !has_preview => return Err(fault),
        _ => {}
    }
    let named_arguments = NamedArguments::for_recipe(recipe, conditions, labels::is_summary_whole(recipe, arguments));
    compose::add_unnamed_arguments(&mut composer.builder, &named_arguments, call);
    compose::add_confirmation(&mut composer.builder, &mut hasher, recipe, may_confirm, arguments)?;
    let state_keys = statements.iter().flat_map(ObservedStatement::state_keys).collect();
    let kind = PreviewKind::BeforeAfter;
    Ok(Preview {
        note: PreviewNote { kind, confirms: may_confirm, state_keys, ..PreviewNote::default() },
        operation: arguments_preview.operation,
        target: arguments_preview.target.clone(),
        summary: arguments_preview.summary.clone(),
        diff: composer.builder.finish(),
        fingerprint: hasher.finish(),
        state_effect: StateEffect::Dependent,
    })
}

struct Composer {
    builder: DiffBuilder,
    /// Maximum rows of a statement that are shown.
    max_rows: usize,
    is_single: bool,
    /// An earlier statement may change what the queries of the next one find.
    has_earlier_write: bool,
}

impl Composer {
    fn new(max_rows: usize, statement_count: usize) -> Self {
        Self { builder: DiffBuilder::new(), max_rows, is_single: statement_count == 1, has_earlier_write: false }
    }

    /// Adds a statement and what it changes.
    fn add_statement(
        &mut self,
        index: usize,
        observed: &ObservedStatement,
        hasher: &mut PartHasher,
    ) -> Result<(), Fault> {
        let added = self.add_effect(index, observed, hasher);
        self.has_earlier_write |= match &observed.statement.effect {
            Effect::Read => false,
            Effect::Write(write) => write.kind != WriteKind::Begin,
            Effect::Unparsed { .. } => true,
        };
        added
    }

    fn add_effect(&mut self, index: usize, observed: &ObservedStatement, hasher: &mut PartHasher) -> Result<(), Fault> {
        let Statement { text, effect } = &observed.statement;
        let label = self.label(index, "Statement");
        let fields = self.builder.len();
        self.builder.add_lines(&format!("$statement{index}"), &label, equal_lines(text));
        self.builder.set_format_after(fields, FieldFormat::Sql);
        match (effect, &observed.preview) {
            (Effect::Read, _) => {
                self.add_note(index, "Effect", "only reads");
                Ok(())
            }
            (Effect::Write(write), Ok(preview)) => {
                let dependents = match preview {
                    PreviewSource::Rows(rows) => rows.dependents.as_ref(),
                    PreviewSource::GivenRows { .. } | PreviewSource::Definitions(_) => None,
                };
                for answer in observed.state_answers().into_iter().chain(dependents) {
                    hasher.add_part(b"rows");
                    answer.rows.iter().for_each(|row| hash_row(hasher, row));
                }
                self.add_preview(index, write, preview)
            }
            (Effect::Write(_), Err(fault)) => Err(fault.clone()),
            (Effect::Unparsed { reason }, _) => {
                Err(Fault::new("statement", format!("the statement cannot be parsed: {reason}")))
            }
        }
    }

    fn add_preview(&mut self, index: usize, write: &Write, preview: &AnsweredPreview) -> Result<(), Fault> {
        match preview {
            PreviewSource::Rows(rows) => {
                self.add_rows(index, write, rows)?;
                rows.dependents.as_ref().map_or(Ok(()), |dependents| self.add_dependents(index, dependents))
            }
            PreviewSource::GivenRows { columns, rows, equal_count } => {
                self.add_given_rows(index, write, columns, rows, equal_count.as_ref())
            }
            PreviewSource::Definitions(objects) => {
                self.add_definitions(index, objects);
                Ok(())
            }
        }
    }

    /// Adds the rows in the database: before and after an update, before a deletion, after an insertion.
    fn add_rows(&mut self, index: usize, write: &Write, preview: &RowPreview<QueryAnswer>) -> Result<(), Fault> {
        let RowPreview { rows: selected, count: counted, assignments, .. } = preview;
        let count = parse_count(&counted.rows)?;
        if selected.rows.len() > self.max_rows + 1 || (count == 0) != selected.rows.is_empty() {
            return Err(Fault::new("answer", "the rows and their number contradict each other"));
        }
        let shown_rows = &selected.rows[..selected.rows.len().min(self.max_rows)];
        shown_rows.iter().try_for_each(|row| check_values(row, assignments))?;
        let before = rows_text(shown_rows.iter().map(|row| assigned_row(row, &[])));
        let after = rows_text(shown_rows.iter().map(|row| assigned_row(row, assignments)));
        let (before, after) = match write.kind {
            WriteKind::Insert => (None, Some(after)),
            WriteKind::Update => (Some(before), Some(after)),
            _ => (Some(before), None),
        };
        let mut note = match count {
            0 => "no row".to_owned(),
            count => plural_rows(count),
        };
        if selected.rows.len() > shown_rows.len() {
            note.push_str(&format!("; the first {} are shown, the others are not compared", shown_rows.len()));
        }
        if write.conflict_rule == ConflictRule::Keep {
            note.push_str(SKIPPED_ROWS_NOTE);
        }
        if self.has_earlier_write {
            note.push_str("; as the data is now, which the statements above may change");
        }
        let first_field = self.builder.len();
        self.add_note(index, "Rows", &note);
        if count > 0 {
            let label = self.label(index, &write.targets.join(", "));
            let fields = self.builder.len();
            add_row_diff(&mut self.builder, &format!("$rows{index}"), &label, before.as_deref(), after.as_deref());
            if self.builder.len() == fields {
                self.add_note(index, "Values", "(nothing would change)");
            }
        }
        self.builder.restrict_after(first_field, selected.restricted || counted.restricted);
        Ok(())
    }

    /// Adds a note with the tables whose rows foreign keys may delete or change with the shown ones.
    fn add_dependents(&mut self, index: usize, answer: &QueryAnswer) -> Result<(), Fault> {
        let names = names_in(&answer.rows).ok_or_else(|| Fault::new("answer", "the answer has no names of tables"))?;
        if names.is_empty() {
            return Ok(());
        }
        let first_field = self.builder.len();
        let names = names.join(", ");
        let note =
            format!("rows of {names} that refer to these may be deleted or changed with them; they are not shown");
        self.add_note(index, "Foreign keys", &note);
        self.builder.restrict_after(first_field, answer.restricted);
        Ok(())
    }

    fn add_given_rows(
        &mut self,
        index: usize,
        write: &Write,
        columns: &[String],
        rows: &[Vec<String>],
        equal_count: Option<&QueryAnswer>,
    ) -> Result<(), Fault> {
        let given_row = |values: &Vec<String>| -> Row {
            let name = |n: usize| columns.get(n).cloned().unwrap_or_else(|| format!("value {}", n + 1));
            values.iter().enumerate().map(|(n, value)| (name(n), Value::from(value.as_str()))).collect()
        };
        let after = rows_text(rows.iter().take(self.max_rows).map(given_row));
        let mut note = plural(rows.len(), "row");
        if rows.len() > self.max_rows {
            note.push_str(&format!("; the first {} are shown", self.max_rows));
        }
        if write.conflict_rule == ConflictRule::Keep {
            note.push_str(SKIPPED_ROWS_NOTE);
        }
        if let Some(equal_count) = equal_count {
            let count = parse_count(&equal_count.rows)?;
            note.push_str(&match count {
                0 => "; none is there yet".to_owned(),
                count => format!("; there already: {} with such values", plural_rows(count)),
            });
        }
        let first_field = self.builder.len();
        self.add_note(index, "Rows", &note);
        self.builder.restrict_after(first_field, equal_count.is_some_and(|answer| answer.restricted));
        let label = self.label(index, &write.targets.join(", "));
        add_row_diff(&mut self.builder, &format!("$rows{index}"), &label, None, Some(&after));
        Ok(())
    }

    /// Adds the present definitions of the objects. The statement itself says what they will be.
    fn add_definitions(&mut self, index: usize, objects: &[ObjectDefinition<QueryAnswer>]) {
        for (n, ObjectDefinition { name, definition: answer }) in objects.iter().enumerate() {
            let label = self.label(index, &format!("Definition of {name} now"));
            let field = format!("$definition{index}.{n}");
            let fields = self.builder.len();
            if answer.rows.is_empty() {
                self.builder.add_lines(&field, &label, [(LineOp::Note, "(does not exist)".into())]);
            } else {
                self.builder.add_lines(&field, &label, equal_lines(&definition_text(&answer.rows)));
            }
            self.builder.restrict_after(fields, answer.restricted);
        }
    }

    fn add_note(&mut self, index: usize, title: &str, note: &str) {
        let label = self.label(index, title);
        let field = format!("${}{index}", title.to_ascii_lowercase().replace(' ', "_"));
        self.builder.add_lines(&field, &label, [(LineOp::Note, note.into())]);
    }

    /// Returns a label with the number of the statement if there are several.
    fn label(&self, index: usize, title: &str) -> String {
        statement_label(self.is_single, index, title)
    }
}

fn equal_lines(text: &str) -> impl Iterator<Item = (LineOp, std::borrow::Cow<'_, str>)> {
    text_lines(text).map(|line| (LineOp::Equal, line.into()))
}

/// Adds a row to the fingerprint.
fn hash_row(hasher: &mut PartHasher, row: &Row) {
    for (name, value) in row {
        hasher.add_part(name.as_bytes()).add_part(value.to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_sql::ColumnAssignment;
    use serde_json::json;

    fn row(value: Value) -> Row {
        let Value::Object(row) = value else { panic!("{value}") };
        row
    }

    #[test]
    fn rows_after_an_earlier_write_are_those_of_now() {
        let text = "BEGIN; SELECT 1; UPDATE t SET a = 1 WHERE id = 5; DELETE FROM t WHERE a = 1";
        let answer = |rows: Value| QueryAnswer {
            query: String::new(),
            rows: rows.as_array().unwrap().iter().cloned().map(row).collect(),
            restricted: false,
            state_key: String::new(),
        };
        let updated = json!([{"id": 5, "a": 0, "countersign_after_0": 1}]);
        let preview = |rows: Value, count: u64, dependents: Option<Value>| {
            let assignment = ColumnAssignment {
                column: "a".into(),
                expression: "1".into(),
                alias: Some("countersign_after_0".into()),
            };
            Ok(PreviewSource::Rows(RowPreview {
                rows: answer(rows),
                count: answer(json!([{ "n": count }])),
                dependents: dependents.map(answer),
                assignments: vec![assignment],
            }))
        };
        let fault = || Err(Fault::new("statement", "no preview"));
        let previews = [
            fault(),
            fault(),
            preview(updated, 1, None),
            preview(json!([]), 0, Some(json!([{"name": "u"}, {"name": "v"}]))),
        ];
        let statements = countersign_sql::classify(countersign_sql::Dialect::Sqlite, text, 10);
        let mut composer = Composer::new(10, statements.len());
        for (index, (statement, preview)) in statements.into_iter().zip(previews).enumerate() {
            let observed = ObservedStatement { statement, preview };
            let added = composer.add_statement(index, &observed, &mut PartHasher::new("test"));
            assert_eq!(added.is_ok(), index > 0, "only BEGIN has no preview");
        }
        let diff = serde_json::to_string(&composer.builder.finish()).unwrap();
        assert!(diff.contains("\"1 row\""), "{diff}");
        assert!(diff.contains("\"no row; as the data is now, which the statements above may change\""), "{diff}");
        assert!(diff.contains("rows of u, v that refer to these may be deleted or changed with them"), "{diff}");
    }

    #[test]
    fn skipped_rows_of_an_insertion_are_noted() {
        for (text, note) in [
            ("INSERT INTO t VALUES (1)", "\"1 row\""),
            ("INSERT OR IGNORE INTO t VALUES (1)", "\"1 row; rows whose key already exists are skipped\""),
        ] {
            let statement = countersign_sql::classify(countersign_sql::Dialect::Sqlite, text, 10).remove(0);
            let preview =
                Ok(PreviewSource::GivenRows { columns: Vec::new(), rows: vec![vec!["1".into()]], equal_count: None });
            let observed = ObservedStatement { statement, preview };
            let mut composer = Composer::new(10, 1);
            composer.add_statement(0, &observed, &mut PartHasher::new("test")).unwrap();
            let diff = serde_json::to_string(&composer.builder.finish()).unwrap();
            assert!(diff.contains(note), "{diff}");
        }
    }
}
