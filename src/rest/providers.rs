//! Providers, their tools, and the acceptance of definitions.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem, ProviderInfo, RestState, json_ok,
    posted::{Body, Posted},
};
use crate::{
    config::HttpConfig,
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
    tools_of(name(&request), &state)
}

fn tools_of(name: &str, state: &RestState) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        name: &'a str,
        tools: Vec<ToolInfo>,
    }
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
pub struct DefinitionsBody {
    tools: Vec<Named>,
}

impl Body for DefinitionsBody {
    fn most(_: &HttpConfig) -> usize {
        MAX_BODY
    }
}

impl DefinitionsBody {
    fn shown(self) -> Result<Vec<Shown>, Problem> {
        if self.tools.is_empty() || self.tools.len() > MAX_TOOLS {
            let message = format!("`tools` names 1 to {MAX_TOOLS} definitions");
            return Err(Problem::new(ErrorKind::ValidationFailed, message));
        }
        Ok(self.tools.into_iter().map(|Named { name, hash }| Shown { name, hash }).collect())
    }
}

/// `POST /api/providers/{name}/accept`
pub async fn accept(
    asked: Posted<DefinitionsBody>,
    request: HttpRequest,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    state.definitions.accept(name(&request), &asked.body.shown()?, &asked.reviewer).await?;
    tools_of(name(&request), &state)
}

/// `POST /api/providers/{name}/revoke`
pub async fn revoke(
    asked: Posted<DefinitionsBody>,
    request: HttpRequest,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    state.definitions.revoke(name(&request), &asked.body.shown()?, &asked.reviewer).await?;
    tools_of(name(&request), &state)
}

fn name(request: &HttpRequest) -> &str {
    request.match_info().query("name")
}
