//! Moving a store into another one: tables row by row, so that neither backend knows the other.
//!
//! What is moved is proved before and after by the audit trail. The old store is closed for good before the new one may be
//! opened: what is approved in both would run twice.

use std::path::PathBuf;

use serde_json::Value;

use super::{
    StoreError, Verified, VerifyError,
    identity::{STORE_ID, new_id},
    policy_snapshots::NEWEST,
    sql::Cell,
};
use countersign_domain::policy::StandingVerdict;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Text,
    Blob,
    Bool,
}

pub(crate) struct Table {
    pub name: &'static str,
    pub columns: &'static [(&'static str, Kind)],
    /// Rows read at a time, in the order of the first column, where that is a number; else all at once.
    pub page: Option<usize>,
}

use Kind::{Blob, Bool, Int, Text};

/// What both backends have, in an order in which each row finds what it refers to. Codes for signing in are not moved.
pub(crate) const TABLES: &[Table] = &[
    Table {
        name: "changes",
        columns: &[
            ("no", Int),
            ("id", Text),
            ("version", Int),
            ("state", Text),
            ("principal", Text),
            ("idempotency_key", Text),
            ("bytes", Int),
            ("expires_at", Text),
            ("body", Text),
            ("finished_at", Int),
            ("redacted", Bool),
        ],
        page: Some(16),
    },
    Table {
        name: "change_search",
        columns: &[
            ("no", Int),
            ("provider", Text),
            ("tool", Text),
            ("created_ms", Int),
            ("call_hash", Text),
            ("needle", Text),
        ],
        page: Some(500),
    },
    Table { name: "claims", columns: &[("change_id", Text), ("target", Text), ("taken_ms", Int)], page: None },
    Table {
        name: "events",
        columns: &[("seq", Int), ("kind", Text), ("change_id", Text), ("data", Text)],
        page: Some(500),
    },
    Table {
        name: "audit",
        columns: &[
            ("seq", Int),
            ("at", Text),
            ("change_id", Text),
            ("event", Text),
            ("from_state", Text),
            ("to_state", Text),
            ("actor", Text),
            ("details", Text),
            ("prev_hash", Blob),
            ("hash", Blob),
        ],
        page: Some(500),
    },
    Table {
        name: "api_keys",
        columns: &[
            ("id", Text),
            ("name", Text),
            ("role", Text),
            ("owner", Text),
            ("hash", Blob),
            ("created_at", Text),
            ("last_used_at", Text),
            ("revoked_at", Text),
        ],
        page: None,
    },
    Table {
        name: "sign_ins",
        columns: &[
            ("id", Blob),
            ("cookie", Blob),
            ("key", Blob),
            ("name", Text),
            ("role", Text),
            ("key_id", Text),
            ("owner", Text),
            ("last_used_ms", Int),
        ],
        page: None,
    },
    Table { name: "pinned_servers", columns: &[("server", Text)], page: None },
    Table {
        name: "tool_pins",
        columns: &[
            ("server", Text),
            ("tool", Text),
            ("seen", Text),
            ("accepted", Text),
            ("accepted_by", Text),
            ("accepted_at", Text),
            ("definition", Text),
            ("accepted_target", Text),
        ],
        page: None,
    },
    Table {
        name: "standing_rules",
        columns: &[("no", Int), ("id", Text), ("over", Bool), ("body", Text)],
        page: Some(500),
    },
    Table { name: "webhooks", columns: &[("name", Text), ("position", Int)], page: None },
    Table {
        name: "webhook_deliveries",
        columns: &[
            ("id", Int),
            ("webhook", Text),
            ("key", Text),
            ("seq", Int),
            ("kind", Text),
            ("subject", Text),
            ("state", Text),
            ("attempts", Int),
            ("status", Int),
            ("error", Text),
            ("taken_ms", Int),
            ("last_ms", Int),
            ("event", Text),
        ],
        page: Some(100),
    },
];

impl Table {
    fn position(&self, column: &str) -> usize {
        self.columns.iter().position(|(name, _)| *name == column).unwrap_or(usize::MAX)
    }

    /// Columns that PostgreSQL has beside these, made of what the row says.
    pub fn derived(&self, row: &[Cell]) -> Vec<(&'static str, Cell)> {
        let said = |column: &str| -> Value {
            let Some(Cell::Text(text)) = row.get(self.position(column)) else { return Value::Null };
            serde_json::from_str(text).unwrap_or_default()
        };
        match self.name {
            "changes" => {
                let body = said("body");
                let votes = body["decisions"].as_array().map_or(0, Vec::len);
                let title = body["summary"].as_str().unwrap_or_default().to_owned();
                vec![("votes", Cell::Int(i64::try_from(votes).unwrap_or(i64::MAX))), ("title", Cell::Text(title))]
            }
            "events" => {
                let at = said("data")["at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
                vec![("at_ms", Cell::Int(at.map_or(0, jiff::Timestamp::as_millisecond)))]
            }
            // No node has it: whatever runs is taken to be lost at the next start.
            "claims" => vec![("node", Cell::Text(String::new())), ("epoch", Cell::Int(0))],
            "standing_rules" => {
                let verdict = serde_json::from_value::<StandingVerdict>(said("body")["verdict"].clone());
                vec![("allows", Cell::Bool(verdict.is_ok_and(|verdict| verdict == StandingVerdict::Allow)))]
            }
            _ => Vec::new(),
        }
    }
}

/// Says of a new store that it is not whole yet, and of which head it is to become.
pub(crate) const COMING: &str = "moving_from";
/// Says of an old store that it was moved, and the head that it had.
pub(crate) const GONE: &str = "moved";

/// Facts that are moved: when the backup was taken that the store is, the policy that was in force, and which store it is.
const CARRIED: [&str; 3] = ["backup_of", NEWEST, STORE_ID];

/// Rows of a table, in order, the numbers of which are above `after`.
pub(crate) struct Wanted<'a> {
    pub table: &'a Table,
    pub after: i64,
}

