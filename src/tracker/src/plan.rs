//! A write worked out against the live state: everything that can be refused is refused here.
//!
//! The preview shows a plan and the run carries one out, so that both check and mean the same.

use super::{
    args::{NewIssue, Patch, Write},
    checks::{
        NAMED, article, check_chain, check_parent, live_issue, live_parent, live_person, live_project, parent_label,
        refused,
    },
    db::{Db, failed, values},
    model::{FieldChange, Issue, Parent, Person, Project, Status, shown},
    project_keys,
    refs::EntityRef,
    rows::{children, find_project},
    workflow::Workflow,
};
use countersign_domain::changes::{Operation, Preview, PreviewNote, Target, diff::DiffBuilder, fingerprint};
use countersign_protocol::McpError;

/// What would be done.
pub(super) struct Plan {
    pub operation: Operation,
    entity: &'static str,
    id: Option<String>,
    label: String,
    lock_key: String,
    pub summary: String,
    pub changes: Vec<FieldChange>,
    /// What of the live state the plan rests on.
    state: Vec<(&'static str, String)>,
    pub action: Action,
}

pub(super) enum Action {
    CreateProject { key: String, name: String, description: String },
    CreateIssue { project: Project, new: Box<NewIssue>, assignee: Option<Person>, parent: Option<Parent> },
    UpdateIssue { issue: Box<Issue>, patch: Box<Patch>, parent: Option<Option<Parent>> },
    UpdateStatus { issue: Box<Issue>, to: Status },
    Assign { issue: Box<Issue>, assignee: Option<Person> },
    Comment { issue: Box<Issue>, content: String },
    Delete { issue: Box<Issue>, comments: i64 },
}

/// Works out a write, or says precisely why it cannot be.
pub(super) fn plan(db: Db<'_>, workflow: &Workflow, write: &Write) -> Result<Plan, McpError> {
    match write {
        Write::CreateProject { name, key, description } => create_project(db, name, key.as_deref(), description),
        Write::CreateIssue(new) => create_issue(db, new),
        Write::UpdateIssue { issue, patch } => update_issue(db, live_issue(db, issue)?, patch),
        Write::UpdateStatus { issue, to } => update_status(workflow, live_issue(db, issue)?, *to),
        Write::Assign { issue, assignee } => assign(db, live_issue(db, issue)?, assignee.as_deref()),
        Write::Comment { issue, content } => Ok(comment(live_issue(db, issue)?, content)),
        Write::Delete { issue } => delete(db, live_issue(db, issue)?),
    }
}

impl Plan {
    /// As the gateway shows it to the agent and to whoever decides.
    pub fn preview(&self) -> Preview {
        let mut diff = DiffBuilder::new();
        for change in &self.changes {
            diff.add(change.field, change.label, change.before.as_deref(), change.after.as_deref());
        }
        Preview {
            note: PreviewNote::default(),
            operation: self.operation,
            target: Target {
                entity_type: self.entity.to_owned(),
                id: self.id.clone(),
                label: self.label.clone(),
                lock_key: self.lock_key.clone(),
            },
            summary: self.summary.clone(),
            diff: diff.finish(),
            fingerprint: self.fingerprint(),
        }
    }

    /// Hash of the state that the plan rests on.
    pub fn fingerprint(&self) -> String {
        let parts: Vec<(&str, &str)> = self.state.iter().map(|(name, value)| (*name, value.as_str())).collect();
        fingerprint(&parts)
    }

    fn of_issue(
        operation: Operation,
        issue: &Issue,
        summary: String,
        changes: Vec<FieldChange>,
        action: Action,
    ) -> Self {
        Self {
            operation,
            entity: "issue",
            id: Some(issue.id.clone()),
            label: issue.shown_label(),
            lock_key: issue.id.clone(),
            summary,
            changes,
            state: vec![("issue", issue.id.clone()), ("version", issue.version.to_string())],
            action,
        }
    }

    fn rests_on_person(&mut self, person: Option<&Person>) {
        if let Some(p) = person {
            self.state.push(("person", p.id.clone()));
            self.state.push(("person.name", p.name.clone()));
        }
    }

