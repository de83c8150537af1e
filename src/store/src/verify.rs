//! Verifies the audit trail, even beside a running gateway: the chain, its numbers, an exported head, and that each
//! change and covered row matches its last entry.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    StoreError,
    coverage::{CoveredCounts, CoveredRows, RecordHistory},
    rows::{finished_second, parse_state},
    sql::{Row, Sql},
    statements::trail::ENTRY_COLUMNS,
    values,
};
use countersign_domain::changes::{
    audit::{AuditHead, EntryContent, TrailError, Verifier},
    digest::body_hash,
};

/// The numbers of entries and changes that are read at a time.
const ENTRIES_PER_PAGE: u32 = 500;
const CHANGES_PER_PAGE: u32 = 16;

/// The columns that decide when a change is pruned and when a step of a plan runs. Older schemas lack some of them.
const LIFECYCLE_COLUMNS: &str = ", c.finished_at, c.redacted, c.plan_id, c.plan_index, c.plan_last, c.run_after_ms";

/// The result of a successful verification.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedTrail {
    pub head: AuditHead,
    /// The numbers of checked entries and changes.
    pub entries: u64,
    pub changes: u64,
    pub covered: CoveredCounts,
    /// The file `audit.head` in the data directory is unreadable, so it is unknown whether the last entries are lost.
    pub unreadable_witness: bool,
}

/// The reason why a trail is broken or could not be read.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Broken(#[from] TrailError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The rows and columns of a database that are compared with its trail.
pub(crate) struct TrailCoverage {
    pub rows: CoveredRows,
    /// `true` if the database states that the trail covers all these rows, and not only later ones.
    pub covers_old_rows: bool,
    /// `true` if the database has [`LIFECYCLE_COLUMNS`].
    pub has_lifecycle_columns: bool,
}

/// Verifies all entries, changes and covered rows, within the caller's snapshot and in bounded memory. Only an
/// `expected` head that was exported earlier ([`AuditHead::export`]) detects a trail that was truncated or rewritten
/// as a whole.
///
/// # Errors
/// [`VerifyError::Broken`] at the first contradiction.
pub(crate) async fn verify<S: Sql>(
    db: &S,
    expected: Option<AuditHead>,
    coverage: &TrailCoverage,
) -> Result<VerifiedTrail, VerifyError> {
    let (mut verifier, mut history) = (Verifier::new(expected), RecordHistory::default());
    let (mut entries, mut changes) = (0, 0);
    // A tampered row may have any number.
    let mut after = Some(i64::MIN);
    while let Some(last) = after {
        let sql = format!("SELECT {ENTRY_COLUMNS} FROM audit a WHERE a.seq > ?1 ORDER BY a.seq LIMIT ?2");
        let page = db.rows(&sql, values![last, ENTRIES_PER_PAGE]).await?;
        for row in &page {
            check_entry(&mut verifier, &mut history, row)?;
        }
        entries += page.len() as u64;
        after = page.last().map(|row| row.get(0)).transpose()?;
    }
    let head = verifier.finish()?;
    // Entries without a state are about a change's standing rules, and not about the change.
    let has_lifecycle_columns = coverage.has_lifecycle_columns;
    let lifecycle_columns = if has_lifecycle_columns { LIFECYCLE_COLUMNS } else { "" };
    let sql = format!(
        "SELECT c.no, c.id, c.state, c.version, c.body, c.principal, c.idempotency_key, c.expires_at,
                a.seq, a.to_state, a.details{lifecycle_columns}
         FROM changes c LEFT JOIN audit a ON a.seq = (
             SELECT seq FROM audit WHERE change_id = c.id AND to_state <> '' ORDER BY seq DESC LIMIT 1)
         WHERE c.no > ?1 ORDER BY c.no LIMIT ?2"
    );
    let mut after = Some(i64::MIN);
    while let Some(last) = after {
        let page = db.rows(&sql, values![last, CHANGES_PER_PAGE]).await?;
        page.iter().try_for_each(|row| check_change(row, has_lifecycle_columns))?;
        changes += page.len() as u64;
        after = page.last().map(|row| row.get(0)).transpose()?;
    }
    let missing = "SELECT change_id, seq FROM audit WHERE event = 'created'
         AND NOT EXISTS (SELECT 1 FROM changes WHERE changes.id = audit.change_id)
         AND NOT EXISTS (SELECT 1 FROM audit AS later WHERE later.change_id = audit.change_id AND later.event = 'deleted')
         LIMIT 1";
    if let Some(row) = db.first(missing, &[]).await? {
        return Err(TrailError::ChangeGone { id: row.get(0)?, seq: row.get(1)? }.into());
    }
    let covered = history.compare(&coverage.rows, coverage.covers_old_rows)?;
    Ok(VerifiedTrail { head, entries, changes, covered, unreadable_witness: false })
}

