//! Reads the fields that the preview of a write shows, after the write has run.

use serde_json::{Value, value::RawValue};

use super::{
    arguments::{EntityRef, Write},
    db::{Db, DbResult, values},
    model::{Issue, Uuid},
    plan::issue_fields,
    rows::{find_issue, find_project},
    workflow::Workflow,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::PresentValues;

/// The fields of an issue that are compared. The key is left out, because the preview of a creation does not know it yet.
const ISSUE_FIELDS: [&str; 9] =
    ["type", "title", "status", "priority", "description", "assignee", "estimatedHours", "parent", "comments"];

/// Returns the present values of these fields. The result of the write names what it created.
///
/// # Errors
/// Fails if the result does not name what was created, and with the errors of the database.
pub(super) fn read_back(
    db: Db<'_>,
    workflow: &Workflow,
    write: &Write,
    result: &RawValue,
) -> Result<PresentValues, McpError> {
    let issue = |entity: &EntityRef| -> Result<PresentValues, McpError> {
        let issue = find_issue(db, workflow, entity)?;
        let mut values = issue_values(db, issue.as_ref())?;
        if let Some(issue) = issue {
            let project = find_project(db, &EntityRef::Id(issue.project_id))?;
            values.push(("project", project.map(|project| format!("{} {}", project.key, project.name))));
        }
        Ok(values)
    };
    match write {
        Write::CreateProject(_) => {
            let project = find_project(db, &EntityRef::Id(created_id(result, "/structuredContent/project/id")?))?;
            let (name, key, description) = project.map_or((None, None, None), |project| {
                (Some(project.name), Some(project.key.to_string()), Some(project.description))
            });
            let description = description.filter(|text| !text.is_empty());
            Ok(vec![("name", name), ("key", key), ("description", description)])
        }
        Write::CreateIssue(_) => issue(&EntityRef::Id(created_id(result, "/structuredContent/issue/id")?)),
        Write::UpdateIssue(update) => issue(&update.issue_id.0),
        Write::UpdateStatus(update) => issue(&update.issue_id.0),
        Write::Assign(assign) => issue(&assign.issue_id.0),
        Write::Delete(delete) => issue(&delete.issue_id.0),
        Write::Comment(_) => {
            let id = created_id(result, "/structuredContent/comment/id")?;
            let sql = "SELECT content FROM comments WHERE uuid = ?1";
            Ok(vec![("content", db.query_optional(sql, values![&id], |row| row.get(0))?)])
        }
    }
}

/// Returns the values of an issue. A missing issue has none.
fn issue_values(db: Db<'_>, issue: Option<&Issue>) -> DbResult<PresentValues> {
    let mut fields = issue.map(|issue| issue_fields(db, issue)).transpose()?.unwrap_or_default();
    let mut take = |name| {
        let found = fields.iter().position(|(field, ..)| *field == name)?;
        Some(fields.swap_remove(found).2)
    };
    Ok(ISSUE_FIELDS.map(|name| (name, take(name))).into())
}

fn created_id(result: &RawValue, pointer: &str) -> Result<Uuid, McpError> {
    let result: Value = result.get().parse().unwrap_or_default();
    let id = result.pointer(pointer).and_then(Value::as_str).and_then(Uuid::parse);
    id.ok_or_else(|| McpError::new(ErrorKind::Internal, "The result does not say what was created."))
}
