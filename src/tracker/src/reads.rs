//! `list_projects`, `list_issues` and `get_issue`.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::{GetIssue, Include, IssueRef, ListIssues, ListProjects, ProjectRef},
    checks::{not_found, require_issue},
    cursor,
    db::{Db, Parameters, values},
    history::{self, HistoryEntry},
    model::{Comment, Issue, ListedIssue, Project},
    render::{self, answer},
    rows::{
        Child, ListedPerson, PROJECT_QUERY, children, comments, find_parent, find_person, find_project,
        listed_issue_query, people, read_listed_issue, read_project,
    },
    search::SearchQuery,
    workflow::Workflow,
};
use countersign_protocol::McpError;
use countersign_provider::ToolResult;

/// The maximum numbers of comments, history entries and children that `get_issue` adds.
const MAX_INCLUDED: usize = 50;
/// The maximum number of people that `list_projects` adds.
const MAX_PEOPLE: usize = 200;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProjectsAnswer {
    projects: Vec<Project>,
    #[serde(skip_serializing_if = "Option::is_none")]
    people: Option<Vec<ListedPerson>>,
    /// # Next cursor
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// Lists projects by key.
pub(super) fn list_projects(db: Db<'_>, args: &ListProjects) -> Result<ToolResult, McpError> {
    let after = args.cursor.as_deref().map(|text| cursor::decode(text, &"projects")).transpose()?;
    // A project is never deleted and its key never changes, so its row determines its position.
    let sql = format!(
        "{PROJECT_QUERY} WHERE CAST(?1 AS BIGINT) IS NULL OR key > (SELECT key FROM projects WHERE id = ?1) \
         ORDER BY key LIMIT ?2"
    );
    let mut projects = db.query_all(&sql, values![after, args.limit.0 + 1], read_project)?;
    let next_cursor = truncate_page(&mut projects, args.limit.0, |last| cursor::encode(last.row, &"projects"));
    let mut text = String::new();
    for project in &projects {
        let _ = writeln!(text, "- {}", render::project(project));
    }
    if projects.is_empty() {
        text.push_str("There are no projects. create_project makes one.\n");
    }
    let people = args.include_people.then(|| people(db, MAX_PEOPLE)).transpose()?;
    if let Some(people) = &people {
        text.push_str("People:\n");
        for person in people {
            let _ = writeln!(text, "- {} ({}) | {}", render::single_line(&person.name), person.kind, person.id);
        }
    }
    write_next_cursor(&mut text, next_cursor.as_deref());
    answer(&text, &ProjectsAnswer { projects, people, next_cursor })
}

/// Truncates rows that were read with a limit of one more than `limit`. If there was one more, returns the cursor of
/// the next page.
fn truncate_page<T>(rows: &mut Vec<T>, limit: usize, cursor_after: impl Fn(&T) -> String) -> Option<String> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| has_more).map(cursor_after)
}

