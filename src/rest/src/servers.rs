//! Servers, their tools, the acceptance of definitions, and tools that run without review.

use std::{collections::BTreeMap, sync::Arc};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Caller, Problem, Query, ServerAccounts, ServerInfo, ServerSource,
    body::{self, Body, Submission},
    json_response,
    page::{self, OptionalPageParams},
    path_name,
    server_accounts::AccountInfo,
};
use countersign_protocol::ErrorKind;
use countersign_review::Page;
use countersign_rulings::{
    standing_rules::{MAX_RULES_PER_OWNER, StandingRuleService},
    tool_acceptance::{
        DefinitionDecision, DefinitionRef, KnownReadsInfo, MAX_TOOLS_PER_ACCEPTANCE, PendingToolCounts,
        ToolAcceptances, ToolInfo, ToolVerdictCounts,
    },
};

/// Maximum size in bytes of a body that names many definitions.
const MAX_DEFINITIONS_BYTES: usize = 4 << 20;

/// A server, with the tools that wait for a reviewer.
#[derive(Serialize, ToSchema)]
#[schema(as = Provider)]
struct ServerEntry {
    #[serde(flatten)]
    info: ServerInfo,
    /// Number of tools that wait for a reviewer.
    review: PendingToolCounts,
    /// Number of tools by what the policy decides about their calls.
    verdicts: ToolVerdictCounts,
    /// The caller's account, if the server requires one.
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<AccountInfo>,
}

/// A list of servers, or a page of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ServerPage {
    servers: Vec<ServerEntry>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists servers and modules with their status, and with the accounts of the caller.
#[utoipa::path(get, path = "/api/servers", operation_id = "listServers", params(OptionalPageParams), responses(
    (status = 200, description = "The servers and modules", body = ServerPage)))]
pub async fn list(
    caller: Caller,
    request: HttpRequest,
    servers: web::Data<dyn ServerSource>,
    accounts: web::Data<dyn ServerAccounts>,
    acceptances: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    let infos = servers.list_servers().await;
    let statuses = accounts.list_statuses(&caller.principal).await?;
    let mut accounts: BTreeMap<String, AccountInfo> =
        statuses.into_iter().map(|status| (status.server.clone(), status.into())).collect();
    let (mut pending, mut verdicts) = (acceptances.pending_counts(), acceptances.verdict_counts());
    let entry = |info: ServerInfo| ServerEntry {
        review: pending.remove(&info.name).unwrap_or_default(),
        verdicts: verdicts.remove(&info.name).unwrap_or_default(),
        account: accounts.remove(&info.name),
        info,
    };
    let page = page::cut_by_name(&query, infos.into_iter().map(entry).collect(), |entry| &entry.info.name)?;
    Ok(json_response(&ServerPage { servers: page.items, next_cursor: page.next_cursor }))
}

/// The tools of a server, or a page of them.
#[derive(Serialize, ToSchema)]
#[schema(as = ProviderTools)]
#[serde(rename_all = "camelCase")]
struct ServerTools<'a> {
    name: &'a str,
    tools: Vec<ToolInfo>,
    /// The list of known reads that is shipped for this server, if its command or address identifies it, or if the
    /// configuration names its recipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_reads: Option<KnownReadsInfo>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists the tools of a server, with their verdicts and definitions.
#[utoipa::path(get, path = "/api/servers/{name}", operation_id = "getServer", params(OptionalPageParams), responses(
    (status = 200, description = "The current tools", body = ServerTools)))]
pub async fn get(
    _: Caller,
    request: HttpRequest,
    acceptances: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    tools_response(&path_name(&request), &acceptances, Some(&query))
}

/// Responds with the tools of a server: the page that the query asks for, or all of them without a query.
fn tools_response(name: &str, acceptances: &ToolAcceptances, query: Option<&Query>) -> Result<HttpResponse, Problem> {
    let tools =
        acceptances.tools(name).ok_or_else(|| Problem::new(ErrorKind::NotFound, "there is no server of this name"))?;
    let Page { items, next_cursor } = match query {
        Some(query) => page::cut_by_name(query, tools, |tool| &tool.name)?,
        None => Page { items: tools, next_cursor: None },
    };
    Ok(json_response(&ServerTools { name, tools: items, known_reads: acceptances.known_reads(name), next_cursor }))
}

