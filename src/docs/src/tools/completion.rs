//! The prompt `capture`, and completion for its arguments and for the resource template.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    resources::{TEMPLATE, active_tenant},
    run_blocking, tenant,
};
use crate::{
    library::{Library, Project},
    text::capture,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, Completion, CompletionRef, PromptArgumentDef, PromptDef, PromptMessage, PromptResult, text::one_line,
};

/// The name of the prompt.
const CAPTURE_PROMPT: &str = "capture";
/// The maximum number of values in one answer (2026-07-28/server/utilities/completion).
const MAX_COMPLETION_VALUES: usize = 100;
/// The maximum number of characters of a subject.
const MAX_SUBJECT_CHARS: usize = 4000;

/// Returns the definition of the prompt.
pub(crate) fn prompts() -> Vec<PromptDef> {
    let argument = |name: &str, title: &str, description: &str, required| PromptArgumentDef {
        name: name.to_owned(),
        title: title.to_owned(),
        description: description.to_owned(),
        required,
    };
    vec![PromptDef {
        name: CAPTURE_PROMPT.to_owned(),
        title: "Write down what was learned".to_owned(),
        description: "Helps to write a good document of a type and to propose it.".to_owned(),
        arguments: vec![
            argument(
                "type",
                "Type",
                "The type of the document: problem, insight, codebase, tool, style, or one of the project's own.",
                true,
            ),
            argument("subject", "Subject", "What the document is about. Default: what was just found out.", false),
            argument("project", "Project", "The project. Optional if there is only one.", false),
        ],
        raw: None,
    }]
}

fn invalid_params_error(message: String) -> McpError {
    McpError::new(ErrorKind::InvalidParams, message)
}

fn unknown_prompt_error(name: &str) -> McpError {
    McpError::new(ErrorKind::PromptNotFound, format!("There is no prompt {}.", one_line(name, 64)))
}

/// Returns the named project, or else the project of the session, or else the only project.
///
/// # Errors
/// `INVALID_PARAMS` if there is none; `TENANT_MISMATCH` if the session has another project.
fn project_of(library: &Library, name: Option<&str>, ctx: &CallContext) -> Result<Arc<Project>, McpError> {
    let active = active_tenant(ctx);
    let name = name.or(active.as_ref().map(|active| active.project.as_str()));
    let project = match (name, library.projects.as_slice()) {
        (None, [only]) => Arc::clone(only),
        (None, projects) => {
            let names: Vec<&str> = projects.iter().map(|project| project.name.as_str()).collect();
            return Err(invalid_params_error(format!("Name the project: {}.", names.join(", "))));
        }
        (name, _) => {
            tenant::require_project(library, name).map_err(|error| invalid_params_error(error.message.to_string()))?
        }
    };
    active.map_or(Ok(()), |active| active.check(&project))?;
    Ok(project)
}

/// Answers `prompts/get`.
pub(crate) fn get_prompt(
    library: &Library,
    name: &str,
    arguments: &Map<String, Value>,
    ctx: &CallContext,
) -> Result<PromptResult, McpError> {
    if name != CAPTURE_PROMPT {
        return Err(unknown_prompt_error(name));
    }
    let text_argument = |name: &str| arguments.get(name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let project = project_of(library, text_argument("project"), ctx)?;
    let type_name = text_argument("type")
        .ok_or_else(|| invalid_params_error("The prompt needs the argument `type`.".to_owned()))?;
    let types = project.types();
    let kind = types.get(type_name).ok_or_else(|| {
        let type_names: Vec<&str> = types.all().map(|kind| kind.name.as_str()).collect();
        invalid_params_error(format!(
            "There is no type {}; there are {}.",
            one_line(type_name, 64),
            type_names.join(", ")
        ))
    })?;
    let subject: Option<String> = text_argument("subject").map(|text| text.chars().take(MAX_SUBJECT_CHARS).collect());
    Ok(PromptResult {
        description: format!("A document of the type {}", kind.name),
        messages: vec![PromptMessage {
            role: "user",
            text: capture::capture_prompt(kind, subject.as_deref(), &project.name),
        }],
    })
}

/// Answers `completion/complete`.
pub(crate) async fn complete(
    library: &Arc<Library>,
    reference: &CompletionRef,
    (argument, typed): (&str, &str),
    context: &Map<String, Value>,
    ctx: &CallContext,
) -> Result<Completion, McpError> {
    let context_project = context.get("project").and_then(Value::as_str);
    match (reference, argument) {
        (CompletionRef::Prompt(name), _) if name != CAPTURE_PROMPT => Err(unknown_prompt_error(name)),
        (CompletionRef::Prompt(_), "type") => {
            // The types of all projects are offered if no project is known yet.
            let chosen_project = project_if_known(library, context_project, ctx)?;
            let all = chosen_project.iter().chain(library.projects.iter().filter(|_| chosen_project.is_none()));
            let mut names: Vec<String> = all
                .flat_map(|project| project.types().all().map(|kind| kind.name.clone()).collect::<Vec<_>>())
                .collect();
            names.sort();
            names.dedup();
            Ok(complete_prefix(names, typed))
        }
        (CompletionRef::Prompt(_), "subject") => Ok(Completion::default()),
        (CompletionRef::Prompt(_), "project") => Ok(complete_project(library, typed, ctx)),
        (CompletionRef::ResourceTemplate(uri), "project") if uri == TEMPLATE => {
            Ok(complete_project(library, typed, ctx))
        }
        (CompletionRef::ResourceTemplate(uri), "path") if uri == TEMPLATE => {
            let Some(project) = project_if_known(library, context_project, ctx)? else {
                return Ok(Completion::default());
            };
            let typed = typed.to_owned();
            run_blocking(move || {
                let indexed = project.tenant(None)?;
                let (entries, total) = indexed.docs.list(&typed, MAX_COMPLETION_VALUES)?;
                let values: Vec<String> = entries.into_iter().map(|entry| entry.path).collect();
                Ok(Completion { has_more: total > values.len(), values, total: Some(total as u64) })
            })
            .await
        }
        _ => Err(invalid_params_error(format!("There is no argument {} here.", one_line(argument, 64)))),
    }
}

/// Completes the name of a project that the session may use.
fn complete_project(library: &Library, typed: &str, ctx: &CallContext) -> Completion {
    let active = active_tenant(ctx);
    let is_listed = |project: &&Arc<Project>| active.as_ref().is_none_or(|active| active.project == project.name);
    complete_prefix(library.projects.iter().filter(is_listed).map(|project| project.name.clone()).collect(), typed)
}

/// Returns the project like [`project_of`], or `None` if there is none.
///
/// # Errors
/// `TENANT_MISMATCH` if the session has another project.
fn project_if_known(
    library: &Library,
    name: Option<&str>,
    ctx: &CallContext,
) -> Result<Option<Arc<Project>>, McpError> {
    match project_of(library, name, ctx) {
        Err(error) if error.kind != ErrorKind::ProjectMismatch => Ok(None),
        found => found.map(Some),
    }
}

/// Returns the values that begin with the typed text, ignoring case.
fn complete_prefix(mut values: Vec<String>, typed: &str) -> Completion {
    let typed = typed.to_lowercase();
    values.retain(|value| value.to_lowercase().starts_with(&typed));
    let total = values.len();
    values.truncate(MAX_COMPLETION_VALUES);
    Completion { has_more: total > values.len(), values, total: Some(total as u64) }
}
