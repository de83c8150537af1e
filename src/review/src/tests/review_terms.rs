//! Terms that rules set for reviews, and keys that count as one person.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::expect_refusal;
use crate::{ChangeDecision, ChangeRequestError, ChangeSettlement, testing::*};
use countersign_domain::{
    changes::{Change, ChangeState, OnExpiry, PreviewKind, PreviewNote, ReviewVerdict, SignInTerms, Terms},
    policy::{GroupMember, Reviewers},
    principal::{Claims, Principal},
};
use countersign_protocol::ErrorKind;

fn approval_by(change: &Change, name: &str, owner: Option<&str>) -> ChangeDecision {
    let mut decision = decision(change, name, ReviewVerdict::Approve);
    decision.reviewer = Arc::new(Principal { owner: owner.map(Into::into), ..reviewer(name) });
    decision
}

async fn propose(bench: &TestBench, terms: Terms) -> Arc<Change> {
    let proposal = crate::Proposal { terms, ..bench.proposal("agent", "{}") };
    bench.changes.propose(proposal).await.unwrap()
}

#[actix::test]
async fn one_person_has_one_vote_and_none_on_own_changes() {
    let bench = TestBench::new().await;
    let mut proposal = bench.proposal("agent", "{}");
    proposal.proposer.owner = Some("carol".into());
    proposal.terms.quorum = 2;
    let change = bench.changes.propose(proposal).await.unwrap();
    for (name, owner) in [("carol", None), ("desk", Some("carol")), ("agent", Some("dave"))] {
        let error =
            expect_refusal(bench.changes.decide(approval_by(&change, name, owner)).await, ErrorKind::SelfApproval);
        assert_eq!(error.current.unwrap().version, 1, "{name}");
    }
    let mut same_key = approval_by(&change, "dave", None);
    same_key.reviewer = Arc::new(Principal { key_id: Some("key_agent".into()), ..reviewer("dave") });
    expect_refusal(bench.changes.decide(same_key).await, ErrorKind::SelfApproval);

    let voted = bench.changes.decide(approval_by(&change, "laptop", Some("alice"))).await.unwrap();
    assert_eq!((voted.state, voted.approvals()), (ChangeState::Pending, 1));
    assert_eq!(voted.decisions[0].owner.as_deref(), Some("alice"));
    let previews = bench.fake.preview_count.load(std::sync::atomic::Ordering::SeqCst);
    for (name, owner) in [("phone", Some("alice")), ("alice", None), ("laptop", None)] {
        expect_refusal(bench.changes.decide(approval_by(&voted, name, owner)).await, ErrorKind::AlreadyVoted);
    }
    assert_eq!(
        bench.fake.preview_count.load(std::sync::atomic::Ordering::SeqCst),
        previews,
        "a refused vote asks no server for a preview"
    );
    bench.changes.decide(approval_by(&voted, "bob", None)).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    // Proposers may reject their own changes.
    let other = bench.propose("{}").await;
    let mut rejection = approval_by(&other, "agent", None);
    rejection.verdict = ReviewVerdict::Reject;
    assert_eq!(bench.changes.decide(rejection).await.unwrap().state, ChangeState::Rejected);
    bench.end().await;
}

