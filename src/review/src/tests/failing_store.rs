//! A store that fails or lies at the worst moments: nothing is run twice, and nothing is lost.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use super::super::testing::*;
use countersign_domain::changes::{Change, ChangeState, Verdict, audit::AuditEntry, machine::EventKind};
use countersign_protocol::ErrorKind;
use countersign_store::{
    Heads, ListQuery, Listing, LiveChange, Place, Store, StoreBackend, StoreError, StoreFuture, StoredEvent,
    WriteCallback, WriteError, WriteRequest,
};

/// The failure of writes of one kind, and how often it happens.
#[derive(Clone)]
enum Trouble {
    /// Refused; nothing is written.
    Refuse(StoreError),
    /// Written, and then said to be unknown.
    Deny,
    /// The same, and from then on no change can be read.
    DenyUnread,
}

struct Flaky {
    store: Arc<dyn Store>,
    /// No change can be read.
    unreadable: AtomicBool,
    trouble: Mutex<Option<(EventKind, Trouble, usize)>>,
}

impl StoreBackend for Flaky {
    fn policies(&self) -> StoreFuture<countersign_store::PolicySnapshots> {
        self.store.policies()
    }
    fn save_policy(&self, snapshot: countersign_store::PolicySnapshot, by_consent: bool) -> StoreFuture<()> {
        self.store.save_policy(snapshot, by_consent)
    }
    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<countersign_store::RemoteEvent>> {
        self.store.remote_events_after(after, limit)
    }
    fn orphaned_changes(&self) -> StoreFuture<Vec<String>> {
        self.store.orphaned_changes()
    }
    fn nodes(&self) -> Arc<dyn countersign_store::Nodes> {
        self.store.nodes()
    }
    fn current_error(&self) -> Option<StoreError> {
        self.store.current_error()
    }
    fn is_open(&self) -> bool {
        self.store.is_open()
    }
    fn close(&self) {
        self.store.close();
    }
}

