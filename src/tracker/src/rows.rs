//! Entities as they are read from the database and shown: borrowed views, and lookups by id or key.

use serde::Serialize;

use super::{
    db::{Db, Row, Sql, values},
    model::{Hours, Issue, IssueType, Parent, Person, Priority, Project, Status},
    refs::EntityRef,
    workflow::Workflow,
};

#[derive(Clone, Copy, Serialize)]
pub(super) struct PersonRef<'a> {
    pub id: &'a str,
    pub name: &'a str,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct ParentRef<'a> {
    pub id: &'a str,
    pub key: &'a str,
    pub title: &'a str,
    #[serde(rename = "type")]
    pub kind: &'a str,
}

/// An issue in full.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssueView<'a> {
    pub id: &'a str,
    pub key: &'a str,
    pub project_id: &'a str,
    pub project_key: &'a str,
    pub title: &'a str,
    #[serde(rename = "type")]
    pub kind: &'a str,
    pub status: &'a str,
    pub priority: &'a str,
    pub description: &'a str,
    pub assignee: Option<PersonRef<'a>>,
    pub parent: Option<ParentRef<'a>>,
    pub estimated_hours: Option<Hours>,
    pub comment_count: i64,
    pub child_count: i64,
    pub allowed_transitions: &'a [Status],
    pub version: i64,
    pub created_at: &'a str,
    pub created_by: &'a str,
    pub updated_at: &'a str,
}

macro_rules! issue_sql {
    ($end:literal) => {
        concat!(
            "SELECT i.uuid, i.key, p.uuid, p.key, i.title, i.type, i.status, i.priority, i.description, \
             a.uuid, a.name, pa.uuid, pa.key, pa.title, pa.type, i.estimated_hours, \
             (SELECT COUNT(*) FROM comments c WHERE c.issue = i.id), (SELECT COUNT(*) FROM issues ch WHERE ch.parent = i.id), \
             i.version, i.created_at, i.created_by, i.updated_at, i.id, p.id, p.name, a.id, pa.id, pa.project \
             FROM issues i JOIN projects p ON p.id = i.project LEFT JOIN people a ON a.id = i.assignee \
             LEFT JOIN issues pa ON pa.id = i.parent ",
            $end
        )
    };
}

impl<'a> IssueView<'a> {
    /// From a row of [`select_issue`].
    pub fn from_row(row: &'a Row, workflow: &'a Workflow) -> Sql<Self> {
        let assignee = match (row.get(9)?, row.get(10)?) {
            (Some(id), Some(name)) => Some(PersonRef { id, name }),
            _ => None,
        };
        let parent = match row.get(11)? {
            Some(id) => Some(ParentRef { id, key: row.get(12)?, title: row.get(13)?, kind: row.get(14)? }),
            None => None,
        };
        Ok(Self {
            id: row.get(0)?,
            key: row.get(1)?,
            project_id: row.get(2)?,
            project_key: row.get(3)?,
            title: row.get(4)?,
            kind: row.get(5)?,
            status: row.get(6)?,
            priority: row.get(7)?,
            description: row.get(8)?,
            assignee,
            parent,
            estimated_hours: row.get::<Option<f64>>(15)?.map(Hours),
            comment_count: row.get(16)?,
            child_count: row.get(17)?,
            allowed_transitions: workflow.allowed(row.get(6)?),
            version: row.get(18)?,
            created_at: row.get(19)?,
            created_by: row.get(20)?,
            updated_at: row.get(21)?,
        })
    }
}

const ISSUE_BY_ID: &str = issue_sql!("WHERE i.uuid = ?1");
pub(super) const ISSUE_BY_KEY: &str = issue_sql!("WHERE i.key = ?1");

/// Reads one issue.
pub(super) fn with_issue<T>(db: Db<'_>, by: &EntityRef, of: impl FnOnce(&Row) -> Sql<T>) -> Sql<Option<T>> {
    let sql = if let EntityRef::Id(_) = by { ISSUE_BY_ID } else { ISSUE_BY_KEY };
    db.find(sql, values![by.text()], of)
}

