//! Takes changes from their proposal to a verified outcome. `PendingChanges` is the only writer of transitions and announces
//! committed ones on the [`Feed`]; the Executor (`executor`) runs approved changes. All other code uses a [`Changes`] handle.
//!
//! This crate never runs an unapproved write, never runs a write twice, and never announces a transition that is not
//! durable.
//!
//! `requests` serves the endpoints; `transition_writer.rs` sends a transition to the store through `actor`, which also
//! enforces the limits; `recheck.rs` compares a change with its target; `upkeep` expires and prunes changes, and voids
//! votes; `executor` claims, calls and records. They share `change_repository.rs`, and those that ask providers or policy also
//! share `review_core.rs`. [`gateway_tools`] are the tools with which an agent follows its own changes.

mod actor;
mod bundles;
mod change_repository;
mod config;
mod dialogue_channels;
mod draft;
mod executor;
mod follow;
pub mod gateway_tools;
mod recheck;
mod requests;
mod review_core;
mod revised_terms;
mod shutdown;
mod start;
mod step_dependency;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod transition_writer;
mod truncation;
mod upkeep;
mod waiting_reasons;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::value::{RawValue, Value};

use self::dialogue_channels::{CONFIRMATION_TIMEOUT, DialogueAnswer, DialogueMessage};
pub use self::upkeep::escalation::AUDIT_EVENT as ESCALATED_EVENT;
use countersign_domain::{
    changes::{
        BlockingChange, Change, ChangeState, PlanStep, Preview, Proposer, ReviewNote, ReviewVerdict, ServerIdentity,
        Terms,
        audit::{AuditEntry, AuditHead},
    },
    principal::{Principal, Scope},
};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::{
    AuditSearch, ChangeCriteria, FoundEntries, FoundEntry, ListQuery, OverviewRecords, StoreError,
};

pub use bundles::Bundle;
pub use config::{Clock, ReviewConfig, ReviewTuning};
pub use countersign_store::Nodes;
pub use draft::ChangeSummary;
pub use requests::{
    plan::{PlanAnnouncement, PlanProposal},
    plan_decision::{Plan, PlanDecision},
    propose::CallIdentity,
};
pub use start::StartError;

/// A write that policy sent to review, already previewed.
#[derive(Clone)]
pub struct Proposal {
    pub proposer: Proposer,
    pub provider: String,
    pub tool: String,
    pub tool_title: String,
    pub tool_hash: String,
    /// The server and definition that would run the call.
    pub served_by: ServerIdentity,
    pub arguments: Arc<RawValue>,
    pub preview: Preview,
    /// The policy's reason for the review.
    pub review: Option<ReviewNote>,
    /// The conditions that the rule sets for the review.
    pub terms: Terms,
    /// The client's capabilities that the tool may use for questions during the call, as a JSON object; `None` if the client
    /// cannot be reached at that time.
    pub client_capabilities: Option<Arc<RawValue>>,
    pub idempotency_key: Option<String>,
    /// The agent's reason for the call, in its own words.
    pub stated_reason: Option<String>,
    pub expire_after: Duration,
    /// The place in a plan, if the call is a step of one.
    pub plan: Option<PlanStep>,
}

/// A filter for lists of changes; `None` and empty lists match any.
#[derive(Clone, Debug, Default)]
pub struct ChangeFilter {
    pub states: Vec<ChangeState>,
    /// The proposers; empty means any.
    pub principals: Vec<String>,
    pub criteria: ChangeCriteria,
}

/// A page of a listing.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// An opaque cursor for the next page; `None` on the last page.
    pub next_cursor: Option<String>,
}

/// A decision as it comes from an endpoint.
#[derive(Clone, Debug)]
pub struct ChangeDecision {
    pub id: String,
    pub reviewer: Arc<Principal>,
    pub verdict: ReviewVerdict,
    pub comment: Option<String>,
    /// The version that was shown.
    pub version: u64,
    /// The digest that was shown, if the endpoint has it.
    pub digest: Option<String>,
    /// Set if many changes are decided together. A change that was not shown completely is not approved this way.
    pub bulk: bool,
}

/// An edit of the arguments as it comes from an endpoint.
#[derive(Clone, Debug)]
pub struct ChangeEdit {
    pub id: String,
    pub reviewer: Arc<Principal>,
    /// A JSON object: the whole of the new arguments.
    pub arguments: Box<RawValue>,
    /// The version that was shown.
    pub version: u64,
    pub comment: Option<String>,
}

/// The settling of an unknown outcome as it comes from an endpoint.
#[derive(Clone, Debug)]
pub struct ChangeSettlement {
    pub id: String,
    pub reviewer: Arc<Principal>,
    /// `true` if the change was applied, `false` if it has failed.
    pub applied: bool,
    pub comment: Option<String>,
    /// The version that was shown.
    pub version: u64,
}

