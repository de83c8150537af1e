//! Reads entities from the database.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::EntityRef,
    db::{Db, DbResult, Row, RowResult, values},
    model::{Comment, Issue, IssueKey, IssueType, ListedIssue, Parent, Person, Project, Status, Uuid},
    workflow::Workflow,
};

/// The query of [`find_issue`], without its condition.
pub(super) const ISSUE_QUERY: &str = "SELECT i.id, i.uuid, i.key, p.id, p.uuid, p.key, i.title, i.type, i.status, \
    i.priority, i.description, a.id, a.uuid, a.name, pa.id, pa.uuid, pa.key, pa.title, pa.type, pa.project, \
    i.estimated_hours, (SELECT COUNT(*) FROM comments c WHERE c.issue = i.id), \
    (SELECT COUNT(*) FROM issues ch WHERE ch.parent = i.id), i.version, i.created_at, i.created_by, i.updated_at \
    FROM issues i JOIN projects p ON p.id = i.project LEFT JOIN people a ON a.id = i.assignee \
    LEFT JOIN issues pa ON pa.id = i.parent";

impl EntityRef {
    /// Returns the column of the entity's table that identifies it.
    fn column(&self) -> &'static str {
        match self {
            Self::Id(_) => "uuid",
            Self::Key(_) => "key",
        }
    }
}

fn read_person(row: &Row, first_column: usize) -> RowResult<Option<Person>> {
    let Some(person_row) = row.get(first_column)? else { return Ok(None) };
    Ok(Some(Person { row: person_row, id: row.get(first_column + 1)?, name: row.get(first_column + 2)? }))
}

fn read_parent(row: &Row, first_column: usize) -> RowResult<Option<Parent>> {
    let Some(parent_row) = row.get(first_column)? else { return Ok(None) };
    Ok(Some(Parent {
        row: parent_row,
        id: row.get(first_column + 1)?,
        key: row.get(first_column + 2)?,
        title: row.get(first_column + 3)?,
        kind: row.get(first_column + 4)?,
        project: row.get(first_column + 5)?,
    }))
}

pub(super) fn find_issue(db: Db<'_>, workflow: &Workflow, entity: &EntityRef) -> DbResult<Option<Issue>> {
    db.query_optional(&format!("{ISSUE_QUERY} WHERE i.{} = ?1", entity.column()), values![entity.as_str()], |row| {
        let status = row.get(8)?;
        Ok(Issue {
            row: row.get(0)?,
            id: row.get(1)?,
            key: row.get(2)?,
            project: row.get(3)?,
            project_id: row.get(4)?,
            project_key: row.get(5)?,
            title: row.get(6)?,
            kind: row.get(7)?,
            status,
            priority: row.get(9)?,
            description: row.get(10)?,
            assignee: read_person(row, 11)?,
            parent: read_parent(row, 14)?,
            estimated_hours: row.get(20)?,
            comment_count: row.get(21)?,
            child_count: row.get(22)?,
            allowed_transitions: workflow.allowed_from(status).to_vec(),
            version: row.get(23)?,
            created_at: row.get(24)?,
            created_by: row.get(25)?,
            updated_at: row.get(26)?,
        })
    })
}

/// Reads an issue with the fields that its children show.
pub(super) fn find_parent(db: Db<'_>, entity: &EntityRef) -> DbResult<Option<Parent>> {
    let sql = format!("SELECT id, uuid, key, title, type, project FROM issues WHERE {} = ?1", entity.column());
    Ok(db.query_optional(&sql, values![entity.as_str()], |row| read_parent(row, 0))?.flatten())
}

pub(super) const PROJECT_QUERY: &str =
    "SELECT id, uuid, key, name, description, issue_count, open_count, created_at, created_by FROM projects";

/// Reads a project from a row of [`PROJECT_QUERY`].
pub(super) fn read_project(row: &Row) -> RowResult<Project> {
    Ok(Project {
        row: row.get(0)?,
        id: row.get(1)?,
        key: row.get(2)?,
        name: row.get(3)?,
        description: row.get(4)?,
        issue_count: row.get(5)?,
        open_issue_count: row.get(6)?,
        created_at: row.get(7)?,
        created_by: row.get(8)?,
    })
}

pub(super) fn find_project(db: Db<'_>, entity: &EntityRef) -> DbResult<Option<Project>> {
    db.query_optional(
        &format!("{PROJECT_QUERY} WHERE {} = ?1", entity.column()),
        values![entity.as_str()],
        read_project,
    )
}

pub(super) fn find_person(db: Db<'_>, id: &Uuid) -> DbResult<Option<Person>> {
    let sql = "SELECT id, uuid, name FROM people WHERE uuid = ?1";
    Ok(db.query_optional(sql, values![id], |row| read_person(row, 0))?.flatten())
}

