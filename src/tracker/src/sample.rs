//! The sample project of the first start, so that there is something to see and to ask about.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::{
    args::NewIssue,
    db::{Db, Sql, values},
    history::{Actor, Subject, record},
    inserts::{IssueRow, insert_comment, insert_issue, insert_project},
    model::{FieldChange, IssueType, Priority, Status},
    now_text,
    sample_data::{COMMENTS, ISSUES, PEOPLE, PROJECT, Sample},
};

/// Fills an empty tracker. Times lie in the days before `now`.
pub(super) fn fill(db: Db<'_>, now: Timestamp) -> Sql<()> {
    let ago = |hours: i64| now_text(now.checked_sub(SignedDuration::from_hours(hours)).unwrap_or(now));
    let by = |name: &str, hours: i64| Actor { name: name.to_owned(), change_id: None, at: ago(hours) };
    let start = ago(24 * 30);
    let mut people = Vec::new();
    for name in PEOPLE {
        let sql = "INSERT INTO people (uuid, name, kind, created_at) VALUES (?1, ?2, 'person', ?3) RETURNING id";
        people.push(db.one(sql, values![&Uuid::new_v4().to_string(), name, &start], |row| row.get(0))?);
    }
    let (key, name, description) = PROJECT;
    let project = insert_project(db, key, name, description, PEOPLE[0], &start)?;
    let told = vec![FieldChange::new("name", "Name", None, Some(name.to_owned()))];
    record(db, &Subject { project: project.rowid, issue: None }, &by(PEOPLE[0], 24 * 30), "created", &told)?;

    let mut made: Vec<(i64, String, String)> = Vec::new();
    for sample in ISSUES {
        let Sample { kind, title, status, priority, hours, parent, reporter, assignee, age, moved, description } =
            sample;
        let row = IssueRow {
            project: &project,
            new: &NewIssue {
                project: project.id.clone(),
                title: (*title).to_owned(),
                kind: *kind,
                description: (*description).to_owned(),
                priority: *priority,
                assignee: None,
                hours: *hours,
                parent: None,
            },
            status: *status,
            assignee: assignee.map(|at| people[at]),
            parent: parent.map(|number| made[number - 1].0),
        };
        let (rowid, id, key) = insert_issue(db, &row, PEOPLE[*reporter], &ago(*age))?;
        let subject = Subject { project: project.rowid, issue: Some((&id, &key)) };
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
            db.execute("UPDATE issues SET updated_at = ?2 WHERE id = ?1", values![rowid, &ago(*moved)])?;
        }
        made.push((rowid, id, key));
    }
    for (number, author, age, content) in COMMENTS {
        let (rowid, id, key) = &made[number - 1];
        let actor = by(PEOPLE[*author], *age);
        insert_comment(db, *rowid, people[*author], content, &actor)?;
        let subject = Subject { project: project.rowid, issue: Some((id, key)) };
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

/// Where an issue in that status came from.
const fn previous(status: Status) -> Status {
    match status {
        Status::Backlog | Status::Todo | Status::Cancelled => Status::Backlog,
        Status::InProgress => Status::Todo,
        Status::Review => Status::InProgress,
        Status::Done => Status::Review,
    }
}
