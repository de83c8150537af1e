//! Runs all queued write requests in one transaction, commits, and only then answers them (group commit).
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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode};

use super::{
    claims,
    open::{database_path, file_id, lock_path, open_writer},
    rows, search, space,
    sql::{execute, run},
    trail,
    witness::HeadWitness,
};
use crate::{
    CommittedWrite, Heads, StoreError, TransitionDraft, WriteError, WriteRequest,
    health::Health,
    queue::{
        Command, IDLE_TIME, QueueMetrics, READ_BACK_TIMEOUT, WriteResult, answer, audit_entry, feed_event, refuse,
    },
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
    /// The database file that was opened ([`file_id`]).
    pub file_id: (u64, u64),
    /// The write-ahead log and its [`file_id`]. SQLite never replaces it while a connection is open. `None` if there is no log.
    pub log: Option<(PathBuf, (u64, u64))>,
    /// The lock file of the directory. `None` if there was none when the database was opened, as in tests.
    pub lock_id: Option<(u64, u64)>,
    pub heads: Heads,
    /// The value of `PRAGMA data_version` when [`Writer::heads`] was read. It changes with commits by other
    /// connections.
    pub data_version: Option<i64>,
    pub queue: Receiver<Command>,
    pub metrics: QueueMetrics,
    pub closing: Arc<AtomicBool>,
    pub commit: CommitFn,
    pub health: Arc<Health>,
    pub witness: HeadWitness,
}

/// The outcome of a commit.
enum CommitOutcome {
    Committed,
    /// The commit changed nothing, and cannot take effect later.
    Aborted(StoreError),
    Unknown,
}

pub(super) fn plain_commit() -> CommitFn {
    Box::new(|conn| conn.prepare_cached("COMMIT")?.execute([]).map(drop))
}

