//! Previews of tools that run SQL: the rows that a statement changes, before and after, and definitions of objects.

mod answers;
mod composition;
mod observation;
mod row_values;
mod verification;

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{expressions, fault::Fault, recipe_runner::run_blocking};
use countersign_domain::{
    changes::{Operation, Preview},
    recipes::{Recipe, SqlRecipe},
};
use countersign_sql::{ConflictRule, PreviewSource, RowPreview, Statement, WriteKind};

pub(super) use answers::parse_rows;
pub(super) use composition::compose_statements;
pub(super) use observation::observe_statements;
pub(super) use verification::{is_verifiable, verify_statements};

/// Maximum statements of one call that are shown.
const MAX_STATEMENTS: usize = 20;
/// Maximum tables that the target of a change names.
const MAX_TARGETS: usize = 5;

/// A row with the names of its columns.
pub(super) type Row = Map<String, Value>;

/// A query with its answer.
#[derive(Clone, Debug)]
pub(super) struct QueryAnswer {
    pub query: String,
    pub rows: Vec<Row>,
    /// `true` if policy does not let the proposer make the query without review.
    pub restricted: bool,
    /// See [`countersign_domain::changes::PreviewNote::state_keys`].
    pub state_key: String,
}

/// A preview whose queries are answered.
pub(super) type AnsweredPreview = PreviewSource<QueryAnswer>;

/// A statement with the answers to the queries of its preview.
#[derive(Clone, Debug)]
pub(super) struct ObservedStatement {
    pub statement: Statement,
    /// The preview of a write, or the reason why there is none.
    pub preview: Result<AnsweredPreview, Fault>,
}

