//! Previews a call without proposing it.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::{
    Problem,
    body::{self, Body, Submission},
    json_response,
};
use countersign_domain::changes::{Diff, Operation, Preview, PreviewNote, Target, visible::quoted};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, ProviderDirectory as _,
    previews::{self, PreviewRequest},
};
use countersign_routing::RouteDirectory;
use countersign_rulings::standing_rules::StandingRuleService;

/// Time limit of a preview, which is longer than that of a recipe's calls.
const MAX_PREVIEW_TIME: Duration = Duration::from_secs(15);

/// Limits the work of a preview to [`MAX_PREVIEW_TIME`].
pub(super) async fn limit_time<T>(work: impl Future<Output = Result<T, McpError>>) -> Result<T, Problem> {
    let result = tokio::time::timeout(MAX_PREVIEW_TIME, work).await;
    Ok(result.map_err(|_| Problem::new(ErrorKind::Timeout, "the preview took too long"))??)
}

/// The call to preview.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewTestRequest {
    pub server: String,
    /// The name of the tool, as its server or as clients see it.
    pub tool: String,
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Box<RawValue>>,
}

impl Body for PreviewTestRequest {
    const MAX_BYTES: Option<usize> = Some(body::MAX_ARGUMENTS_BYTES);
}

/// The preview that a change with this call would have.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewTest {
    server: String,
    tool: String,
    operation: Operation,
    target: Target,
    summary: String,
    preview: PreviewNote,
    diff: Diff,
}

/// Previews a call without proposing it.
///
/// Requires the role reviewer or admin. The reads of a recipe are made as the caller, with the rights of an agent. Nothing is
/// proposed, stored or counted. The arguments are checked against the tool's schema (422 `VALIDATION_FAILED`).
#[utoipa::path(post, path = "/api/previews/test", operation_id = "testPreview", request_body = PreviewTestRequest,
    responses((status = 200, description = "The preview", body = PreviewTest), (status = 404)))]
pub async fn test(
    Submission { principal, body: PreviewTestRequest { server, tool, arguments }, .. }: Submission<PreviewTestRequest>,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let arguments = body::arguments_or_empty(arguments)?;
    let directory = RouteDirectory(Arc::clone(standing_rules.routes()));
    let not_found = || Problem::new(ErrorKind::NotFound, format!("there is no server {}", quoted(&server)));
    let provider = directory.provider(&server).ok_or_else(not_found)?;
    let is_exposed = directory.tool_hash(&server, &tool).is_some();
    let tool = if is_exposed { tool } else { provider.exposed_name(&tool) };
    directory.validate(&server, &tool, &arguments)?;
    provider.check_available(&principal).await?;
    let cancel = CancellationToken::new();
    // Dropping the guard tells the server that the answer is no longer needed.
    let _cancelled = cancel.clone().drop_guard();
    let context = CallContext { cancel, ..CallContext::new(principal) };
    let request = PreviewRequest {
        directory: &directory,
        provider: &provider,
        tool: &tool,
        arguments: &arguments,
        context: &context,
    };
    let preview = limit_time(previews::preview(request)).await?;
    let Preview { note, operation, target, summary, diff, .. } = preview;
    Ok(json_response(&PreviewTest { server, tool, operation, target, summary, preview: note, diff }))
}