fn write_next_cursor(text: &mut String, next_cursor: Option<&str>) {
    if let Some(cursor) = next_cursor {
        let _ = writeln!(text, "There are more: call again with cursor {cursor}");
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssuesAnswer {
    issues: Vec<ListedIssue>,
    /// # Next cursor
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// Lists issues, the newest first.
pub(super) fn list_issues(db: Db<'_>, args: &ListIssues) -> Result<ToolResult, McpError> {
    let filters = args.filters();
    let after = args.cursor.as_deref().map(|text| cursor::decode(text, &filters)).transpose()?;
    let mut issues = find_issues(db, args, after, args.limit.0 + 1)?;
    let next_cursor = truncate_page(&mut issues, args.limit.0, |last| cursor::encode(last.row, &filters));
    let mut text = String::new();
    for issue in &issues {
        render::issue_line(&mut text, issue);
    }
    if issues.is_empty() {
        text.push_str("No issue matches.\n");
    }
    write_next_cursor(&mut text, next_cursor.as_deref());
    answer(&text, &IssuesAnswer { issues, next_cursor })
}

/// Returns up to `limit` issues that are older than the row `after`.
///
/// # Errors
/// `NOT_FOUND` if a filter names an entity that does not exist.
pub(super) fn find_issues(
    db: Db<'_>,
    args: &ListIssues,
    after: Option<i64>,
    limit: usize,
) -> Result<Vec<ListedIssue>, McpError> {
    match list_query(db, args, after, limit)? {
        Some((sql, parameters)) => Ok(db.query_all(&sql, &parameters.values(), read_listed_issue)?),
        None => Ok(Vec::new()),
    }
}

/// Returns the statement for a list of issues with its parameters, or `None` if no issue can match.
pub(super) fn list_query(
    db: Db<'_>,
    args: &ListIssues,
    after: Option<i64>,
    limit: usize,
) -> Result<Option<(String, Parameters)>, McpError> {
    let mut parameters = Parameters::default();
    let mut conditions = Vec::new();
    if let Some(ProjectRef(entity)) = &args.project_id {
        let project = find_project(db, entity)?.ok_or_else(|| not_found("project", entity.as_str(), "/projectId"))?;
        conditions.push(format!("i.project = {}", parameters.add(project.row)));
    }
    let choices: [(&str, Vec<&str>); 3] = [
        ("i.status", args.status.0.iter().map(|status| status.as_str()).collect()),
        ("i.type", args.kind.0.iter().map(|kind| kind.as_str()).collect()),
        ("i.priority", args.priority.0.iter().map(|priority| priority.as_str()).collect()),
    ];
    for (column, names) in choices.into_iter().filter(|(_, names)| !names.is_empty()) {
        conditions.push(format!("{column} IN {}", parameters.add_all(names)));
    }
    match &args.assignee_id.0 {
        None => {}
        Some(None) => conditions.push("i.assignee IS NULL".to_owned()),
        Some(Some(id)) => {
            let person = find_person(db, id)?.ok_or_else(|| not_found("person", id, "/assigneeId"))?;
            conditions.push(format!("i.assignee = {}", parameters.add(person.row)));
        }
    }
    match &args.parent_id.0 {
        None => {}
        Some(None) => conditions.push("i.parent IS NULL".to_owned()),
        Some(Some(IssueRef(entity))) => {
            let parent = find_parent(db, entity)?.ok_or_else(|| not_found("issue", entity.as_str(), "/parentId"))?;
            conditions.push(format!("i.parent = {}", parameters.add(parent.row)));
        }
    }
    if let Some(text) = args.search_text() {
        let Some(query) = SearchQuery::parse(db, text) else { return Ok(None) };
        conditions.push(query.condition(&parameters.add(&query.text(true))));
    }
    if let Some(after) = after {
        conditions.push(format!("i.id < {}", parameters.add(after)));
    }
    let filter = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let limit = parameters.add(limit);
    Ok(Some((format!("{}{filter} ORDER BY i.id DESC LIMIT {limit}", listed_issue_query("", "issues i")), parameters)))
}

#[derive(Serialize, JsonSchema)]
pub(super) struct IssueAnswer {
    issue: Issue,
    #[serde(skip_serializing_if = "Option::is_none")]
    comments: Option<Vec<Comment>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<Child>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<HistoryEntry>>,
}

pub(super) fn get_issue(db: Db<'_>, workflow: &Workflow, args: &GetIssue) -> Result<ToolResult, McpError> {
    let IssueRef(entity) = &args.issue_id;
    let issue = require_issue(db, workflow, entity)?;
    let includes = |part| args.include.contains(&part);
    let mut text = render::issue(&issue);
    let children = includes(Include::Children).then(|| children(db, issue.row, MAX_INCLUDED)).transpose()?;
    if let Some(children) = &children {
        text.push_str("\n\nChildren:");
        for Child { id, key, title, kind, status } in children {
            let _ = write!(text, "\n- {key} [{kind}, {status}] {} | {id}", render::single_line(title));
        }
    }
    let comments = includes(Include::Comments).then(|| comments(db, issue.row, MAX_INCLUDED)).transpose()?;
    if let Some(comments) = &comments {
        render::comments(&mut text, comments, issue.comment_count);
    }
    let mut history = None;
    if includes(Include::History) {
        let entries =
            history::find_history(db, entity, MAX_INCLUDED)?.map(|history| history.entries).unwrap_or_default();
        text.push_str("\n\nHistory (oldest first):");
        for entry in &entries {
            let actor = render::single_line(&entry.actor);
            let _ = write!(text, "\n- {} {actor}: {}", entry.at, entry.action);
        }
        history = Some(entries);
    }
    answer(&text, &IssueAnswer { issue, comments, children, history })
}
