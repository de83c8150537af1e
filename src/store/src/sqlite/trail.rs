//! Appends to the audit trail in SQLite, and reads it.

use std::{io, path::Path};

use jiff::Timestamp;
use rusqlite::Connection;

use super::{
    open::open_reader,
    rows::heads,
    sql::{execute, run},
};
use crate::{
    ReadAuditError, StoreError,
    coverage::{COVERAGE_FACT, RECORDS_ANCHORED, anchor_details},
    statements::{facts, trail as statements},
    values,
};
use countersign_domain::changes::{
    audit::{AuditEntry, AuditHead, EntryContent},
    machine::SYSTEM,
};

/// Passes every entry to `each` ([`statements::for_each_entry`]).
///
/// # Errors
/// Those of the database, and those of `each`.
pub(crate) fn read_audit(
    dir: &Path,
    each: &mut dyn FnMut(&AuditEntry) -> io::Result<()>,
) -> Result<(), ReadAuditError> {
    run(statements::for_each_entry(&open_reader(dir)?, each))
}

/// Appends an entry after `head`, within the caller's transaction. Returns the new head.
pub(crate) fn append(conn: &Connection, head: AuditHead, content: EntryContent<'_>) -> Result<AuditHead, StoreError> {
    let hash = content.hash(&head.hash);
    let sql = "INSERT INTO audit (seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let EntryContent { seq, at, change_id, event, from, to, actor, details } = content;
    execute(conn, sql, values![seq, at, change_id, event, from, to, actor, details, &head.hash, &hash])?;
    Ok(AuditHead { seq, hash })
}

/// Writes the entry that covers all existing rows, within a migration, unless the trail already covers them.
pub(crate) fn anchor_existing_rows(conn: &Connection) -> Result<(), StoreError> {
    let pending = run(facts::get(conn, COVERAGE_FACT))?;
    if pending.as_deref() != Some("pending") {
        return Ok(());
    }
    let covered_rows = run(statements::covered_rows(conn, true))?;
    if !covered_rows.is_empty() {
        append_entry(conn, RECORDS_ANCHORED, SYSTEM, &anchor_details(&covered_rows))?;
    }
    conn.execute("UPDATE facts SET value = 'yes' WHERE name = ?1", [COVERAGE_FACT])?;
    Ok(())
}