impl ObservedStatement {
    /// Returns the answers by which another statement about the same rows is recognized. The query for foreign keys is none of
    /// them, because it is the same for all deletions from a table.
    fn state_answers(&self) -> Vec<&QueryAnswer> {
        match &self.preview {
            Ok(PreviewSource::Rows(RowPreview { rows, count, .. })) => vec![rows, count],
            Ok(PreviewSource::GivenRows { equal_count, .. }) => equal_count.iter().collect(),
            Ok(PreviewSource::Definitions(objects)) => objects.iter().map(|object| &object.definition).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn state_keys(&self) -> impl Iterator<Item = String> {
        self.state_answers().into_iter().map(|answer| answer.state_key.clone())
    }
}

/// Classifies the statements of a call.
pub(super) async fn parse_statements(
    sql: &SqlRecipe,
    title: &str,
    arguments: &cel::Value,
) -> Result<Vec<Statement>, Fault> {
    let Some(dialect) = sql.dialect_of(title) else {
        return Err(Fault::new("dialect", "the title of the tool names no known dialect of SQL"));
    };
    let Value::String(text) = expressions::evaluate("statement", &sql.statement, &[("arguments", arguments)])? else {
        return Err(Fault::new("statement", "`statement` does not give a text"));
    };
    let max_rows = sql.rows;
    let statements = run_blocking(move || Ok(countersign_sql::classify(dialect, &text, max_rows))).await?;
    match statements.len() {
        0 => Err(Fault::new("statement", "there is no statement")),
        1..=MAX_STATEMENTS => Ok(statements),
        n => Err(Fault::new("statement", format!("there are {n} statements; at most {MAX_STATEMENTS} can be shown"))),
    }
}

/// Returns a label with the number of the statement if there are several.
fn statement_label(is_single: bool, index: usize, title: &str) -> String {
    if is_single { title.to_owned() } else { format!("{}. {title}", index + 1) }
}

/// Sets the target and the operation of the change by its statements, unless the recipe names them. They depend on the
/// arguments only, which the proposer knows. The key of the target stays that of the server, because a trigger or a foreign
/// key may change other tables than the statement names.
pub(super) fn apply_statement_labels(recipe: &Recipe, statements: &[Statement], preview: &mut Preview) {
    if recipe.operation.is_none() {
        let mut operations = statements.iter().map(operation_of);
        let first = operations.next().unwrap_or(Operation::Call);
        preview.operation = if operations.all(|operation| operation == first) { first } else { Operation::Call };
    }
    let writes = statements.iter().filter_map(|statement| statement.effect.as_write());
    let mut targets: Vec<&str> = writes.flat_map(|write| &write.targets).map(String::as_str).collect();
    let mut seen = HashSet::new();
    targets.retain(|target| seen.insert(*target));
    if recipe.target.is_none() && (1..=MAX_TARGETS).contains(&targets.len()) {
        preview.target.label = targets.join(", ");
        preview.target.entity_type = "table".to_owned();
    }
}

/// Returns what a statement does to its target. A statement that begins with a comment counts as a call if it defines something.
fn operation_of(statement: &Statement) -> Operation {
    let Some(write) = statement.effect.as_write() else { return Operation::Call };
    let first_word = || statement.text.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
    match write.kind {
        // It may also change existing rows.
        WriteKind::Insert if matches!(write.conflict_rule, ConflictRule::Replace | ConflictRule::Update) => {
            Operation::Call
        }
        WriteKind::Insert => Operation::Create,
        WriteKind::Update => Operation::Update,
        WriteKind::Delete => Operation::Delete,
        WriteKind::Ddl => match first_word().as_str() {
            "create" => Operation::Create,
            "alter" => Operation::Update,
            "drop" => Operation::Delete,
            _ => Operation::Call,
        },
        WriteKind::Begin | WriteKind::Other => Operation::Call,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::{Diff, PreviewNote, StateEffect, Target};
    use countersign_sql::Dialect;

    fn label_statements(text: &str) -> Preview {
        let mut preview = Preview {
            note: PreviewNote::default(),
            operation: Operation::Call,
            target: Target { entity_type: String::new(), id: None, label: String::new(), lock_key: String::new() },
            summary: String::new(),
            diff: Diff::default(),
            fingerprint: String::new(),
            state_effect: StateEffect::Dependent,
        };
        let statements = countersign_sql::classify(Dialect::Sqlite, text, 10);
        apply_statement_labels(&Recipe::default(), &statements, &mut preview);
        preview
    }

    #[test]
    fn target_names_each_table_once() {
        let preview = label_statements("UPDATE a SET x = 1; UPDATE b SET x = 1; UPDATE a SET x = 2");
        assert_eq!((preview.target.label.as_str(), preview.operation), ("a, b", Operation::Update));
    }

    #[test]
    fn state_keys_leave_out_foreign_keys() {
        let statement = countersign_sql::classify(Dialect::Sqlite, "DELETE FROM a WHERE x = 1", 10).remove(0);
        let answer = |key: &str| QueryAnswer {
            query: String::new(),
            rows: Vec::new(),
            restricted: false,
            state_key: key.to_owned(),
        };
        let preview = Ok(PreviewSource::Rows(RowPreview {
            rows: answer("rows"),
            count: answer("count"),
            dependents: Some(answer("dependents")),
            assignments: Vec::new(),
        }));
        let keys: Vec<String> = ObservedStatement { statement, preview }.state_keys().collect();
        assert_eq!(keys, ["rows", "count"]);
    }

    #[test]
    fn operation_is_what_the_statement_does() {
        for (text, operation) in [
            ("CREATE TABLE a (x INTEGER)", Operation::Create),
            ("ALTER TABLE a ADD COLUMN y TEXT; UPDATE a SET y = ''", Operation::Update),
            ("DROP TABLE a", Operation::Delete),
            ("INSERT OR IGNORE INTO a VALUES (1)", Operation::Create),
            ("INSERT OR REPLACE INTO a VALUES (1)", Operation::Call),
            ("-- all of it\nDROP TABLE a; INSERT INTO b VALUES (1)", Operation::Call),
        ] {
            assert_eq!(label_statements(text).operation, operation, "{text}");
        }
    }
}
