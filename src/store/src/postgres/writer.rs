//! Writes changes: takes all queued requests, runs them in one transaction, commits, and only then answers (group
//! commit).
//!
//! First all changes are written with pipelined statements; a refused one (a conflict, a duplicate) touches no row.
//! Then the row of the heads is locked for the entries and events. If a statement fails, everything is rolled back and
//! each request runs alone.
//!
//! If the connection is lost before the commit was sent, nothing was written. If it is lost after that, the trail is
//! read with the heads locked: a writer that still holds them has not ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use deadpool_postgres::ClientWrapper;
use futures_util::future::{join, join_all};
use tokio::sync::mpsc::Receiver;

use super::{
    PgConnector,
    claims::{self, Role, UPDATE_CHANGE},
    connect::ANSWER_TIMEOUT,
    error,
    node_rows::CHANNEL,
    nodes::Membership,
    rows::{self, execute, one},
    trail::{InsertBatch, set_heads},
};
use crate::{
    CommittedWrite, Draft, Heads, Nodes as _, Record, StoreError, WriteError, WriteRequest,
    queue::{Command, IDLE_TIME, QueueMetrics, READ_BACK_TIMEOUT, WriteResult, answer, entry_of, event_of, refuse},
    rows::{signed, stored},
    search::needle,
    statements::{
        facts,
        records::{self, NewEntry},
    },
    values,
};
use countersign_domain::changes::{audit::AuditHead, machine::EventKind};
use countersign_runtime::crash::crash_point;

const INSERT: &str =
    "INSERT INTO changes (id, version, state, principal, idempotency_key, bytes, expires_at, body, votes, title)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING RETURNING no";

/// The limit for an idle transaction: the server's default (see [`connect`]), and one for statements that are so large
/// that their transfer may take longer. The latter ends before the heads are locked.
///
/// [`connect`]: super::connect
const SHORT_IDLE_LIMIT: &str = "SET LOCAL idle_in_transaction_session_timeout = '3s'";
const BEGIN_WITH_LONG_IDLE_LIMIT: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'";
/// The bytes of a batch from which the long limit applies.
const LONG_BATCH_BYTES: usize = 1 << 20;

/// The time for which a new connection waits for a gateway that keeps it out.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    connector: Arc<PgConnector>,
    membership: Arc<Membership>,
    /// The connection that marks the database as served.
    link: Option<ClientWrapper>,
    queue: Receiver<Command>,
    meter: QueueMetrics,
    closing: Arc<AtomicBool>,
}

/// The effect of a request, before the heads are locked.
enum WriteEffect<'a> {
    /// The number of the change.
    Transition(i64),
    /// The audit entries of another request.
    Entries(Vec<NewEntry<'a>>),
}

/// The reason why a batch was not written.
enum Failed {
    /// A failure, with nothing of the batch in the database.
    Aborted(StoreError),
    Unknown,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Aborted(error)
    }
}

impl Writer {
    pub fn new(
        connector: Arc<PgConnector>,
        membership: Arc<Membership>,
        queue: Receiver<Command>,
        meter: QueueMetrics,
        closing: Arc<AtomicBool>,
    ) -> Self {
        Self { connector, membership, link: None, queue, meter, closing }
    }

    /// Runs until the queue is closed. `ready` receives whether it could begin.
    pub async fn run(mut self, patience: Duration, ready: SyncSender<Result<(), StoreError>>) {
        let begun = self.begin(patience).await;
        let failed = begun.is_err();
        // The opener of the store waits.
        let _ = ready.send(begun);
        if failed {
            return;
        }
        while let Some(first) = self.next().await {
            let batch = self.meter.batch(first, || self.queue.try_recv().ok());
            let (size, began) = (batch.len(), Instant::now());
            self.batch(batch).await;
            self.meter.answered(size, began);
        }
    }

    async fn begin(&mut self, patience: Duration) -> Result<(), StoreError> {
        let link = self.connector.serve(patience, false).await?;
        facts::check_moved(&link).await?;
        self.link = Some(link);
        Ok(())
    }

    /// Returns the connection that marks the database as served, and reconnects if needed.
    async fn link(&mut self) -> Result<&ClientWrapper, StoreError> {
        if self.membership.is_replaced() {
            return Err(StoreError::Superseded);
        }
        if self.link.as_ref().is_none_or(|link| link.is_closed()) {
            self.link = None;
            let connector = Arc::clone(&self.connector);
            connector
                .answer(in_time(), self.begin(RECOVERY_TIMEOUT))
                .await
                .unwrap_or_else(|| Err(error::no_answer()))?;
        }
        self.link.as_ref().ok_or(StoreError::Closed)
    }

