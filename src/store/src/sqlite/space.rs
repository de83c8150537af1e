//! Gives the room of what was pruned back to the file system: SQLite keeps free pages for later unless it is told not to.

use std::path::Path;

use rusqlite::Connection;

use super::open::database_path;
use crate::StoreError;

/// Free pages that are kept for what comes next.
const SPARE_PAGES: i64 = 1024;
/// Pages given back at a time: a write that comes meanwhile waits for so much.
const PAGES_PER_STEP: i64 = 2048;
/// Makes a database from before this one that can give room back; at the start of the gateway, which takes a moment
/// for a large one. Where there is no room for the copy that this needs, it stays as it is until another start.
pub(super) fn prepare(conn: &Connection, dir: &Path) -> Result<(), StoreError> {
    let mode: i64 = conn.query_row("PRAGMA auto_vacuum", [], |row| row.get(0))?;
    if mode != 0 {
        return Ok(());
    }
    let path = database_path(dir);
    let size = std::fs::metadata(&path).map_or(0, |file| file.len());
    let free = rustix::fs::statvfs(dir).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if free / 3 < size {
        tracing::warn!(size, free, "there is no room to rewrite the database, which gives no room back until then");
        return Ok(());
    }
    tracing::info!(size, path = %path.display(), "rewriting the database, so that it can give room back");
    let rewritten = conn.pragma_update(None, "auto_vacuum", "INCREMENTAL").and_then(|()| conn.execute_batch("VACUUM"));
    if let Err(error) = rewritten {
        tracing::warn!(%error, "the database could not be rewritten, and gives no room back; the next start tries again");
    }
    Ok(())
}

/// Gives one step of free pages back, if there are many. Must run outside a transaction.
pub(super) fn give_back(conn: &Connection) -> rusqlite::Result<()> {
    let free: i64 = conn.query_row("PRAGMA freelist_count", [], |row| row.get(0))?;
    if free > SPARE_PAGES {
        let mut statement =
            conn.prepare(&format!("PRAGMA incremental_vacuum({})", PAGES_PER_STEP.min(free - SPARE_PAGES)))?;
        let mut rows = statement.query([])?;
        // Each row is a page.
        while rows.next()?.is_some() {}
    }
    fold(conn)
}

/// The file becomes shorter only when the log is folded into it, and what was given back last may be too little for the
/// log to be folded by itself. A reader that still looks at the longer one puts it off until the next time.
fn fold(conn: &Connection) -> rusqlite::Result<()> {
    let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    let page: i64 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let file = conn.path().and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len());
    if i64::try_from(file).unwrap_or(i64::MAX) > pages.saturating_add(SPARE_PAGES).saturating_mul(page) {
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::open::open_writer;

    fn fill(conn: &Connection) {
        conn.execute_batch("CREATE TABLE big (x BLOB)").unwrap();
        conn.execute("INSERT INTO big VALUES (zeroblob(32 << 20))", []).unwrap();
        conn.execute_batch("DROP TABLE big; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    }

    fn size(dir: &Path) -> u64 {
        std::fs::metadata(database_path(dir)).unwrap().len()
    }

    #[test]
    fn free_pages_are_given_back_in_steps() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(dir.path()).unwrap();
        prepare(&conn, dir.path()).unwrap();
        fill(&conn);
        assert!(size(dir.path()) > 32 << 20);
        give_back(&conn).unwrap();
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let after_one = size(dir.path());
        assert!(after_one < 25 << 20, "{after_one}");
        for _ in 0..10 {
            give_back(&conn).unwrap();
        }
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let left = size(dir.path());
        assert!((4 << 20..6 << 20).contains(&left), "{left}");
    }

    #[test]
    fn older_database_is_rewritten_to_shrink() {
        let dir = tempfile::tempdir().unwrap();
        let old = crate::sqlite::open::older(dir.path(), 8);
        assert_eq!(old.query_row("PRAGMA auto_vacuum", [], |row| row.get::<_, i64>(0)).unwrap(), 0);
        drop(old);
        let conn = open_writer(dir.path()).unwrap();
        prepare(&conn, dir.path()).unwrap();
        assert_eq!(conn.query_row("PRAGMA auto_vacuum", [], |row| row.get::<_, i64>(0)).unwrap(), 2);
        fill(&conn);
        for _ in 0..10 {
            give_back(&conn).unwrap();
        }
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        assert!(size(dir.path()) < 6 << 20);
    }
}
