//! 'Let this tool run without review': a standing rule that a reviewer gives on a tool as it was shown, for whoever calls
//! it with whatever arguments, until it is revoked.
//!
//! It makes servers usable whose tools say nothing of themselves, and is no way around the configuration: where a rule of
//! the file decides on a tool, that rule has to be changed instead.

use std::sync::Arc;

use super::{StandingRules, blank};
use crate::tool_acceptance::Shown;
use countersign_domain::{
    changes::people::Person,
    policy::{Says, StandingRule, Verdict, standing_rules::suffices},
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::table::ToolRoute;
use countersign_runtime::crash::crash_point;

impl StandingRules {
    /// A reviewer lets tools of a server run without review: all of them, or none. One that this person has let run
    /// already, as it is now, stays as it is.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown server, `VERSION_CONFLICT` where a tool is gone or another than the one that was shown,
    /// `FORBIDDEN` (its definition waits to be accepted, a rule of the configuration decides on it, or its reviews ask for
    /// more than this reviewer's word), `POLICY_DENIED`, `VALIDATION_FAILED` where it runs without review anyhow,
    /// `RATE_LIMITED`, `STORE_UNAVAILABLE`. All name the tools in `details.tools`.
    pub async fn let_run(&self, provider: &str, shown: &[Shown], by: &Principal, reason: &str) -> Result<(), McpError> {
        let _one_at_a_time = self.changing.lock().await;
        let table = self.parts.routes.load_full();
        let unknown = || McpError::new(ErrorKind::NotFound, "there is no server of this name");
        let target = table.provider(provider).ok_or_else(unknown)?.target().to_owned();
        let now = self.now();
        let mut rules: Vec<StandingRule> = Vec::new();
        for Shown { name, hash } in shown {
            let route = table
                .tools()
                .iter()
                .find(|route| route.provider.name() == provider && route.name == *name && route.hash == *hash);
            let Some(route) = route else {
                let message = "a tool's definition is another than the one that was shown, or the tool is gone";
                return Err(about(ErrorKind::VersionConflict, message, name));
            };
            if self.has_let_run(route, &target, by) || rules.iter().any(|rule| rule.tool == *name) {
                continue;
            }
            self.may_let_run(route, by)?;
            rules.push(StandingRule {
                served_by: Some(target.clone()),
                comment: Some(reason.to_owned()),
                ..blank(Says::Allow, (provider, name, hash), by, now)
            });
        }
        if rules.is_empty() {
            return Ok(());
        }
        self.is_room(by, rules.len())?;
        crash_point("before_rule_created");
        for rule in &rules {
            self.submit(rule, "standing_rule_created", &by.name, Some(reason)).await?;
            self.parts.board.put(rule);
        }
        crash_point("after_rule_created");
        (self.parts.rebuild)().await;
        for rule in &rules {
            tracing::info!(rule = %rule.id, tool = %rule.tool, by = %by.name, "a tool was let run without review");
            self.tell(rule, "rule.created", &by.name, Some(reason));
        }
        Ok(())
    }

    fn has_let_run(&self, route: &ToolRoute, target: &str, by: &Principal) -> bool {
        self.parts.board.rules().iter().any(|rule| {
            rule.is_of_tool()
                && !rule.is_over()
                && rule.tool == route.name
                && rule.provider == route.provider.name()
                && rule.tool_hash == route.hash
                && rule.served_by.as_deref() == Some(target)
                && Person::of(&rule.creator()).is(Person::of(by))
        })
    }

    fn may_let_run(&self, route: &Arc<ToolRoute>, by: &Principal) -> Result<(), McpError> {
        let refuse = |kind, message: &str| Err(about(kind, message, &route.name));
        if route.standing.mark().is_some() {
            return refuse(
                ErrorKind::Forbidden,
                "the tool is new, or its definition has changed: accept the definition first",
            );
        }
        let Some(decision) = route.ruling.by_default() else {
            let rules: Vec<&str> = route.ruling.rules().filter(|rule| !rule.starts_with("srl_")).collect();
            let message =
                format!("the configuration decides on this tool ({}); change that rule instead", rules.join(", "));
            return refuse(ErrorKind::Forbidden, &message);
        };
        match decision.verdict {
            Verdict::Allow => refuse(ErrorKind::ValidationFailed, "the tool runs without review already"),
            Verdict::Deny => refuse(ErrorKind::PolicyDenied, "policy.default denies the tool"),
            Verdict::Review if !suffices(&*self.parts.people, &decision.terms, by) => refuse(
                ErrorKind::Forbidden,
                "its reviews ask for more than your approval alone (policy.review), and so nobody may leave them out",
            ),
            Verdict::Review => Ok(()),
        }
    }
}

fn about(kind: ErrorKind, message: &str, tool: &str) -> McpError {
    let tool: String = tool.chars().take(128).collect();
    McpError::new(kind, format!("{tool}: {message}")).with("tools", vec![tool])
}
