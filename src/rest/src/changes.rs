//! Changes and the audit trail.

use std::{collections::BTreeMap, sync::Arc};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    Caller, Problem, Query,
    body::{self, Body, Submission},
    json_response, offload_json_response,
    page::PageParams,
    path_id,
};
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict, audit::AuditEntry, digest::hex};
use countersign_protocol::ErrorKind;
use countersign_review::{ChangeDecision, ChangeEdit, ChangeFilter, ChangeRequestError, ChangeSettlement, Changes};
use countersign_store::{AuditSearch, ChangeCriteria};

/// Returns the problem of a refused request, with the current change.
pub fn request_problem(error: ChangeRequestError) -> Problem {
    Problem::from(error.error).with_change(error.current)
}

/// Returns the problem of an unknown id of a change.
pub fn change_not_found() -> Problem {
    Problem::new(ErrorKind::ChangeNotFound, "Change not found")
}

/// A page of changes.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ChangePage {
    changes: Vec<Arc<Change>>,
    /// The cursor of the next page; `null` on the last one.
    #[schema(required)]
    next_cursor: Option<String>,
    /// The number of changes in each state, regardless of the filter.
    counts: BTreeMap<ChangeState, u64>,
}

/// Lists changes, newest first.
#[utoipa::path(get, path = "/api/changes", operation_id = "listChanges",
    params(
        ("status" = Option<String>, Query, description = "Only changes in these states (up to 64), separated by commas."),
        ("principal" = Option<String>, Query,
            description = "Only changes proposed by these principals (up to 64), separated by commas."),
        ("tool" = Option<String>, Query, description = "Only calls of these tools (up to 64), separated by commas."),
        ("server" = Option<String>, Query,
            description = "Only calls of these servers and modules (`provider` of a change; up to 64), separated by commas."),
        ("q" = Option<String>, Query, description = "Only changes with this text in the summary, the label of the target, \
            the id, the tool, the server or the principal. Case is ignored."),
        ("since" = Option<Timestamp>, Query, description = "Only changes proposed at or after this time."),
        ("until" = Option<Timestamp>, Query, description = "Only changes proposed before this time."),
        PageParams),
    responses((status = 200, description = "A page of changes", body = ChangePage)))]
pub async fn list(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let parameter_names = ["status", "principal", "tool", "server", "q", "since", "until", "limit", "cursor"];
    let query = Query::read(&request, &parameter_names)?;
    let filter = ChangeFilter {
        states: query.values("status")?,
        principals: query.values("principal")?,
        criteria: ChangeCriteria {
            providers: query.values("server")?,
            tools: query.values("tool")?,
            text: query.get("q").map(str::to_owned),
            since: query.time("since")?,
            until: query.time("until")?,
        },
    };
    let mut page = changes.list(filter, query.limit()?, query.get("cursor").map(str::to_owned)).await?;
    changes.set_waits_for(&mut page.items).await?;
    let counts = changes.counts().into_iter().collect();
    let bytes = page.items.iter().map(|change| change.estimated_size()).sum();
    offload_json_response(bytes, ChangePage { changes: page.items, next_cursor: page.next_cursor, counts }).await
}

/// Returns a change.
#[utoipa::path(get, path = "/api/changes/{id}", operation_id = "getChange", responses(
    (status = 200, description = "The change", body = Change)))]
pub async fn get(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let id = path_id(&request).ok_or_else(change_not_found)?;
    let mut change = changes.get(id).await?.ok_or_else(change_not_found)?;
    changes.set_waits_for(std::slice::from_mut(&mut change)).await?;
    offload_json_response(change.estimated_size(), change).await
}

