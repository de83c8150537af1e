//! Suggests standing rules for calls like a change. A suggestion changes nothing: a reviewer creates the rule, or does not.

use std::sync::Arc;

use jiff::SignedDuration;

use super::{RuleArguments, RuleCallers, RuleRequest, StandingRuleService, create::current_decision};
use countersign_domain::{
    changes::{Change, Operation},
    policy::{
        StandingVerdict, Verdict,
        suggestions::{SuggestedRule, suggest_rules},
    },
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::background;
use countersign_store::{ChangeCriteria, ListQuery};

/// The maximum age of the changes that are read.
const MAX_CHANGE_AGE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The maximum number of changes that are read, the newest ones.
const MAX_CHANGES: usize = 500;
/// The maximum number of changes that are read at once.
const PAGE_SIZE: usize = 100;

/// The rules that the history suggests.
#[derive(Clone, Debug, Default)]
pub struct Suggestions {
    pub rules: Vec<SuggestedRule>,
    /// `false` if the tool had too many changes to read all of them.
    pub is_complete: bool,
}

impl StandingRuleService {
    /// Returns rules that would allow calls like this change, the narrowest first. There are none if this reviewer could not
    /// create them, or if a rule could not replace the approval.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn suggest(&self, change: &Arc<Change>, reviewer: &Principal) -> Result<Suggestions, McpError> {
        if !self.may_suggest(change, reviewer).await {
            return Ok(Suggestions { rules: Vec::new(), is_complete: true });
        }
        let criteria = ChangeCriteria {
            providers: vec![change.provider.clone()],
            tools: vec![change.tool.clone()],
            ..ChangeCriteria::default()
        };
        let (history, is_complete) = self.read_recent_changes(criteria).await?;
        let change = Arc::clone(change);
        // Arguments may be large.
        let rules = background::spawn_blocking(move || suggest_rules(&change, &history)).await;
        let rules = rules
            .map_err(|_| McpError::new(ErrorKind::Internal, "the history could not be compared with the change"))?;
        Ok(Suggestions { rules, is_complete })
    }

    /// Returns `true` if the reviewer may create a rule from the change, and if such calls are still reviewed.
    async fn may_suggest(&self, change: &Arc<Change>, reviewer: &Principal) -> bool {
        if change.operation == Operation::Delete || !reviewer.role.may_decide() {
            return false;
        }
        let Some(route) = self.deps.routes.load().tool_of_provider(&change.tool, &change.provider) else {
            return false;
        };
        // The narrowest rule, with the comment that the form asks for.
        let request = RuleRequest {
            verdict: StandingVerdict::Allow,
            arguments: RuleArguments::Exact,
            matching: Vec::new(),
            callers: RuleCallers::Proposer,
            valid_for_seconds: Some(1),
            comment: Some(String::new()),
        };
        self.check_may_create(change, Some(&route), reviewer, &request).await.is_ok()
            && current_decision(&route, change)
                .await
                .is_ok_and(|decision| decision.intended_verdict() == Verdict::Review)
    }

    /// Reads the newest of these changes of the last 30 days, and returns whether they are all.
    pub(crate) async fn read_recent_changes(
        &self,
        criteria: ChangeCriteria,
    ) -> Result<(Vec<Arc<Change>>, bool), McpError> {
        let criteria = ChangeCriteria { since: self.now().checked_sub(MAX_CHANGE_AGE).ok(), ..criteria };
        let (mut history, mut before) = (Vec::new(), None);
        loop {
            let query = ListQuery { criteria: criteria.clone(), before, limit: PAGE_SIZE, ..ListQuery::default() };
            let page = self.deps.store.list(query).await.map_err(|error| {
                tracing::warn!(%error, "earlier changes could not be read");
                McpError::new(ErrorKind::StoreUnavailable, "earlier changes cannot be read")
            })?;
            before = page.items.last().map(|(number, _)| *number);
            history.extend(page.items.into_iter().map(|(_, change)| change));
            if !page.more || history.len() >= MAX_CHANGES {
                return Ok((history, !page.more));
            }
        }
    }
}
