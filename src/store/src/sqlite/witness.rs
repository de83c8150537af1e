//! A file beside the database with a recent head of the audit trail. It detects a database that has lost its last
//! entries, because of a truncated or deleted log or an older file. Such a database looks intact otherwise.
//!
//! The file is written after the commit, so it never names an entry that is not durable. The file itself is not
//! synced.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::sql::{rows, run};
use crate::{StoreError, statements::facts::backup_time, values};
use countersign_domain::changes::audit::AuditHead;
use countersign_runtime::files::none_if_missing;

const WITNESS_FILE: &str = "audit.head";

/// The minimum interval between writes of the file.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct HeadWitness {
    path: PathBuf,
    last_write: Option<(AuditHead, Instant)>,
}

impl HeadWitness {
    pub(super) fn new(dir: &Path) -> Self {
        Self { path: dir.join(WITNESS_FILE), last_write: None }
    }

    /// Writes the head, unless the last write was less than [`WRITE_INTERVAL`] ago.
    pub(super) fn write_if_due(&mut self, head: AuditHead) {
        if self.last_write.is_none_or(|(_, at)| at.elapsed() >= WRITE_INTERVAL) {
            self.write(head);
        }
    }

    /// Writes the head at once.
    pub(super) fn write(&mut self, head: AuditHead) {
        if self.last_write.is_some_and(|(written_head, _)| written_head == head) {
            return;
        }
        let draft = self.path.with_extension("head.part");
        let opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let result = opened
            .and_then(|mut file| writeln!(file, "{}", head.export()))
            .and_then(|()| fs::rename(&draft, &self.path));
        if let Err(error) = result {
            // The disk is probably full or the directory deleted, which the store itself reports.
            tracing::debug!(%error, "the witness of the audit trail was not written");
        }
        self.last_write = Some((head, Instant::now()));
    }

    /// Checks that the database still contains the entry that the file names. Returns `false`, with a warning, if the
    /// file is unreadable.
    ///
    /// # Errors
    /// [`StoreError::CutOff`]
    pub(super) fn check(dir: &Path, conn: &Connection, found: AuditHead) -> Result<bool, StoreError> {
        let path = dir.join(WITNESS_FILE);
        let expected = match read_head(&path) {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(true),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the recorded head of the audit trail is unreadable, so it is unknown whether the last entries are lost");
                return Ok(false);
            }
        };
        let is_present = expected.seq == 0 || {
            let found = rows(conn, "SELECT hash FROM audit WHERE seq = ?1", values![expected.seq])?;
            found.first().map(|row| row.get(0)).transpose()? == Some(expected.hash)
        };
        // A restored backup may be older than the file. Its mark is read last, because old schemas have no table of facts.
        if is_present || run(backup_time(conn))?.is_some() {
            Ok(true)
        } else {
            Err(StoreError::CutOff { path, found: found.seq, expected: expected.seq })
        }
    }
}

/// Reads the head in the file. Returns `None` if there is no file.
fn read_head(path: &Path) -> io::Result<Option<AuditHead>> {
    let Some(text) = none_if_missing(fs::read_to_string(path))? else { return Ok(None) };
    AuditHead::parse(&text).map(Some).ok_or_else(|| io::Error::other("the content is not a head"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_witness_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let conn = Connection::open_in_memory().unwrap();
        let check = || HeadWitness::check(dir.path(), &conn, AuditHead::default()).unwrap();
        assert!(check(), "a store without the file may be new");
        for (text, is_readable) in [(AuditHead::default().export(), true), ("garbage".into(), false)] {
            fs::write(dir.path().join(WITNESS_FILE), text).unwrap();
            assert_eq!(check(), is_readable);
        }
    }
}
