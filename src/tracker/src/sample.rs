//! Creates the sample project at the first start, so that there is something to see and to ask about.

use super::{
    db::{Db, DbResult, values},
    history::{Actor, Subject, record},
    inserts::{IssueRow, insert_comment, insert_issue, insert_project},
    model::{FieldChange, Hours, IssueKey, IssueType, Priority, ProjectKey, Status, Time, Uuid},
    sample_data::{COMMENTS, ISSUES, PEOPLE, PROJECT, Sample},
};
use jiff::{SignedDuration, Timestamp};

/// Fills an empty tracker with data of the days before `now`.
pub(super) fn fill(db: Db<'_>, now: Timestamp) -> DbResult<()> {
    let ago = |hours: i64| Time::from(now.checked_sub(SignedDuration::from_hours(hours)).unwrap_or(now));
    let by = |name: &str, hours: i64| Actor { name: name.to_owned(), change_id: None, at: ago(hours) };
    let start = ago(24 * 30);
    let mut people = Vec::new();
    for name in PEOPLE {
        let sql = "INSERT INTO people (uuid, name, kind, created_at) VALUES (?1, ?2, 'person', ?3) RETURNING id";
        people.push(db.one(sql, values![&Uuid::new(), name, &start], |row| row.get(0))?);
    }
    let (key, name, description) = PROJECT;
    let project_key = ProjectKey(key.to_owned());
    let project = insert_project(db, &project_key, name, description, PEOPLE[0], &start)?;
    let changes = vec![FieldChange::new("name", "Name", None, Some(name.to_owned()))];
    record(db, &Subject { project, issue: None }, &by(PEOPLE[0], 24 * 30), "created", &changes)?;

    let mut made: Vec<(i64, Uuid, IssueKey)> = Vec::new();
    for sample in ISSUES {
        let Sample { kind, title, status, priority, hours, parent, reporter, assignee, age, moved, description } =
            sample;
        let row = IssueRow {
            project: (project, &project_key),
            kind: *kind,
            title,
            description,
            status: *status,
            priority: *priority,
            assignee: assignee.map(|at| people[at]),
            parent: parent.map(|number| made[number - 1].0),
            estimated_hours: hours.map(Hours),
        };
        let (row_id, id, key) = insert_issue(db, &row, PEOPLE[*reporter], &ago(*age))?;
        let subject = Subject { project, issue: Some((&id, &key)) };
        record(db, &subject, &by(PEOPLE[*reporter], *age), "created", &created(*kind, title, *priority))?;
        if let Some(at) = assignee {
            let change = FieldChange::new("assignee", "Assignee", None, Some(PEOPLE[*at].to_owned()));
            record(db, &subject, &by(PEOPLE[0], *moved + 1), "assigned", &[change])?;
        }
        if *status != Status::Backlog {
            let who = assignee.unwrap_or(*reporter);
            let before = Some(previous(*status).to_string());
            let change = FieldChange::new("status", "Status", before, Some(status.to_string()));
            record(db, &subject, &by(PEOPLE[who], *moved), "status", &[change])?;
            db.execute("UPDATE issues SET updated_at = ?2 WHERE id = ?1", values![row_id, &ago(*moved)])?;
        }
        made.push((row_id, id, key));
    }
    for (number, author, age, content) in COMMENTS {
        let (row_id, id, key) = &made[number - 1];
        let actor = by(PEOPLE[*author], *age);
        insert_comment(db, *row_id, people[*author], content, &actor)?;
        let subject = Subject { project, issue: Some((id, key)) };
        let change = FieldChange::new("content", "Comment", None, Some((*content).to_owned()));
        record(db, &subject, &actor, "commented", &[change])?;
    }
    Ok(())
}

fn created(kind: IssueType, title: &str, priority: Priority) -> Vec<FieldChange> {
    vec![
        FieldChange::new("type", "Type", None, Some(kind.to_string())),
        FieldChange::new("title", "Title", None, Some(title.to_owned())),
        FieldChange::new("priority", "Priority", None, Some(priority.to_string())),
    ]
}

/// Returns the status before this one.
const fn previous(status: Status) -> Status {
    match status {
        Status::Backlog | Status::Todo | Status::Cancelled => Status::Backlog,
        Status::InProgress => Status::Todo,
        Status::Review => Status::InProgress,
        Status::Done => Status::Review,
    }
}
