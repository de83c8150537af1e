//! The outline of a change, from which it is announced and queued on every node.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use countersign_domain::changes::{Change, ChangeState, PlanStep, Target, Terms};
use countersign_feed::FeedProposer;

/// The part of a change that its announcement and the Executor's queue need. It is borrowed from a change that this node has
/// stored, or parsed from an event of the feed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangeOutline<'a> {
    pub id: Cow<'a, str>,
    pub version: u64,
    pub state: ChangeState,
    pub provider: Cow<'a, str>,
    pub target: Cow<'a, Target>,
    pub proposer: FeedProposer,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub terms: Cow<'a, Terms>,
    #[serde(default)]
    pub run_after: Option<Timestamp>,
    #[serde(default)]
    pub plan: Option<Cow<'a, PlanStep>>,
}

impl<'a> From<&'a Change> for ChangeOutline<'a> {
    fn from(change: &'a Change) -> Self {
        Self {
            id: Cow::Borrowed(&change.id),
            version: change.version,
            state: change.state,
            provider: Cow::Borrowed(&change.provider),
            target: Cow::Borrowed(&change.target),
            proposer: FeedProposer { principal: change.proposer.principal.clone() },
            created_at: change.created_at,
            expires_at: change.expires_at,
            terms: Cow::Borrowed(&change.terms),
            run_after: change.run_after,
            plan: change.plan.as_ref().map(Cow::Borrowed),
        }
    }
}
