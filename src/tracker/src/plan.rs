//! Plans a write against the live state, and refuses a write that is not possible.
//!
//! The preview shows a plan and the run carries out a plan, so both make the same checks.

use super::{
    arguments::{AddComment, CreateIssue, CreateProject, EntityRef, UpdateIssue, Write},
    checks::{
        MAX_LISTED_IN_ERROR, check_ancestors, check_parent, refused, require_issue, require_parent, require_person,
        require_project, with_article,
    },
    db::{Db, DbResult, unwritten_error, values},
    history::Actor,
    inserts::ensure_person,
    model::{Field, FieldChange, Hours, Issue, Parent, Person, Status, Uuid, display_text},
    project_keys,
    rows::{children, find_project, person_label},
    uri::ChangedResources,
    workflow::Workflow,
    writes::PlanRun,
};
use countersign_domain::{
    changes::{FieldFormat, Operation, Preview, PreviewNote, StateEffect, Target, diff::DiffBuilder, fingerprint},
    principal::Principal,
    text::plural,
};
use countersign_protocol::McpError;
use countersign_provider::ToolResult;

/// The fields whose text is Markdown.
const MARKDOWN_FIELDS: [&str; 2] = ["description", "content"];

/// Carries out a checked write with the entities that it needs.
type WriteFn<'w> = Box<dyn FnOnce(&mut PlanRun<'_>) -> DbResult<ToolResult> + 'w>;

/// The effects of a write, and the live state that they depend on.
pub(super) struct Plan<'w> {
    operation: Operation,
    entity_type: &'static str,
    id: Option<String>,
    label: String,
    lock_key: String,
    summary: String,
    field_changes: Vec<FieldChange>,
    /// The live state that the plan depends on, as names and values for the fingerprint.
    state: Vec<(&'static str, String)>,
    write: WriteFn<'w>,
}

/// Plans a write.
///
/// # Errors
/// The error explains why the write is not possible.
pub(super) fn plan<'w>(db: Db<'_>, workflow: &Workflow, write: &'w Write) -> Result<Plan<'w>, McpError> {
    let issue = |entity: &EntityRef| require_issue(db, workflow, entity);
    match write {
        Write::CreateProject(new) => plan_project_creation(db, new),
        Write::CreateIssue(new) => plan_issue_creation(db, new),
        Write::UpdateIssue(update) => plan_issue_update(db, issue(&update.issue_id.0)?, update),
        Write::UpdateStatus(update) => plan_status_update(workflow, issue(&update.issue_id.0)?, update.new_status),
        Write::Assign(assign) => plan_assignment(db, issue(&assign.issue_id.0)?, assign.assignee_id.as_ref()),
        Write::Comment(comment) => Ok(plan_comment(issue(&comment.issue_id.0)?, comment)),
        Write::Delete(delete) => plan_deletion(db, issue(&delete.issue_id.0)?),
    }
}

impl<'w> Plan<'w> {
    /// Returns the preview for the agent and the reviewers.
    pub fn preview(&self) -> Preview {
        let mut diff = DiffBuilder::new();
        for change in &self.field_changes {
            let field_count = diff.len();
            diff.add(change.field, change.label, change.before.as_deref(), change.after.as_deref());
            if MARKDOWN_FIELDS.contains(&change.field) {
                diff.set_format_after(field_count, FieldFormat::Markdown);
            }
        }
        Preview {
            note: PreviewNote::default(),
            operation: self.operation,
            target: Target {
                entity_type: self.entity_type.to_owned(),
                id: self.id.clone(),
                label: self.label.clone(),
                lock_key: self.lock_key.clone(),
            },
            summary: self.summary.clone(),
            diff: diff.finish(),
            fingerprint: self.fingerprint(),
            state_effect: StateEffect::Fields,
        }
    }

