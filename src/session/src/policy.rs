//! Carries out what the policy says of a call.

use std::sync::Arc;

use serde_json::value::RawValue;

use countersign_domain::policy::{
    AccessDecision, Decision, Policy, Requester, Subject, Verdict,
    subjects::{Owner, Refusal},
};
use countersign_exchange::context::{Exchange, requester};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::Provider;
use countersign_routing::{RouteTable, ToolRoute};
use countersign_runtime::crash::crash_point;
use countersign_telemetry::metrics as telemetry;

/// A call that policy was asked about: where it goes, and what was decided. It travels with the call; what it means is
/// carried out, and counted, in [`JudgedCall::carry_out`] alone.
pub struct JudgedCall {
    pub route: Arc<ToolRoute>,
    pub decision: Arc<Decision>,
}

/// A tool that policy has let one call through to. Nothing is called without it, and only [`JudgedCall::carry_out`] makes it.
#[derive(Clone)]
pub struct AdmittedCall(Arc<ToolRoute>);

impl AdmittedCall {
    #[must_use]
    pub fn route(&self) -> &Arc<ToolRoute> {
        &self.0
    }
}

/// The verdict on a call that was not refused.
pub enum Gate {
    Open(AdmittedCall),
    Review(JudgedCall),
}

/// Tells whether a call was counted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    NotYet,
    /// It is a call that was let through, and goes on with the answers to what its server asked.
    Before,
}

/// Decides on one call. Nothing is counted, so the call may still go elsewhere. What depends on no call costs a comparison;
/// conditions that may take long run away from the connection's thread.
///
/// # Errors
/// `INTERNAL_ERROR` where the policy could not be asked.
pub async fn judge(exchange: &Exchange, route: &Arc<ToolRoute>, arguments: &RawValue) -> Result<JudgedCall, McpError> {
    let judged = |decision| JudgedCall { route: Arc::clone(route), decision };
    let ruling = route.ruling_for(arguments);
    if let Some(decision) = ruling.fixed_decision() {
        return Ok(judged(Arc::clone(decision)));
    }
    let principal = &exchange.identity.principal;
    let decision = if ruling.may_take_long(principal, arguments) {
        let (route, exchange, arguments) = (route.clone(), exchange.clone(), arguments.to_owned());
        let work = tokio::task::spawn_blocking(move || decide(&exchange, &route, &arguments));
        work.await.map_err(|_| McpError::new(ErrorKind::Internal, "the policy could not be asked"))?
    } else {
        decide(exchange, route, arguments)
    };
    Ok(judged(Arc::new(decision)))
}

fn decide(exchange: &Exchange, route: &ToolRoute, arguments: &RawValue) -> Decision {
    route.ruling_for(arguments).decide(&requester(exchange), arguments)
}

impl JudgedCall {
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.decision.verdict
    }

    /// Lets the call through, sends it to review or refuses it, and counts that: the uses of standing rules, and what became
    /// of nothing because the policy is only simulated. Once for each call, whatever it was asked as (a task too) and however
    /// often its server asks back.
    ///
    /// # Errors
    /// `POLICY_DENIED`, with the rule and the reason.
    pub fn carry_out(self, exchange: &Exchange, counted: Counted) -> Result<Gate, McpError> {
        if counted == Counted::NotYet {
            self.count(exchange);
        }
        let (tool, rule) = (&self.route.name, self.decision.rule.as_deref().unwrap_or("policy.default"));
        let reason = &self.decision.reason;
        match self.verdict() {
            Verdict::Allow => Ok(Gate::Open(AdmittedCall(self.route))),
            Verdict::Review => Ok(Gate::Review(self)),
            Verdict::Deny => {
                let principal = &exchange.identity.principal.name;
                tracing::info!(%tool, %principal, rule, %reason, "a call was denied");
                Err(denied(&self.route, &self.decision))
            }
        }
    }

    fn count(&self, exchange: &Exchange) {
        let (decision, tool, principal) = (&self.decision, &self.route.name, &exchange.identity.principal.name);
        if let Some(rule) = &decision.standing_rule {
            rule.uses.increment();
            tracing::info!(
                rule = %rule.id, %tool, %principal, verdict = decision.intended_verdict().as_str(), uses = rule.uses.get(),
                "a standing rule decided on a call"
            );
            crash_point("after_rule_used");
        }
        if let Some(meant) = decision.simulated {
            metrics::counter!(telemetry::POLICY_SIMULATED, "verdict" => meant.as_str()).increment(1);
            tracing::info!(
                %tool, %principal, verdict = meant.as_str(),
                rule = decision.rule.as_deref().unwrap_or("policy.default"), reason = %decision.reason,
                "a call went through because policy.mode is simulate"
            );
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
pub fn refusal(
    policy: &Policy,
    provider: &dyn Provider,
    subject: Subject<'_>,
    requester: &Requester<'_>,
) -> Option<Refusal> {
    let name = provider.name();
    let owner = if provider.is_module() { Owner::Module(name) } else { Owner::Upstream(name) };
    match policy.decide_access(subject, owner, requester) {
        AccessDecision::Refused(refusal) => Some(refusal),
        AccessDecision::Allowed | AccessDecision::NoRule => None,
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
    let Some(refusal) = refusal(policy, provider, subject, &requester(exchange)) else { return Ok(()) };
    let name: String = subject.name().chars().take(2048).collect();
    let rule = refusal.rule.as_deref().unwrap_or("policy.default");
    let (what, principal) = (subject.kind_name(), &exchange.identity.principal.name);
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
pub struct Lists<'a>(Option<(&'a Policy, Requester<'a>)>);

impl<'a> Lists<'a> {
    #[must_use]
    pub fn for_requester(exchange: &'a Exchange, table: &'a RouteTable) -> Self {
        Self(table.refusing_policy().filter(|policy| !policy.simulates()).map(|policy| (policy, requester(exchange))))
    }

    #[must_use]
    pub fn shows(&self, provider: &dyn Provider, subject: Subject<'_>) -> bool {
        let Some((policy, requester)) = &self.0 else { return true };
        refusal(policy, provider, subject, requester).is_none()
    }
}
