//! Pending changes with a fake provider for tests, in a temporary directory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is only built for tests")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::value::RawValue;

use super::{
    ChangeDecision, ChangeRequestError, ChangeSettlement, Changes, PlanProposal, Proposal, ReviewConfig, ReviewTuning,
};
use countersign_config::{ChangesConfig, Config};
use countersign_domain::{
    changes::{
        Change, ChangeState, Preview, Proposer, ReviewVerdict, ServerIdentity, Terms, audit::AuditEntry,
        testing::proposer,
    },
    policy::{Decision, Verdict},
    principal::{Principal, Role},
};
pub use countersign_provider::testing::{CallOutcome, FakeProvider};
use countersign_provider::{ProviderDirectory, testing::FakeDirectory};
use countersign_store::{AuditSearch, Store, StoreLocation};

/// Changes, fake provider and clock of a test; the directory outlives a restart.
pub struct TestBench {
    pub dir: Arc<tempfile::TempDir>,
    pub fake: Arc<FakeProvider>,
    pub changes: Changes,
    /// Seconds added to the wall clock.
    pub skew: Arc<AtomicI64>,
}

/// Starts changes in the caller's directory with the caller's providers.
pub async fn start(path: &Path, providers: Arc<dyn ProviderDirectory>, config: ReviewConfig) -> Changes {
    let store = StoreLocation::directory(path).open().unwrap();
    Changes::start(store, providers, config).await.unwrap()
}

/// Returns a provider named `fake`.
pub fn fake() -> Arc<FakeProvider> {
    Arc::new(FakeProvider::new("fake"))
}

pub fn config(skew: &Arc<AtomicI64>) -> ReviewConfig {
    let skew = Arc::clone(skew);
    let limits = ChangesConfig { max_proposals_per_minute: 0, max_bytes_per_day: 0, ..Config::default().changes };
    ReviewConfig {
        clock: Arc::new(move || Timestamp::now() + SignedDuration::from_secs(skew.load(Ordering::SeqCst))),
        tuning: ReviewTuning {
            // Tests call the expiry themselves.
            expiry_interval: Duration::from_secs(3600),
            retry_delay: Duration::from_millis(5),
            provider_startup_timeout: Duration::ZERO,
            ..ReviewTuning::default()
        },
        ..ReviewConfig::from(&limits)
    }
}

impl TestBench {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(adjust: impl FnOnce(&mut ReviewConfig)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let skew = Arc::new(AtomicI64::new(0));
        let mut config = config(&skew);
        adjust(&mut config);
        Self::in_directory(dir, fake(), skew, config).await
    }

    pub async fn in_directory(
        dir: Arc<tempfile::TempDir>,
        fake: Arc<FakeProvider>,
        skew: Arc<AtomicI64>,
        config: ReviewConfig,
    ) -> Self {
        let path = dir.path().to_owned();
        Self { dir, ..Self::at_path(&path, fake, skew, config).await }
    }

    /// Starts in the caller's directory.
    pub async fn at_path(path: &Path, fake: Arc<FakeProvider>, skew: Arc<AtomicI64>, config: ReviewConfig) -> Self {
        let store = StoreLocation::directory(path).open().unwrap();
        Self::on_store(store, fake, skew, config).await
    }

    /// Starts on the caller's store.
    pub async fn on_store(
        store: Arc<dyn Store>,
        fake: Arc<FakeProvider>,
        skew: Arc<AtomicI64>,
        config: ReviewConfig,
    ) -> Self {
        let changes = Changes::start(store, Arc::new(FakeDirectory(Arc::clone(&fake))), config).await.unwrap();
        Self { dir: Arc::new(tempfile::tempdir().unwrap()), fake, changes, skew }
    }

    pub async fn propose(&self, arguments: &str) -> Arc<Change> {
        self.changes.propose(self.proposal("agent", arguments)).await.unwrap()
    }

    pub fn proposal(&self, principal: &str, arguments: &str) -> Proposal {
        let arguments = RawValue::from_string(arguments.into()).unwrap();
        let proposer = Proposer {
            key_id: Some(format!("key_{principal}")),
            client_name: Some("test".into()),
            session: Some("01234567…".into()),
            ..proposer(principal)
        };
        let preview = self.fake.current_preview(&arguments);
        let proposal = proposal(proposer, (self.fake.name, "update"), arguments, preview);
        Proposal { tool_title: "Update".into(), expire_after: Duration::from_secs(60), ..proposal }
    }

