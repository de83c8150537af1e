//! New rows: people, projects, issues, comments. The caller holds the transaction.

use rusqlite::{Connection, params};
use uuid::Uuid;

use super::{
    args::NewIssue,
    history::Actor,
    model::{Project, Status},
    rows::Sql,
    uri::Touched,
};
use countersign_domain::principal::{Principal, Role};

/// The principal's own entry among the people: made at its first write.
pub(super) fn ensure_person(conn: &Connection, principal: &Principal, at: &str, touched: &mut Touched) -> Sql<i64> {
    let kind = if principal.role == Role::Agent { "agent" } else { "person" };
    let made = conn
        .prepare_cached(
            "INSERT INTO people (uuid, name, kind, principal, created_at) VALUES (?1, ?2, ?3, ?2, ?4) \
             ON CONFLICT (principal) DO NOTHING",
        )?
        .execute(params![Uuid::new_v4().to_string(), principal.name, kind, at])?;
    if made > 0 {
        touched.people();
    }
    conn.prepare_cached("SELECT id FROM people WHERE principal = ?1")?.query_row([&principal.name], |row| row.get(0))
}

/// Somebody who is only named, by the configuration: added unless there is one of that name.
pub(super) fn name_person(conn: &Connection, name: &str, at: &str) -> Sql<()> {
    conn.prepare_cached(
        "INSERT INTO people (uuid, name, kind, created_at) SELECT ?1, ?2, 'person', ?3 \
         WHERE NOT EXISTS (SELECT 1 FROM people WHERE name = ?2)",
    )?
    .execute(params![Uuid::new_v4().to_string(), name, at])?;
    Ok(())
}

/// An issue ready to be inserted.
pub(super) struct IssueRow<'a> {
    pub project: &'a Project,
    pub new: &'a NewIssue,
    pub status: Status,
    pub assignee: Option<i64>,
    pub parent: Option<i64>,
}

/// Allots the next number of the project. Returns the row, the id and the key.
pub(super) fn insert_issue(conn: &Connection, row: &IssueRow<'_>, by: &str, at: &str) -> Sql<(i64, String, String)> {
    let number: i64 = conn
        .prepare_cached("UPDATE projects SET next_number = next_number + 1 WHERE id = ?1 RETURNING next_number - 1")?
        .query_row([row.project.rowid], |r| r.get(0))?;
    let (id, key) = (Uuid::new_v4().to_string(), format!("{}-{number}", row.project.key));
    let new = row.new;
    conn.prepare_cached(
        "INSERT INTO issues (uuid, project, number, key, type, title, description, status, priority, assignee, parent, \
         estimated_hours, created_at, created_by, updated_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?13)",
    )?
    .execute(params![
        id,
        row.project.rowid,
        number,
        key,
        new.kind,
        new.title,
        new.description,
        row.status,
        new.priority,
        row.assignee,
        row.parent,
        new.hours,
        at,
        by
    ])?;
    Ok((conn.last_insert_rowid(), id, key))
}

pub(super) fn insert_project(
    conn: &Connection,
    key: &str,
    name: &str,
    description: &str,
    by: &str,
    at: &str,
) -> Sql<Project> {
    let id = Uuid::new_v4().to_string();
    conn.prepare_cached(
        "INSERT INTO projects (uuid, key, name, description, created_at, created_by) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![id, key, name, description, at, by])?;
    Ok(Project { rowid: conn.last_insert_rowid(), id, key: key.to_owned(), name: name.to_owned() })
}

pub(super) fn insert_comment(conn: &Connection, issue: i64, person: i64, content: &str, actor: &Actor) -> Sql<String> {
    let id = Uuid::new_v4().to_string();
    conn.prepare_cached(
        "INSERT INTO comments (uuid, issue, author, person, content, change_id, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![id, issue, actor.name, person, content, actor.change_id, actor.at])?;
    conn.prepare_cached("UPDATE issues SET updated_at = ?2 WHERE id = ?1")?.execute(params![issue, actor.at])?;
    Ok(id)
}
