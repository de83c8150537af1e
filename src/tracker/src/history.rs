//! Records the history of each issue: the actor, the time, the fields and the change. The history outlives the issue.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    arguments::EntityRef,
    db::{Db, DbResult, values},
    model::{FieldChange, IssueKey, Time, Uuid},
};
use countersign_domain::text::truncate;

/// The maximum number of characters of a recorded value. The diff of the change has the whole value.
const MAX_VALUE_CHARS: usize = 4_000;

/// The person or agent who makes a write, with its change and its time.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub name: String,
    pub change_id: Option<String>,
    pub at: Time,
}

#[derive(Serialize, JsonSchema)]
struct RecordedChange<'a> {
    field: &'a str,
    before: Option<&'a str>,
    after: Option<&'a str>,
}

/// The entity that an entry is about: an issue, given by its id and key, or else the project itself.
pub(super) struct Subject<'a> {
    pub project: i64,
    pub issue: Option<(&'a Uuid, &'a IssueKey)>,
}

/// Adds an entry to the history. Long values are truncated.
pub(super) fn record(
    db: Db<'_>,
    subject: &Subject<'_>,
    actor: &Actor,
    action: &str,
    changes: &[FieldChange],
) -> DbResult<()> {
    let changes: Vec<RecordedChange<'_>> = changes
        .iter()
        .map(|change| RecordedChange {
            field: change.field,
            before: change.before.as_deref().map(|text| truncate(text, MAX_VALUE_CHARS)),
            after: change.after.as_deref().map(|text| truncate(text, MAX_VALUE_CHARS)),
        })
        .collect();
    let changes = serde_json::to_string(&changes)?;
    db.execute(
        "INSERT INTO history (project, issue_uuid, issue_key, at, actor, change_id, action, changes) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        values![
            subject.project,
            subject.issue.map(|(id, _)| id),
            subject.issue.map(|(_, key)| key),
            &actor.at,
            &actor.name,
            actor.change_id.as_ref(),
            action,
            &changes
        ],
    )?;
    Ok(())
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryEntry {
    pub at: Time,
    pub actor: String,
    pub action: String,
    pub change_id: Option<String>,
    #[schemars(with = "Vec<RecordedChange<'static>>")]
    pub changes: Box<RawValue>,
}

/// The history of an issue, which may have been deleted.
pub(super) struct History {
    pub id: Uuid,
    pub key: IssueKey,
    /// The newest entries, the oldest of them first.
    pub entries: Vec<HistoryEntry>,
    pub total: i64,
}

/// Returns the newest `limit` entries of an issue, or `None` if the issue never existed.
pub(super) fn find_history(db: Db<'_>, issue: &EntityRef, limit: usize) -> DbResult<Option<History>> {
    let column = if let EntityRef::Id(_) = issue { "issue_uuid" } else { "issue_key" };
    let sql = format!(
        "SELECT issue_uuid, issue_key, at, actor, action, change_id, changes FROM history \
         WHERE {column} = ?1 ORDER BY id DESC LIMIT ?2"
    );
    let mut subject = None;
    let mut entries: Vec<HistoryEntry> = db.query_all(&sql, values![issue.as_str(), limit], |row| {
        if subject.is_none() {
            subject = Some((row.get(0)?, row.get(1)?));
        }
        Ok(HistoryEntry {
            at: row.get(2)?,
            actor: row.get(3)?,
            action: row.get(4)?,
            change_id: row.get(5)?,
            changes: RawValue::from_string(row.get(6)?).unwrap_or_default(),
        })
    })?;
    let Some((id, key)) = subject else { return Ok(None) };
    entries.reverse();
    let count_query = format!("SELECT COUNT(*) FROM history WHERE {column} = ?1");
    let total = db.query_one(&count_query, values![issue.as_str()], |row| row.get(0))?;
    Ok(Some(History { id, key, entries, total }))
}
