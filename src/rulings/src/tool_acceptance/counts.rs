//! Counts the tools of servers: those that wait for a reviewer, and all by what the policy decides about their calls.

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::{ToolAcceptances, claims_to_read, is_acceptable_known_read};
use countersign_domain::policy::{DefinitionStatus, Verdict, known_reads::KnownTool};
use countersign_routing::table::ToolRoute;

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

/// The numbers of a provider's tools that wait for a reviewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ForReview)]
pub struct PendingToolCounts {
    /// Tools that were added after the server was first seen, and are not accepted.
    pub new: usize,
    /// Tools whose definition differs from the accepted or first seen one.
    pub changed: usize,
    /// Tools that claim to be read-only, which nobody has accepted.
    #[serde(rename = "reads")]
    pub claimed_reads: usize,
    /// Tools that are known to only read, although they do not claim it, and that nobody has accepted as reads.
    #[serde(rename = "known")]
    pub known_reads: usize,
}

impl ToolAcceptances {
    /// Returns the numbers of waiting tools by provider, for providers that have any.
    pub fn pending_counts(&self) -> HashMap<String, PendingToolCounts> {
        let mut all: HashMap<String, PendingToolCounts> = HashMap::new();
        for route in self.routes.load().tools().iter().flat_map(ToolRoute::with_operations) {
            let claims = claims_to_read(route);
            let is_known = matches!(route.known_tool, Some(KnownTool::Read | KnownTool::SqlRead))
                && is_acceptable_known_read(route);
            let is_counted = if route.is_operation {
                // The tool itself already counts for the rest.
                is_known
            } else {
                route.definition_status.mark().is_some() || claims || is_known
            };
            if !is_counted {
                continue;
            }
            let waiting = all.entry(route.provider.name().to_owned()).or_default();
            match route.definition_status {
                DefinitionStatus::New => waiting.new += 1,
                DefinitionStatus::Changed => waiting.changed += 1,
                _ if claims && !route.is_operation => waiting.claimed_reads += 1,
                _ => waiting.known_reads += 1,
            }
        }
        all
    }

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
