//! Deliveries of webhooks.

use super::*;

pub(super) fn feed_delivery(seq: u64) -> PendingDelivery {
    let (kind, event) = ("change.created".into(), "{}".into());
    let (key, subject) = (seq.to_string(), format!("chg_{}", seq % 2));
    PendingDelivery { id: 0, key, seq: Some(seq), kind, subject, event, attempts: 0, since: time_at(0) }
}

pub(super) fn attempt_result(attempts: u32) -> AttemptResult {
    AttemptResult { attempts, status: Some(500), error: Some("no".into()) }
}

pub(super) fn deliveries_wait_until_finished(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).deliveries().unwrap();
    assert_eq!(store.position("a", 7).unwrap(), 7, "a new webhook begins at the head");
    let live = PendingDelivery { key: "live".into(), seq: None, kind: "rule.created".into(), ..feed_delivery(0) };
    assert_eq!(store.enqueue("a", 12, &[feed_delivery(9), feed_delivery(10), feed_delivery(12)]).unwrap(), [1, 2, 3]);
    assert_eq!(store.enqueue("a", 12, &[feed_delivery(12), live]).unwrap(), [3, 4], "no event is stored twice");
    store.record_attempt("a", 1, DeliveryState::Delivered, &attempt_result(1), time_at(1)).unwrap();
    store.record_attempt("a", 2, DeliveryState::GivenUp, &attempt_result(3), time_at(1)).unwrap();
    store.record_attempt("a", 3, DeliveryState::Waiting, &attempt_result(2), time_at(1)).unwrap();
    store.record_attempt("a", 4, DeliveryState::Delivered, &attempt_result(1), time_at(1)).unwrap();
    // A second instance sees the same state, like another process.
    let store = location_of(dir.path()).deliveries().unwrap();
    assert_eq!(store.position("a", 99).unwrap(), 12);
    assert_eq!(store.pending("a").unwrap(), [PendingDelivery { id: 3, attempts: 2, ..feed_delivery(12) }]);
    let (again, waiting) = store.requeue_given_up("a", 5, time_at(9)).unwrap();
    assert_eq!((again, waiting.iter().map(|w| w.id).collect::<Vec<_>>()), (1, vec![2, 3]));
    assert_eq!(waiting[0].attempts, 0);
    assert!(waiting.iter().all(|delivery| delivery.since == time_at(9)), "their time starts again");
    assert_eq!(store.requeue_given_up("a", 5, time_at(9)).unwrap().0, 0);
    let states: Vec<_> = store.deliveries("a", None, 9).unwrap().iter().map(|d| (d.seq, d.state)).collect();
    let (waiting, delivered) = (DeliveryState::Waiting, DeliveryState::Delivered);
    assert_eq!(states, [(None, delivered), (Some(12), waiting), (Some(10), waiting), (Some(9), delivered)]);
    let delivery = &store.deliveries("a", Some(3), 1).unwrap()[0];
    assert_eq!((delivery.seq, delivery.change_id.as_deref()), (Some(10), Some("chg_0")));
    assert!(store.pending("b").unwrap().is_empty());
}

pub(super) fn old_finished_deliveries_are_deleted(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).deliveries().unwrap();
    for webhook in ["a", "b"] {
        store.position(webhook, 0).unwrap();
    }
    // The ids that are multiples of 16, with which old deliveries are deleted, all belong to the other webhook.
    let last = webhooks::MAX_FINISHED_DELIVERIES + 65;
    let events: Vec<_> = (1..=last).map(feed_delivery).collect();
    let enqueue = |webhook: &'static str, events: &[PendingDelivery]| {
        store.enqueue(webhook, last, events).unwrap().into_iter().map(move |id| (webhook, id))
    };
    let mut queued = Vec::new();
    for batch in events.chunks(15) {
        queued.extend(enqueue("a", batch));
        queued.extend(enqueue("b", &batch[..1]));
    }
    for (webhook, id) in queued.into_iter().skip(1) {
        store.record_attempt(webhook, id, DeliveryState::Delivered, &attempt_result(1), time_at(1)).unwrap();
    }
    let all = store.deliveries("a", None, 5000).unwrap();
    assert!(all.len() as u64 <= webhooks::MAX_FINISHED_DELIVERIES + 17, "{}", all.len());
    assert_eq!(all.last().unwrap().seq, Some(1));
    assert_eq!(store.deliveries("b", None, 5000).unwrap().len(), 71);
    store.retain_only(&["b".into()]).unwrap();
    assert!(store.deliveries("a", None, 9).unwrap().is_empty());
    assert_eq!(store.position("a", 99).unwrap(), 99, "the webhook counts as new");
}
