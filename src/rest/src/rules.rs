//! Standing rules.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem, Query,
    body::{self, Body, Submission},
    changes::change_not_found,
    json_ok, page,
};
use countersign_domain::policy::{StandingRule, StandingVerdict};
use countersign_protocol::ErrorKind;
use countersign_review::Changes;
use countersign_rulings::standing_rules::{ArgumentScope, CallerScope, NewRule, StandingRules};

/// `GET /api/rules?limit=&cursor=`, newest first; all of them without either.
pub async fn list(
    _: Caller,
    request: HttpRequest,
    standing: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct RulePage {
        rules: Vec<Arc<StandingRule>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    }
    let query = Query::read(&request, &["limit", "cursor"])?;
    let page = page::by_name(&query, standing.list(), |rule| &rule.id)?;
    Ok(json_ok(&RulePage { rules: page.items, next_cursor: page.next_cursor }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleBody {
    verdict: StandingVerdict,
    arguments: ArgumentScope,
    principal: CallerScope,
    #[serde(rename = "for")]
    valid_for_seconds: Option<u64>,
    comment: Option<String>,
}

impl Body for RuleBody {}

/// `POST /api/changes/{id}/rule`
pub async fn create(
    submission: Submission<RuleBody>,
    changes: web::Data<Changes>,
    standing: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    let new = NewRule {
        verdict: body.verdict,
        arguments: body.arguments,
        principal: body.principal,
        valid_for_seconds: body.valid_for_seconds,
        comment: body::comment(body.comment)?,
    };
    let change = changes.get(&id).await?.ok_or_else(change_not_found)?;
    Ok(json_ok(&standing.create(&change, &principal, new).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeBody {
    comment: Option<String>,
}

impl Body for RevokeBody {
    const OBJECT: (&'static str, ErrorKind) = ("Standing rule", ErrorKind::NotFound);
}

/// `POST /api/rules/{id}/revoke`
pub async fn revoke(
    submission: Submission<RevokeBody>,
    standing: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    let comment = body::comment(body.comment)?;
    Ok(json_ok(&standing.revoke(&id, &principal, comment.as_deref()).await?))
}
