//! Implements the store's reads for both backends with the same statements.

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    AuditSearch, FoundEntries, Heads, ListQuery, Listing, LiveChange, Occupant, OverviewRecords, ProposalRecord,
    PrunableRecords, PruningCutoffs, Store, StoreBackend, StoreError, StoreFuture, StoredEvent, StoredProposal,
    WriteCallback, WriteRequest,
    queue::WriteQueue,
    sql::Sql,
    statements::{bundles, changes, claims, facts, overview, pins, plans, retention, standing_rules, trail},
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
        let id = id.to_owned();
        self.read_and_parse(async move |db| changes::get(db, &id).await, changes::parse_body)
    }

    fn find_by_idempotency_key(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        let query = async move |db: &B::Connection| changes::find_by_idempotency_key(db, &principal, &key).await;
        self.read_and_parse(query, changes::parse_body)
    }

    fn list(&self, query: ListQuery) -> StoreFuture<Listing> {
        self.read_and_parse(async move |db| changes::list(db, &query).await, changes::Page::parse)
    }

    fn live_changes(&self) -> StoreFuture<Vec<LiveChange>> {
        self.read(async |db| changes::list_live(db).await)
    }

    fn proposals_since(&self, since: Timestamp) -> StoreFuture<Vec<ProposalRecord>> {
        self.read(async move |db| changes::proposals_since(db, since).await)
    }

    fn overview(&self, since: Timestamp) -> StoreFuture<OverviewRecords> {
        self.read(async move |db| overview::overview(db, since).await)
    }

    fn bundle_candidates(&self) -> StoreFuture<Vec<StoredProposal>> {
        self.read(async |db| bundles::proposals(db).await)
    }

    fn plan(&self, plan: &str) -> StoreFuture<Vec<Arc<Change>>> {
        let plan = plan.to_owned();
        self.read_and_parse(async move |db| plans::steps(db, &plan).await, plans::parse_bodies)
    }

    fn plan_states(&self, plan: &str) -> StoreFuture<Vec<StepState>> {
        let plan = plan.to_owned();
        self.read(async move |db| plans::step_states(db, &plan).await)
    }

    fn open_plans(&self) -> StoreFuture<Vec<String>> {
        self.read(async |db| plans::list_open(db).await)
    }

    fn changes_with_votes(&self) -> StoreFuture<Vec<String>> {
        self.read(async |db| changes::list_voted(db).await)
    }

    fn count_by_state(&self) -> StoreFuture<Vec<(ChangeState, u64)>> {
        self.read(async |db| changes::count_by_state(db).await)
    }

    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>> {
        self.read(async move |db| changes::events_after(db, after, limit).await)
    }

    fn occupants(&self, targets: Vec<String>, now: Timestamp) -> StoreFuture<Vec<Occupant>> {
        self.read(async move |db| claims::occupants(db, &targets, now).await)
    }

    fn audit_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<AuditEntry>> {
        self.read(async move |db| trail::entries_after(db, after, limit).await)
    }

    fn search_audit(&self, search: AuditSearch, before: Option<u64>, limit: usize) -> StoreFuture<FoundEntries> {
        self.read(async move |db| {
            let newest = db.heads().await?.audit.seq;
            trail::search(db, &search, newest, before, limit).await
        })
    }

    fn heads(&self) -> StoreFuture<Heads> {
        self.read(async |db| db.heads().await)
    }
}