    fn rests_on_parent(&mut self, parent: Option<&Parent>) {
        if let Some(p) = parent {
            self.state.push(("parent", p.id.clone()));
            self.state.push(("parent.label", parent_label(p)));
            self.state.push(("parent.type", p.kind.to_string()));
        }
    }
}

fn create_project(db: Db<'_>, name: &str, key: Option<&str>, description: &str) -> Result<Plan, McpError> {
    let key = match key {
        Some(key) => {
            let taken = find_project(db, &EntityRef::Key(key.to_owned())).map_err(|e| failed(&e))?;
            if let Some(project) = taken {
                return Err(refused(format!("The key {key} belongs to the project “{}”.", project.name))
                    .with("pointer", "/key")
                    .with("projectId", project.id));
            }
            key.to_owned()
        }
        None => project_keys::derive(db, name)?,
    };
    let mut changes = vec![
        FieldChange::new("name", "Name", None, Some(name.to_owned())),
        FieldChange::new("key", "Key", None, Some(key.clone())),
    ];
    if !description.is_empty() {
        changes.push(FieldChange::new("description", "Description", None, Some(description.to_owned())));
    }
    Ok(Plan {
        operation: Operation::Create,
        entity: "project",
        id: None,
        label: format!("{key} {}", shown(name)),
        // A key that is free now must still be free when the next one is made.
        lock_key: "tracker:projects".to_owned(),
        summary: format!("Create project “{}” with the key {key}", shown(name)),
        changes,
        state: vec![("free project key", key.clone())],
        action: Action::CreateProject { key, name: name.to_owned(), description: description.to_owned() },
    })
}

fn create_issue(db: Db<'_>, new: &NewIssue) -> Result<Plan, McpError> {
    let project = live_project(db, &new.project)?;
    let parent = live_parent(db, new.parent.as_deref())?;
    check_parent(new.kind, &project, parent.as_ref())?;
    if let Some(parent) = &parent {
        check_chain(db, parent, None)?;
    }
    let assignee = live_person(db, new.assignee.as_deref())?;
    let set = |field, label, value: String| FieldChange::new(field, label, None, Some(value));
    let mut changes = vec![
        set("project", "Project", format!("{} {}", project.key, project.name)),
        set("key", "Key", format!("{}-… (allotted when it is applied)", project.key)),
        set("type", "Type", new.kind.to_string()),
        set("title", "Title", new.title.clone()),
        set("status", "Status", Status::Backlog.to_string()),
        set("priority", "Priority", new.priority.to_string()),
    ];
    if !new.description.is_empty() {
        changes.push(set("description", "Description", new.description.clone()));
    }
    if let Some(person) = &assignee {
        changes.push(set("assignee", "Assignee", person.name.clone()));
    }
    if let Some(hours) = new.hours {
        changes.push(set("estimatedHours", "Estimated hours", hours.to_string()));
    }
    if let Some(parent) = &parent {
        changes.push(set("parent", "Parent", parent_label(parent)));
    }
    let mut plan = Plan {
        operation: Operation::Create,
        entity: "issue",
        id: None,
        label: format!("{} (new in {})", shown(&new.title), project.key),
        lock_key: project.id.clone(),
        summary: format!("Create {} “{}” in {}", new.kind, shown(&new.title), project.key),
        changes,
        state: vec![("project", project.id.clone()), ("project.label", format!("{} {}", project.key, project.name))],
        action: Action::CreateIssue {
            project,
            new: Box::new(new.clone()),
            assignee: assignee.clone(),
            parent: parent.clone(),
        },
    };
    plan.rests_on_person(assignee.as_ref());
    plan.rests_on_parent(parent.as_ref());
    Ok(plan)
}

fn update_issue(db: Db<'_>, issue: Issue, patch: &Patch) -> Result<Plan, McpError> {
    let parent = match &patch.parent {
        None => None,
        Some(id) => Some(live_parent(db, id.as_deref())?),
    };
    let changes = changed_fields(&issue, patch, parent.as_ref());
    if changes.is_empty() {
        return Err(refused(format!("Nothing would change: {} already has all these values.", issue.key))
            .with("issueId", issue.id));
    }
    let kind = patch.kind.unwrap_or(issue.kind);
    let kept = parent.as_ref().map_or(issue.parent.as_ref(), Option::as_ref);
    if kind != issue.kind || parent.is_some() {
        check_parent(kind, &issue.project, kept)?;
    }
    if let Some(Some(parent)) = &parent {
        check_chain(db, parent, Some(&issue))?;
    }
    if kind != issue.kind {
        let misfits: Vec<String> = children(db, issue.rowid, i64::MAX)
            .map_err(|e| failed(&e))?
            .into_iter()
            .filter(|(_, child)| !child.parents().contains(&kind))
            .map(|(key, child)| format!("{key} ({child})"))
            .collect();
        if !misfits.is_empty() {
            let shown: Vec<String> = misfits.iter().take(20).cloned().collect();
            let message = format!(
                "{} cannot become {}: {} of its children could not stay under it ({}).",
                issue.key,
                article(kind),
                misfits.len(),
                shown.join(", ")
            );
            return Err(refused(message).with("pointer", "/type").with("children", shown));
        }
    }
    let names: Vec<&str> = changes.iter().map(|c| c.label).collect();
    let summary = format!("Update {} “{}”: {}", issue.key, shown(&issue.title), names.join(", ").to_lowercase());
    let old_parent = issue.parent.clone();
    let action =
        Action::UpdateIssue { issue: Box::new(issue.clone()), patch: Box::new(patch.clone()), parent: parent.clone() };
    let mut plan = Plan::of_issue(Operation::Update, &issue, summary, changes, action);
    if parent.is_some() {
        plan.rests_on_parent(old_parent.as_ref());
    }
    plan.rests_on_parent(parent.flatten().as_ref());
    Ok(plan)
}

fn changed_fields(issue: &Issue, patch: &Patch, parent: Option<&Option<Parent>>) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    let mut add = |field, label, before: Option<String>, after: Option<String>| {
        if before != after {
            changes.push(FieldChange::new(field, label, before, after));
        }
    };
    if let Some(title) = &patch.title {
        add("title", "Title", Some(issue.title.clone()), Some(title.clone()));
    }
    if let Some(kind) = patch.kind {
        add("type", "Type", Some(issue.kind.to_string()), Some(kind.to_string()));
    }
    if let Some(priority) = patch.priority {
        add("priority", "Priority", Some(issue.priority.to_string()), Some(priority.to_string()));
    }
    if let Some(hours) = patch.hours {
        let text = |h: Option<f64>| h.map(|h| h.to_string());
        add("estimatedHours", "Estimated hours", text(issue.hours), text(hours));
    }
    if let Some(parent) = parent {
        add("parent", "Parent", issue.parent.as_ref().map(parent_label), parent.as_ref().map(parent_label));
    }
    if let Some(description) = &patch.description {
        let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
        add("description", "Description", text(&issue.description), text(description));
    }
    changes
}

