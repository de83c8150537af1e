//! Tests that invariants hold after any sequence of writes.

use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use super::Fixture;
use crate::{
    db::{Db, DbResult, values},
    uri::ChangedResources,
    words::tsvector,
};
use countersign_protocol::ErrorKind;

/// A write to issues, which are given by their numbers and may not exist.
#[derive(Clone, Debug)]
enum Step {
    Create { kind: &'static str, parent: usize },
    Reparent { issue: usize, parent: Option<usize> },
    Retype { issue: usize, kind: &'static str },
    Move { issue: usize, status: &'static str },
    Retitle { issue: usize, title: String },
    Assign { issue: usize, assign: bool },
    Comment { issue: usize, text: String },
    Delete { issue: usize },
}

fn arbitrary_steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = || prop::sample::select(vec!["Epic", "Story", "Task", "Bug"]);
    let status = prop::sample::select(vec!["Backlog", "Todo", "InProgress", "Review", "Done", "Cancelled"]);
    let issue = || 1..12_usize;
    let word = || "[a-c]{1,3}( [a-c]{1,3})?";
    let step = prop_oneof![
        4 => (kind(), 0..12_usize).prop_map(|(kind, parent)| Step::Create { kind, parent }),
        2 => (issue(), prop::option::of(issue())).prop_map(|(issue, parent)| Step::Reparent { issue, parent }),
        1 => (issue(), kind()).prop_map(|(issue, kind)| Step::Retype { issue, kind }),
        3 => (issue(), status).prop_map(|(issue, status)| Step::Move { issue, status }),
        1 => (issue(), word()).prop_map(|(issue, title)| Step::Retitle { issue, title }),
        1 => (issue(), any::<bool>()).prop_map(|(issue, assign)| Step::Assign { issue, assign }),
        1 => (issue(), word()).prop_map(|(issue, text)| Step::Comment { issue, text }),
        2 => issue().prop_map(|issue| Step::Delete { issue }),
    ];
    prop::collection::vec(step, 1..40)
}

/// A tracker with one project, to which steps are applied.
struct TestRun {
    t: Fixture,
    project: String,
    /// The id of `agent-1` among the people.
    agent: String,
    /// The ids of all created issues in the order of their numbers.
    ids: Vec<String>,
}

impl TestRun {
    /// Returns the id of an issue, or `null` if it was never created.
    fn id(&self, number: usize) -> Value {
        self.ids.get(number.wrapping_sub(1)).map_or(Value::Null, |id| json!(id))
    }

    /// Returns the call of a step.
    fn call(&self, step: &Step) -> (&'static str, Value) {
        let key = |number: &usize| format!("CORE-{number}");
        match step {
            Step::Create { kind, parent } => {
                let mut arguments = json!({ "projectId": self.project, "title": "a b", "type": kind });
                if !self.id(*parent).is_null() {
                    arguments["parentId"] = self.id(*parent);
                }
                ("create_issue", arguments)
            }
            Step::Reparent { issue, parent } => {
                let parent = parent.map_or(Value::Null, |p| self.id(p));
                ("update_issue", json!({ "issueId": key(issue), "parentId": parent }))
            }
            Step::Retype { issue, kind } => ("update_issue", json!({ "issueId": key(issue), "type": kind })),
            Step::Move { issue, status } => ("update_status", json!({ "issueId": key(issue), "newStatus": status })),
            Step::Retitle { issue, title } => ("update_issue", json!({ "issueId": key(issue), "title": title })),
            Step::Assign { issue, assign } => {
                let assignee = if *assign { json!(self.agent) } else { Value::Null };
                ("assign_issue", json!({ "issueId": key(issue), "assigneeId": assignee }))
            }
            Step::Comment { issue, text } => ("add_comment", json!({ "issueId": key(issue), "content": text })),
            Step::Delete { issue } => ("delete_issue", json!({ "issueId": key(issue) })),
        }
    }
}

/// Fails if the statement finds a row.
async fn assert_no_rows(t: &Fixture, invariant: &str, sql: &str) -> Result<(), TestCaseError> {
    let count: Vec<i64> = t.rows(&format!("SELECT COUNT(*) FROM ({sql}) AS found"), |row| row.get(0)).await;
    prop_assert_eq!(count, [0], "{}", invariant);
    Ok(())
}

/// Checks that the full-text index matches the rows.
fn check_index(db: Db<'_>) -> DbResult<()> {
    if let Db::Sqlite(_) = db {
        for index in ["issue_fts", "comment_fts"] {
            // A rank of 1 compares the index with the table that it indexes.
            db.execute(&format!("INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)"), &[])?;
        }
        return Ok(());
    }
    for sql in ["SELECT id, key, title, description FROM issues", "SELECT id, '', '', content FROM comments"] {
        let table = sql.rsplit(' ').next().unwrap();
        let rows: Vec<(i64, String)> = db.query_all(sql, &[], |row| {
            Ok((row.get(0)?, tsvector(&[('A', row.get(1)?), ('B', row.get(2)?), ('D', row.get(3)?)])))
        })?;
        for (id, words) in rows {
            let sql =
                format!("SELECT 1 FROM {table} WHERE id = ?1 AND strip(words) = strip(CAST(?2 AS text)::tsvector)");
            db.query_one(&sql, values![id, &words], |_| Ok(()))?;
        }
    }
    Ok(())
}

async fn check_invariants(t: &Fixture) -> Result<(), TestCaseError> {
    assert_no_rows(
        t,
        "the counts of a project match its issues",
        "SELECT 1 FROM projects p WHERE issue_count <> (SELECT COUNT(*) FROM issues i WHERE i.project = p.id) \
         OR open_count <> (SELECT COUNT(*) FROM issues i WHERE i.project = p.id AND status NOT IN ('Done', 'Cancelled'))",
    )
    .await?;
    assert_no_rows(
        t,
        "parents fit",
        "SELECT 1 FROM issues i LEFT JOIN issues p ON p.id = i.parent WHERE (i.type = 'Task' AND p.type IS NULL) \
         OR (i.type = 'Task' AND p.type NOT IN ('Story', 'Epic')) OR (i.type = 'Story' AND p.type NOT IN ('Story', 'Epic')) \
         OR (i.type = 'Epic' AND p.type <> 'Epic') OR (p.id IS NOT NULL AND p.project <> i.project)",
    )
    .await?;
    assert_no_rows(
        t,
        "no issue is its own ancestor",
        "WITH RECURSIVE up (start, id, depth) AS (SELECT id, parent, 1 FROM issues \
         UNION ALL SELECT up.start, i.parent, depth + 1 FROM issues i JOIN up ON i.id = up.id WHERE depth < 100) \
         SELECT 1 FROM up WHERE id = start",
    )
    .await?;
    assert_no_rows(t, "comments belong to issues", "SELECT 1 FROM comments WHERE issue NOT IN (SELECT id FROM issues)")
        .await?;
    assert_no_rows(
        t,
        "every issue has a history that begins with its creation, and one entry for each version and comment",
        "SELECT 1 FROM issues i WHERE i.version + (SELECT COUNT(*) FROM comments c WHERE c.issue = i.id) \
         <> (SELECT COUNT(*) FROM history h WHERE h.issue_uuid = i.uuid) OR 'created' <> \
         (SELECT action FROM history h WHERE h.issue_uuid = i.uuid ORDER BY h.id LIMIT 1)",
    )
    .await?;
    let checked = t.tracker.storage.write(|db| Ok((check_index(db), ChangedResources::default()))).await.unwrap();
    prop_assert!(checked.is_ok(), "the full-text index does not match the rows: {:?}", checked);
    Ok(())
}

#[test]
fn invariants_hold_after_any_writes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&arbitrary_steps(), |steps| {
            runtime.block_on(async {
                let t = Fixture::empty();
                let project = t.create_project("CORE").await;
                let agent = t.agent_id().await;
                let mut run = TestRun { t, project, agent, ids: Vec::new() };
                for step in &steps {
                    let (tool, arguments) = run.call(step);
                    let previewed = run.t.preview(tool, arguments.clone()).await;
                    match run.t.call(tool, arguments.clone()).await {
                        Ok(answer) => {
                            prop_assert!(previewed.is_ok(), "{:?} ran although its preview was refused", step);
                            let present = run.t.read_back(tool, arguments, &answer).await;
                            for field in previewed.unwrap().diff.fields.into_iter().filter(|field| field.field != "key")
                            {
                                let found = present.iter().find(|(name, _)| *name == field.field);
                                prop_assert_eq!(found, Some(&(&*field.field, field.after)), "{:?}", step);
                            }
                            if let Step::Create { .. } = step {
                                run.ids.push(answer["issue"]["id"].as_str().unwrap().to_owned());
                            }
                        }
                        Err(error) => {
                            let known = matches!(
                                error.kind,
                                ErrorKind::NotFound | ErrorKind::ToolExecution | ErrorKind::ValidationFailed
                            );
                            prop_assert!(known, "{:?}: {}", step, error);
                            prop_assert_eq!(previewed.err(), Some(error), "{:?}", step);
                        }
                    }
                }
                check_invariants(&run.t).await
            })
        })
        .unwrap();
}
