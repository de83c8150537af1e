//! Moves a store into another one, table by table, so that neither backend knows the other.
//!
//! The audit trail is verified before and after. The old store is closed for good before the new one may be opened,
//! because a change that is approved in both would run twice.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::{
    StoreError, VerifiedTrail, VerifyError,
    identity::{STORE_ID, new_id},
    policy_snapshots::NEWEST,
    sql::{Cell, Row, Sql, Value},
    statements::facts,
    values,
};
use countersign_domain::policy::StandingVerdict;

/// Rows in one statement, whose parameters are bounded by both databases.
const ROWS_PER_STATEMENT: usize = 500;

/// A table that is moved.
pub(crate) struct Table {
    pub name: &'static str,
    /// The columns that both backends have. The first one orders a table that is read in pages.
    pub columns: &'static str,
    /// The number of rows read at a time, if the first column is a number; otherwise all rows are read at once.
    pub page: Option<usize>,
}

const fn table(name: &'static str, columns: &'static str, page: Option<usize>) -> Table {
    Table { name, columns, page }
}

/// All tables but that of sign-in codes, in an order in which each row finds what it refers to.
pub(crate) const TABLES: &[Table] = &[
    table(
        "changes",
        "no, id, version, state, principal, idempotency_key, bytes, expires_at, body, finished_at, redacted",
        Some(16),
    ),
    table("change_search", "no, provider, tool, created_ms, call_hash, needle", Some(500)),
    table("claims", "change_id, target, taken_ms", None),
    table("events", "seq, kind, change_id, data", Some(500)),
    table("audit", "seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash", Some(500)),
    table("api_keys", "id, name, role, owner, hash, created_at, last_used_at, revoked_at", None),
    table("sign_ins", "id, cookie, key, name, role, key_id, owner, last_used_ms", None),
    table("pinned_servers", "server", None),
    table("tool_pins", "server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target", None),
    table("standing_rules", "no, id, \"over\", body", Some(500)),
    table("webhooks", "name, position", None),
    table(
        "webhook_deliveries",
        "id, webhook, key, seq, kind, subject, state, attempts, status, error, taken_ms, last_ms, event",
        Some(100),
    ),
];

