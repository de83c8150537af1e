//! Tests of failures that only a database in a file has: a full disk, a foreign lock, failed commits and altered
//! files.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use jiff::Timestamp;
use rusqlite::{Connection, ffi};

use super::{verify::verify_audit, *};
use crate::{
    PrunedChange, Pruning, Store as _, TransitionDraft, VerifyError, WriteError, WriteRequest,
    drafts::{created_draft, draft_for, submit, updated_draft, write},
};
use countersign_domain::changes::{ChangeState, audit::TrailError, testing::change};
use countersign_runtime::data_dir::lock_data_dir;

const COMMIT_NORMALLY: u8 = 0;
/// The commit fails, and writes nothing.
const FAIL_UNWRITTEN: u8 = 1;
/// The commit fails, but its writes are durable.
const FAIL_WRITTEN: u8 = 2;
/// The database cannot grow any more, from the next transaction on.
const FILL_DISK: u8 = 3;
/// The writer waits only briefly for locks, from the next transaction on.
const SHORTEN_LOCK_WAIT: u8 = 4;

fn faulty_store(dir: &Path) -> (Arc<SqliteStore>, Arc<AtomicU8>) {
    let mode = Arc::new(AtomicU8::new(COMMIT_NORMALLY));
    let commit_mode = Arc::clone(&mode);
    let commit = Box::new(move |conn: &Connection| {
        let commit_now = || conn.execute_batch("COMMIT");
        let failure = || Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None));
        match commit_mode.swap(COMMIT_NORMALLY, Ordering::SeqCst) {
            FAIL_UNWRITTEN => failure(),
            FAIL_WRITTEN => commit_now().and_then(|()| failure()),
            FILL_DISK => {
                commit_now()?;
                let pages: i64 = conn.query_row("PRAGMA page_count", [], |r| r.get(0))?;
                conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
            }
            SHORTEN_LOCK_WAIT => commit_now().and_then(|()| conn.busy_timeout(std::time::Duration::from_millis(5))),
            _ => commit_now(),
        }
    });
    (Arc::new(SqliteStore::open_with(dir, commit).unwrap()), mode)
}

fn large_draft(id: &str) -> TransitionDraft {
    let mut large = change(id, "agent", 1, ChangeState::Pending);
    large.summary = "x".repeat(1 << 20);
    draft_for(large, None)
}

#[tokio::test]
async fn failed_commit_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mode) = faulty_store(dir.path());
    write(&*store, created_draft("a")).await.unwrap();

    mode.store(FAIL_WRITTEN, Ordering::SeqCst);
    let written = write(&*store, updated_draft("a", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    assert_eq!(written.seq, 2, "the commit is durable, so the write succeeds");

    mode.store(FAIL_UNWRITTEN, Ordering::SeqCst);
    let lost = write(&*store, updated_draft("a", 3, ChangeState::Approved, ChangeState::Executing)).await;
    let Err(WriteError::Store(error)) = lost else { panic!("{lost:?}") };
    assert!(error.is_certainly_aborted(), "{error}");
    assert_eq!(store.get("a").await.unwrap().unwrap().version, 2);

    // The numbers continue without a gap, and the chain is valid.
    let again = write(&*store, updated_draft("a", 3, ChangeState::Approved, ChangeState::Executing)).await.unwrap();
    assert_eq!(again.seq, 3);
    store.close();
    assert_eq!(verify_audit(dir.path(), None).unwrap().entries, 3);
}

#[tokio::test]
async fn full_disk_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mode) = faulty_store(dir.path());
    write(&*store, created_draft("a")).await.unwrap();
    mode.store(FILL_DISK, Ordering::SeqCst);
    write(&*store, created_draft("b")).await.unwrap();
    let answers: Vec<_> = ["c", "d", "e"].into_iter().map(|id| submit(&*store, large_draft(id))).collect();
    for answer in answers {
        let refused = answer.await.unwrap();
        let Err(WriteError::Store(StoreError::DiskFull)) = refused else { panic!("{refused:?}") };
    }
    assert!(store.is_open());
    assert!(matches!(store.current_error(), Some(StoreError::DiskFull)));
    assert!(store.get("c").await.unwrap().is_none());
    assert_eq!(store.heads().await.unwrap().event, 2);
    store.close();
    drop(store);
    // With free space again, the store continues.
    let store = SqliteStore::open(dir.path()).unwrap();
    assert_eq!(write(&store, large_draft("c")).await.unwrap().seq, 3);
    store.close();
    assert_eq!(verify_audit(dir.path(), None).unwrap().changes, 3);
}

