//! A file beside the database with a recent head of the audit trail. It detects a database that has lost its last
//! entries, because of a truncated or deleted log or an older file. Such a database looks intact otherwise.
//!
//! The file is written after the commit, so it never names an entry that is not durable. The file itself is not
//! synced.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::sql::run;
use crate::{
    StoreError,
    rows::{parse_hash, signed},
    statements::facts::backup_time,
};
use countersign_domain::changes::audit::AuditHead;

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
        let options = || fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let result = options()
            .and_then(|mut file| writeln!(file, "{}", head.export()))
            .and_then(|()| fs::rename(&draft, &self.path));
        if let Err(error) = result {
            // The disk is probably full or the directory deleted, which the store itself reports.
            tracing::debug!(%error, "the witness of the audit trail was not written");
        }
        self.last_write = Some((head, Instant::now()));
    }

    /// Checks that the database still contains the entry that the file names.
    ///
    /// # Errors
    /// [`StoreError::CutOff`]
    pub(super) fn check(dir: &Path, conn: &Connection, found: AuditHead) -> Result<(), StoreError> {
        let path = dir.join(WITNESS_FILE);
        let Some(expected) = fs::read_to_string(&path).ok().as_deref().and_then(AuditHead::parse) else {
            return Ok(());
        };
        // A restored backup may be older than the file.
        if run(backup_time(conn))?.is_some() {
            return Ok(());
        }
        let is_present = match expected.seq {
            0 => true,
            seq => {
                use rusqlite::OptionalExtension as _;
                let mut statement = conn.prepare("SELECT hash FROM audit WHERE seq = ?1")?;
                let hash: Option<Vec<u8>> = statement.query_row([signed(seq)], |row| row.get(0)).optional()?;
                hash.as_deref().map(parse_hash).transpose()? == Some(expected.hash)
            }
        };
        if is_present { Ok(()) } else { Err(StoreError::CutOff { path, found: found.seq, expected: expected.seq }) }
    }
}
