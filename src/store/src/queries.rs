//! Implements the reads of the store for both backends with the same statements, of which each uses an index.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::{
    AuditSearch, FoundEntries, Heads, ListQuery, Listing, LiveChange, Occupant, OverviewRecords, ProposalRecord,
    PrunableRecords, PruningCutoffs, Store, StoreBackend, StoreError, StoreFuture, StoredEvent, StoredProposal,
    TransitionRecord, WriteCallback, WriteRequest,
    queue::WriteQueue,
    rows::{parse_change, parse_state},
    sql::{Row, Sql},
    statements::{
        changes::{self, read_event},
        claims, facts, pins, retention, standing_rules, trail,
    },
    values,
};
use countersign_domain::{
    changes::{Change, ChangeState, audit::AuditEntry, plan::StepState},
    policy::{Pins, StandingRule},
};

/// A backend's queue of writes, and its connections for reads.
pub(crate) trait Queries: StoreBackend {
    type Connection: Sql;

    fn write_queue(&self) -> &WriteQueue;

    /// Runs statements on another thread. The answer may be awaited in any runtime.
    fn read<T: Send + 'static>(
        &self,
        query: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T>;

    /// Runs statements, and parses the answer where parsing blocks nobody else. By default, the caller's task parses.
    fn read_and_parse<R: Send + 'static, T: Send + 'static>(
        &self,
        query: impl AsyncFnOnce(&Self::Connection) -> Result<R, StoreError> + Send + 'static,
        parse: fn(R) -> Result<T, StoreError>,
    ) -> StoreFuture<T> {
        let read = self.read(query);
        Box::pin(async move { parse(read.await?) })
    }
}

/// The maximum number of audit entries and of waiting changes that the overview reads.
const MAX_OVERVIEW_ENTRIES: usize = 20_000;
const MAX_OVERVIEW_WAITING: usize = 5_000;

/// The maximum number of proposals that are read for bundles, the newest ones.
const MAX_BUNDLE_CANDIDATES: usize = 20_000;
/// The time before the oldest waiting proposal from which proposals are read, so that a bundle keeps its first change
/// after that was decided.
const BUNDLE_LOOK_BACK: SignedDuration = SignedDuration::from_hours(24);

fn read_transition(row: &Row) -> Result<TransitionRecord, StoreError> {
    Ok(TransitionRecord {
        at: row.get(0)?,
        change_id: row.get(1)?,
        from: row.get::<Option<&str>>(2)?.map(parse_state).transpose()?,
        to: parse_state(row.get(3)?)?,
        principal: row.get(4)?,
        provider: row.get(5)?,
        tool: row.get(6)?,
        created_at: row.get(7)?,
    })
}

/// Parses a row with the body of a change.
fn parse_body(row: Option<Row>) -> Result<Option<Arc<Change>>, StoreError> {
    row.map(|row| parse_change(row.get(0)?)).transpose()
}

impl<B: Queries> Store for B {
    fn submit(&self, request: WriteRequest, callback: WriteCallback) {
        self.write_queue().send(request, callback);
    }

    fn find_prunable(&self, before: PruningCutoffs) -> StoreFuture<PrunableRecords> {
        self.read(async move |db| retention::find_prunable(db, before).await)
    }

    fn backup_time(&self) -> StoreFuture<Option<Timestamp>> {
        self.read(async |db| facts::backup_time(db).await)
    }

    fn pins(&self) -> StoreFuture<Pins> {
        self.read(async |db| pins::load(db).await)
    }

    fn standing_rules(&self) -> StoreFuture<Vec<StandingRule>> {
        self.read(async |db| standing_rules::load(db).await)
    }

    fn get(&self, id: &str) -> StoreFuture<Option<Arc<Change>>> {
        let (sql, id) = ("SELECT body FROM changes WHERE id = ?1", id.to_owned());
        self.read_and_parse(async move |db| db.first(sql, values![&id]).await, parse_body)
    }

