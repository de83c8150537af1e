//! Standing rules.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Caller, Problem, Query,
    body::{self, Body, Submission},
    changes::change_not_found,
    json_response,
    page::{self, OptionalPageParams},
    path_id,
};
use countersign_domain::{
    changes::{Change, ChangeState},
    policy::{ArgumentPattern, StandingRule, suggestions::SuggestedRule},
};
use countersign_protocol::ErrorKind;
use countersign_review::Changes;
use countersign_rulings::standing_rules::{RuleRequest, StandingRuleService};

/// The maximum number of changes that a suggestion links to.
const MAX_LINKS: usize = 50;

/// A list of standing rules, or a page of it.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rules {
    pub rules: Vec<Arc<StandingRule>>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists standing rules, newest first.
///
/// The newest 1000 revoked and expired rules stay in the list.
#[utoipa::path(get, path = "/api/rules", operation_id = "listRules", params(OptionalPageParams), responses(
    (status = 200, description = "The rules", body = Rules)))]
pub async fn list(
    _: Caller,
    request: HttpRequest,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    let page = page::cut_by_name(&query, standing_rules.list(), |rule| &rule.id)?;
    Ok(json_response(&Rules { rules: page.items, next_cursor: page.next_cursor }))
}

impl Body for RuleRequest {}

/// Creates a standing rule from a change.
///
/// Requires the role reviewer or admin. An `allow` rule lets similar calls through until it ends. Only a reviewer who could
/// have approved the change alone may create it, never the proposer. It does not apply to calls of its creator, to calls that
/// the policy denies, or to a new or changed definition. A `deny` rule refuses calls regardless of other rules.
#[utoipa::path(post, path = "/api/changes/{id}/rule", operation_id = "createRule", request_body = RuleRequest,
    responses((status = 200, description = "The rule", body = StandingRule), (status = 409)))]
pub async fn create(
    Submission { principal, path_parameter: id, body }: Submission<RuleRequest>,
    changes: web::Data<Changes>,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let request = RuleRequest { comment: body::normalize_comment(body.comment)?, ..body };
    let change = changes.get(&id).await?.ok_or_else(change_not_found)?;
    Ok(json_response(&standing_rules.create(&change, &principal, request).await?))
}

/// The rules that the history of a tool suggests.
#[derive(Serialize, ToSchema)]
struct SuggestionList {
    /// The suggestions, the narrowest first.
    suggestions: Vec<Suggestion>,
    /// `false` if the tool had too many changes to read all of them.
    complete: bool,
}

/// A standing rule that would allow calls like a change, for its agent.
#[derive(Serialize, ToSchema)]
struct Suggestion {
    /// The conditions on single arguments; empty if the rule covers any arguments.
    matching: Vec<ArgumentPattern>,
    /// The number of matched changes that reviewers approved.
    approvals: usize,
    /// The changes of the last 30 days that the rule would have matched.
    matched: ChangeLinks,
    /// The other changes of the tool in these days.
    unmatched: ChangeLinks,
}

/// A number of changes, with the newest of them.
#[derive(Serialize, ToSchema)]
struct ChangeLinks {
    count: usize,
    newest: Vec<ChangeLink>,
}

/// A change that a link names.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeLink {
    id: String,
    state: ChangeState,
    summary: String,
    created_at: Timestamp,
}

impl ChangeLink {
    pub(super) fn new(change: &Change) -> Self {
        Self {
            id: change.id.clone(),
            state: change.state,
            summary: change.summary.clone(),
            created_at: change.created_at,
        }
    }
}

impl ChangeLinks {
    fn new(changes: &[Arc<Change>]) -> Self {
        let newest = changes.iter().take(MAX_LINKS).map(|change| ChangeLink::new(change)).collect();
        Self { count: changes.len(), newest }
    }
}

/// Suggests standing rules for calls like a change.
///
/// A rule is suggested after five approvals and no rejection of such calls within 30 days. There are no suggestions for deletions,
/// for changes that need more than one approval, a preview or a sign-in, and for callers who may not create rules. Nothing is
/// created.
#[utoipa::path(get, path = "/api/changes/{id}/suggestions", operation_id = "suggestRules",
    responses((status = 200, description = "The suggestions", body = SuggestionList)))]
pub async fn suggest(
    caller: Caller,
    request: HttpRequest,
    changes: web::Data<Changes>,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let id = path_id(&request).ok_or_else(change_not_found)?;
    let change = changes.get(id).await?.ok_or_else(change_not_found)?;
    let suggestions = standing_rules.suggest(&change, &caller.principal).await?;
    let view = |SuggestedRule { matching, approvals, matched, unmatched }| Suggestion {
        matching,
        approvals,
        matched: ChangeLinks::new(&matched),
        unmatched: ChangeLinks::new(&unmatched),
    };
    Ok(json_response(&SuggestionList {
        suggestions: suggestions.rules.into_iter().map(view).collect(),
        complete: suggestions.is_complete,
    }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    #[schema(max_length = 4096)]
    comment: Option<String>,
}

impl Body for RevokeRequest {
    const NOT_FOUND: (&'static str, ErrorKind) = ("Standing rule", ErrorKind::NotFound);
}

/// Revokes a standing rule.
///
/// Requires the role reviewer or admin. Nobody can revoke a rule that denies their own calls.
#[utoipa::path(post, path = "/api/rules/{id}/revoke", operation_id = "revokeRule", request_body = RevokeRequest,
    responses((status = 200, description = "The revoked rule", body = StandingRule), (status = 409)))]
pub async fn revoke(
    Submission { principal, path_parameter: id, body }: Submission<RevokeRequest>,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let comment = body::normalize_comment(body.comment)?;
    Ok(json_response(&standing_rules.revoke(&id, &principal, comment.as_deref()).await?))
}