/// Responds with the change after a request.
async fn change_response(result: Result<Arc<Change>, ChangeRequestError>) -> Result<HttpResponse, Problem> {
    let change = result.map_err(request_problem)?;
    offload_json_response(change.estimated_size(), change).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRequest {
    decision: ReviewVerdict,
    #[schema(max_length = 4096)]
    comment: Option<String>,
    /// The version that was shown.
    version: u64,
    /// The digest that was shown. If given, it must still be the same.
    digest: Option<String>,
}

impl Body for DecisionRequest {}

/// Approves or rejects a change.
///
/// Requires the role reviewer or admin. The proposer of a change cannot approve it (403 `SELF_APPROVAL`), and a change whose call
/// the policy now denies cannot be approved (403 `POLICY_DENIED`). The decision names the version that was shown; if the change has
/// moved on, the answer is 409 with the current change. The rule of the change may require other reviewers (403 `FORBIDDEN`), a more
/// recent or stronger sign-in (403 `SIGN_IN_REQUIRED`, with a challenge of RFC 9470 for a token), a comment (422
/// `COMMENT_REQUIRED`), a preview (409 `PREVIEW_REQUIRED`), or several approvals, each by another owner (409 `ALREADY_VOTED`).
/// Rejecting an approved step of a plan withdraws it, which stops the plan.
#[utoipa::path(post, path = "/api/changes/{id}/decision", operation_id = "decideChange", request_body = DecisionRequest,
    responses((status = 200, description = "The change after the decision", body = Change), (status = 409)))]
pub async fn decide(
    Submission { principal, path_parameter: id, body }: Submission<DecisionRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let decision = ChangeDecision {
        id,
        reviewer: principal,
        verdict: body.decision,
        comment: body::normalize_comment(body.comment)?,
        version: body.version,
        digest: body.digest,
        bulk: false,
    };
    change_response(changes.decide(decision).await).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// All new arguments.
    #[schema(value_type = Object)]
    arguments: Box<RawValue>,
    /// The version that was shown.
    version: u64,
    #[schema(max_length = 4096)]
    comment: Option<String>,
}

impl Body for EditRequest {
    const MAX_BYTES: Option<usize> = None;
}

/// Edits the arguments of a change.
///
/// Requires the role reviewer or admin. If the rule of the change names reviewers, the editor must be one of them, and the
/// proposer cannot edit (403 `SELF_APPROVAL`). The arguments are checked against the tool's schema (422 `VALIDATION_FAILED`,
/// with `details` as for calls) and the policy (403 `POLICY_DENIED`), and previewed again. Earlier approvals no longer count.
/// The editor may approve the edited change, unless several approvals are required; the edit itself is not an approval. 403
/// `EDIT_FORBIDDEN` if the rule lets nobody edit.
#[utoipa::path(post, path = "/api/changes/{id}/edit", operation_id = "editChange", request_body = EditRequest,
    responses((status = 200, description = "The pending change with the new arguments and their preview", body = Change),
        (status = 409)))]
pub async fn edit(
    Submission { principal, path_parameter: id, body }: Submission<EditRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let edit = ChangeEdit {
        id,
        reviewer: principal,
        arguments: body.arguments,
        version: body.version,
        comment: body::normalize_comment(body.comment)?,
    };
    change_response(changes.edit(edit).await).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionRequest {
    /// The version that was shown.
    version: u64,
}

impl Body for VersionRequest {}

/// Undoes an approval.
///
/// This is possible while the change is approved and `runAfter` is in the future: for the person who approved, or for an admin,
/// who undoes all approvals.
#[utoipa::path(post, path = "/api/changes/{id}/undo", operation_id = "undoApproval", request_body = VersionRequest,
    responses((status = 200, description = "The change, which is pending again", body = Change), (status = 409)))]
pub async fn undo(
    Submission { principal, path_parameter: id, body }: Submission<VersionRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    change_response(changes.undo(&id, &principal, body.version).await).await
}

/// Previews a pending or stale change again.
///
/// If the target has changed, the change is pending with the new diff and the old one in `previousDiff`, and earlier approvals
/// no longer count. If it can no longer be previewed, it is stale, and `fault` has the reason.
#[utoipa::path(post, path = "/api/changes/{id}/refresh", operation_id = "refreshChange", request_body = VersionRequest,
    responses((status = 200, description = "The current change", body = Change), (status = 409)))]
