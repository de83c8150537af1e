//! Reminders of changes that nobody has decided on.

use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use jiff::Timestamp;

use crate::{testing::*, upkeep::reminders};
use countersign_domain::changes::{ChangeState, ReviewVerdict, Terms};
use countersign_feed::FeedSubscription;

async fn remind(bench: &TestBench, checked_to: &mut Timestamp, seconds: i64) {
    bench.skew.fetch_add(seconds, Ordering::SeqCst);
    let now = bench.repository().config.now();
    reminders::remind_due(bench.repository(), *checked_to, now).await;
    *checked_to = now;
}

/// Reads all events of the feed, and returns the changes that they remind of.
fn reminded_changes(feed: &mut FeedSubscription) -> Vec<String> {
    let events = std::iter::from_fn(|| feed.next().now_or_never().flatten());
    let reminders = events.filter(|event| event.kind == "change.reminder" && event.seq.is_none());
    let json = reminders.map(|event| serde_json::from_slice::<serde_json::Value>(&event.json).unwrap());
    json.map(|json| json["change"]["id"].as_str().unwrap().to_owned()).collect()
}

#[actix::test]
async fn undecided_change_is_announced_again_each_time() {
    let bench = TestBench::new().await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let mut checked_to = bench.repository().config.now();
    let terms = Terms { remind: Some(1000), ..Terms::default() };
    let proposal = || crate::Proposal { terms: terms.clone(), ..bench.proposal("agent", "{}") };
    let change = bench.changes.propose(proposal()).await.unwrap();
    let decided = bench.changes.propose(proposal()).await.unwrap();
    bench.decide(&decided, ReviewVerdict::Reject).await.unwrap();
    for (seconds, reminders) in [(500, 0), (600, 1), (100, 0), (1000, 1), (2500, 1), (100, 0)] {
        remind(&bench, &mut checked_to, seconds).await;
        assert_eq!(reminded_changes(&mut feed), vec![change.id.clone(); reminders], "after {seconds} s more");
    }
    let current = bench.get(&change.id).await;
    assert_eq!((current.version, current.state), (1, ChangeState::Pending), "nothing touches the change");
    bench.end().await;
}

#[actix::test]
async fn reminders_missed_while_down_are_left_out() {
    let bench = TestBench::new().await;
    let terms = Terms { remind: Some(1000), ..Terms::default() };
    let proposal = crate::Proposal { terms, ..bench.proposal("agent", "{}") };
    let change = bench.changes.propose(proposal).await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    skew.fetch_add(2500, Ordering::SeqCst);
    let bench = TestBench::in_directory(dir, fake, std::sync::Arc::clone(&skew), config(&skew)).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let mut checked_to = bench.repository().config.now();
    for (seconds, reminders) in [(100, 0), (600, 1)] {
        remind(&bench, &mut checked_to, seconds).await;
        assert_eq!(reminded_changes(&mut feed), vec![change.id.clone(); reminders], "after {seconds} s more");
    }
    bench.end().await;
}
