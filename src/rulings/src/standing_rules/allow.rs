//! Standing rules that let a whole tool run without review: for one definition, any caller and any arguments, until a
//! reviewer revokes the rule.
//!
//! Such rules make servers usable whose tools have no annotations. They do not override the configuration: if a rule
//! of the configuration decides on a tool, the operator has to change that rule.

use std::sync::Arc;

use super::{StandingRuleService, recording::RuleEvent, unrestricted_rule};
use crate::{
    completion::run_to_completion,
    tool_acceptance::{DefinitionRef, shorten_name},
};
use countersign_domain::{
    changes::person::Person,
    policy::{StandingRule, StandingVerdict, Verdict, standing_rules::can_approve_alone},
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::table::ToolRoute;
use countersign_runtime::crash::crash_point;

impl StandingRuleService {
    /// Creates rules, on behalf of a reviewer, that let tools of a server run without review. Tools that this reviewer has
    /// already allowed in their present form are skipped.
    ///
    /// Checks all tools first. If a rule cannot be stored, the ones before it remain and are in force.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown server, `VERSION_CONFLICT` if a tool is gone or differs from the one shown, `FORBIDDEN`
    /// (its definition is not accepted yet, a rule of the configuration decides on it, or its reviews need more than this
    /// reviewer's approval), `POLICY_DENIED`, `VALIDATION_FAILED` if it runs without review anyway, `RATE_LIMITED`,
    /// `STORE_UNAVAILABLE`. An error about a tool names it in `data.tools`.
    pub async fn allow_tools(
        self: &Arc<Self>,
        provider: &str,
        shown_definitions: &[DefinitionRef],
        reviewer: &Principal,
        reason: &str,
    ) -> Result<(), McpError> {
        let (this, provider, shown_definitions) = (Arc::clone(self), provider.to_owned(), shown_definitions.to_vec());
        let (reviewer, reason) = (reviewer.clone(), reason.to_owned());
        run_to_completion(async move {
            let _one_at_a_time = this.rules_lock.lock().await;
            let table = this.deps.routes.load_full();
            let unknown = || McpError::new(ErrorKind::NotFound, "there is no server of this name");
            let target = table.provider(&provider).ok_or_else(unknown)?.as_provider().target_fingerprint().to_owned();
            let now = this.now();
            let mut rules: Vec<StandingRule> = Vec::new();
            for DefinitionRef { name, hash } in &shown_definitions {
                let route = table.definitions(&provider).find(|route| route.name == *name && route.hash == *hash);
                let Some(route) = route else {
                    let message = "a tool's definition differs from the one that was shown, or the tool is gone";
                    return Err(tool_error(ErrorKind::VersionConflict, message, name));
                };
                if this.has_already_allowed(route, &target, &reviewer) || rules.iter().any(|rule| rule.tool == *name) {
                    continue;
                }
                this.check_may_allow(route, &reviewer)?;
                rules.push(StandingRule {
                    served_by: Some(target.clone()),
                    comment: Some(reason.clone()),
                    ..unrestricted_rule(StandingVerdict::Allow, (&provider, name, hash), &reviewer, now)
                });
            }
            if rules.is_empty() {
                return Ok(());
            }
            this.check_limits(&reviewer, rules.len())?;
            this.store_in_order(&rules, &reviewer, &reason).await
        })
        .await
    }

    /// Stores rules until one cannot be stored, and puts the stored ones into force in any case.
    pub(super) async fn store_in_order(
        &self,
        rules: &[StandingRule],
        reviewer: &Principal,
        reason: &str,
    ) -> Result<(), McpError> {
        crash_point("before_rule_created");
        let (mut stored, mut outcome) = (0, Ok(()));
        for rule in rules {
            let recorded = self.record(rule, RuleEvent::Created.audit_event(), &reviewer.name, Some(reason)).await;
            outcome = recorded.map_err(|error| error.with("tools", vec![shorten_name(&rule.tool)]));
            if outcome.is_err() {
                break;
            }
            self.deps.cache.upsert(rule);
            stored += 1;
        }
        crash_point("after_rule_created");
        (self.deps.rebuild)().await;
        for rule in rules.iter().take(stored) {
            tracing::info!(rule = %rule.id, tool = %rule.tool, by = %reviewer.name, "a reviewer lets a tool run without review");
            self.announce(rule, RuleEvent::Created, &reviewer.name, Some(reason));
        }
        outcome
    }

    /// Returns `true` if the reviewer lets the tool run in its present form, by a rule that has not ended.
    fn has_already_allowed(&self, route: &ToolRoute, target: &str, reviewer: &Principal) -> bool {
        self.deps.cache.rules().iter().any(|rule| {
            rule.allows_whole_tool()
                && !rule.has_ended()
                && rule.tool == route.name
                && rule.provider == route.provider.name()
                && rule.tool_hash == route.hash
                && rule.served_by.as_deref() == Some(target)
                && Person::from_principal(&rule.creator()).is_same_as(Person::from_principal(reviewer))
        })
    }

    fn check_may_allow(&self, route: &Arc<ToolRoute>, reviewer: &Principal) -> Result<(), McpError> {
        let refuse = |kind, message: &str| Err(tool_error(kind, message, &route.name));
        if route.definition_status.mark().is_some() {
            let message = "the tool is new, or its definition has changed: accept the definition first";
            return refuse(ErrorKind::Forbidden, message);
        }
        let Some(decision) = route.ruling.default_decision() else {
            let rules: Vec<&str> = route.ruling.rules().filter(|rule| !rule.starts_with("srl_")).collect();
            let message =
                format!("the configuration decides on this tool ({}); change that rule instead", rules.join(", "));
            return refuse(ErrorKind::Forbidden, &message);
        };
        match decision.verdict {
            Verdict::Allow => refuse(ErrorKind::ValidationFailed, "the tool runs without review already"),
            Verdict::Deny => refuse(ErrorKind::PolicyDenied, "policy.default denies the tool"),
            Verdict::Review if !can_approve_alone(&self.deps.reviewers, &decision.terms, reviewer) => refuse(
                ErrorKind::Forbidden,
                "its reviews need more than your approval alone (policy.review), so they cannot be skipped",
            ),
            Verdict::Review => Ok(()),
        }
    }
}

fn tool_error(kind: ErrorKind, message: &str, tool: &str) -> McpError {
    let tool = shorten_name(tool);
    McpError::new(kind, format!("{tool}: {message}")).with("tools", vec![tool])
}
