//! What happened to each issue: who, when, what, through which change. It outlives the issue.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    db::{Db, Sql, values},
    model::FieldChange,
    refs::EntityRef,
};

/// Characters kept of a value, so that a history of long texts stays readable; the diff of the change has all.
const KEPT: usize = 4_000;

/// On whose behalf a write runs, and when.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    /// The name of the principal who proposed it.
    pub name: String,
    pub change_id: Option<String>,
    /// UTC with milliseconds.
    pub at: String,
}

#[derive(Serialize)]
struct KeptChange<'a> {
    field: &'a str,
    before: Option<&'a str>,
    after: Option<&'a str>,
}

/// Which entity an entry is about; `issue` is its id and key, none for the project itself.
pub(super) struct Subject<'a> {
    pub project: i64,
    pub issue: Option<(&'a str, &'a str)>,
}

pub(super) fn record(
    db: Db<'_>,
    subject: &Subject<'_>,
    actor: &Actor,
    action: &str,
    changes: &[FieldChange],
) -> Sql<()> {
    let kept: Vec<KeptChange<'_>> = changes
        .iter()
        .map(|c| KeptChange {
            field: c.field,
            before: c.before.as_deref().map(cut),
            after: c.after.as_deref().map(cut),
        })
        .collect();
    let json = serde_json::to_string(&kept)?;
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
            &json
        ],
    )?;
    Ok(())
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(KEPT).map_or(text, |(end, _)| &text[..end])
}

/// One entry, as it is shown.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryEntry {
    pub at: String,
    pub actor: String,
    pub action: String,
    pub change_id: Option<String>,
    pub changes: Box<RawValue>,
}

/// The history of an issue that may be gone.
pub(super) struct History {
    pub id: String,
    pub key: String,
    /// Oldest first; the newest if there are more than were asked for.
    pub entries: Vec<HistoryEntry>,
    pub total: i64,
}

/// `None` if there never was such an issue.
pub(super) fn of_issue(db: Db<'_>, issue: &EntityRef, limit: i64) -> Sql<Option<History>> {
    let (sql, count) = match issue {
        EntityRef::Id(_) => (
            "SELECT issue_uuid, issue_key, at, actor, action, change_id, changes FROM history \
             WHERE issue_uuid = ?1 ORDER BY id DESC LIMIT ?2",
            "SELECT COUNT(*) FROM history WHERE issue_uuid = ?1",
        ),
        EntityRef::Key(_) => (
            "SELECT issue_uuid, issue_key, at, actor, action, change_id, changes FROM history \
             WHERE issue_key = ?1 ORDER BY id DESC LIMIT ?2",
            "SELECT COUNT(*) FROM history WHERE issue_key = ?1",
        ),
    };
    let mut subject = None;
    let mut entries: Vec<HistoryEntry> = db.all(sql, values![issue.text(), limit], |row| {
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
    let total = db.one(count, values![issue.text()], |row| row.get(0))?;
    Ok(Some(History { id, key, entries, total }))
}
