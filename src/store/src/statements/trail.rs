//! Reads the audit trail, and the rows that it covers.

use std::{
    collections::{BTreeSet, HashMap},
    io,
};

use serde_json::{Value, json, value::RawValue};

use crate::{
    ReadAuditError, StoreError,
    coverage::{CoveredRows, RowName, RowState, absence_hash, pin_hash, policy_hash, rule_hash},
    policy_snapshots::NEWEST_POLICY_FACT,
    rows::parse_state,
    search::{AuditSearch, ENTRIES_PER_PAGE, FoundEntries, FoundEntry, MAX_SEARCHED_ENTRIES},
    sql::{Parameters, Row, Sql},
    values,
};
use countersign_domain::changes::{audit::AuditEntry, digest::PartHasher};

/// The columns that [`parse_entry`] reads, in that order.
pub const ENTRY_COLUMNS: &str =
    "a.seq, a.at, a.change_id, a.event, a.from_state, a.to_state, a.actor, a.details, a.prev_hash, a.hash";

pub fn parse_entry(row: &Row) -> Result<AuditEntry, StoreError> {
    let to: &str = row.get(5)?;
    Ok(AuditEntry {
        seq: row.get(0)?,
        at: row.get(1)?,
        change_id: row.get(2)?,
        event: row.get(3)?,
        from: row.get::<Option<&str>>(4)?.map(parse_state).transpose()?,
        to: Some(to).filter(|to| !to.is_empty()).map(parse_state).transpose()?,
        actor: row.get(6)?,
        details: RawValue::from_string(row.get(7)?)
            .map_err(|e| StoreError::BadRecord(format!("details of an audit entry: {e}")))?,
        prev_hash: row.get(8)?,
        hash: row.get(9)?,
    })
}

/// Reads at most `limit` entries above `after`, oldest first.
pub async fn entries_after<S: Sql>(db: &S, after: u64, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
    let sql = format!("SELECT {ENTRY_COLUMNS} FROM audit a WHERE a.seq > ?1 ORDER BY a.seq LIMIT ?2");
    db.rows(&sql, values![after, limit]).await?.iter().map(parse_entry).collect()
}

/// Passes all entries to `each`, oldest first, up to the one that is the last at the call. Reads them in pages, so that memory
/// is bounded. The trail only grows, so this needs no snapshot, which would keep the database from reusing space while `each`
/// waits.
///
/// # Errors
/// Those of the database and of `each`. [`StoreError::Database`] if the last entries disappear meanwhile.
pub async fn for_each_entry<S: Sql>(
    db: &S,
    each: &mut dyn FnMut(&AuditEntry) -> io::Result<()>,
) -> Result<(), ReadAuditError> {
    let newest = db.first("SELECT coalesce(max(seq), 0) FROM audit", &[]).await?;
    let last: u64 = newest.map_or(Ok(0), |row| row.get(0))?;
    let mut after = 0;
    while after < last {
        let page = entries_after(db, after, ENTRIES_PER_PAGE as usize).await?;
        let Some(last_of_page) = page.last() else {
            let text = format!("the audit trail lost its entry {last} while it was read");
            return Err(StoreError::Database(text.into()).into());
        };
        after = last_of_page.seq;
        for entry in page.iter().filter(|entry| entry.seq <= last) {
            each(entry)?;
        }
    }
    Ok(())
}

/// Searches the entries below `before`. Returns at most `limit` entries, newest first.
pub async fn search<S: Sql>(
    db: &S,
    search: &AuditSearch,
    before: Option<u64>,
    limit: usize,
) -> Result<FoundEntries, StoreError> {
    let end = db.heads().await?.audit.seq + 1;
    let top = before.map_or(end, |before| before.min(end));
    let bottom = if search.is_scan() { top.saturating_sub(MAX_SEARCHED_ENTRIES) } else { 0 };
    let needle = search.text.as_ref().map(|text| text.to_lowercase());
    let mut entries: Vec<AuditEntry> = Vec::new();
    let mut below = top;
    let next = 'pages: loop {
        // Reading in pages lets the search stop early.
        let (sql, parameters) = search_statement(search, bottom, below);
        let page = db.rows(&sql, &parameters.values()).await?;
        for row in &page {
            let entry = parse_entry(row)?;
            below = entry.seq;
            if !search.matches(&entry, row.get(10)?, needle.as_deref()) {
                continue;
            }
            if entries.len() == limit {
                break 'pages entries.last().map(|last| last.seq);
            }
            entries.push(entry);
        }
        if page.len() < ENTRIES_PER_PAGE as usize {
            break (bottom > 1).then_some(bottom);
        }
    };
    Ok(FoundEntries { entries: add_titles(db, entries).await?, next })
}

fn search_statement(search: &AuditSearch, bottom: u64, below: u64) -> (String, Parameters) {
    let mut parameters = Parameters::default();
    let mut narrow = format!("a.seq < {} AND a.seq >= {}", parameters.add(below), parameters.add(bottom));
    for (column, names) in [("event", &search.events), ("actor", &search.actors)] {
        if !names.is_empty() {
            narrow.push_str(&format!(" AND a.{column} IN {}", parameters.add_all(names)));
        }
    }
    if let Some(change) = &search.change {
        narrow.push_str(&format!(" AND a.change_id = {}", parameters.add(change)));
    }
    let sql = format!(
        "SELECT {ENTRY_COLUMNS}, s.needle FROM audit a
         LEFT JOIN changes c ON c.id = a.change_id LEFT JOIN change_search s ON s.no = c.no
         WHERE {narrow} ORDER BY a.seq DESC LIMIT {}",
        parameters.add(ENTRIES_PER_PAGE)
    );
    (sql, parameters)
}