    /// Returns the next command; `None` once the queue is closed. During trouble, it probes in between whether that has
    /// ended, because a gateway that is not ready may receive no requests that would show it.
    async fn next(&mut self) -> Option<Command> {
        loop {
            match tokio::time::timeout(IDLE_TIME, self.queue.recv()).await {
                Ok(command) => return command,
                Err(_) if self.connector.health.trouble().is_some() => self.probe().await,
                Err(_) if self.link.as_ref().is_none_or(|link| link.is_closed()) => self.probe().await,
                Err(_) => {}
            }
        }
    }

    async fn probe(&mut self) {
        let connector = Arc::clone(&self.connector);
        let tried = async {
            let link = self.link().await?;
            Ok::<_, StoreError>(link.batch_execute("UPDATE heads SET event = event").await?)
        };
        match connector.answer(in_time(), tried).await.unwrap_or_else(|| Err(error::no_answer())) {
            Ok(()) => self.works(),
            Err(error) => {
                self.link = None;
                self.connector.health.failed(&error);
            }
        }
    }

    fn works(&self) {
        if self.connector.health.works() {
            tracing::info!("the store works again");
        }
    }

    async fn batch(&mut self, batch: Vec<Command>) {
        match self.attempt(&batch).await {
            Err(Failed::Aborted(error)) if batch.len() > 1 && self.link.is_some() => {
                tracing::warn!(%error, changes = batch.len(), "a transition failed; each runs alone");
                for command in batch {
                    let alone = vec![command];
                    let outcome = self.attempt(&alone).await;
                    self.ended(alone, outcome);
                }
            }
            outcome => self.ended(batch, outcome),
        }
    }

    fn ended(&self, batch: Vec<Command>, outcome: Result<Vec<WriteResult>, Failed>) {
        let error = match outcome {
            Ok(outcomes) => return answer(batch, outcomes),
            Err(Failed::Aborted(error)) => error,
            Err(Failed::Unknown) => StoreError::OutcomeUnknown,
        };
        self.connector.health.failed(&error);
        refuse(batch, &error);
    }

    /// Runs one transaction. After a failure, there is no open transaction, and no connection if that may be broken.
    async fn attempt(&mut self, batch: &[Command]) -> Result<Vec<WriteResult>, Failed> {
        self.link().await?;
        let Some(link) = self.link.take() else { return Err(StoreError::Closed.into()) };
        let connector = Arc::clone(&self.connector);
        // Without the connection, there is no transaction.
        let Some(written) = connector.answer(in_time(), write(&link, &self.membership, batch)).await else {
            return Err(error::no_answer().into());
        };
        let Ok((outcomes, Some(after))) = written else {
            let ended = connector.answer(in_time(), link.batch_execute("ROLLBACK")).await;
            self.link = ended.is_some_and(|done| done.is_ok()).then_some(link);
            return Ok(written?.0);
        };
        crash_point("before_commit");
        let pruned = batch.iter().any(|command| matches!(command.request, WriteRequest::Prune(_)));
        if pruned {
            crash_point("before_prune_commit");
        }
        match connector.answer(in_time(), link.batch_execute("COMMIT")).await {
            Some(Ok(())) => self.link = Some(link),
            Some(Err(error)) if !error::may_be_committed(&error) => {
                self.link = Some(link).filter(|_| !error::ends_connection(&error));
                return Err(Failed::Aborted(error.into()));
            }
            lost => {
                let error =
                    lost.map_or_else(error::no_answer, |ended| ended.err().map_or(StoreError::Closed, Into::into));
                tracing::error!(%error, "a commit was not answered; finding out what became of it");
                drop(link);
                self.read_back(after.audit, error).await?;
            }
        }
        self.membership.know(after);
        crash_point("after_commit");
        self.works();
        if pruned {
            crash_point("after_prune_commit");
        }
        Ok(outcomes)
    }

