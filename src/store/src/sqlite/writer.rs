//! Runs batches of write requests in one transaction each ([`BatchWriter`]).
//!
//! A refused transition (a conflict or a duplicate) fails at its first statement, and changes nothing. If a request
//! fails later, everything is rolled back, and each request runs in its own transaction. Savepoints would copy every
//! page that a request touches, and cost a third of the throughput.
//!
//! The writer never guesses the outcome of a commit. If a commit fails, the writer first overwrites what the commit
//! may have left in the log, and then reads the heads.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode};
use tokio::runtime::Runtime;

use super::{
    claims,
    open::{database_path, file_id, lock_path, log_path, open_writer},
    rows, search, space,
    sql::{execute, run},
    trail,
    witness::HeadWitness,
};
use crate::{
    CommittedWrite, Heads, StoreError, TransitionDraft, WriteError, WriteRequest,
    health::Health,
    queue::{BatchError, BatchWriter, Command, QueuedCommands, WriteResult, audit_entry, feed_event},
    rows::finished_second,
    statements::records,
    values,
};
use countersign_runtime::crash::crash_point;

/// The minimum free bytes at which a full disk counts as usable again.
const MIN_FREE_BYTES: u64 = 1 << 20;

/// Commits a transaction. Tests replace this function to let commits fail.
pub(super) type CommitFn = Box<dyn FnMut(&Connection) -> rusqlite::Result<()> + Send>;

pub(super) struct Writer {
    pub conn: Connection,
    pub dir: PathBuf,
    pub files: Vec<WatchedFile>,
    pub heads: Heads,
    /// The value of `PRAGMA data_version` when [`Writer::heads`] was read. It changes with commits by other
    /// connections.
    pub data_version: Option<i64>,
    pub queue: QueuedCommands,
    pub commit: CommitFn,
    pub health: Arc<Health>,
    pub witness: HeadWitness,
}

pub(super) fn plain_commit() -> CommitFn {
    Box::new(|conn| conn.prepare_cached("COMMIT")?.execute([]).map(drop))
}

/// A file that must not be deleted or replaced while the database is open.
pub(super) struct WatchedFile {
    path: PathBuf,
    id: (u64, u64),
    /// Returns the error for a file that was deleted or replaced.
    error: fn(PathBuf) -> StoreError,
}

impl WatchedFile {
    /// Returns the files of an open database. There may be no log, and no lock file in tests. SQLite never replaces the log
    /// while a connection is open.
    ///
    /// # Errors
    /// [`StoreError::DataDir`] if the database file cannot be found.
    pub(super) fn all(dir: &Path) -> Result<Vec<Self>, StoreError> {
        let watch = |path: PathBuf, error: fn(PathBuf) -> StoreError| match file_id(&path) {
            Ok(id) => Ok(Self { path, id, error }),
            Err(source) => Err(StoreError::data_dir(&path, source)),
        };
        let mut files = vec![watch(database_path(dir), StoreError::Replaced)?];
        files.extend(watch(log_path(dir), StoreError::LogReplaced));
        files.extend(watch(lock_path(dir), StoreError::LockReplaced));
        Ok(files)
    }

    /// Returns `true` if the file no longer exists or is another one.
    fn is_replaced(&self) -> bool {
        match file_id(&self.path) {
            Ok(found) => found != self.id,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}

impl Writer {
    /// Runs until the queue is closed. SQLite blocks this thread, and `runtime` only waits for commands.
    pub(super) fn run(mut self, runtime: &Runtime) {
        runtime.block_on(self.run_queue());
        if self.check_files().is_ok() {
            self.witness.write(self.heads.audit);
        }
        // Merges the log into the database, so that a copy of the database file is complete.
        if let Err(error) = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
            tracing::warn!(%error, "the database's log could not be merged into it; the next start does that");
        }
    }

    /// Fails if the database file, its log or the lock file was deleted or replaced. Writes to the open database would then be
    /// lost, or another gateway may use the directory. Records the failure, which ends when the original file is back.
    fn check_files(&self) -> Result<(), StoreError> {
        let Some(file) = self.files.iter().find(|file| file.is_replaced()) else { return Ok(()) };
        let error = (file.error)(file.path.clone());
        if !self.health.last_error().is_some_and(|error| error.is_about_replaced_file()) {
            tracing::error!(%error, "changes are refused");
            self.health.record_failure(&error);
        }
        Err(error)
    }

    /// Reads the heads again if another process has written, such as `keys create` or `keys revoke`. Must be called
    /// within a transaction, which excludes other writers.
    fn refresh_heads(&mut self) -> Result<(), StoreError> {
        let version: i64 = self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.data_version != Some(version) {
            self.heads = rows::heads(&self.conn)?;
            self.data_version = Some(version);
        }
        Ok(())
    }

    /// Writes a batch, without committing. After an error, the caller must roll back.
    fn write_all(&mut self, batch: &[Command]) -> Result<Vec<WriteResult>, StoreError> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for command in batch {
            let write_result = match &command.request {
                WriteRequest::Transition(draft) => self.write(draft),
                other => self.write_entries(other),
            };
            outcomes.push(match write_result {
                Ok((written, heads)) => {
                    self.heads = heads;
                    Ok(written)
                }
                Err(WriteError::Store(error)) => return Err(error),
                Err(refused) => Err(refused),
            });
        }
        Ok(outcomes)
    }

