//! Servers, their tools, the acceptance of definitions, and tools that are let run without review.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem, ProviderInfo, ProvidersView, Query, body, json_ok, page,
    posted::{Body, Posted},
};
use countersign_config::HttpConfig;
use countersign_protocol::ErrorKind;
use countersign_review::Page;
use countersign_rulings::{
    standing_rules::{MAX_RULES_PER_OWNER, StandingRules},
    tool_acceptance::{MAX_TOOLS_PER_ACCEPTANCE, PendingToolCounts, ShownDefinition, ToolAcceptances, ToolInfo},
};

/// Bytes of a body that names many definitions.
const MAX_BODY: usize = 4 << 20;

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    info: ProviderInfo,
    /// What waits for a reviewer.
    review: PendingToolCounts,
}

/// `GET /api/servers?limit=&cursor=`; all of them without either.
pub async fn list(
    _: Caller,
    request: HttpRequest,
    providers: web::Data<dyn ProvidersView>,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ServerPage {
        servers: Vec<Listed>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    }
    let query = Query::read(&request, &["limit", "cursor"])?;
    let infos = providers.providers().await;
    let mut waiting = definitions.pending_counts();
    let listed = |info: ProviderInfo| Listed { review: waiting.remove(&info.name).unwrap_or_default(), info };
    let page = page::named(&query, infos.into_iter().map(listed).collect(), |listed| &listed.info.name)?;
    Ok(json_ok(&ServerPage { servers: page.items, next_cursor: page.next_cursor }))
}

/// `GET /api/servers/{name}?limit=&cursor=`: its tools; all of them without either.
pub async fn one(
    _: Caller,
    request: HttpRequest,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    tools_page(name(&request), &definitions, |tools| page::named(&query, tools, |tool| &tool.name))
}

fn tools_of(name: &str, definitions: &ToolAcceptances) -> Result<HttpResponse, Problem> {
    tools_page(name, definitions, |items| Ok(Page { items, next_cursor: None }))
}

fn tools_page(
    name: &str,
    definitions: &ToolAcceptances,
    page: impl FnOnce(Vec<ToolInfo>) -> Result<Page<ToolInfo>, Problem>,
) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ToolPage<'a> {
        name: &'a str,
        tools: Vec<ToolInfo>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    }
    let tools =
        definitions.tools(name).ok_or_else(|| Problem::new(ErrorKind::NotFound, "there is no server of this name"))?;
    let Page { items, next_cursor } = page(tools)?;
    Ok(json_ok(&ToolPage { name, tools: items, next_cursor }))
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
    fn shown(self) -> Result<Vec<ShownDefinition>, Problem> {
        shown(self.tools, MAX_TOOLS_PER_ACCEPTANCE)
    }
}

fn shown(tools: Vec<Named>, most: usize) -> Result<Vec<ShownDefinition>, Problem> {
    if tools.is_empty() || tools.len() > most {
        let message = format!("`tools` must name 1 to {most} definitions");
        return Err(Problem::new(ErrorKind::ValidationFailed, message));
    }
    Ok(tools.into_iter().map(|Named { name, hash }| ShownDefinition { name, hash }).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowBody {
    tools: Vec<Named>,
    reason: String,
}

impl Body for AllowBody {}

/// `POST /api/servers/{name}/allow`: lets tools run without review.
pub async fn allow(
    asked: Posted<AllowBody>,
    request: HttpRequest,
    standing: web::Data<StandingRules>,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let AllowBody { tools, reason } = asked.body;
    let reason = body::comment(Some(reason))?.ok_or_else(|| {
        Problem::new(
            ErrorKind::ValidationFailed,
            "`reason` is missing: say why the tools need no review; the audit trail keeps it",
        )
    })?;
    let shown = shown(tools, MAX_RULES_PER_OWNER)?;
    standing.allow_tools(name(&request), &shown, &asked.reviewer, &reason).await?;
    tools_of(name(&request), &definitions)
}

/// `POST /api/servers/{name}/accept`
pub async fn accept(
    asked: Posted<DefinitionsBody>,
    request: HttpRequest,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    definitions.accept(name(&request), &asked.body.shown()?, &asked.reviewer).await?;
    tools_of(name(&request), &definitions)
}

/// `POST /api/servers/{name}/revoke`
pub async fn revoke(
    asked: Posted<DefinitionsBody>,
    request: HttpRequest,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    definitions.revoke(name(&request), &asked.body.shown()?, &asked.reviewer).await?;
    tools_of(name(&request), &definitions)
}

fn name(request: &HttpRequest) -> &str {
    request.match_info().query("name")
}
