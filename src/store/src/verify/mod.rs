//! Checks the audit trail from outside, also while its gateway runs: the chain, its gaps, an exported head, and that every
//! change, key and pin is as its last entry left it. A backend reads, in one snapshot: first all entries, then all changes.

mod follower;

use jiff::Timestamp;
use serde_json::Value;

pub use self::follower::Covered;
use self::follower::Follower;
use crate::{StoreError, covered::Rows};
use countersign_domain::changes::{
    audit::{AuditHead, EntryContent, TrailError, Verifier},
    digest::body_hash,
};

/// A trail that holds.
#[derive(Clone, Copy, Debug)]
pub struct Verified {
    pub head: AuditHead,
    /// Entries and changes that were checked.
    pub entries: u64,
    pub changes: u64,
    pub covered: Covered,
}

/// Why a trail does not hold, or could not be read.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Broken(#[from] TrailError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The entries, the oldest first.
pub(crate) struct Entries {
    verifier: Verifier,
    follower: Follower,
    count: u64,
}

impl Entries {
    /// `expected` is a head exported earlier ([`AuditHead::export`]): without it, a trail cut at its end or written anew as
    /// a whole cannot be told.
    pub fn new(expected: Option<AuditHead>) -> Self {
        Self { verifier: Verifier::new(expected), follower: Follower::default(), count: 0 }
    }

    pub fn entry(&mut self, content: &EntryContent<'_>, prev_hash: &[u8], hash: &[u8]) -> Result<(), TrailError> {
        self.verifier.check_entry(content, prev_hash, hash)?;
        self.follower.entry(content.seq, content.event, content.details)?;
        self.count += 1;
        Ok(())
    }

    pub fn finish(self) -> Result<Changes, TrailError> {
        Ok(Changes { head: self.verifier.finish()?, entries: self.count, follower: self.follower, count: 0 })
    }
}

/// A change as it is stored.
pub(crate) struct FoundChange {
    pub id: String,
    pub state: String,
    pub version: i64,
    pub body: String,
    pub principal: String,
    pub idempotency_key: Option<String>,
    pub expires_at: String,
}

/// The last entry of a change with a state: those without one tell of what came of a change (its standing rules) and say
/// nothing of the change itself.
pub(crate) struct LastEntry {
    pub seq: u64,
    pub to: String,
    pub details: String,
}

/// The changes, in any order.
pub(crate) struct Changes {
    head: AuditHead,
    entries: u64,
    follower: Follower,
    count: u64,
}

impl Changes {
    /// Every change has its last entry's hash. What was redacted has an entry too, with the hash of what is left.
    pub fn change(&mut self, found: FoundChange, last: Option<&LastEntry>) -> Result<(), TrailError> {
        let Some(LastEntry { seq, to, details }) = last else { return Err(TrailError::ChangeUnknown { id: found.id }) };
        let seq = *seq;
        let details: Value = serde_json::from_str(details).unwrap_or_default();
        let same = details["changeHash"] == body_hash(&found.body)
            && details["version"].as_i64() == Some(found.version)
            && *to == found.state;
        if !same {
            return Err(TrailError::ChangeAltered { id: found.id, seq });
        }
        // What the body says is what stands in the trail; queries go by the columns beside it.
        let said = serde_json::from_str(&found.body).unwrap_or_default();
        if !columns_are_those_of(&said, &found.principal, found.idempotency_key.as_deref(), &found.expires_at) {
            return Err(TrailError::ColumnAltered { id: found.id, seq });
        }
        self.count += 1;
        Ok(())
    }

    /// `gone` is a change that an entry made, that is not there, and of which no entry says that it was deleted; `told`
    /// whether the trail covers keys and pins.
    pub fn finish(self, gone: Option<(String, u64)>, rows: &Rows, told: Option<&str>) -> Result<Verified, TrailError> {
        if let Some((id, seq)) = gone {
            return Err(TrailError::ChangeGone { id, seq });
        }
        let covered = self.follower.finish(rows, told)?;
        Ok(Verified { head: self.head, entries: self.entries, changes: self.count, covered })
    }
}

/// What the columns of a change that queries go by must be: those of its body.
fn columns_are_those_of(body: &Value, principal: &str, idempotency_key: Option<&str>, expires_at: &str) -> bool {
    let same_time = |a: &str, b: &str| match (a.parse::<Timestamp>(), b.parse::<Timestamp>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    // Not every backend has room for U+0000.
    let same = |a: &str, b: &str| a.replace('\0', "\u{2400}") == b.replace('\0', "\u{2400}");
    let key = body["idempotencyKey"].as_str();
    body["proposer"]["principal"].as_str().is_some_and(|said| same(said, principal))
        && match (key, idempotency_key) {
            (Some(said), Some(key)) => same(said, key),
            (said, key) => said == key,
        }
        && body["expiresAt"].as_str().is_some_and(|at| same_time(at, expires_at))
}
