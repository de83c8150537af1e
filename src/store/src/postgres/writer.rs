//! What writes changes: it takes whatever is queued, runs it all in one transaction, commits, and only then answers (group
//! commit).
//!
//! First every change is written, one statement after the other without waiting between them; what may not be (a conflict,
//! a duplicate) touches no row. Then the row of the heads is taken, for as long as the entries and events take. Should a
//! statement fail, everything is rolled back and each transition runs alone, so that none spoils another.
//!
//! Where the connection is lost before the commit was asked for, nothing was written. Where it is lost after that, the trail
//! is looked at with the heads held: whoever still holds them has not ended.

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
    Ground,
    claims::{self, MOVED, Role},
    connect::ANSWER,
    error,
    node_rows::CHANNEL,
    nodes::Membership,
    rows::{self, execute, one},
    trail::{InsertBatch, set_heads},
};
use crate::{
    Draft, Heads, Nodes as _, Record, StoreError, WriteError, WriteRequest, Written,
    queue::{Command, GIVE_UP, Meter, QUIET, WriteResult, answer, entry_of, event_of, refuse},
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

/// As the server has it for a transaction that stands still (see [`connect`]), and for one whose statements are so long that
/// they may take longer on their way: it has read nothing before it has read a whole message. Only up to the heads, which hold
/// up everybody.
///
/// [`connect`]: super::connect
const STANDS_STILL: &str = "SET LOCAL idle_in_transaction_session_timeout = '3s'";
const ON_ITS_WAY: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'";
/// From so many bytes of changes on.
const LONG: usize = 1 << 20;

/// How long a connection that is made anew waits for what keeps it out.
const RECOVERY: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    ground: Arc<Ground>,
    membership: Arc<Membership>,
    /// Says that the database is served.
    link: Option<ClientWrapper>,
    queue: Receiver<Command>,
    meter: Meter,
    closing: Arc<AtomicBool>,
}

/// What was written of a command before the heads were taken.
enum Wrote<'a> {
    /// The change's number.
    Transition(i64),
    /// The audit entries of another request.
    Entries(Vec<NewEntry<'a>>),
}