fn check_count(tools: &[DefinitionRef], max: usize) -> Result<(), Problem> {
    if (1..=max).contains(&tools.len()) {
        return Ok(());
    }
    Err(Problem::invalid(format!("`tools` must name 1 to {max} definitions")))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowRequest {
    #[schema(min_items = 1, max_items = 200)]
    tools: Vec<DefinitionRef>,
    /// The reason why the tools need no review. The rule and the audit trail keep it.
    #[schema(min_length = 1)]
    reason: String,
}

impl Body for AllowRequest {}

/// Lets tools run without review.
///
/// Requires the role reviewer or admin. Creates a standing rule for each tool and records the reason in the audit trail: calls
/// that `policy.default` would review go through, from any caller with any arguments, until the rule is revoked
/// (`/api/rules/{id}/revoke`) or its creator's key is. The rule covers only this definition from this command or address. It does
/// not cover calls on which a rule of the configuration decides, or the creator's own calls.
///
/// The response is 403 if a tool's definition waits for acceptance, if a rule of the configuration decides on the tool,
/// or if its reviews require a preview, a sign-in or several approvals. It is 409 if a tool differs from what was shown. No tool is
/// allowed then.
#[utoipa::path(post, path = "/api/servers/{name}/allow", operation_id = "letToolsRun", request_body = AllowRequest,
    responses((status = 200, description = "The current tools", body = ServerTools), (status = 409)))]
pub async fn allow(
    Submission { principal, path_parameter: server, body }: Submission<AllowRequest>,
    standing_rules: web::Data<StandingRuleService>,
    acceptances: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    let missing = "`reason` is missing: say why the tools need no review; the audit trail keeps it";
    let reason = body::normalize_comment(Some(body.reason))?;
    let reason = reason.ok_or_else(|| Problem::invalid(missing))?;
    check_count(&body.tools, MAX_RULES_PER_OWNER)?;
    standing_rules.allow_tools(&server, &body.tools, &principal, &reason).await?;
    tools_response(&server, &acceptances, None)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DefinitionsRequest {
    #[schema(min_items = 1, max_items = 20000)]
    tools: Vec<DefinitionRef>,
}

impl Body for DefinitionsRequest {
    const MAX_BYTES: Option<usize> = Some(MAX_DEFINITIONS_BYTES);
}

/// Accepts definitions of a server's tools.
///
/// Requires the role reviewer or admin. The claim of an accepted tool to be read-only is trusted, and the tool is no longer
/// reviewed because it is new or changed. A tool that does not claim to be read-only is reviewed as before (see `allow`). Each
/// tool is named with the hash that was shown; if one has another by now, none is accepted (409). The audit trail records
/// acceptances.
#[utoipa::path(post, path = "/api/servers/{name}/accept", operation_id = "acceptServerDefinitions",
    request_body = DefinitionsRequest,
    responses((status = 200, description = "The current tools", body = ServerTools), (status = 409)))]
pub async fn accept(
    submission: Submission<DefinitionsRequest>,
    acceptances: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    decide(submission, &acceptances, DefinitionDecision::Accept).await
}

/// Accepts known reads of a server.
///
/// Requires the role reviewer or admin. For widely used servers, the program has lists of tools that only read, by the hashes of
/// their definitions (`known` of a tool). An accepted read counts as read-only even if it has no annotations, so it runs without
/// review where `policy.default` allows reads; a tool with a known dry run is accepted, and is reviewed as before. The acceptance
/// covers this definition from this command or address. If the list does not have a definition that is named, the response is 422,
/// and no tool is accepted. This loosens the policy, so the audit trail records it as an event of its own.
#[utoipa::path(post, path = "/api/servers/{name}/accept-known-reads", operation_id = "acceptKnownReads",
    request_body = DefinitionsRequest,
    responses((status = 200, description = "The current tools", body = ServerTools), (status = 409)))]
pub async fn accept_known_reads(
    submission: Submission<DefinitionsRequest>,
    acceptances: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    decide(submission, &acceptances, DefinitionDecision::AcceptKnownReads).await
}

/// Revokes acceptances.
///
/// Requires the role reviewer or admin. Each definition returns to its previous status.
#[utoipa::path(post, path = "/api/servers/{name}/revoke", operation_id = "revokeServerDefinitions",
    request_body = DefinitionsRequest,
    responses((status = 200, description = "The current tools", body = ServerTools), (status = 409)))]
pub async fn revoke(
    submission: Submission<DefinitionsRequest>,
    acceptances: web::Data<ToolAcceptances>,
) -> Result<HttpResponse, Problem> {
    decide(submission, &acceptances, DefinitionDecision::Revoke).await
}

async fn decide(
    submission: Submission<DefinitionsRequest>,
    acceptances: &Arc<ToolAcceptances>,
    decision: DefinitionDecision,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, path_parameter: server, body } = submission;
    check_count(&body.tools, MAX_TOOLS_PER_ACCEPTANCE)?;
    acceptances.decide(&server, decision, &body.tools, &principal).await?;
    tools_response(&server, acceptances, None)
}
