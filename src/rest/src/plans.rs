//! Plans: calls of one agent that are reviewed together.

use std::{collections::BTreeMap, sync::Arc};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Caller, Problem,
    body::{self, Body, Submission},
    changes::request_problem,
    offload_json_response, path_id,
};
use countersign_domain::changes::{ReviewVerdict, plan::MAX_STEPS};
use countersign_protocol::ErrorKind;
use countersign_review::{Changes, Plan, PlanDecision};

fn plan_not_found() -> Problem {
    Problem::new(ErrorKind::NotFound, "Plan not found")
}

async fn plan_response(plan: Plan) -> Result<HttpResponse, Problem> {
    let bytes = plan.changes.iter().map(|change| change.estimated_size()).sum();
    offload_json_response(bytes, plan).await
}

/// Returns a plan with all its changes, in order.
#[utoipa::path(get, path = "/api/plans/{id}", operation_id = "getPlan", responses(
    (status = 200, description = "The plan", body = Plan)))]
pub async fn get(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let id = path_id(&request).ok_or_else(plan_not_found)?;
    let mut plan = changes.plan(id).await?.ok_or_else(plan_not_found)?;
    changes.set_waits_for(&mut plan.changes).await?;
    plan_response(plan).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDecisionRequest {
    decision: ReviewVerdict,
    #[schema(max_length = 4096)]
    comment: Option<String>,
    /// The version of the plan that was shown. If given, it must still be the same.
    version: Option<u64>,
    /// All steps as they were shown.
    #[schema(min_items = 1, max_items = 50)]
    digests: Vec<ShownStep>,
}

/// A step of a plan as it was shown.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ShownStep {
    /// The id of the change.
    change: String,
    /// The digest of the content that was shown.
    digest: String,
}

impl Body for PlanDecisionRequest {
    const NOT_FOUND: (&'static str, ErrorKind) = ("Plan", ErrorKind::NotFound);
}

/// Approves or rejects all steps of a plan that wait for this reviewer.
///
/// Each step is decided as by `decideChange`, with its own rule's reviewers, approvals and comment. The digests of all steps must
/// be those that were shown; if a step differs, or a check of one fails, nothing is decided (409 with that change). Steps that
/// were not shown completely are not approved this way (409 `TRUNCATED`). A rejection stops the plan: approved steps that have not
/// begun are withdrawn (`PLAN_STOPPED`).
#[utoipa::path(post, path = "/api/plans/{id}/decision", operation_id = "decidePlan", request_body = PlanDecisionRequest,
    responses((status = 200, description = "The plan after the decision", body = Plan), (status = 409)))]
pub async fn decide(
    Submission { principal, path_parameter: id, body }: Submission<PlanDecisionRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    if !(1..=MAX_STEPS).contains(&body.digests.len()) {
        let reason = format!("`digests` must name 1 to {MAX_STEPS} steps");
        return Err(Problem::invalid(reason));
    }
    let count = body.digests.len();
    let digests: BTreeMap<_, _> = body.digests.into_iter().map(|step| (step.change, step.digest)).collect();
    if digests.len() != count {
        return Err(Problem::invalid("`digests` names a step more than once"));
    }
    let decision = PlanDecision {
        id,
        reviewer: Arc::clone(&principal),
        verdict: body.decision,
        comment: body::normalize_comment(body.comment)?,
        version: body.version,
        digests,
    };
    let mut plan = changes.decide_plan(decision).await.map_err(request_problem)?;
    // The decision is made, even if the store cannot tell what the steps wait for.
    let _ = changes.set_waits_for(&mut plan.changes).await;
    plan_response(plan).await
}
