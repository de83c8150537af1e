//! Verifies the audit trail of a SQLite database.

use std::path::Path;

use rusqlite::Connection;

use super::{
    open::open_reader,
    sql::{has_table, run},
    witness::HeadWitness,
};
use crate::{
    StoreError, VerifiedTrail, VerifyError,
    coverage::{COVERAGE_FACT, CoveredRows},
    statements::{facts, trail::covered_rows},
    verify::{self, TrailCoverage},
};
use countersign_domain::changes::audit::AuditHead;

/// Verifies the trail of a data directory in one snapshot and in bounded memory.
///
/// # Errors
/// [`VerifyError::Broken`] at the first contradiction, [`StoreError::CutOff`] if the last entries are lost.
pub(crate) fn verify_audit(dir: &Path, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
    let conn = open_reader(dir)?;
    let verified = verify_connection(&conn, expected)?;
    let is_readable = HeadWitness::check(dir, &conn, verified.head)?;
    Ok(VerifiedTrail { unreadable_witness: !is_readable, ..verified })
}

/// Verifies the trail of an open database.
pub(crate) fn verify_connection(conn: &Connection, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
    let snapshot = conn.unchecked_transaction().map_err(StoreError::from)?;
    let coverage = TrailCoverage {
        rows: read_covered_rows(&snapshot)?,
        covers_old_rows: read_coverage_fact(&snapshot)?.is_some(),
        has_lifecycle_columns: has_lifecycle_columns(&snapshot)?,
    };
    run(verify::verify(&*snapshot, expected, &coverage))
}

/// Returns `true` unless the schema is too old to have the columns of plans, which are the newest that are compared.
fn has_lifecycle_columns(conn: &Connection) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) > 0 FROM pragma_table_info('changes') WHERE name = 'run_after_ms'";
    Ok(conn.query_row(sql, [], |row| row.get(0))?)
}

/// Reads the covered rows. Returns none if the schema is too old to have all their columns.
fn read_covered_rows(conn: &Connection) -> Result<CoveredRows, StoreError> {
    let columns: i64 = conn.query_row(
        "SELECT (SELECT count(*) FROM pragma_table_info('api_keys') WHERE name = 'owner')
              + (SELECT count(*) FROM pragma_table_info('tool_pins') WHERE name = 'accepted_target')
              + (SELECT count(*) FROM pragma_table_info('standing_rules') WHERE name = 'body')
              + (SELECT count(*) FROM pragma_table_info('api_keys') WHERE name = 'created_by')",
        [],
        |row| row.get(0),
    )?;
    if columns >= 3 { run(covered_rows(conn, columns == 4)) } else { Ok(CoveredRows::new()) }
}

