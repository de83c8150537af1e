//! Deputies of absent people.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, atomic::Ordering},
};

use super::expect_refusal;
use crate::{ChangeRequestError, Proposal, testing::*, upkeep::votes};
use countersign_domain::{
    changes::{Absence, AbsentPerson, Change, ChangeState, ReviewVerdict, Terms},
    policy::{GroupMember, KeyHolder, KeyHolders, Reviewers},
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};

/// A store with the roles of keys, by their ids, and with absences.
#[derive(Default)]
struct FakeStore {
    roles: Mutex<HashMap<String, Option<Role>>>,
    absences: Mutex<Vec<Absence>>,
    is_unreadable: Mutex<bool>,
}

impl FakeStore {
    fn set_role(&self, name: &str, role: Option<Role>) {
        self.roles.lock().unwrap().insert(format!("key_{name}"), role);
    }

    /// Lets a person be away for the next 50 seconds.
    fn send_away(&self, bench: &TestBench, name: &str, deputy: &str) {
        let principal = Principal { key_id: Some(format!("key_{name}")), ..Principal::new(name, Role::Reviewer) };
        let now = bench.repository().config.now();
        let until = now + std::time::Duration::from_secs(50);
        let person = AbsentPerson::from_principal(&principal);
        self.absences.lock().unwrap().push(Absence { person, deputy: deputy.into(), since: now, until });
    }

    fn bring_back(&self, name: &str) {
        self.absences.lock().unwrap().retain(|absence| absence.person.name != name);
    }
}

impl KeyHolders for FakeStore {
    fn holder(&self, key: &str) -> Result<Option<KeyHolder>, McpError> {
        let role = self.roles.lock().unwrap().get(key).copied().unwrap_or(Some(Role::Reviewer));
        Ok(role.map(|role| KeyHolder { role, claims: None }))
    }
    fn is_person_revoked(&self, _: &str) -> Result<bool, McpError> {
        Ok(false)
    }
    fn revocations(&self) -> Result<u64, McpError> {
        Ok(0)
    }
    fn refresh(&self) -> Result<(), McpError> {
        Ok(())
    }
    fn absences(&self) -> Result<Vec<Absence>, McpError> {
        if *self.is_unreadable.lock().unwrap() {
            return Err(McpError::new(ErrorKind::StoreUnavailable, "the test makes reads fail"));
        }
        Ok(self.absences.lock().unwrap().clone())
    }
}

/// Returns a bench whose group `dba` has Alice and Bob, with the store of their absences.
async fn bench() -> (TestBench, Arc<FakeStore>) {
    let members = ["alice", "bob"].map(|name| GroupMember::Name(name.to_owned()));
    let groups = BTreeMap::from([("dba".to_owned(), members.to_vec())]);
    let store = Arc::new(FakeStore::default());
    let reviewers = Arc::new(Reviewers::new(&groups).with_keys(Arc::clone(&store) as _));
    (TestBench::with(|config| config.reviewers = reviewers).await, store)
}

async fn propose(bench: &TestBench, agent: &str, quorum: u32, reviewers: &[&str]) -> Arc<Change> {
    let reviewers = reviewers.iter().map(|name| (*name).to_owned()).collect();
    let proposal = Proposal { terms: Terms { reviewers, quorum, ..Terms::default() }, ..bench.proposal(agent, "{}") };
    let expire_after = std::time::Duration::from_secs(100_000);
    bench.changes.propose(Proposal { expire_after, ..proposal }).await.unwrap()
}

async fn approve(bench: &TestBench, change: &Change, name: &str) -> Result<Arc<Change>, ChangeRequestError> {
    bench.changes.decide(decision(change, name, ReviewVerdict::Approve)).await
}

#[actix::test]
async fn deputy_decides_for_the_group_while_the_absence_lasts() {
    let (bench, store) = bench().await;
    let change = propose(&bench, "agent", 1, &["dba"]).await;
    expect_refusal(approve(&bench, &change, "dora").await, ErrorKind::Forbidden);
    store.send_away(&bench, "alice", "dora");
    for other in ["erik", "doras"] {
        expect_refusal(approve(&bench, &change, other).await, ErrorKind::Forbidden);
    }
    let approved = approve(&bench, &change, "dora").await.unwrap();
    let vote = &approved.decisions[0];
    assert_eq!((vote.reviewer.as_str(), vote.deputy_for.as_ref().unwrap().name.as_str()), ("dora", "alice"));
    bench.wait_for_state(&change.id, ChangeState::Applied).await;

    let later = propose(&bench, "agent", 1, &["dba"]).await;
    bench.skew.fetch_add(50, Ordering::SeqCst);
    expect_refusal(approve(&bench, &later, "dora").await, ErrorKind::Forbidden);
    store.send_away(&bench, "bob", "dora");
    store.bring_back("bob");
    expect_refusal(approve(&bench, &later, "dora").await, ErrorKind::Forbidden);
    bench.end().await;
}

