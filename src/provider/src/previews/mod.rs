//! What a write would do, shown before it is done: the module's own preview, or, for the tool of an upstream, a recipe of
//! the configuration.
//!
//! No provider makes it alone: what a recipe reads passes policy as the proposer. A recipe may call nothing but
//! what the operator named, with the definition that is pinned; whatever goes wrong with it is told on the preview, which
//! then shows the arguments.

pub mod arguments;
mod dry_run;
pub mod fault;
pub mod made;
pub mod make;
mod module;
mod named;
pub mod rendered;
mod unified;

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::{CallContext, Provider, ProviderDirectory};
use countersign_domain::changes::Preview;
use countersign_protocol::McpError;
use made::Made;
use make::Maker;

/// Previews a call as `context.principal`, and notes whether it shows what that principal could not read
/// ([`countersign_domain::changes::PreviewNote::restricted`]). Taken anew when a change is approved and just before it runs; what it returns
/// is the same as long as nothing has moved.
///
/// # Errors
/// As [`Provider::preview`]; `VALIDATION_FAILED` for arguments that would make a dry run something else. A recipe that
/// fails is no error: see [`countersign_domain::changes::PreviewNote::failed`].
pub async fn preview(
    directory: &dyn ProviderDirectory,
    provider: &Arc<dyn Provider>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Result<Preview, McpError> {
    Ok(make(directory, provider, tool, arguments, context).await?.preview)
}

/// As [`preview`], for a change that was shown with this fingerprint: where the target cannot be looked at right now, that
/// is an error and not another preview, unless it is what was shown.
///
/// # Errors
/// As [`preview`]; `UPSTREAM_UNAVAILABLE`, `TIMEOUT` and the like of what a recipe calls.
pub async fn again(
    directory: &dyn ProviderDirectory,
    provider: &Arc<dyn Provider>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
    shown: &str,
) -> Result<Preview, McpError> {
    let Made { preview, passing } = make(directory, provider, tool, arguments, context).await?;
    match passing {
        Some(error) if preview.fingerprint != shown => Err(error),
        _ => Ok(preview),
    }
}

async fn make(
    directory: &dyn ProviderDirectory,
    provider: &Arc<dyn Provider>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Result<Made, McpError> {
    if provider.is_module() {
        return module::make(directory, provider, tool, arguments, context).await;
    }
    let recipe = provider.recipe(tool);
    if let Some(dry) = recipe.and_then(|recipe| recipe.dry_run.as_ref()) {
        dry_run::check(dry, arguments)?;
    }
    let plain = provider.preview(tool, arguments, context).await?;
    let Some(recipe) = recipe else { return Ok(Made { preview: plain, passing: None }) };
    let expose = |own: &str| provider.expose(own);
    Ok(Maker::new(directory, provider, &expose, context).make(recipe, tool, arguments, plain).await)
}