    /// Writes a transition. A refused transition changes nothing.
    fn write(&self, draft: &TransitionDraft) -> Result<(CommittedWrite, Heads), WriteError> {
        let (change, conn) = (&draft.change, &self.conn);
        let expires_at = change.expires_at.to_string();
        match draft.expected {
            None => {
                let sql = "INSERT INTO changes
                               (id, version, state, principal, idempotency_key, bytes, expires_at, body,
                                plan_id, plan_index, plan_last)
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO NOTHING";
                let plan = change.plan.as_ref();
                let (principal, key) = (&change.proposer.principal, change.idempotency_key.as_ref());
                let state = change.state.as_str();
                let values = values![
                    &change.id,
                    change.version,
                    state,
                    principal,
                    key,
                    draft.body.len(),
                    &expires_at,
                    &draft.body,
                    plan.map(|plan| &plan.id),
                    plan.map(|plan| plan.index),
                    plan.map(|plan| plan.last),
                ];
                if execute(conn, sql, values)? != 1 {
                    return Err(WriteError::Duplicate);
                }
            }
            Some(expected) => {
                claims::take_target(conn, draft)?;
                claims::check_undo(conn, draft)?;
                let sql = "UPDATE changes SET version = ?3, state = ?4, expires_at = ?5, body = ?6, finished_at = ?7,
                               run_after_ms = ?8
                           WHERE id = ?1 AND version = ?2 AND redacted = 0";
                let finished = finished_second(change.state, change.updated_at);
                let state = change.state.as_str();
                let run_after = change.run_after.map(Timestamp::as_millisecond);
                let body = &draft.body;
                let values =
                    values![&change.id, expected, change.version, state, &expires_at, body, finished, run_after];
                if execute(conn, sql, values)? != 1 {
                    return Err(WriteError::Conflict);
                }
            }
        }
        crash_point("within_transaction");
        claims::release_target(conn, draft)?;
        search::update_search_row(conn, draft)?;
        let at = draft.at.to_string();
        let audit = trail::append(conn, self.heads.audit, audit_entry(draft, self.heads.audit.seq + 1, &at))?;
        let seq = self.heads.event + 1;
        let event = feed_event(draft, seq);
        let sql = "INSERT INTO events (seq, kind, change_id, data) VALUES (?1, ?2, ?3, ?4)";
        execute(conn, sql, values![seq, draft.kind.feed_type(), &change.id, &event])?;
        Ok((CommittedWrite { seq, event: Bytes::from(event) }, Heads { event: seq, audit }))
    }

    /// Writes a request that has audit entries but no feed event.
    fn write_entries(&self, request: &WriteRequest) -> Result<(CommittedWrite, Heads), WriteError> {
        let prunes = matches!(request, WriteRequest::Prune(_));
        if prunes {
            // Deleted contents must not remain in free pages.
            self.conn.pragma_update(None, "secure_delete", true).map_err(StoreError::from)?;
        }
        let written = run(records::write(&self.conn, request));
        if prunes {
            self.conn.pragma_update(None, "secure_delete", false).map_err(StoreError::from)?;
        }
        let entries = written?;
        if entries.is_empty() {
            return Err(WriteError::Conflict);
        }
        let mut heads = self.heads;
        for entry in entries {
            heads.audit = trail::append(&self.conn, heads.audit, entry.content(heads.audit.seq + 1))?;
        }
        Ok((CommittedWrite::default(), heads))
    }