/// Returns `false` if the file no longer exists or is another one.
fn has_id(path: &Path, id: (u64, u64)) -> bool {
    match file_id(path) {
        Ok(found) => found == id,
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

impl Writer {
    /// Runs until the queue is closed.
    pub(super) fn run(mut self) {
        while let Some(first) = self.next() {
            let batch = self.metrics.take_batch(first, || self.queue.try_recv().ok());
            let (size, began) = (batch.len(), Instant::now());
            self.run_batch(batch);
            self.metrics.record_commit(size, began);
        }
        if self.check_files().is_ok() {
            self.witness.write(self.heads.audit);
        }
        // Merges the log into the database, so that a copy of the database file is complete.
        if let Err(error) = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
            tracing::warn!(%error, "the database's log could not be merged into it; the next start does that");
        }
    }

    /// Returns the next command, or `None` once the queue is closed. After an error, it probes the database while
    /// waiting, because a gateway that is not ready may receive no requests. When idle, it checks the files,
    /// updates the witness and releases free pages.
    fn next(&mut self) -> Option<Command> {
        loop {
            match self.queue.recv_timeout(IDLE_TIME) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.health.last_error().is_some() => self.probe(),
                // The check records its error.
                Err(RecvTimeoutError::Timeout) if self.check_files().is_err() => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.witness.write(self.heads.audit);
                    if let Err(error) = space::release_pages(&self.conn) {
                        tracing::debug!(%error, "free pages could not be released; trying again when idle");
                    }
                }
            }
        }
    }

    fn probe(&mut self) {
        // A probe needs less space than a change, so it might succeed on a disk that is still too full.
        if matches!(self.health.last_error(), Some(StoreError::DiskFull))
            && rustix::fs::statvfs(&self.dir)
                .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_BYTES)
        {
            return;
        }
        let tried = self.check_files().and_then(|()| {
            self.execute("BEGIN IMMEDIATE")?;
            self.execute("UPDATE fence SET n = n + 1")?;
            plain_commit()(&self.conn).map_err(StoreError::from)
        });
        match tried {
            Ok(()) => self.health.record_success(),
            Err(error) => {
                self.rollback();
                self.health.record_failure(&error);
            }
        }
    }

    fn run_batch(&mut self, batch: Vec<Command>) {
        let begun =
            self.check_files().and_then(|()| self.execute("BEGIN IMMEDIATE")).and_then(|()| self.refresh_heads());
        if let Err(error) = begun {
            self.rollback();
            return self.refuse(batch, &error);
        }
        let before = self.heads;
        let outcomes = match self.write_all(&batch) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.rollback();
                self.heads = before;
                if batch.len() == 1 {
                    return self.refuse(batch, &error);
                }
                tracing::warn!(%error, changes = batch.len(), "a batch of writes failed; running each write in its own transaction");
                return batch.into_iter().for_each(|command| self.run_batch(vec![command]));
            }
        };
        if self.heads == before {
            self.rollback();
            return answer(batch, outcomes);
        }
        crash_point("before_commit");
        let pruned = batch.iter().any(|command| matches!(command.request, WriteRequest::Prune(_)));
        if pruned {
            crash_point("before_prune_commit");
        }
        match self.commit_or_read_back(before) {
            CommitOutcome::Committed => {
                crash_point("after_commit");
                self.health.record_success();
                self.witness.write_if_due(self.heads.audit);
                if pruned {
                    crash_point("after_prune_commit");
                }
                answer(batch, outcomes);
            }
            CommitOutcome::Aborted(error) => {
                self.heads = before;
                self.refuse(batch, &error);
            }
            CommitOutcome::Unknown => self.refuse(batch, &StoreError::OutcomeUnknown),
        }
    }

    /// Fails if the database file, its log or the lock file was deleted or replaced. Writes to the open database would then be
    /// lost, or another gateway may use the directory. Records the failure, which ends when the original file is back.
    fn check_files(&self) -> Result<(), StoreError> {
        let (database, lock) = (database_path(&self.dir), lock_path(&self.dir));
        let error = if !has_id(&database, self.file_id) {
            StoreError::Replaced(database)
        } else if let Some((log, id)) = &self.log
            && !has_id(log, *id)
        {
            StoreError::LogReplaced(log.clone())
        } else if self.lock_id.is_some_and(|id| !has_id(&lock, id)) {
            StoreError::LockReplaced(lock)
        } else {
            return Ok(());
        };
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

    /// Commits. If the commit fails, finds out its outcome.
    fn commit_or_read_back(&mut self, before: Heads) -> CommitOutcome {
        let Err(error) = (self.commit)(&self.conn) else { return CommitOutcome::Committed };
        let code = error.sqlite_error_code();
        let error = StoreError::from(error);
        self.rollback();
        // These two errors occur before the log contains a valid commit.
        if matches!(code, Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy)) {
            return CommitOutcome::Aborted(error);
        }
        tracing::error!(%error, "a commit failed; reading the database to find out its outcome");
        self.read_back(before, error)
    }

    /// Reopens the database, overwrites what the failed commit may have left in the log, and reads the heads.
    fn read_back(&mut self, before: Heads, error: StoreError) -> CommitOutcome {
        let mut pause = Duration::from_millis(20);
        let mut give_up = None;
        loop {
            match self.reopen() {
                Ok(heads) if heads == self.heads => return CommitOutcome::Committed,
                Ok(heads) if heads == before => return CommitOutcome::Aborted(error),
                Ok(heads) => {
                    // Another process wrote at the same time: it created or revoked a key, or circumvented the lock on
                    // the data directory.
                    tracing::error!(?heads, expected = ?self.heads, "another process has written to the database, so the outcome of the commit is unknown");
                    self.heads = heads;
                    return CommitOutcome::Unknown;
                }
                Err(replaced) if replaced.is_about_replaced_file() => {
                    self.health.record_failure(&replaced);
                    return CommitOutcome::Unknown;
                }
                Err(again) => {
                    tracing::error!(error = %again, "the database cannot be read; trying again");
                    // Readiness reports the failure, and the batch waits for its answer.
                    self.health.record_failure(&again);
                }
            }
            if self.closing.load(Ordering::Acquire) {
                let deadline = *give_up.get_or_insert_with(|| Instant::now() + READ_BACK_TIMEOUT);
                if Instant::now() >= deadline {
                    return CommitOutcome::Unknown;
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn reopen(&mut self) -> Result<Heads, StoreError> {
        self.check_files()?;
        self.conn = open_writer(&self.dir)?;
        self.data_version = None;
        self.conn.execute("UPDATE fence SET n = n + 1", [])?;
        rows::heads(&self.conn)
    }

    /// Answers a batch with an error.
    fn refuse(&self, batch: Vec<Command>, error: &StoreError) {
        self.health.record_failure(error);
        refuse(batch, error);
    }
}