/// The issue as a write needs it.
pub(super) fn find_issue(db: Db<'_>, by: &EntityRef) -> Sql<Option<Issue>> {
    with_issue(db, by, |row| {
        let assignee = match row.get(25)? {
            Some(rowid) => Some(Person { rowid, id: row.get(9)?, name: row.get(10)? }),
            None => None,
        };
        let parent = match row.get(26)? {
            Some(rowid) => Some(Parent {
                rowid,
                id: row.get(11)?,
                key: row.get(12)?,
                title: row.get(13)?,
                kind: row.get(14)?,
                project: row.get(27)?,
            }),
            None => None,
        };
        Ok(Issue {
            rowid: row.get(22)?,
            id: row.get(0)?,
            key: row.get(1)?,
            project: Project { rowid: row.get(23)?, id: row.get(2)?, key: row.get(3)?, name: row.get(24)? },
            title: row.get(4)?,
            kind: row.get(5)?,
            status: row.get(6)?,
            priority: row.get(7)?,
            description: row.get(8)?,
            assignee,
            parent,
            hours: row.get(15)?,
            version: row.get(18)?,
        })
    })
}

/// An issue as another one would refer to it.
pub(super) fn find_parent(db: Db<'_>, by: &EntityRef) -> Sql<Option<Parent>> {
    let sql = match by {
        EntityRef::Id(_) => "SELECT id, uuid, key, title, type, project FROM issues WHERE uuid = ?1",
        EntityRef::Key(_) => "SELECT id, uuid, key, title, type, project FROM issues WHERE key = ?1",
    };
    db.find(sql, values![by.text()], |row| {
        Ok(Parent {
            rowid: row.get(0)?,
            id: row.get(1)?,
            key: row.get(2)?,
            title: row.get(3)?,
            kind: row.get(4)?,
            project: row.get(5)?,
        })
    })
}

pub(super) fn find_project(db: Db<'_>, by: &EntityRef) -> Sql<Option<Project>> {
    let sql = match by {
        EntityRef::Id(_) => "SELECT id, uuid, key, name FROM projects WHERE uuid = ?1",
        EntityRef::Key(_) => "SELECT id, uuid, key, name FROM projects WHERE key = ?1",
    };
    db.find(sql, values![by.text()], |row| {
        Ok(Project { rowid: row.get(0)?, id: row.get(1)?, key: row.get(2)?, name: row.get(3)? })
    })
}

pub(super) fn find_person(db: Db<'_>, id: &str) -> Sql<Option<Person>> {
    db.find("SELECT id, uuid, name FROM people WHERE uuid = ?1", values![id], |row| {
        Ok(Person { rowid: row.get(0)?, id: row.get(1)?, name: row.get(2)? })
    })
}

/// Keys of the children of an issue, with their types; at most `limit`.
pub(super) fn children(db: Db<'_>, issue: i64, limit: i64) -> Sql<Vec<(String, IssueType)>> {
    let sql = "SELECT key, type FROM issues WHERE parent = ?1 ORDER BY id LIMIT ?2";
    db.all(sql, values![issue, limit], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// A project as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProjectView<'a> {
    pub id: &'a str,
    pub key: &'a str,
    pub name: &'a str,
    pub description: &'a str,
    pub issue_count: i64,
    pub open_issue_count: i64,
    pub created_at: &'a str,
    pub created_by: &'a str,
}

pub(super) const PROJECT_COLUMNS: &str =
    "SELECT uuid, key, name, description, issue_count, open_count, created_at, created_by, id FROM projects ";

impl<'a> ProjectView<'a> {
    /// From a row of [`PROJECT_COLUMNS`].
    pub fn from_row(row: &'a Row) -> Sql<Self> {
        Ok(Self {
            id: row.get(0)?,
            key: row.get(1)?,
            name: row.get(2)?,
            description: row.get(3)?,
            issue_count: row.get(4)?,
            open_issue_count: row.get(5)?,
            created_at: row.get(6)?,
            created_by: row.get(7)?,
        })
    }
}

/// An issue on one line of a listing; its texts borrowed from the row, or owned.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssueLine<T = String> {
    #[serde(skip)]
    pub rowid: i64,
    pub id: T,
    pub key: T,
    pub title: T,
    #[serde(rename = "type")]
    pub kind: IssueType,
    pub status: Status,
    pub priority: Priority,
    pub assignee: Option<LinePerson<T>>,
    pub parent_key: Option<T>,
    pub estimated_hours: Option<Hours>,
    pub created_at: T,
    pub updated_at: T,
}

