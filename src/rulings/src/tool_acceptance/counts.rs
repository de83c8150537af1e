//! Counts the tools of servers by what the policy decides about their calls.

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::ToolAcceptances;
use countersign_domain::policy::Verdict;

/// Numbers of the tools of a server by what the policy decides about their calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = VerdictCounts)]
pub struct ToolVerdictCounts {
    /// Tools that run without review.
    pub allow: usize,
    pub review: usize,
    pub deny: usize,
    /// Tools for which the arguments of each call decide.
    pub depends: usize,
}

impl ToolAcceptances {
    /// Returns the numbers of tools by verdict and provider. Operations of a tool count with the tool.
    pub fn verdict_counts(&self) -> HashMap<String, ToolVerdictCounts> {
        let mut all: HashMap<String, ToolVerdictCounts> = HashMap::new();
        for route in self.routes.load().tools() {
            let counts = all.entry(route.provider.name().to_owned()).or_default();
            let count = match route.ruling.fixed_decision().map(|decision| decision.verdict) {
                Some(Verdict::Allow) => &mut counts.allow,
                Some(Verdict::Review) => &mut counts.review,
                Some(Verdict::Deny) => &mut counts.deny,
                None if route.ruling.tool_allow_rule().is_some() => &mut counts.allow,
                None => &mut counts.depends,
            };
            *count += 1;
        }
        all
    }
}