#[actix::test]
async fn deputy_gains_no_role_and_no_deputies() {
    let (bench, store) = bench().await;
    let change = propose(&bench, "agent", 1, &["dba"]).await;
    let for_admins = propose(&bench, "agent", 1, &["admin"]).await;
    store.send_away(&bench, "alice", "dora");
    store.send_away(&bench, "dora", "erik");
    expect_refusal(approve(&bench, &for_admins, "dora").await, ErrorKind::Forbidden);
    expect_refusal(approve(&bench, &change, "erik").await, ErrorKind::Forbidden);
    for role in [Role::Viewer, Role::Agent] {
        let reviewer = Arc::new(Principal::new("dora", role));
        let decision = crate::ChangeDecision { reviewer, ..decision(&change, "dora", ReviewVerdict::Approve) };
        expect_refusal(bench.changes.decide(decision).await, ErrorKind::Forbidden);
    }
    // The absent person must be able to decide, too.
    for role in [Some(Role::Viewer), Some(Role::Agent), None] {
        store.set_role("alice", role);
        expect_refusal(approve(&bench, &change, "dora").await, ErrorKind::Forbidden);
    }
    store.set_role("alice", Some(Role::Reviewer));
    *store.is_unreadable.lock().unwrap() = true;
    expect_refusal(approve(&bench, &change, "dora").await, ErrorKind::StoreUnavailable);
    *store.is_unreadable.lock().unwrap() = false;
    approve(&bench, &change, "dora").await.unwrap();
    bench.end().await;
}

#[actix::test]
async fn deputy_never_stands_in_for_the_proposer() {
    let (bench, store) = bench().await;
    let change = propose(&bench, "alice", 1, &["dba"]).await;
    store.send_away(&bench, "alice", "dora");
    for verdict in [ReviewVerdict::Approve, ReviewVerdict::Reject] {
        expect_refusal(bench.changes.decide(decision(&change, "dora", verdict)).await, ErrorKind::Forbidden);
    }
    let by_deputy = propose(&bench, "dora", 1, &["dba"]).await;
    expect_refusal(approve(&bench, &by_deputy, "dora").await, ErrorKind::SelfApproval);
    store.send_away(&bench, "bob", "dora");
    let approved = approve(&bench, &change, "dora").await.unwrap();
    assert_eq!(approved.decisions[0].deputy_for.as_ref().unwrap().name, "bob");
    bench.end().await;
}

#[actix::test]
async fn quorum_counts_one_vote_for_an_absent_person() {
    let (bench, store) = bench().await;
    let change = propose(&bench, "agent", 2, &["dba"]).await;
    store.send_away(&bench, "alice", "dora");
    let voted = approve(&bench, &change, "dora").await.unwrap();
    for name in ["alice", "dora"] {
        expect_refusal(approve(&bench, &voted, name).await, ErrorKind::AlreadyVoted);
    }
    store.bring_back("alice");
    expect_refusal(approve(&bench, &voted, "alice").await, ErrorKind::AlreadyVoted);
    approve(&bench, &voted, "bob").await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;

    let other = propose(&bench, "agent", 2, &["dba"]).await;
    let voted = approve(&bench, &other, "alice").await.unwrap();
    store.send_away(&bench, "alice", "dora");
    expect_refusal(approve(&bench, &voted, "dora").await, ErrorKind::AlreadyVoted);
    // A deputy of two people votes for the one who has not voted.
    store.send_away(&bench, "bob", "dora");
    let approved = approve(&bench, &voted, "dora").await.unwrap();
    assert_eq!(approved.decisions[1].deputy_for.as_ref().unwrap().name, "bob");
    bench.end().await;
}

#[actix::test]
async fn vote_of_a_deputy_outlasts_the_absence_but_not_the_rights() {
    let (bench, store) = bench().await;
    let change = propose(&bench, "agent", 2, &["dba"]).await;
    store.send_away(&bench, "alice", "dora");
    let voted = approve(&bench, &change, "dora").await.unwrap();
    let is_void = || votes::void_event(bench.repository(), &voted).unwrap().is_some();
    store.bring_back("alice");
    bench.skew.fetch_add(60, Ordering::SeqCst);
    assert!(!is_void(), "it was given lawfully");
    for name in ["alice", "dora"] {
        store.set_role(name, None);
        assert!(is_void(), "{name} was revoked");
        store.set_role(name, Some(Role::Viewer));
        assert!(is_void(), "{name} may not decide any more");
        store.set_role(name, Some(Role::Reviewer));
        assert!(!is_void());
    }
    bench.repository().config.reviewers.set_groups(&BTreeMap::new());
    assert!(is_void(), "the absent person is in the group no longer");
    bench.end().await;
}