fn update_status(workflow: &Workflow, issue: Issue, to: Status) -> Result<Plan, McpError> {
    if !workflow.allows(issue.status, to) {
        let allowed: Vec<&str> = workflow.allowed(issue.status).iter().map(|s| s.as_str()).collect();
        let message = if issue.status == to {
            format!("{} is already in {to}.", issue.key)
        } else if allowed.is_empty() {
            format!("{} is in {} and the workflow has no way out of it.", issue.key, issue.status)
        } else {
            format!(
                "{} cannot go from {} to {to}. Allowed from {}: {}.",
                issue.key,
                issue.status,
                issue.status,
                allowed.join(", ")
            )
        };
        return Err(refused(message)
            .with("issueId", issue.id)
            .with("current", issue.status.as_str())
            .with("requested", to.as_str())
            .with("allowed", allowed));
    }
    let summary = format!("Move {} “{}” from {} to {to}", issue.key, shown(&issue.title), issue.status);
    let changes = vec![FieldChange::new("status", "Status", Some(issue.status.to_string()), Some(to.to_string()))];
    let action = Action::UpdateStatus { issue: Box::new(issue.clone()), to };
    Ok(Plan::of_issue(Operation::Update, &issue, summary, changes, action))
}

fn assign(db: Db<'_>, issue: Issue, assignee: Option<&str>) -> Result<Plan, McpError> {
    let assignee = live_person(db, assignee)?;
    let before = issue.assignee.as_ref();
    if before.map(|p| p.rowid) == assignee.as_ref().map(|p| p.rowid) {
        let message = match before {
            Some(person) => format!("{} is already assigned to {}.", issue.key, person.name),
            None => format!("{} already has no assignee.", issue.key),
        };
        return Err(refused(message).with("issueId", issue.id));
    }
    let summary = match &assignee {
        Some(person) => format!("Assign {} “{}” to {}", issue.key, shown(&issue.title), shown(&person.name)),
        None => format!("Leave {} “{}” without an assignee", issue.key, shown(&issue.title)),
    };
    let changes = vec![FieldChange::new(
        "assignee",
        "Assignee",
        before.map(|p| p.name.clone()),
        assignee.as_ref().map(|p| p.name.clone()),
    )];
    let action = Action::Assign { issue: Box::new(issue.clone()), assignee: assignee.clone() };
    let mut plan = Plan::of_issue(Operation::Update, &issue, summary, changes, action);
    // Two people may have one name, and the diff shows names.
    plan.rests_on_person(issue.assignee.as_ref());
    plan.rests_on_person(assignee.as_ref());
    Ok(plan)
}

