//! Checks a write against the live state: the entities that it names must exist, and parents must fit.

use serde_json::{Value, json};

use super::{
    arguments::EntityRef,
    db::{Db, DbResult, values},
    model::{Issue, IssueType, Parent, Person, Project, ProjectKey, Uuid},
    rows::{find_issue, find_parent, find_person, find_project, people},
    workflow::Workflow,
};
use countersign_domain::text::truncate;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::text::invalid_argument;

/// The maximum number of levels from the topmost ancestor down to an issue that gets a parent. The descendants of that
/// issue are not counted.
const MAX_DEPTH: i64 = 32;
/// The maximum number of entities that one error lists.
pub(super) const MAX_LISTED_IN_ERROR: usize = 20;

/// Returns the error for an entity that does not exist; `pointer` leads to the argument that names it.
pub(super) fn not_found(entity: &str, id_or_key: &str, pointer: &str) -> McpError {
    let short_id = truncate(id_or_key, 100);
    let error = McpError::new(ErrorKind::NotFound, format!("There is no {entity} `{short_id}`."))
        .with("entityType", entity)
        .with("id", short_id);
    if pointer.is_empty() { error } else { error.with("pointer", pointer) }
}

/// Returns the error for a write that is not possible in the live state.
pub(super) fn refused(message: impl Into<String>) -> McpError {
    McpError::new(ErrorKind::ToolExecution, message.into())
}

pub(super) fn require_issue(db: Db<'_>, workflow: &Workflow, entity: &EntityRef) -> Result<Issue, McpError> {
    find_issue(db, workflow, entity)?.ok_or_else(|| not_found("issue", entity.as_str(), ""))
}

pub(super) fn require_project(db: Db<'_>, id: &Uuid) -> Result<Project, McpError> {
    match find_project(db, &EntityRef::Id(id.clone()))? {
        Some(project) => Ok(project),
        None => Err(not_found("project", id, "/projectId").with("known", known_projects(db)?)),
    }
}

/// Returns the first projects, for an error that lists them.
fn known_projects(db: Db<'_>) -> DbResult<Vec<Value>> {
    let sql = "SELECT uuid, key, name FROM projects ORDER BY key LIMIT ?1";
    db.query_all(sql, values![MAX_LISTED_IN_ERROR], |row| {
        Ok(json!({ "id": row.get::<&str>(0)?, "key": row.get::<&str>(1)?, "name": row.get::<&str>(2)? }))
    })
}

pub(super) fn require_person(db: Db<'_>, id: Option<&Uuid>) -> Result<Option<Person>, McpError> {
    let Some(id) = id else { return Ok(None) };
    if let Some(person) = find_person(db, id)? {
        return Ok(Some(person));
    }
    let candidates: Vec<_> = people(db, MAX_LISTED_IN_ERROR)?
        .into_iter()
        .map(|person| json!({ "id": person.id, "name": person.name }))
        .collect();
    Err(not_found("person", id, "/assigneeId").with("known", candidates))
}

pub(super) fn require_parent(db: Db<'_>, id: Option<&Uuid>) -> Result<Option<Parent>, McpError> {
    let Some(id) = id else { return Ok(None) };
    let parent = find_parent(db, &EntityRef::Id(id.clone()))?;
    parent.map(Some).ok_or_else(|| not_found("issue", id, "/parentId"))
}

/// Checks that an issue of this type may have this parent. `project` is the row of the issue's project.
pub(super) fn check_parent(
    kind: IssueType,
    project: i64,
    project_key: &ProjectKey,
    parent: Option<&Parent>,
) -> Result<(), McpError> {
    let allowed_types: Vec<&str> = kind.allowed_parent_types().iter().map(|kind| kind.as_str()).collect();
    let invalid_parent = |message: String| invalid_argument("/parentId", "parent", message);
    let Some(parent) = parent else {
        // A Task belongs to a Story or an Epic; issues of other types need no parent.
        if kind == IssueType::Task {
            let message = format!("A {kind} needs a parent that is a Story or an Epic.");
            return Err(invalid_parent(message).with("allowed", allowed_types));
        }
        return Ok(());
    };
    if !kind.allowed_parent_types().contains(&parent.kind) {
        let (child_type, parent_type) = (with_article(kind), with_article(parent.kind));
        let message = format!(
            "The parent of {child_type} must be {}; {} is {parent_type}.",
            allowed_types.join(" or "),
            parent.key
        );
        return Err(invalid_parent(message).with("allowed", allowed_types));
    }
    if parent.project != project {
        return Err(invalid_parent(format!("{} belongs to another project than {project_key}.", parent.key)));
    }
    Ok(())
}

pub(super) fn with_article(kind: IssueType) -> String {
    if kind == IssueType::Epic { format!("an {kind}") } else { format!("a {kind}") }
}

/// Checks that an issue below `parent` is not too deep, and that `issue` is not an ancestor of its new parent.
pub(super) fn check_ancestors(db: Db<'_>, parent: &Parent, issue: Option<&Issue>) -> Result<(), McpError> {
    let sql = "WITH RECURSIVE ancestors (id, parent, depth) AS ( \
                 SELECT id, parent, 1 FROM issues WHERE id = ?1 \
                 UNION ALL SELECT i.id, i.parent, a.depth + 1 FROM issues i JOIN ancestors a ON i.id = a.parent \
                 WHERE a.depth < ?3) \
               SELECT MAX(depth), COALESCE(MAX(CASE WHEN id = ?2 THEN 1 ELSE 0 END), 0) FROM ancestors";
    let parameters = values![parent.row, issue.map_or(-1, |issue| issue.row), MAX_DEPTH];
    let (depth, is_cycle): (i64, bool) = db.query_one(sql, parameters, |row| Ok((row.get(0)?, row.get(1)?)))?;
    if is_cycle {
        let issue = issue.map_or("", |issue| issue.key.as_str());
        let message = format!("{} is a descendant of {issue}, so it cannot become its parent.", parent.key);
        return Err(invalid_argument("/parentId", "cycle", message));
    }
    if depth >= MAX_DEPTH {
        return Err(invalid_argument("/parentId", "depth", format!("Issues nest at most {MAX_DEPTH} levels deep.")));
    }
    Ok(())
}
