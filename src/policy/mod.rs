//! Decides for each call: `allow`, `review` or `deny`. Pure; knows nothing of sessions or changes.

use crate::{
    config::{PolicyConfig, PolicyDefault},
    providers::ToolDef,
};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Straight to its provider.
    Allow,
    /// Becomes a pending change.
    Review,
    /// Refused with `POLICY_DENIED`.
    Deny,
}

impl Verdict {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Review => "review",
            Self::Deny => "deny",
        }
    }
}

/// The configured policy.
#[derive(Clone, Debug)]
pub struct Policy {
    default: PolicyDefault,
}

impl Policy {
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self { default: config.default }
    }

    /// The verdict for a tool. Built-in modules are part of the gateway, so their `readOnlyHint` is believed.
    ///
    /// Tools that manage the caller's own changes are always allowed: a review of `withdraw_change` would
    /// itself be a change to withdraw.
    #[must_use]
    pub fn decide(&self, tool: &ToolDef) -> Verdict {
        if tool.self_service {
            return Verdict::Allow;
        }
        match self.default {
            PolicyDefault::Allow => Verdict::Allow,
            PolicyDefault::ReviewWrites if tool.annotations.read_only_hint => Verdict::Allow,
            PolicyDefault::ReviewWrites | PolicyDefault::ReviewAll => Verdict::Review,
            PolicyDefault::Deny => Verdict::Deny,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::providers::ToolAnnotations;

    fn tool(read_only: bool, self_service: bool) -> ToolDef {
        ToolDef {
            name: "t".into(),
            title: "T".into(),
            description: String::new(),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            annotations: ToolAnnotations { read_only_hint: read_only, ..ToolAnnotations::default() },
            self_service,
            long_running: false,
            raw: None,
        }
    }

    #[test]
    fn verdict_by_default_and_hint() {
        use PolicyDefault as P;
        use Verdict as V;
        // (default, read, write, self-service write)
        for (default, read, write, own) in [
            (P::Allow, V::Allow, V::Allow, V::Allow),
            (P::ReviewWrites, V::Allow, V::Review, V::Allow),
            (P::ReviewAll, V::Review, V::Review, V::Allow),
            (P::Deny, V::Deny, V::Deny, V::Allow),
        ] {
            let policy = Policy::new(&PolicyConfig { default });
            assert_eq!(policy.decide(&tool(true, false)), read, "{default:?}");
            assert_eq!(policy.decide(&tool(false, false)), write, "{default:?}");
            assert_eq!(policy.decide(&tool(false, true)), own, "{default:?}");
        }
    }
}