    /// Returns the hash of the state that the plan depends on.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.state)
    }

    /// Carries out the plan, and returns the result and the changed resources. The caller has made sure that the write was
    /// approved or is allowed by policy, and commits.
    pub fn carry_out(
        self,
        db: Db<'_>,
        workflow: &Workflow,
        principal: &Principal,
        actor: &Actor,
    ) -> Result<(ToolResult, ChangedResources), McpError> {
        let Self { summary, field_changes, write, .. } = self;
        let carry_out = || -> DbResult<(ToolResult, ChangedResources)> {
            let mut changed_resources = ChangedResources::default();
            let author = ensure_person(db, principal, &actor.at, &mut changed_resources)?;
            let (summary, field_changes) = (&*summary, &*field_changes);
            let mut run = PlanRun { db, workflow, summary, field_changes, actor, author, changed_resources };
            let result = write(&mut run)?;
            Ok((result, run.changed_resources))
        };
        carry_out().map_err(unwritten_error)
    }

    /// Creates the plan of a write to an existing issue, which depends on the issue's version.
    fn for_issue(
        operation: Operation,
        issue: &Issue,
        summary: String,
        field_changes: Vec<FieldChange>,
        write: impl FnOnce(&mut PlanRun<'_>, &Issue) -> DbResult<ToolResult> + 'w,
    ) -> Self {
        let planned_issue = issue.clone();
        Self {
            operation,
            entity_type: "issue",
            id: Some(issue.id.to_string()),
            label: issue.display_label(),
            lock_key: issue.id.to_string(),
            summary,
            field_changes,
            state: vec![("issue", issue.id.to_string()), ("version", issue.version.to_string())],
            write: Box::new(move |run| write(run, &planned_issue)),
        }
    }

    /// Makes the plan depend on a person and their name.
    fn depend_on_person(&mut self, person: Option<&Person>) {
        if let Some(person) = person {
            self.state.push(("person", person.id.to_string()));
            self.state.push(("person.name", person.name.clone()));
        }
    }

    /// Makes the plan depend on a parent, and on its label and type.
    fn depend_on_parent(&mut self, parent: Option<&Parent>) {
        if let Some(parent) = parent {
            self.state.push(("parent", parent.id.to_string()));
            self.state.push(("parent.label", parent.label()));
            self.state.push(("parent.type", parent.kind.to_string()));
        }
    }
}

/// Returns the optional fields of an issue that have a value, in the order of the diff.
fn optional_fields(
    description: &str,
    assignee: Option<String>,
    hours: Option<Hours>,
    parent: Option<&Parent>,
) -> impl Iterator<Item = Field> {
    let fields = [
        ("description", "Description", (!description.is_empty()).then(|| description.to_owned())),
        ("assignee", "Assignee", assignee),
        ("estimatedHours", "Estimated hours", hours.map(|hours| hours.to_string())),
        ("parent", "Parent", parent.map(Parent::label)),
    ];
    fields.into_iter().filter_map(|(name, label, value)| Some((name, label, value?)))
}

/// Returns the fields of an issue that have a value, in the order of the diff.
pub(super) fn issue_fields(db: Db<'_>, issue: &Issue) -> DbResult<Vec<Field>> {
    let fields = [
        ("key", "Key", issue.key.to_string()),
        ("type", "Type", issue.kind.to_string()),
        ("title", "Title", issue.title.clone()),
        ("status", "Status", issue.status.to_string()),
        ("priority", "Priority", issue.priority.to_string()),
    ];
    let assignee = person_label(db, issue.assignee.as_ref())?;
    let optional = optional_fields(&issue.description, assignee, issue.estimated_hours, issue.parent.as_ref());
    let comments = Some(issue.comment_count).filter(|count| *count > 0);
    let comments = comments.map(|count| ("comments", "Comments", count.to_string()));
    Ok(fields.into_iter().chain(optional).chain(comments).collect())
}

fn plan_project_creation<'w>(db: Db<'_>, new: &'w CreateProject) -> Result<Plan<'w>, McpError> {
    let key = match &new.key {
        Some(key) => {
            if let Some(project) = find_project(db, &EntityRef::Key(key.to_string()))? {
                return Err(refused(format!("The key {key} belongs to the project “{}”.", project.name))
                    .with("pointer", "/key")
                    .with("projectId", project.id.0));
            }
            key.clone()
        }
        None => project_keys::derive(db, &new.name)?,
    };
    let fields = [("name", "Name", new.name.to_string()), ("key", "Key", key.to_string())];
    let optional = optional_fields(&new.description, None, None, None);
    Ok(Plan {
        operation: Operation::Create,
        entity_type: "project",
        id: None,
        label: format!("{key} {}", display_text(&new.name)),
        // Creations of projects run one after another, because the key of one may be taken by another.
        lock_key: "tracker:projects".to_owned(),
        summary: format!("Create project “{}” with the key {key}", display_text(&new.name)),
        field_changes: fields.into_iter().chain(optional).map(FieldChange::added).collect(),
        state: vec![("free project key", key.to_string())],
        write: Box::new(move |run| run.create_project(&key, new)),
    })
}

