//! Runs batches of write requests in one transaction each ([`BatchWriter`]).
//!
//! First, all changes are written with pipelined statements. A refused change (a conflict or a duplicate) touches no
//! row. Then the heads are locked, and the entries and events are written. If a statement fails, everything is rolled
//! back, and each request runs in its own transaction.
//!
//! If the connection is lost before the commit is sent, nothing is written. If it is lost later, the writer locks the
//! heads, which waits for the end of the lost transaction, and looks for its entries in the trail.

use std::{
    sync::{Arc, mpsc::SyncSender},
    time::Duration,
};

use bytes::Bytes;
use deadpool_postgres::ClientWrapper;
use futures_util::future::{join, join_all};
use jiff::Timestamp;

use super::{
    PgConnector,
    claims::{self, ClaimEffect, UPDATE_CHANGE},
    connect::ANSWER_TIMEOUT,
    error,
    node_rows::CHANNEL,
    nodes::Membership,
    rows::{self, execute, query_opt},
    trail::{self, InsertBatch, set_heads},
};
use crate::{
    AuditRecord, CommittedWrite, Heads, Nodes as _, StoreError, TransitionDraft, WriteError, WriteRequest,
    health::Health,
    queue::{BatchError, BatchWriter, Command, QueuedCommands, WriteResult, audit_entry, feed_event},
    rows::{finished_second, signed, to_postgres_text},
    search::search_text,
    statements::{
        facts,
        records::{self, NewEntry},
    },
    values,
};
use countersign_domain::changes::{audit::AuditHead, machine::EventKind};
use countersign_runtime::crash::crash_point;

const INSERT_CHANGE: &str =
    "INSERT INTO changes (id, version, state, principal, idempotency_key, bytes, expires_at, body, votes, title,
                          plan_id, plan_index, plan_last)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT DO NOTHING RETURNING no";

/// The limits for an idle transaction: the default (see [`connect`]), and a longer one for large statements, whose
/// transfer takes time. The longer limit applies only until the heads are locked.
///
/// [`connect`]: super::connect
const SHORT_IDLE_LIMIT: &str = "SET LOCAL idle_in_transaction_session_timeout = '3s'";
const BEGIN_WITH_LONG_IDLE_LIMIT: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'";
/// The size of a batch from which the long limit applies.
const LONG_BATCH_BYTES: usize = 1 << 20;

/// The maximum time that a new connection waits for a gateway that keeps it out.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    pub connector: Arc<PgConnector>,
    pub membership: Arc<Membership>,
    /// The connection that marks the database as served.
    pub client: Option<ClientWrapper>,
    pub queue: QueuedCommands,
}

