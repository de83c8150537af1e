//! A store whose writes fail, or succeed with an unknown outcome: no change runs twice, and none is lost.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
};

use futures_util::FutureExt as _;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::plans;
use crate::{ChangeFilter, Proposal, ReviewConfig, testing::*};
use countersign_domain::{
    changes::{
        Change, ChangeState, ReviewVerdict, Terms, audit::AuditEntry, machine::EventKind,
        verification::VerificationOutcome,
    },
    principal::{Principal, Role},
};
use countersign_protocol::ErrorKind;
use countersign_store::{
    Heads, ListQuery, Listing, LiveChange, Store, StoreBackend, StoreError, StoreFuture, StoreLocation, StoredEvent,
    WriteCallback, WriteError, WriteRequest,
};

/// A fault that the store injects into a write.
#[derive(Clone)]
enum WriteFault {
    /// The write fails with this error, and nothing is stored.
    Reject(StoreError),
    /// The write is stored, but its outcome is reported as unknown.
    HideCommit,
    /// Like `HideCommit`; from then on no change can be read.
    HideCommitAndReads,
    /// The write is stored; from then on no change can be read.
    HideReads,
    /// The write is put aside until the test passes it to the store.
    Delay,
}

struct FaultyStore {
    store: Arc<dyn Store>,
    /// Reads of changes fail.
    unreadable: AtomicBool,
    failed_reads: AtomicUsize,
    /// The kind of transition whose writes fail, the fault, and the number of remaining faults.
    fault: Mutex<Option<(EventKind, WriteFault, usize)>>,
    delayed: Mutex<Option<(WriteRequest, WriteCallback)>>,
    /// Reads of events wait for the permit, which a test can take.
    event_gate: Arc<Semaphore>,
    event_reads: AtomicUsize,
}

