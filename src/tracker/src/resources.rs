//! The tracker's resources: what can be listed, and what each URI reads as (JSON).

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    db::{Db, Sql, failed, values},
    history,
    model::Status,
    queries::IssueFilter,
    reads::each_issue,
    refs::EntityRef,
    rows::{
        IssueLine, IssueView, PROJECT_COLUMNS, ProjectView, comments, find_issue, find_project, line_sql, people,
        with_issue,
    },
    uri::{Resource, SCHEME},
    workflow::Workflow,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ResourceDef, ResourceTemplateDef, ResourceText};

const JSON: &str = "application/json";
/// Entities in one resource; what is left out is said, and the tools page through the rest.
const PROJECTS: i64 = 500;
const LISTED_PROJECTS: i64 = 100;
const ISSUES: usize = 500;
const COLUMN: i64 = 100;
const COMMENTS: i64 = 500;
const ENTRIES: i64 = 500;
const PEOPLE: i64 = 1_000;

/// The concrete resources: projects, people, and the parts of each project.
pub(super) fn list(db: Db<'_>) -> Result<Vec<ResourceDef>, McpError> {
    let read = || -> Sql<Vec<(String, String)>> {
        db.all("SELECT key, name FROM projects ORDER BY key LIMIT ?1", values![LISTED_PROJECTS], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    };
    let def = |path: &str, title: String, description: &str| ResourceDef {
        uri: format!("{SCHEME}{path}"),
        name: path.replace('/', "-").to_lowercase(),
        title,
        description: description.to_owned(),
        mime_type: JSON.to_owned(),
        raw: None,
    };
    let mut list = vec![
        def("projects", "Projects".into(), "All projects of the tracker, with their numbers of issues."),
        def("people", "People".into(), "The people and agents whom issues can be assigned to, with their ids."),
    ];
    for (key, name) in read().map_err(|e| failed(&e))? {
        list.push(def(
            &format!("projects/{key}"),
            format!("{key} {name}"),
            "The project, with its issues counted by status.",
        ));
        list.push(def(
            &format!("projects/{key}/issues"),
            format!("Issues of {key}"),
            "The project's issues, newest first.",
        ));
        list.push(def(&format!("projects/{key}/board"), format!("Board of {key}"), "The project's issues by status."));
    }
    Ok(list)
}

/// The parameterized resources; each takes a key or an id.
pub(super) fn templates() -> Vec<ResourceTemplateDef> {
    [
        (
            "projects/{key}",
            "project",
            "Project",
            "A project by its key (CORE) or id, with its issues counted by status.",
        ),
        ("projects/{key}/issues", "project-issues", "Issues of a project", "The issues of a project, newest first."),
        ("projects/{key}/board", "project-board", "Board of a project", "The issues of a project by status."),
        ("issues/{key}", "issue", "Issue", "An issue by its key (CORE-12) or id."),
        ("issues/{key}/comments", "issue-comments", "Comments of an issue", "The comments of an issue, oldest first."),
        (
            "issues/{key}/history",
            "issue-history",
            "History of an issue",
            "Who changed what, when, and through which change; also of a deleted issue.",
        ),
    ]
    .into_iter()
    .map(|(path, name, title, description)| ResourceTemplateDef {
        uri_template: format!("{SCHEME}{path}"),
        name: name.to_owned(),
        title: title.to_owned(),
        description: description.to_owned(),
        mime_type: JSON.to_owned(),
        raw: None,
    })
    .collect()
}

/// No resource of that URI (2026-07-28/server/resources: `data.uri`).
pub(super) fn unknown(uri: &str) -> McpError {
    let shown: String = uri.chars().take(512).collect();
    McpError::new(ErrorKind::ResourceNotFound, "The tracker has no such resource.").with("uri", shown)
}

/// Reads one resource from one consistent state.
pub(super) fn read(db: Db<'_>, workflow: &Workflow, resource: &Resource, uri: &str) -> Result<ResourceText, McpError> {
    let found = match resource {
        Resource::Projects => projects(db).map(Some),
        Resource::People => people(db, PEOPLE).map(|list| Some(json!({ "people": list }))),
        Resource::Project(by) => project(db, by),
        Resource::ProjectIssues(by) => return project_issues(db, by, uri),
        Resource::Board(by) => board(db, workflow, by),
        Resource::Issue(by) => issue(db, workflow, by),
        Resource::Comments(by) => issue_comments(db, by),
        Resource::History(by) => issue_history(db, by),
    };
    json_text(uri, found.map_err(|e| failed(&e))?)
}

fn json_text(uri: &str, value: Option<impl Serialize>) -> Result<ResourceText, McpError> {
    let value = value.ok_or_else(|| unknown(uri))?;
    let text = serde_json::to_string(&value).map_err(|error| {
        tracing::error!(%error, "tracker: a resource could not be written");
        McpError::new(ErrorKind::Internal, "The resource could not be written.")
    })?;
    Ok(ResourceText { uri: uri.to_owned(), mime_type: JSON.to_owned(), text })
}

fn to_value(value: &impl Serialize) -> Sql<Value> {
    Ok(serde_json::to_value(value)?)
}

fn projects(db: Db<'_>) -> Sql<Value> {
    let sql = format!("{PROJECT_COLUMNS} ORDER BY key LIMIT ?1");
    let list = db.all(&sql, values![PROJECTS], |row| to_value(&ProjectView::from_row(row)?))?;
    let total: i64 = db.one("SELECT COUNT(*) FROM projects", &[], |row| row.get(0))?;
    Ok(json!({ "projects": list, "total": total }))
}

fn status_counts(db: Db<'_>, project: i64) -> Sql<Vec<(Status, i64)>> {
    let sql = "SELECT status, COUNT(*) FROM issues WHERE project = ?1 GROUP BY status";
    let counted: Vec<(Status, i64)> = db.all(sql, values![project], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let count = |status: &Status| counted.iter().find(|(s, _)| s == status).map_or(0, |(_, n)| *n);
    Ok(Status::ALL.iter().map(|status| (*status, count(status))).collect())
}

fn project(db: Db<'_>, by: &EntityRef) -> Sql<Option<Value>> {
    let Some(found) = find_project(db, by)? else { return Ok(None) };
    let sql = format!("{PROJECT_COLUMNS} WHERE id = ?1");
    let mut value = db.one(&sql, values![found.rowid], |row| to_value(&ProjectView::from_row(row)?))?;
    let counts: serde_json::Map<String, Value> =
        status_counts(db, found.rowid)?.into_iter().map(|(status, n)| (status.as_str().to_owned(), n.into())).collect();
    value["issuesByStatus"] = Value::Object(counts);
    Ok(Some(value))
}

fn project_issues(db: Db<'_>, by: &EntityRef, uri: &str) -> Result<ResourceText, McpError> {
    let found = find_project(db, by).map_err(|e| failed(&e))?.ok_or_else(|| unknown(uri))?;
    let filter = IssueFilter { project: Some(by.clone()), ..IssueFilter::default() };
    let mut issues = Vec::new();
    each_issue(db, &filter, None, ISSUES, |row| {
        issues.push(to_value(&IssueLine::<&str>::from_row(row)?)?);
        Ok(())
    })?;
    let total: i64 = db
        .one("SELECT issue_count FROM projects WHERE id = ?1", values![found.rowid], |row| row.get(0))
        .map_err(|e| failed(&e))?;
    json_text(
        uri,
        Some(json!({
            "project": { "id": found.id, "key": found.key, "name": found.name },
            "issues": issues,
            "total": total,
        })),
    )
}

fn board(db: Db<'_>, workflow: &Workflow, by: &EntityRef) -> Sql<Option<Value>> {
    let Some(found) = find_project(db, by)? else { return Ok(None) };
    let sql = concat!(
        line_sql!(),
        "WHERE i.project = ?1 AND i.status = ?2 ORDER BY CASE i.priority WHEN 'Critical' THEN 0 WHEN 'High' THEN 1 \
         WHEN 'Medium' THEN 2 ELSE 3 END, i.id LIMIT ?3"
    );
    let mut columns = Vec::new();
    for (status, count) in status_counts(db, found.rowid)? {
        let given = values![found.rowid, status, COLUMN];
        let issues = db.all(sql, given, |row| to_value(&IssueLine::<&str>::from_row(row)?))?;
        columns.push(json!({
            "status": status,
            "count": count,
            "mayGoTo": workflow.allowed(status),
            "issues": issues,
        }));
    }
    Ok(Some(json!({
        "project": { "id": found.id, "key": found.key, "name": found.name },
        "columns": columns,
    })))
}

fn issue(db: Db<'_>, workflow: &Workflow, by: &EntityRef) -> Sql<Option<Value>> {
    with_issue(db, by, |row| to_value(&IssueView::from_row(row, workflow)?))
}

fn issue_comments(db: Db<'_>, by: &EntityRef) -> Sql<Option<Value>> {
    let Some(found) = find_issue(db, by)? else { return Ok(None) };
    let total: i64 =
        db.one("SELECT COUNT(*) FROM comments WHERE issue = ?1", values![found.rowid], |row| row.get(0))?;
    let list = comments(db, found.rowid, COMMENTS)?;
    Ok(Some(json!({
        "issue": { "id": found.id, "key": found.key },
        "comments": list,
        "total": total,
    })))
}

fn issue_history(db: Db<'_>, by: &EntityRef) -> Sql<Option<Value>> {
    let Some(history) = history::of_issue(db, by, ENTRIES)? else { return Ok(None) };
    Ok(Some(json!({
        "issue": { "id": history.id, "key": history.key },
        "entries": history.entries,
        "total": history.total,
    })))
}
