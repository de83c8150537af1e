use std::{net::SocketAddr, sync::atomic::Ordering};

use jiff::Timestamp;
use tokio::net::TcpListener;

use super::*;
use crate::{
    testing::{FakeNodes, pending_delivery},
    tests::HandedOverStore,
};
use countersign_store::StoreLocation;

/// Returns a worker that sends to the address.
fn worker_for(address: SocketAddr, store: Arc<dyn Deliveries>, feed: &Feed, nodes: &Arc<FakeNodes>) -> Worker {
    let mut config = WebhookConfig::sample("hook");
    config.url.0 = format!("http://{address}").parse().unwrap();
    Worker {
        config: Arc::new(config),
        store,
        feed: feed.clone(),
        nodes: Arc::clone(nodes) as _,
        dashboard_url: "".into(),
        status: Arc::default(),
        commands: mpsc::channel(1).1,
        stop: CancellationToken::new(),
        _ended: CancellationToken::new().drop_guard(),
    }
}

/// Stores deliveries of these events that were given up.
fn store_given_up(deliveries: &dyn Deliveries, events: &[PendingDelivery]) {
    deliveries.position("hook", 0).unwrap();
    for id in deliveries.enqueue("hook", 0, events).unwrap() {
        let attempt = AttemptResult::default();
        deliveries.record_attempt("hook", id, DeliveryState::GivenUp, &attempt, Timestamp::UNIX_EPOCH).unwrap();
    }
}

#[test]
fn keys_of_live_events_have_no_dashes() {
    let id = || new_unnumbered_key().trim_start_matches("live_").to_owned();
    assert!((0..200).all(|_| id().bytes().all(|byte| byte.is_ascii_alphanumeric())));
}

#[actix::test]
async fn delivery_requeued_by_node_that_left_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::directory(dir.path());
    let (store, deliveries) = (location.open().unwrap(), location.deliveries().unwrap());
    store_given_up(&*deliveries, &[pending_delivery(1, "a")]);

    let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nodes = Arc::new(FakeNodes::default());
    nodes.leads.store(true, Ordering::SeqCst);
    nodes.other_count.store(1, Ordering::SeqCst);
    let feed = Feed::new(store, 0, 1);
    let worker = worker_for(receiver.local_addr().unwrap(), Arc::clone(&deliveries), &feed, &nodes);
    tokio::time::pause();
    actix::spawn(worker.run());
    while feed.subscriber_count() == 0 {
        sleep(LEADER_CHECK_INTERVAL).await;
    }
    // The worker has read the store. The other node requeues the delivery and leaves before the next read.
    assert_eq!(deliveries.requeue_given_up("hook", 1, Timestamp::now()).unwrap().0, 1);
    nodes.other_count.store(0, Ordering::SeqCst);
    assert!(timeout(STORE_POLL_INTERVAL * 10, receiver.accept()).await.is_ok(), "the delivery is not sent");
}

#[actix::test]
async fn retry_requeues_all_given_up_deliveries() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::directory(dir.path());
    let (store, deliveries) = (location.open().unwrap(), location.deliveries().unwrap());
    let events: Vec<_> = (1..=u64::try_from(2 * MAX_WAITING).unwrap()).map(|seq| pending_delivery(seq, "a")).collect();
    store_given_up(&*deliveries, &events);
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nodes = Arc::new(FakeNodes::default());
    let worker = worker_for(address, Arc::clone(&deliveries), &Feed::new(store, 0, 1), &nodes);
    let mut lanes = Lanes::default();
    assert_eq!(worker.retry_waiting(&mut lanes).await, events.len());
    assert_eq!((lanes.len(), deliveries.pending("hook").unwrap().len()), (events.len(), events.len()));
}

#[actix::test]
async fn former_leader_reports_no_failure_of_the_receiver() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::directory(dir.path());
    let (store, deliveries) = (location.open().unwrap(), location.deliveries().unwrap());
    deliveries.position("hook", 0).unwrap();
    deliveries.enqueue("hook", 0, &[pending_delivery(1, "a")]).unwrap();
    // Nothing listens at the address.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nodes = Arc::new(FakeNodes::default());
    nodes.leads.store(true, Ordering::SeqCst);
    *nodes.claimant.lock().unwrap() = Some(Claimant { node: "own".into(), epoch: 1 });
    let shared_store = Arc::new(HandedOverStore { store: deliveries, is_for_leader: false });
    let worker = worker_for(address, shared_store, &Feed::new(store, 0, 1), &nodes);
    let status = Arc::clone(&worker.status);
    tokio::time::pause();
    actix::spawn(worker.run());
    while status.lock().last_error.is_none() {
        sleep(LEADER_CHECK_INTERVAL).await;
    }
    nodes.leads.store(false, Ordering::SeqCst);
    let reset = async {
        while status.lock().last_error.is_some() {
            sleep(LEADER_CHECK_INTERVAL).await;
        }
    };
    assert!(timeout(STORE_POLL_INTERVAL * 10, reset).await.is_ok(), "{:?}", status.lock());
}
