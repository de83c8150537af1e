//! Moves a store into another one, table by table, so that the backends need not know each other.
//!
//! The audit trail is verified before and after. The old store is closed for good before the new one may be opened,
//! because a change that is approved in both would run twice.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::{
    StoreError, VerifiedTrail, VerifyError,
    identity::{Backend, STORE_ID, new_id},
    policy_snapshots::NEWEST_POLICY_FACT,
    sql::{Cell, Row, Value},
    statements::facts::{self, BACKUP_FACT, INCOMPLETE_FACT, MOVED_FACT, TOKEN_KEY_FACT},
    values,
};
use countersign_domain::policy::StandingVerdict;
use countersign_runtime::data_dir::LockError;

/// The maximum rows in one statement. Both databases limit the number of parameters.
const ROWS_PER_STATEMENT: usize = 500;

/// A table that is moved.
pub(crate) struct Table {
    pub name: &'static str,
    /// The columns that both backends have. The first column orders a table that is read in pages.
    pub columns: &'static str,
    /// The number of rows read at a time, if the first column is a number. If `None`, all rows are read at once.
    pub page: Option<usize>,
}

const fn table(name: &'static str, columns: &'static str, page: Option<usize>) -> Table {
    Table { name, columns, page }
}

/// All tables except those of sign-in codes and used tokens, which count for minutes only. Each table follows the tables that
/// its rows refer to.
pub(crate) const TABLES: &[Table] = &[
    table(
        "changes",
        "no, id, version, state, principal, idempotency_key, bytes, expires_at, body, finished_at, redacted, plan_id, \
         plan_index, plan_last, run_after_ms",
        Some(16),
    ),
    table("change_search", "no, provider, tool, created_ms, call_hash, needle", Some(500)),
    table("claims", "change_id, target, taken_ms", None),
    table("events", "seq, kind, change_id, data", Some(500)),
    table("audit", "seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash", Some(500)),
    table("api_keys", "id, name, role, owner, hash, created_at, last_used_at, revoked_at, created_by", None),
    table("sign_ins", "id, cookie, key, name, role, key_id, owner, last_used_ms, session, refreshed_ms", None),
    table("people", "name, role, claims, updated_ms, revoked_ms", None),
    table("absences", "person, body", None),
    table("accounts", "server, holder, target, issuer, sealed, version, refreshing_ms, connected_ms", None),
    table("registrations", "issuer, sealed", None),
    table("pinned_servers", "server", None),
    table("tool_pins", "server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target", None),
    table("standing_rules", "no, id, \"over\", body", Some(500)),
    table("rule_counts", "hour_ms, rule, allowed, reviewed, denied", None),
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

    /// Returns the additional columns of PostgreSQL, with their values for a row.
    pub fn derive_columns(&self, row: &Row) -> Vec<(&'static str, Cell)> {
        let json = |column: &str| -> Json {
            let position = self.columns.split(", ").position(|name| name == column).unwrap_or(usize::MAX);
            row.get::<&str>(position).ok().and_then(|text| text.parse::<Json>().ok()).unwrap_or_default()
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
            // The claim belongs to no node, so the next start treats a change that was running as orphaned.
            "claims" => vec![("node", "".into()), ("epoch", 0_i64.into())],
            "standing_rules" => {
                let verdict = serde_json::from_value::<StandingVerdict>(json("body")["verdict"].clone());
                vec![("allows", verdict.is_ok_and(|verdict| verdict == StandingVerdict::Allow).into())]
            }
            _ => Vec::new(),
        }
    }
}

/// The facts that are copied: the time of the restored backup, the newest policy, the store's id, and the fingerprint of the
/// key with which the moved tokens are encrypted.
const COPIED_FACTS: [&str; 4] = [BACKUP_FACT, NEWEST_POLICY_FACT, STORE_ID, TOKEN_KEY_FACT];