fn comment(issue: Issue, content: &str) -> Plan {
    Plan {
        operation: Operation::Create,
        entity: "comment",
        id: None,
        label: format!("on {}", issue.shown_label()),
        lock_key: issue.id.clone(),
        summary: format!("Comment on {} “{}”", issue.key, shown(&issue.title)),
        changes: vec![FieldChange::new("content", "Comment", None, Some(content.to_owned()))],
        // Not the version: a comment on an issue stays right when a field of it changes.
        state: vec![("issue", issue.id.clone()), ("issue.label", issue.label())],
        action: Action::Comment { issue: Box::new(issue), content: content.to_owned() },
    }
}

fn delete(db: Db<'_>, issue: Issue) -> Result<Plan, McpError> {
    let below = children(db, issue.rowid, NAMED).map_err(|e| failed(&e))?;
    if !below.is_empty() {
        let keys: Vec<String> = below.into_iter().map(|(key, _)| key).collect();
        let message =
            format!("{} has children ({}). Delete them or give them another parent first.", issue.key, keys.join(", "));
        return Err(refused(message).with("issueId", issue.id).with("children", keys));
    }
    let sql = "SELECT COUNT(*), MAX(id) FROM comments WHERE issue = ?1";
    let (comments, last): (i64, Option<i64>) =
        db.one(sql, values![issue.rowid], |row| Ok((row.get(0)?, row.get(1)?))).map_err(|e| failed(&e))?;
    let gone = |field, label, value: String| FieldChange::new(field, label, Some(value), None);
    let mut changes = vec![
        gone("key", "Key", issue.key.clone()),
        gone("type", "Type", issue.kind.to_string()),
        gone("title", "Title", issue.title.clone()),
        gone("status", "Status", issue.status.to_string()),
        gone("priority", "Priority", issue.priority.to_string()),
    ];
    if !issue.description.is_empty() {
        changes.push(gone("description", "Description", issue.description.clone()));
    }
    if let Some(person) = &issue.assignee {
        changes.push(gone("assignee", "Assignee", person.name.clone()));
    }
    if let Some(hours) = issue.hours {
        changes.push(gone("estimatedHours", "Estimated hours", hours.to_string()));
    }
    if let Some(parent) = &issue.parent {
        changes.push(gone("parent", "Parent", parent_label(parent)));
    }
    if comments > 0 {
        changes.push(gone("comments", "Comments", comments.to_string()));
    }
    let with = match comments {
        0 => String::new(),
        1 => " with 1 comment".to_owned(),
        n => format!(" with {n} comments"),
    };
    let summary = format!("Delete {} {} “{}”{with}", issue.kind, issue.key, shown(&issue.title));
    let action = Action::Delete { issue: Box::new(issue.clone()), comments };
    let mut plan = Plan::of_issue(Operation::Delete, &issue, summary, changes, action);
    plan.state.push(("comments", format!("{comments} {}", last.unwrap_or(0))));
    plan.rests_on_person(issue.assignee.as_ref());
    plan.rests_on_parent(issue.parent.as_ref());
    Ok(plan)
}
