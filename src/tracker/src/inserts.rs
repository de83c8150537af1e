//! Inserts people, projects, issues and comments. The caller holds the transaction.

use super::{
    db::{Db, DbResult, values},
    history::Actor,
    model::{Hours, IssueKey, IssueType, Priority, ProjectKey, Status, Time, Uuid},
    uri::ChangedResources,
};
use countersign_domain::principal::{Principal, Role};

/// Returns the row of the principal in `people`, and adds it if the principal has never written before.
pub(super) fn ensure_person(
    db: Db<'_>,
    principal: &Principal,
    at: &Time,
    changed_resources: &mut ChangedResources,
) -> DbResult<i64> {
    let kind = if principal.role == Role::Agent { "agent" } else { "person" };
    let created = db.execute(
        "INSERT INTO people (uuid, name, kind, principal, created_at) VALUES (?1, ?2, ?3, ?2, ?4) \
         ON CONFLICT (principal) DO NOTHING",
        values![&Uuid::new(), &principal.name, kind, at],
    )?;
    if created > 0 {
        changed_resources.add_people();
    }
    db.query_one("SELECT id FROM people WHERE principal = ?1", values![&principal.name], |row| row.get(0))
}

/// Adds a person whom the configuration names, unless somebody has this name already.
pub(super) fn ensure_named_person(db: Db<'_>, name: &str, at: &Time) -> DbResult<()> {
    db.execute(
        "INSERT INTO people (uuid, name, kind, created_at) SELECT ?1, ?2, 'person', ?3 \
         WHERE NOT EXISTS (SELECT 1 FROM people WHERE name = ?2)",
        values![&Uuid::new(), name, at],
    )?;
    Ok(())
}

/// The fields of an issue to be inserted.
pub(super) struct NewIssue<'a> {
    /// The row of the project.
    pub project: i64,
    pub project_key: &'a ProjectKey,
    pub kind: IssueType,
    pub title: &'a str,
    pub description: &'a str,
    pub status: Status,
    pub priority: Priority,
    pub assignee: Option<i64>,
    pub parent: Option<i64>,
    pub estimated_hours: Option<Hours>,
}

/// An issue that was inserted.
pub(super) struct InsertedIssue {
    pub row: i64,
    pub id: Uuid,
    pub key: IssueKey,
}

/// Inserts an issue with the next number of the project.
pub(super) fn insert_issue(db: Db<'_>, issue: &NewIssue<'_>, creator: &Actor) -> DbResult<InsertedIssue> {
    let sql = "UPDATE projects SET next_number = next_number + 1 WHERE id = ?1 RETURNING next_number - 1";
    let number: i64 = db.query_one(sql, values![issue.project], |row| row.get(0))?;
    let (id, key) = (Uuid::new(), IssueKey(format!("{}-{number}", issue.project_key)));
    let row = db.query_one(
        "INSERT INTO issues (uuid, project, number, key, type, title, description, status, priority, assignee, parent, \
         estimated_hours, created_at, created_by, updated_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?13) RETURNING id",
        values![
            &id,
            issue.project,
            number,
            &key,
            issue.kind,
            issue.title,
            issue.description,
            issue.status,
            issue.priority,
            issue.assignee,
            issue.parent,
            issue.estimated_hours,
            &creator.at,
            &creator.name
        ],
        |row| row.get(0),
    )?;
    db.index_issue(row, &key, issue.title, issue.description)?;
    Ok(InsertedIssue { row, id, key })
}

/// Inserts a project, and returns its row.
pub(super) fn insert_project(
    db: Db<'_>,
    key: &ProjectKey,
    name: &str,
    description: &str,
    creator: &Actor,
) -> DbResult<i64> {
    let sql = "INSERT INTO projects (uuid, key, name, description, created_at, created_by) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING id";
    db.query_one(sql, values![&Uuid::new(), key, name, description, &creator.at, &creator.name], |row| row.get(0))
}

/// Inserts a comment, and returns its id. The issue counts as updated at that time.
pub(super) fn insert_comment(db: Db<'_>, issue: i64, person: i64, content: &str, actor: &Actor) -> DbResult<Uuid> {
    let id = Uuid::new();
    let sql = "INSERT INTO comments (uuid, issue, author, person, content, change_id, created_at) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING id";
    let parameters = values![&id, issue, &actor.name, person, content, actor.change_id.as_ref(), &actor.at];
    let row = db.query_one(sql, parameters, |row| row.get(0))?;
    db.index_comment(row, content)?;
    db.execute("UPDATE issues SET updated_at = ?2 WHERE id = ?1", values![issue, &actor.at])?;
    Ok(id)
}
