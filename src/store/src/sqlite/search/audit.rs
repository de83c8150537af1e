//! Reading the audit trail: all of it, from outside and also while its gateway runs, or entries that are looked for.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, params_from_iter, types::Value};

use crate::{
    StoreError,
    rows::signed,
    search::{AuditSearch, FoundEntries, FoundEntry, PAGE, SPAN},
    sqlite::{open::open_reader, rows},
};
use countersign_domain::changes::audit::AuditEntry;

/// Hands every entry to `each`, the oldest first, in one snapshot and in bounded memory.
///
/// # Errors
/// Those of the database, and what `each` answers.
pub(crate) fn read_audit<E: From<StoreError>>(
    dir: &Path,
    mut each: impl FnMut(&AuditEntry) -> Result<(), E>,
) -> Result<(), E> {
    let conn = open_reader(dir)?;
    let snapshot = conn.unchecked_transaction().map_err(StoreError::from)?;
    let mut after = 0;
    loop {
        // The trail has no gaps: these are the next ones, the newest first.
        let page = rows::audit_page(&snapshot, None, Some(after + u64::from(PAGE) + 1), PAGE as usize)?;
        let Some(last) = page.first().map(|entry| entry.seq).filter(|seq| *seq > after) else { return Ok(()) };
        page.iter().rev().filter(|entry| entry.seq > after).try_for_each(&mut each)?;
        after = last;
    }
}