impl Table {
    /// Returns the name of the first column.
    pub fn key(&self) -> &'static str {
        self.columns.split(", ").next().unwrap_or_default()
    }

    /// Returns the columns that PostgreSQL has beside these, with their values for a row.
    pub fn derive_columns(&self, row: &Row) -> Vec<(&'static str, Cell)> {
        let json = |column: &str| -> Json {
            let position = self.columns.split(", ").position(|name| name == column).unwrap_or(usize::MAX);
            row.get(position).ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        match self.name {
            "changes" => {
                let body = json("body");
                let votes = body["decisions"].as_array().map_or(0, Vec::len);
                let title = body["summary"].as_str().unwrap_or_default().to_owned();
                vec![("votes", votes.into()), ("title", Cell::Text(title.into()))]
            }
            "events" => {
                let at = json("data")["at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
                vec![("at_ms", at.map_or(0, jiff::Timestamp::as_millisecond).into())]
            }
            // No node has it: a change that was running is orphaned at the next start.
            "claims" => vec![("node", "".into()), ("epoch", 0_i64.into())],
            "standing_rules" => {
                let verdict = serde_json::from_value::<StandingVerdict>(json("body")["verdict"].clone());
                vec![("allows", verdict.is_ok_and(|verdict| verdict == StandingVerdict::Allow).into())]
            }
            _ => Vec::new(),
        }
    }
}

/// The fact of an incomplete copy, with the head that it will have.
pub(crate) const INCOMPLETE_FACT: &str = "moving_from";
/// The fact of a store that was moved, with the head that it had.
pub(crate) const MOVED_FACT: &str = "moved";

/// The facts that are moved: the time of the backup that the store is, the newest policy, and the store's id.
const MOVED_FACTS: [&str; 3] = ["backup_of", NEWEST, STORE_ID];

/// A store that is moved or moved into, which nobody serves meanwhile.
pub(crate) trait OfflineStore {
    type Connection: Sql;
    /// The database needs the columns of [`Table::derive_columns`].
    const HAS_DERIVED_COLUMNS: bool;

    fn run<T>(&self, work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>) -> Result<T, StoreError>;
    fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;
    /// Updates what the backend keeps beside the rows.
    fn finish(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn verify(&self) -> Result<VerifiedTrail, VerifyError>;

    fn fact(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.run(async |db| facts::get(db, name).await)
    }

    fn set_fact(&self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        self.run(async |db| facts::set(db, name, value).await)
    }

    fn count(&self, table: &Table) -> Result<u64, StoreError> {
        self.number(&format!("SELECT count(*) FROM {}", table.name))
    }

    /// Returns the number of the last row of a table that has numbers.
    fn last(&self, table: &Table) -> Result<u64, StoreError> {
        self.number(&format!("SELECT coalesce(max({}), 0) FROM {}", table.key(), table.name))
    }

    fn number(&self, sql: &str) -> Result<u64, StoreError> {
        let row = self.run(async |db| db.first(sql, &[]).await)?;
        row.map_or(Ok(0), |row| row.get(0))
    }

    /// Reads the next page of rows, in order, whose numbers are above `after`; or the whole table.
    fn read(&self, table: &Table, after: u64) -> Result<Vec<Row>, StoreError> {
        let Table { name, columns, page } = table;
        let from = format!("SELECT {columns} FROM {name}");
        self.run(async |db| match page {
            Some(page) => {
                let sql = format!("{from} WHERE {0} > ?1 ORDER BY {0} LIMIT {page}", table.key());
                db.rows(&sql, values![after]).await
            }
            None => db.rows(&from, &[]).await,
        })
    }

    /// Writes all rows or none.
    fn write(&self, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
        self.transaction(async |db| {
            for rows in rows.chunks(ROWS_PER_STATEMENT) {
                let (mut columns, mut values, mut tuples) = (table.columns.to_owned(), Vec::new(), Vec::new());
                for (n, row) in rows.iter().enumerate() {
                    let first = values.len() + 1;
                    values.extend(row.0.iter().map(Cell::as_value));
                    let derived = if Self::HAS_DERIVED_COLUMNS { table.derive_columns(row) } else { Vec::new() };
                    for (name, value) in derived {
                        if n == 0 {
                            columns.push_str(&format!(", {name}"));
                        }
                        values.push(value);
                    }
                    let places: Vec<String> = (first..=values.len()).map(|n| format!("?{n}")).collect();
                    tuples.push(format!("({})", places.join(", ")));
                }
                // Its replacement would not match the hashes in the trail.
                let has_nul = values.iter().any(|value| matches!(value, Value::Text(text) if text.contains('\0')));
                if Self::HAS_DERIVED_COLUMNS && has_nul {
                    return Err(StoreError::Database("U+0000, which PostgreSQL has no room for".into()));
                }
                let sql = format!("INSERT INTO {} ({columns}) VALUES {}", table.name, tuples.join(", "));
                db.execute(&sql, &values).await?;
            }
            Ok(())
        })
    }

    fn clear(&self, table: &Table) -> Result<(), StoreError> {
        self.run(async |db| db.execute(&format!("DELETE FROM {}", table.name), &[]).await.map(drop))
    }
}

/// The progress of a move.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub rows: u64,
    pub of: u64,
}

/// The reason why a store was not moved. The next attempt continues with what was copied.
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
    MoveModules(String),
    #[error(transparent)]
    Lock(#[from] super::LockError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Moves the data of modules, with each attempt. The flag tells whether it may replace existing data.
pub type MoveModules<'a> = dyn FnMut(bool) -> Result<(), MoveError> + 'a;

/// Copies everything, verifies the copy, closes the old store for good, and then opens the new one.
pub(crate) fn move_all(
    from: &impl OfflineStore,
    to: &impl OfflineStore,
    beside: &mut MoveModules<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifiedTrail, MoveError> {
    let whole = from.verify().map_err(MoveError::Source)?;
    let head = whole.head.export();
    let coming = to.fact(INCOMPLETE_FACT)?;
    match from.fact(MOVED_FACT)? {
        Some(gone) if coming.as_deref() != Some(gone.as_str()) => return Err(MoveError::Moved),
        _ => {}
    }
    if coming.as_deref() != Some(head.as_str()) {
        for table in TABLES {
            // An earlier attempt has left this, and the old store has changed since.
            if coming.is_some() {
                to.clear(table)?;
            } else if to.count(table)? > 0 {
                return Err(MoveError::NotEmpty);
            }
        }
    }
    // With each attempt, because modules write data that the trail does not cover.
    beside(coming.is_some())?;
    to.set_fact(INCOMPLETE_FACT, Some(&head))?;
    let mut done = Progress { rows: 0, of: 0 };
    for table in TABLES {
        done.of += from.count(table)?;
        // Deliveries and last uses of keys have no entries, so earlier copies may be outdated.
        if !matches!(table.name, "changes" | "change_search" | "events" | "audit") {
            to.clear(table)?;
        }
        done.rows += to.count(table)?;
    }
    progress(done);
    for table in TABLES {
        let mut after = if table.page.is_some() { to.last(table)? } else { 0 };
        loop {
            let rows = from.read(table, after)?;
            let Some(last) = rows.last() else { break };
            to.write(table, &rows)?;
            done.rows += rows.len() as u64;
            progress(done);
            if table.page.is_none() {
                break;
            }
            after = last.get(0)?;
        }
    }
    if from.fact(STORE_ID)?.is_none() {
        from.set_fact(STORE_ID, Some(&new_id()))?;
    }
    for name in MOVED_FACTS {
        let fact = from.fact(name)?;
        to.set_fact(name, fact.as_deref())?;
    }
    to.finish()?;
    let moved = to.verify().map_err(MoveError::Copy)?;
    if moved.head != whole.head {
        return Err(MoveError::Differs { found: moved.head.export(), expected: head });
    }
    from.set_fact(MOVED_FACT, Some(&head))?;
    to.set_fact(INCOMPLETE_FACT, None)?;
    Ok(moved)
}

/// Returns an error if the store was moved or is an incomplete copy.
pub(crate) fn check(coming: Option<&str>, gone: Option<&str>) -> Result<(), StoreError> {
    if coming.is_some() {
        return Err(StoreError::NotWhole);
    }
    if gone.is_some() {
        return Err(StoreError::Moved);
    }
    Ok(())
}
