//! Votes of people who may not decide any more.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::super::{DecideError, Proposal, testing::*, upkeep::votes};
use countersign_domain::{
    changes::{Change, ChangeState, Terms, Verdict},
    policy::{KeyRoles, Reviewers},
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};

/// Everybody may decide until their key is revoked.
#[derive(Default)]
struct Revocable {
    revoked: Mutex<HashSet<String>>,
    losses: AtomicU64,
    unreadable: AtomicBool,
}

impl Revocable {
    fn revoke(&self, key: &str) {
        self.revoked.lock().unwrap().insert(key.to_owned());
        self.losses.fetch_add(1, Ordering::SeqCst);
    }
}

impl KeyRoles for Revocable {
    fn role(&self, key: &str) -> Result<Option<Role>, McpError> {
        if self.unreadable.load(Ordering::SeqCst) {
            return Err(McpError::new(ErrorKind::StoreUnavailable, "as the test wants it"));
        }
        Ok((!self.revoked.lock().unwrap().contains(key)).then_some(Role::Reviewer))
    }
    fn revocations(&self) -> Result<u64, McpError> {
        Ok(self.losses.load(Ordering::SeqCst))
    }
}

fn reviewers(keys: &Arc<Revocable>) -> Arc<Reviewers> {
    Arc::new(Reviewers::default().with_keys(Arc::clone(keys) as _))
}

async fn bench(keys: &Arc<Revocable>) -> Bench {
    Bench::with(|config| config.reviewers = reviewers(keys)).await
}

async fn propose(bench: &Bench, terms: Terms) -> Arc<Change> {
    let proposal = Proposal { terms, ..bench.proposal("agent", "{}") };
    bench.changes.propose(Proposal { expire_after: Duration::from_secs(100_000), ..proposal }).await.unwrap()
}

async fn approve(bench: &Bench, change: &Change, name: &str) -> Result<Arc<Change>, DecideError> {
    bench.changes.decide(decision(change, name, Verdict::Approve)).await
}

#[actix::test]
async fn vote_of_a_revoked_key_does_not_count_toward_quorum() {
    let people = Arc::new(Revocable::default());
    let bench = bench(&people).await;
    let change = propose(&bench, Terms { quorum: 2, ..Terms::default() }).await;
    let voted = approve(&bench, &change, "mallory").await.unwrap();
    assert_eq!(voted.decisions[0].key_id.as_deref(), Some("key_mallory"));
    people.revoke("key_mallory");
    // Who decides on what was shown with that vote is told, whether or not anybody swept before.
    let refused = approve(&bench, &voted, "alice").await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::VersionConflict);
    let now = refused.current.unwrap();
    assert_eq!((now.state, now.approvals(), now.version), (ChangeState::Pending, 0, 3));
    let entry = &bench.changes.audit_page(Some(&change.id), 1, None).await.unwrap().items[0];
    assert_eq!((entry.event.as_str(), entry.actor.as_str()), ("unapproved", "system"));
    assert!(entry.details.get().contains("The approval by mallory no longer counts"), "{}", entry.details);
    // The same person decides again with the key that they have now.
    let mut again = decision(&now, "mallory", Verdict::Approve);
    again.reviewer = Arc::new(Principal { key_id: Some("key_new".into()), ..reviewer("mallory") });
    let voted = bench.changes.decide(again).await.unwrap();
    approve(&bench, &voted, "alice").await.unwrap();
    bench.until(&change.id, ChangeState::Applied).await;
    // What has run stays as it was decided.
    people.revoke("key_alice");
    assert!(votes::sweep(&bench.changes.inner).await);
    assert_eq!(bench.get(&change.id).await.approvals(), 2);
    bench.end().await;
}

#[actix::test]
async fn change_approved_by_a_revoked_key_waits_for_another_reviewer() {
    let people = Arc::new(Revocable::default());
    let bench = bench(&people).await;
    let change = propose(&bench, Terms { undo_for: 3600, ..Terms::default() }).await;
    approve(&bench, &change, "mallory").await.unwrap();
    people.revoke("key_mallory");
    assert!(votes::sweep(&bench.changes.inner).await);
    let now = bench.get(&change.id).await;
    assert_eq!((now.state, now.run_after, now.approvals()), (ChangeState::Pending, None, 0));
    assert!(votes::sweep(&bench.changes.inner).await, "there is nothing to do any more");
    assert_eq!(bench.get(&change.id).await.version, now.version);
    bench.end().await;
}

#[actix::test]
async fn vote_of_a_revoked_key_is_void_after_restart() {
    let people = Arc::new(Revocable::default());
    let bench = bench(&people).await;
    let change = propose(&bench, Terms { undo_for: 60, ..Terms::default() }).await;
    approve(&bench, &change, "mallory").await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    people.revoke("key_mallory");
    skew.store(61, Ordering::SeqCst);
    // While it cannot be known, nothing runs and nothing is taken out.
    people.unreadable.store(true, Ordering::SeqCst);
    let config = super::super::PendingConfig { reviewers: reviewers(&people), ..config(&skew) };
    let bench = Bench::in_directory(dir, fake, skew, config).await;
    while bench.fake.previews.load(Ordering::SeqCst) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!votes::sweep(&bench.changes.inner).await);
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved);
    people.unreadable.store(false, Ordering::SeqCst);
    bench.until(&change.id, ChangeState::Pending).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 0);
}

#[actix::test]
async fn votes_are_checked_when_a_key_is_revoked() {
    let people = Arc::new(Revocable::default());
    let bench = Bench::with(|config| {
        config.reviewers = reviewers(&people);
        config.expiry_interval = Duration::from_millis(5);
    });
    let bench = bench.await;
    let change = propose(&bench, Terms { quorum: 2, ..Terms::default() }).await;
    approve(&bench, &change, "mallory").await.unwrap();
    people.revoke("key_mallory");
    let now = bench.changes.wait(&change.id, 2, Duration::from_secs(20)).await.unwrap().unwrap();
    assert_eq!((now.version, now.approvals()), (3, 0));
    bench.end().await;
}
