//! `list_projects`, `list_issues` and `get_issue`.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    cursor,
    db::{Db, Parameters, Row, Sql, failed, values},
    history::{self, HistoryEntry},
    model::{IssueType, Status},
    queries::{GetIssue, Include, IssueFilter, ListIssues, ListProjects},
    refs::{EntityRef, not_found},
    render::{self, answer},
    rows::{
        CommentView, IssueLine, IssueView, PROJECT_COLUMNS, PersonView, ProjectView, comments, find_parent,
        find_person, find_project, line_sql, people, with_issue,
    },
    search::Expression,
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
pub(super) fn list_projects(db: Db<'_>, args: &ListProjects) -> Result<ToolResult, McpError> {
    let after = match &args.cursor {
        Some(text) => Some(cursor::decode(text, &"projects")?),
        None => None,
    };
    let mut text = String::new();
    let (projects, next) = project_page(db, after, args.limit, &mut text).map_err(|e| failed(&e))?;
    if projects.is_empty() {
        text.push_str("There are no projects. create_project makes one.\n");
    }
    let people = if args.include_people {
        let list = people(db, PEOPLE).map_err(|e| failed(&e))?;
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
    db: Db<'_>,
    after: Option<i64>,
    limit: usize,
    text: &mut String,
) -> Sql<(Vec<Box<RawValue>>, Option<i64>)> {
    // A project is never deleted and its key never changes, so its row fixes its place.
    let sql = format!(
        "{PROJECT_COLUMNS} WHERE CAST(?1 AS BIGINT) IS NULL OR key > (SELECT key FROM projects WHERE id = ?1) ORDER BY key LIMIT ?2"
    );
    let (mut projects, mut last, mut more) = (Vec::new(), None, false);
    db.each(&sql, values![after, i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)], |row| {
        if projects.len() == limit {
            more = true;
            return Ok(());
        }
        let view = ProjectView::from_row(row)?;
        let _ = writeln!(text, "- {}", render::project(&view));
        projects.push(raw(&view)?);
        last = Some(row.get(8)?);
        Ok(())
    })?;
    Ok((projects, last.filter(|_| more)))
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
pub(super) fn list_issues(db: Db<'_>, args: &ListIssues) -> Result<ToolResult, McpError> {
    let after = match &args.cursor {
        Some(text) => Some(cursor::decode(text, &args.filter)?),
        None => None,
    };
    let mut text = String::with_capacity(64 + args.limit * 160);
    let (mut issues, mut last, mut has_more) = (Vec::new(), None, false);
    // One more than asked for tells whether there is a next page.
    each_issue(db, &args.filter, after, args.limit + 1, |row| {
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
    Ok(serde_json::value::to_raw_value(value)?)
}

/// Up to `limit` issues older than the row `after`, as rows of `line_sql!`. What a filter names must exist.
pub(super) fn each_issue(
    db: Db<'_>,
    filter: &IssueFilter,
    after: Option<i64>,
    limit: usize,
    each: impl FnMut(&Row) -> Sql<()>,
) -> Result<(), McpError> {
    let Some((sql, parameters)) = issue_query(db, filter, after, limit)? else { return Ok(()) };
    db.each(&sql, &parameters.values(), each).map_err(|e| failed(&e))
}

/// The statement and its parameters; `None` if nothing can fit.
pub(super) fn issue_query(
    db: Db<'_>,
    filter: &IssueFilter,
    after: Option<i64>,
    limit: usize,
) -> Result<Option<(String, Parameters)>, McpError> {
    let mut sql = String::from(line_sql!());
    let mut parameters = Parameters::default();
    let mut joint = " WHERE ";
    let mut and = |sql: &mut String, condition: &str| {
        sql.push_str(joint);
        sql.push_str(condition);
        joint = " AND ";
    };
    if let Some(project) = &filter.project {
        let found = find_project(db, project).map_err(|e| failed(&e))?;
        let found = found.ok_or_else(|| not_found("project", project.text()).with("pointer", "/projectId"))?;
        and(&mut sql, &format!("i.project = {}", parameters.add(found.rowid)));
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
        and(&mut sql, &format!("{column} IN {}", parameters.add_all(names)));
    }
    match &filter.assignee {
        None => {}
        Some(None) => and(&mut sql, "i.assignee IS NULL"),
        Some(Some(id)) => {
            let found = find_person(db, id).map_err(|e| failed(&e))?;
            let found = found.ok_or_else(|| not_found("person", id).with("pointer", "/assigneeId"))?;
            and(&mut sql, &format!("i.assignee = {}", parameters.add(found.rowid)));
        }
    }
    match &filter.parent {
        None => {}
        Some(None) => and(&mut sql, "i.parent IS NULL"),
        Some(Some(by)) => {
            let found = find_parent(db, by).map_err(|e| failed(&e))?;
            let found = found.ok_or_else(|| not_found("issue", by.text()).with("pointer", "/parentId"))?;
            and(&mut sql, &format!("i.parent = {}", parameters.add(found.rowid)));
        }
    }
    if let Some(text) = &filter.text {
        let Some(wanted) = Expression::of(db, text) else { return Ok(None) };
        and(&mut sql, &wanted.condition(&parameters.add(&wanted.text(true))));
    }
    if let Some(after) = after {
        and(&mut sql, &format!("i.id < {}", parameters.add(after)));
    }
    sql.push_str(&format!(" ORDER BY i.id DESC LIMIT {}", parameters.add(limit)));
    Ok(Some((sql, parameters)))
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

pub(super) fn get_issue(db: Db<'_>, workflow: &Workflow, args: &GetIssue) -> Result<ToolResult, McpError> {
    let missing = || not_found("issue", args.issue.text());
    let read = with_issue(db, &args.issue, |row| {
        let issue = IssueView::from_row(row, workflow)?;
        let rowid: i64 = row.get(22)?;
        let mut text = render::issue(&issue);
        let mut found = IssueAnswer { issue, comments: None, children: None, history: None };
        if args.include.contains(&Include::Children) {
            found.children = Some(child_views(db, rowid, &mut text)?);
        }
        if args.include.contains(&Include::Comments) {
            let list = comments(db, rowid, INCLUDED)?;
            render::comments(&mut text, &list, found.issue.comment_count);
            found.comments = Some(list);
        }
        if args.include.contains(&Include::History) {
            let by = EntityRef::Id(found.issue.id.to_owned());
            let entries = history::of_issue(db, &by, INCLUDED)?.map(|h| h.entries).unwrap_or_default();
            let _ = write!(text, "\n\nHistory (oldest first):");
            for entry in &entries {
                let actor = render::summary_line(&entry.actor);
                let _ = write!(text, "\n- {} {actor}: {}", entry.at, entry.action);
            }
            found.history = Some(entries);
        }
        Ok(answer(&text, &found))
    });
    read.map_err(|e| failed(&e))?.ok_or_else(missing)?
}

fn child_views(db: Db<'_>, issue: i64, text: &mut String) -> Sql<Vec<ChildView>> {
    let sql = "SELECT uuid, key, title, type, status FROM issues WHERE parent = ?1 ORDER BY id LIMIT ?2";
    let list = db.all(sql, values![issue, INCLUDED], |row| {
        Ok(ChildView { id: row.get(0)?, key: row.get(1)?, title: row.get(2)?, kind: row.get(3)?, status: row.get(4)? })
    })?;
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
