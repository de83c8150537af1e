//! Providers, their tools, and the acceptance of definitions.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{Caller, Problem, ProviderInfo, RestState, body, json_ok};
use crate::{
    definitions::{MAX_TOOLS, Shown, ToolInfo, Waiting},
    protocol::ErrorKind,
};

/// Bytes of a body that names many definitions.
const MAX_BODY: usize = 4 << 20;

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    info: ProviderInfo,
    /// What waits for a reviewer.
    review: Waiting,
}

/// `GET /api/providers`
pub async fn list(_: Caller, state: web::Data<RestState>) -> HttpResponse {
    #[derive(Serialize)]
    struct Answer {
        providers: Vec<Listed>,
    }
    let view = Arc::clone(&state.providers);
    let infos = view.providers().await;
    let mut waiting = state.definitions.waiting();
    let providers =
        infos.into_iter().map(|info| Listed { review: waiting.remove(&info.name).unwrap_or_default(), info }).collect();
    json_ok(&Answer { providers })
}

/// `GET /api/providers/{name}`: its tools.
pub async fn one(_: Caller, request: HttpRequest, state: web::Data<RestState>) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        name: &'a str,
        tools: Vec<ToolInfo>,
    }
    let name = name(&request);
    let tools = state
        .definitions
        .tools(name)
        .ok_or_else(|| Problem::new(ErrorKind::NotFound, "there is no provider of this name"))?;
    Ok(json_ok(&Answer { name, tools }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    hash: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DefinitionsBody {
    tools: Vec<Named>,
}

/// `POST /api/providers/{name}/accept`
pub async fn accept(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let reviewer = Arc::clone(caller.decides()?);
    let shown = shown(&request, payload, &state).await?;
    state.definitions.accept(name(&request), &shown, &reviewer).await?;
    one(caller, request, state).await
}

/// `POST /api/providers/{name}/revoke`
pub async fn revoke(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let reviewer = Arc::clone(caller.decides()?);
    let shown = shown(&request, payload, &state).await?;
    state.definitions.revoke(name(&request), &shown, &reviewer).await?;
    one(caller, request, state).await
}

async fn shown(request: &HttpRequest, payload: web::Payload, state: &RestState) -> Result<Vec<Shown>, Problem> {
    let patience = state.config.transports.http.request_timeout;
    let body: DefinitionsBody = body::json_up_to(MAX_BODY, request, payload, patience).await?;
    if body.tools.is_empty() || body.tools.len() > MAX_TOOLS {
        let message = format!("`tools` names 1 to {MAX_TOOLS} definitions");
        return Err(Problem::new(ErrorKind::ValidationFailed, message));
    }
    Ok(body.tools.into_iter().map(|Named { name, hash }| Shown { name, hash }).collect())
}

fn name(request: &HttpRequest) -> &str {
    request.match_info().query("name")
}
