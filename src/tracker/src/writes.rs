//! Carries out a plan: writes the rows and the history, and collects the changed resources. The result of a change is
//! recorded in the same transaction, so that the change never runs twice.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    arguments::{CreateIssue, CreateProject, EntityRef, UpdateIssue},
    db::{Db, DbResult, missing_row, unwritten_error, values},
    history::{Actor, Subject, record},
    inserts::{InsertedIssue, NewIssue, insert_comment, insert_issue, insert_project},
    model::{Comment, FieldChange, Issue, IssueKey, Parent, Person, Project, ProjectKey, Status, Uuid},
    render,
    rows::{children, find_issue, find_project},
    uri::ChangedResources,
    workflow::Workflow,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ToolResult, text::tool_result};

/// Returns the result of an earlier run of this change, if it has run.
pub(super) fn find_recorded_result(db: Db<'_>, change_id: &str) -> Result<Option<ToolResult>, McpError> {
    let sql = "SELECT content, structured FROM runs WHERE change_id = ?1";
    let found: Option<(String, String)> =
        db.query_optional(sql, values![change_id], |row| Ok((row.get(0)?, row.get(1)?))).map_err(unwritten_error)?;
    let Some((content, structured)) = found else { return Ok(None) };
    let unreadable = |_| McpError::new(ErrorKind::Internal, "The answer of the earlier run cannot be read.");
    Ok(Some(ToolResult {
        content: RawValue::from_string(content).map_err(unreadable)?,
        structured_content: Some(RawValue::from_string(structured).map_err(unreadable)?),
        is_error: false,
    }))
}

/// Records the result of a change in the same transaction, so that the change never runs again.
pub(super) fn record_result(db: Db<'_>, tool: &str, actor: &Actor, result: &ToolResult) -> Result<(), McpError> {
    let Some(change_id) = &actor.change_id else { return Ok(()) };
    let structured = result.structured_content.as_deref().map_or("{}", RawValue::get);
    let sql = "INSERT INTO runs (change_id, tool, at, content, structured) VALUES (?1, ?2, ?3, ?4, ?5)";
    let parameters = values![change_id, tool, &actor.at, result.content.get(), structured];
    db.execute(sql, parameters).map(drop).map_err(unwritten_error)
}