fn read_coverage_fact(conn: &Connection) -> Result<Option<String>, StoreError> {
    if has_table(conn, "facts")? { run(facts::get(conn, COVERAGE_FACT)) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        CoveredCounts, PolicySnapshot, PrunedChange, Pruning, PruningCutoffs, Store as _, StoreBackend as _,
        WriteError, WriteRequest,
        drafts::{created_draft, draft_for, updated_draft, write},
        keys::{ApiKey, Credentials as _},
        people::People as _,
        sqlite::{
            SqliteStore,
            open::{create_with_migrations, open_writer},
        },
    };
    use countersign_domain::{
        changes::{Absence, AbsentPerson, Change, ChangeState, PlanStep, retention::redact, testing::change},
        principal::{Principal, Role},
    };

    fn key(id: &str) -> ApiKey {
        ApiKey {
            id: id.into(),
            name: "alice".into(),
            role: Role::Viewer,
            owner: None,
            created_by: Vec::new(),
            created_at: "2027-01-01T00:00:00Z".parse().unwrap(),
            last_used_at: None,
            revoked_at: None,
        }
    }

    fn verification_error(dir: &std::path::Path) -> String {
        match verify_audit(dir, None) {
            Err(VerifyError::Broken(broken)) => broken.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tampered_keys_are_detected_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let keys = crate::sqlite::open_keys(dir.path()).unwrap();
        keys.insert(&key("k1"), &[1; 32]).unwrap();
        keys.insert(&key("k2"), &[2; 32]).unwrap();
        keys.revoke("k2", Timestamp::now()).unwrap();
        keys.touch(&key("k1"), Timestamp::now()).unwrap();
        assert_eq!(
            verify_audit(dir.path(), None).unwrap().covered,
            CoveredCounts { keys: 2, ..CoveredCounts::default() }
        );
        let conn = open_writer(dir.path()).unwrap();
        for (alter, restore, expected) in [
            (
                "UPDATE api_keys SET role = 'admin' WHERE id = 'k1'",
                "UPDATE api_keys SET role = 'viewer' WHERE id = 'k1'",
                "key k1 does not match audit entry 1",
            ),
            (
                "UPDATE api_keys SET owner = 'bob' WHERE id = 'k1'",
                "UPDATE api_keys SET owner = NULL WHERE id = 'k1'",
                "key k1 does not match audit entry 1",
            ),
            (
                "UPDATE api_keys SET created_by = '[\"bob\"]' WHERE id = 'k1'",
                "UPDATE api_keys SET created_by = NULL WHERE id = 'k1'",
                "key k1 does not match audit entry 1",
            ),
            ("UPDATE api_keys SET revoked_at = NULL WHERE id = 'k2'", "", "key k2 does not match audit entry 3"),
        ] {
            let before: Option<String> =
                conn.query_row("SELECT revoked_at FROM api_keys WHERE id = 'k2'", [], |row| row.get(0)).unwrap();
            conn.execute(alter, []).unwrap();
            assert_eq!(verification_error(dir.path()), expected, "{alter}");
            if !restore.is_empty() {
                conn.execute(restore, []).unwrap();
            }
            conn.execute("UPDATE api_keys SET revoked_at = ?1 WHERE id = 'k2'", [before]).unwrap();
            assert!(verify_audit(dir.path(), None).is_ok(), "{restore}");
        }
        conn.execute("INSERT INTO api_keys SELECT 'k3', name, role, x'03', created_at, NULL, NULL, owner, created_by FROM api_keys WHERE id = 'k1'", []).unwrap();
        assert_eq!(verification_error(dir.path()), "key k3 has no audit entry");
        conn.execute("DELETE FROM api_keys WHERE id IN ('k1', 'k3')", []).unwrap();
        assert_eq!(verification_error(dir.path()), "key k1 of audit entry 1 is gone");
    }

    #[test]
    fn tampered_absences_are_detected_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let keys = crate::sqlite::open_keys(dir.path()).unwrap();
        let person = AbsentPerson::from_principal(&Principal::new("Alice", Role::Reviewer));
        let (since, until) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        keys.put_absence(&Absence { person, deputy: "bob".into(), since, until }).unwrap();
        let conn = open_writer(dir.path()).unwrap();
        conn.execute("UPDATE absences SET body = replace(body, 'bob', 'mallory')", []).unwrap();
        assert_eq!(verification_error(dir.path()), "the absence of alice does not match audit entry 1");
        conn.execute("UPDATE absences SET body = replace(body, 'mallory', 'bob')", []).unwrap();
        conn.execute("INSERT INTO absences SELECT 'carol', body FROM absences", []).unwrap();
        assert_eq!(verification_error(dir.path()), "the absence of carol has no audit entry");
        conn.execute("DELETE FROM absences", []).unwrap();
        assert_eq!(verification_error(dir.path()), "the absence of alice of audit entry 1 is gone");
        conn.execute("DROP TABLE absences", []).unwrap();
        assert_eq!(verification_error(dir.path()), "the absence of alice of audit entry 1 is gone");
    }

    #[tokio::test]
    async fn tampered_columns_of_changes_are_detected() {
        use ChangeState::{Approved, Pending, Rejected};
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let plan = PlanStep { id: "plan_a".into(), title: "Move".into(), reason: None, index: 0, last: true };
        let step = |version, state| Change { plan: Some(plan.clone()), ..change("step", "agent", version, state) };
        let approved = Change { run_after: Some(Timestamp::UNIX_EPOCH), ..step(2, Approved) };
        for draft in [
            draft_for(step(1, Pending), None),
            draft_for(approved, Some(Pending)),
            created_draft("done"),
            updated_draft("done", 2, Pending, Rejected),
        ] {
            write(&store, draft).await.unwrap();
        }
        store.close();
        verify_audit(dir.path(), None).unwrap();
        let conn = open_writer(dir.path()).unwrap();
        for (id, column, wrong) in [
            ("step", "finished_at", "1"),
            ("done", "finished_at", "1"),
            ("done", "finished_at", "NULL"),
            ("step", "redacted", "1"),
            ("done", "redacted", "1"),
            ("step", "plan_id", "NULL"),
            ("done", "plan_id", "'plan_a'"),
            ("step", "plan_index", "1"),
            ("step", "plan_last", "0"),
            ("step", "run_after_ms", "NULL"),
        ] {
            let select = format!("SELECT {column} FROM changes WHERE id = ?1");
            let original: rusqlite::types::Value = conn.query_row(&select, [id], |row| row.get(0)).unwrap();
            conn.execute(&format!("UPDATE changes SET {column} = {wrong} WHERE id = ?1"), [id]).unwrap();
            let error = verification_error(dir.path());
            assert!(error.starts_with(&format!("a column of change {id} (")), "{column} = {wrong}: {error}");
            let restore = format!("UPDATE changes SET {column} = ?1 WHERE id = ?2");
            conn.execute(&restore, rusqlite::params![original, id]).unwrap();
            assert!(verify_audit(dir.path(), None).is_ok(), "{restore}");
        }
    }

    #[tokio::test]
    async fn open_change_with_forged_end_is_not_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let draft = created_draft("open");
        let at = Timestamp::MAX;
        let (id, version, state) = ("open".to_owned(), 1, ChangeState::Pending);
        let body = serde_json::to_string(&redact(&draft.change, at)).unwrap();
        write(&store, draft).await.unwrap();
        open_writer(dir.path()).unwrap().execute("UPDATE changes SET finished_at = 1", []).unwrap();
        let cutoffs = PruningCutoffs { contents: Some(at), changes: Some(at), ..PruningCutoffs::default() };
        let found = store.find_prunable(cutoffs).await.unwrap();
        assert!(found.contents.is_empty() && found.changes.is_empty() && !found.more, "{found:?}");
        // Nor is it pruned on request.
        let details = "{}".to_owned();
        let pruning = Pruning {
            at,
            changes: [Some(body), None]
                .map(|body| PrunedChange { id: id.clone(), version, state, body, details: details.clone() })
                .into(),
            events_to: 0,
            events_details: details,
        };
        let refused = crate::write(&store, WriteRequest::Prune(pruning)).await;
        assert!(matches!(refused, Err(WriteError::Conflict)), "{refused:?}");
        assert!(store.get("open").await.unwrap().unwrap().redacted.is_none());
        store.close();
    }

    #[tokio::test]
    async fn recorded_policy_is_verified_against_trail() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let policy = |digest: &str| PolicySnapshot { digest: digest.into(), refused: None, body: "strict".into() };
        store.save_policy(policy("one"), false).await.unwrap();
        store.save_policy(policy("two"), false).await.unwrap();
        store.close();
        let covered = verify_audit(dir.path(), None).unwrap().covered;
        assert_eq!(covered, CoveredCounts { policy: true, ..CoveredCounts::default() });
        let conn = open_writer(dir.path()).unwrap();
        for alter in [
            "UPDATE facts SET value = replace(value, 'strict', 'loose')",
            "UPDATE facts SET value = replace(value, 'two', 'one')",
        ] {
            let sql = format!("{alter} WHERE name = 'policy_in_force'");
            let original: String =
                conn.query_row("SELECT value FROM facts WHERE name = 'policy_in_force'", [], |row| row.get(0)).unwrap();
            assert_eq!(conn.execute(&sql, []).unwrap(), 1);
            assert_eq!(
                verification_error(dir.path()),
                "the recorded policy in force does not match audit entry 2",
                "{alter}"
            );
            conn.execute("UPDATE facts SET value = ?1 WHERE name = 'policy_in_force'", [original]).unwrap();
        }
        conn.execute("DELETE FROM facts WHERE name = 'policy_in_force'", []).unwrap();
        assert_eq!(verification_error(dir.path()), "the recorded policy in force of audit entry 2 is gone");
        // A policy that an older version recorded has no entry until a gateway saves it again.
        let old = "{\"digest\":\"d\",\"refused\":null,\"body\":\"b\"}";
        conn.execute("DELETE FROM audit", []).unwrap();
        conn.execute("INSERT INTO facts VALUES ('policy_in_force', ?1)", [old]).unwrap();
        assert_eq!(
            verify_audit(dir.path(), None).unwrap().covered,
            CoveredCounts { uncovered: 1, ..CoveredCounts::default() }
        );
        let _ = std::fs::remove_file(dir.path().join("audit.head"));
        let store = SqliteStore::open(dir.path()).unwrap();
        let found = store.policies().await.unwrap();
        assert!(!found.has_audit_entry);
        store.save_policy(found.own.unwrap(), false).await.unwrap();
        assert!(store.policies().await.unwrap().has_audit_entry);
        store.close();
        let covered = verify_audit(dir.path(), None).unwrap().covered;
        assert_eq!(covered, CoveredCounts { policy: true, ..CoveredCounts::default() });
    }

    #[test]
    fn rows_before_coverage_are_anchored_at_migration() {
        let dir = tempfile::tempdir().unwrap();
        let conn = create_with_migrations(dir.path(), 8);
        conn.execute_batch(
            "INSERT INTO api_keys (id, name, role, hash, created_at) VALUES ('old', 'alice', 'admin', x'01', '2026-01-01T00:00:00Z');
             INSERT INTO pinned_servers VALUES ('fs');
             INSERT INTO tool_pins (server, tool, seen) VALUES ('fs', 'read', 'h1')",
        )
        .unwrap();
        drop(conn);
        // The database is not migrated yet.
        let verified = verify_audit(dir.path(), None).unwrap();
        assert_eq!(verified.covered, CoveredCounts { keys: 1, pins: 1, uncovered: 2, ..CoveredCounts::default() });
        let conn = open_writer(dir.path()).unwrap();
        let verified = verify_audit(dir.path(), None).unwrap();
        assert_eq!(
            (verified.entries, verified.covered),
            (1, CoveredCounts { keys: 1, pins: 1, ..CoveredCounts::default() })
        );
        drop(open_writer(dir.path()).unwrap());
        assert_eq!(verify_audit(dir.path(), None).unwrap().entries, 1, "the rows are anchored only once");
        conn.execute(
            "UPDATE tool_pins SET accepted = 'h1', accepted_by = 'alice', accepted_at = '2026-01-01T00:00:00Z'",
            [],
        )
        .unwrap();
        assert!(
            verification_error(dir.path())
                .contains("the pinned definition of tool read of server fs does not match audit entry 1")
        );
        conn.execute("DELETE FROM tool_pins", []).unwrap();
        assert!(verification_error(dir.path()).contains("is gone"));
    }
}
