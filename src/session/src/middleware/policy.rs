//! Carries out what the policy says of a call.

use std::borrow::Cow;

use serde_json::value::RawValue;

use countersign_domain::policy::{
    Asker, CallFacts, Decision, Passage, Policy, Subject, Verdict,
    subjects::{Owner, Refusal},
};
use countersign_exchange::context::{Exchange, asker};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::Provider;
use countersign_routing::{RouteTable, ToolRoute};
use countersign_store::crash::crash_point;
use countersign_telemetry::metrics as telemetry;

/// Whether the call goes through or becomes a change, and why that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    Review(Decision),
}

/// What the policy says of one call. Nothing is counted: whoever asks may ask again, or send the call elsewhere. What
/// depends on no call costs a comparison; conditions that may take long run away from the connection's thread.
///
/// # Errors
/// `INTERNAL_ERROR` where it could not be asked.
pub async fn judge<'r>(
    exchange: &Exchange,
    route: &'r std::sync::Arc<ToolRoute>,
    arguments: &RawValue,
) -> Result<Cow<'r, Decision>, McpError> {
    if let Some(decision) = route.ruling.fixed() {
        return Ok(Cow::Borrowed(decision));
    }
    let principal = &exchange.identity.principal;
    let decision = if route.ruling.may_take_long(principal, arguments) {
        let (route, exchange, arguments) = (route.clone(), exchange.clone(), arguments.to_owned());
        let work = actix_web::web::block(move || decide(&exchange, &route, &arguments));
        work.await.map_err(|_| McpError::new(ErrorKind::Internal, "the policy could not be asked"))?
    } else {
        decide(exchange, route, arguments)
    };
    Ok(Cow::Owned(decision))
}

fn decide(exchange: &Exchange, route: &ToolRoute, arguments: &RawValue) -> Decision {
    let Asker { principal, transport, revision, client } = asker(exchange);
    route.ruling.decide(&CallFacts { principal, transport, revision, client, arguments })
}

/// Lets a call through, sends it to review or refuses it, and counts that: the uses of standing rules, and what became of
/// nothing because the policy is only simulated. Once for each call, whatever it was asked as (a task too).
///
/// # Errors
/// `POLICY_DENIED`, with the rule and the reason.
pub fn carry_out(exchange: &Exchange, route: &ToolRoute, decision: &Decision) -> Result<Gate, McpError> {
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

/// Why the policy refuses it, whether that is enforced or not.
#[must_use]
pub fn refusal(policy: &Policy, provider: &dyn Provider, subject: Subject<'_>, asker: &Asker<'_>) -> Option<Refusal> {
    let name = provider.name();
    let owner = if provider.is_module() { Owner::Module(name) } else { Owner::Upstream(name) };
    match policy.passage(subject, owner, asker) {
        Passage::Refused(refusal) => Some(refusal),
        Passage::Allowed | Passage::Unnamed => None,
    }
}

/// Lets a request through that is no call of a tool, or refuses it.
///
/// # Errors
/// `POLICY_DENIED`, with the rule and the reason.
pub fn admit(
    exchange: &Exchange,
    table: &RouteTable,
    provider: &dyn Provider,
    subject: Subject<'_>,
) -> Result<(), McpError> {
    let Some(policy) = table.refusing_policy() else { return Ok(()) };
    let Some(refusal) = refusal(policy, provider, subject, &asker(exchange)) else { return Ok(()) };
    let name: String = subject.name().chars().take(2048).collect();
    let rule = refusal.rule.as_deref().unwrap_or("policy.default");
    let (what, principal) = (subject.what(), &exchange.identity.principal.name);
    if policy.simulates() {
        metrics::counter!(telemetry::POLICY_SIMULATED, "verdict" => "deny").increment(1);
        tracing::info!(what, name, %principal, rule, "it was let through because policy.mode is simulate");
        return Ok(());
    }
    tracing::info!(what, name, %principal, rule, reason = %refusal.reason, "a request was denied");
    let error = McpError::new(ErrorKind::PolicyDenied, format!("the gateway's policy does not allow this {what}"))
        .with(what, name)
        .with("reason", refusal.reason.to_string());
    Err(match &refusal.rule {
        Some(rule) => error.with("rule", rule.to_string()),
        None => error,
    })
}

/// Tells what of a list this client is shown: what it may not use is not listed to it.
pub struct Lists<'a>(Option<(&'a Policy, Asker<'a>)>);

impl<'a> Lists<'a> {
    #[must_use]
    pub fn of(exchange: &'a Exchange, table: &'a RouteTable) -> Self {
        Self(table.refusing_policy().filter(|policy| !policy.simulates()).map(|policy| (policy, asker(exchange))))
    }

    #[must_use]
    pub fn shows(&self, provider: &dyn Provider, subject: Subject<'_>) -> bool {
        let Some((policy, asker)) = &self.0 else { return true };
        refusal(policy, provider, subject, asker).is_none()
    }
}
