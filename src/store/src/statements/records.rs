//! Writes all requests except transitions: records with their pins and rules, and pruning.

use std::borrow::Cow;

use super::{facts, pins, retention, standing_rules};
use crate::{AuditRecord, Pruning, StoreError, WriteRequest, coverage::with_rows, pins::FIRST_SEEN, sql::Sql, values};
use countersign_domain::changes::{ChangeState, audit::EntryContent, machine::SYSTEM};

/// An audit entry without its number.
pub struct NewEntry<'a> {
    change_id: &'a str,
    event: &'static str,
    /// The state of a pruned change.
    state: Option<ChangeState>,
    actor: &'a str,
    at: String,
    details: Cow<'a, str>,
}

impl NewEntry<'_> {
    pub fn content(&self, seq: u64) -> EntryContent<'_> {
        let state = self.state.map(ChangeState::as_str);
        EntryContent {
            seq,
            at: &self.at,
            change_id: self.change_id,
            event: self.event,
            from: state,
            to: state.unwrap_or_default(),
            actor: self.actor,
            details: &self.details,
        }
    }
}

/// Writes a request other than a transition, within the writer's transaction. Returns the audit entries. No entries
/// mean that nothing was written, because another node wrote first.
pub async fn write<'a, S: Sql>(db: &S, request: &'a WriteRequest) -> Result<Vec<NewEntry<'a>>, StoreError> {
    match request {
        WriteRequest::Transition(_) => Ok(Vec::new()),
        WriteRequest::Record(record) => write_record(db, record).await,
        WriteRequest::Restored(record) => {
            facts::set(db, facts::BACKUP_FACT, None).await?;
            standing_rules::end_allowances(db, record.at).await?;
            // Nobody knows which absences were ended since the backup.
            db.execute("DELETE FROM absences", &[]).await?;
            write_record(db, record).await
        }
        WriteRequest::Prune(pruning) => prune(db, pruning).await,
    }
}

async fn write_record<'a, S: Sql>(db: &S, record: &'a AuditRecord) -> Result<Vec<NewEntry<'a>>, StoreError> {
    if record.once && is_recorded(db, record).await? {
        return Ok(Vec::new());
    }
    // The first pins of a server must not overwrite pins of another node, which a person may have accepted meanwhile.
    let is_first = record.event == FIRST_SEEN;
    if !record.server.is_empty() && !pins::store(db, &record.server, &record.pins, is_first).await? {
        return Ok(Vec::new());
    }
    let Some(rows) = standing_rules::store(db, &record.rules, record.event == standing_rules::RULE_USED).await? else {
        return Ok(Vec::new());
    };
    Ok(vec![NewEntry {
        change_id: &record.change,
        event: record.event,
        state: None,
        actor: &record.actor,
        at: record.at.to_string(),
        details: with_rows(&record.details, &rows),
    }])
}

/// Returns `true` if the timeline of the change has an entry with the event of the record. Locks the change, so that no other node
/// adds one before the caller's transaction ends.
async fn is_recorded<S: Sql>(db: &S, record: &AuditRecord) -> Result<bool, StoreError> {
    let lock = format!("SELECT 1 FROM changes WHERE id = ?1{}", S::DIALECT.for_update);
    db.rows(&lock, values![&record.change]).await?;
    let sql = "SELECT 1 FROM audit WHERE change_id = ?1 AND event = ?2 LIMIT 1";
    Ok(db.first(sql, values![&record.change, record.event]).await?.is_some())
}

/// Prunes the records that were not modified since they were read. Returns one entry for each redaction and deletion,
/// and one for all events.
async fn prune<'a, S: Sql>(db: &S, pruning: &'a Pruning) -> Result<Vec<NewEntry<'a>>, StoreError> {
    let entry = |change_id, event, state, details: &'a str| NewEntry {
        change_id,
        event,
        state,
        actor: SYSTEM,
        at: pruning.at.to_string(),
        details: details.into(),
    };
    let mut entries = Vec::new();
    for change in &pruning.changes {
        if retention::prune(db, change).await? {
            let event = if change.body.is_some() { "redacted" } else { "deleted" };
            entries.push(entry(&change.id, event, Some(change.state), &change.details));
        }
    }
    // The newest event of all stays.
    let sql = "DELETE FROM events WHERE seq <= ?1 AND seq < (SELECT max(seq) FROM events)";
    if pruning.events_to > 0 && db.execute(sql, values![pruning.events_to]).await? > 0 {
        entries.push(entry("", "events_pruned", None, &pruning.events_details));
    }
    Ok(entries)
}