fn plan_issue_creation<'w>(db: Db<'_>, new: &'w CreateIssue) -> Result<Plan<'w>, McpError> {
    let project = require_project(db, &new.project_id)?;
    let parent = require_parent(db, new.parent_id.as_ref())?;
    check_parent(new.kind, project.row, &project.key, parent.as_ref())?;
    if let Some(parent) = &parent {
        check_ancestors(db, parent, None)?;
    }
    let assignee = require_person(db, new.assignee_id.as_ref())?;
    let project_label = format!("{} {}", project.key, project.name);
    let fields = [
        ("project", "Project", project_label.clone()),
        ("key", "Key", format!("{}-… (assigned when it is applied)", project.key)),
        ("type", "Type", new.kind.to_string()),
        ("title", "Title", new.title.to_string()),
        ("status", "Status", Status::Backlog.to_string()),
        ("priority", "Priority", new.priority.to_string()),
    ];
    let assignee_label = person_label(db, assignee.as_ref())?;
    let optional = optional_fields(&new.description, assignee_label, new.estimated_hours, parent.as_ref());
    let (planned_assignee, planned_parent) = (assignee.clone(), parent.clone());
    let mut plan = Plan {
        operation: Operation::Create,
        entity_type: "issue",
        id: None,
        label: format!("{} (new in {})", display_text(&new.title), project.key),
        lock_key: project.id.to_string(),
        summary: format!("Create {} “{}” in {}", new.kind, display_text(&new.title), project.key),
        field_changes: fields.into_iter().chain(optional).map(FieldChange::added).collect(),
        state: vec![("project", project.id.to_string()), ("project.label", project_label)],
        write: Box::new(move |run| run.create_issue(&project, new, planned_assignee.as_ref(), planned_parent.as_ref())),
    };
    plan.depend_on_person(assignee.as_ref());
    plan.depend_on_parent(parent.as_ref());
    Ok(plan)
}

fn plan_issue_update<'w>(db: Db<'_>, issue: Issue, update: &'w UpdateIssue) -> Result<Plan<'w>, McpError> {
    let new_parent = update.parent_id.0.as_ref().map(|id| require_parent(db, id.as_ref())).transpose()?;
    let changes = changed_fields(&issue, update, new_parent.as_ref());
    if changes.is_empty() {
        return Err(refused(format!("Nothing would change: {} already has all these values.", issue.key))
            .with("issueId", issue.id.0));
    }
    let kind = update.kind.unwrap_or(issue.kind);
    if kind != issue.kind || new_parent.is_some() {
        let parent = new_parent.as_ref().unwrap_or(&issue.parent);
        check_parent(kind, issue.project, &issue.project_key, parent.as_ref())?;
    }
    if let Some(Some(parent)) = &new_parent {
        check_ancestors(db, parent, Some(&issue))?;
    }
    if kind != issue.kind {
        let misfits: Vec<String> = children(db, issue.row, usize::MAX)?
            .into_iter()
            .filter(|child| !child.kind.allowed_parent_types().contains(&kind))
            .map(|child| format!("{} ({})", child.key, child.kind))
            .collect();
        if !misfits.is_empty() {
            let listed_misfits: Vec<String> = misfits.iter().take(MAX_LISTED_IN_ERROR).cloned().collect();
            let message = format!(
                "{} cannot become {}: {} of its children could not stay under it ({}).",
                issue.key,
                with_article(kind),
                misfits.len(),
                listed_misfits.join(", ")
            );
            return Err(refused(message).with("pointer", "/type").with("children", listed_misfits));
        }
    }
    let names: Vec<&str> = changes.iter().map(|change| change.label).collect();
    let summary = format!("Update {} “{}”: {}", issue.key, display_text(&issue.title), names.join(", ").to_lowercase());
    let planned_parent = new_parent.clone();
    let mut plan = Plan::for_issue(Operation::Update, &issue, summary, changes, move |run, issue| {
        run.update_issue(issue, update, planned_parent.as_ref())
    });
    if let Some(new_parent) = new_parent {
        plan.depend_on_parent(issue.parent.as_ref());
        plan.depend_on_parent(new_parent.as_ref());
    }
    Ok(plan)
}

/// Returns the fields that an update gives another value.
fn changed_fields(issue: &Issue, update: &UpdateIssue, new_parent: Option<&Option<Parent>>) -> Vec<FieldChange> {
    let hours = |hours: Option<Hours>| hours.map(|hours| hours.to_string());
    let label = |parent: &Option<Parent>| parent.as_ref().map(Parent::label);
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    // Each field with its present value, and with the new one if the update names it.
    let fields = [
        ("title", "Title", text(&issue.title), update.title.as_deref().map(|title| text(title))),
        ("type", "Type", Some(issue.kind.to_string()), update.kind.map(|kind| Some(kind.to_string()))),
        ("priority", "Priority", Some(issue.priority.to_string()), update.priority.map(|p| Some(p.to_string()))),
        ("estimatedHours", "Estimated hours", hours(issue.estimated_hours), update.estimated_hours.0.map(hours)),
        ("parent", "Parent", label(&issue.parent), new_parent.map(label)),
        ("description", "Description", text(&issue.description), update.description.as_deref().map(|new| text(new))),
    ];
    let changed = |(field, label, before, after): (_, _, Option<String>, Option<Option<String>>)| {
        let after = after.filter(|after| *after != before)?;
        Some(FieldChange::new(field, label, before, after))
    };
    fields.into_iter().filter_map(changed).collect()
}