    fn find_by_idempotency_key(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>> {
        let sql =
            "SELECT body FROM changes WHERE idempotency_key IS NOT NULL AND principal = ?1 AND idempotency_key = ?2";
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.read_and_parse(async move |db| db.first(sql, values![&principal, &key]).await, parse_body)
    }

    fn list(&self, query: ListQuery) -> StoreFuture<Listing> {
        self.read_and_parse(async move |db| changes::list(db, &query).await, changes::Page::parse)
    }

    fn live_changes(&self) -> StoreFuture<Vec<LiveChange>> {
        self.read(async |db| changes::list_live(db).await)
    }

    fn proposals_since(&self, since: Timestamp) -> StoreFuture<Vec<ProposalRecord>> {
        let sql = format!(
            "SELECT s.created_ms, c.principal, c.bytes FROM change_search s JOIN changes c ON c.no = s.no
             WHERE {} ORDER BY s.no",
            B::Connection::DIALECT.created_since
        );
        let read = |row: &Row| Ok(ProposalRecord { at: row.get(0)?, principal: row.get(1)?, bytes: row.get(2)? });
        self.read(async move |db| db.rows(&sql, values![since.as_millisecond()]).await?.iter().map(read).collect())
    }

    fn overview(&self, since: Timestamp) -> StoreFuture<OverviewRecords> {
        let entries =
            "SELECT a.at, a.change_id, a.from_state, a.to_state, c.principal, s.provider, s.tool, s.created_ms
             FROM (SELECT seq, at, change_id, from_state, to_state FROM audit ORDER BY seq DESC LIMIT ?1) a
             LEFT JOIN changes c ON c.id = a.change_id LEFT JOIN change_search s ON s.no = c.no
             ORDER BY a.seq DESC";
        let waiting = "SELECT s.created_ms FROM changes c JOIN change_search s ON s.no = c.no
                       WHERE c.state IN ('pending', 'stale') ORDER BY c.no LIMIT ?1";
        self.read(async move |db| {
            let rows = db.rows(entries, values![MAX_OVERVIEW_ENTRIES]).await?;
            let mut transitions = Vec::new();
            let mut is_complete = rows.len() < MAX_OVERVIEW_ENTRIES;
            for row in &rows {
                if row.get::<Timestamp>(0)? < since {
                    is_complete = true;
                    break;
                }
                // Entries about keys, definitions and rules have no state, and those about pruned changes have no change.
                if row.get::<Option<&str>>(4)?.is_some() && !row.get::<&str>(3)?.is_empty() {
                    transitions.push(read_transition(row)?);
                }
            }
            let waiting = db.rows(waiting, values![MAX_OVERVIEW_WAITING]).await?;
            is_complete &= waiting.len() < MAX_OVERVIEW_WAITING;
            let waiting_since = waiting.iter().map(|row| row.get(0)).collect::<Result<_, StoreError>>()?;
            Ok(OverviewRecords { transitions, waiting_since, is_complete })
        })
    }

    fn bundle_candidates(&self) -> StoreFuture<Vec<StoredProposal>> {
        let oldest = "SELECT s.created_ms FROM changes c JOIN change_search s ON s.no = c.no
                      WHERE c.state IN ('pending', 'stale') AND c.plan_id IS NULL ORDER BY c.no LIMIT 1";
        let proposals = format!(
            "SELECT c.id, c.state, c.principal, s.provider, s.tool, s.created_ms
             FROM change_search s JOIN changes c ON c.no = s.no
             WHERE {} AND c.plan_id IS NULL ORDER BY s.no DESC LIMIT ?2",
            B::Connection::DIALECT.created_since
        );
        let read = |row: &Row| {
            Ok(StoredProposal {
                id: row.get(0)?,
                state: parse_state(row.get(1)?)?,
                principal: row.get(2)?,
                provider: row.get(3)?,
                tool: row.get(4)?,
                at: row.get(5)?,
            })
        };
        self.read(async move |db| {
            let Some(oldest) = db.first(oldest, &[]).await? else { return Ok(Vec::new()) };
            let since = oldest.get::<Timestamp>(0)? - BUNDLE_LOOK_BACK;
            let rows = db.rows(&proposals, values![since.as_millisecond(), MAX_BUNDLE_CANDIDATES]).await?;
            rows.iter().rev().map(read).collect()
        })
    }

    fn plan(&self, plan: &str) -> StoreFuture<Vec<Arc<Change>>> {
        let (sql, plan) = ("SELECT body FROM changes WHERE plan_id = ?1 ORDER BY plan_index", plan.to_owned());
        let parse = |rows: Vec<Row>| rows.iter().map(|row| parse_change(row.get(0)?)).collect();
        self.read_and_parse(async move |db| db.rows(sql, values![&plan]).await, parse)
    }

    fn plan_states(&self, plan: &str) -> StoreFuture<Vec<StepState>> {
        let sql = "SELECT id, version, state, plan_index, plan_last, run_after_ms FROM changes
                   WHERE plan_id = ?1 ORDER BY plan_index";
        let read = |row: &Row| {
            Ok(StepState {
                change: row.get(0)?,
                version: row.get(1)?,
                state: parse_state(row.get(2)?)?,
                index: row.get(3)?,
                last: row.get(4)?,
                run_after: row.get(5)?,
            })
        };
        let plan = plan.to_owned();
        self.read(async move |db| db.rows(sql, values![&plan]).await?.iter().map(read).collect())
    }

    fn open_plans(&self) -> StoreFuture<Vec<String>> {
        let sql = "SELECT DISTINCT plan_id FROM changes
                   WHERE state IN ('pending', 'stale', 'approved') AND plan_id IS NOT NULL ORDER BY plan_id";
        self.read(async move |db| db.rows(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
    }

    fn changes_with_votes(&self) -> StoreFuture<Vec<String>> {
        let has_votes = B::Connection::DIALECT.has_votes;
        let sql = format!("SELECT id FROM changes WHERE {has_votes} AND state IN ('pending', 'approved') ORDER BY no");
        self.read(async move |db| db.rows(&sql, &[]).await?.iter().map(|row| row.get(0)).collect())
    }

    fn count_by_state(&self) -> StoreFuture<Vec<(ChangeState, u64)>> {
        let sql = "SELECT state, count(*) FROM changes GROUP BY state";
        let read = |row: &Row| Ok((parse_state(row.get(0)?)?, row.get(1)?));
        self.read(async move |db| db.rows(sql, &[]).await?.iter().map(read).collect())
    }

    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>> {
        let sql = "SELECT seq, kind, data FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        self.read(async move |db| db.rows(sql, values![after, limit]).await?.iter().map(read_event).collect())
    }

    fn occupants(&self, targets: Vec<String>, now: Timestamp) -> StoreFuture<Vec<Occupant>> {
        self.read(async move |db| claims::occupants(db, &targets, now).await)
    }

    fn audit_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<AuditEntry>> {
        self.read(async move |db| trail::entries_after(db, after, limit).await)
    }

    fn search_audit(&self, search: AuditSearch, before: Option<u64>, limit: usize) -> StoreFuture<FoundEntries> {
        self.read(async move |db| trail::search(db, &search, before, limit).await)
    }

    fn heads(&self) -> StoreFuture<Heads> {
        self.read(async |db| db.heads().await)
    }
}
