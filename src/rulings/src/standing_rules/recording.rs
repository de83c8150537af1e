//! Records what happens to standing rules in the store and its audit trail, and announces it on the feed.

use std::sync::{PoisonError, atomic::Ordering};

use serde_json::{Value, json};

use super::{StandingRuleService, already_ended_error};
use countersign_domain::policy::{StandingRule, standing_rules::UseCounter};
use countersign_protocol::McpError;
use countersign_runtime::crash::crash_point;
use countersign_store::{AuditRecord, StoreError, WriteError, WriteRequest, write};

/// An event in the life of a standing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleEvent {
    Created,
    Revoked,
    Expired,
    /// The creator may no longer decide. The rule denies until a reviewer revokes it.
    Orphaned,
}

impl RuleEvent {
    /// Returns the name in the audit trail.
    pub(super) fn audit_event(self) -> &'static str {
        match self {
            Self::Created => "standing_rule_created",
            Self::Revoked => "standing_rule_revoked",
            Self::Expired => "standing_rule_expired",
            Self::Orphaned => "standing_rule_orphaned",
        }
    }

    /// Returns the type of the event on the feed.
    pub(super) fn feed_type(self) -> &'static str {
        match self {
            Self::Created => "rule.created",
            Self::Revoked => "rule.revoked",
            Self::Expired => "rule.expired",
            Self::Orphaned => "rule.orphaned",
        }
    }
}

impl StandingRuleService {
    /// Stores a rule, puts it into force, and announces that.
    pub(super) async fn store_and_announce(
        &self,
        rule: &StandingRule,
        event: RuleEvent,
        actor: &str,
        comment: Option<&str>,
    ) -> Result<(), McpError> {
        self.record(rule, event.audit_event(), actor, comment).await?;
        crash_point("between_rule_and_routes");
        self.deps.cache.upsert(rule);
        (self.deps.rebuild)().await;
        self.announce(rule, event, actor, comment);
        Ok(())
    }

    pub(super) fn announce(&self, rule: &StandingRule, event: RuleEvent, actor: &str, comment: Option<&str>) {
        let at = self.now().to_string();
        let rule = rule.without_arguments();
        let event = json!({ "type": event.feed_type(), "at": at, "actor": actor, "comment": comment, "rule": rule });
        self.deps.feed.publish_live(&event);
    }

    /// Stores a rule with an audit entry in the timeline of its change. The entry of a rule without a change names its server.
    pub(super) async fn record(
        &self,
        rule: &StandingRule,
        audit_event: &'static str,
        actor: &str,
        comment: Option<&str>,
    ) -> Result<(), McpError> {
        let uses = rule.uses.get();
        let new_uses = UseCounter::new(self.unrecorded_uses(rule));
        let mut details = json!({ "rule": audit_details(rule) });
        if let Some(comment) = comment {
            details["comment"] = comment.into();
        }
        let record = AuditRecord {
            change: rule.from_change.clone().unwrap_or_default(),
            server: if rule.from_change.is_some() { String::new() } else { rule.provider.clone() },
            rules: vec![StandingRule { uses: new_uses, ..rule.clone() }],
            ..AuditRecord::new(audit_event, self.now(), actor, details.to_string())
        };
        let write_result = write(&*self.deps.store, WriteRequest::Record(record)).await;
        write_result.map_err(|error| {
            if matches!(error, WriteError::Conflict | WriteError::Store(StoreError::OutcomeUnknown)) {
                self.is_behind.store(true, Ordering::Release);
            }
            if matches!(error, WriteError::Conflict) {
                return already_ended_error(rule);
            }
            tracing::error!(%error, "a standing rule could not be stored");
            error.to_user_error("the standing rule could not be stored; it has not changed")
        })?;
        self.recorded_uses.lock().unwrap_or_else(PoisonError::into_inner).insert(rule.id.clone(), uses);
        Ok(())
    }
}

/// Returns the details of a rule for the audit trail, with the hash of the arguments in their place.
fn audit_details(rule: &StandingRule) -> Value {
    let mut details = json!({
        "id": rule.id, "verdict": rule.verdict, "provider": rule.provider, "tool": rule.tool, "toolHash": rule.tool_hash,
        "principal": rule.principal, "argumentsHash": rule.arguments_hash, "fromChange": rule.from_change,
        "createdBy": rule.created_by, "expiresAt": rule.expires_at, "orphanedAt": rule.orphaned_at, "uses": rule.uses,
    });
    if !rule.matching.is_empty() {
        details["matching"] = json!(rule.matching);
    }
    details
}
