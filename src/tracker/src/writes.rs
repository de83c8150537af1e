//! Carries out a plan in one transaction: rows, history, the answer, and which resources now read differently.
//!
//! Reached only after approval, or where policy allows the write directly. The same change never runs twice.

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    args::{NewIssue, Patch},
    db::{Db, Sql, missing_row, not_written, values},
    history::{Actor, Subject, record},
    inserts::{IssueRow, ensure_person, insert_comment, insert_issue, insert_project},
    model::{Issue, Parent, Person, Project, Status},
    plan::{Action, Plan},
    refs::EntityRef,
    render,
    rows::{CommentView, IssueView, PROJECT_COLUMNS, ProjectView, children, with_issue},
    uri::Touched,
    workflow::Workflow,
};
use countersign_domain::principal::Principal;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ToolResult, text::tool_result};

/// What a write did.
pub(super) struct Applied {
    pub result: ToolResult,
    /// Resources that read differently now.
    pub touched: Touched,
}

/// The answer of an earlier run of this change, if it has run.
pub(super) fn earlier_run(db: Db<'_>, change_id: &str) -> Result<Option<ToolResult>, McpError> {
    let sql = "SELECT content, structured FROM runs WHERE change_id = ?1";
    let found: Option<(String, String)> =
        db.find(sql, values![change_id], |row| Ok((row.get(0)?, row.get(1)?))).map_err(|e| not_written(&e))?;
    let Some((content, structured)) = found else { return Ok(None) };
    let broken = |_| McpError::new(ErrorKind::Internal, "The answer of the earlier run cannot be read.");
    Ok(Some(ToolResult {
        content: RawValue::from_string(content).map_err(broken)?,
        structured_content: Some(RawValue::from_string(structured).map_err(broken)?),
        is_error: false,
    }))
}

/// Remembers that a change has run, in the same transaction.
pub(super) fn remember_run(db: Db<'_>, tool: &str, actor: &Actor, result: &ToolResult) -> Result<(), McpError> {
    let Some(change_id) = &actor.change_id else { return Ok(()) };
    let structured = result.structured_content.as_deref().map_or("{}", RawValue::get);
    let sql = "INSERT INTO runs (change_id, tool, at, content, structured) VALUES (?1, ?2, ?3, ?4, ?5)";
    let given = values![change_id, tool, &actor.at, result.content.get(), structured];
    db.execute(sql, given).map(drop).map_err(|e| not_written(&e))
}

/// Carries out the plan. The caller commits.
pub(super) fn apply(
    db: Db<'_>,
    workflow: &Workflow,
    plan: &Plan,
    principal: &Principal,
    actor: &Actor,
) -> Result<Applied, McpError> {
    let mut touched = Touched::default();
    let author = ensure_person(db, principal, &actor.at, &mut touched).map_err(|e| not_written(&e))?;
    let run = Run { db, workflow, plan, actor, author };
    let result = match &plan.action {
        Action::CreateProject { key, name, description } => run.create_project(key, name, description, &mut touched),
        Action::CreateIssue { project, new, assignee, parent } => {
            run.create_issue(project, new, assignee.as_ref(), parent.as_ref(), &mut touched)
        }
        Action::UpdateIssue { issue, patch, parent } => run.update_issue(issue, patch, parent.as_ref(), &mut touched),
        Action::UpdateStatus { issue, to } => run.update_status(issue, *to, &mut touched),
        Action::Assign { issue, assignee } => run.assign(issue, assignee.as_ref(), &mut touched),
        Action::Comment { issue, content } => run.comment(issue, content, &mut touched),
        Action::Delete { issue, comments } => run.delete(issue, *comments, &mut touched),
    };
    Ok(Applied { result: result.map_err(|e| not_written(&e))?, touched })
}

struct Run<'a> {
    db: Db<'a>,
    workflow: &'a Workflow,
    plan: &'a Plan,
    actor: &'a Actor,
    /// The row of the proposer among the people.
    author: i64,
}

#[derive(Serialize)]
struct IssueAnswer<'a> {
    issue: IssueView<'a>,
}

#[derive(Serialize)]
struct UpdateAnswer<'a> {
    issue: IssueView<'a>,
    changed: Vec<&'static str>,
}