impl StoreBackend for FaultyStore {
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

impl Store for FaultyStore {
    fn submit(&self, request: WriteRequest, done: WriteCallback) {
        let mut fault = self.fault.lock().unwrap();
        match (fault.as_mut(), &request) {
            (Some((kind, write_fault, remaining)), WriteRequest::Transition(draft))
                if *kind == draft.kind && *remaining > 0 =>
            {
                *remaining -= 1;
                let hides_reads = matches!(write_fault, WriteFault::HideCommitAndReads | WriteFault::HideReads);
                self.unreadable.store(hides_reads, Ordering::SeqCst);
                match write_fault.clone() {
                    WriteFault::Reject(error) => done(Err(error.into()), false),
                    WriteFault::Delay => *self.delayed.lock().unwrap() = Some((request, done)),
                    WriteFault::HideReads => self.store.submit(request, done),
                    WriteFault::HideCommit | WriteFault::HideCommitAndReads => self.store.submit(
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
            self.failed_reads.fetch_add(1, Ordering::SeqCst);
            return Box::pin(async { Err(StoreError::Locked) });
        }
        self.store.get(id)
    }
    fn find_by_idempotency_key(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>> {
        self.store.find_by_idempotency_key(principal, key)
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
    fn overview(&self, since: jiff::Timestamp) -> StoreFuture<countersign_store::OverviewRecords> {
        self.store.overview(since)
    }
    fn bundle_candidates(&self) -> StoreFuture<Vec<countersign_store::StoredProposal>> {
        self.store.bundle_candidates()
    }
    fn plan(&self, plan: &str) -> StoreFuture<Vec<Arc<Change>>> {
        if self.unreadable.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Locked) });
        }
        self.store.plan(plan)
    }
    fn plan_states(&self, plan: &str) -> StoreFuture<Vec<countersign_domain::changes::plan::StepState>> {
        self.store.plan_states(plan)
    }
    fn open_plans(&self) -> StoreFuture<Vec<String>> {
        self.store.open_plans()
    }
    fn changes_with_votes(&self) -> StoreFuture<Vec<String>> {
        self.store.changes_with_votes()
    }
    fn count_by_state(&self) -> StoreFuture<Vec<(ChangeState, u64)>> {
        self.store.count_by_state()
    }
    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>> {
        self.event_reads.fetch_add(1, Ordering::SeqCst);
        let (gate, events) = (Arc::clone(&self.event_gate), self.store.events_after(after, limit));
        Box::pin(async move {
            let _permit = gate.acquire().await;
            events.await
        })
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
    fn audit_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<AuditEntry>> {
        self.store.audit_after(after, limit)
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

/// Waits until the store has injected all its faults.
async fn wait_for_all_faults(store: &FaultyStore) {
    while store.fault.lock().unwrap().as_ref().is_some_and(|(_, _, remaining)| *remaining > 0) {
        tokio::task::yield_now().await;
    }
}

async fn start_with_faults(
    kind: EventKind,
    fault: WriteFault,
    times: usize,
) -> (TestBench, Arc<FaultyStore>, tempfile::TempDir) {
    start_with_config(kind, fault, times, |_| {}).await
}

async fn start_with_config(
    kind: EventKind,
    fault: WriteFault,
    times: usize,
    adjust: impl FnOnce(&mut ReviewConfig),
) -> (TestBench, Arc<FaultyStore>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(FaultyStore {
        store: StoreLocation::directory(dir.path()).open().unwrap(),
        unreadable: AtomicBool::new(false),
        failed_reads: AtomicUsize::new(0),
        fault: Mutex::new(Some((kind, fault, times))),
        delayed: Mutex::default(),
        event_gate: Arc::new(Semaphore::new(1)),
        event_reads: AtomicUsize::new(0),
    });
    let skew = Arc::new(AtomicI64::new(0));
    let mut config = config(&skew);
    adjust(&mut config);
    let bench = TestBench::on_store(Arc::clone(&store) as _, fake(), skew, config).await;
    (bench, store, dir)
}

#[actix::test]
async fn failed_outcome_write_is_retried_without_a_second_call() {
    let (bench, store, _dir) = start_with_faults(EventKind::Applied, WriteFault::Reject(StoreError::DiskFull), 3).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!(bench.fake.call_count(), 1);
    assert_eq!(store.fault.lock().unwrap().as_ref().unwrap().2, 0, "all faults were injected");
    bench.end().await;
}

#[actix::test]
async fn failed_verification_write_is_not_repeated() {
    let (bench, store, _dir) =
        start_with_faults(EventKind::Verified, WriteFault::Reject(StoreError::DiskFull), 1).await;
    assert!(bench.fake.read_back_script.set(Box::new(|_, _| Ok(vec![("state", None)]))).is_ok());
    let first = bench.propose("{}").await;
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    wait_for_all_faults(&store).await;
    let second = bench.propose("{}").await;
    bench.decide(&second, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&second.id, ChangeState::Applied).await;
    let first = bench.get(&first.id).await;
    assert_eq!(first.verification.as_ref().unwrap().verified, VerificationOutcome::NotRead, "it stays so");
    assert_eq!((first.state, bench.fake.call_count()), (ChangeState::Applied, 2));
    bench.end().await;
}

#[actix::test]
async fn result_written_with_unknown_outcome_is_recorded_once() {
    let (bench, store, dir) = start_with_faults(EventKind::Applied, WriteFault::HideCommit, 1).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    wait_for_all_faults(&store).await;
    bench.changes.shutdown(std::time::Duration::from_secs(20)).await;
    let trail = StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
    assert_eq!((trail.entries, bench.fake.call_count()), (4, 1));
}

#[actix::test]
async fn nothing_runs_before_the_claim_is_durable() {
    let (bench, _store, _dir) =
        start_with_faults(EventKind::Executing, WriteFault::Reject(StoreError::Locked), 5).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let previews = bench.fake.preview_count.load(Ordering::SeqCst);
    assert_eq!((previews, bench.fake.call_count()), (7, 1), "the target is rechecked before each claim");
    for kind in ["change.created", "change.approved", "change.executing", "change.applied"] {
        assert_eq!(feed.next().await.unwrap().kind, kind);
    }
    bench.end().await;
}

#[actix::test]
async fn a_claim_of_unknown_outcome_is_never_run() {
    for fault in [WriteFault::HideCommit, WriteFault::HideCommitAndReads] {
        let (bench, store, _dir) = start_with_faults(EventKind::Executing, fault, 1).await;
        let change = bench.propose("{}").await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        wait_for_all_faults(&store).await;
        while store.unreadable.load(Ordering::SeqCst) && store.failed_reads.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        store.unreadable.store(false, Ordering::SeqCst);
        let failed = bench.wait_for_state(&change.id, ChangeState::Failed).await;
        assert_eq!(failed.fault.as_ref().unwrap().code, ErrorKind::StoreUnavailable.code());
        // The target is free again.
        let next = bench.propose("{}").await;
        bench.decide(&next, ReviewVerdict::Approve).await.unwrap();
        bench.wait_for_state(&next.id, ChangeState::Applied).await;
        assert_eq!(bench.fake.call_count(), 1, "only the second change was run");
        bench.end().await;
    }
}

#[actix::test]
async fn claim_that_was_not_stored_is_made_again() {
    let unknown = WriteFault::Reject(StoreError::OutcomeUnknown);
    let (bench, _store, _dir) = start_with_faults(EventKind::Executing, unknown, 1).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!(bench.fake.call_count(), 1);
    bench.end().await;
}

#[actix::test]
async fn outcome_is_recorded_once_the_change_can_be_read() {
    let (bench, store, _dir) = start_with_faults(EventKind::QuestionAsked, WriteFault::HideCommitAndReads, 1).await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Ask(vec![("a".into(), "elicitation/create".into())]);
    let form_client = RawValue::from_string(r#"{"elicitation":{"form":{}}}"#.into()).unwrap();
    let proposal = Proposal {
        terms: Terms { questions: true, ..Terms::default() },
        client_capabilities: Some(form_client.into()),
        ..bench.proposal("agent", "{}")
    };
    let change = bench.changes.propose(proposal).await.unwrap();
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    // The change is read after the question, and again after the outcome was refused for its old version.
    while store.failed_reads.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    store.unreadable.store(false, Ordering::SeqCst);
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!(bench.fake.call_count(), 1);
    bench.end().await;
}

#[actix::test]
async fn withdrawal_succeeds_despite_a_concurrent_vote() {
    let (bench, store, _dir) = start_with_faults(EventKind::Withdrawn, WriteFault::Delay, 1).await;
    let terms = Terms { quorum: 2, ..Terms::default() };
    let proposal = Proposal { terms, ..bench.proposal("agent", "{}") };
    let change = bench.changes.propose(proposal).await.unwrap();
    let agent = Principal::new("agent", Role::Agent);
    let vote = async {
        wait_for_all_faults(&store).await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        let (request, done) = store.delayed.lock().unwrap().take().unwrap();
        store.store.submit(request, done);
    };
    let (withdrawn, ()) = tokio::join!(bench.changes.withdraw(&change.id, &agent, None), vote);
    assert_eq!((withdrawn.unwrap().state, bench.fake.call_count()), (ChangeState::Withdrawn, 0));
    bench.end().await;
}

/// A transition of unknown outcome is read from the feed like one of another node, and the change is read after it.
#[actix::test]
async fn wait_returns_new_version_after_failed_reads() {
    let (bench, store, _dir) = start_with_faults(EventKind::Rejected, WriteFault::HideCommitAndReads, 1).await;
    let change = bench.propose("{}").await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let long = std::time::Duration::from_secs(600);
    let mut wait = Box::pin(bench.changes.wait(&change.id, 1, long));
    while !bench.repository().indexes.watchers.has_watchers(&change.id) {
        assert!(futures_util::poll!(wait.as_mut()).is_pending());
    }
    bench.decide(&change, ReviewVerdict::Reject).await.unwrap_err();
    assert_eq!(feed.next().await.unwrap().kind, "change.rejected");
    store.unreadable.store(false, Ordering::SeqCst);
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
    assert_eq!(waited.expect("the wait must end").unwrap().unwrap().state, ChangeState::Rejected);
    bench.end().await;
}

#[actix::test]
async fn endpoint_error_tells_whether_the_write_is_certain() {
    let (bench, store, _dir) = start_with_faults(EventKind::Created, WriteFault::Reject(StoreError::DiskFull), 1).await;
    let full = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!(full.kind, ErrorKind::StoreUnavailable);
    assert!(full.message.contains("nothing was changed") && !full.data.contains_key("outcome"));
    *store.fault.lock().unwrap() = Some((EventKind::Created, WriteFault::HideCommit, 1));
    let unknown = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!((unknown.kind, &unknown.data["outcome"]), (ErrorKind::StoreUnavailable, &"unknown".into()));
    let change = bench.propose("{}").await;
    *store.fault.lock().unwrap() = Some((EventKind::Approved, WriteFault::Reject(StoreError::QueueFull), 1));
    let busy = bench.decide(&change, ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(busy.error.kind, ErrorKind::Overloaded);
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    // The writes of unknown outcome are durable, so the feed has no gap.
    let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
    for seq in 1..=5 {
        assert_eq!(feed.next().await.unwrap().seq, Some(seq));
    }
    bench.end().await;
}

#[actix::test]
async fn decided_plan_that_cannot_be_read_is_reported_as_decided() {
    let (bench, store, _dir) = start_with_faults(EventKind::Approved, WriteFault::HideReads, 2).await;
    let steps = plans::propose(&bench, &[r#"{"target":"a"}"#, r#"{"target":"b"}"#]).await;
    let plan = plans::plan(&bench, &steps).await;
    let unread = plans::decide_as(&bench, &plan, "alice", ReviewVerdict::Approve).await.unwrap_err().error;
    assert_eq!(unread.kind, ErrorKind::StoreUnavailable);
    assert!(unread.message.contains("was done"), "{}", unread.message);
    let stored = store.store.plan(&plan.id).await.unwrap();
    assert!(stored.iter().all(|step| step.state == ChangeState::Approved), "{stored:?}");
    store.unreadable.store(false, Ordering::SeqCst);
    bench.end().await;
}

#[actix::test]
async fn failed_plan_decision_reports_earlier_decisions() {
    let fault = WriteFault::Reject(StoreError::DiskFull);
    let (bench, _store, _dir) = start_with_faults(EventKind::Approved, fault, 1).await;
    let needs_two_votes = |step: usize, proposal: &mut Proposal| proposal.terms.quorum = if step == 0 { 2 } else { 1 };
    let steps = plans::propose_with(&bench, &[r#"{"target":"a"}"#, r#"{"target":"b"}"#], needs_two_votes).await;
    let plan = plans::plan(&bench, &steps).await;
    let failed = plans::decide_as(&bench, &plan, "alice", ReviewVerdict::Approve).await.unwrap_err().error;
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::StoreUnavailable, &"unknown".into()));
    assert!(failed.message.contains("some steps"), "{}", failed.message);
    let votes: Vec<usize> = plans::plan(&bench, &steps).await.changes.iter().map(|step| step.decisions.len()).collect();
    assert_eq!(votes, [1, 0]);
    bench.end().await;
}

#[actix::test]
async fn change_stored_after_the_timeout_has_duplicates() {
    let adjust = |config: &mut ReviewConfig| config.tuning.write_timeout = std::time::Duration::from_millis(1);
    let (bench, store, _dir) = start_with_config(EventKind::Created, WriteFault::Delay, 1, adjust).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let unknown = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!(unknown.data["outcome"], "unknown");
    wait_for_all_faults(&store).await;
    let (request, done) = store.delayed.lock().unwrap().take().unwrap();
    store.store.submit(request, done);
    assert_eq!(feed.next().await.unwrap().kind, "change.created");
    // This write may take longer than the timeout, too.
    let _ = bench.changes.propose(bench.proposal("agent", "{}")).await;
    assert_eq!(feed.next().await.unwrap().kind, "change.created");
    let page = bench.changes.list(ChangeFilter::default(), 10, None).await.unwrap();
    let [duplicate, first] = page.items.as_slice() else { panic!("both changes must be stored: {:?}", page.items) };
    assert_eq!((first.duplicate_of.as_deref(), duplicate.duplicate_of.as_deref()), (None, Some(first.id.as_str())));
    bench.end().await;
}

#[actix::test]
async fn refused_expiries_stay_due() {
    let (bench, _store, _dir) =
        start_with_faults(EventKind::Expired, WriteFault::Reject(StoreError::DiskFull), 1).await;
    let change = bench.propose("{}").await;
    bench.skew.store(61, Ordering::SeqCst);
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 0);
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 1);
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Expired);
    bench.end().await;
}

#[actix::test]
async fn slow_read_for_a_subscriber_is_not_repeated() {
    let (bench, store, _dir) = start_with_faults(EventKind::Created, WriteFault::HideCommit, 0).await;
    bench.propose("{}").await;
    let permit = store.event_gate.acquire().await.unwrap();
    let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
    let reads = store.event_reads.load(Ordering::SeqCst);
    for _ in 0..3 {
        assert!(feed.next().now_or_never().is_none(), "the store has not answered");
    }
    drop(permit);
    assert_eq!(feed.next().await.unwrap().seq, Some(1));
    assert_eq!(store.event_reads.load(Ordering::SeqCst), reads + 1, "the read survives the waits for it");
    bench.end().await;
}
