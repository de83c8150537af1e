//! What a write must find in the live state: that what it names exists, and that parents fit.

use serde_json::{Value, json};

use super::{
    db::{Db, failed, values},
    model::{Issue, IssueType, Parent, Person, Project},
    project_keys,
    refs::{EntityRef, invalid, not_found},
    rows::{find_issue, find_parent, find_person, find_project, people},
};
use countersign_protocol::{ErrorKind, McpError};

/// Longest chain of parents.
const DEPTH_MAX: i64 = 32;
/// Entities named in an error.
pub(super) const NAMED: i64 = 20;

pub(super) fn parent_label(parent: &Parent) -> String {
    format!("{} {}", parent.key, parent.title)
}

/// The write cannot be done as things stand.
pub(super) fn refused(message: impl Into<String>) -> McpError {
    McpError::new(ErrorKind::ToolExecution, message.into())
}

pub(super) fn live_issue(db: Db<'_>, by: &EntityRef) -> Result<Issue, McpError> {
    find_issue(db, by).map_err(|e| failed(&e))?.ok_or_else(|| not_found("issue", by.text()))
}

pub(super) fn live_project(db: Db<'_>, id: &str) -> Result<Project, McpError> {
    let found = find_project(db, &EntityRef::Id(id.to_owned())).map_err(|e| failed(&e))?;
    if let Some(project) = found {
        return Ok(project);
    }
    let known = project_keys::known(db, NAMED).map_err(|e| failed(&e))?;
    Err(not_found("project", id).with("pointer", "/projectId").with("known", Value::Array(known)))
}

pub(super) fn live_person(db: Db<'_>, id: Option<&str>) -> Result<Option<Person>, McpError> {
    let Some(id) = id else { return Ok(None) };
    if let Some(person) = find_person(db, id).map_err(|e| failed(&e))? {
        return Ok(Some(person));
    }
    let known = people(db, NAMED).map_err(|e| failed(&e))?;
    let known = known.into_iter().map(|p| json!({ "id": p.id, "name": p.name })).collect();
    Err(not_found("person", id).with("pointer", "/assigneeId").with("known", Value::Array(known)))
}

pub(super) fn live_parent(db: Db<'_>, id: Option<&str>) -> Result<Option<Parent>, McpError> {
    let Some(id) = id else { return Ok(None) };
    let found = find_parent(db, &EntityRef::Id(id.to_owned())).map_err(|e| failed(&e))?;
    found.map(Some).ok_or_else(|| not_found("issue", id).with("pointer", "/parentId"))
}

/// Whether an issue of that type in that project may have that parent.
pub(super) fn check_parent(kind: IssueType, project: &Project, parent: Option<&Parent>) -> Result<(), McpError> {
    let names = |kinds: &[IssueType]| kinds.iter().map(|k| k.as_str()).collect::<Vec<_>>();
    let Some(parent) = parent else {
        if kind.needs_parent() {
            return Err(invalid("/parentId", "parent", format!("A {kind} needs a parent that is a Story or an Epic."))
                .with("allowed", names(kind.parents())));
        }
        return Ok(());
    };
    if !kind.parents().contains(&parent.kind) {
        let allowed = names(kind.parents());
        let message = format!(
            "The parent of {} must be {}; {} is {}.",
            article(kind),
            allowed.join(" or "),
            parent.key,
            article(parent.kind)
        );
        return Err(invalid("/parentId", "parent", message).with("allowed", allowed));
    }
    if parent.project != project.rowid {
        let message = format!("{} belongs to another project than {}.", parent.key, project.key);
        return Err(invalid("/parentId", "parent", message));
    }
    Ok(())
}

pub(super) fn article(kind: IssueType) -> String {
    if kind == IssueType::Epic { format!("an {kind}") } else { format!("a {kind}") }
}

/// Refuses a chain of parents that is too long or comes back to `issue`.
pub(super) fn check_chain(db: Db<'_>, parent: &Parent, issue: Option<&Issue>) -> Result<(), McpError> {
    let sql = "WITH RECURSIVE up (id, parent, depth) AS ( \
                 SELECT id, parent, 1 FROM issues WHERE id = ?1 \
                 UNION ALL SELECT i.id, i.parent, up.depth + 1 FROM issues i JOIN up ON i.id = up.parent \
                 WHERE up.depth < ?3) \
               SELECT MAX(depth), COALESCE(MAX(CASE WHEN id = ?2 THEN 1 ELSE 0 END), 0) FROM up";
    let given = values![parent.rowid, issue.map_or(-1, |i| i.rowid), DEPTH_MAX];
    let (depth, meets): (i64, bool) =
        db.one(sql, given, |row| Ok((row.get(0)?, row.get(1)?))).map_err(|e| failed(&e))?;
    if meets {
        let issue = issue.map_or("", |i| i.key.as_str());
        let message =
            format!("{} stands below {issue}, so it cannot become its parent: that would be a cycle.", parent.key);
        return Err(invalid("/parentId", "cycle", message));
    }
    if depth >= DEPTH_MAX {
        return Err(invalid("/parentId", "depth", format!("Issues nest at most {DEPTH_MAX} deep.")));
    }
    Ok(())
}
