//! `list_projects`, `list_issues` and `get_issue`.

use std::fmt::Write as _;

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    cursor,
    history::{self, HistoryEntry},
    model::{IssueType, Status},
    queries::{GetIssue, Include, IssueFilter, ListIssues, ListProjects},
    refs::{EntityRef, not_found},
    render::{self, answer},
    rows::{
        CommentView, IssueLine, IssueView, PROJECT_COLUMNS, PersonView, ProjectView, Sql, comments, find_parent,
        find_person, find_project, line_sql, people, select_issue,
    },
    search::match_expression,
    storage::failed,
    workflow::Workflow,
};
use countersign_protocol::McpError;
use countersign_provider::ToolResult;

/// Comments, history entries and children that `get_issue` adds.
const INCLUDED: i64 = 50;
/// People that `list_projects` adds.
const PEOPLE: i64 = 200;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProjectsAnswer {
    projects: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    people: Option<Vec<PersonView>>,
    next_cursor: Option<String>,
}

/// By key.
pub(super) fn list_projects(conn: &Connection, args: &ListProjects) -> Result<ToolResult, McpError> {
    let after = match &args.cursor {
        Some(text) => Some(cursor::decode(text, &"projects")?),
        None => None,
    };
    let mut text = String::new();
    let (projects, next) = project_page(conn, after, args.limit, &mut text).map_err(|e| failed(&e))?;
    if projects.is_empty() {
        text.push_str("There are no projects. create_project makes one.\n");
    }
    let people = if args.include_people {
        let list = people(conn, PEOPLE).map_err(|e| failed(&e))?;
        text.push_str("People:\n");
        for person in &list {
            let _ = writeln!(text, "- {} ({}) | {}", render::summary_line(&person.name), person.kind, person.id);
        }
        Some(list)
    } else {
        None
    };
    let next_cursor = next.map(|row| cursor::encode(row, &"projects"));
    more(&mut text, next_cursor.as_deref());
    answer(&text, &ProjectsAnswer { projects, people, next_cursor })
}

fn more(text: &mut String, next_cursor: Option<&str>) {
    if let Some(cursor) = next_cursor {
        let _ = writeln!(text, "There are more: call again with cursor {cursor}");
    }
}