    /// Sets the decision that policy makes on every change from now on.
    pub fn set_policy(&self, verdict: Verdict, terms: Terms) {
        *self.fake.policy_decision.lock().unwrap() = Some(Decision {
            verdict,
            rule: None,
            reason: "the rule changed".into(),
            mark: None,
            terms: Arc::new(terms),
            standing_rule: None,
            simulated: None,
            counts: None,
        });
    }

    pub async fn decide(&self, change: &Change, verdict: ReviewVerdict) -> Result<Arc<Change>, ChangeRequestError> {
        self.changes.decide(decision(change, "alice", verdict)).await
    }

    pub async fn settle(
        &self,
        change: &Change,
        reviewer_name: &str,
        applied: bool,
    ) -> Result<Arc<Change>, ChangeRequestError> {
        self.changes.settle(settlement(change, reviewer_name, applied)).await
    }

    pub async fn get(&self, id: &str) -> Arc<Change> {
        self.changes.get(id).await.unwrap().unwrap()
    }

    /// Returns the audit entries of a change, newest first.
    pub async fn trail(&self, change: &str) -> Vec<AuditEntry> {
        let search = AuditSearch { change: Some(change.to_owned()), ..AuditSearch::default() };
        let page = self.changes.search_audit(search, 500, None).await.unwrap();
        page.items.into_iter().map(|found_entry| found_entry.entry).collect()
    }

    /// Waits until the change is in that state. Panics if the change stops in another state.
    pub async fn wait_for_state(&self, id: &str, state: ChangeState) -> Arc<Change> {
        let mut version = 0;
        loop {
            let change = self.changes.wait(id, version, Duration::from_secs(60)).await.unwrap().unwrap();
            if change.state == state {
                return change;
            }
            assert!(!change.state.is_final() && change.version > version, "{change:?} cannot become {state:?}");
            version = change.version;
        }
    }

    /// Shuts down and returns the parts with which a test can restart.
    pub async fn end(self) -> (Arc<tempfile::TempDir>, Arc<FakeProvider>, Arc<AtomicI64>) {
        self.changes.shutdown(Duration::from_secs(10)).await;
        (self.dir, self.fake, self.skew)
    }
}

/// Returns a proposal to call a provider's tool, which needs one vote within an hour.
pub fn proposal(
    proposer: Proposer,
    (provider, tool): (&str, &str),
    arguments: Box<RawValue>,
    preview: Preview,
) -> Proposal {
    Proposal {
        proposer,
        provider: provider.into(),
        tool: tool.into(),
        tool_title: "Title".into(),
        tool_hash: "sha256:tool".into(),
        served_by: ServerIdentity::default(),
        arguments: Arc::from(arguments),
        preview,
        review: None,
        terms: Terms::default(),
        client_capabilities: None,
        idempotency_key: None,
        stated_reason: None,
        expire_after: Duration::from_secs(3600),
        plan: None,
    }
}

/// Returns a proposal of a plan with these steps and without a reason.
pub fn plan_proposal(steps: Vec<Proposal>) -> PlanProposal {
    PlanProposal { title: "Move".into(), reason: None, steps }
}

pub fn reviewer(name: &str) -> Principal {
    Principal {
        name: name.into(),
        role: Role::Reviewer,
        key_id: Some(format!("key_{name}")),
        owner: None,
        claims: None,
        key_creators: Vec::new(),
    }
}

pub fn decision(change: &Change, reviewer_name: &str, verdict: ReviewVerdict) -> ChangeDecision {
    ChangeDecision {
        id: change.id.clone(),
        reviewer: Arc::new(reviewer(reviewer_name)),
        verdict,
        comment: Some("looks right".into()),
        version: change.version,
        digest: Some(change.digest.clone()),
        bulk: false,
    }
}

pub fn settlement(change: &Change, reviewer_name: &str, applied: bool) -> ChangeSettlement {
    ChangeSettlement {
        id: change.id.clone(),
        reviewer: Arc::new(reviewer(reviewer_name)),
        applied,
        comment: None,
        version: change.version,
    }
}