#[tokio::test]
async fn writes_after_a_failed_pruning_overwrite_no_free_pages() {
    let dir = tempfile::tempdir().unwrap();
    let overwrites = Arc::new(AtomicBool::new(true));
    let at_commit = Arc::clone(&overwrites);
    let commit = Box::new(move |conn: &Connection| {
        at_commit.store(conn.query_row("PRAGMA secure_delete", [], |row| row.get(0))?, Ordering::SeqCst);
        conn.execute_batch("COMMIT")
    });
    let store = SqliteStore::open_with(dir.path(), commit).unwrap();
    let other = open::open_writer(dir.path()).unwrap();
    other.execute_batch("ALTER TABLE changes RENAME TO away").unwrap();
    let details = "{}".to_owned();
    let (id, state) = ("a".to_owned(), ChangeState::Rejected);
    let deleted = PrunedChange { id, version: 1, state, body: None, details: details.clone() };
    let pruning = Pruning { at: Timestamp::MAX, changes: vec![deleted], events_to: 0, events_details: details };
    let failed = crate::write(&store, WriteRequest::Prune(pruning)).await;
    assert!(matches!(failed, Err(WriteError::Store(_))), "{failed:?}");
    other.execute_batch("ALTER TABLE away RENAME TO changes").unwrap();
    write(&store, created_draft("a")).await.unwrap();
    assert!(!overwrites.load(Ordering::SeqCst));
}

#[tokio::test]
async fn lock_of_another_process_is_reported_after_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mode) = faulty_store(dir.path());
    mode.store(SHORTEN_LOCK_WAIT, Ordering::SeqCst);
    write(&*store, created_draft("a")).await.unwrap();
    let other = open::open_writer(dir.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = write(&*store, created_draft("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Locked))), "{refused:?}");
    assert!(store.get("a").await.unwrap().is_some(), "reads still succeed");
    assert!(matches!(store.current_error(), Some(StoreError::Locked)));
    other.execute_batch("ROLLBACK").unwrap();
    // The store detects that the lock is free, although nobody writes.
    while store.current_error().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(write(&*store, created_draft("b")).await.unwrap().seq, 2);
}

#[tokio::test]
async fn writes_to_deleted_or_replaced_database_are_refused() {
    for is_replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = open::database_path(dir.path());
        let store = SqliteStore::open(dir.path()).unwrap();
        write(&store, created_draft("kept")).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        if is_replaced {
            std::fs::write(&path, "").unwrap();
        }
        let refused = write(&store, created_draft("lost")).await;
        assert!(matches!(refused, Err(WriteError::Store(StoreError::Replaced(_)))), "{refused:?}");
        assert!(matches!(store.current_error(), Some(StoreError::Replaced(_))));
    }
}

#[tokio::test]
async fn writes_after_the_log_was_deleted_are_refused() {
    for is_link in [false, true] {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = open::database_path(dir.path());
        let log = |database: &Path| database.with_extension("db-wal");
        let mut database = path.clone();
        if is_link {
            database = other.path().join("linked.db");
            std::os::unix::fs::symlink(&database, &path).unwrap();
            // A log that nobody uses.
            std::fs::write(log(&path), "").unwrap();
        }
        let store = SqliteStore::open(dir.path()).unwrap();
        if is_link {
            std::fs::remove_file(log(&path)).unwrap();
        }
        write(&store, created_draft("kept")).await.unwrap();
        std::fs::remove_file(log(&database)).unwrap();
        let refused = write(&store, created_draft("refused")).await;
        assert!(matches!(refused, Err(WriteError::Store(StoreError::LogReplaced(_)))), "{refused:?}");
        assert!(matches!(store.current_error(), Some(StoreError::LogReplaced(_))));
    }
}

#[tokio::test]
async fn writes_after_the_lock_file_was_deleted_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _lock = lock_data_dir(dir.path()).unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    write(&store, created_draft("kept")).await.unwrap();
    std::fs::remove_file(open::lock_path(dir.path())).unwrap();
    let _lock_of_another_gateway = lock_data_dir(dir.path()).unwrap();
    let refused = write(&store, created_draft("refused")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::LockReplaced(_)))), "{refused:?}");
    assert_eq!(store.current_error().map(|error| error.readiness_reason()), Some("locked"));
}

#[tokio::test]
async fn database_file_may_be_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = open::database_path(dir.path());
    let store = SqliteStore::open(dir.path()).unwrap();
    std::fs::rename(&path, dir.path().join("away")).unwrap();
    assert!(write(&store, created_draft("refused")).await.is_err());
    std::fs::rename(dir.path().join("away"), &path).unwrap();
    write(&store, created_draft("stored")).await.unwrap();
    assert!(store.current_error().is_none());
}

#[tokio::test]
async fn deleted_database_is_noticed_without_writes() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    std::fs::remove_file(open::database_path(dir.path())).unwrap();
    while store.current_error().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(matches!(store.current_error(), Some(StoreError::Replaced(_))));
}

