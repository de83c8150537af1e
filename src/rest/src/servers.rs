//! Servers, their tools, the acceptance of definitions, and tools that run without review.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem, ProviderInfo, ProvidersView, Query,
    body::{self, Body, Submission},
    json_ok, page, path_name,
};
use countersign_config::HttpConfig;
use countersign_protocol::ErrorKind;
use countersign_review::Page;
use countersign_rulings::{
    standing_rules::{MAX_RULES_PER_OWNER, StandingRules},
    tool_acceptance::{MAX_TOOLS_PER_ACCEPTANCE, PendingToolCounts, ShownDefinition, ToolAcceptances, ToolInfo},
};

/// Maximum size in bytes of a body that names many definitions.
const MAX_BODY_BYTES: usize = 4 << 20;

#[derive(Serialize)]
struct ServerEntry {
    #[serde(flatten)]
    info: ProviderInfo,
    /// Number of tools that wait for a reviewer.
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
        servers: Vec<ServerEntry>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    }
    let query = Query::read(&request, &["limit", "cursor"])?;
    let infos = providers.providers().await;
    let mut pending = definitions.pending_counts();
    let entry = |info: ProviderInfo| ServerEntry { review: pending.remove(&info.name).unwrap_or_default(), info };
    let page = page::by_name(&query, infos.into_iter().map(entry).collect(), |entry| &entry.info.name)?;
    Ok(json_ok(&ServerPage { servers: page.items, next_cursor: page.next_cursor }))
}

/// `GET /api/servers/{name}?limit=&cursor=`: its tools; all of them without either.
pub async fn get(
    _: Caller,
    request: HttpRequest,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    tools_page(path_name(&request), &definitions, |tools| page::by_name(&query, tools, |tool| &tool.name))
}

fn all_tools(name: &str, definitions: &ToolAcceptances) -> Result<HttpResponse, Problem> {
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
struct DefinitionRef {
    name: String,
    hash: String,
}

fn to_definitions(tools: Vec<DefinitionRef>, max: usize) -> Result<Vec<ShownDefinition>, Problem> {
    if tools.is_empty() || tools.len() > max {
        let message = format!("`tools` must name 1 to {max} definitions");
        return Err(Problem::new(ErrorKind::ValidationFailed, message));
    }
    Ok(tools.into_iter().map(|DefinitionRef { name, hash }| ShownDefinition { name, hash }).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowBody {
    tools: Vec<DefinitionRef>,
    reason: String,
}

impl Body for AllowBody {}

/// `POST /api/servers/{name}/allow`: lets tools run without review.
pub async fn allow(
    submission: Submission<AllowBody>,
    standing: web::Data<StandingRules>,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id: server, body } = submission;
    let reason = body::comment(Some(body.reason))?.ok_or_else(|| {
        Problem::new(
            ErrorKind::ValidationFailed,
            "`reason` is missing: say why the tools need no review; the audit trail keeps it",
        )
    })?;
    let tools = to_definitions(body.tools, MAX_RULES_PER_OWNER)?;
    standing.allow_tools(&server, &tools, &principal, &reason).await?;
    all_tools(&server, &definitions)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefinitionsBody {
    tools: Vec<DefinitionRef>,
}

impl Body for DefinitionsBody {
    fn max_bytes(_: &HttpConfig) -> usize {
        MAX_BODY_BYTES
    }
}

/// `POST /api/servers/{name}/accept`
pub async fn accept(
    submission: Submission<DefinitionsBody>,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id: server, body } = submission;
    let tools = to_definitions(body.tools, MAX_TOOLS_PER_ACCEPTANCE)?;
    definitions.accept(&server, &tools, &principal).await?;
    all_tools(&server, &definitions)
}

/// `POST /api/servers/{name}/revoke`
pub async fn revoke(
    submission: Submission<DefinitionsBody>,
    definitions: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id: server, body } = submission;
    let tools = to_definitions(body.tools, MAX_TOOLS_PER_ACCEPTANCE)?;
    definitions.revoke(&server, &tools, &principal).await?;
    all_tools(&server, &definitions)
}