/// A store that is moved or moved into, which nobody serves meanwhile.
pub(crate) trait Shelf {
    fn fact(&mut self, name: &str) -> Result<Option<String>, StoreError>;
    fn set_fact(&mut self, name: &str, value: Option<&str>) -> Result<(), StoreError>;
    fn count(&mut self, table: &Table) -> Result<u64, StoreError>;
    /// The number of the last row, of a table that has numbers.
    fn last(&mut self, table: &Table) -> Result<i64, StoreError>;
    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Vec<Cell>>, StoreError>;
    /// All or nothing.
    fn write(&mut self, table: &Table, rows: Vec<Vec<Cell>>) -> Result<(), StoreError>;
    fn clear(&mut self, table: &Table) -> Result<(), StoreError>;
    /// What the backend keeps beside the rows, made of them.
    fn settle(&mut self) -> Result<(), StoreError>;
    fn verify(&mut self) -> Result<Verified, VerifyError>;
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub rows: u64,
    pub of: u64,
}

/// Why a store was not moved. What was copied until then is taken up again by the next try.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("there is something in the other store already; give it an empty one")]
    NotEmpty,
    #[error("the data directory {0} belongs to another store in PostgreSQL; give another directory")]
    OtherStore(PathBuf),
    #[error("this store was moved already; what it holds is old")]
    Moved,
    #[error("the old store does not hold: {0}")]
    Source(VerifyError),
    #[error("what was copied does not hold: {0}")]
    Copy(VerifyError),
    #[error("the copy ends at {found}, and the old store at {expected}")]
    Differs { found: String, expected: String },
    #[error("what modules keep: {0}")]
    Beside(String),
    #[error(transparent)]
    Lock(#[from] super::LockError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Moves what is kept beside the store; told whether that may replace what is there. Called with each try.
pub type Beside<'a> = dyn FnMut(bool) -> Result<(), MoveError> + 'a;

/// Copies everything, proves it, closes the old store for good, and then opens the new one.
pub(crate) fn all(
    from: &mut dyn Shelf,
    to: &mut dyn Shelf,
    beside: &mut Beside<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Verified, MoveError> {
    let whole = from.verify().map_err(MoveError::Source)?;
    let head = whole.head.export();
    let coming = to.fact(COMING)?;
    match from.fact(GONE)? {
        Some(gone) if coming.as_deref() != Some(gone.as_str()) => return Err(MoveError::Moved),
        _ => {}
    }
    if coming.as_deref() != Some(head.as_str()) {
        for table in TABLES {
            // What is left of a try before, of which the old store has gone on since.
            if coming.is_some() {
                to.clear(table)?;
            } else if to.count(table)? > 0 {
                return Err(MoveError::NotEmpty);
            }
        }
    }
    // Each time: what is kept beside may have been altered since by what leaves no entry in the trail.
    beside(coming.is_some())?;
    to.set_fact(COMING, Some(&head))?;
    let mut done = Progress { rows: 0, of: 0 };
    for table in TABLES {
        done.of += from.count(table)?;
        // Deliveries and the last use of keys leave no entry: those that a try before copied may be old.
        if !matches!(table.name, "changes" | "change_search" | "events" | "audit") {
            to.clear(table)?;
        }
        done.rows += to.count(table)?;
    }
    progress(done);
    for table in TABLES {
        let mut after = if table.page.is_some() { to.last(table)? } else { 0 };
        loop {
            let rows = from.read(&Wanted { table, after })?;
            let Some(last) = rows.last() else { break };
            after = if let Some(Cell::Int(no)) = last.first() { *no } else { i64::MAX };
            done.rows += rows.len() as u64;
            to.write(table, rows)?;
            progress(done);
            if table.page.is_none() {
                break;
            }
        }
    }
    if from.fact(STORE_ID)?.is_none() {
        from.set_fact(STORE_ID, Some(&new_id()))?;
    }
    for name in CARRIED {
        let fact = from.fact(name)?;
        to.set_fact(name, fact.as_deref())?;
    }
    to.settle()?;
    let moved = to.verify().map_err(MoveError::Copy)?;
    if moved.head != whole.head {
        return Err(MoveError::Differs { found: moved.head.export(), expected: head });
    }
    from.set_fact(GONE, Some(&head))?;
    to.set_fact(COMING, None)?;
    Ok(moved)
}

/// Refuses to serve a store that was moved, or is not whole yet.
pub(crate) fn check(coming: Option<&str>, gone: Option<&str>) -> Result<(), StoreError> {
    if coming.is_some() {
        return Err(StoreError::NotWhole);
    }
    if gone.is_some() {
        return Err(StoreError::Moved);
    }
    Ok(())
}
