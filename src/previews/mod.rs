//! What a write would do, shown before it is done: the module's own preview, or, for the tool of an upstream, a recipe of
//! the configuration.
//!
//! Stands above the providers because what a recipe reads passes policy as the proposer.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::{
    changes::Preview,
    protocol::McpError,
    providers::{CallContext, Provider, ProviderDirectory},
};

/// Previews a call as `context.principal`. Taken anew when a change is approved and just before it runs; what it returns
/// is the same as long as nothing has moved.
///
/// # Errors
/// As [`Provider::preview`].
pub async fn preview(
    _directory: &dyn ProviderDirectory,
    provider: &Arc<dyn Provider>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Result<Preview, McpError> {
    provider.preview(tool, arguments, context).await
}