#[tokio::test]
async fn tampering_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    for id in ["a", "b", "c"] {
        write(&store, created_draft(id)).await.unwrap();
    }
    let head = store.heads().await.unwrap().audit;
    let running = verify_audit(dir.path(), Some(head)).unwrap();
    assert_eq!((running.entries, running.changes), (3, 3), "verification works while the store is open");
    store.close();
    let tamper = |sql: &str| {
        let conn = open::open_writer(dir.path()).unwrap();
        let tx = conn.unchecked_transaction().unwrap();
        tx.execute_batch(sql).unwrap();
        tx.commit().unwrap();
        let Err(VerifyError::Broken(broken)) = verify_audit(dir.path(), Some(head)) else { panic!("{sql}") };
        broken
    };
    let undo = |sql: &str| open::open_writer(dir.path()).unwrap().execute_batch(sql).unwrap();

    assert_eq!(tamper("UPDATE audit SET actor = 'mallory' WHERE seq = 2"), TrailError::Altered { seq: 2 });
    undo("UPDATE audit SET actor = 'alice' WHERE seq = 2");
    let altered = tamper("UPDATE changes SET body = replace(body, '1.50', '1.51') WHERE id = 'b'");
    assert_eq!(altered, TrailError::ChangeAltered { id: "b".into(), seq: 2 });
    undo("UPDATE changes SET body = replace(body, '1.51', '1.50') WHERE id = 'b'");
    let altered = tamper("UPDATE changes SET state = 'approved' WHERE id = 'b'");
    assert_eq!(altered, TrailError::ChangeAltered { id: "b".into(), seq: 2 });
    undo("UPDATE changes SET state = 'pending' WHERE id = 'b'");
    verify_audit(dir.path(), Some(head)).unwrap();
    assert_eq!(
        tamper(
            "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body)
             SELECT 'x', version, state, principal, bytes, expires_at, body FROM changes WHERE id = 'a'"
        ),
        TrailError::ChangeUnknown { id: "x".into() }
    );
    undo("DELETE FROM changes WHERE id = 'x'");
    assert_eq!(tamper("DELETE FROM changes WHERE id = 'c'"), TrailError::ChangeGone { id: "c".into(), seq: 3 });
    assert_eq!(tamper("DELETE FROM audit WHERE seq = 3"), TrailError::Truncated { seq: 2, expected: 3 });
}

#[tokio::test]
async fn truncated_database_is_refused_until_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = open::database_path(dir.path());
    let open = || SqliteStore::open(dir.path());
    let store = open().unwrap();
    write(&store, created_draft("a")).await.unwrap();
    store.close();
    let old = std::fs::read(&path).unwrap();
    let store = open().unwrap();
    write(&store, created_draft("b")).await.unwrap();
    store.close();
    open().unwrap().close();

    std::fs::write(&path, &old).unwrap();
    let refused = open().map(drop);
    let Err(StoreError::CutOff { path: witness, found: 1, expected: 2 }) = refused else { panic!("{refused:?}") };
    assert_eq!(std::fs::read(&path).unwrap(), old, "the database is unchanged");
    // A database with the same number of entries, but different ones, is refused too.
    let other = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(other.path()).unwrap();
    write(&store, created_draft("x")).await.unwrap();
    write(&store, created_draft("y")).await.unwrap();
    store.close();
    std::fs::copy(open::database_path(other.path()), &path).unwrap();
    assert!(matches!(open().map(drop), Err(StoreError::CutOff { .. })));

    std::fs::write(&path, &old).unwrap();
    std::fs::remove_file(witness).unwrap();
    let store = open().unwrap();
    assert_eq!(write(&store, created_draft("c")).await.unwrap().seq, 2);
}

#[tokio::test]
async fn trail_without_its_last_entries_does_not_verify() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    write(&store, created_draft("a")).await.unwrap();
    store.close();
    verify_audit(dir.path(), None).unwrap();
    std::fs::write(open::database_path(dir.path()), "").unwrap();
    drop(open::open_writer(dir.path()).unwrap());
    let refused = verify_audit(dir.path(), None);
    let Err(VerifyError::Store(StoreError::CutOff { found: 0, expected: 1, .. })) = refused else {
        panic!("{refused:?}")
    };
}

#[tokio::test]
async fn backup_may_replace_newer_database() {
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("copy");
    let store = SqliteStore::open(dir.path()).unwrap();
    write(&store, created_draft("a")).await.unwrap();
    backup::backup(dir.path(), &to, false, jiff::Timestamp::now()).unwrap();
    write(&store, created_draft("b")).await.unwrap();
    store.close();
    std::fs::copy(&to, open::database_path(dir.path())).unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    assert!(store.backup_time().await.unwrap().is_some());
    assert!(store.get("b").await.unwrap().is_none());
}

#[test]
fn damaged_pages_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    SqliteStore::open(dir.path()).unwrap().close();
    let path = open::database_path(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    for byte in bytes.iter_mut().skip(4096) {
        *byte = 0xa5;
    }
    std::fs::write(&path, bytes).unwrap();
    let refused = SqliteStore::open(dir.path()).map(drop);
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
}