/// Why a batch was not written.
enum Failed {
    /// Something failed, and nothing of it is or will be in the database.
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
        ground: Arc<Ground>,
        membership: Arc<Membership>,
        queue: Receiver<Command>,
        meter: Meter,
        closing: Arc<AtomicBool>,
    ) -> Self {
        Self { ground, membership, link: None, queue, meter, closing }
    }

    /// Runs until the queue's senders are gone. `ready` hears whether it could begin.
    pub async fn run(mut self, patience: Duration, ready: SyncSender<Result<(), StoreError>>) {
        let begun = self.begin(patience).await;
        let failed = begun.is_err();
        // Whoever opened the store waits.
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
        let link = self.ground.serve(patience, false).await?;
        facts::check_moved(&link).await?;
        self.link = Some(link);
        Ok(())
    }

    /// A connection that says that the database is served.
    async fn link(&mut self) -> Result<&ClientWrapper, StoreError> {
        if self.membership.is_replaced() {
            return Err(StoreError::Superseded);
        }
        if self.link.as_ref().is_none_or(|link| link.is_closed()) {
            self.link = None;
            let ground = Arc::clone(&self.ground);
            ground.answer(in_time(), self.begin(RECOVERY)).await.unwrap_or_else(|| Err(error::silent()))?;
        }
        self.link.as_ref().ok_or(StoreError::Closed)
    }

    /// The next command; `None` once the queue's senders are gone. While there is trouble, it is tried in between
    /// whether that is over: a gateway that is not ready may be sent nothing that would find out.
    async fn next(&mut self) -> Option<Command> {
        loop {
            match tokio::time::timeout(QUIET, self.queue.recv()).await {
                Ok(command) => return command,
                Err(_) if self.ground.health.trouble().is_some() => self.probe().await,
                Err(_) if self.link.as_ref().is_none_or(|link| link.is_closed()) => self.probe().await,
                Err(_) => {}
            }
        }
    }

    async fn probe(&mut self) {
        let ground = Arc::clone(&self.ground);
        let tried = async {
            let link = self.link().await?;
            Ok::<_, StoreError>(link.batch_execute("UPDATE heads SET event = event").await?)
        };
        match ground.answer(in_time(), tried).await.unwrap_or_else(|| Err(error::silent())) {
            Ok(()) => self.works(),
            Err(error) => {
                self.link = None;
                self.ground.health.failed(&error);
            }
        }
    }

    fn works(&self) {
        if self.ground.health.works() {
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
        self.ground.health.failed(&error);
        refuse(batch, &error);
    }

    /// One transaction. After a failure there is no transaction and, where the connection may be spoiled, no connection.
    async fn attempt(&mut self, batch: &[Command]) -> Result<Vec<WriteResult>, Failed> {
        self.link().await?;
        let Some(link) = self.link.take() else { return Err(StoreError::Closed.into()) };
        let ground = Arc::clone(&self.ground);
        // Without a connection there is no transaction.
        let Some(written) = ground.answer(in_time(), write(&link, &self.membership, batch)).await else {
            return Err(error::silent().into());
        };
        let Ok((outcomes, Some(after))) = written else {
            let ended = ground.answer(in_time(), link.batch_execute("ROLLBACK")).await;
            self.link = ended.is_some_and(|done| done.is_ok()).then_some(link);
            return Ok(written?.0);
        };
        crash_point("before_commit");
        let pruned = batch.iter().any(|command| matches!(command.request, WriteRequest::Prune(_)));
        if pruned {
            crash_point("before_prune_commit");
        }
        match ground.answer(in_time(), link.batch_execute("COMMIT")).await {
            Some(Ok(())) => self.link = Some(link),
            Some(Err(error)) if !error::may_be_made(&error) => {
                self.link = Some(link).filter(|_| !error::ends(&error));
                return Err(Failed::Aborted(error.into()));
            }
            lost => {
                let error = lost.map_or_else(error::silent, |ended| ended.err().map_or(StoreError::Closed, Into::into));
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

    /// Whether the entry with which the commit ended is there. Nothing is answered until that is known.
    async fn read_back(&mut self, ours: AuditHead, error: StoreError) -> Result<(), Failed> {
        let mut pause = Duration::from_millis(20);
        let mut give_up = None;
        loop {
            let looked = self.ground.answer(in_time(), found(&self.ground, ours)).await;
            match looked.unwrap_or_else(|| Err(error::silent())) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Failed::Aborted(error)),
                Err(again) => {
                    tracing::error!(error = %again, "the database is not readable; trying again");
                    // Whoever asks whether it works hears that it does not.
                    self.ground.health.failed(&again);
                }
            }
            if self.closing.load(Ordering::Acquire) {
                let until = *give_up.get_or_insert_with(|| Instant::now() + GIVE_UP);
                if Instant::now() >= until {
                    return Err(Failed::Unknown);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

/// Until when an answer to what is sent now is waited for.
fn in_time() -> tokio::time::Instant {
    tokio::time::Instant::now() + ANSWER
}

/// Whether the trail has that entry, once whoever holds the heads has ended.
async fn found(ground: &Ground, ours: AuditHead) -> Result<bool, StoreError> {
    let client = ground.connect().await?;
    client.batch_execute("BEGIN").await?;
    rows::take_heads(&client).await?;
    let row = one(&client, "SELECT hash FROM audit WHERE seq = $1", &[&signed(ours.seq)]).await?;
    Ok(row.is_some_and(|row| row.get::<_, &[u8]>(0) == ours.hash))
}

/// Everything up to the commit; where nothing is to be committed, no heads. An error spoils the transaction.
async fn write(
    link: &ClientWrapper,
    node: &Membership,
    batch: &[Command],
) -> Result<(Vec<WriteResult>, Option<Heads>), StoreError> {
    let long = batch.iter().map(|command| command.request.len()).sum::<usize>() >= LONG;
    link.batch_execute(if long { ON_ITS_WAY } else { "BEGIN" }).await?;
    let mut wrote: Vec<Result<Wrote<'_>, WriteError>> = Vec::with_capacity(batch.len());
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
                    claims::came_back(link, change, late).await?;
                }
                let entries = records::write(link, other).await?;
                wrote.push(if entries.is_empty() { Err(WriteError::Conflict) } else { Ok(Wrote::Entries(entries)) });
            }
        }
    }
    if wrote.iter().all(Result::is_err) {
        let refused = wrote.into_iter().map(|outcome| outcome.map(|_| Written::default()));
        return Ok((refused.collect(), None));
    }
    let taken = async {
        // In one go with what comes next.
        let limited = async { if long { link.batch_execute(STANDS_STILL).await } else { Ok(()) } };
        let (limited, heads) = join(limited, node.take_heads(link)).await;
        limited?;
        heads
    };
    let (outcomes, heads) = tell(link, node, taken.await?, batch, wrote).await?;
    Ok((outcomes, Some(heads)))
}

impl WriteRequest {
    /// Whether it is a transition that may be sent before the one before it is answered.
    fn is_plain(&self) -> bool {
        matches!(self, Self::Transition(draft) if !matches!(Role::of(draft), Role::Orphan | Role::Settles))
    }
}

/// Transitions, each of which is sent before the one before it is answered.
async fn transitions(
    link: &ClientWrapper,
    commands: &[Command],
) -> Result<Vec<Result<Wrote<'static>, WriteError>>, StoreError> {
    let update = format!("{MOVED} RETURNING no");
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
                    return claims::step(link, plain, &role, change, by).await.map(|no| no.map(Wrote::Transition));
                }
                link.query_opt(update, &plain).await
            }
        };
        Ok(match row? {
            Some(row) => Ok(Wrote::Transition(row.get(0))),
            None if draft.expected.is_none() => Err(WriteError::Duplicate),
            None => Err(WriteError::Conflict),
        })
    });
    let answers: Vec<Result<_, StoreError>> = join_all(sent).await;
    crash_point("within_transaction");
    answers.into_iter().collect()
}

