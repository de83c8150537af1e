//! Carries out what the policy says of a call.

use serde_json::value::RawValue;

use crate::{
    changes::ReviewNote,
    policy::{CallFacts, Decision, Verdict},
    protocol::{ErrorKind, McpError},
    router::ToolRoute,
    session::exchange::Exchange,
    store::crash::crash_point,
    telemetry::metrics as telemetry,
};

/// Whether the call goes through or becomes a change, and why that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    Review(Decision),
}

/// Asks for a verdict on one call. What depends on no call costs a comparison; conditions that may take long run away
/// from the connection's thread.
///
/// # Errors
/// `POLICY_DENIED`, with the rule and the reason.
pub async fn check(
    exchange: &Exchange,
    route: &std::sync::Arc<ToolRoute>,
    arguments: &RawValue,
) -> Result<Gate, McpError> {
    if let Some(decision) = route.ruling.fixed() {
        return carry_out(exchange, route, decision);
    }
    let principal = &exchange.identity.principal;
    let decision = if route.ruling.may_take_long(principal, arguments) {
        let (route, exchange, arguments) = (route.clone(), exchange.clone(), arguments.to_owned());
        let work = actix_web::web::block(move || decide(&exchange, &route, &arguments));
        work.await.map_err(|_| McpError::new(ErrorKind::Internal, "the policy could not be asked"))?
    } else {
        decide(exchange, route, arguments)
    };
    carry_out(exchange, route, &decision)
}

fn decide(exchange: &Exchange, route: &ToolRoute, arguments: &RawValue) -> Decision {
    route.ruling.decide(&CallFacts {
        principal: &exchange.identity.principal,
        transport: exchange.transport.as_str(),
        revision: exchange.revision().as_str(),
        client: exchange.facts.client.as_ref().map(|client| client.name.as_str()),
        arguments,
    })
}

fn carry_out(exchange: &Exchange, route: &ToolRoute, decision: &Decision) -> Result<Gate, McpError> {
    if let Some(rule) = &decision.standing {
        rule.uses.count();
        tracing::info!(
            rule = %rule.id, tool = %route.name, principal = %exchange.identity.principal.name,
            verdict = decision.meant().as_str(), uses = rule.uses.get(), "a standing rule decided on a call"
        );
        crash_point("after_rule_used");
    }
    if let Some(meant) = decision.simulated {
        metrics::counter!(telemetry::POLICY_SIMULATED, "verdict" => meant.as_str()).increment(1);
        tracing::info!(
            tool = %route.name,
            principal = %exchange.identity.principal.name,
            verdict = meant.as_str(),
            rule = decision.rule.as_deref().unwrap_or("policy.default"),
            reason = %decision.reason,
            "a call went through because policy.mode is simulate"
        );
    }
    match decision.verdict {
        Verdict::Allow => Ok(Gate::Open),
        Verdict::Review => {
            tracing::debug!(
                tool = %route.name,
                rule = decision.rule.as_deref().unwrap_or("policy.default"),
                reason = %decision.reason,
                "a call is reviewed"
            );
            Ok(Gate::Review(decision.clone()))
        }
        Verdict::Deny => {
            tracing::info!(
                tool = %route.name,
                principal = %exchange.identity.principal.name,
                rule = decision.rule.as_deref().unwrap_or("policy.default"),
                reason = %decision.reason,
                "a call was denied"
            );
            Err(denied(route, decision))
        }
    }
}

fn denied(route: &ToolRoute, decision: &Decision) -> McpError {
    let error = McpError::new(ErrorKind::PolicyDenied, "the gateway's policy does not allow this call")
        .with("tool", route.name.clone())
        .with("reason", decision.reason.to_string());
    match &decision.rule {
        Some(rule) => error.with("rule", rule.to_string()),
        None => error,
    }
}

impl From<Decision> for ReviewNote {
    fn from(decision: Decision) -> Self {
        Self {
            rule: decision.rule.as_deref().map(str::to_owned),
            reason: decision.reason.to_string(),
            mark: decision.mark.map(|mark| mark.code().to_owned()),
        }
    }
}
