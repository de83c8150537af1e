//! Checks the audit trail of a data directory from outside, also while its gateway runs: the chain, its gaps, an
//! exported head, and that every change, key and pin is as its last entry left it.

mod follower;

use std::path::Path;

use jiff::Timestamp;
use rusqlite::params;
use serde_json::Value;

pub use self::follower::Covered;
use self::follower::Follower;
use crate::{
    StoreError,
    open::open_reader,
    rows::{signed, unsigned},
};
use countersign_domain::changes::{
    audit::{AuditHead, Broken, EntryContent, Verifier},
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
    Broken(#[from] Broken),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for VerifyError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Reads everything once, in one snapshot and in bounded memory. `expected` is a head exported earlier
/// ([`AuditHead::export`]): without it, a trail cut at its end or written anew as a whole cannot be told.
///
/// # Errors
/// [`VerifyError::Broken`] at the first thing that does not hold.
pub fn verify_audit(dir: &Path, expected: Option<AuditHead>) -> Result<Verified, VerifyError> {
    verify_connection(&open_reader(dir)?, expected)
}

/// As [`verify_audit`], of a database that is open.
pub(crate) fn verify_connection(
    conn: &rusqlite::Connection,
    expected: Option<AuditHead>,
) -> Result<Verified, VerifyError> {
    let snapshot = conn.unchecked_transaction()?;
    let mut verifier = Verifier::new(expected);
    let mut follower = Follower::default();
    let mut entries = 0;
    {
        let mut statement = snapshot.prepare(
            "SELECT seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash
             FROM audit ORDER BY seq",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let text = |i: usize| -> Result<String, rusqlite::Error> { row.get(i) };
            let (at, change_id, event, to, actor, details) =
                (text(1)?, text(2)?, text(3)?, text(5)?, text(6)?, text(7)?);
            let from: Option<String> = row.get(4)?;
            let content = EntryContent {
                seq: unsigned(row.get(0)?)?,
                at: &at,
                change_id: &change_id,
                event: &event,
                from: from.as_deref(),
                to: &to,
                actor: &actor,
                details: &details,
            };
            let blob = |i: usize| -> Result<Vec<u8>, rusqlite::Error> { row.get(i) };
            verifier.entry(&content, &blob(8)?, &blob(9)?)?;
            follower.entry(content.seq, content.event, content.details)?;
            entries += 1;
        }
    }
    let head = verifier.finish()?;
    let changes = check_changes(&snapshot)?;
    let covered = follower.finish(&snapshot)?;
    Ok(Verified { head, entries, changes, covered })
}

/// Every change has its last entry's hash, and every entry's change exists, or an entry says that it was deleted. What
/// was redacted has an entry too, with the hash of what is left. Entries without a state tell of what came of a change (its
/// standing rules) and say nothing of the change itself.
fn check_changes(conn: &rusqlite::Connection) -> Result<u64, VerifyError> {
    let mut last = conn.prepare(
        "SELECT seq, to_state, details FROM audit WHERE change_id = ?1 AND to_state <> '' ORDER BY seq DESC LIMIT 1",
    )?;
    let mut statement =
        conn.prepare("SELECT id, state, version, body, principal, idempotency_key, expires_at FROM changes")?;
    let mut rows = statement.query([])?;
    let mut changes = 0;
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let mut entry = last.query([&id])?;
        let Some(entry) = entry.next()? else { return Err(Broken::ChangeUnknown { id }.into()) };
        let seq = unsigned(entry.get(0)?)?;
        let details: String = entry.get(2)?;
        let details: Value = serde_json::from_str(&details).unwrap_or_default();
        let body: String = row.get(3)?;
        let same = details["changeHash"] == body_hash(&body)
            && details["version"].as_u64().map(signed) == Some(row.get(2)?)
            && entry.get::<_, String>(1)? == row.get::<_, String>(1)?;
        if !same {
            return Err(Broken::ChangeAltered { id, seq }.into());
        }
        // What the body says is what stands in the trail; queries go by the columns beside it.
        let (principal, key): (String, Option<String>) = (row.get(4)?, row.get(5)?);
        let expires_at: String = row.get(6)?;
        let said = serde_json::from_str(&body).unwrap_or_default();
        if !columns_are_those_of(&said, &principal, key.as_deref(), &expires_at) {
            return Err(Broken::ColumnAltered { id, seq }.into());
        }
        changes += 1;
    }
    let mut gone = conn.prepare(
        "SELECT change_id, seq FROM audit WHERE event = 'created'
         AND NOT EXISTS (SELECT 1 FROM changes WHERE changes.id = audit.change_id)
         AND NOT EXISTS (SELECT 1 FROM audit AS later WHERE later.change_id = audit.change_id AND later.event = 'deleted')
         LIMIT 1",
    )?;
    let mut rows = gone.query(params![])?;
    if let Some(row) = rows.next()? {
        return Err(Broken::ChangeGone { id: row.get(0)?, seq: unsigned(row.get(1)?)? }.into());
    }
    Ok(changes)
}

/// What the columns of a change that queries go by must be: those of its body.
fn columns_are_those_of(body: &Value, principal: &str, idempotency_key: Option<&str>, expires_at: &str) -> bool {
    let same_time = |a: &str, b: &str| match (a.parse::<Timestamp>(), b.parse::<Timestamp>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    body["proposer"]["principal"].as_str() == Some(principal)
        && body["idempotencyKey"].as_str() == idempotency_key
        && body["expiresAt"].as_str().is_some_and(|at| same_time(at, expires_at))
}