pub async fn refresh(
    Submission { principal, path_parameter: id, body }: Submission<VersionRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    change_response(changes.refresh(&id, &principal, body.version).await).await
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SettledOutcome {
    Applied,
    Failed,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    outcome: SettledOutcome,
    #[schema(max_length = 4096)]
    comment: Option<String>,
    version: u64,
}

impl Body for SettleRequest {}

/// Settles a change of unknown outcome.
///
/// The change must be in the state `outcome_unknown`: its call has no known end, because the gateway or the server stopped
/// during the call, or because it took too long. Requires the same reviewers and the same comment as a decision.
#[utoipa::path(post, path = "/api/changes/{id}/settle", operation_id = "settleChange", request_body = SettleRequest,
    responses((status = 200, description = "The change, applied or failed", body = Change), (status = 409)))]
pub async fn settle(
    Submission { principal, path_parameter: id, body }: Submission<SettleRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let settlement = ChangeSettlement {
        id,
        reviewer: principal,
        applied: matches!(body.outcome, SettledOutcome::Applied),
        comment: body::normalize_comment(body.comment)?,
        version: body.version,
    };
    change_response(changes.settle(settlement).await).await
}

/// The head of the audit trail.
#[derive(Serialize, ToSchema)]
struct AuditHead {
    seq: u64,
    #[schema(pattern = "^[0-9a-f]{64}$")]
    hash: String,
}

/// A page of audit entries.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct AuditPage<'a> {
    #[schema(value_type = Vec<AuditEntry>)]
    entries: Vec<&'a AuditEntry>,
    /// The current titles of the changes of these entries by id, without those of deleted changes.
    titles: BTreeMap<&'a str, &'a str>,
    #[schema(required)]
    next_cursor: Option<String>,
    /// The head of the whole trail. A copy stored elsewhere lets `countersign audit verify --head` detect later alterations.
    head: AuditHead,
}

/// Lists the entries of the audit trail, newest first.
#[utoipa::path(get, path = "/api/audit", operation_id = "listAudit",
    params(
        ("change" = Option<String>, Query, description = "Only entries of this change."),
        ("event" = Option<String>, Query,
            description = "Only entries of these kinds (`approved`, `standing_rule_created`; up to 64), separated by commas."),
        ("actor" = Option<String>, Query,
            description = "Only entries by these people, agents or `system` (up to 64), separated by commas."),
        ("q" = Option<String>, Query, description = "Only entries with this text in the kind, the actor, the details or the \
            searched members of their change. Case is ignored. A page of a long search may be empty and have a `nextCursor`."),
        ("since" = Option<Timestamp>, Query, description = "Only entries at or after this time."),
        ("until" = Option<Timestamp>, Query, description = "Only entries before this time."),
        PageParams),
    responses((status = 200, description = "A page of entries, with the head of the whole trail", body = AuditPage)))]
pub async fn audit(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["change", "event", "actor", "q", "since", "until", "limit", "cursor"])?;
    let search = AuditSearch {
        change: query.get("change").map(str::to_owned),
        events: query.values("event")?,
        actors: query.values("actor")?,
        text: query.get("q").map(str::to_owned),
        since: query.time("since")?,
        until: query.time("until")?,
    };
    let page = changes.search_audit(search, query.limit()?, query.get("cursor")).await?;
    let head = changes.audit_head().await?;
    Ok(json_response(&AuditPage {
        entries: page.items.iter().map(|found| &found.entry).collect(),
        titles: page
            .items
            .iter()
            .filter_map(|found| Some((found.entry.change_id.as_str(), found.title.as_deref()?)))
            .collect(),
        next_cursor: page.next_cursor,
        head: AuditHead { seq: head.seq, hash: hex(&head.hash) },
    }))
}
