//! Resolves the project, branch and root of a call. Only a deletion accesses other tenants of its project.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::args::TenantSelector;
use crate::{
    library::{IndexedTenant, Library, Project},
    model::NO_BRANCH,
};
use countersign_domain::text::truncate;
use countersign_protocol::{
    ErrorKind, McpError,
    json::{MemberEdit, edit, member, quoted, string},
};
use countersign_provider::SessionNotes;

/// The key of the tenant in the session's notes.
const NOTE_KEY: &str = "docs";

/// The tenant that a session has activated.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActiveTenant {
    pub project: String,
    pub branch: String,
}

impl ActiveTenant {
    /// Reads the tenant from the notes of a session.
    pub fn from_notes(notes: &SessionNotes) -> Option<Self> {
        serde_json::from_str(&notes.get(NOTE_KEY)?).ok()
    }

    /// Checks that a resource of this project, with its current files, belongs to the session's tenant.
    ///
    /// # Errors
    /// `TENANT_MISMATCH`
    pub fn check(&self, project: &Project) -> Result<(), McpError> {
        if project.name != self.project {
            return Err(mismatch_error(self, &format!("this document belongs to {}", project.name)));
        }
        let checked_out = project.read_branch();
        if checked_out == self.branch {
            Ok(())
        } else {
            Err(mismatch_error(self, &format!("{checked_out} is checked out")))
        }
    }

    /// Writes the tenant to the notes of a session.
    pub fn save(&self, notes: &SessionNotes) {
        notes.set(NOTE_KEY, &json!(self).to_string());
    }
}

/// Resolves the tenant of a call.
///
/// # Errors
/// `PROJECT_NOT_ACTIVE` if no project is named; `TENANT_MISMATCH` if it is not configured or the branch is unknown.
/// Without branch tracking, any branch name is accepted.
pub(crate) fn resolve_tenant(library: &Library, selector: &TenantSelector) -> Result<Arc<IndexedTenant>, McpError> {
    let project = require_project(library, selector.project_name.as_deref())?;
    project.tenant(selector.branch_name.as_deref().filter(|_| project.tracks_branches()))
}

/// Resolves the tenant of a call that accesses the files themselves, which needs the checked-out branch.
///
/// # Errors
/// Fails as [`resolve_tenant`] does.
pub(crate) fn resolve_checked_out(
    library: &Library,
    selector: &TenantSelector,
) -> Result<Arc<IndexedTenant>, McpError> {
    let indexed = resolve_tenant(library, selector)?;
    ensure_checked_out(&indexed)?;
    Ok(indexed)
}

/// Checks that the files in the folder are those of this branch, according to the repository.
///
/// # Errors
/// `TENANT_MISMATCH`
pub(crate) fn ensure_checked_out(indexed: &IndexedTenant) -> Result<(), McpError> {
    let (branch, checked_out) = (&indexed.tenant.branch, indexed.project.read_branch());
    if indexed.is_current && *branch == checked_out {
        return Ok(());
    }
    let message = format!(
        "The branch {branch} is not checked out, {checked_out} is: documents are written only to the checked-out branch. \
         Call activate_project again."
    );
    Err(McpError::new(ErrorKind::ProjectMismatch, message)
        .with("branch_name", branch.as_str())
        .with("checked_out", checked_out))
}

/// Returns the named project.
///
/// # Errors
/// Fails as [`resolve_tenant`] does.
pub(crate) fn require_project(library: &Library, name: Option<&str>) -> Result<Arc<Project>, McpError> {
    let Some(name) = name else {
        let message = "No project is active. Call activate_project with a project_name first; a client without a session \
                       names project_name in each call.";
        return Err(McpError::new(ErrorKind::ProjectNotActive, message).with("projects", project_names(library)));
    };
    let project = library.project(name).map(Arc::clone);
    project.ok_or_else(|| {
        let short_name = truncate(name, 64);
        McpError::new(ErrorKind::ProjectMismatch, format!("There is no project {short_name} here."))
            .with("project_name", short_name)
            .with("projects", project_names(library))
    })
}

/// Returns the project whose root contains this path.
///
/// # Errors
/// `TENANT_MISMATCH` if there is none.
pub(crate) fn project_of_path(library: &Library, path: &str) -> Result<Arc<Project>, McpError> {
    let is_plain = !Path::new(path).components().any(|part| part == std::path::Component::ParentDir);
    // The deepest root wins, since one project may be inside another.
    let projects = library.projects.iter().filter(|project| is_plain && Path::new(path).starts_with(&project.root));
    let deepest_project = projects.max_by_key(|project| project.root.components().count());
    deepest_project.map(Arc::clone).ok_or_else(|| {
        let short_path = truncate(path, 200);
        McpError::new(ErrorKind::ProjectMismatch, "This path is in no project that is configured here.")
            .with("config_path", short_path)
            .with("projects", project_names(library))
    })
}

fn project_names(library: &Library) -> Value {
    library.projects.iter().map(|project| project.name.clone()).collect::<Vec<_>>().into()
}