fn check_entry(verifier: &mut Verifier, history: &mut RecordHistory, row: &Row) -> Result<(), VerifyError> {
    let content = EntryContent {
        seq: row.get(0)?,
        at: row.get(1)?,
        change_id: row.get(2)?,
        event: row.get(3)?,
        from: row.get(4)?,
        to: row.get(5)?,
        actor: row.get(6)?,
        details: row.get(7)?,
    };
    verifier.check_entry(&content, row.get(8)?, row.get(9)?)?;
    Ok(history.add_entry(content.seq, content.event, content.details)?)
}

/// Compares a change with its last entry. The entry of a redaction has the hash of the remaining contents.
fn check_change(row: &Row, has_lifecycle_columns: bool) -> Result<(), VerifyError> {
    let id = || row.get::<String>(1);
    let Some(seq) = row.get::<Option<u64>>(8)? else { return Err(TrailError::ChangeUnknown { id: id()? }.into()) };
    let (version, body): (i64, &str) = (row.get(3)?, row.get(4)?);
    let details: Value = row.get::<&str>(10)?.parse().unwrap_or_default();
    let is_same = details["changeHash"] == body_hash(body)
        && details["version"].as_i64() == Some(version)
        && row.get::<&str>(9)? == row.get::<&str>(2)?;
    if !is_same {
        return Err(TrailError::ChangeAltered { id: id()?, seq }.into());
    }
    // The hash covers the body, but queries use the columns beside it.
    let body: Value = body.parse().unwrap_or_default();
    if !columns_match(&body, row.get(5)?, row.get(6)?, row.get(7)?)
        || (has_lifecycle_columns && !lifecycle_columns_match(row, &body)?)
    {
        return Err(TrailError::ColumnAltered { id: id()?, seq }.into());
    }
    Ok(())
}

/// Returns `true` if the columns that queries use match the body of the change.
fn columns_match(body: &Value, principal: &str, idempotency_key: Option<&str>, expires_at: &str) -> bool {
    let same_time = |a: &str, b: &str| match (a.parse::<Timestamp>(), b.parse::<Timestamp>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    // PostgreSQL cannot store U+0000.
    let is_same = |a: &str, b: &str| a.replace('\0', "\u{2400}") == b.replace('\0', "\u{2400}");
    let key = body["idempotencyKey"].as_str();
    body["proposer"]["principal"].as_str().is_some_and(|proposer| is_same(proposer, principal))
        && match (key, idempotency_key) {
            (Some(own), Some(key)) => is_same(own, key),
            (own, key) => own == key,
        }
        && body["expiresAt"].as_str().is_some_and(|at| same_time(at, expires_at))
}

/// Returns `true` if the [`LIFECYCLE_COLUMNS`] match the body of the change.
fn lifecycle_columns_match(row: &Row, body: &Value) -> Result<bool, StoreError> {
    let time = |name: &str| body[name].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let (state, finished_at): (_, Option<i64>) = (parse_state(row.get(2)?)?, row.get(11)?);
    let finished = time("updatedAt").and_then(|at| finished_second(state, at));
    // The migration that added the column rounded the last half millisecond of a second up.
    let same_end = finished_at == finished || finished_at == finished.map(|second| second + 1);
    let same_contents = row.get::<bool>(12)? == body["redacted"].is_object();
    let (plan, plan_id) = (&body["plan"], row.get::<Option<&str>>(13)?);
    let same_plan = plan_id == plan["id"].as_str()
        && row.get::<Option<i64>>(14)? == plan["index"].as_i64()
        && row.get::<Option<bool>>(15)? == plan["last"].as_bool();
    // Only steps of plans use the column, and nodes of versions without plans leave it as it is.
    let run_after_ms: Option<i64> = row.get(16)?;
    let same_delay = plan_id.is_none() || run_after_ms == time("runAfter").map(Timestamp::as_millisecond);
    Ok(same_end && same_contents && same_plan && same_delay)
}
