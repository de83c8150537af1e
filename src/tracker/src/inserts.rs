//! New rows: people, projects, issues, comments. The caller holds the transaction.

use uuid::Uuid;

use super::{
    args::NewIssue,
    db::{Db, Sql, values},
    history::Actor,
    model::{Project, Status},
    uri::Touched,
};
use countersign_domain::principal::{Principal, Role};

/// The principal's own entry among the people: made at its first write.
pub(super) fn ensure_person(db: Db<'_>, principal: &Principal, at: &str, touched: &mut Touched) -> Sql<i64> {
    let kind = if principal.role == Role::Agent { "agent" } else { "person" };
    let made = db.execute(
        "INSERT INTO people (uuid, name, kind, principal, created_at) VALUES (?1, ?2, ?3, ?2, ?4) \
         ON CONFLICT (principal) DO NOTHING",
        values![&Uuid::new_v4().to_string(), &principal.name, kind, at],
    )?;
    if made > 0 {
        touched.people();
    }
    db.one("SELECT id FROM people WHERE principal = ?1", values![&principal.name], |row| row.get(0))
}

/// Somebody who is only named, by the configuration: added unless there is one of that name.
pub(super) fn name_person(db: Db<'_>, name: &str, at: &str) -> Sql<()> {
    db.execute(
        "INSERT INTO people (uuid, name, kind, created_at) SELECT ?1, ?2, 'person', ?3 \
         WHERE NOT EXISTS (SELECT 1 FROM people WHERE name = ?2)",
        values![&Uuid::new_v4().to_string(), name, at],
    )?;
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
pub(super) fn insert_issue(db: Db<'_>, row: &IssueRow<'_>, by: &str, at: &str) -> Sql<(i64, String, String)> {
    let number: i64 = db.one(
        "UPDATE projects SET next_number = next_number + 1 WHERE id = ?1 RETURNING next_number - 1",
        values![row.project.rowid],
        |r| r.get(0),
    )?;
    let (id, key) = (Uuid::new_v4().to_string(), format!("{}-{number}", row.project.key));
    let new = row.new;
    let rowid = db.one(
        "INSERT INTO issues (uuid, project, number, key, type, title, description, status, priority, assignee, parent, \
         estimated_hours, created_at, created_by, updated_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?13) RETURNING id",
        values![
            &id,
            row.project.rowid,
            number,
            &key,
            new.kind,
            &new.title,
            &new.description,
            row.status,
            new.priority,
            row.assignee,
            row.parent,
            new.hours,
            at,
            by
        ],
        |r| r.get(0),
    )?;
    db.index_issue(rowid, &key, &new.title, &new.description)?;
    Ok((rowid, id, key))
}

pub(super) fn insert_project(db: Db<'_>, key: &str, name: &str, description: &str, by: &str, at: &str) -> Sql<Project> {
    let id = Uuid::new_v4().to_string();
    let sql = "INSERT INTO projects (uuid, key, name, description, created_at, created_by) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING id";
    let rowid = db.one(sql, values![&id, key, name, description, at, by], |row| row.get(0))?;
    Ok(Project { rowid, id, key: key.to_owned(), name: name.to_owned() })
}

pub(super) fn insert_comment(db: Db<'_>, issue: i64, person: i64, content: &str, actor: &Actor) -> Sql<String> {
    let id = Uuid::new_v4().to_string();
    let sql = "INSERT INTO comments (uuid, issue, author, person, content, change_id, created_at) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING id";
    let given = values![&id, issue, &actor.name, person, content, actor.change_id.as_ref(), &actor.at];
    let rowid = db.one(sql, given, |row| row.get(0))?;
    db.index_comment(rowid, content)?;
    db.execute("UPDATE issues SET updated_at = ?2 WHERE id = ?1", values![issue, &actor.at])?;
    Ok(id)
}