    fn execute(&self, sql: &str) -> Result<(), StoreError> {
        self.conn.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn rollback(&self) {
        if !self.conn.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            tracing::error!(%error, "a transaction could not be rolled back");
        }
    }

    /// Commits. If the commit fails, finds out whether it took effect.
    async fn commit(&mut self, before: Heads) -> Result<(), StoreError> {
        let Err(error) = (self.commit)(&self.conn) else { return Ok(()) };
        let code = error.sqlite_error_code();
        let error = StoreError::from(error);
        self.rollback();
        // These two errors occur before the log contains a valid commit.
        if matches!(code, Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy)) {
            return Err(error);
        }
        tracing::error!(%error, "a commit failed; reading the database to find out its outcome");
        self.read_back(&before, error).await
    }

    /// Reopens the database, overwrites what a failed commit may have left in the log, and reads the heads.
    fn reopen(&mut self) -> Result<Heads, StoreError> {
        self.check_files()?;
        self.conn = open_writer(&self.dir)?;
        self.data_version = None;
        self.conn.execute("UPDATE fence SET n = n + 1", [])?;
        rows::heads(&self.conn)
    }
}

impl BatchWriter for Writer {
    /// The heads before the commit.
    type Commit = Heads;

    fn queue(&mut self) -> &mut QueuedCommands {
        &mut self.queue
    }

    fn health(&self) -> &Health {
        &self.health
    }

    async fn run_batch(&mut self, batch: &[Command]) -> Result<Vec<WriteResult>, BatchError> {
        let begun =
            self.check_files().and_then(|()| self.execute("BEGIN IMMEDIATE")).and_then(|()| self.refresh_heads());
        if let Err(error) = begun {
            self.rollback();
            return Err(error.into());
        }
        let before = self.heads;
        let outcomes = match self.write_all(batch) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.rollback();
                self.heads = before;
                return Err(BatchError { error, may_succeed_alone: true });
            }
        };
        if self.heads == before {
            self.rollback();
            return Ok(outcomes);
        }
        crash_point("before_commit");
        let pruned = batch.iter().any(|command| matches!(command.request, WriteRequest::Prune(_)));
        if pruned {
            crash_point("before_prune_commit");
        }
        if let Err(error) = self.commit(before).await {
            if error.is_certainly_aborted() {
                self.heads = before;
            }
            return Err(error.into());
        }
        crash_point("after_commit");
        self.health.record_success();
        self.witness.write_if_due(self.heads.audit);
        if pruned {
            crash_point("after_prune_commit");
        }
        Ok(outcomes)
    }

    async fn is_committed(&mut self, before: &Heads) -> Result<bool, StoreError> {
        match self.reopen() {
            Ok(heads) if heads == self.heads => Ok(true),
            Ok(heads) if heads == *before => Ok(false),
            Ok(heads) => {
                // Another process wrote at the same time: it created or revoked a key, or circumvented the lock on
                // the data directory.
                tracing::error!(?heads, expected = ?self.heads, "another process has written to the database, so the outcome of the commit is unknown");
                self.heads = heads;
                Err(StoreError::OutcomeUnknown)
            }
            Err(replaced) if replaced.is_about_replaced_file() => {
                self.health.record_failure(&replaced);
                Err(StoreError::OutcomeUnknown)
            }
            Err(error) => Err(error),
        }
    }

    async fn probe(&mut self) -> Result<(), StoreError> {
        // A probe needs less space than a change, so it might succeed on a disk that is still too full.
        if matches!(self.health.last_error(), Some(StoreError::DiskFull))
            && rustix::fs::statvfs(&self.dir)
                .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_BYTES)
        {
            return Err(StoreError::DiskFull);
        }
        let tried = self.check_files().and_then(|()| {
            self.execute("BEGIN IMMEDIATE")?;
            self.execute("UPDATE fence SET n = n + 1")?;
            Ok(plain_commit()(&self.conn)?)
        });
        if tried.is_err() {
            self.rollback();
        }
        tried
    }

    /// Checks the files, updates the witness and releases free pages.
    async fn work_idly(&mut self) {
        // The check records its error.
        if self.check_files().is_ok() {
            self.witness.write(self.heads.audit);
            if let Err(error) = space::release_pages(&self.conn) {
                tracing::debug!(%error, "free pages could not be released; trying again when idle");
            }
        }
    }
}