/// The newest entries below `before` that are looked for, at most `limit`.
pub(crate) fn search(
    conn: &Connection,
    search: &AuditSearch,
    before: Option<u64>,
    limit: usize,
) -> Result<FoundEntries, StoreError> {
    let end = rows::heads(conn)?.audit.seq + 1;
    let top = before.map_or(end, |before| before.min(end));
    let bottom = if search.is_scan() { top.saturating_sub(SPAN) } else { 0 };
    let mut values = vec![Value::Integer(signed(top)), Value::Integer(signed(bottom))];
    let mut sql = String::from(
        "SELECT a.seq, a.at, a.change_id, a.event, a.from_state, a.to_state, a.actor, a.details, a.prev_hash, a.hash,
                c.no, s.needle
         FROM audit a LEFT JOIN changes c ON c.id = a.change_id LEFT JOIN change_search s ON s.no = c.no
         WHERE a.seq < ? AND a.seq >= ?",
    );
    for (column, names) in [("event", &search.events), ("actor", &search.actors)] {
        if !names.is_empty() {
            sql.push_str(&format!(" AND a.{column} IN (?{})", ",?".repeat(names.len() - 1)));
            values.extend(names.iter().cloned().map(Value::Text));
        }
    }
    if let Some(change) = &search.change {
        sql.push_str(" AND a.change_id = ?");
        values.push(Value::Text(change.clone()));
    }
    sql.push_str(" ORDER BY a.seq DESC");
    let wanted = search.text.as_ref().map(|text| text.to_lowercase());
    let mut statement = conn.prepare_cached(&sql)?;
    // Bodies may be large: only those of what was found are looked into.
    let mut titles = conn.prepare_cached("SELECT body ->> '$.summary' FROM changes WHERE no = ?1")?;
    let mut found = statement.query(params_from_iter(values))?;
    let mut entries: Vec<FoundEntry> = Vec::new();
    while let Some(row) = found.next()? {
        let entry = rows::audit_entry(row)?;
        let needle = row.get_ref(11)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        if !search.holds(&entry, needle, wanted.as_deref()) {
            continue;
        }
        if entries.len() == limit {
            let next = entries.last().map(|last| last.entry.seq);
            return Ok(FoundEntries { entries, next });
        }
        let title = match row.get::<_, Option<i64>>(10)? {
            Some(no) => titles.query_row([no], |row| row.get(0)).optional()?.flatten(),
            None => None,
        };
        entries.push(FoundEntry { entry, title });
    }
    Ok(FoundEntries { entries, next: (bottom > 1).then_some(bottom) })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{drafts, sqlite::open};

    fn trail(n: u64) -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let conn = open::open_writer(dir.path()).unwrap();
        let draft = drafts::created("chg_A");
        let change = &draft.change;
        conn.execute(
            "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body) VALUES ('chg_A', 1, 'pending', 'p', 9, ?1, ?2)",
            [change.expires_at.to_string(), draft.body.clone()],
        )
        .unwrap();
        conn.execute(
            "INSERT INTO change_search (no, provider, tool, created_ms, needle)
             SELECT no, 'fs', 'write', 0, 'chg_a fs write rotate the keys' FROM changes",
            [],
        )
        .unwrap();
        // In one transaction: nothing here is about what a crash leaves.
        conn.execute_batch("BEGIN").unwrap();
        for seq in 1..=n {
            let (id, event, actor, details) = match seq % 3 {
                0 => ("chg_A", "approved", "alice", r#"{"comment":"Grüße an ALLE"}"#),
                1 => ("chg_gone", "created", "bot", "{}"),
                _ => ("", "definitions_accepted", "bob", r#"{"server":"github"}"#),
            };
            conn.execute(
                "INSERT INTO audit (seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash)
                 VALUES (?1, ?2, ?3, ?4, NULL, '', ?5, ?6, zeroblob(32), zeroblob(32))",
                rusqlite::params![signed(seq), format!("2026-01-01T00:00:{:02}Z", seq % 60), id, event, actor, details],
            )
            .unwrap();
        }
        conn.execute_batch("COMMIT").unwrap();
        (dir, conn)
    }

    fn numbers(conn: &Connection, wanted: &AuditSearch, before: Option<u64>, limit: usize) -> (Vec<u64>, Option<u64>) {
        let FoundEntries { entries, next } = search(conn, wanted, before, limit).unwrap();
        (entries.into_iter().map(|found| found.entry.seq).collect(), next)
    }

    #[test]
    fn entries_are_found_by_what_a_person_remembers_of_them() {
        let (_dir, conn) = trail(9);
        let text = |text: &str| AuditSearch { text: Some(text.into()), ..AuditSearch::default() };
        assert_eq!(numbers(&conn, &text("GRÜSSE"), None, 9).0, Vec::<u64>::new());
        assert_eq!(numbers(&conn, &text("GRÜßE an alle"), None, 9).0, [9, 6, 3]);
        assert_eq!(numbers(&conn, &text("Rotate"), None, 9).0, [9, 6, 3], "by the title of the change");
        assert_eq!(numbers(&conn, &text("github"), None, 9).0, [8, 5, 2]);
        assert_eq!(numbers(&conn, &text("CHG_GONE"), None, 9).0, [7, 4, 1]);
        let by = AuditSearch {
            actors: vec!["bob".into(), "bot".into()],
            events: vec!["created".into()],
            ..AuditSearch::default()
        };
        assert_eq!(numbers(&conn, &by, None, 9).0, [7, 4, 1]);
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).ok();
        let between = AuditSearch { since: at(3), until: at(5), ..AuditSearch::default() };
        assert_eq!(numbers(&conn, &between, None, 9), (vec![4, 3], None));
        let of = AuditSearch { change: Some("chg_A".into()), ..AuditSearch::default() };
        assert_eq!(numbers(&conn, &of, Some(9), 9).0, [6, 3]);
        let all = search(&conn, &AuditSearch::default(), None, 9).unwrap().entries;
        assert!(all[0].title.is_some() && all[1].title.is_none() && all[2].title.is_none(), "{all:?}");
    }

    #[test]
    fn pages_follow_one_another_without_gap_and_a_long_trail_is_searched_in_steps() {
        let (_dir, conn) = trail(SPAN + 30);
        let text = AuditSearch { text: Some("alice".into()), ..AuditSearch::default() };
        let mut seen = Vec::new();
        let (mut before, mut pages) = (None, 0);
        loop {
            let (page, next) = numbers(&conn, &text, before, 10_000);
            seen.extend(page);
            pages += 1;
            before = next;
            if next.is_none() {
                break;
            }
        }
        let expected: Vec<u64> = (1..=SPAN + 30).rev().filter(|seq| seq % 3 == 0).collect();
        assert_eq!(seen, expected);
        assert_eq!(pages, 2);
        let nothing = AuditSearch { text: Some("nobody".into()), ..AuditSearch::default() };
        assert_eq!(numbers(&conn, &nothing, None, 5), (vec![], Some(31)), "one step looks through so much and no more");
        assert_eq!(numbers(&conn, &nothing, Some(31), 5), (vec![], None));
    }
}
