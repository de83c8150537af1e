//! Checks the scopes of access tokens. A key, and a token whose role comes from a claim, permit whatever their role does.

use crate::principal::{Principal, Scope};
use countersign_protocol::{ErrorKind, McpError};

/// The scopes of an agent that proposes changes.
pub const AGENT_SCOPES: &str = "tools:read tools:propose";

/// Returns all scopes that an operation needs, separated by spaces.
fn needed_scopes(scope: Scope) -> &'static str {
    match scope {
        Scope::ToolsPropose => AGENT_SCOPES,
        Scope::ToolsRead | Scope::ChangesDecide | Scope::Admin => scope.as_str(),
    }
}

/// Checks that the principal's token permits an operation.
///
/// # Errors
/// `FORBIDDEN` with all scopes that the operation needs, so that a client asks its issuer once.
pub fn require_scope(principal: &Principal, scope: Scope) -> Result<(), McpError> {
    if principal.has_scope(scope) {
        return Ok(());
    }
    let needed = needed_scopes(scope);
    let text = format!("the token does not permit this; it needs the scope {needed}");
    Err(McpError::new(ErrorKind::Forbidden, text).with("scope", needed))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::principal::Claims;

    #[test]
    fn refusal_names_all_scopes_of_the_operation() {
        let key = Principal::local_agent();
        let token = |scopes: &[Scope]| {
            let claims = Claims { scopes: Some(scopes.to_vec()), ..Claims::default() };
            Principal { claims: Some(Arc::new(claims)), ..key.clone() }
        };
        for scope in [Scope::ToolsRead, Scope::ToolsPropose, Scope::ChangesDecide, Scope::Admin] {
            require_scope(&key, scope).unwrap();
            require_scope(&token(&[Scope::Admin]), scope).unwrap();
        }
        for (held, scope, needed) in [
            (&[][..], Scope::ToolsRead, "tools:read"),
            (&[Scope::ToolsRead], Scope::ToolsPropose, "tools:read tools:propose"),
            (&[Scope::ToolsPropose], Scope::ChangesDecide, "changes:decide"),
            (&[Scope::ChangesDecide], Scope::ToolsRead, "tools:read"),
        ] {
            let error = require_scope(&token(held), scope).unwrap_err();
            assert_eq!((error.kind, error.data["scope"].as_str()), (ErrorKind::Forbidden, Some(needed)));
            let challenge = format!(r#"Bearer error="insufficient_scope", scope="{needed}""#);
            assert_eq!(error.challenge().as_deref(), Some(challenge.as_str()));
        }
    }
}