fn plan_status_update(workflow: &Workflow, issue: Issue, to: Status) -> Result<Plan<'static>, McpError> {
    let from = issue.status;
    if !workflow.allows(from, to) {
        let allowed_statuses: Vec<&str> = workflow.allowed_from(from).iter().map(|status| status.as_str()).collect();
        let message = if from == to {
            format!("{} is already in {to}.", issue.key)
        } else if allowed_statuses.is_empty() {
            format!("{} is in {from} and the workflow has no way out of it.", issue.key)
        } else {
            format!(
                "{} cannot go from {from} to {to}. Allowed from {from}: {}.",
                issue.key,
                allowed_statuses.join(", ")
            )
        };
        return Err(refused(message)
            .with("issueId", issue.id.0)
            .with("current", from.as_str())
            .with("requested", to.as_str())
            .with("allowed", allowed_statuses));
    }
    let summary = format!("Move {} “{}” from {from} to {to}", issue.key, display_text(&issue.title));
    let changes = vec![FieldChange::new("status", "Status", Some(from.to_string()), Some(to.to_string()))];
    Ok(Plan::for_issue(Operation::Update, &issue, summary, changes, move |run, issue| run.update_status(issue, to)))
}

fn plan_assignment(db: Db<'_>, issue: Issue, assignee: Option<&Uuid>) -> Result<Plan<'static>, McpError> {
    let assignee = require_person(db, assignee)?;
    // Two people may have the same name.
    let (before, after) = (person_label(db, issue.assignee.as_ref())?, person_label(db, assignee.as_ref())?);
    let row_of = |person: &Option<Person>| person.as_ref().map(|person| person.row);
    let assignee_row = row_of(&assignee);
    if row_of(&issue.assignee) == assignee_row {
        let message = match before {
            Some(name) => format!("{} is already assigned to {name}.", issue.key),
            None => format!("{} already has no assignee.", issue.key),
        };
        return Err(refused(message).with("issueId", issue.id.0));
    }
    let title = display_text(&issue.title);
    let summary = match &after {
        Some(name) => format!("Assign {} “{title}” to {}", issue.key, display_text(name)),
        None => format!("Leave {} “{title}” without an assignee", issue.key),
    };
    let changes = vec![FieldChange::new("assignee", "Assignee", before, after)];
    let assign = move |run: &mut PlanRun<'_>, issue: &Issue| run.assign(issue, assignee_row);
    let mut plan = Plan::for_issue(Operation::Update, &issue, summary, changes, assign);
    plan.depend_on_person(issue.assignee.as_ref());
    plan.depend_on_person(assignee.as_ref());
    Ok(plan)
}

fn plan_comment(issue: Issue, comment: &AddComment) -> Plan<'_> {
    Plan {
        operation: Operation::Create,
        entity_type: "comment",
        id: None,
        label: format!("on {}", issue.display_label()),
        lock_key: issue.id.to_string(),
        summary: format!("Comment on {} “{}”", issue.key, display_text(&issue.title)),
        field_changes: vec![FieldChange::added(("content", "Comment", comment.content.to_string()))],
        // The version is left out, because a comment stays valid when another field of the issue changes.
        state: vec![("issue", issue.id.to_string()), ("issue.label", issue.label())],
        write: Box::new(move |run| run.comment(&issue, &comment.content)),
    }
}

fn plan_deletion(db: Db<'_>, issue: Issue) -> Result<Plan<'static>, McpError> {
    let children = children(db, issue.row, MAX_LISTED_IN_ERROR)?;
    if !children.is_empty() {
        let keys: Vec<String> = children.into_iter().map(|child| child.key.0).collect();
        let message =
            format!("{} has children ({}). Delete them or give them another parent first.", issue.key, keys.join(", "));
        return Err(refused(message).with("issueId", issue.id.0).with("children", keys));
    }
    let sql = "SELECT MAX(id) FROM comments WHERE issue = ?1";
    let last_comment: Option<i64> = db.query_one(sql, values![issue.row], |row| row.get(0))?;
    let comments = issue.comment_count;
    let removed = |(field, label, value): Field| FieldChange::new(field, label, Some(value), None);
    let changes: Vec<FieldChange> = issue_fields(db, &issue)?.into_iter().map(removed).collect();
    let with_comments = if comments > 0 { format!(" with {}", plural(comments, "comment")) } else { String::new() };
    let summary = format!("Delete {} {} “{}”{with_comments}", issue.kind, issue.key, display_text(&issue.title));
    let mut plan = Plan::for_issue(Operation::Delete, &issue, summary, changes, |run, issue| run.delete(issue));
    plan.state.push(("comments", format!("{comments} {}", last_comment.unwrap_or(0))));
    plan.depend_on_person(issue.assignee.as_ref());
    plan.depend_on_parent(issue.parent.as_ref());
    Ok(plan)
}
