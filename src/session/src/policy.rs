//! Applies the policy to calls and to other requests.

use std::sync::Arc;

use serde_json::value::RawValue;

use countersign_domain::{
    policy::{DEFAULT_IDENTITY, Decision, Policy, Requester, Subject, Verdict},
    principal::Scope,
    text::truncate,
};
use countersign_exchange::context::Exchange;
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::{RouteTable, RouteTarget, ToolRoute, ruling::find_refusal};
use countersign_runtime::{background, crash::crash_point};
use countersign_telemetry::metrics as telemetry;

/// A call with the policy's decision on it. Only [`JudgedCall::apply_decision`] applies and counts the decision, or
/// [`JudgedCall::apply_decision_in_plan`] for a call of a plan.
pub struct JudgedCall {
    pub route: Arc<ToolRoute>,
    pub decision: Arc<Decision>,
    /// The operation that the call names, if the tool carries many.
    operation: Option<NamedOperation>,
}

/// An operation of a tool that carries many.
struct NamedOperation {
    /// `tool/operation`.
    subject: String,
    /// The operation in metrics. Only operations that a recipe names have a label of their own, so that their number is
    /// bounded.
    label: String,
}

/// The label of operations that no recipe names.
const UNKNOWN_OPERATION: &str = "(unknown)";

impl NamedOperation {
    fn from_call(route: &ToolRoute, arguments: &RawValue) -> Option<Self> {
        let subject = route.has_operations().then(|| route.qualified_name(arguments).into_owned())?;
        let known_operation = route.known_operations().find(|known| known.name == subject);
        let label =
            known_operation.and_then(|known| known.name.get(route.name.len() + 1..)).unwrap_or(UNKNOWN_OPERATION);
        Some(Self { label: label.to_owned(), subject })
    }
}

/// The route of a call that the policy has admitted. No handler runs a tool without it, and only
/// [`JudgedCall::apply_decision`] creates it.
pub struct AdmittedRoute(Arc<ToolRoute>);

impl AdmittedRoute {
    pub fn route(&self) -> &Arc<ToolRoute> {
        &self.0
    }
}

/// States whether a call that the policy does not deny runs or is reviewed.
pub enum Admission {
    Run(AdmittedRoute),
    Review(JudgedCall),
}

/// States whether the decision on a call still has to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    Count,
    /// The call was admitted before, and continues with the answers to its upstream's questions.
    AlreadyCounted,
}

/// Decides on one call without counting it, so the call may still go to another tool. A decision that does not depend
/// on the call costs one comparison. Conditions that may take long run on another thread than the connection's.
///
/// # Errors
/// `INTERNAL_ERROR` if the evaluation of the policy failed.
pub async fn judge(exchange: &Exchange, route: &Arc<ToolRoute>, arguments: &RawValue) -> Result<JudgedCall, McpError> {
    let operation = NamedOperation::from_call(route, arguments);
    let judged = |decision| JudgedCall { route: Arc::clone(route), decision, operation };
    let ruling = route.ruling_for(arguments);
    if let Some(decision) = ruling.fixed_decision() {
        return Ok(judged(Arc::clone(decision)));
    }
    let principal = &exchange.identity.principal;
    let decision = if ruling.may_take_long(principal, arguments) {
        let (route, exchange, arguments) = (route.clone(), exchange.clone(), arguments.to_owned());
        let work = background::spawn_blocking(move || decide(&exchange, &route, &arguments));
        work.await.map_err(|_| McpError::new(ErrorKind::Internal, "the policy could not be asked"))?
    } else {
        decide(exchange, route, arguments)
    };
    Ok(judged(Arc::new(decision)))
}

/// Asks the policy about the call.
fn decide(exchange: &Exchange, route: &ToolRoute, arguments: &RawValue) -> Decision {
    route.ruling_for(arguments).decide(&exchange.requester(), arguments)
}

impl JudgedCall {
    /// Returns the name by which rules refer to the call: that of the tool, or `tool/operation`.
    pub fn subject(&self) -> &str {
        self.operation.as_ref().map_or(&self.route.name, |operation| &operation.subject)
    }

    /// Admits the call, sends it to review or refuses it, and counts the decision for the rule or the standing rule that made
    /// it. A call that only runs because the policy is simulated is counted as such, too. Each call is counted once, even if
    /// it runs as a task or its upstream asks for input several times.
    ///
    /// # Errors
    /// `POLICY_DENIED` with the rule and the reason, or `FORBIDDEN` if the client's token does not permit proposals.
    pub fn apply_decision(self, exchange: &Exchange, counting: Counting) -> Result<Admission, McpError> {
        self.check_scope_and_count(exchange, counting)?;
        match self.decision.verdict {
            Verdict::Allow => Ok(Admission::Run(AdmittedRoute(self.route))),
            Verdict::Review => Ok(Admission::Review(self)),
            Verdict::Deny => Err(self.refuse(exchange)),
        }
    }

