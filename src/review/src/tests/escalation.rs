//! Reviewers who may decide because nobody has for some time.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use futures_util::FutureExt as _;
use serde_json::Value;

use super::expect_refusal;
use crate::{ReviewConfig, testing::*, upkeep::escalation};
use countersign_domain::{
    changes::{Change, ChangeState, Escalation, ReviewVerdict, Terms},
    policy::{GroupMember, Reviewers},
};
use countersign_protocol::ErrorKind;

/// Seconds until a change escalates; it expires after 60.
const AFTER: u64 = 30;

fn add_groups(config: &mut ReviewConfig) {
    let group = |name: &str, member: &str| (name.to_owned(), vec![GroupMember::Name(member.to_owned())]);
    let groups = BTreeMap::from([group("dba", "dora"), group("oncall", "olga")]);
    config.reviewers = Arc::new(Reviewers::new(&groups));
}

async fn propose(bench: &TestBench, quorum: u32) -> Arc<Change> {
    let escalate = Some(Escalation { after: AFTER, to: vec!["oncall".into()] });
    let terms = Terms { reviewers: vec!["dba".into()], quorum, escalate, ..Terms::default() };
    let proposal = crate::Proposal { terms, ..bench.proposal("agent", "{}") };
    bench.changes.propose(proposal).await.unwrap()
}

fn approval_by(change: &Change, name: &str) -> crate::ChangeDecision {
    decision(change, name, ReviewVerdict::Approve)
}

fn pass_time(bench: &TestBench, seconds: i64) {
    bench.skew.fetch_add(seconds, Ordering::SeqCst);
}

/// Returns the number of audit entries about the escalation of the change.
async fn recorded_escalations(bench: &TestBench, id: &str) -> usize {
    let entries = bench.trail(id).await;
    entries.iter().filter(|entry| entry.event == "escalated" && entry.actor == "system").count()
}

#[actix::test]
async fn further_reviewers_decide_once_the_time_has_come() {
    let bench = TestBench::with(add_groups).await;
    let (change, other) = (propose(&bench, 1).await, propose(&bench, 2).await);
    let error = expect_refusal(bench.changes.decide(approval_by(&change, "olga")).await, ErrorKind::Forbidden).error;
    assert_eq!(error.data["reviewers"], serde_json::json!(["dba"]));
    assert!(error.data["escalatesAt"].is_string(), "{:?}", error.data);
    pass_time(&bench, 30);
    let error = expect_refusal(bench.changes.decide(approval_by(&change, "carol")).await, ErrorKind::Forbidden).error;
    assert_eq!(error.data["reviewers"], serde_json::json!(["dba", "oncall"]));
    assert!(error.data.get("escalatesAt").is_none());
    bench.changes.decide(approval_by(&change, "olga")).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    // The quorum stays.
    let voted = bench.changes.decide(approval_by(&other, "olga")).await.unwrap();
    assert_eq!((voted.state, voted.approvals()), (ChangeState::Pending, 1));
    bench.changes.decide(approval_by(&voted, "dora")).await.unwrap();
    bench.wait_for_state(&other.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn escalation_is_recorded_and_announced_once() {
    let bench = TestBench::with(add_groups).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let (change, decided) = (propose(&bench, 2).await, propose(&bench, 1).await);
    bench.decide(&decided, ReviewVerdict::Reject).await.unwrap_err();
    bench.changes.decide(decision(&decided, "dora", ReviewVerdict::Reject)).await.unwrap();
    escalation::escalate_due(bench.repository()).await;
    assert_eq!(recorded_escalations(&bench, &change.id).await, 0, "the time has not come");
    pass_time(&bench, 30);
    assert_eq!(escalation::escalate_due(bench.repository()).await, 1);
    assert_eq!(escalation::escalate_due(bench.repository()).await, 0);
    let events: Vec<_> = std::iter::from_fn(|| feed.next().now_or_never().flatten()).collect();
    let escalated: Vec<_> = events.iter().filter(|event| event.kind == "change.escalated").collect();
    let [event] = escalated.as_slice() else { panic!("{escalated:?}") };
    let json: Value = serde_json::from_slice(&event.json).unwrap();
    assert_eq!((event.seq, &json["actor"], &json["change"]["id"]), (None, &"system".into(), &change.id.clone().into()));
    assert_eq!(json["change"]["terms"]["escalate"]["to"][0], "oncall");
    let current = bench.get(&change.id).await;
    assert_eq!((current.version, current.state), (1, ChangeState::Pending), "nothing touches the change");
    // A vote schedules it again, which leads to no second entry.
    bench.changes.decide(approval_by(&change, "olga")).await.unwrap();
    escalation::escalate_due(bench.repository()).await;
    assert_eq!(recorded_escalations(&bench, &change.id).await, 1);
    assert_eq!(recorded_escalations(&bench, &decided.id).await, 0, "a decided change does not escalate");
    bench.end().await;
}

#[actix::test]
async fn escalation_missed_while_down_is_recorded_after_the_start() {
    let bench = TestBench::with(add_groups).await;
    let early = propose(&bench, 1).await;
    pass_time(&bench, 20);
    let late = propose(&bench, 1).await;
    pass_time(&bench, 10);
    escalation::escalate_due(bench.repository()).await;
    let (dir, fake, skew) = bench.end().await;
    for (seconds, recorded) in [(0, [1, 0]), (20, [1, 1])] {
        skew.fetch_add(seconds, Ordering::SeqCst);
        let mut config = config(&skew);
        add_groups(&mut config);
        let bench = TestBench::in_directory(Arc::clone(&dir), Arc::clone(&fake), Arc::clone(&skew), config).await;
        escalation::escalate_due(bench.repository()).await;
        for (change, recorded) in [&early, &late].into_iter().zip(recorded) {
            assert_eq!(recorded_escalations(&bench, &change.id).await, recorded, "after {seconds} s");
        }
        bench.end().await;
    }
}