/// Returns the name by which a diff shows a person: with the id, if an older person has the same name. It never changes, so
/// that the values read after a write are those of its preview.
pub(super) fn person_label(db: Db<'_>, person: Option<&Person>) -> DbResult<Option<String>> {
    let Some(person) = person else { return Ok(None) };
    let sql = "SELECT COUNT(*) FROM people WHERE name = ?1 AND id < ?2";
    let older_namesakes: i64 = db.query_one(sql, values![&person.name, person.row], |row| row.get(0))?;
    Ok(Some(match older_namesakes {
        0 => person.name.clone(),
        _ => format!("{} ({})", person.name, person.id),
    }))
}

/// A child of an issue, as the issue shows it.
#[derive(Serialize, JsonSchema)]
#[schemars(description = "")]
pub(super) struct Child {
    pub id: Uuid,
    pub key: IssueKey,
    pub title: String,
    #[serde(rename = "type")]
    pub kind: IssueType,
    pub status: Status,
}

/// Returns at most `limit` children of an issue, oldest first.
pub(super) fn children(db: Db<'_>, issue: i64, limit: usize) -> DbResult<Vec<Child>> {
    let sql = "SELECT uuid, key, title, type, status FROM issues WHERE parent = ?1 ORDER BY id LIMIT ?2";
    db.query_all(sql, values![issue, limit], |row| {
        Ok(Child { id: row.get(0)?, key: row.get(1)?, title: row.get(2)?, kind: row.get(3)?, status: row.get(4)? })
    })
}

/// Returns a query for listed issues with additional columns. `source` is the `FROM` clause, in which the issues are
/// `i`.
pub(super) fn listed_issue_query(columns: &str, source: &str) -> String {
    format!(
        "SELECT i.id, i.uuid, i.key, i.title, i.type, i.status, i.priority, a.id, a.uuid, a.name, pa.key, \
         i.estimated_hours, i.created_at, i.updated_at{columns} FROM {source} \
         LEFT JOIN people a ON a.id = i.assignee LEFT JOIN issues pa ON pa.id = i.parent"
    )
}

/// The number of columns of [`listed_issue_query`] without additional ones.
pub(super) const LISTED_ISSUE_COLUMNS: usize = 14;

/// Reads a listed issue from a row of [`listed_issue_query`].
pub(super) fn read_listed_issue(row: &Row) -> RowResult<ListedIssue> {
    Ok(ListedIssue {
        row: row.get(0)?,
        id: row.get(1)?,
        key: row.get(2)?,
        title: row.get(3)?,
        kind: row.get(4)?,
        status: row.get(5)?,
        priority: row.get(6)?,
        assignee: read_person(row, 7)?,
        parent_key: row.get(10)?,
        estimated_hours: row.get(11)?,
        created_at: row.get(12)?,
        updated_at: row.get(13)?,
    })
}

/// Returns the newest `limit` comments of an issue, the oldest of them first.
pub(super) fn comments(db: Db<'_>, issue: i64, limit: usize) -> DbResult<Vec<Comment>> {
    let sql = "SELECT c.uuid, c.author, p.uuid, c.content, c.change_id, c.created_at FROM comments c \
               LEFT JOIN people p ON p.id = c.person WHERE c.issue = ?1 ORDER BY c.id DESC LIMIT ?2";
    let mut comments = db.query_all(sql, values![issue, limit], |row| {
        Ok(Comment {
            id: row.get(0)?,
            author: row.get(1)?,
            author_id: row.get(2)?,
            content: row.get(3)?,
            change_id: row.get(4)?,
            created_at: row.get(5)?,
        })
    })?;
    comments.reverse();
    Ok(comments)
}

/// A person or an agent in the list of people.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "")]
pub(super) struct ListedPerson {
    pub id: Uuid,
    pub name: String,
    #[schemars(extend("enum" = ["person", "agent"]))]
    pub kind: String,
    pub principal: Option<String>,
    pub open_issues: u64,
}

/// Returns at most `limit` people by name.
pub(super) fn people(db: Db<'_>, limit: usize) -> DbResult<Vec<ListedPerson>> {
    let sql = "SELECT uuid, name, kind, principal, (SELECT COUNT(*) FROM issues i WHERE i.assignee = p.id \
               AND i.status NOT IN ('Done', 'Cancelled')) FROM people p ORDER BY name, id LIMIT ?1";
    db.query_all(sql, values![limit], |row| {
        Ok(ListedPerson {
            id: row.get(0)?,
            name: row.get(1)?,
            kind: row.get(2)?,
            principal: row.get(3)?,
            open_issues: row.get(4)?,
        })
    })
}