    /// Admits a call to a plan, of which every call becomes a change, or refuses it, and counts the decision.
    ///
    /// # Errors
    /// The errors of [`Self::apply_decision`].
    pub fn apply_decision_in_plan(self, exchange: &Exchange) -> Result<Self, McpError> {
        self.check_scope_and_count(exchange, Counting::Count)?;
        match self.decision.verdict {
            Verdict::Allow | Verdict::Review => Ok(self),
            Verdict::Deny => Err(self.refuse(exchange)),
        }
    }

    fn check_scope_and_count(&self, exchange: &Exchange, counting: Counting) -> Result<(), McpError> {
        if self.decision.verdict == Verdict::Review {
            exchange.identity.principal.require_scope(Scope::ToolsPropose)?;
        }
        if counting == Counting::Count {
            self.count_decision(exchange);
        }
        Ok(())
    }

    /// Returns the error for a denied call, and logs it.
    fn refuse(&self, exchange: &Exchange) -> McpError {
        let (tool, principal, reason) = (self.subject(), &exchange.identity.principal.name, &self.decision.reason);
        // `tool` is logged as a string and so escaped: the agent chooses the name of an operation, which may contain line
        // breaks.
        let rule = self.decision.rule.as_deref().unwrap_or(DEFAULT_IDENTITY);
        tracing::info!(tool, %principal, rule, %reason, "a call was denied");
        denied_error("call", ("tool", tool), self.decision.rule.as_deref(), reason)
    }

    fn count_decision(&self, exchange: &Exchange) {
        let (decision, tool, principal) = (&self.decision, self.subject(), &exchange.identity.principal.name);
        if let Some(operation) = &self.operation {
            metrics::counter!(
                telemetry::OPERATION_CALLS,
                "tool" => self.route.name.clone(), "operation" => operation.label.clone(), "verdict" => decision.verdict.as_str()
            )
            .increment(1);
        }
        if let Some(rule) = &decision.standing_rule {
            rule.uses.increment();
            tracing::info!(
                rule = %rule.id, tool, %principal, verdict = decision.intended_verdict().as_str(), uses = rule.uses.get(),
                "a standing rule decided on a call"
            );
            crash_point("after_rule_used");
        } else if let Some(counts) = &decision.counts {
            counts.increment(decision.intended_verdict());
        }
        if let Some(simulated_verdict) = decision.simulated {
            metrics::counter!(telemetry::POLICY_SIMULATED, "verdict" => simulated_verdict.as_str()).increment(1);
            tracing::info!(
                tool, %principal, verdict = simulated_verdict.as_str(),
                rule = decision.rule.as_deref().unwrap_or(DEFAULT_IDENTITY), reason = %decision.reason,
                "a call went through because policy.mode is simulate"
            );
        }
    }
}

/// Returns the error for a call or another request that the policy denies.
fn denied_error(request: &str, (kind, name): (&str, &str), rule: Option<&str>, reason: &str) -> McpError {
    let text = format!("the gateway's policy does not allow this {request}");
    let error = McpError::new(ErrorKind::PolicyDenied, text).with(kind, name).with("reason", reason);
    match rule {
        Some(rule) => error.with("rule", rule),
        None => error,
    }
}

/// Checks that the policy allows a request that is not a tool call. Logs and counts a refusal.
///
/// # Errors
/// `POLICY_DENIED` with the rule and the reason.
pub fn check_policy(
    exchange: &Exchange,
    table: &RouteTable,
    provider: &RouteTarget,
    subject: Subject<'_>,
) -> Result<(), McpError> {
    let Some(policy) = table.refusing_policy() else { return Ok(()) };
    let Some(refusal) = find_refusal(policy, provider, subject, &exchange.requester()) else { return Ok(()) };
    policy.count_refusal(refusal.rule.as_deref());
    let name = truncate(subject.name(), 2048);
    let rule = refusal.rule.as_deref().unwrap_or(DEFAULT_IDENTITY);
    let (kind, principal) = (subject.kind_name(), &exchange.identity.principal.name);
    if policy.simulates() {
        metrics::counter!(telemetry::POLICY_SIMULATED, "verdict" => "deny").increment(1);
        tracing::info!(what = kind, name, %principal, rule, "a request was let through because policy.mode is simulate");
        return Ok(());
    }
    tracing::info!(what = kind, name, %principal, rule, reason = %refusal.reason, "a request was denied");
    Err(denied_error(kind, (kind, name), refusal.rule.as_deref(), &refusal.reason))
}

/// Filters lists for one client: entries that it may not use are left out.
pub struct ListFilter<'a>(Option<(&'a Policy, Requester<'a>)>);

impl<'a> ListFilter<'a> {
    pub fn for_requester(exchange: &'a Exchange, table: &'a RouteTable) -> Self {
        Self(table.refusing_policy().filter(|policy| !policy.simulates()).map(|policy| (policy, exchange.requester())))
    }

    pub fn shows(&self, provider: &RouteTarget, subject: Subject<'_>) -> bool {
        let Some((policy, requester)) = &self.0 else { return true };
        find_refusal(policy, provider, subject, requester).is_none()
    }
}
