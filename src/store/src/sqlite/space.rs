//! Returns the space of pruned records to the file system, because SQLite keeps free pages by default.

use rusqlite::Connection;

/// The number of free pages that are kept for future writes.
const SPARE_PAGES: i64 = 1024;
/// The maximum pages that one step releases. A concurrent write waits for at most one step.
const PAGES_PER_STEP: i64 = 2048;

/// Releases one step of free pages, if there are many. Must run outside a transaction.
pub(super) fn release_pages(conn: &Connection) -> rusqlite::Result<()> {
    let free: i64 = conn.query_row("PRAGMA freelist_count", [], |row| row.get(0))?;
    if free > SPARE_PAGES {
        let mut statement =
            conn.prepare(&format!("PRAGMA incremental_vacuum({})", PAGES_PER_STEP.min(free - SPARE_PAGES)))?;
        let mut rows = statement.query([])?;
        // Each returned row releases one page.
        while rows.next()?.is_some() {}
    }
    shorten_file(conn)
}

/// Starts a checkpoint if the file is larger than its pages need, because only a checkpoint shortens the file. The
/// last step may be too small to trigger an automatic one. An active reader delays the shortening until the next call.
fn shorten_file(conn: &Connection) -> rusqlite::Result<()> {
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
    use std::path::Path;

    use super::*;
    use crate::sqlite::open::{database_path, open_writer};

    fn create_free_pages(conn: &Connection) {
        conn.execute_batch("CREATE TABLE big (x BLOB)").unwrap();
        conn.execute("INSERT INTO big VALUES (zeroblob(32 << 20))", []).unwrap();
        conn.execute_batch("DROP TABLE big; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    }

    fn size(dir: &Path) -> u64 {
        std::fs::metadata(database_path(dir)).unwrap().len()
    }

    #[test]
    fn free_pages_are_released_in_steps() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(dir.path()).unwrap();
        create_free_pages(&conn);
        assert!(size(dir.path()) > 32 << 20);
        release_pages(&conn).unwrap();
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let after_one = size(dir.path());
        assert!(after_one < 25 << 20, "{after_one}");
        for _ in 0..10 {
            release_pages(&conn).unwrap();
        }
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let left = size(dir.path());
        assert!((4 << 20..6 << 20).contains(&left), "{left}");
    }
}
