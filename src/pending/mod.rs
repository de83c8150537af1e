//! Pending changes at work: the one writer (`PendingChanges`), the `Executor` that runs what was approved,
//! and the `Feed` that tells everybody. Commit, then announce.
//!
//! Everyone else holds a [`Changes`] handle.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use crate::{
    auth::Principal,
    changes::{Change, ChangeState, Preview, Proposer, Verdict},
    protocol::McpError,
};

/// A write that policy sent to review, already previewed.
pub struct Proposal {
    pub proposer: Proposer,
    pub provider: String,
    pub tool: String,
    pub tool_title: String,
    pub tool_hash: String,
    pub arguments: Arc<RawValue>,
    pub preview: Preview,
    pub idempotency_key: Option<String>,
    pub expire_after: Duration,
}

/// Which changes to list; `None` means any.
#[derive(Clone, Debug, Default)]
pub struct ChangeFilter {
    pub states: Vec<ChangeState>,
    /// Only those of this principal.
    pub principal: Option<String>,
}

/// A page of a listing, newest first.
pub struct Page<T> {
    pub items: Vec<T>,
    /// Opaque; `None` at the end.
    pub next_cursor: Option<String>,
}

/// A decision as it comes from a door.
pub struct DecideChange {
    pub id: String,
    pub reviewer: Arc<Principal>,
    pub verdict: Verdict,
    pub comment: Option<String>,
    /// The version that was shown.
    pub version: u64,
    /// The digest that was shown, if the door has it.
    pub digest: Option<String>,
}

/// A conflict carries the state as it is now.
#[derive(Debug)]
pub struct DecideError {
    pub error: McpError,
    pub current: Option<Arc<Change>>,
}

/// The handle to everything about changes. Cheap to clone; methods may be called from any thread.
#[derive(Clone)]
pub struct Changes {}

#[allow(clippy::unused_async, clippy::missing_errors_doc, clippy::todo, unused_variables)]
impl Changes {
    /// Stores a change durably, then announces it. The same idempotency key by the same principal with the
    /// same tool and arguments returns the same change.
    pub async fn propose(&self, proposal: Proposal) -> Result<Arc<Change>, McpError> {
        todo!()
    }
    pub async fn get(&self, id: &str) -> Result<Option<Arc<Change>>, McpError> {
        todo!()
    }
    pub async fn list(
        &self,
        filter: ChangeFilter,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<Page<Arc<Change>>, McpError> {
        todo!()
    }
    /// Approves or rejects. Refuses the proposer, an old version, and a target that moved (which makes it stale).
    pub async fn decide(&self, decision: DecideChange) -> Result<Arc<Change>, DecideError> {
        todo!()
    }
    /// By its proposer, while pending or stale.
    pub async fn withdraw(&self, id: &str, principal: &Principal) -> Result<Arc<Change>, DecideError> {
        todo!()
    }
    /// A reviewer says how an unknown outcome ended.
    pub async fn settle(
        &self,
        id: &str,
        reviewer: &Principal,
        applied: bool,
        comment: Option<String>,
        version: u64,
    ) -> Result<Arc<Change>, DecideError> {
        todo!()
    }
    /// Returns when the change's version is above `version`, or it is final, or `timeout` has passed
    /// (then the change as it is). Cancel-safe.
    pub async fn wait(&self, id: &str, version: u64, timeout: Duration) -> Result<Option<Arc<Change>>, McpError> {
        todo!()
    }
}