/// Appends an entry about no change, within the caller's transaction.
pub(crate) fn append_entry(
    conn: &Connection,
    event: &'static str,
    actor: &str,
    details: &str,
) -> Result<(), StoreError> {
    let at = Timestamp::now().to_string();
    let head = heads(conn)?.audit;
    let content = EntryContent { seq: head.seq + 1, at: &at, change_id: "", event, from: None, to: "", actor, details };
    append(conn, head, content)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        coverage::POLICY_RECORDED,
        drafts,
        pins::{PinWrite, row_hash},
        rows::signed,
        search::{AuditSearch, FoundEntries, MAX_SEARCHED_ENTRIES},
        sqlite::open,
        statements::pins,
    };
    use countersign_domain::policy::pins::{Acceptance, AcceptedReads, ToolPin};

    fn database_with_entries(n: u64) -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let conn = open::open_writer(dir.path()).unwrap();
        let draft = drafts::created_draft("chg_A");
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
        // One transaction makes the inserts fast.
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

    fn search_numbers(
        conn: &Connection,
        criteria: &AuditSearch,
        before: Option<u64>,
        limit: usize,
    ) -> (Vec<u64>, Option<u64>) {
        let FoundEntries { entries, next } = run(statements::search(conn, criteria, before, limit)).unwrap();
        (entries.into_iter().map(|found| found.entry.seq).collect(), next)
    }

    #[test]
    fn audit_search_matches_all_criteria() {
        let (_dir, conn) = database_with_entries(9);
        let text = |text: &str| AuditSearch { text: Some(text.into()), ..AuditSearch::default() };
        assert_eq!(search_numbers(&conn, &text("GRÜSSE"), None, 9).0, Vec::<u64>::new());
        assert_eq!(search_numbers(&conn, &text("GRÜßE an alle"), None, 9).0, [9, 6, 3]);
        assert_eq!(
            search_numbers(&conn, &text("Rotate"), None, 9).0,
            [9, 6, 3],
            "the search text of the change matches"
        );
        assert_eq!(search_numbers(&conn, &text("github"), None, 9).0, [8, 5, 2]);
        assert_eq!(search_numbers(&conn, &text("CHG_GONE"), None, 9).0, [7, 4, 1]);
        let by_actor = AuditSearch {
            actors: vec!["bob".into(), "bot".into()],
            events: vec!["created".into()],
            ..AuditSearch::default()
        };
        assert_eq!(search_numbers(&conn, &by_actor, None, 9).0, [7, 4, 1]);
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).ok();
        let between = AuditSearch { since: at(3), until: at(5), ..AuditSearch::default() };
        assert_eq!(search_numbers(&conn, &between, None, 9), (vec![4, 3], None));
        let of_change = AuditSearch { change: Some("chg_A".into()), ..AuditSearch::default() };
        assert_eq!(search_numbers(&conn, &of_change, Some(9), 9).0, [6, 3]);
        let all = run(statements::search(&conn, &AuditSearch::default(), None, 9)).unwrap().entries;
        assert!(all[0].title.is_some() && all[1].title.is_none() && all[2].title.is_none(), "{all:?}");
    }

    #[test]
    fn long_trail_is_searched_in_bounded_pages() {
        let (_dir, conn) = database_with_entries(MAX_SEARCHED_ENTRIES + 30);
        let text = AuditSearch { text: Some("alice".into()), ..AuditSearch::default() };
        let mut seen = Vec::new();
        let (mut before, mut pages) = (None, 0);
        loop {
            let (page, next) = search_numbers(&conn, &text, before, 10_000);
            seen.extend(page);
            pages += 1;
            before = next;
            if next.is_none() {
                break;
            }
        }
        let expected: Vec<u64> = (1..=MAX_SEARCHED_ENTRIES + 30).rev().filter(|seq| seq % 3 == 0).collect();
        assert_eq!(seen, expected);
        assert_eq!(pages, 2);
        let nothing = AuditSearch { text: Some("nobody".into()), ..AuditSearch::default() };
        assert_eq!(
            search_numbers(&conn, &nothing, None, 5),
            (vec![], Some(31)),
            "one page searches at most MAX_SEARCHED_ENTRIES"
        );
        assert_eq!(search_numbers(&conn, &nothing, Some(31), 5), (vec![], None));
    }

    #[test]
    fn reading_the_trail_holds_no_snapshot() {
        let (dir, conn) = database_with_entries(3);
        let mut numbers = Vec::new();
        let read = read_audit(dir.path(), &mut |entry| {
            if numbers.is_empty() {
                append_entry(&conn, POLICY_RECORDED, SYSTEM, "{}").unwrap();
                let is_busy: bool = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
                assert!(!is_busy, "the log is emptied while the reader waits");
            }
            numbers.push(entry.seq);
            Ok(())
        });
        read.unwrap();
        assert_eq!(numbers, [1, 2, 3], "the entry that was appended meanwhile is left out");
    }

    #[test]
    fn pin_hash_is_the_same_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let conn = crate::sqlite::open::open_writer(dir.path()).unwrap();
        let at = "2027-01-01T00:00:00.5Z".parse().unwrap();
        let accepted = |reads| Acceptance {
            hash: "h2".into(),
            by: "alice".into(),
            at,
            server_fingerprint: Some("t".into()),
            reads,
        };
        for accepted in [
            None,
            Some(accepted(AcceptedReads::None)),
            Some(accepted(AcceptedReads::All)),
            Some(accepted(AcceptedReads::Sql)),
        ] {
            let pin = ToolPin { seen: Some("h1".into()), accepted, text: Some("{}".into()) };
            let write = PinWrite { tool: "read".into(), pin };
            run(pins::store(&conn, "fs", std::slice::from_ref(&write), false)).unwrap();
            let found = run(statements::covered_rows(&conn, true)).unwrap();
            let pin = crate::coverage::RowName::Pin("fs".into(), "read".into());
            assert_eq!(found[&pin].hash, row_hash("fs", &write));
        }
    }
}
