//! Votes of people who may no longer decide.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{edits, plans};
use crate::{ChangeDecision, ChangeRequestError, Proposal, testing::*, upkeep::votes};
use countersign_domain::{
    changes::{Absence, Change, ChangeState, Editing, ReviewVerdict, Terms},
    policy::{KeyHolder, KeyHolders, Reviewers},
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};

/// Keys whose holders may decide until the key is revoked.
#[derive(Default)]
pub(super) struct RevocableKeys {
    revoked: Mutex<HashSet<String>>,
    revocation_count: AtomicU64,
    unreadable: AtomicBool,
}

impl RevocableKeys {
    pub(super) fn revoke(&self, key: &str) {
        self.revoked.lock().unwrap().insert(key.to_owned());
        self.revocation_count.fetch_add(1, Ordering::SeqCst);
    }
}

impl KeyHolders for RevocableKeys {
    fn holder(&self, key: &str) -> Result<Option<KeyHolder>, McpError> {
        if self.unreadable.load(Ordering::SeqCst) {
            return Err(McpError::new(ErrorKind::StoreUnavailable, "the test makes key reads fail"));
        }
        let is_valid = !self.revoked.lock().unwrap().contains(key);
        Ok(is_valid.then_some(KeyHolder { role: Role::Reviewer, claims: None }))
    }
    fn is_person_revoked(&self, name: &str) -> Result<bool, McpError> {
        Ok(self.revoked.lock().unwrap().contains(name))
    }
    fn revocations(&self) -> Result<u64, McpError> {
        Ok(self.revocation_count.load(Ordering::SeqCst))
    }
    fn refresh(&self) -> Result<(), McpError> {
        Ok(())
    }
    fn absences(&self) -> Result<Vec<Absence>, McpError> {
        Ok(Vec::new())
    }
}

pub(super) fn reviewers(keys: &Arc<RevocableKeys>) -> Arc<Reviewers> {
    Arc::new(Reviewers::default().with_keys(Arc::clone(keys) as _))
}

async fn bench(keys: &Arc<RevocableKeys>) -> TestBench {
    TestBench::with(|config| config.reviewers = reviewers(keys)).await
}

async fn propose(bench: &TestBench, terms: Terms) -> Arc<Change> {
    let proposal = Proposal { terms, ..bench.proposal("agent", "{}") };
    bench.changes.propose(Proposal { expire_after: Duration::from_secs(100_000), ..proposal }).await.unwrap()
}

async fn approve(bench: &TestBench, change: &Change, name: &str) -> Result<Arc<Change>, ChangeRequestError> {
    bench.changes.decide(decision(change, name, ReviewVerdict::Approve)).await
}

#[actix::test]
async fn vote_of_a_revoked_key_does_not_count_toward_quorum() {
    let keys = Arc::new(RevocableKeys::default());
    let bench = bench(&keys).await;
    let change = propose(&bench, Terms { quorum: 2, ..Terms::default() }).await;
    let voted = approve(&bench, &change, "mallory").await.unwrap();
    assert_eq!(voted.decisions[0].key_id.as_deref(), Some("key_mallory"));
    keys.revoke("key_mallory");
    // A decision on the version with that vote is refused, even if the upkeep has not voided the vote yet.
    let refused = approve(&bench, &voted, "alice").await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::VersionConflict);
    let now = refused.current.unwrap();
    assert_eq!((now.state, now.approvals(), now.version), (ChangeState::Pending, 0, 3));
    let entry = &bench.trail(&change.id).await[0];
    assert_eq!((entry.event.as_str(), entry.actor.as_str()), ("unapproved", "system"));
    assert!(entry.details.get().contains("The approval by mallory no longer counts"), "{}", entry.details);
    // The same person decides again with a new key.
    let mut again = decision(&now, "mallory", ReviewVerdict::Approve);
    again.reviewer = Arc::new(Principal { key_id: Some("key_new".into()), ..reviewer("mallory") });
    let voted = bench.changes.decide(again).await.unwrap();
    approve(&bench, &voted, "alice").await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    // A change that has run keeps its votes.
    keys.revoke("key_alice");
    assert!(votes::void_invalid_votes(bench.repository()).await);
    assert_eq!(bench.get(&change.id).await.approvals(), 2);
    bench.end().await;
}