/// The effect of a request so far, before the heads are locked.
enum WriteEffect<'a> {
    /// A transition, with the number of its change.
    Transition(&'a TransitionDraft, i64),
    /// The audit entries of another request.
    Entries(Vec<NewEntry<'a>>),
}

impl Writer {
    /// Runs until the queue is closed. Reports through `ready` whether the writer could start.
    pub async fn run(mut self, patience: Duration, ready: SyncSender<Result<(), StoreError>>) {
        let start_result = self.begin(patience).await;
        let failed = start_result.is_err();
        // The thread that opens the store waits for this message.
        let _ = ready.send(start_result);
        if !failed {
            self.run_queue().await;
        }
    }

    async fn begin(&mut self, patience: Duration) -> Result<(), StoreError> {
        let client = self.connector.serve(patience, false).await?;
        facts::check_moved(&client).await?;
        self.client = Some(client);
        Ok(())
    }

    /// Returns the connection that marks the database as served, and reconnects if needed.
    async fn client(&mut self) -> Result<&ClientWrapper, StoreError> {
        if let Some(reason) = self.membership.stop_reason() {
            return Err(reason.clone());
        }
        if self.client.as_ref().is_none_or(|client| client.is_closed()) {
            self.client = None;
            let connector = Arc::clone(&self.connector);
            connector.silence.require_answer(ANSWER_TIMEOUT, self.begin(RECOVERY_TIMEOUT)).await?;
        }
        self.client.as_ref().ok_or(StoreError::Closed)
    }

    /// Returns the error of a batch whose transaction has ended. Its requests may succeed alone if the connection is intact.
    fn aborted(&self, error: StoreError) -> BatchError {
        BatchError { error, may_succeed_alone: self.client.is_some() }
    }
}

impl BatchWriter for Writer {
    /// The audit head after the commit.
    type Commit = AuditHead;

    fn queue(&mut self) -> &mut QueuedCommands {
        &mut self.queue
    }

    fn health(&self) -> &Health {
        &self.connector.health
    }

    fn is_silent(&self) -> bool {
        self.connector.silence.is_silent()
    }

    /// After a failure, also drops a connection that may be broken.
    async fn run_batch(&mut self, batch: &[Command]) -> Result<Vec<WriteResult>, BatchError> {
        self.client().await?;
        let Some(client) = self.client.take() else { return Err(StoreError::Closed.into()) };
        let connector = Arc::clone(&self.connector);
        // Dropping the connection ends the transaction.
        let Some(written) = connector.silence.answer(ANSWER_TIMEOUT, write(&client, &self.membership, batch)).await
        else {
            return Err(error::no_answer().into());
        };
        let Ok((outcomes, Some(after))) = written else {
            let rollback = connector.silence.answer(ANSWER_TIMEOUT, client.batch_execute("ROLLBACK")).await;
            self.client = rollback.is_some_and(|answer| answer.is_ok()).then_some(client);
            return written.map(|(outcomes, _)| outcomes).map_err(|error| self.aborted(error));
        };
        crash_point("before_commit");
        let pruned = batch.iter().any(|command| matches!(command.request, WriteRequest::Prune(_)));
        if pruned {
            crash_point("before_prune_commit");
        }
        match connector.silence.answer(ANSWER_TIMEOUT, client.batch_execute("COMMIT")).await {
            Some(Ok(())) => self.client = Some(client),
            Some(Err(error)) if !error::may_be_committed(&error) => {
                self.client = Some(client).filter(|_| !error::ends_connection(&error));
                return Err(self.aborted(error.into()));
            }
            lost => {
                let error =
                    lost.map_or_else(error::no_answer, |ended| ended.err().map_or(StoreError::Closed, Into::into));
                tracing::error!(%error, "a commit was not answered; looking for its entries in the audit trail");
                drop(client);
                self.read_back(&after.audit, error).await?;
            }
        }
        self.membership.remember_heads(after);
        crash_point("after_commit");
        self.connector.health.record_success();
        if pruned {
            crash_point("after_prune_commit");
        }
        Ok(outcomes)
    }

    async fn is_committed(&mut self, entry: &AuditHead) -> Result<bool, StoreError> {
        let lookup = trail::contains(&self.connector, *entry);
        self.connector.silence.require_answer(ANSWER_TIMEOUT, lookup).await
    }

    async fn probe(&mut self) -> Result<(), StoreError> {
        let connector = Arc::clone(&self.connector);
        let tried = async {
            let client = self.client().await?;
            Ok::<_, StoreError>(client.batch_execute("UPDATE heads SET event = event").await?)
        };
        let result = connector.silence.require_answer(ANSWER_TIMEOUT, tried).await;
        if result.is_err() {
            self.client = None;
        }
        result
    }

    /// Connects again if the connection has ended.
    async fn work_idly(&mut self) {
        if self.client.as_ref().is_none_or(|client| client.is_closed()) {
            self.probe_and_record().await;
        }
    }
}

/// Writes a batch, without committing. Returns no heads if there is nothing to commit. After an error, the caller must
/// roll back.
async fn write(
    client: &ClientWrapper,
    node: &Membership,
    batch: &[Command],
) -> Result<(Vec<WriteResult>, Option<Heads>), StoreError> {
    let long = batch.iter().map(|command| command.request.len()).sum::<usize>() >= LONG_BATCH_BYTES;
    client.batch_execute(if long { BEGIN_WITH_LONG_IDLE_LIMIT } else { "BEGIN" }).await?;
    let mut effects: Vec<Result<WriteEffect<'_>, WriteError>> = Vec::with_capacity(batch.len());
    for commands in batch.chunk_by(|one, next| one.request.is_pipelined() && next.request.is_pipelined()) {
        match &commands[0].request {
            request @ WriteRequest::Transition(draft) if !request.is_pipelined() => {
                effects.push(write_claim_end(client, draft, commands).await?)
            }
            WriteRequest::Transition(_) => effects.extend(write_transitions(client, commands).await?),
            other => {
                if let WriteRequest::Record(AuditRecord { late: Some(late), change, .. }) = other {
                    claims::record_late_call(client, change, late).await?;
                }
                let entries = records::write(client, other).await?;
                effects.push(if entries.is_empty() {
                    Err(WriteError::Conflict)
                } else {
                    Ok(WriteEffect::Entries(entries))
                });
            }
        }
    }
    if effects.iter().all(Result::is_err) {
        let refused = effects.into_iter().map(|outcome| outcome.map(|_| CommittedWrite::default()));
        return Ok((refused.collect(), None));
    }
    let locking = async {
        // The first statement is pipelined with the second.
        let limited = async { if long { client.batch_execute(SHORT_IDLE_LIMIT).await } else { Ok(()) } };
        let (limited, heads) = join(limited, node.read_heads(client, true)).await;
        limited?;
        heads
    };
    let (outcomes, heads) = write_entries_and_events(client, node, locking.await?, batch, effects).await?;
    Ok((outcomes, Some(heads)))
}

impl WriteRequest {
    /// Returns `true` for a transition that may be pipelined.
    fn is_pipelined(&self) -> bool {
        matches!(self, Self::Transition(draft) if !matches!(ClaimEffect::for_draft(draft), ClaimEffect::EndsOrphan | ClaimEffect::Settles))
    }
}

/// Writes transitions with pipelined statements.
async fn write_transitions<'a>(
    client: &ClientWrapper,
    commands: &'a [Command],
) -> Result<Vec<Result<WriteEffect<'a>, WriteError>>, StoreError> {
    let update = format!("{UPDATE_CHANGE} RETURNING no");
    let (insert, update) = (client.prepare_cached(INSERT_CHANGE).await?, client.prepare_cached(&update).await?);
    let (insert, update) = (&insert, &update);
    let drafts = commands.iter().filter_map(|command| match &command.request {
        WriteRequest::Transition(draft) => Some(draft),
        _ => None,
    });
    let pending_writes = drafts.map(|draft| async move {
        let change = &draft.change;
        let (version, votes) = (signed(change.version), i32::try_from(change.decisions.len()).unwrap_or(i32::MAX));
        let (state, expires_at) = (change.state.as_str(), change.expires_at.to_string());
        let title = to_postgres_text(&change.summary);
        let no: Result<i64, WriteError> = match draft.expected {
            None => {
                let (bytes, principal) =
                    (signed(draft.body.len() as u64), to_postgres_text(&change.proposer.principal));
                let key = change.idempotency_key.as_deref().map(to_postgres_text);
                let plan = change.plan.as_ref();
                let (plan_id, index) = (plan.map(|plan| &plan.id), plan.map(|plan| i64::from(plan.index)));
                let last = plan.map(|plan| plan.last);
                let mut values = vec![&change.id as rows::Value<'_>, &version, &state, &principal, &key, &bytes];
                values.extend([&expires_at as rows::Value<'_>, &draft.body, &votes, &title, &plan_id, &index, &last]);
                client.query_opt(insert, &values).await?.map(|row| row.get(0)).ok_or(WriteError::Duplicate)
            }
            Some(expected) => {
                let finished = finished_second(change.state, change.updated_at);
                let expected = signed(expected);
                let (id, body, run_after) = (&change.id, &draft.body, change.run_after.map(Timestamp::as_millisecond));
                let values: [rows::Value<'_>; 10] =
                    [id, &expected, &version, &state, &expires_at, body, &finished, &votes, &title, &run_after];
                let effect = ClaimEffect::for_draft(draft);
                match effect {
                    ClaimEffect::Makes(by) | ClaimEffect::Needs(by) => {
                        claims::write_with_claim(client, values, &effect, draft, by).await?
                    }
                    ClaimEffect::Undoes(plan) => claims::write_undo(client, values, plan).await?,
                    _ => client.query_opt(update, &values).await?.map(|row| row.get(0)).ok_or(WriteError::Conflict),
                }
            }
        };
        Ok(no.map(|no| WriteEffect::Transition(draft, no)))
    });
    let answers: Vec<Result<_, StoreError>> = join_all(pending_writes).await;
    crash_point("within_transaction");
    answers.into_iter().collect()
}

/// Writes a transition that ends the claim of a node that is gone, or settles an unknown outcome. Such a transition is
/// not pipelined.
async fn write_claim_end<'a>(
    client: &ClientWrapper,
    draft: &TransitionDraft,
    commands: &'a [Command],
) -> Result<Result<WriteEffect<'a>, WriteError>, StoreError> {
    let id = &draft.change.id;
    let sql = "SELECT 1 FROM changes WHERE id = $1 AND version = $2 FOR UPDATE";
    if query_opt(client, sql, &[id, &signed(draft.expected.unwrap_or(0))]).await?.is_none() {
        return Ok(Err(WriteError::Conflict));
    }
    let may_end = match ClaimEffect::for_draft(draft) {
        ClaimEffect::Settles => claims::end_settled_claim(client, id).await?,
        _ => claims::end_lost_claim(client, &draft.change).await?,
    };
    if !may_end {
        return Ok(Err(WriteError::Fenced));
    }
    write_transitions(client, commands).await?.pop().ok_or(StoreError::Closed)
}

/// Writes the entries and events of a batch, with the next numbers. The caller has locked the heads.
async fn write_entries_and_events(
    client: &ClientWrapper,
    node: &Membership,
    mut heads: Heads,
    batch: &[Command],
    effects: Vec<Result<WriteEffect<'_>, WriteError>>,
) -> Result<(Vec<WriteResult>, Heads), StoreError> {
    let mut entries = InsertBatch::for_entries();
    let mut events = InsertBatch::new(
        "INSERT INTO events (seq, kind, change_id, at_ms, data)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[])",
    );
    let mut search_rows = InsertBatch::new(
        "INSERT INTO change_search (no, provider, tool, created_ms, call_hash, needle)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[])",
    );
    let mut edited: Vec<(i64, &TransitionDraft)> = Vec::new();
    let mut outcomes = Vec::with_capacity(batch.len());
    for effect in effects {
        outcomes.push(match effect {
            Err(refused) => Err(refused),
            Ok(WriteEffect::Transition(draft, no)) => {
                let change = &draft.change;
                heads.audit = entries.push_entry(heads.audit, &audit_entry(draft, 0, &draft.at.to_string()));
                match draft.kind {
                    EventKind::Created => {
                        let (created, call) = (change.created_at.as_millisecond(), draft.call_hash.as_ref());
                        let text = search_text(change);
                        search_rows.push(values![no, &change.provider, &change.tool, created, call, &text]);
                    }
                    // The summary, which is searchable, may have changed.
                    EventKind::Edited | EventKind::Refreshed => edited.push((no, draft)),
                    _ => {}
                }
                heads.event += 1;
                let event = feed_event(draft, heads.event);
                let at = draft.at.as_millisecond();
                events.push(values![heads.event, draft.kind.feed_type(), &change.id, at, &event]);
                Ok(CommittedWrite { seq: heads.event, event: Bytes::from(event) })
            }
            Ok(WriteEffect::Entries(new)) => {
                for entry in &new {
                    heads.audit = entries.push_entry(heads.audit, &entry.content(0));
                }
                Ok(CommittedWrite::default())
            }
        });
    }
    entries.write(client).await?;
    events.write(client).await?;
    search_rows.write(client).await?;
    for (no, draft) in edited {
        let sql = "UPDATE change_search SET needle = $2 WHERE no = $1";
        execute(client, sql, &[&no, &to_postgres_text(&search_text(&draft.change))]).await?;
    }
    set_heads(client, heads).await?;
    let records = batch
        .iter()
        .filter(|command| matches!(command.request, WriteRequest::Record(_) | WriteRequest::Restored(_)))
        .count();
    // Without a record, the notification says 0, which raises no counter.
    let records = if records > 0 {
        let sql = "UPDATE heads SET records = records + $1 RETURNING records";
        let row = query_opt(client, sql, &[&signed(records as u64)]).await?;
        row.map_or(0, |row| row.get::<_, i64>(0))
    } else {
        0
    };
    if node.live_count() > 1 {
        let notification = format!("{} {} {records}", node.id, heads.event);
        execute(client, "SELECT pg_notify($1, $2)", &[&CHANNEL, &notification]).await?;
    }
    Ok((outcomes, heads))
}
