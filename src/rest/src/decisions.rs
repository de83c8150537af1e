//! Makes many decisions in one request. Each is made independently and has its own result.

use std::{collections::HashSet, sync::Arc};

use actix_web::{HttpResponse, web};
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Problem,
    body::{self, Body, Submission},
    changes::request_problem,
    offload_json_response,
    problem_document::ProblemDocument,
};
use countersign_domain::changes::{Change, ReviewVerdict};
use countersign_review::{ChangeDecision, Changes};

/// Maximum number of changes in one request.
const MAX_CHANGES: usize = 100;
/// Maximum number of decisions at a time.
const MAX_CONCURRENT_DECISIONS: usize = 8;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionsRequest {
    decision: ReviewVerdict,
    #[schema(max_length = 4096)]
    comment: Option<String>,
    #[schema(min_items = 1, max_items = 100)]
    changes: Vec<DisplayedChange>,
}

/// A change as it was displayed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DisplayedChange {
    id: String,
    version: u64,
    /// The digest of the displayed content, which proves that the reviewer has seen the diff.
    digest: String,
}

impl Body for DecisionsRequest {}

#[derive(Serialize, ToSchema)]
struct DecisionResults {
    results: Vec<DecisionResult>,
}

/// The change after its decision, or the reason why it was not made.
#[derive(Serialize, ToSchema)]
struct DecisionResult {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Arc<Change>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ProblemDocument>)]
    problem: Option<Problem>,
}

/// Approves or rejects several changes.
///
/// Each decision is made on its own, as by `decideChange`, and has its own result, in the order of the changes. Each requires the
/// digest that was shown. A change that was not shown completely is not approved this way (`TRUNCATED`).
#[utoipa::path(post, path = "/api/decisions", operation_id = "decideMany", request_body = DecisionsRequest,
    responses((status = 200, description = "The result of each decision", body = DecisionResults)))]
pub async fn decide(
    Submission { principal, body, .. }: Submission<DecisionsRequest>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let comment = body::normalize_comment(body.comment)?;
    if !(1..=MAX_CHANGES).contains(&body.changes.len()) {
        return Err(Problem::invalid(format!("`changes` must name 1 to {MAX_CHANGES} changes")));
    }
    let mut ids = HashSet::new();
    if let Some(duplicate) = body.changes.iter().find(|displayed| !ids.insert(displayed.id.as_str())) {
        return Err(Problem::invalid(format!("{:.64} is named twice", duplicate.id.escape_default().to_string())));
    }
    let decisions = body.changes.into_iter().map(|DisplayedChange { id, version, digest }| {
        let decision = ChangeDecision {
            id: id.clone(),
            reviewer: Arc::clone(&principal),
            verdict: body.decision,
            comment: comment.clone(),
            version,
            digest: Some(digest),
            bulk: true,
        };
        let changes = &changes;
        async move {
            match changes.decide(decision).await {
                Ok(change) => DecisionResult { id, change: Some(change), problem: None },
                Err(error) => DecisionResult { id, change: None, problem: Some(request_problem(error)) },
            }
        }
    });
    let results: Vec<DecisionResult> = stream::iter(decisions).buffered(MAX_CONCURRENT_DECISIONS).collect().await;
    let bytes =
        results.iter().filter_map(|outcome| outcome.change.as_ref()).map(|change| change.estimated_size()).sum();
    offload_json_response(bytes, DecisionResults { results }).await
}