#[derive(Clone, Serialize)]
pub(super) struct LinePerson<T> {
    pub id: T,
    pub name: T,
}

/// The statement that reads lines: what comes before it, more columns, and where `issues i` comes from.
macro_rules! line_sql {
    ($with:literal, $columns:literal, $source:literal) => {
        concat!(
            $with,
            "SELECT i.id, i.uuid, i.key, i.title, i.type, i.status, i.priority, a.uuid, a.name, pa.key, \
             i.estimated_hours, i.created_at, i.updated_at",
            $columns,
            " FROM ",
            $source,
            " LEFT JOIN people a ON a.id = i.assignee LEFT JOIN issues pa ON pa.id = i.parent "
        )
    };
    () => {
        line_sql!("", "", "issues i")
    };
}
pub(super) use line_sql;

impl<'r, T: From<&'r str>> IssueLine<T> {
    /// From a row of `line_sql!`.
    pub fn from_row(row: &'r Row) -> Sql<Self> {
        let assignee = match row.get::<Option<&str>>(7)? {
            Some(id) => Some(LinePerson { id: id.into(), name: row.get::<&str>(8)?.into() }),
            None => None,
        };
        Ok(Self {
            rowid: row.get(0)?,
            id: row.get::<&str>(1)?.into(),
            key: row.get::<&str>(2)?.into(),
            title: row.get::<&str>(3)?.into(),
            kind: row.get(4)?,
            status: row.get(5)?,
            priority: row.get(6)?,
            assignee,
            parent_key: row.get::<Option<&str>>(9)?.map(T::from),
            estimated_hours: row.get::<Option<f64>>(10)?.map(Hours),
            created_at: row.get::<&str>(11)?.into(),
            updated_at: row.get::<&str>(12)?.into(),
        })
    }
}

/// A comment as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommentView {
    pub id: String,
    pub author: String,
    pub author_id: Option<String>,
    pub content: String,
    pub change_id: Option<String>,
    pub created_at: String,
}

/// The newest `limit` comments of an issue, oldest of them first.
pub(super) fn comments(db: Db<'_>, issue: i64, limit: i64) -> Sql<Vec<CommentView>> {
    let sql = "SELECT c.uuid, c.author, p.uuid, c.content, c.change_id, c.created_at FROM comments c \
               LEFT JOIN people p ON p.id = c.person WHERE c.issue = ?1 ORDER BY c.id DESC LIMIT ?2";
    let mut list = db.all(sql, values![issue, limit], |row| {
        Ok(CommentView {
            id: row.get(0)?,
            author: row.get(1)?,
            author_id: row.get(2)?,
            content: row.get(3)?,
            change_id: row.get(4)?,
            created_at: row.get(5)?,
        })
    })?;
    list.reverse();
    Ok(list)
}

/// Somebody, as the list of people shows them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PersonView {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub principal: Option<String>,
    pub open_issues: i64,
}

/// People by name; at most `limit`.
pub(super) fn people(db: Db<'_>, limit: i64) -> Sql<Vec<PersonView>> {
    let sql = "SELECT uuid, name, kind, principal, (SELECT COUNT(*) FROM issues i WHERE i.assignee = p.id \
               AND i.status NOT IN ('Done', 'Cancelled')) FROM people p ORDER BY name, id LIMIT ?1";
    db.all(sql, values![limit], |row| {
        Ok(PersonView {
            id: row.get(0)?,
            name: row.get(1)?,
            kind: row.get(2)?,
            principal: row.get(3)?,
            open_issues: row.get(4)?,
        })
    })
}
