//! Creates the sample project at the first start, so that new users have data to look at.

use super::{
    db::{Db, DbResult, values},
    history::{Actor, Subject, record},
    inserts::{InsertedIssue, NewIssue, insert_comment, insert_issue, insert_project},
    model::{FieldChange, Hours, ProjectKey, Status, Time, Uuid},
    sample_data::{COMMENTS, ISSUES, PEOPLE, PROJECT, SampleComment},
};
use jiff::{SignedDuration, Timestamp};

/// Fills an empty tracker with data from the 30 days before `now`.
pub(super) fn fill(db: Db<'_>, now: Timestamp) -> DbResult<()> {
    let ago = |hours: i64| Time::from(now.checked_sub(SignedDuration::from_hours(hours)).unwrap_or(now));
    let actor = |name: &str, hours: i64| Actor { name: name.to_owned(), change_id: None, at: ago(hours) };
    let start = ago(24 * 30);
    let mut people = Vec::new();
    for name in PEOPLE {
        let sql = "INSERT INTO people (uuid, name, kind, created_at) VALUES (?1, ?2, 'person', ?3) RETURNING id";
        people.push(db.query_one(sql, values![&Uuid::new(), name, &start], |row| row.get(0))?);
    }
    let (key, name, description) = PROJECT;
    let project_key = ProjectKey(key.to_owned());
    let creator = actor(PEOPLE[0], 24 * 30);
    let project = insert_project(db, &project_key, name, description, &creator)?;
    let change = FieldChange::added(("name", "Name", name.to_owned()));
    record(db, &Subject { project, issue: None }, &creator, "created", &[change])?;

    let mut created_issues: Vec<InsertedIssue> = Vec::new();
    for sample in ISSUES {
        let reporter = actor(PEOPLE[sample.reporter], sample.age_hours);
        let new_issue = NewIssue {
            project,
            project_key: &project_key,
            kind: sample.kind,
            title: sample.title,
            description: sample.description,
            status: sample.status,
            priority: sample.priority,
            assignee: sample.assignee.map(|index| people[index]),
            parent: sample.parent.map(|number| created_issues[number - 1].row),
            estimated_hours: sample.estimated_hours.map(Hours),
        };
        let issue = insert_issue(db, &new_issue, &reporter)?;
        let subject = Subject { project, issue: Some((&issue.id, &issue.key)) };
        let fields = [
            ("type", "Type", sample.kind.to_string()),
            ("title", "Title", sample.title.to_owned()),
            ("priority", "Priority", sample.priority.to_string()),
        ];
        record(db, &subject, &reporter, "created", &fields.map(FieldChange::added))?;
        if let Some(index) = sample.assignee {
            let change = FieldChange::added(("assignee", "Assignee", PEOPLE[index].to_owned()));
            record(db, &subject, &actor(PEOPLE[0], sample.moved_hours_ago + 1), "assigned", &[change])?;
        }
        if sample.status != Status::Backlog {
            let mover = actor(PEOPLE[sample.assignee.unwrap_or(sample.reporter)], sample.moved_hours_ago);
            let before = Some(previous_status(sample.status).to_string());
            let change = FieldChange::new("status", "Status", before, Some(sample.status.to_string()));
            record(db, &subject, &mover, "status", &[change])?;
            db.execute("UPDATE issues SET updated_at = ?2 WHERE id = ?1", values![issue.row, &mover.at])?;
        }
        created_issues.push(issue);
    }
    for SampleComment { issue, author, age_hours, content } in COMMENTS {
        let issue = &created_issues[issue - 1];
        let comment_actor = actor(PEOPLE[*author], *age_hours);
        insert_comment(db, issue.row, people[*author], content, &comment_actor)?;
        let subject = Subject { project, issue: Some((&issue.id, &issue.key)) };
        let change = FieldChange::added(("content", "Comment", (*content).to_owned()));
        record(db, &subject, &comment_actor, "commented", &[change])?;
    }
    Ok(())
}

/// Returns the status that the history shows before this one.
const fn previous_status(status: Status) -> Status {
    match status {
        Status::Backlog | Status::Todo | Status::Cancelled => Status::Backlog,
        Status::InProgress => Status::Todo,
        Status::Review => Status::InProgress,
        Status::Done => Status::Review,
    }
}