fn project_page(
    conn: &Connection,
    after: Option<i64>,
    limit: usize,
    text: &mut String,
) -> Sql<(Vec<Box<RawValue>>, Option<i64>)> {
    // A project is never deleted and its key never changes, so its row fixes its place.
    let sql = format!(
        "{PROJECT_COLUMNS} WHERE ?1 IS NULL OR key > (SELECT key FROM projects WHERE id = ?1) ORDER BY key LIMIT ?2"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((after, i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)))?;
    let (mut projects, mut last) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        if projects.len() == limit {
            return Ok((projects, last));
        }
        let view = ProjectView::from_row(row)?;
        let _ = writeln!(text, "- {}", render::project(&view));
        projects.push(raw(&view)?);
        last = Some(row.get(8)?);
    }
    Ok((projects, None))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IssuesAnswer {
    issues: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

impl IssueFilter {
    /// Whether an index leads straight to the page, so that it may be read on the caller's thread.
    pub fn is_quick(&self) -> bool {
        let people_or_parents = usize::from(self.assignee.is_some()) + usize::from(self.parent.is_some());
        let scans = !self.kind.is_empty() || !self.priority.is_empty() || self.text.is_some();
        let by_status = self.status.len() <= 1 && (self.status.is_empty() || self.project.is_some());
        let by_project = self.project.is_none() || people_or_parents == 0;
        !scans
            && by_status
            && by_project
            && people_or_parents <= 1
            && (people_or_parents == 0 || self.status.is_empty())
    }
}

/// Newest first.
pub(super) fn list_issues(conn: &Connection, args: &ListIssues) -> Result<ToolResult, McpError> {
    let after = match &args.cursor {
        Some(text) => Some(cursor::decode(text, &args.filter)?),
        None => None,
    };
    let mut text = String::with_capacity(64 + args.limit * 160);
    let (mut issues, mut last, mut has_more) = (Vec::new(), None, false);
    // One more than asked for tells whether there is a next page.
    each_issue(conn, &args.filter, after, args.limit + 1, |row| {
        if issues.len() == args.limit {
            has_more = true;
            return Ok(());
        }
        let issue = IssueLine::<&str>::from_row(row)?;
        render::issue_line(&mut text, &issue);
        last = Some(issue.rowid);
        issues.push(raw(&issue)?);
        Ok(())
    })?;
    let next_cursor = last.filter(|_| has_more).map(|row| cursor::encode(row, &args.filter));
    if issues.is_empty() {
        text.push_str("No issue matches.\n");
    }
    more(&mut text, next_cursor.as_deref());
    answer(&text, &IssuesAnswer { issues, next_cursor })
}

/// The JSON of one row.
pub(super) fn raw(value: &impl Serialize) -> Sql<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

/// Up to `limit` issues older than the row `after`, as rows of `line_sql!`. What a filter names must exist.
pub(super) fn each_issue(
    conn: &Connection,
    filter: &IssueFilter,
    after: Option<i64>,
    limit: usize,
    mut each: impl FnMut(&Row<'_>) -> Sql<()>,
) -> Result<(), McpError> {
    let Some((sql, values)) = issue_query(conn, filter, after, limit)? else { return Ok(()) };
    let read = || -> Sql<()> {
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            each(row)?;
        }
        Ok(())
    };
    read().map_err(|e| failed(&e))
}

/// The statement and its parameters; `None` if nothing can fit.
pub(super) fn issue_query(
    conn: &Connection,
    filter: &IssueFilter,
    after: Option<i64>,
    limit: usize,
) -> Result<Option<(String, Vec<Value>)>, McpError> {
    let mut sql = String::from(line_sql!());
    let mut values: Vec<Value> = Vec::new();
    let mut joint = " WHERE ";
    let mut and = |sql: &mut String, condition: &str| {
        sql.push_str(joint);
        sql.push_str(condition);
        joint = " AND ";
    };
    if let Some(project) = &filter.project {
        let found = find_project(conn, project).map_err(|e| failed(&e))?;
        let found = found.ok_or_else(|| not_found("project", project.text()).with("pointer", "/projectId"))?;
        and(&mut sql, "i.project = ?");
        values.push(found.rowid.into());
    }
    let lists: [(&str, Vec<&str>); 3] = [
        ("i.status", filter.status.iter().map(|s| s.as_str()).collect()),
        ("i.type", filter.kind.iter().map(|s| s.as_str()).collect()),
        ("i.priority", filter.priority.iter().map(|s| s.as_str()).collect()),
    ];
    for (column, names) in lists {
        if names.is_empty() {
            continue;
        }
        and(&mut sql, &format!("{column} IN ({})", vec!["?"; names.len()].join(", ")));
        values.extend(names.into_iter().map(|name| Value::from(name.to_owned())));
    }
    match &filter.assignee {
        None => {}
        Some(None) => and(&mut sql, "i.assignee IS NULL"),
        Some(Some(id)) => {
            let found = find_person(conn, id).map_err(|e| failed(&e))?;
            let found = found.ok_or_else(|| not_found("person", id).with("pointer", "/assigneeId"))?;
            and(&mut sql, "i.assignee = ?");
            values.push(found.rowid.into());
        }
    }
    match &filter.parent {
        None => {}
        Some(None) => and(&mut sql, "i.parent IS NULL"),
        Some(Some(by)) => {
            let found = find_parent(conn, by).map_err(|e| failed(&e))?;
            let found = found.ok_or_else(|| not_found("issue", by.text()).with("pointer", "/parentId"))?;
            and(&mut sql, "i.parent = ?");
            values.push(found.rowid.into());
        }
    }
    if let Some(text) = &filter.text {
        let Some(expression) = match_expression(text, true) else { return Ok(None) };
        and(&mut sql, "i.id IN (SELECT rowid FROM issue_fts WHERE issue_fts MATCH ?)");
        values.push(expression.into());
    }
    if let Some(after) = after {
        and(&mut sql, "i.id < ?");
        values.push(after.into());
    }
    sql.push_str(" ORDER BY i.id DESC LIMIT ?");
    values.push(i64::try_from(limit).unwrap_or(i64::MAX).into());
    Ok(Some((sql, values)))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IssueAnswer<'a> {
    issue: IssueView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comments: Option<Vec<CommentView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<ChildView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<HistoryEntry>>,
}

#[derive(Serialize)]
struct ChildView {
    id: String,
    key: String,
    title: String,
    #[serde(rename = "type")]
    kind: IssueType,
    status: Status,
}

pub(super) fn get_issue(conn: &Connection, workflow: &Workflow, args: &GetIssue) -> Result<ToolResult, McpError> {
    let missing = || not_found("issue", args.issue.text());
    let mut statement = select_issue(conn, &args.issue).map_err(|e| failed(&e))?;
    let mut rows = statement.query([args.issue.text()]).map_err(|e| failed(&e))?;
    let row = rows.next().map_err(|e| failed(&e))?.ok_or_else(missing)?;
    let read = || -> Sql<(String, IssueAnswer<'_>)> {
        let issue = IssueView::from_row(row, workflow)?;
        let rowid: i64 = row.get(22)?;
        let mut text = render::issue(&issue);
        let mut found = IssueAnswer { issue, comments: None, children: None, history: None };
        if args.include.contains(&Include::Children) {
            found.children = Some(child_views(conn, rowid, &mut text)?);
        }
        if args.include.contains(&Include::Comments) {
            let list = comments(conn, rowid, INCLUDED)?;
            render::comments(&mut text, &list, found.issue.comment_count);
            found.comments = Some(list);
        }
        if args.include.contains(&Include::History) {
            let by = EntityRef::Id(found.issue.id.to_owned());
            let entries = history::of_issue(conn, &by, INCLUDED)?.map(|h| h.entries).unwrap_or_default();
            let _ = write!(text, "\n\nHistory (oldest first):");
            for entry in &entries {
                let actor = render::summary_line(&entry.actor);
                let _ = write!(text, "\n- {} {actor}: {}", entry.at, entry.action);
            }
            found.history = Some(entries);
        }
        Ok((text, found))
    };
    let (text, found) = read().map_err(|e| failed(&e))?;
    answer(&text, &found)
}

fn child_views(conn: &Connection, issue: i64, text: &mut String) -> Sql<Vec<ChildView>> {
    let list: Vec<ChildView> = conn
        .prepare_cached("SELECT uuid, key, title, type, status FROM issues WHERE parent = ?1 ORDER BY id LIMIT ?2")?
        .query_map([issue, INCLUDED], |row| {
            Ok(ChildView {
                id: row.get(0)?,
                key: row.get(1)?,
                title: row.get(2)?,
                kind: row.get(3)?,
                status: row.get(4)?,
            })
        })?
        .collect::<Sql<_>>()?;
    text.push_str("\n\nChildren:");
    for child in &list {
        let _ = write!(
            text,
            "\n- {} [{}, {}] {} | {}",
            child.key,
            child.kind,
            child.status,
            render::summary_line(&child.title),
            child.id
        );
    }
    Ok(list)
}