#[actix::test]
async fn concurrent_votes_count_once_each() {
    let bench = TestBench::new().await;
    let change = propose(&bench, Terms { quorum: 3, ..Terms::default() }).await;
    let owners = ["ann", "ben", "cem"];
    // Each owner votes with many keys at the same time, and votes again on the current version after a conflict.
    let votes = (0..60).map(|n| {
        let (bench, change) = (&bench, Arc::clone(&change));
        async move {
            let mut shown = change;
            loop {
                match bench.changes.decide(approval_by(&shown, &format!("key-{n}"), Some(owners[n % 3]))).await {
                    Ok(_) => return 1,
                    Err(ChangeRequestError { error, current }) if error.kind == ErrorKind::VersionConflict => {
                        shown = current.unwrap();
                    }
                    Err(ChangeRequestError { error, .. }) => {
                        assert!(
                            matches!(error.kind, ErrorKind::AlreadyVoted | ErrorKind::ChangeNotPending),
                            "{error:?}"
                        );
                        return 0;
                    }
                }
            }
        }
    });
    assert_eq!(join_all(votes).await.into_iter().sum::<i32>(), 3);
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let mut voters: Vec<_> = applied.decisions.iter().map(|d| d.owner.clone().unwrap()).collect();
    voters.sort();
    assert_eq!(voters, owners);
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn rule_can_require_a_comment() {
    let bench = TestBench::new().await;
    let change = propose(&bench, Terms { require_comment: true, ..Terms::default() }).await;
    for verdict in [ReviewVerdict::Approve, ReviewVerdict::Reject] {
        for comment in [None, Some(" \n".to_owned())] {
            let without_comment = ChangeDecision { comment, ..decision(&change, "alice", verdict) };
            expect_refusal(bench.changes.decide(without_comment).await, ErrorKind::CommentRequired);
        }
    }
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn rule_can_require_a_live_preview() {
    let bench = TestBench::new().await;
    let proposal = |note: PreviewNote| {
        let mut proposal = bench.proposal("agent", "{}");
        proposal.terms.preview_required = true;
        proposal.preview.note = note;
        bench.changes.propose(proposal)
    };
    let arguments = PreviewNote { kind: PreviewKind::Arguments, ..PreviewNote::default() };
    let failed =
        PreviewNote { kind: PreviewKind::DryRun, failed: Some("no such file".into()), ..PreviewNote::default() };
    for note in [arguments, failed] {
        let change = proposal(note).await.unwrap();
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::PreviewRequired);
        bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    }
    let live = proposal(PreviewNote { kind: PreviewKind::BeforeAfter, ..PreviewNote::default() }).await.unwrap();
    bench.decide(&live, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&live.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn only_the_rules_reviewers_decide_edit_and_settle() {
    let groups = BTreeMap::from([("dba".to_owned(), vec![GroupMember::Name("dora".to_owned())])]);
    let bench = TestBench::with(|config| config.reviewers = Arc::new(Reviewers::new(&groups))).await;
    let change = propose(&bench, Terms { reviewers: vec!["dba".into()], ..Terms::default() }).await;
    for verdict in [ReviewVerdict::Approve, ReviewVerdict::Reject] {
        let error = expect_refusal(bench.decide(&change, verdict).await, ErrorKind::Forbidden);
        assert_eq!(error.error.data["reviewers"][0], "dba");
    }
    let edit = super::edits::edit(&change, "alice", r#"{"x":1}"#);
    expect_refusal(bench.changes.edit(edit).await, ErrorKind::Forbidden);
    // Others do not learn from the refusal whether the outcome is known.
    expect_refusal(bench.settle(&change, "alice", true).await, ErrorKind::Forbidden);
    bench.changes.decide(approval_by(&change, "dora", None)).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn rule_can_require_a_recent_and_strong_sign_in() {
    let bench = TestBench::new().await;
    let sign_in = Some(SignInTerms { max_age: Some(300), acr: vec!["mfa".into()] });
    let terms = Terms { sign_in, ..Terms::default() };
    let change = propose(&bench, terms.clone()).await;
    let signed_in = |age: i64, acr: Option<&str>| {
        let auth_time = Some(bench.repository().config.now().as_second() - age);
        let claims = Claims { auth_time, acr: acr.map(str::to_owned), ..Claims::default() };
        Arc::new(Principal { claims: Some(Arc::new(claims)), ..reviewer("alice") })
    };
    let approval =
        |change: &Change, reviewer| ChangeDecision { reviewer, ..decision(change, "alice", ReviewVerdict::Approve) };
    let error = expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::SignInRequired);
    assert_eq!(error.error.data["details"], serde_json::json!({ "maxAge": 300, "acr": ["mfa"] }));
    assert!(error.error.message.contains("a key or a local sign-in does not suffice"), "{}", error.error.message);
    assert_eq!(error.error.challenge(), None, "the challenge is for tokens");
    for (age, acr) in [(370, Some("mfa")), (0, Some("pwd")), (0, None)] {
        let error = expect_refusal(
            bench.changes.decide(approval(&change, signed_in(age, acr))).await,
            ErrorKind::SignInRequired,
        );
        assert!(error.error.message.ends_with("at most 300 s ago by mfa; sign in again"), "{}", error.error.message);
    }
    let with_token = Arc::new(Principal { key_id: None, ..(*signed_in(0, Some("pwd"))).clone() });
    let error = expect_refusal(bench.changes.decide(approval(&change, with_token)).await, ErrorKind::SignInRequired);
    let challenge = r#"Bearer error="insufficient_user_authentication", max_age="300", acr_values="mfa""#;
    assert_eq!(error.error.challenge().as_deref(), Some(challenge));
    let mut edit = super::edits::edit(&change, "alice", r#"{"x":1}"#);
    expect_refusal(bench.changes.edit(edit).await, ErrorKind::SignInRequired);
    // A rejection prevents the call, so that it needs no sign-in.
    let other = propose(&bench, terms).await;
    bench.decide(&other, ReviewVerdict::Reject).await.unwrap();
    edit = super::edits::edit(&change, "alice", r#"{"x":1}"#);
    edit.reviewer = signed_in(0, Some("mfa"));
    let edited = bench.changes.edit(edit).await.unwrap();
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Error(ErrorKind::Timeout);
    bench.changes.decide(approval(&edited, signed_in(200, Some("mfa")))).await.unwrap();
    let unknown = bench.wait_for_state(&change.id, ChangeState::OutcomeUnknown).await;
    let settle = |reviewer: Arc<Principal>| {
        let settlement = ChangeSettlement { reviewer, ..settlement(&unknown, "", true) };
        bench.changes.settle(settlement)
    };
    expect_refusal(settle(Arc::new(reviewer("alice"))).await, ErrorKind::SignInRequired);
    expect_refusal(settle(signed_in(0, Some("pwd"))).await, ErrorKind::SignInRequired);
    assert_eq!(settle(signed_in(0, Some("mfa"))).await.unwrap().state, ChangeState::Applied);
    bench.end().await;
}

#[actix::test]
async fn expiry_rejects_if_the_rule_says_so() {
    let bench = TestBench::new().await;
    let terms = || Terms { on_expiry: OnExpiry::Reject, ..Terms::default() };
    let (change, late) = (propose(&bench, terms()).await, propose(&bench, terms()).await);
    bench.skew.store(61, std::sync::atomic::Ordering::SeqCst);
    let error = expect_refusal(bench.decide(&late, ReviewVerdict::Approve).await, ErrorKind::ChangeExpired);
    assert_eq!(error.current.unwrap().state, ChangeState::Rejected);
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 1);
    let rejected = bench.get(&change.id).await;
    assert_eq!(rejected.state, ChangeState::Rejected);
    assert!(
        rejected.decisions.is_empty()
            && rejected.fault.as_ref().unwrap().message.contains("counts that as a rejection")
    );
    let entry = &bench.trail(&change.id).await[0];
    assert_eq!((entry.event.as_str(), entry.actor.as_str()), ("rejected", "system"));
    bench.end().await;
}

#[actix::test]
async fn truncated_diff_is_not_approved_in_bulk() {
    let bench = TestBench::new().await;
    let mut proposal = bench.proposal("agent", "{}");
    proposal.preview.diff.truncated = true;
    let change = bench.changes.propose(proposal).await.unwrap();
    let bulk = |verdict| ChangeDecision { bulk: true, ..decision(&change, "alice", verdict) };
    expect_refusal(bench.changes.decide(bulk(ReviewVerdict::Approve)).await, ErrorKind::Truncated);
    assert_eq!(bench.changes.decide(bulk(ReviewVerdict::Reject)).await.unwrap().state, ChangeState::Rejected);
    bench.end().await;
}

#[actix::test]
async fn duplicate_is_marked_and_stays_a_change_of_its_own() {
    let bench = TestBench::new().await;
    let first = bench.propose(r#"{"a":1,"b":2}"#).await;
    let duplicate = bench.propose(r#"{ "b": 2, "a": 1 }"#).await;
    assert_eq!((first.duplicate_of.as_deref(), duplicate.duplicate_of.as_deref()), (None, Some(first.id.as_str())));
    assert_ne!(first.id, duplicate.id);
    assert_eq!(bench.propose(r#"{"a":1}"#).await.duplicate_of, None);
    let other = bench.changes.propose(bench.proposal("other", r#"{"a":1,"b":2}"#)).await.unwrap();
    assert_eq!(other.duplicate_of, None, "the same call of another principal is not a duplicate");
    let mut keyed = bench.proposal("agent", r#"{"a":1,"b":2}"#);
    keyed.idempotency_key = Some("k".into());
    assert_eq!(
        bench.changes.propose(keyed).await.unwrap().duplicate_of,
        None,
        "a proposal with an idempotency key is not a duplicate"
    );
    bench.decide(&first, ReviewVerdict::Reject).await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    // The restarted process knows the open changes. A closed change has no duplicates.
    assert_eq!(bench.propose(r#"{"a":1,"b":2}"#).await.duplicate_of.as_deref(), Some(duplicate.id.as_str()));
    // One of two concurrent proposals is marked as the duplicate of the other.
    let pair = join_all([bench.propose(r#"{"z":1}"#), bench.propose(r#"{"z":1}"#)]).await;
    assert_eq!(pair.iter().filter(|change| change.duplicate_of.is_some()).count(), 1);
    bench.end().await;
}

#[actix::test]
async fn proposal_rate_limits_new_changes_but_not_repeats() {
    let bench = TestBench::with(|config| config.limits.max_proposals_per_minute = 3).await;
    let keyed = || crate::Proposal { idempotency_key: Some("k".into()), ..bench.proposal("agent", "{}") };
    let first = bench.changes.propose(keyed()).await.unwrap();
    for n in 0..2 {
        bench.propose(&format!(r#"{{"n":{n}}}"#)).await;
    }
    let refused = bench.changes.propose(bench.proposal("agent", r#"{"n":9}"#)).await.unwrap_err();
    assert_eq!(
        (refused.kind, &refused.data["limit"]),
        (ErrorKind::RateLimited, &"changes.max_proposals_per_minute".into())
    );
    assert!(refused.data["retryAfter"].as_u64().unwrap() > 0);
    assert_eq!(bench.changes.propose(keyed()).await.unwrap().id, first.id, "a repeat returns the first change");
    let invalid = crate::Proposal { idempotency_key: Some("i".into()), ..bench.proposal("agent", r#"{"a":1,"a":2}"#) };
    let refused = bench.changes.propose(invalid).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidParams, "an invalid proposal with a key is not counted");
    bench.changes.propose(bench.proposal("other", "{}")).await.unwrap();
    // The refused proposal left no change.
    assert_eq!(bench.changes.wait(&first.id, 0, Duration::ZERO).await.unwrap().unwrap().version, 1);
    assert_eq!(bench.changes.counts().iter().map(|(_, n)| n).sum::<u64>(), 4);
    bench.end().await;
}