/// The source or the destination of a move, which no gateway serves meanwhile. Each statement is a transaction of its own.
pub(crate) trait OfflineStore {
    /// Returns the backend. Only PostgreSQL has the columns of [`Table::derive_columns`].
    fn backend(&self) -> Backend;
    fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError>;
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<(), StoreError>;
    /// Updates the state that the backend derives from the rows.
    fn finish(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn verify(&self) -> Result<VerifiedTrail, VerifyError>;

    fn fact(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.rows(facts::SELECT, values![name])?.first().map(|row| row.get(0)).transpose()
    }

    fn set_fact(&self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        match value {
            Some(value) => self.execute(facts::UPSERT, values![name, value]),
            None => self.execute(facts::DELETE, values![name]),
        }
    }

    fn count_rows(&self, table: &Table) -> Result<u64, StoreError> {
        self.read_number(&format!("SELECT count(*) FROM {}", table.name))
    }

    /// Returns the highest number in the first column of a table.
    fn last_number(&self, table: &Table) -> Result<u64, StoreError> {
        self.read_number(&format!("SELECT coalesce(max({}), 0) FROM {}", table.key(), table.name))
    }

    fn read_number(&self, sql: &str) -> Result<u64, StoreError> {
        self.rows(sql, &[])?.first().map_or(Ok(0), |row| row.get(0))
    }

    /// Reads the next page of rows with numbers above `after`, in order, or the whole table if it has no pages.
    fn read(&self, table: &Table, after: u64) -> Result<Vec<Row>, StoreError> {
        let Table { name, columns, page } = table;
        let from = format!("SELECT {columns} FROM {name}");
        match page {
            Some(page) => {
                let sql = format!("{from} WHERE {0} > ?1 ORDER BY {0} LIMIT {page}", table.key());
                self.rows(&sql, values![after])
            }
            None => self.rows(&from, &[]),
        }
    }

    /// Writes rows. Those of a page are written at once, and a table without pages is cleared before each attempt.
    fn write(&self, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
        let is_server = self.backend() == Backend::Postgres;
        for rows in rows.chunks(ROWS_PER_STATEMENT) {
            let (mut columns, mut values, mut tuples) = (table.columns.to_owned(), Vec::new(), Vec::new());
            for (n, row) in rows.iter().enumerate() {
                let first = values.len() + 1;
                values.extend(row.0.iter().map(Cell::as_value));
                let derived = if is_server { table.derive_columns(row) } else { Vec::new() };
                for (name, value) in derived {
                    if n == 0 {
                        columns.push_str(&format!(", {name}"));
                    }
                    values.push(value);
                }
                let placeholders: Vec<String> = (first..=values.len()).map(|n| format!("?{n}")).collect();
                tuples.push(format!("({})", placeholders.join(", ")));
            }
            // PostgreSQL cannot store U+0000, and a substitute would not match the hashes in the trail.
            let has_nul = values.iter().any(|value| matches!(value, Value::Text(text) if text.contains('\0')));
            if is_server && has_nul {
                return Err(StoreError::Database("a text contains U+0000, which PostgreSQL cannot store".into()));
            }
            let sql = format!("INSERT INTO {} ({columns}) VALUES {}", table.name, tuples.join(", "));
            self.execute(&sql, &values)?;
        }
        Ok(())
    }

    fn clear(&self, table: &Table) -> Result<(), StoreError> {
        self.execute(&format!("DELETE FROM {}", table.name), &[])
    }
}

/// The progress of a move, in rows.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub copied: u64,
    pub total: u64,
}

/// The reason why a store was not moved. The next attempt continues where this one ended.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("both addresses name the same store; give another one for the copy")]
    SameStore,
    #[error("the other store is not empty; give an empty one")]
    NotEmpty,
    #[error("the data directory {0} belongs to another store in PostgreSQL; give another directory")]
    OtherStore(PathBuf),
    #[error("this store was moved already, and its data is outdated")]
    Moved,
    #[error("the audit trail of the old store is broken: {0}")]
    Source(VerifyError),
    #[error("the audit trail of the copy is broken: {0}")]
    Copy(VerifyError),
    #[error("the copy ends at audit entry {found}, and the old store at {expected}")]
    Differs { found: String, expected: String },
    #[error("the data of the modules could not be moved: {0}")]
    MoveModules(String),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Moves the data of modules. The flag is set if an earlier attempt may have left data, which is then replaced.
pub type MoveModules<'a> = dyn FnMut(bool) -> Result<(), MoveError> + 'a;

/// Copies everything, verifies the copy, marks the old store as moved, and then marks the new store as complete.
pub(crate) fn move_all(
    from: &dyn OfflineStore,
    to: &dyn OfflineStore,
    move_modules: &mut MoveModules<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifiedTrail, MoveError> {
    let source = from.verify().map_err(MoveError::Source)?;
    let head = source.head.export();
    let incomplete = to.fact(INCOMPLETE_FACT)?;
    match from.fact(MOVED_FACT)? {
        Some(moved_head) if incomplete.as_deref() != Some(moved_head.as_str()) => return Err(MoveError::Moved),
        _ => {}
    }
    if incomplete.as_deref() != Some(head.as_str()) {
        for table in TABLES {
            // An earlier attempt left these rows, and the old store has changed since then.
            if incomplete.is_some() {
                to.clear(table)?;
            } else if to.count_rows(table)? > 0 {
                return Err(MoveError::NotEmpty);
            }
        }
    }
    // This runs in each attempt, because the trail does not cover the data of modules.
    move_modules(incomplete.is_some())?;
    to.set_fact(INCOMPLETE_FACT, Some(&head))?;
    let mut current = Progress { copied: 0, total: 0 };
    for table in TABLES {
        current.total += from.count_rows(table)?;
        // The trail does not cover deliveries and last uses of keys, so copies from an earlier attempt may be
        // outdated.
        if !matches!(table.name, "changes" | "change_search" | "events" | "audit") {
            to.clear(table)?;
        }
        current.copied += to.count_rows(table)?;
    }
    progress(current);
    for table in TABLES {
        let mut after = if table.page.is_some() { to.last_number(table)? } else { 0 };
        loop {
            let rows = from.read(table, after)?;
            let Some(last) = rows.last() else { break };
            to.write(table, &rows)?;
            current.copied += rows.len() as u64;
            progress(current);
            if table.page.is_none() {
                break;
            }
            after = last.get(0)?;
        }
    }
    if from.fact(STORE_ID)?.is_none() {
        from.set_fact(STORE_ID, Some(&new_id()))?;
    }
    for name in COPIED_FACTS {
        let fact = from.fact(name)?;
        to.set_fact(name, fact.as_deref())?;
    }
    to.finish()?;
    let moved = to.verify().map_err(MoveError::Copy)?;
    if moved.head != source.head {
        return Err(MoveError::Differs { found: moved.head.export(), expected: head });
    }
    from.set_fact(MOVED_FACT, Some(&head))?;
    to.set_fact(INCOMPLETE_FACT, None)?;
    Ok(moved)
}
