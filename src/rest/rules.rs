//! Standing rules, and what the policy says of a call that nobody makes.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Caller, Problem, RestState, body, json_ok, path_id};
use crate::{
    auth::{Principal, Role},
    changes::Terms,
    policy::{CallFacts, Decision, Mark, Says, StandingRule, Verdict},
    protocol::ErrorKind,
    standing_rules::{Arguments, NewRule, Whose},
};

/// `GET /api/rules`, newest first.
pub async fn list(_: Caller, state: web::Data<RestState>) -> HttpResponse {
    #[derive(Serialize)]
    struct Answer {
        rules: Vec<Arc<StandingRule>>,
    }
    json_ok(&Answer { rules: state.standing.list() })
}

fn id(request: &HttpRequest, missing: ErrorKind) -> Result<&str, Problem> {
    path_id(request).ok_or_else(|| Problem::new(missing, "there is nothing with this id"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleBody {
    verdict: Says,
    arguments: Arguments,
    principal: Whose,
    #[serde(rename = "for")]
    lasts: Option<u64>,
    comment: Option<String>,
}

/// `POST /api/changes/{id}/rule`
pub async fn create(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let reviewer = Arc::clone(caller.decides()?);
    let id = id(&request, ErrorKind::ChangeNotFound)?.to_owned();
    let body: RuleBody = body::json(&request, payload, state.config.transports.http.request_timeout).await?;
    let new = NewRule {
        says: body.verdict,
        arguments: body.arguments,
        principal: body.principal,
        lasts: body.lasts,
        comment: body::comment(body.comment)?,
    };
    let missing = || Problem::new(ErrorKind::ChangeNotFound, "there is no change with this id");
    let change = state.changes.get(&id).await?.ok_or_else(missing)?;
    Ok(json_ok(&state.standing.create(&change, &reviewer, new).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokeBody {
    comment: Option<String>,
}

/// `POST /api/rules/{id}/revoke`
pub async fn revoke(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let reviewer = Arc::clone(caller.decides()?);
    let id = id(&request, ErrorKind::NotFound)?.to_owned();
    let body: RevokeBody = body::json(&request, payload, state.config.transports.http.request_timeout).await?;
    let comment = body::comment(body.comment)?;
    Ok(json_ok(&state.standing.revoke(&id, &reviewer, comment.as_deref()).await?))
}

/// Bytes of a body with arguments.
const MAX_BODY: usize = 2 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Who {
    name: String,
    role: Role,
    owner: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestBody {
    tool: String,
    arguments: Option<Box<RawValue>>,
    principal: Option<Who>,
    transport: Option<String>,
    revision: Option<String>,
    client: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tested<'a> {
    tool: &'a str,
    server: &'a str,
    /// What the policy says, whether it is enforced or not.
    verdict: Verdict,
    rule: Option<&'a str>,
    standing_rule: Option<&'a StandingRule>,
    reason: &'a str,
    mark: Option<Mark>,
    /// Of a review.
    terms: Option<&'a Terms>,
    /// It is not enforced.
    simulated: bool,
    /// The tool is in this principal's list.
    listed: bool,
}

/// `POST /api/policy/test`: what would become of a call. Nothing is called, proposed or counted.
pub async fn test(
    _: Caller,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let patience = state.config.transports.http.request_timeout;
    let body: TestBody = body::json_up_to(MAX_BODY, &request, payload, patience).await?;
    let arguments = match body.arguments {
        Some(arguments) => arguments,
        None => RawValue::from_string("{}".to_owned())
            .map_err(|error| Problem::new(ErrorKind::Internal, error.to_string()))?,
    };
    if !arguments.get().starts_with('{') {
        return Err(Problem::new(ErrorKind::ValidationFailed, "`arguments` is an object"));
    }
    let route = state.standing.routes().load().tool(&body.tool).ok_or_else(|| {
        let name: String = body.tool.chars().take(128).flat_map(char::escape_debug).collect();
        Problem::new(ErrorKind::ToolNotFound, format!("there is no tool {name}"))
    })?;
    let principal = body.principal.map_or_else(Principal::local_agent, |Who { name, role, owner }| Principal {
        name,
        role,
        key_id: None,
        owner,
    });
    let (transport, revision) = (body.transport.unwrap_or_default(), body.revision.unwrap_or_default());
    let (ruled, who) = (Arc::clone(&route), principal.clone());
    // Conditions may take their time, away from the thread that serves connections.
    let decision: Decision = web::block(move || {
        ruled.ruling.decide(&CallFacts {
            principal: &who,
            transport: &transport,
            revision: &revision,
            client: body.client.as_deref(),
            arguments: &arguments,
        })
    })
    .await
    .map_err(|_| Problem::new(ErrorKind::Internal, "the policy could not be asked"))?;
    let verdict = decision.meant();
    Ok(json_ok(&Tested {
        tool: &route.name,
        server: route.provider.name(),
        verdict,
        rule: decision.rule.as_deref().filter(|_| decision.standing.is_none()),
        standing_rule: decision.standing.as_deref(),
        reason: &decision.reason,
        mark: decision.mark,
        terms: (verdict == Verdict::Review).then_some(&*decision.terms),
        simulated: decision.simulated.is_some(),
        listed: route.visible_to(&principal),
    }))
}
