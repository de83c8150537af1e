//! Finds providers in the published table, so that the Executor does not depend on routes.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::table::{PublishedTable, RouteTarget, ToolRoute, validate};
use countersign_domain::{
    changes::Change,
    policy::{Decision, DefinitionStatus, Requester, Verdict},
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{Provider, ProviderDirectory};

/// The providers and tools of the published table.
pub struct RouteDirectory(pub Arc<PublishedTable>);

impl RouteDirectory {
    fn tool(&self, provider: &str, tool: &str) -> Option<Arc<ToolRoute>> {
        self.0.load().tool_of_provider(tool, provider)
    }
}

impl ProviderDirectory for RouteDirectory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.0.load().provider(name).map(RouteTarget::provider)
    }

    fn tool_hash(&self, provider: &str, tool: &str) -> Option<String> {
        self.tool(provider, tool).map(|route| route.hash.clone())
    }

    fn verdict(&self, provider: &str, tool: &str, principal: &Principal, arguments: &RawValue) -> Verdict {
        let Some(route) = self.tool(provider, tool) else { return Verdict::Deny };
        // There is no session, so conditions on sessions are false.
        let requester = Requester { principal, transport: "", revision: "", client: None };
        // A call that only simulate mode lets through counts as reviewed or denied, because the mode may end.
        route.ruling_for(arguments).decide(&requester, arguments).intended_verdict()
    }

    fn is_pinned(&self, provider: &str, tool: &str) -> bool {
        self.tool(provider, tool).is_some_and(|route| route.definition_status.mark().is_none())
    }

    fn is_accepted(&self, provider: &str, tool: &str, arguments: &RawValue) -> bool {
        self.tool(provider, tool).is_some_and(|route| {
            let status = route.operation_of(arguments).map_or(route.definition_status, |known| known.definition_status);
            status == DefinitionStatus::Accepted
        })
    }

    fn validate(&self, provider: &str, tool: &str, arguments: &RawValue) -> Result<(), McpError> {
        let route = self.tool(provider, tool);
        let route = route.ok_or_else(|| match self.has_tools(provider) {
            true => McpError::new(ErrorKind::ToolNotFound, format!("{provider} offers no tool {tool} now")),
            // The tools of a provider that was not reached are unknown.
            false => McpError::new(ErrorKind::UpstreamUnavailable, format!("{provider} has not been reached yet")),
        })?;
        validate::check_arguments(&route, arguments)
    }

    fn judge_change(&self, change: &Change, arguments: &RawValue) -> Option<Decision> {
        let route = self.tool(&change.provider, &change.tool)?;
        Some(route.decide_for_proposer(&change.proposer, arguments))
    }

    fn has_tools(&self, provider: &str) -> bool {
        self.0.load().tools().iter().any(|route| route.provider.name() == provider && !route.is_connect_tool())
    }
}