#[derive(Serialize)]
struct ProjectAnswer<'a> {
    project: ProjectView<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CommentAnswer<'a> {
    comment: CommentView,
    issue_id: &'a str,
    issue_key: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteAnswer<'a> {
    deleted: DeletedIssue<'a>,
    deleted_comments: i64,
}

#[derive(Serialize)]
struct DeletedIssue<'a> {
    id: &'a str,
    key: &'a str,
    title: &'a str,
}

impl Run<'_> {
    fn record(&self, project: i64, issue: Option<(&str, &str)>, action: &str) -> Sql<()> {
        record(self.db, &Subject { project, issue }, self.actor, action, &self.plan.changes)
    }

    /// The answer of a write that left an issue behind, read back from the database.
    fn issue_answer(&self, id: &str, changed: Option<Vec<&'static str>>) -> Sql<ToolResult> {
        let by = EntityRef::Id(id.to_owned());
        let read = with_issue(self.db, &by, |row| {
            let issue = IssueView::from_row(row, self.workflow)?;
            let done = if changed.is_some() { "Done" } else { "Created" };
            let text = format!("{done}: {}\n{}", render::summary_line(&self.plan.summary), render::issue(&issue));
            match changed {
                Some(changed) => answer(&text, &UpdateAnswer { issue, changed }),
                None => answer(&text, &IssueAnswer { issue }),
            }
        })?;
        read.ok_or_else(missing_row)
    }

    fn create_project(&self, key: &str, name: &str, description: &str, touched: &mut Touched) -> Sql<ToolResult> {
        let project = insert_project(self.db, key, name, description, &self.actor.name, &self.actor.at)?;
        self.record(project.rowid, None, "created")?;
        touched.new_project(&project);
        self.db.one(&format!("{PROJECT_COLUMNS} WHERE id = ?1"), values![project.rowid], |row| {
            let project = ProjectView::from_row(row)?;
            let text = format!("Created: {}", render::project(&project));
            answer(&text, &ProjectAnswer { project })
        })
    }

    fn create_issue(
        &self,
        project: &Project,
        new: &NewIssue,
        assignee: Option<&Person>,
        parent: Option<&Parent>,
        touched: &mut Touched,
    ) -> Sql<ToolResult> {
        let row = IssueRow {
            project,
            new,
            status: Status::Backlog,
            assignee: assignee.map(|p| p.rowid),
            parent: parent.map(|p| p.rowid),
        };
        let (_, id, key) = insert_issue(self.db, &row, &self.actor.name, &self.actor.at)?;
        let mut set = self.plan.changes.clone();
        if let Some(allotted) = set.iter_mut().find(|c| c.field == "key") {
            allotted.after = Some(key.clone());
        }
        let subject = Subject { project: project.rowid, issue: Some((&id, &key)) };
        record(self.db, &subject, self.actor, "created", &set)?;
        touched.issue(&id, &key);
        touched.project(project);
        touched.parent(parent);
        if assignee.is_some() {
            touched.people();
        }
        self.issue_answer(&id, None)
    }

    fn update_issue(
        &self,
        issue: &Issue,
        patch: &Patch,
        parent: Option<&Option<Parent>>,
        touched: &mut Touched,
    ) -> Sql<ToolResult> {
        let kept = parent.map_or(issue.parent.as_ref(), Option::as_ref);
        let title = patch.title.as_ref().unwrap_or(&issue.title);
        let description = patch.description.as_ref().unwrap_or(&issue.description);
        self.db.execute(
            "UPDATE issues SET title = ?2, description = ?3, type = ?4, priority = ?5, estimated_hours = ?6, \
             parent = ?7, version = version + 1, updated_at = ?8 WHERE id = ?1",
            values![
                issue.rowid,
                title,
                description,
                patch.kind.unwrap_or(issue.kind),
                patch.priority.unwrap_or(issue.priority),
                patch.hours.unwrap_or(issue.hours),
                kept.map(|p| p.rowid),
                &self.actor.at
            ],
        )?;
        self.db.index_issue(issue.rowid, &issue.key, title, description)?;
        self.record(issue.project.rowid, Some((&issue.id, &issue.key)), "updated")?;
        touched.issue(&issue.id, &issue.key);
        touched.project(&issue.project);
        if parent.is_some() {
            touched.parent(issue.parent.as_ref());
        }
        touched.parent(kept);
        let changed: Vec<&'static str> = self.plan.changes.iter().map(|c| c.field).collect();
        if changed.iter().any(|field| matches!(*field, "title" | "type")) {
            // Children show the key, title and type of their parent.
            for (key, id) in self.child_names(issue.rowid)? {
                touched.issue_itself(&id, &key);
            }
        }
        self.issue_answer(&issue.id, Some(changed))
    }

    fn child_names(&self, issue: i64) -> Sql<Vec<(String, String)>> {
        let sql = "SELECT key, uuid FROM issues WHERE parent = ?1";
        self.db.all(sql, values![issue], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    fn update_status(&self, issue: &Issue, to: Status, touched: &mut Touched) -> Sql<ToolResult> {
        let sql = "UPDATE issues SET status = ?2, version = version + 1, updated_at = ?3 WHERE id = ?1";
        self.db.execute(sql, values![issue.rowid, to, &self.actor.at])?;
        self.record(issue.project.rowid, Some((&issue.id, &issue.key)), "status")?;
        touched.issue(&issue.id, &issue.key);
        touched.project(&issue.project);
        if issue.status.is_closed() != to.is_closed() && issue.assignee.is_some() {
            touched.people();
        }
        self.issue_answer(&issue.id, Some(vec!["status"]))
    }

    fn assign(&self, issue: &Issue, assignee: Option<&Person>, touched: &mut Touched) -> Sql<ToolResult> {
        let sql = "UPDATE issues SET assignee = ?2, version = version + 1, updated_at = ?3 WHERE id = ?1";
        self.db.execute(sql, values![issue.rowid, assignee.map(|p| p.rowid), &self.actor.at])?;
        self.record(issue.project.rowid, Some((&issue.id, &issue.key)), "assigned")?;
        touched.issue(&issue.id, &issue.key);
        touched.project(&issue.project);
        touched.people();
        self.issue_answer(&issue.id, Some(vec!["assignee"]))
    }

    fn comment(&self, issue: &Issue, content: &str, touched: &mut Touched) -> Sql<ToolResult> {
        let id = insert_comment(self.db, issue.rowid, self.author, content, self.actor)?;
        self.record(issue.project.rowid, Some((&issue.id, &issue.key)), "commented")?;
        touched.issue(&issue.id, &issue.key);
        touched.comments(&issue.id, &issue.key);
        touched.project(&issue.project);
        let author_id: String =
            self.db.one("SELECT uuid FROM people WHERE id = ?1", values![self.author], |row| row.get(0))?;
        let text = format!(
            "Done: {}\nComment {id} by {} on {} ({}).",
            render::summary_line(&self.plan.summary),
            render::summary_line(&self.actor.name),
            issue.key,
            issue.id
        );
        let comment = CommentView {
            id,
            author: self.actor.name.clone(),
            author_id: Some(author_id),
            content: content.to_owned(),
            change_id: self.actor.change_id.clone(),
            created_at: self.actor.at.clone(),
        };
        answer(&text, &CommentAnswer { comment, issue_id: &issue.id, issue_key: &issue.key })
    }

    fn delete(&self, issue: &Issue, comments: i64, touched: &mut Touched) -> Sql<ToolResult> {
        debug_assert!(children(self.db, issue.rowid, 1)?.is_empty(), "a plan to delete a parent was accepted");
        self.record(issue.project.rowid, Some((&issue.id, &issue.key)), "deleted")?;
        // Explicitly, so that the search index loses them through the triggers.
        self.db.execute("DELETE FROM comments WHERE issue = ?1", values![issue.rowid])?;
        self.db.execute("DELETE FROM issues WHERE id = ?1", values![issue.rowid])?;
        touched.issue(&issue.id, &issue.key);
        touched.comments(&issue.id, &issue.key);
        touched.project(&issue.project);
        touched.parent(issue.parent.as_ref());
        if issue.assignee.is_some() {
            touched.people();
        }
        let text = format!(
            "Done: {}\nIts key is not given again; its history stays at tracker://issues/{}/history.",
            render::summary_line(&self.plan.summary),
            issue.key
        );
        let deleted = DeletedIssue { id: &issue.id, key: &issue.key, title: &issue.title };
        answer(&text, &DeleteAnswer { deleted, deleted_comments: comments })
    }
}

fn answer(text: &str, structured: &impl Serialize) -> Sql<ToolResult> {
    Ok(tool_result(text, structured)?)
}