impl Store for Flaky {
    fn submit(&self, request: WriteRequest, done: WriteCallback) {
        let mut trouble = self.trouble.lock().unwrap();
        match (trouble.as_mut(), &request) {
            (Some((kind, what, left)), WriteRequest::Transition(draft)) if *kind == draft.kind && *left > 0 => {
                *left -= 1;
                self.unreadable.store(matches!(what, Trouble::DenyUnread), Ordering::SeqCst);
                match what.clone() {
                    Trouble::Refuse(error) => done(Err(error.into()), false),
                    Trouble::Deny | Trouble::DenyUnread => self.store.submit(
                        request,
                        Box::new(move |_, more| done(Err(WriteError::Store(StoreError::OutcomeUnknown)), more)),
                    ),
                }
            }
            _ => self.store.submit(request, done),
        }
    }
    fn get(&self, id: &str) -> StoreFuture<Option<Arc<Change>>> {
        if self.unreadable.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Locked) });
        }
        self.store.get(id)
    }
    fn find_idempotent(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>> {
        self.store.find_idempotent(principal, key)
    }
    fn list(&self, query: ListQuery) -> StoreFuture<Listing> {
        self.store.list(query)
    }
    fn live_changes(&self) -> StoreFuture<Vec<LiveChange>> {
        self.store.live_changes()
    }
    fn proposals_since(&self, since: jiff::Timestamp) -> StoreFuture<Vec<countersign_store::ProposalRecord>> {
        self.store.proposals_since(since)
    }
    fn changes_with_votes(&self) -> StoreFuture<Vec<String>> {
        self.store.changes_with_votes()
    }
    fn count_by_state(&self) -> StoreFuture<Vec<(ChangeState, u64)>> {
        self.store.count_by_state()
    }
    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>> {
        self.store.events_after(after, limit)
    }
    fn occupants(&self, targets: Vec<String>, now: jiff::Timestamp) -> StoreFuture<Vec<countersign_store::Occupant>> {
        self.store.occupants(targets, now)
    }
    fn find_prunable(
        &self,
        before: countersign_store::PruningCutoffs,
    ) -> StoreFuture<countersign_store::PrunableRecords> {
        self.store.find_prunable(before)
    }
    fn backup_time(&self) -> StoreFuture<Option<jiff::Timestamp>> {
        self.store.backup_time()
    }
    fn pins(&self) -> StoreFuture<countersign_domain::policy::Pins> {
        self.store.pins()
    }
    fn standing_rules(&self) -> StoreFuture<Vec<countersign_domain::policy::StandingRule>> {
        self.store.standing_rules()
    }
    fn audit_page(&self, change: Option<String>, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditEntry>> {
        self.store.audit_page(change, before, limit)
    }
    fn search_audit(
        &self,
        search: countersign_store::AuditSearch,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<countersign_store::FoundEntries> {
        self.store.search_audit(search, before, limit)
    }
    fn heads(&self) -> StoreFuture<Heads> {
        self.store.heads()
    }
}

/// Until the store has failed as often as it was to.
async fn troubled(store: &Flaky) {
    while store.trouble.lock().unwrap().as_ref().is_some_and(|(_, _, left)| *left > 0) {
        tokio::task::yield_now().await;
    }
}

async fn flaky(kind: EventKind, trouble: Trouble, times: usize) -> (Bench, Arc<Flaky>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Flaky {
        store: Place::directory(dir.path()).open().unwrap(),
        unreadable: AtomicBool::new(false),
        trouble: Mutex::new(Some((kind, trouble, times))),
    });
    let skew = Arc::new(AtomicI64::new(0));
    let bench = Bench::on_store(Arc::clone(&store) as _, fake(), Arc::clone(&skew), config(&skew)).await;
    (bench, store, dir)
}

#[actix::test]
async fn failed_outcome_write_is_retried_without_a_second_call() {
    let (bench, store, _dir) = flaky(EventKind::Applied, Trouble::Refuse(StoreError::DiskFull), 3).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    bench.until(&change.id, ChangeState::Applied).await;
    assert_eq!(bench.fake.call_count(), 1);
    assert_eq!(store.trouble.lock().unwrap().as_ref().unwrap().2, 0, "it failed as the test wanted");
    bench.end().await;
}

#[actix::test]
async fn a_result_that_was_recorded_and_denied_is_not_recorded_twice() {
    let (bench, store, dir) = flaky(EventKind::Applied, Trouble::Deny, 1).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    troubled(&store).await;
    bench.changes.shutdown(std::time::Duration::from_secs(20)).await;
    let trail = Place::directory(dir.path()).verify_audit(None).unwrap();
    assert_eq!((trail.entries, bench.fake.call_count()), (4, 1));
}

#[actix::test]
async fn nothing_runs_before_the_claim_is_durable() {
    let (bench, _store, _dir) = flaky(EventKind::Executing, Trouble::Refuse(StoreError::Locked), 5).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    bench.until(&change.id, ChangeState::Applied).await;
    let previews = bench.fake.previews.load(Ordering::SeqCst);
    assert_eq!((previews, bench.fake.call_count()), (7, 1), "looked at anew for each claim");
    for kind in ["change.created", "change.approved", "change.executing", "change.applied"] {
        assert_eq!(feed.next().await.unwrap().kind, kind);
    }
    bench.end().await;
}

#[actix::test]
async fn a_claim_of_unknown_outcome_is_never_run() {
    let (bench, store, dir) = flaky(EventKind::Executing, Trouble::Deny, 1).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    troubled(&store).await;
    let (_, fake, skew) = bench.end().await;
    assert_eq!(fake.call_count(), 0);
    let bench = Bench::at_path(dir.path(), fake, Arc::clone(&skew), config(&skew)).await;
    assert_eq!(bench.get(&change.id).await.state, ChangeState::OutcomeUnknown, "a person settles it");
    bench.end().await;
}

/// As a step of another node, it is read from the feed, and the change after it.
#[actix::test]
async fn wait_returns_new_version_after_failed_reads() {
    let (bench, store, _dir) = flaky(EventKind::Rejected, Trouble::DenyUnread, 1).await;
    let change = bench.propose("{}").await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let long = std::time::Duration::from_secs(600);
    let mut wait = Box::pin(bench.changes.wait(&change.id, 1, long));
    while !bench.changes.inner.watchers.has_watchers(&change.id) {
        assert!(futures_util::poll!(wait.as_mut()).is_pending());
    }
    bench.decide(&change, Verdict::Reject).await.unwrap_err();
    assert_eq!(feed.next().await.unwrap().kind, "change.rejected");
    store.unreadable.store(false, Ordering::SeqCst);
    let heard = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
    assert_eq!(heard.expect("it is told").unwrap().unwrap().state, ChangeState::Rejected);
    bench.end().await;
}

#[actix::test]
async fn doors_are_told_what_is_certain_and_what_is_not() {
    let (bench, store, _dir) = flaky(EventKind::Created, Trouble::Refuse(StoreError::DiskFull), 1).await;
    let full = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!(full.kind, ErrorKind::StoreUnavailable);
    assert!(full.message.contains("nothing was changed") && !full.data.contains_key("outcome"));
    *store.trouble.lock().unwrap() = Some((EventKind::Created, Trouble::Deny, 1));
    let unknown = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!((unknown.kind, &unknown.data["outcome"]), (ErrorKind::StoreUnavailable, &"unknown".into()));
    let change = bench.propose("{}").await;
    *store.trouble.lock().unwrap() = Some((EventKind::Approved, Trouble::Refuse(StoreError::QueueFull), 1));
    let busy = bench.decide(&change, Verdict::Approve).await.unwrap_err();
    assert_eq!(busy.error.kind, ErrorKind::Overloaded);
    bench.decide(&change, Verdict::Approve).await.unwrap();
    bench.until(&change.id, ChangeState::Applied).await;
    // What was denied is durable all the same: it is listed, and the next event shows no gap.
    let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
    for seq in 1..=5 {
        assert_eq!(feed.next().await.unwrap().seq, Some(seq));
    }
    bench.end().await;
}

#[actix::test]
async fn refused_expiries_stay_due() {
    let (bench, _store, _dir) = flaky(EventKind::Expired, Trouble::Refuse(StoreError::DiskFull), 1).await;
    let change = bench.propose("{}").await;
    bench.skew.store(61, Ordering::SeqCst);
    assert_eq!(super::super::upkeep::expiry::expire_due(&bench.changes.inner).await, 0);
    assert_eq!(super::super::upkeep::expiry::expire_due(&bench.changes.inner).await, 1);
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Expired);
    bench.end().await;
}