/// Adds the session's project and branch to the arguments; `None` if they stay unchanged. Only a project
/// that `tracks_branches` has other branches.
///
/// # Errors
/// `TENANT_MISMATCH` for a call about another project or branch than the active one.
pub(crate) fn complete_arguments(
    tool: &str,
    arguments: &RawValue,
    notes: &SessionNotes,
    tracks_branches: impl Fn(&str) -> bool,
) -> Result<Option<Box<RawValue>>, McpError> {
    if tool == "activate_project" || !arguments.get().starts_with('{') {
        return Ok(None);
    }
    let Some(active) = ActiveTenant::from_notes(notes) else { return Ok(None) };
    // The branches to delete must always be named in the call itself.
    let branch = (tool != "delete_documents").then_some(("branch_name", &active.branch));
    let mut values: Vec<(&str, String)> = Vec::new();
    for (name, active_value) in [Some(("project_name", &active.project)), branch].into_iter().flatten() {
        let needs_active_value = match member(arguments.get(), name).map(string) {
            None => true,
            // The input schema refuses a value that is not a string.
            Some(None) => false,
            Some(Some(value)) if value == *active_value => false,
            Some(Some(_)) if name == "branch_name" && !tracks_branches(&active.project) => true,
            Some(Some(_)) => return Err(mismatch_error(&active, &format!("`{name}` names another one"))),
        };
        if needs_active_value {
            values.push((name, quoted(active_value)));
        }
    }
    let edits: Vec<(&str, MemberEdit<'_>)> =
        values.iter().map(|(name, value)| (*name, MemberEdit::Set(value))).collect();
    if edits.is_empty() {
        return Ok(None);
    }
    RawValue::from_string(edit(arguments.get(), &edits))
        .map(Some)
        .map_err(|_| McpError::new(ErrorKind::ValidationFailed, "The arguments are not a JSON object."))
}

/// Returns the error for a call or resource that does not belong to the session's tenant.
fn mismatch_error(active: &ActiveTenant, reason: &str) -> McpError {
    let on_branch =
        if active.branch == NO_BRANCH { String::new() } else { format!(" on the branch {}", active.branch) };
    let message =
        format!("This session is about {}{on_branch}; {reason}. Call activate_project to change that.", active.project);
    McpError::new(ErrorKind::ProjectMismatch, message)
        .with("project_name", active.project.as_str())
        .with("branch_name", active.branch.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn active() -> SessionNotes {
        let notes = SessionNotes::default();
        ActiveTenant { project: "handbook".into(), branch: "main".into() }.save(&notes);
        notes
    }

    #[test]
    fn call_is_completed_with_project_and_branch_of_session() {
        let complete = |tool: &str, arguments: &str| {
            complete_arguments(tool, &raw(arguments), &active(), |_| true)
                .unwrap()
                .map(|completed| completed.get().to_owned())
        };
        assert_eq!(
            complete("semantic_search", r#"{"query":"a"}"#).unwrap(),
            r#"{"query":"a","project_name":"handbook","branch_name":"main"}"#
        );
        assert_eq!(
            complete("index_document", r#"{"path":"a","project_name":"handbook"}"#).unwrap(),
            r#"{"path":"a","project_name":"handbook","branch_name":"main"}"#
        );
        assert_eq!(complete("delete_documents", r#"{"project_name":"handbook","branch_name":"old"}"#), None);
        assert_eq!(complete("activate_project", r#"{"project_name":"other"}"#), None);
        assert_eq!(complete("semantic_search", r#"{"project_name":"handbook","branch_name":"main"}"#), None);
        assert_eq!(
            complete("semantic_search", r#"{"project_name":7,"branch_name":null}"#),
            None,
            "the schema refuses it"
        );
        assert!(
            complete_arguments("semantic_search", &raw("{}"), &SessionNotes::default(), |_| true).unwrap().is_none()
        );
    }

    #[test]
    fn branch_name_is_ignored_without_branch_tracking() {
        let notes = SessionNotes::default();
        ActiveTenant { project: "handbook".into(), branch: "-".into() }.save(&notes);
        let complete = |tool: &str| {
            let completed = complete_arguments(tool, &raw(r#"{"branch_name":"main"}"#), &notes, |_| false).unwrap();
            completed.unwrap().get().to_owned()
        };
        assert_eq!(complete("semantic_search"), r#"{"branch_name":"-","project_name":"handbook"}"#);
        assert_eq!(complete("delete_documents"), r#"{"branch_name":"main","project_name":"handbook"}"#);
    }

    #[test]
    fn call_about_inactive_project_or_branch_is_refused() {
        for arguments in [
            r#"{"project_name":"other"}"#,
            r#"{"project_name":"handbook","branch_name":"dev"}"#,
            r#"{"branch_name":"dev"}"#,
            r#"{"project\u005fname":"other"}"#,
        ] {
            let error = complete_arguments("semantic_search", &raw(arguments), &active(), |_| true).unwrap_err();
            assert_eq!(error.kind, ErrorKind::ProjectMismatch, "{arguments}");
        }
        assert!(
            complete_arguments("delete_documents", &raw(r#"{"project_name":"other"}"#), &active(), |_| false).is_err()
        );
    }
}
