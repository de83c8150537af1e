//! Bundles: changes of one principal that were proposed shortly after one another and are reviewed together. A bundle is
//! only a view; every change keeps its own rule, decisions and audit entries.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Changes, store_error};
use countersign_domain::changes::Change;
use countersign_protocol::McpError;
use countersign_store::StoredProposal;

/// The maximum number of proposals in a bundle, in any state. The next one starts another bundle.
const MAX_PROPOSALS: usize = 200;
/// The maximum number of changes that are read at a time.
const MAX_CONCURRENT_READS: usize = 8;

/// Changes of one principal that wait for a decision and were proposed shortly after one another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// The id of its first change, which stays when that change is decided.
    pub id: String,
    /// The proposer.
    pub principal: String,
    /// The times of the first and the last proposal, in any state.
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The number of proposals in any state.
    pub proposed: usize,
    /// The ids of the changes that wait for a decision, in the order of their proposals.
    pub waiting: Vec<String>,
    /// The servers and tools of the waiting changes.
    pub servers: BTreeSet<String>,
    pub tools: BTreeSet<String>,
}

impl Bundle {
    fn new(proposals: &[&StoredProposal]) -> Option<Self> {
        let (first, last) = (proposals.first()?, proposals.last()?);
        let waiting: Vec<_> = proposals.iter().filter(|proposal| proposal.state.awaits_decision()).collect();
        Some(Self {
            id: first.id.clone(),
            principal: first.principal.clone(),
            first_at: first.at,
            last_at: last.at,
            proposed: proposals.len(),
            waiting: waiting.iter().map(|proposal| proposal.id.clone()).collect(),
            servers: waiting.iter().map(|proposal| proposal.provider.clone()).collect(),
            tools: waiting.iter().map(|proposal| proposal.tool.clone()).collect(),
        })
    }
}

/// Groups proposals, oldest first, by their principal and by gaps longer than the window.
fn group_proposals(proposals: &[StoredProposal], window: Duration) -> Vec<Vec<&StoredProposal>> {
    if window.is_zero() {
        return Vec::new();
    }
    let window = SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX);
    let mut bundles: Vec<Vec<&StoredProposal>> = Vec::new();
    let mut newest: HashMap<&str, usize> = HashMap::new();
    for proposal in proposals {
        let index = newest.get(proposal.principal.as_str()).copied();
        let open_bundle = index.and_then(|index| bundles.get_mut(index)).filter(|bundle| {
            let gap = bundle.last().map(|last| proposal.at.duration_since(last.at));
            gap.is_some_and(|gap| gap <= window) && bundle.len() < MAX_PROPOSALS
        });
        if let Some(bundle) = open_bundle {
            bundle.push(proposal);
        } else {
            newest.insert(&proposal.principal, bundles.len());
            bundles.push(vec![proposal]);
        }
    }
    bundles
}

impl Changes {
    /// Returns the bundles of at least two changes that wait for a decision, oldest first.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn bundles(&self) -> Result<Vec<Bundle>, McpError> {
        let proposals = self.core.repository.store.bundle_candidates().await.map_err(store_error)?;
        let bundles = group_proposals(&proposals, self.core.repository.config.bundle_window);
        let bundles = bundles.iter().filter_map(|proposals| Bundle::new(proposals));
        Ok(bundles.filter(|bundle| bundle.waiting.len() > 1).collect())
    }

    /// Returns the bundle that contains a change, and those of its changes that wait for a decision. Returns `None` if the
    /// change is unknown, is a step of a plan, or is older than everything that waits.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn bundle(&self, change: &str) -> Result<Option<(Bundle, Vec<Arc<Change>>)>, McpError> {
        let proposals = self.core.repository.store.bundle_candidates().await.map_err(store_error)?;
        let bundles = group_proposals(&proposals, self.core.repository.config.bundle_window);
        let found = bundles.iter().find(|proposals| proposals.iter().any(|proposal| proposal.id == change));
        let Some(mut bundle) = found.and_then(|proposals| Bundle::new(proposals)) else { return Ok(None) };
        let reads = bundle.waiting.clone().into_iter().map(|id| async move { self.get(&id).await });
        let changes: Vec<_> = stream::iter(reads).buffered(MAX_CONCURRENT_READS).try_collect().await?;
        // A change may have been decided since the proposals were read.
        let changes: Vec<_> = changes.into_iter().flatten().filter(|change| change.state.awaits_decision()).collect();
        bundle.waiting = changes.iter().map(|change| change.id.clone()).collect();
        Ok(Some((bundle, changes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::ChangeState;

    const WINDOW: Duration = Duration::from_secs(300);

    fn proposal(id: &str, principal: &str, second: i64, state: ChangeState) -> StoredProposal {
        StoredProposal {
            id: id.into(),
            state,
            principal: principal.into(),
            provider: "tracker".into(),
            tool: format!("tool of {id}"),
            at: Timestamp::from_second(1_800_000_000 + second).unwrap(),
        }
    }

    fn ids(proposals: &[StoredProposal], window: Duration) -> Vec<Vec<&str>> {
        let bundles = group_proposals(proposals, window);
        bundles.iter().map(|bundle| bundle.iter().map(|proposal| proposal.id.as_str()).collect()).collect()
    }

    #[test]
    fn gap_longer_than_the_window_starts_a_new_bundle() {
        use ChangeState::{Applied, Pending};
        let proposals = [
            proposal("a", "ci", 0, Pending),
            proposal("other", "bot", 1, Pending),
            proposal("b", "ci", 300, Applied),
            proposal("c", "ci", 600, Pending),
            proposal("d", "ci", 901, Pending),
        ];
        assert_eq!(ids(&proposals, WINDOW), [vec!["a", "b", "c"], vec!["other"], vec!["d"]]);
        assert_eq!(ids(&proposals, Duration::ZERO), Vec::<Vec<&str>>::new());
        let bundle = Bundle::new(&group_proposals(&proposals, WINDOW)[0]).unwrap();
        assert_eq!((bundle.id.as_str(), bundle.proposed), ("a", 3));
        assert_eq!(bundle.waiting, ["a", "c"], "a decided change no longer waits");
        assert!(!bundle.tools.contains("tool of b"));
        assert_eq!(bundle.last_at.duration_since(bundle.first_at), SignedDuration::from_secs(600));
    }

    #[test]
    fn bundle_is_bounded() {
        let proposals: Vec<_> = (0..450).map(|n| proposal(&n.to_string(), "ci", n, ChangeState::Pending)).collect();
        let sizes: Vec<_> = group_proposals(&proposals, WINDOW).iter().map(Vec::len).collect();
        assert_eq!(sizes, [200, 200, 50]);
    }
}