/// The refusal of a request about a change, such as a decision or an edit. A conflict carries the change as it is now.
#[derive(Debug)]
pub struct ChangeRequestError {
    pub error: McpError,
    pub current: Option<Arc<Change>>,
}

impl ChangeRequestError {
    /// Adds a member to the data of the error.
    fn with(self, key: &str, value: impl Into<Value>) -> Self {
        Self { error: self.error.with(key, value), ..self }
    }
}

impl From<McpError> for ChangeRequestError {
    fn from(error: McpError) -> Self {
        Self { error, current: None }
    }
}

/// A handle to all changes. It is cheap to clone, and its methods may be called from any thread.
#[derive(Clone)]
pub struct Changes {
    core: Arc<review_core::ReviewCore>,
}

/// The longest id of a change, in bytes. A longer id names no change.
pub(crate) const MAX_ID_BYTES: usize = 64;
/// The longest comment of a decision, in bytes.
pub const MAX_COMMENT_BYTES: usize = 4096;
/// The longest idempotency key, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 256;
/// The maximum number of items of a page.
pub const MAX_PAGE_SIZE: usize = 500;

impl Changes {
    /// Returns a change, or `None` if there is none with that id.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn get(&self, id: &str) -> Result<Option<Arc<Change>>, McpError> {
        let found = self.core.repository.find(id).await?;
        Ok(found.map(|change| self.core.waiting_reasons.add_to(change)))
    }

    /// Lists changes, newest first; `limit` is clamped to 1..=500. A page of large changes may be shorter.
    ///
    /// # Errors
    /// `INVALID_PARAMS` for an invalid cursor; the errors of the store.
    pub async fn list(
        &self,
        filter: ChangeFilter,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<Page<Arc<Change>>, McpError> {
        let limit = limit.clamp(1, MAX_PAGE_SIZE);
        let before = parse_cursor(cursor.as_deref())?;
        let ChangeFilter { states, principals, criteria } = filter;
        let query = ListQuery { states, principals, criteria, before, limit };
        let listing = self.core.repository.store.list(query).await.map_err(store_error)?;
        let next_cursor = listing.items.last().filter(|_| listing.more).map(|(number, _)| number.to_string());
        let items = listing.items.into_iter().map(|(_, change)| self.core.waiting_reasons.add_to(change)).collect();
        Ok(Page { items, next_cursor })
    }

    /// Passes the proposer's answers, by question key, to the tool of a running change. Answers to questions that are not
    /// open are ignored. The token must permit proposals, because the answers decide what the running call writes.
    ///
    /// Returns once the answers are durable. If the change runs on another node, the next version of the change confirms that.
    ///
    /// # Errors
    /// `FORBIDDEN`, `TOO_LARGE`, `OVERLOADED`, and the errors of the store; `STORE_UNAVAILABLE` with the outcome `unknown` if
    /// another node does not confirm the answers in time.
    pub async fn answer(
        &self,
        id: &str,
        principal: &Principal,
        answers: Vec<(String, DialogueAnswer)>,
    ) -> Result<(), McpError> {
        principal.require_scope(Scope::ToolsPropose)?;
        self.send_dialogue_message(id, DialogueMessage::Answers { by: principal.name.clone(), answers }).await
    }

    /// Delivers a message to the node on which the change runs.
    async fn send_dialogue_message(&self, id: &str, message: DialogueMessage) -> Result<(), McpError> {
        let Some(own_claimant) = self.core.repository.nodes.claimant() else {
            return self.core.dialogue_channels.send(id, message).await;
        };
        let running = self.get(id).await?.filter(|change| change.state == ChangeState::Executing);
        let Some(change) = running else { return Ok(()) };
        let other_claimant = change.claimed_by.as_ref().filter(|claimant| claimant.node != own_claimant.node);
        let Some(claimant) = other_claimant else {
            return self.core.dialogue_channels.send(id, message).await;
        };
        let needs_confirmation = message.closes_question(&change);
        let store = &self.core.repository.store;
        store.send_to_node(&claimant.node, id, message.to_json()?).await.map_err(store_error)?;
        // The next version of the change confirms the delivery; a change without open questions may ignore it.
        let current = self.wait(id, change.version, CONFIRMATION_TIMEOUT).await?;
        if needs_confirmation && current.is_some_and(|current| current.version == change.version) {
            let message =
                "The node that runs the change did not confirm the message in time; read the change to see its effect";
            return Err(McpError::new(ErrorKind::StoreUnavailable, message).with("outcome", "unknown"));
        }
        Ok(())
    }

    /// Ends the dialogue of a running change because its proposer's client has cancelled the task: open and later
    /// questions of the tool get no answer.
    ///
    /// # Errors
    /// `OVERLOADED`, and the errors of the store as for [`Self::answer`].
    pub async fn cancel_dialogue(&self, id: &str, principal: &Principal) -> Result<(), McpError> {
        self.send_dialogue_message(id, DialogueMessage::Cancel { by: principal.name.clone() }).await
    }

    /// Waits until the change's version is above `version`, the change is final, or `timeout` has passed, and returns the
    /// change as it is then. Returns at once when the gateway shuts down. Cancel-safe.
    ///
    /// # Errors
    /// `OVERLOADED` if too many requests wait already; the errors of the store.
    pub async fn wait(&self, id: &str, version: u64, timeout: Duration) -> Result<Option<Arc<Change>>, McpError> {
        let watch = self.core.repository.indexes.watchers.watch(id);
        let mut watch = watch.ok_or_else(|| {
            McpError::new(ErrorKind::Overloaded, "Too many requests wait for changes; ask again with get_change")
        })?;
        let Some(mut change) = self.get(id).await? else { return Ok(None) };
        let next_version = async {
            while change.version <= version && !change.state.is_final() {
                let Some(latest) = watch.next().await else { return };
                // The change that was read may be newer than the announced one.
                if latest.version > change.version {
                    change = latest;
                }
            }
        };
        // A timeout is not an error here: the caller gets the change in its current state.
        let _ = tokio::time::timeout(timeout, next_version).await;
        Ok(Some(change))
    }

    /// Sets `waits_for` on each approved change whose target another change occupies.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn set_waits_for(&self, changes: &mut [Arc<Change>]) -> Result<(), McpError> {
        let approved = |change: &Arc<Change>| change.state == ChangeState::Approved;
        let targets: Vec<_> =
            changes.iter().filter(|change| approved(change)).map(|change| change.target_hash()).collect();
        if targets.is_empty() {
            return Ok(());
        }
        let occupants = self.core.repository.store.occupants(targets, self.core.repository.config.now()).await;
        let occupants = occupants.map_err(store_error)?;
        for change in changes.iter_mut().filter(|change| approved(change)) {
            let target = change.target_hash();
            if let Some(occupant) = occupants.iter().find(|occupant| occupant.target == target) {
                let waits_for = BlockingChange { change: occupant.change.clone(), until: occupant.until };
                Arc::make_mut(change).waits_for = Some(waits_for);
            }
        }
        Ok(())
    }

    /// Returns the nodes that serve the store, including this one.
    pub fn nodes(&self) -> &Arc<dyn Nodes> {
        &self.core.repository.nodes
    }

    /// Announces on the feed of this node that another node recorded the escalation of a change ([`ESCALATED_EVENT`]).
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn announce_escalation(&self, id: &str) -> Result<(), StoreError> {
        upkeep::escalation::announce_recorded(&self.core.repository, id).await
    }

    /// Returns the feed of change events and live events.
    pub fn feed(&self) -> &Feed {
        &self.core.repository.feed
    }

    /// Counts the changes in each state, including states without changes.
    pub fn counts(&self) -> Vec<(ChangeState, u64)> {
        self.core.repository.indexes.counts.read()
    }

    /// Returns the entries of the audit trail above `after`, oldest first, at most `limit`.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn audit_after(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>, McpError> {
        self.core.repository.store.audit_after(after, limit).await.map_err(store_error)
    }

    /// Searches the audit trail, newest first, and returns each entry with the title of its change; `limit` is clamped to
    /// 1..=500. A page of a long search may be empty and still have a cursor.
    ///
    /// # Errors
    /// `INVALID_PARAMS` for an invalid cursor; the errors of the store.
    pub async fn search_audit(
        &self,
        search: AuditSearch,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page<FoundEntry>, McpError> {
        let before = parse_cursor(cursor)?;
        let lookup = self.core.repository.store.search_audit(search, before, limit.clamp(1, MAX_PAGE_SIZE));
        let FoundEntries { entries, next } = lookup.await.map_err(store_error)?;
        Ok(Page { items: entries, next_cursor: next.map(|next| next.to_string()) })
    }

    /// Returns the transitions of changes since the given time, and the changes that wait for a decision.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn overview(&self, since: Timestamp) -> Result<OverviewRecords, McpError> {
        self.core.repository.store.overview(since).await.map_err(store_error)
    }

    /// Returns the head of the audit trail, for export.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn audit_head(&self) -> Result<AuditHead, McpError> {
        self.core.repository.store.heads().await.map(|heads| heads.audit).map_err(store_error)
    }
}

fn parse_cursor(cursor: Option<&str>) -> Result<Option<u64>, McpError> {
    cursor
        .map(|text| text.parse().map_err(|_| McpError::new(ErrorKind::InvalidParams, "The cursor is not valid")))
        .transpose()
}

/// Converts a store error for a client; the details go to the log.
fn store_error(error: StoreError) -> McpError {
    if !matches!(error, StoreError::Closed) {
        tracing::error!(%error, "the store failed");
    }
    error.to_mcp()
}
