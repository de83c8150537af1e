//! Previews of writes: either the module's own, or one by a configured recipe for the tool of an upstream.
//!
//! No provider makes a preview alone, because every read of a recipe has to pass policy as the proposer. A recipe calls
//! only tools that the operator named and whose definitions are pinned. If it fails, the preview shows the arguments
//! and says why.

mod alternatives;
pub mod arguments;
mod comparison;
pub mod compose;
pub mod confirmation;
mod dry_run;
pub mod expressions;
pub mod fault;
mod formats;
mod labels;
mod module;
mod path_filter;
pub mod recipe_runner;
mod sql;
mod state_keys;
mod unified_diff;
pub mod verification;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;

use crate::{CallContext, Provider, ProviderDirectory, ToolDef};
use compose::ComputedPreview;
use countersign_domain::changes::{Preview, plan::has_references};
use countersign_protocol::{ErrorKind, McpError};
use recipe_runner::RecipeRunner;

/// A call whose preview is requested, and the parts that make it.
#[derive(Clone, Copy)]
pub struct PreviewRequest<'a> {
    pub directory: &'a dyn ProviderDirectory,
    pub provider: &'a Arc<dyn Provider>,
    /// The name of the tool that clients use.
    pub tool: &'a str,
    pub arguments: &'a RawValue,
    /// The context of the calls that the preview makes. They are made as its principal, who proposes the call.
    pub context: &'a CallContext,
}

/// Previews a call as its proposer, and notes whether the preview shows data that this principal may not read
/// ([`countersign_domain::changes::PreviewNote::restricted`]). The preview is computed again when a change is approved and
/// just before it runs. Its fingerprint stays the same until the target changes.
///
/// # Errors
/// As [`Provider::preview`]; `VALIDATION_FAILED` for arguments that could defeat a dry run. A failed recipe is no error
/// (see [`countersign_domain::changes::PreviewNote::failed`]).
pub async fn preview(request: PreviewRequest<'_>) -> Result<Preview, McpError> {
    Ok(compute(request).await?.preview)
}

/// Previews again a change that was shown with `shown_fingerprint`. If the target cannot be read right now, this fails
/// instead of returning a different preview.
///
/// # Errors
/// As [`preview`], and transient errors of the recipe's calls such as `UPSTREAM_UNAVAILABLE` and `TIMEOUT`.
pub async fn recheck(request: PreviewRequest<'_>, shown_fingerprint: &str) -> Result<ComputedPreview, McpError> {
    let mut computed = compute(request).await?;
    match computed.transient_error.take() {
        Some(error) if computed.preview.fingerprint != shown_fingerprint => Err(error),
        _ => Ok(computed),
    }
}

/// Returns `true` if a step of a plan shows only its arguments: those refer to results of earlier steps, or the tool is one of
/// a module and only reads, so that there is no effect to preview.
pub fn shows_arguments_only(provider: &Arc<dyn Provider>, tool: &str, arguments: &RawValue) -> bool {
    let only_reads = |def: &ToolDef| {
        def.annotations.read_only_hint || def.read_only_when.is_some_and(|only_reads| only_reads(arguments))
    };
    has_references(arguments)
        || (provider.is_module() && provider.tools().iter().any(|def| def.name == tool && only_reads(def)))
}

/// Shows only the arguments of a step of a plan, without reading its target.
///
/// # Errors
/// `TOOL_NOT_FOUND` if the provider has no such tool.
pub async fn preview_arguments_only(
    provider: &Arc<dyn Provider>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Result<Preview, McpError> {
    let mut preview = if provider.is_module() {
        let def = provider.tools().into_iter().find(|def| def.name == tool);
        let def = def.ok_or_else(|| McpError::new(ErrorKind::ToolNotFound, "The provider has no such tool"))?;
        arguments::preview_arguments(provider.name(), tool, &def, arguments)
    } else {
        provider.preview(tool, arguments, context).await?
    };
    preview.note.awaits_results = has_references(arguments);
    Ok(preview)
}

/// Computes a preview. Boxed, because the code of an unboxed future, which includes all kinds of previews, would be
/// compiled again in each crate that awaits one.
fn compute(request: PreviewRequest<'_>) -> BoxFuture<'_, Result<ComputedPreview, McpError>> {
    Box::pin(async move {
        let PreviewRequest { provider, tool, arguments, context, .. } = request;
        if provider.is_module() {
            return module::preview_module_call(request).await;
        }
        let recipe = provider.recipe(tool);
        let alternatives = recipe.iter().flat_map(|recipe| recipe.alternatives());
        for dry_run in alternatives.filter_map(|recipe| recipe.dry_run.as_ref()) {
            dry_run::check_arguments(dry_run, arguments)?;
        }
        let arguments_preview = provider.preview(tool, arguments, context).await?;
        let Some(recipe) = recipe else {
            return Ok(ComputedPreview { preview: arguments_preview, transient_error: None, before: None });
        };
        Ok(RecipeRunner::new(request).run(recipe, arguments_preview).await)
    })
}
