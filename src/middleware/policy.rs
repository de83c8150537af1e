//! Carries out what the policy says of a call.

use crate::{
    policy::Verdict,
    protocol::{ErrorKind, McpError},
    router::ToolRoute,
};

/// Whether the call goes through or becomes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    Review,
}

/// # Errors
/// `POLICY_DENIED`.
pub fn check(route: &ToolRoute) -> Result<Gate, McpError> {
    match route.verdict {
        Verdict::Allow => Ok(Gate::Open),
        Verdict::Review => Ok(Gate::Review),
        Verdict::Deny => Err(McpError::new(ErrorKind::PolicyDenied, "the gateway's policy does not allow this tool")
            .with("tool", route.name.clone())),
    }
}