/// Adds the titles of the changes. Their bodies may be large, so only the bodies of matching changes are read.
async fn add_titles<S: Sql>(db: &S, entries: Vec<AuditEntry>) -> Result<Vec<FoundEntry>, StoreError> {
    let mut titles = HashMap::new();
    let ids: BTreeSet<&str> = entries.iter().map(|entry| &*entry.change_id).filter(|id| !id.is_empty()).collect();
    if !ids.is_empty() {
        let mut parameters = Parameters::default();
        let ids = parameters.add_all(ids);
        let sql = format!("SELECT id, {} FROM changes WHERE id IN {ids}", S::DIALECT.title);
        for row in db.rows(&sql, &parameters.values()).await? {
            titles.insert(row.get::<String>(0)?, row.get::<Option<String>>(1)?);
        }
    }
    let titled = |entry: AuditEntry| FoundEntry { title: titles.get(&entry.change_id).cloned().flatten(), entry };
    Ok(entries.into_iter().map(titled).collect())
}

const SELECT_KEYS: &str = "SELECT id, name, role, owner, hash, created_at, revoked_at, created_by FROM api_keys";
/// The keys of a schema that has no creators.
const SELECT_OLD_KEYS: &str = "SELECT id, name, role, owner, hash, created_at, revoked_at, NULL FROM api_keys";

fn key_hash(row: &Row) -> Result<String, StoreError> {
    let mut hasher = PartHasher::new("countersign.key.1");
    for column in 0..3 {
        hasher.add_part(row.get::<&str>(column)?.as_bytes());
    }
    hasher
        .add_optional(row.get(3)?)
        .add_part(row.get(4)?)
        .add_part(row.get::<&str>(5)?.as_bytes())
        .add_optional(row.get(6)?);
    // Keys without a recorded creator have the hash of older versions.
    if let Some(creators) = row.get::<Option<&str>>(7)? {
        hasher.add_part(creators.as_bytes());
    }
    Ok(hasher.finish())
}

/// The accounts and absences that ended with a key.
#[derive(Debug, Default)]
pub struct EndedRights {
    /// The servers of the removed accounts.
    pub accounts: Vec<String>,
    /// The people whose absences ended.
    pub absences: Vec<String>,
}

/// Returns the details of an entry about a key, from the key's current row, with what ended with it.
pub async fn key_details<S: Sql>(db: &S, id: &str, ended: &EndedRights) -> Result<String, StoreError> {
    let row = db.first(&format!("{SELECT_KEYS} WHERE id = ?1"), values![id]).await?;
    let row = row.ok_or_else(|| StoreError::BadRecord(format!("there is no key {id:?}")))?;
    let (name, role, owner): (&str, &str, Option<&str>) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let mut key = json!({ "id": id, "name": name, "role": role, "owner": owner });
    if let Some(creators) = row.get::<Option<&str>>(7)? {
        key["createdBy"] = creators.parse::<Value>().unwrap_or_default();
    }
    let mut details = json!({ "key": key, "row": key_hash(&row)? });
    let EndedRights { accounts, absences } = ended;
    for (member, names) in [("accounts", accounts), ("absences", absences)] {
        if !names.is_empty() {
            details[member] = names.as_slice().into();
        }
    }
    Ok(details.to_string())
}

/// Reads the rows other than changes that the trail covers. In an older schema, keys have no creators.
pub async fn covered_rows<S: Sql>(db: &S, has_key_creators: bool) -> Result<CoveredRows, StoreError> {
    let mut covered_rows = CoveredRows::new();
    let keys = if has_key_creators { SELECT_KEYS } else { SELECT_OLD_KEYS };
    for row in &db.rows(keys, &[]).await? {
        covered_rows.insert(RowName::Key(row.get(0)?), RowState::new(key_hash(row)?));
    }
    let sql =
        "SELECT server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target FROM tool_pins";
    for row in &db.rows(sql, &[]).await? {
        let (server, tool): (&str, &str) = (row.get(0)?, row.get(1)?);
        let columns = [row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?];
        let hash = pin_hash(server, tool, columns);
        covered_rows.insert(RowName::Pin(server.to_owned(), tool.to_owned()), RowState::new(hash));
    }
    for row in db.rows("SELECT server FROM pinned_servers", &[]).await? {
        covered_rows.insert(RowName::Server(row.get(0)?), RowState::default());
    }
    let sql = format!("SELECT id, body, {}, \"over\" FROM standing_rules", S::DIALECT.rule_allows);
    for row in db.rows(&sql, &[]).await? {
        let (hash, allows, has_ended) = (rule_hash(row.get(1)?), row.get(2)?, row.get(3)?);
        covered_rows.insert(RowName::Rule(row.get(0)?), RowState { hash, allows, has_ended });
    }
    for row in db.rows(S::DIALECT.policies, values![NEWEST_POLICY_FACT]).await? {
        let name = row.get::<Option<String>>(0)?.map_or(RowName::NewestPolicy, RowName::NodePolicy);
        covered_rows.insert(name, RowState::new(policy_hash(row.get(1)?)));
    }
    if db.first(S::DIALECT.find_table, values!["absences"]).await?.is_some() {
        for row in db.rows("SELECT person, body FROM absences", &[]).await? {
            covered_rows.insert(RowName::Absence(row.get(0)?), RowState::new(absence_hash(row.get(1)?)));
        }
    }
    Ok(covered_rows)
}