    /// Looks up whether the last entry of the commit is in the trail. Nothing is answered before that is known.
    async fn read_back(&mut self, ours: AuditHead, error: StoreError) -> Result<(), Failed> {
        let mut pause = Duration::from_millis(20);
        let mut give_up = None;
        loop {
            let looked = self.connector.answer(in_time(), found(&self.connector, ours)).await;
            match looked.unwrap_or_else(|| Err(error::no_answer())) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Failed::Aborted(error)),
                Err(again) => {
                    tracing::error!(error = %again, "the database is not readable; trying again");
                    // Readiness reports the failure meanwhile.
                    self.connector.health.failed(&again);
                }
            }
            if self.closing.load(Ordering::Acquire) {
                let until = *give_up.get_or_insert_with(|| Instant::now() + READ_BACK_TIMEOUT);
                if Instant::now() >= until {
                    return Err(Failed::Unknown);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

/// Returns the deadline for an answer to a statement that is sent now.
fn in_time() -> tokio::time::Instant {
    tokio::time::Instant::now() + ANSWER_TIMEOUT
}

/// Returns `true` if the trail has that entry, after any holder of the heads has ended.
async fn found(connector: &PgConnector, ours: AuditHead) -> Result<bool, StoreError> {
    let client = connector.connect().await?;
    client.batch_execute("BEGIN").await?;
    rows::take_heads(&client).await?;
    let row = one(&client, "SELECT hash FROM audit WHERE seq = $1", &[&signed(ours.seq)]).await?;
    Ok(row.is_some_and(|row| row.get::<_, &[u8]>(0) == ours.hash))
}

/// Writes everything up to the commit. Returns no heads if there is nothing to commit. After an error, the transaction
/// must be rolled back.
async fn write(
    link: &ClientWrapper,
    node: &Membership,
    batch: &[Command],
) -> Result<(Vec<WriteResult>, Option<Heads>), StoreError> {
    let long = batch.iter().map(|command| command.request.len()).sum::<usize>() >= LONG_BATCH_BYTES;
    link.batch_execute(if long { BEGIN_WITH_LONG_IDLE_LIMIT } else { "BEGIN" }).await?;
    let mut wrote: Vec<Result<WriteEffect<'_>, WriteError>> = Vec::with_capacity(batch.len());
    let mut rest = batch;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|command| command.request.is_plain()).count();
        let (these, others) = rest.split_at(run.max(1));
        rest = others;
        match &first.request {
            WriteRequest::Transition(draft) if !first.request.is_plain() => {
                wrote.push(ending(link, draft, these).await?)
            }
            WriteRequest::Transition(_) => wrote.extend(transitions(link, these).await?),
            other => {
                if let WriteRequest::Record(Record { late: Some(late), change, .. }) = other {
                    claims::record_late_call(link, change, late).await?;
                }
                let entries = records::write(link, other).await?;
                wrote.push(if entries.is_empty() {
                    Err(WriteError::Conflict)
                } else {
                    Ok(WriteEffect::Entries(entries))
                });
            }
        }
    }
    if wrote.iter().all(Result::is_err) {
        let refused = wrote.into_iter().map(|outcome| outcome.map(|_| CommittedWrite::default()));
        return Ok((refused.collect(), None));
    }
    let taken = async {
        // Sent together with the next statement.
        let limited = async { if long { link.batch_execute(SHORT_IDLE_LIMIT).await } else { Ok(()) } };
        let (limited, heads) = join(limited, node.take_heads(link)).await;
        limited?;
        heads
    };
    let (outcomes, heads) = tell(link, node, taken.await?, batch, wrote).await?;
    Ok((outcomes, Some(heads)))
}

impl WriteRequest {
    /// Returns `true` for a transition that may be pipelined.
    fn is_plain(&self) -> bool {
        matches!(self, Self::Transition(draft) if !matches!(Role::of(draft), Role::Orphan | Role::Settles))
    }
}

/// Writes transitions with pipelined statements.
async fn transitions(
    link: &ClientWrapper,
    commands: &[Command],
) -> Result<Vec<Result<WriteEffect<'static>, WriteError>>, StoreError> {
    let update = format!("{UPDATE_CHANGE} RETURNING no");
    let (insert, update) = (link.prepare_cached(INSERT).await?, link.prepare_cached(&update).await?);
    let (insert, update) = (&insert, &update);
    let drafts = commands.iter().filter_map(|command| match &command.request {
        WriteRequest::Transition(draft) => Some(draft),
        _ => None,
    });
    let sent = drafts.map(|draft| async move {
        let change = &draft.change;
        let (version, votes) = (signed(change.version), i32::try_from(change.decisions.len()).unwrap_or(i32::MAX));
        let (state, expires_at) = (change.state.as_str(), change.expires_at.to_string());
        let title = stored(&change.summary);
        let row = match draft.expected {
            None => {
                let (bytes, principal) = (signed(draft.body.len() as u64), stored(&change.proposer.principal));
                let key = change.idempotency_key.as_deref().map(stored);
                let values: &[rows::Value<'_>] =
                    &[&change.id, &version, &state, &principal, &key, &bytes, &expires_at, &draft.body, &votes, &title];
                link.query_opt(insert, values).await
            }
            Some(expected) => {
                let finished = change.state.is_final().then(|| change.updated_at.as_second());
                let expected = signed(expected);
                let plain: [rows::Value<'_>; 9] =
                    [&change.id, &expected, &version, &state, &expires_at, &draft.body, &finished, &votes, &title];
                let role = Role::of(draft);
                if let Role::Takes(by) | Role::Holds(by) = role {
                    return claims::step(link, plain, &role, change, by)
                        .await
                        .map(|no| no.map(WriteEffect::Transition));
                }
                link.query_opt(update, &plain).await
            }
        };
        Ok(match row? {
            Some(row) => Ok(WriteEffect::Transition(row.get(0))),
            None if draft.expected.is_none() => Err(WriteError::Duplicate),
            None => Err(WriteError::Conflict),
        })
    });
    let answers: Vec<Result<_, StoreError>> = join_all(sent).await;
    crash_point("within_transaction");
    answers.into_iter().collect()
}

/// Writes a transition that ends the claim of a node that is gone, or settles its outcome. It is not pipelined.
async fn ending(
    link: &ClientWrapper,
    draft: &Draft,
    alone: &[Command],
) -> Result<Result<WriteEffect<'static>, WriteError>, StoreError> {
    let id = &draft.change.id;
    let sql = "SELECT 1 FROM changes WHERE id = $1 AND version = $2 FOR UPDATE";
    if one(link, sql, &[id, &signed(draft.expected.unwrap_or(0))]).await?.is_none() {
        return Ok(Err(WriteError::Conflict));
    }
    let stands = match Role::of(draft) {
        Role::Settles => claims::end_settled_claim(link, id).await?,
        _ => claims::end_lost_claim(link, &draft.change).await?,
    };
    if !stands {
        return Ok(Err(WriteError::Fenced));
    }
    transitions(link, alone).await?.pop().ok_or(StoreError::Closed)
}

/// Writes entries and events. Nobody else gets their numbers while the heads are locked.
async fn tell(
    link: &ClientWrapper,
    node: &Membership,
    mut heads: Heads,
    batch: &[Command],
    wrote: Vec<Result<WriteEffect<'_>, WriteError>>,
) -> Result<(Vec<WriteResult>, Heads), StoreError> {
    let mut entries = InsertBatch::for_entries();
    let mut events = InsertBatch::new(
        "INSERT INTO events (seq, kind, change_id, at_ms, data)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[])",
    );
    let mut searched = InsertBatch::new(
        "INSERT INTO change_search (no, provider, tool, created_ms, call_hash, needle)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[])",
    );
    let mut renamed: Vec<(i64, &Draft)> = Vec::new();
    let mut outcomes = Vec::with_capacity(batch.len());
    for (command, wrote) in batch.iter().zip(wrote) {
        let wrote = match wrote {
            Ok(wrote) => wrote,
            Err(refused) => {
                outcomes.push(Err(refused));
                continue;
            }
        };
        outcomes.push(Ok(match (&command.request, wrote) {
            (WriteRequest::Transition(draft), WriteEffect::Transition(no)) => {
                let change = &draft.change;
                heads.audit = entries.push_entry(heads.audit, &entry_of(draft, 0, &draft.at.to_string()));
                match draft.kind {
                    EventKind::Created => {
                        let (created, call) = (change.created_at.as_millisecond(), draft.call_hash.as_ref());
                        let needle = needle(change);
                        searched.push(values![no, &change.provider, &change.tool, created, call, &needle]);
                    }
                    // The title may have changed.
                    EventKind::Edited | EventKind::Refreshed => renamed.push((no, draft)),
                    _ => {}
                }
                heads.event += 1;
                let event = event_of(draft, heads.event);
                let at = draft.at.as_millisecond();
                events.push(values![heads.event, draft.kind.feed_type(), &change.id, at, &event]);
                CommittedWrite { seq: heads.event, event: Bytes::from(event) }
            }
            (_, WriteEffect::Entries(new)) => {
                for entry in &new {
                    heads.audit = entries.push_entry(heads.audit, &entry.content(0));
                }
                CommittedWrite::default()
            }
            _ => return Err(StoreError::BadRecord("a write was answered as another one".into())),
        }));
    }
    entries.write(link).await?;
    events.write(link).await?;
    searched.write(link).await?;
    for (no, draft) in renamed {
        let sql = "UPDATE change_search SET needle = $2 WHERE no = $1";
        execute(link, sql, &[&no, &stored(&needle(&draft.change))]).await?;
    }
    set_heads(link, heads).await?;
    let records = batch
        .iter()
        .filter(|command| matches!(command.request, WriteRequest::Record(_) | WriteRequest::Restored(_)))
        .count();
    // Without a record, the hint says 0, which is no news to anybody.
    let records = if records > 0 {
        let sql = "UPDATE heads SET records = records + $1 RETURNING records";
        let row = one(link, sql, &[&signed(records as u64)]).await?;
        row.map_or(0, |row| row.get::<_, i64>(0))
    } else {
        0
    };
    if node.live_count() > 1 {
        let hint = format!("{} {} {records}", node.id, heads.event);
        execute(link, "SELECT pg_notify($1, $2)", &[&CHANNEL, &hint]).await?;
    }
    Ok((outcomes, heads))
}
