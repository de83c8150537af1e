//! Lists and reads the tracker's resources, whose contents are JSON.

use serde_json::{Map, Value, json};

use super::{
    arguments::{EntityRef, ListIssues, ProjectRef},
    db::{Db, DbResult, values},
    history,
    model::{Project, Status},
    reads::find_issues,
    rows::{
        PROJECT_QUERY, comments, find_issue, find_parent, find_project, listed_issue_query, people, read_listed_issue,
        read_project,
    },
    uri::{Resource, SCHEME},
    workflow::Workflow,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ResourceDef, ResourceTemplateDef, ResourceText, text::cut_uri};

const JSON: &str = "application/json";
/// The maximum numbers of entities in one resource.
const MAX_PROJECTS: i64 = 500;
const MAX_ISSUES: usize = 500;
const MAX_ISSUES_IN_COLUMN: i64 = 100;
const MAX_COMMENTS: usize = 500;
const MAX_HISTORY_ENTRIES: usize = 500;
const MAX_PEOPLE: usize = 1_000;
/// The maximum number of projects in `resources/list`.
const MAX_LISTED_PROJECTS: i64 = 100;

/// Lists the resources: all projects, all people, and those of each project.
pub(super) fn list(db: Db<'_>) -> Result<Vec<ResourceDef>, McpError> {
    let define = |path: &str, title: String, description: &str| ResourceDef {
        uri: format!("{SCHEME}{path}"),
        name: path.replace('/', "-").to_lowercase(),
        title,
        description: description.to_owned(),
        mime_type: JSON.to_owned(),
        raw: None,
    };
    let mut list = vec![
        define("projects", "Projects".into(), "All projects of the tracker, with their numbers of issues."),
        define("people", "People".into(), "The people and agents whom issues can be assigned to, with their ids."),
    ];
    let sql = "SELECT key, name FROM projects ORDER BY key LIMIT ?1";
    let projects: Vec<(String, String)> =
        db.query_all(sql, values![MAX_LISTED_PROJECTS], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (key, name) in projects {
        for (part, title, description) in [
            ("", format!("{key} {name}"), "The project, with its issues counted by status."),
            ("/issues", format!("Issues of {key}"), "The project's issues, newest first."),
            ("/board", format!("Board of {key}"), "The project's issues by status."),
        ] {
            list.push(define(&format!("projects/{key}{part}"), title, description));
        }
    }
    Ok(list)
}

/// Returns the templates of resources, whose parameter is a key or an id.
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

/// Returns the error for a URI that names no resource (2026-07-28/server/resources: `data.uri`).
pub(super) fn unknown_resource(uri: &str) -> McpError {
    McpError::new(ErrorKind::ResourceNotFound, "The tracker has no such resource.").with("uri", cut_uri(uri))
}

/// Reads one resource.
pub(super) fn read(db: Db<'_>, workflow: &Workflow, resource: &Resource, uri: &str) -> Result<ResourceText, McpError> {
    let content = match resource {
        Resource::Projects => Some(projects(db)?),
        Resource::People => Some(json!({ "people": people(db, MAX_PEOPLE)? })),
        Resource::Project(entity) => project(db, entity)?,
        Resource::ProjectIssues(entity) => project_issues(db, entity)?,
        Resource::ProjectBoard(entity) => board(db, workflow, entity)?,
        Resource::Issue(entity) => find_issue(db, workflow, entity)?.map(|issue| json!(issue)),
        Resource::IssueComments(entity) => issue_comments(db, entity)?,
        Resource::IssueHistory(entity) => issue_history(db, entity)?,
    };
    let text = content.ok_or_else(|| unknown_resource(uri))?.to_string();
    Ok(ResourceText { uri: uri.to_owned(), mime_type: JSON.to_owned(), text })
}

fn projects(db: Db<'_>) -> DbResult<Value> {
    let projects =
        db.query_all(&format!("{PROJECT_QUERY} ORDER BY key LIMIT ?1"), values![MAX_PROJECTS], read_project)?;
    let total: i64 = db.query_one("SELECT COUNT(*) FROM projects", &[], |row| row.get(0))?;
    Ok(json!({ "projects": projects, "total": total }))
}

/// Returns how many issues of a project have each status.
fn status_counts(db: Db<'_>, project: i64) -> DbResult<Vec<(Status, i64)>> {
    let sql = "SELECT status, COUNT(*) FROM issues WHERE project = ?1 GROUP BY status";
    let counts: Vec<(Status, i64)> = db.query_all(sql, values![project], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let count = |status: &Status| counts.iter().find(|(counted, _)| counted == status).map_or(0, |(_, count)| *count);
    Ok(Status::ALL.iter().map(|status| (*status, count(status))).collect())
}

fn project(db: Db<'_>, entity: &EntityRef) -> DbResult<Option<Value>> {
    let Some(project) = find_project(db, entity)? else { return Ok(None) };
    let counts: Map<String, Value> =
        status_counts(db, project.row)?.into_iter().map(|(status, count)| (status.to_string(), count.into())).collect();
    let mut value = json!(project);
    value["issuesByStatus"] = counts.into();
    Ok(Some(value))
}

/// Returns the fields by which other resources name a project.
fn project_reference(project: &Project) -> Value {
    json!({ "id": project.id, "key": project.key, "name": project.name })
}

fn project_issues(db: Db<'_>, entity: &EntityRef) -> Result<Option<Value>, McpError> {
    let Some(project) = find_project(db, entity)? else { return Ok(None) };
    let filter = ListIssues { project_id: Some(ProjectRef(entity.clone())), ..ListIssues::default() };
    let issues = find_issues(db, &filter, None, MAX_ISSUES)?;
    Ok(Some(json!({ "project": project_reference(&project), "issues": issues, "total": project.issue_count })))
}

fn board(db: Db<'_>, workflow: &Workflow, entity: &EntityRef) -> DbResult<Option<Value>> {
    let Some(project) = find_project(db, entity)? else { return Ok(None) };
    let sql = format!(
        "{} WHERE i.project = ?1 AND i.status = ?2 ORDER BY CASE i.priority WHEN 'Critical' THEN 0 WHEN 'High' THEN 1 \
         WHEN 'Medium' THEN 2 ELSE 3 END, i.id LIMIT ?3",
        listed_issue_query("", "issues i")
    );
    let mut columns = Vec::new();
    for (status, count) in status_counts(db, project.row)? {
        let issues = db.query_all(&sql, values![project.row, status, MAX_ISSUES_IN_COLUMN], read_listed_issue)?;
        let allowed_statuses = workflow.allowed_from(status);
        columns.push(json!({ "status": status, "count": count, "mayGoTo": allowed_statuses, "issues": issues }));
    }
    Ok(Some(json!({ "project": project_reference(&project), "columns": columns })))
}

fn issue_comments(db: Db<'_>, entity: &EntityRef) -> DbResult<Option<Value>> {
    let Some(issue) = find_parent(db, entity)? else { return Ok(None) };
    let sql = "SELECT COUNT(*) FROM comments WHERE issue = ?1";
    let total: i64 = db.query_one(sql, values![issue.row], |row| row.get(0))?;
    let comments = comments(db, issue.row, MAX_COMMENTS)?;
    Ok(Some(json!({ "issue": { "id": issue.id, "key": issue.key }, "comments": comments, "total": total })))
}

fn issue_history(db: Db<'_>, entity: &EntityRef) -> DbResult<Option<Value>> {
    let Some(history) = history::find_history(db, entity, MAX_HISTORY_ENTRIES)? else { return Ok(None) };
    Ok(Some(json!({
        "issue": { "id": history.id, "key": history.key },
        "entries": history.entries,
        "total": history.total,
    })))
}