/// A transition that ends the claim of a node that is gone, or what it left; with no other beside it.
async fn ending(
    link: &ClientWrapper,
    draft: &Draft,
    alone: &[Command],
) -> Result<Result<Wrote<'static>, WriteError>, StoreError> {
    let id = &draft.change.id;
    let sql = "SELECT 1 FROM changes WHERE id = $1 AND version = $2 FOR UPDATE";
    if one(link, sql, &[id, &signed(draft.expected.unwrap_or(0))]).await?.is_none() {
        return Ok(Err(WriteError::Conflict));
    }
    let stands = match Role::of(draft) {
        Role::Settles => claims::settle(link, id).await?,
        _ => claims::lapse(link, &draft.change).await?,
    };
    if !stands {
        return Ok(Err(WriteError::Fenced));
    }
    transitions(link, alone).await?.pop().ok_or(StoreError::Closed)
}

/// The last part: entries and events with their numbers, which nobody else gets as long as the heads are held.
async fn tell(
    link: &ClientWrapper,
    node: &Membership,
    mut heads: Heads,
    batch: &[Command],
    wrote: Vec<Result<Wrote<'_>, WriteError>>,
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
            (WriteRequest::Transition(draft), Wrote::Transition(no)) => {
                let change = &draft.change;
                heads.audit = entries.push_entry(heads.audit, &entry_of(draft, 0, &draft.at.to_string()));
                match draft.kind {
                    EventKind::Created => {
                        let (created, call) = (change.created_at.as_millisecond(), draft.call_hash.as_ref());
                        let needle = needle(change);
                        searched.push(values![no, &change.provider, &change.tool, created, call, &needle]);
                    }
                    // What it is called may be something else now.
                    EventKind::Edited | EventKind::Refreshed => renamed.push((no, draft)),
                    _ => {}
                }
                heads.event += 1;
                let event = event_of(draft, heads.event);
                let at = draft.at.as_millisecond();
                events.push(values![heads.event, draft.kind.feed_type(), &change.id, at, &event]);
                Written { seq: heads.event, event: Bytes::from(event) }
            }
            (_, Wrote::Entries(new)) => {
                for entry in &new {
                    heads.audit = entries.push_entry(heads.audit, &entry.content(0));
                }
                Written::default()
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
    // Without one the hint tells of none, which is nothing new to anybody.
    let records = if records > 0 {
        let sql = "UPDATE heads SET records = records + $1 RETURNING records";
        let row = one(link, sql, &[&signed(records as u64)]).await?;
        row.map_or(0, |row| row.get::<_, i64>(0))
    } else {
        0
    };
    if node.live() > 1 {
        let hint = format!("{} {} {records}", node.id, heads.event);
        execute(link, "SELECT pg_notify($1, $2)", &[&CHANNEL, &hint]).await?;
    }
    Ok((outcomes, heads))
}