/// A plan that is being carried out.
pub(super) struct PlanRun<'a> {
    pub db: Db<'a>,
    pub workflow: &'a Workflow,
    pub summary: &'a str,
    pub field_changes: &'a [FieldChange],
    pub actor: &'a Actor,
    /// The row of the actor in `people`.
    pub author: i64,
    pub changed_resources: ChangedResources,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CreatedProject {
    project: Project,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CreatedIssue {
    issue: Issue,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ChangedIssue {
    issue: Issue,
    /// # Changed fields
    /// The fields that changed.
    changed: Vec<&'static str>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreatedComment {
    comment: Comment,
    issue_id: Uuid,
    issue_key: String,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeletedIssue {
    deleted: IssueName,
    deleted_comments: u64,
}

#[derive(Serialize, JsonSchema)]
struct IssueName {
    id: Uuid,
    key: IssueKey,
    title: String,
}

impl PlanRun<'_> {
    /// Records the plan's changes of an issue, and marks the issue and its project as changed.
    fn record(&mut self, issue: &Issue, action: &str) -> DbResult<()> {
        let subject = Subject { project: issue.project, issue: Some((&issue.id, &issue.key)) };
        record(self.db, &subject, self.actor, action, self.field_changes)?;
        self.changed_resources.add_issue(&issue.id, &issue.key);
        self.changed_resources.add_project(&issue.project_id, &issue.project_key);
        Ok(())
    }

    /// Reads an issue as it is after the write.
    fn reload_issue(&self, id: &Uuid) -> DbResult<Issue> {
        find_issue(self.db, self.workflow, &EntityRef::Id(id.clone()))?.ok_or_else(missing_row)
    }

    /// Returns the text of a result: the plan's summary, and the details below.
    fn text(&self, details: &str) -> String {
        format!("Done: {}\n{details}", render::single_line(self.summary))
    }

    /// Returns the result of a write that changed these fields of an issue.
    fn changed_issue_result(&self, issue: &Issue, changed: Vec<&'static str>) -> DbResult<ToolResult> {
        let issue = self.reload_issue(&issue.id)?;
        let text = self.text(&render::issue(&issue));
        Ok(tool_result(&text, &ChangedIssue { issue, changed })?)
    }

    pub fn create_project(&mut self, key: &ProjectKey, new: &CreateProject) -> DbResult<ToolResult> {
        let row = insert_project(self.db, key, &new.name, &new.description, self.actor)?;
        record(self.db, &Subject { project: row, issue: None }, self.actor, "created", self.field_changes)?;
        let project = find_project(self.db, &EntityRef::Key(key.to_string()))?.ok_or_else(missing_row)?;
        self.changed_resources.add_project(&project.id, &project.key);
        self.changed_resources.list_changed = true;
        let text = format!("Created: {}", render::project(&project));
        Ok(tool_result(&text, &CreatedProject { project })?)
    }

    pub fn create_issue(
        &mut self,
        project: &Project,
        new: &CreateIssue,
        assignee: Option<&Person>,
        parent: Option<&Parent>,
    ) -> DbResult<ToolResult> {
        let new_issue = NewIssue {
            project: project.row,
            project_key: &project.key,
            kind: new.kind,
            title: &new.title,
            description: &new.description,
            status: Status::Backlog,
            priority: new.priority,
            assignee: assignee.map(|person| person.row),
            parent: parent.map(|parent| parent.row),
            estimated_hours: new.estimated_hours,
        };
        let InsertedIssue { id, key, .. } = insert_issue(self.db, &new_issue, self.actor)?;
        let mut changes = self.field_changes.to_vec();
        // The plan could not know the key yet.
        if let Some(change) = changes.iter_mut().find(|change| change.field == "key") {
            change.after = Some(key.to_string());
        }
        let subject = Subject { project: project.row, issue: Some((&id, &key)) };
        record(self.db, &subject, self.actor, "created", &changes)?;
        self.changed_resources.add_issue(&id, &key);
        self.changed_resources.add_project(&project.id, &project.key);
        self.changed_resources.add_parent(parent);
        if assignee.is_some() {
            self.changed_resources.add_people();
        }
        let issue = self.reload_issue(&id)?;
        let text = self.text(&render::issue(&issue));
        Ok(tool_result(&text, &CreatedIssue { issue })?)
    }

    pub fn update_issue(
        &mut self,
        issue: &Issue,
        update: &UpdateIssue,
        new_parent: Option<&Option<Parent>>,
    ) -> DbResult<ToolResult> {
        let parent = new_parent.unwrap_or(&issue.parent).as_ref();
        let title = update.title.as_deref().unwrap_or(&issue.title);
        let description = update.description.as_deref().unwrap_or(&issue.description);
        self.db.execute(
            "UPDATE issues SET title = ?2, description = ?3, type = ?4, priority = ?5, estimated_hours = ?6, \
             parent = ?7, version = version + 1, updated_at = ?8 WHERE id = ?1",
            values![
                issue.row,
                title,
                description,
                update.kind.unwrap_or(issue.kind),
                update.priority.unwrap_or(issue.priority),
                update.estimated_hours.0.unwrap_or(issue.estimated_hours),
                parent.map(|parent| parent.row),
                &self.actor.at
            ],
        )?;
        self.db.index_issue(issue.row, &issue.key, title, description)?;
        self.record(issue, "updated")?;
        if new_parent.is_some() {
            self.changed_resources.add_parent(issue.parent.as_ref());
        }
        self.changed_resources.add_parent(parent);
        let changed_fields: Vec<&'static str> = self.field_changes.iter().map(|change| change.field).collect();
        if changed_fields.iter().any(|field| matches!(*field, "title" | "type")) {
            // Children show the key, title and type of their parent.
            for child in children(self.db, issue.row, usize::MAX)? {
                self.changed_resources.add_issue_only(&child.id, &child.key);
            }
        }
        self.changed_issue_result(issue, changed_fields)
    }

    pub fn update_status(&mut self, issue: &Issue, to: Status) -> DbResult<ToolResult> {
        let sql = "UPDATE issues SET status = ?2, version = version + 1, updated_at = ?3 WHERE id = ?1";
        self.db.execute(sql, values![issue.row, to, &self.actor.at])?;
        self.record(issue, "status")?;
        if issue.status.is_closed() != to.is_closed() && issue.assignee.is_some() {
            self.changed_resources.add_people();
        }
        self.changed_issue_result(issue, vec!["status"])
    }

    pub fn assign(&mut self, issue: &Issue, assignee: Option<i64>) -> DbResult<ToolResult> {
        let sql = "UPDATE issues SET assignee = ?2, version = version + 1, updated_at = ?3 WHERE id = ?1";
        self.db.execute(sql, values![issue.row, assignee, &self.actor.at])?;
        self.record(issue, "assigned")?;
        self.changed_resources.add_people();
        self.changed_issue_result(issue, vec!["assignee"])
    }

    pub fn comment(&mut self, issue: &Issue, content: &str) -> DbResult<ToolResult> {
        let id = insert_comment(self.db, issue.row, self.author, content, self.actor)?;
        self.record(issue, "commented")?;
        self.changed_resources.add_comments(&issue.id, &issue.key);
        let author_id =
            self.db.query_one("SELECT uuid FROM people WHERE id = ?1", values![self.author], |row| row.get(0))?;
        let author = render::single_line(&self.actor.name);
        let text = self.text(&format!("Comment {id} by {author} on {} ({}).", issue.key, issue.id));
        let comment = Comment {
            id,
            author: self.actor.name.clone(),
            author_id: Some(author_id),
            content: content.to_owned(),
            change_id: self.actor.change_id.clone(),
            created_at: self.actor.at.clone(),
        };
        let (issue_id, issue_key) = (issue.id.clone(), issue.key.to_string());
        Ok(tool_result(&text, &CreatedComment { comment, issue_id, issue_key })?)
    }

    pub fn delete(&mut self, issue: &Issue) -> DbResult<ToolResult> {
        debug_assert!(children(self.db, issue.row, 1)?.is_empty(), "an issue with children is never deleted");
        self.record(issue, "deleted")?;
        // Comments are deleted explicitly, so that the triggers remove them from the search index.
        self.db.execute("DELETE FROM comments WHERE issue = ?1", values![issue.row])?;
        self.db.execute("DELETE FROM issues WHERE id = ?1", values![issue.row])?;
        self.changed_resources.add_comments(&issue.id, &issue.key);
        self.changed_resources.add_parent(issue.parent.as_ref());
        if issue.assignee.is_some() {
            self.changed_resources.add_people();
        }
        let key = &issue.key;
        let text =
            self.text(&format!("Its key is never used again; its history stays at tracker://issues/{key}/history."));
        let deleted = IssueName { id: issue.id.clone(), key: key.clone(), title: issue.title.clone() };
        Ok(tool_result(&text, &DeletedIssue { deleted, deleted_comments: issue.comment_count })?)
    }
}
