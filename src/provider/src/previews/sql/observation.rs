//! Makes the queries for the previews of SQL statements.

use super::{AnsweredPreview, ObservedStatement};
use crate::previews::{fault::Fault, recipe_runner::RecipeRunner};
use countersign_domain::recipes::SqlRecipe;
use countersign_sql::{Effect, ObjectDefinition, PreviewSource, RowPreview, Statement, Write};

/// The kind of the fault of a statement whose table may replace rows.
const REPLACEMENT_FAULT: &str = "replacement";

/// Makes the queries of the statements. The failure of one statement is no failure of the others.
///
/// # Errors
/// Transient faults.
pub(in crate::previews) async fn observe_statements(
    runner: &RecipeRunner<'_>,
    sql: &SqlRecipe,
    statements: Vec<Statement>,
    arguments: &cel::Value,
) -> Result<Vec<ObservedStatement>, Fault> {
    let mut observed = Vec::with_capacity(statements.len());
    for statement in statements {
        let preview = match &statement.effect {
            Effect::Write(write) => match &write.preview {
                Ok(source) => {
                    let answered = answer_queries(runner, sql, write, source, arguments).await;
                    show_given_rows(source, answered)
                }
                Err(reason) => Err(Fault::new("statement", reason)),
            },
            Effect::Read | Effect::Unparsed { .. } => Err(Fault::new("statement", "the statement is no write")),
        };
        match preview {
            Err(fault) if fault.transient_error.is_some() => return Err(fault),
            preview => observed.push(ObservedStatement { statement, preview }),
        }
    }
    Ok(observed)
}

/// Makes the queries of a preview, unless the table of the statement may replace rows.
async fn answer_queries(
    runner: &RecipeRunner<'_>,
    sql: &SqlRecipe,
    write: &Write,
    source: &PreviewSource,
    arguments: &cel::Value,
) -> Result<AnsweredPreview, Fault> {
    let answer = |query| runner.query(sql, query, arguments);
    if let Some(query) = &write.replacement_query
        && !answer(query).await?.rows.is_empty()
    {
        let reason = "its table may replace rows with the same key, which are not shown (ON CONFLICT REPLACE)";
        return Err(Fault::new(REPLACEMENT_FAULT, reason));
    }
    Ok(match source {
        PreviewSource::Rows(RowPreview { rows, count, dependents, assignments }) => PreviewSource::Rows(RowPreview {
            rows: answer(rows).await?,
            count: answer(count).await?,
            dependents: match dependents {
                Some(query) => Some(answer(query).await?),
                None => None,
            },
            assignments: assignments.clone(),
        }),
        PreviewSource::GivenRows { columns, rows, equal_count } => PreviewSource::GivenRows {
            columns: columns.clone(),
            rows: rows.clone(),
            equal_count: match equal_count {
                Some(query) => Some(answer(query).await?),
                None => None,
            },
        },
        PreviewSource::Definitions(objects) => {
            let mut answered = Vec::with_capacity(objects.len());
            for ObjectDefinition { name, definition } in objects {
                answered.push(ObjectDefinition { name: name.clone(), definition: answer(definition).await? });
            }
            PreviewSource::Definitions(answered)
        }
    })
}

/// Shows the rows that a statement gives even if no query could be made: it only counts equal rows.
fn show_given_rows(source: &PreviewSource, answered: Result<AnsweredPreview, Fault>) -> Result<AnsweredPreview, Fault> {
    match (answered, source) {
        (Err(fault), PreviewSource::GivenRows { columns, rows, .. })
            if fault.kind != REPLACEMENT_FAULT && fault.transient_error.is_none() =>
        {
            Ok(PreviewSource::GivenRows { columns: columns.clone(), rows: rows.clone(), equal_count: None })
        }
        (answered, _) => answered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insertions_that_replace_rows_are_not_shown() {
        let source =
            PreviewSource::GivenRows { columns: Vec::new(), rows: vec![vec!["1".to_owned()]], equal_count: None };
        for (kind, is_shown) in [("answer", true), (REPLACEMENT_FAULT, false)] {
            assert_eq!(show_given_rows(&source, Err(Fault::new(kind, "no rows"))).is_ok(), is_shown, "{kind}");
        }
    }
}
