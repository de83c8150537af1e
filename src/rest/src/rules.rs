//! Standing rules.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Caller, Problem, Query,
    body::{self, Body, Submission},
    changes::change_not_found,
    json_ok,
    page::{self, OptionalPageParams},
};
use countersign_domain::policy::{StandingRule, StandingVerdict};
use countersign_protocol::ErrorKind;
use countersign_review::Changes;
use countersign_rulings::standing_rules::{RuleArguments, RuleCallers, StandingRuleRequest, StandingRules};

/// A list of standing rules, or a page of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Rules {
    rules: Vec<Arc<StandingRule>>,
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
    standing_rules: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    let page = page::by_name(&query, standing_rules.list(), |rule| &rule.id)?;
    Ok(json_ok(&Rules { rules: page.items, next_cursor: page.next_cursor }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    verdict: StandingVerdict,
    arguments: RuleArguments,
    principal: RuleCallers,
    /// The duration in seconds. An `allow` rule requires it, with at most 30 days.
    #[serde(rename = "for")]
    #[schema(minimum = 1, maximum = 31622400)]
    valid_for_seconds: Option<u64>,
    #[schema(max_length = 4096)]
    comment: Option<String>,
}

impl Body for RuleRequest {}

/// Creates a standing rule from a change.
///
/// Requires the role reviewer or admin. An `allow` rule lets similar calls through until it ends. Only a reviewer who could
/// have approved the change alone may create it, never the proposer. It does not apply to calls of its creator, to calls that
/// the policy denies, or to a new or changed definition. A `deny` rule refuses calls regardless of other rules.
#[utoipa::path(post, path = "/api/changes/{id}/rule", operation_id = "createRule", request_body = RuleRequest,
    responses((status = 200, description = "The rule", body = StandingRule), (status = 409), (status = 429)))]
pub async fn create(
    submission: Submission<RuleRequest>,
    changes: web::Data<Changes>,
    standing_rules: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, path_parameter: id, body } = submission;
    let request = StandingRuleRequest {
        verdict: body.verdict,
        arguments: body.arguments,
        callers: body.principal,
        valid_for_seconds: body.valid_for_seconds,
        comment: body::normalize_comment(body.comment)?,
    };
    let change = changes.get(&id).await?.ok_or_else(change_not_found)?;
    Ok(json_ok(&standing_rules.create(&change, &principal, request).await?))
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
    submission: Submission<RevokeRequest>,
    standing_rules: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, path_parameter: id, body } = submission;
    let comment = body::normalize_comment(body.comment)?;
    Ok(json_ok(&standing_rules.revoke(&id, &principal, comment.as_deref()).await?))
}
