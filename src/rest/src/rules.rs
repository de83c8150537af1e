//! Standing rules: listed, given on a change, taken back.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem, Query, body, json_ok, page,
    posted::{Body, On},
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
    let page = page::named(&query, standing.list(), |rule| &rule.id)?;
    Ok(json_ok(&RulePage { rules: page.items, next_cursor: page.next_cursor }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleBody {
    verdict: StandingVerdict,
    arguments: ArgumentScope,
    principal: CallerScope,
    #[serde(rename = "for")]
    lasts: Option<u64>,
    comment: Option<String>,
}

impl Body for RuleBody {}

/// `POST /api/changes/{id}/rule`
pub async fn create(
    asked: On<RuleBody>,
    changes: web::Data<Changes>,
    standing: web::Data<StandingRules>,
) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    let new = NewRule {
        says: body.verdict,
        arguments: body.arguments,
        principal: body.principal,
        valid_for_seconds: body.lasts,
        comment: body::comment(body.comment)?,
    };
    let missing = || Problem::new(ErrorKind::ChangeNotFound, "Change not found");
    let change = changes.get(&id).await?.ok_or_else(missing)?;
    Ok(json_ok(&standing.create(&change, &reviewer, new).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeBody {
    comment: Option<String>,
}

impl Body for RevokeBody {
    const ABOUT: (&'static str, ErrorKind) = ("Standing rule", ErrorKind::NotFound);
}

/// `POST /api/rules/{id}/revoke`
pub async fn revoke(asked: On<RevokeBody>, standing: web::Data<StandingRules>) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    let comment = body::comment(body.comment)?;
    Ok(json_ok(&standing.revoke(&id, &reviewer, comment.as_deref()).await?))
}