#[actix::test]
async fn change_approved_by_a_revoked_key_waits_for_another_reviewer() {
    let keys = Arc::new(RevocableKeys::default());
    let bench = bench(&keys).await;
    let change = propose(&bench, Terms { undo_for: 3600, ..Terms::default() }).await;
    approve(&bench, &change, "mallory").await.unwrap();
    keys.revoke("key_mallory");
    assert!(votes::void_invalid_votes(bench.repository()).await);
    let now = bench.get(&change.id).await;
    assert_eq!((now.state, now.run_after, now.approvals()), (ChangeState::Pending, None, 0));
    assert!(votes::void_invalid_votes(bench.repository()).await, "a second sweep finds no invalid votes");
    assert_eq!(bench.get(&change.id).await.version, now.version);
    bench.end().await;
}

#[actix::test]
async fn vote_of_a_revoked_key_is_void_after_restart() {
    let keys = Arc::new(RevocableKeys::default());
    let bench = bench(&keys).await;
    let change = propose(&bench, Terms { undo_for: 60, ..Terms::default() }).await;
    approve(&bench, &change, "mallory").await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    keys.revoke("key_mallory");
    skew.store(61, Ordering::SeqCst);
    // While keys cannot be read, no change runs and no vote is voided.
    keys.unreadable.store(true, Ordering::SeqCst);
    let config = crate::ReviewConfig { reviewers: reviewers(&keys), ..config(&skew) };
    let bench = TestBench::in_directory(dir, fake, skew, config).await;
    while bench.fake.preview_count.load(Ordering::SeqCst) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!votes::void_invalid_votes(bench.repository()).await);
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved);
    keys.unreadable.store(false, Ordering::SeqCst);
    bench.wait_for_state(&change.id, ChangeState::Pending).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 0);
}

#[actix::test]
async fn votes_are_checked_when_a_key_is_revoked() {
    let keys = Arc::new(RevocableKeys::default());
    let bench = TestBench::with(|config| {
        config.reviewers = reviewers(&keys);
        config.tuning.expiry_interval = Duration::from_millis(5);
    });
    let bench = bench.await;
    let change = propose(&bench, Terms { quorum: 2, ..Terms::default() }).await;
    approve(&bench, &change, "mallory").await.unwrap();
    keys.revoke("key_mallory");
    let now = bench.changes.wait(&change.id, 2, Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!((now.version, now.approvals()), (3, 0));
    bench.end().await;
}

#[actix::test]
async fn revoked_vote_for_a_later_step_holds_back_the_plan() {
    let keys = Arc::new(RevocableKeys::default());
    let bench = bench(&keys).await;
    let proposal =
        |arguments| Proposal { expire_after: Duration::from_secs(100_000), ..bench.proposal("agent", arguments) };
    let steps = vec![proposal(r#"{"target":"a"}"#), proposal(r#"{"target":"b"}"#)];
    let steps = bench.changes.propose_plan(plan_proposal(steps)).await.unwrap();
    approve(&bench, &steps[1], "mallory").await.unwrap();
    keys.revoke("key_mallory");
    approve(&bench, &steps[0], "alice").await.unwrap();
    let mut later = bench.get(&steps[1].id).await;
    while later.state != ChangeState::Pending {
        later = bench.changes.wait(&later.id, later.version, Duration::from_secs(60)).await.unwrap().unwrap();
    }
    assert_eq!((later.approvals(), bench.fake.call_count()), (0, 0), "the first step waits, too");
    approve(&bench, &later, "bob").await.unwrap();
    bench.wait_for_state(&later.id, ChangeState::Applied).await;
    assert_eq!(bench.fake.call_count(), 2);
    bench.end().await;
}

#[actix::test]
async fn plan_approval_leaves_out_steps_with_own_vote_or_edit() {
    let bench = plans::bench().await;
    let terms = |step, proposal: &mut Proposal| match step {
        0 => proposal.terms.quorum = 2,
        2 => proposal.terms.edit = Editing::NeedsOtherApprover,
        _ => {}
    };
    let steps = plans::propose_with(&bench, &plans::ABC, terms).await;
    // One person created both keys, so they share one vote.
    let by_root = |name: &str| Principal { key_creators: vec!["root".into()], ..reviewer(name) };
    let vote = decision(&steps[0], "bob", ReviewVerdict::Approve);
    bench.changes.decide(ChangeDecision { reviewer: Arc::new(by_root("bob")), ..vote }).await.unwrap();
    bench.changes.edit(edits::edit(&steps[2], "carol", r#"{"target":"c","n":1}"#)).await.unwrap();
    let shown = plans::plan(&bench, &steps).await;
    let decided = plans::decide_as_principal(&bench, &shown, by_root("carol"), ReviewVerdict::Approve).await.unwrap();
    let waiting = ChangeState::Pending;
    assert_eq!(plans::states(&decided), [waiting, ChangeState::Approved, waiting]);
    bench.end().await;
}
