//! Decides on the changes of the last 30 days under another policy, without any effect.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::standing_rules::StandingRuleService;
use countersign_domain::{
    changes::Change,
    policy::{Policy, PolicyConfig, Verdict},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::{
    RouteTable,
    table::{Aliases, TableInputs},
};
use countersign_runtime::background;
use countersign_store::ChangeCriteria;

/// A verdict with the rule that gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RuleVerdict)]
pub struct VerdictWithRule {
    pub verdict: Verdict,
    /// `null` if `policy.default` decides.
    #[schema(required)]
    pub rule: Option<Arc<str>>,
}

/// A recorded call on which the two policies decide differently.
#[derive(Clone, Debug)]
pub struct DifferingCall {
    pub change: Arc<Change>,
    pub before: VerdictWithRule,
    pub after: VerdictWithRule,
}

/// The result of a dry run.
#[derive(Clone, Debug, Default)]
pub struct PolicyDryRun {
    /// The number of changes that were compared. Those whose tool is gone or whose contents were deleted are not.
    pub compared: usize,
    /// `false` if there were too many changes to read all of them.
    pub is_complete: bool,
    /// The calls on which the policies differ, the newest first.
    pub differences: Vec<DifferingCall>,
}

impl StandingRuleService {
    /// Compares the policy in force with another one on the calls that became changes in the last 30 days. Standing rules and
    /// acceptances count as they are now.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn dry_run(&self, policy: &PolicyConfig) -> Result<PolicyDryRun, McpError> {
        let (changes, is_complete) = self.read_recent_changes(ChangeCriteria::default()).await?;
        let table = self.routes().load_full();
        let policy = Policy::new(policy);
        let compared = background::spawn_blocking(move || compare(&table, policy, changes)).await;
        let evaluation_error = || McpError::new(ErrorKind::Internal, "the policy could not be tried");
        let dry_run = compared.map_err(|_| evaluation_error())?.ok_or_else(evaluation_error)?;
        Ok(PolicyDryRun { is_complete, ..dry_run })
    }
}

fn compare(table: &RouteTable, policy: Policy, changes: Vec<Arc<Change>>) -> Option<PolicyDryRun> {
    let policy = policy.with_sources_of(table.policy.as_ref()?);
    let inputs = TableInputs {
        providers: table.providers(),
        policy: &policy,
        aliases: &Aliases::default(),
        pending_schema: &Arc::new(json!({})),
        previous: Some(table),
        strict: false,
    };
    let other = RouteTable::build(&inputs).ok()?;
    let mut dry_run = PolicyDryRun::default();
    for change in changes {
        // The contents of old changes may have been deleted.
        if change.redacted.is_some() {
            continue;
        }
        let Some((before, after)) = decide(table, &change).zip(decide(&other, &change)) else { continue };
        dry_run.compared += 1;
        if before.verdict != after.verdict {
            dry_run.differences.push(DifferingCall { change, before, after });
        }
    }
    Some(dry_run)
}

/// Returns the decision of a table's policy on the call of a change. `None` if the tool is gone.
fn decide(table: &RouteTable, change: &Change) -> Option<VerdictWithRule> {
    let route = table.tool_of_provider(&change.tool, &change.provider)?;
    let arguments = change.proposed_arguments.as_ref().unwrap_or(&change.arguments);
    let decision = route.decide_for_proposer(&change.proposer, arguments);
    Some(VerdictWithRule { verdict: decision.intended_verdict(), rule: decision.rule })
}
