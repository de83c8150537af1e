//! Tests of several nodes on one database: claims, leadership, leases, and the takeover of what a node leaves behind.

use std::time::Instant;

use super::{
    fault_tests::{proxied_server, run_sql, server_for},
    *,
};
use crate::{
    Draft, LateCall, PinStore, Record, WriteError, WriteRequest,
    drafts::{claim, create_approved, created, submit, transition, updated, write},
    nodes::Node,
    servers::proxy::{PASS, REFUSE, SILENT},
};
use countersign_domain::{
    changes::{ChangeState, Claimant, machine::EventKind, testing::change},
    policy::pins::{Definition, PinSource as _},
};

/// The timeout of all waits, which no successful test reaches.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

async fn wait_until(expected: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + WAIT_TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < end, "timed out waiting until {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn applied_draft(id: &str, by: Option<Claimant>) -> Draft {
    transition(id, 4, ChangeState::Executing, ChangeState::Applied, by, "")
}

fn orphan_draft(id: &str, by: Option<Claimant>) -> Draft {
    Draft { orphan: true, ..transition(id, 4, ChangeState::Executing, ChangeState::OutcomeUnknown, by, "") }
}

fn settled_draft(id: &str, by: Option<Claimant>) -> Draft {
    transition(id, 5, ChangeState::OutcomeUnknown, ChangeState::Failed, by, "")
}

async fn own_node(store: &dyn Store) -> Node {
    store.nodes().list().await.unwrap().into_iter().find(|node| node.is_self).unwrap()
}

#[tokio::test]
async fn nodes_write_one_log_and_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<_> = (0..3).map(|_| server_for(dir.path()).open().unwrap()).collect();
    wait_until("all nodes know each other", async || stores.iter().all(|store| store.nodes().live_count() == 3)).await;
    let mut updates: Vec<_> = stores.iter().map(|store| store.nodes().subscribe_updates()).collect();
    let mut answers = Vec::new();
    for n in 0..40 {
        for (node, store) in stores.iter().enumerate() {
            answers.push(submit(&**store, created(&format!("{node}-{n}"))));
        }
    }
    let mut seqs = Vec::new();
    for answer in answers {
        seqs.push(answer.await.unwrap().unwrap().seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=120).collect::<Vec<u64>>());
    for (store, updates) in stores.iter().zip(&mut updates) {
        updates.wait_for(|updates| updates.event == 120).await.unwrap();
        let remote_events = store.remote_events_after(0, 1000).await.unwrap();
        assert!(remote_events.iter().map(|remote| remote.event.seq).eq(1..=120));
        assert!(remote_events.iter().all(|remote| remote.bytes > 0), "each event has the size of its change");
    }
    // Two nodes decide on the same change at the same time.
    let (a, b) = tokio::join!(
        write(&*stores[0], updated("0-0", 2, ChangeState::Pending, ChangeState::Approved)),
        write(&*stores[1], updated("0-0", 2, ChangeState::Pending, ChangeState::Rejected)),
    );
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    assert_eq!(stores[2].get("0-0").await.unwrap().unwrap().version, 2);
    stores.iter().for_each(|store| store.close());
    server_for(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn second_observer_adopts_pins_of_first() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    let stored = Arc::clone(&a);
    let (a, b) = (PinStore::open(a).await.unwrap(), PinStore::open(b).await.unwrap());
    let tool = |hash: &str| Definition { name: "read".into(), hash: hash.into(), text: "{}".into() };
    let seen = |pins: &PinStore| pins.snapshot().pin("files", "read").and_then(|pin| pin.seen.clone());
    a.observe("files", &[tool("first")]);
    wait_until("the first pins are stored", async || !stored.pins().await.unwrap().servers.is_empty()).await;
    b.observe("files", &[tool("second")]);
    wait_until("the second node notices the first pins", async || b.is_behind()).await;
    b.reload().await.unwrap();
    assert_eq!((seen(&b).as_deref(), b.is_behind()), (Some("first"), false));
}

/// The connection stops within a transaction, like a node on a frozen machine. Without the server's idle limit, the
/// other nodes would give up first.
#[tokio::test]
async fn frozen_transaction_delays_others_briefly() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    write(&*store, created("a")).await.unwrap();
    let connector = PgConnector::start(&connect::parse(&crate::servers::url_of(dir.path())).unwrap(), None).unwrap();
    let frozen = connector.connect().await.unwrap();
    frozen.batch_execute("BEGIN").await.unwrap();
    rows::take_heads(&frozen).await.unwrap();
    rows::execute(&frozen, "UPDATE heads SET event = 99", &[]).await.unwrap();
    assert_eq!(write(&*store, created("b")).await.unwrap().seq, 2, "the server has rolled back the frozen transaction");
    // The frozen node gets an error when it continues.
    frozen.batch_execute("COMMIT").await.unwrap_err();
    assert_eq!(store.heads().await.unwrap().event, 2);
    store.close();
    server_for(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn target_has_one_claim_that_its_owner_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    let (by_a, by_b) = (a.nodes().claimant(), b.nodes().claimant());
    for id in ["one", "two", "three"] {
        create_approved(&*a, id, "file").await;
    }
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    let again = write(&*b, claim("one", by_b.clone(), "file")).await;
    assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    let busy = write(&*b, claim("two", by_b.clone(), "file")).await;
    assert!(matches!(busy, Err(WriteError::Busy)), "{busy:?}");
    let other = write(&*b, claim("three", by_b.clone(), "another file")).await;
    assert!(other.is_ok(), "{other:?}");
    assert_eq!((own_node(&*a).await.running, own_node(&*b).await.running), (1, 1));

    let fenced = write(&*b, applied_draft("one", by_b.clone())).await;
    assert!(matches!(fenced, Err(WriteError::Fenced)), "{fenced:?}");
    let early = write(&*b, orphan_draft("one", by_a.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "its node is alive: {early:?}");
    assert!(b.orphaned_changes().await.unwrap().is_empty());
    let question = transition("one", 4, ChangeState::Executing, ChangeState::Executing, by_a.clone(), "file");
    write(&*a, Draft { kind: EventKind::Asked, ..question }).await.unwrap();
    write(&*a, transition("one", 5, ChangeState::Executing, ChangeState::Applied, by_a, "")).await.unwrap();
    write(&*b, claim("two", by_b.clone(), "file")).await.unwrap();
    write(&*b, applied_draft("two", by_b)).await.unwrap();
    a.close();
    b.close();
    server_for(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn orphan_is_settled_after_late_calls_are_over() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let (a, b) = (server.open().unwrap(), server_for(dir.path()).open().unwrap());
    let (by_a, by_b) = (a.nodes().claimant(), b.nodes().claimant());
    wait_until("the first node leads", async || a.nodes().is_leader()).await;
    assert!(!b.nodes().is_leader());
    create_approved(&*a, "one", "file").await;
    create_approved(&*a, "two", "file").await;
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    assert!(a.nodes().holds_claim(by_a.as_ref()));

    proxy.set(REFUSE);
    run_sql(
        dir.path(),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    wait_until("the change counts as orphaned", async || b.orphaned_changes().await.is_ok_and(|ids| ids == ["one"]))
        .await;
    assert!(!a.nodes().holds_claim(by_a.as_ref()), "the local lease ends first");
    assert!(!a.nodes().is_leader());
    wait_until("the other node leads", async || b.nodes().is_leader()).await;
    write(&*b, orphan_draft("one", by_a.clone())).await.unwrap();
    assert!(b.orphaned_changes().await.unwrap().is_empty());
    // The first node may still send its call, so nobody may settle the change or claim the target.
    let busy = write(&*b, claim("two", by_b.clone(), "file")).await;
    assert!(matches!(busy, Err(WriteError::Busy)), "{busy:?}");
    assert!(b.in_flight_until("one").await.unwrap().is_some());
    let early = write(&*b, settled_draft("one", by_a.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "{early:?}");

    proxy.set(PASS);
    wait_until("the first node has rejoined", async || {
        a.nodes().claimant() != by_a
            && a.nodes().holds_claim(None)
            && a.nodes().claimant().is_some_and(|by| by.epoch == 2)
    })
    .await;
    assert!(!a.nodes().holds_claim(by_a.as_ref()), "claims of the earlier epoch stay invalid");
    assert!(!a.nodes().is_leader(), "the other node joined earlier");
    let late = loop {
        match write(&*a, applied_draft("one", by_a.clone())).await {
            Err(WriteError::Store(StoreError::Unreachable(_))) => tokio::time::sleep(Duration::from_millis(20)).await,
            other => break other,
        }
    };
    assert!(matches!(late, Err(WriteError::Conflict)), "{late:?}");
    assert!(b.in_flight_until("one").await.unwrap().is_some(), "the call may still be under way in the live process");
    let (reply, answer) = tokio::sync::oneshot::channel();
    let record = Record {
        change: "one".into(),
        late: by_a.clone().map(|by| LateCall { by, taken_until: None }),
        ..Record::new("late_result", Timestamp::now(), "gateway", r#"{"outcome":"applied"}"#.into())
    };
    a.submit(WriteRequest::Record(record), Box::new(|result, _| drop(reply.send(result))));
    answer.await.unwrap().unwrap();
    assert!(b.in_flight_until("one").await.unwrap().is_none());
    write(&*b, claim("two", by_b.clone(), "file")).await.unwrap();
    write(&*b, settled_draft("one", by_a)).await.unwrap();
    write(&*b, applied_draft("two", by_b)).await.unwrap();
    a.close();
    b.close();
    server_for(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn late_call_delays_settlement_for_two_minutes() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    let by = store.nodes().claimant();
    create_approved(&*store, "one", "file").await;
    write(&*store, claim("one", by.clone(), "file")).await.unwrap();
    // The process rejoins with the next epoch.
    run_sql(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    wait_until("the change counts as orphaned", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    write(&*store, orphan_draft("one", by.clone())).await.unwrap();
    let until = store.in_flight_until("one").await.unwrap().unwrap();
    let left = until.duration_since(Timestamp::now()).as_secs();
    assert!(left <= i64::from(claims::MAX_SEND_DELAY_SECS), "{left}");
    let early = write(&*store, settled_draft("one", by.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "{early:?}");
    run_sql(dir.path(), "UPDATE claims SET lapsed_until = lapsed_until - interval '2 minutes'").await;
    assert!(store.in_flight_until("one").await.unwrap().is_none());
    write(&*store, settled_draft("one", by)).await.unwrap();
    store.close();
}

#[tokio::test]
async fn restarted_node_frees_target_after_call_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    let by = store.nodes().claimant().unwrap();
    create_approved(&*store, "one", "file").await;
    let claimed = claim("one", Some(by.clone()), "file");
    let target = claimed.change.target_hash();
    write(&*store, claimed).await.unwrap();
    run_sql(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    wait_until("the change counts as orphaned", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    write(&*store, orphan_draft("one", Some(by.clone()))).await.unwrap();
    // Returns the seconds for which the target stays taken. A call may take 120 seconds by default.
    let taken = async |store: &dyn Store| {
        let occupant = store.occupants(vec![target.clone()], Timestamp::now()).await.unwrap().pop().unwrap();
        occupant.until.unwrap().duration_since(Timestamp::now()).as_secs()
    };
    let call = 120;
    assert!(taken(&*store).await > call + i64::from(claims::MAX_SEND_DELAY_SECS) - 30, "the call may still be sent");
    store.close();
    let again =
        PostgresStore::begin(server_for(dir.path()).migrated_connector().unwrap(), by.node, Duration::ZERO).unwrap();
    assert!(again.in_flight_until("one").await.unwrap().is_none());
    assert!((call - 30..=call).contains(&taken(&again).await), "the call was sent before the restart");
    again.close();
}

/// The rows are missing as if the node had been frozen for more than a day, and a person had settled its change.
#[tokio::test]
async fn deleted_node_row_invalidates_old_claims() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    let by = store.nodes().claimant();
    create_approved(&*store, "one", "file").await;
    write(&*store, claim("one", by.clone(), "file")).await.unwrap();
    run_sql(dir.path(), "BEGIN; DELETE FROM claims; DELETE FROM nodes; COMMIT").await;
    wait_until("the node has rejoined", async || {
        let listed = store.nodes().list().await.unwrap();
        listed.iter().any(|node| node.is_alive && node.epoch == 2)
    })
    .await;
    wait_until("the node has a new epoch", async || store.nodes().holds_claim(None) && store.nodes().claimant() != by)
        .await;
    assert!(!store.nodes().holds_claim(by.as_ref()));
    let late = write(&*store, applied_draft("one", by)).await;
    assert!(matches!(late, Err(WriteError::Fenced)), "{late:?}");
    store.close();
}

#[tokio::test]
async fn change_in_progress_is_not_orphaned() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_for(dir.path());
    let store = server.open().unwrap();
    let by = store.nodes().claimant();
    create_approved(&*store, "one", "file").await;
    write(&*store, claim("one", by.clone(), "file")).await.unwrap();
    let mut session = server.tables().unwrap().wait_for_session().unwrap();
    session.begin("BEGIN").unwrap();
    assert!(session.is_claimed("one").unwrap() && !session.is_claimed("two").unwrap());
    run_sql(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    wait_until("the change counts as orphaned", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    let early = write(&*store, orphan_draft("one", by.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "the locked claim is refused without waiting: {early:?}");
    session.commit().unwrap();
    write(&*store, orphan_draft("one", by)).await.unwrap();
    let session = server.tables().unwrap().wait_for_session().unwrap();
    assert!(!session.is_claimed("one").unwrap());
    store.close();
}

#[tokio::test]
async fn outdated_node_keeps_newest_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    let policy = |digest: &str| PolicySnapshot { digest: digest.into(), refused: None, body: "{}".into() };
    let newest = async |store: &dyn Store| store.policies().await.unwrap().newest.unwrap().digest;
    a.save_policy(policy("old"), false).await.unwrap();
    b.save_policy(policy("old"), false).await.unwrap();
    // A reviewer consents to a policy on one node, and the other node saves its own policy without consent.
    a.save_policy(policy("agreed"), true).await.unwrap();
    b.save_policy(policy("stricter"), false).await.unwrap();
    assert_eq!(newest(&*b).await, "agreed");
    assert_eq!(b.policies().await.unwrap().own, Some(policy("stricter")));
    assert_eq!(a.policies().await.unwrap().own, Some(policy("agreed")));
    // Once the node has the newest policy, it may replace the newest policy.
    b.save_policy(policy("agreed"), false).await.unwrap();
    b.save_policy(policy("next"), false).await.unwrap();
    assert_eq!(newest(&*a).await, "next");
    // A new node that has not read the newest policy may not replace it.
    let c = server_for(dir.path()).open().unwrap();
    c.save_policy(policy("stranger"), false).await.unwrap();
    assert_eq!(newest(&*a).await, "next");
    for store in [a, b, c] {
        store.close();
    }
}

#[tokio::test]
async fn new_node_continues_from_newest_policy() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, c, d] = [(); 4].map(|()| server_for(dir.path()).open().unwrap());
    let policy = |digest: &str| PolicySnapshot { digest: digest.into(), refused: None, body: "{}".into() };
    let newest = async |store: &dyn Store| store.policies().await.unwrap().newest.unwrap().digest;
    a.save_policy(policy("old"), false).await.unwrap();
    for new in [&b, &c, &d] {
        assert_eq!(
            new.policies().await.unwrap(),
            PolicySnapshots { newest: Some(policy("old")), ..PolicySnapshots::default() }
        );
    }
    // A new node with a stricter configuration replaces the newest policy that it has read.
    b.save_policy(policy("stricter"), false).await.unwrap();
    assert_eq!(newest(&*b).await, "stricter");
    // A node that began with an older policy may not replace the newest one, even if the node has read it since.
    assert_eq!(newest(&*c).await, "stricter");
    c.save_policy(policy("behind"), false).await.unwrap();
    assert_eq!(newest(&*c).await, "stricter");
    a.save_policy(policy("agreed"), true).await.unwrap();
    d.save_policy(policy("behind"), false).await.unwrap();
    assert_eq!(newest(&*d).await, "agreed");
    for store in [a, b, c, d] {
        store.close();
    }
}

#[tokio::test]
async fn restarted_process_ends_wait_for_late_calls() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, first) = proxied_server(dir.path());
    let b = server_for(dir.path()).open().unwrap();
    let a = first.open().unwrap();
    let by_a = a.nodes().claimant();
    create_approved(&*a, "one", "file").await;
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    // The first process loses its connections, as if it had been killed.
    proxy.set(REFUSE);
    let restarted_server = server_for(dir.path());
    let again = PostgresStore::begin(
        restarted_server.migrated_connector().unwrap(),
        by_a.clone().unwrap().node,
        Duration::ZERO,
    )
    .unwrap();
    assert_eq!(again.nodes().claimant().unwrap().epoch, 2);
    assert_eq!(b.orphaned_changes().await.unwrap(), ["one"], "without waiting for the lease");
    write(&again, orphan_draft("one", by_a.clone())).await.unwrap();
    assert!(b.in_flight_until("one").await.unwrap().is_none());
    write(&*b, settled_draft("one", by_a)).await.unwrap();

    // The first process is still alive, as after a copy of its data directory, and must stop.
    proxy.set(PASS);
    wait_until("the first process has stopped serving", async || !a.is_open()).await;
    let refused = write(&*a, created("x")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded))), "{refused:?}");
    assert!(again.is_open());
    write(&again, created("y")).await.unwrap();
}

#[tokio::test]
async fn leaving_node_hands_over_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    wait_until("the first node leads", async || a.nodes().is_leader()).await;
    let [url, version, configuration, certificate] = ["http://a", "1", "x", "y"].map(String::from);
    let introduction = crate::nodes::Introduction { url, version, configuration, certificate };
    a.nodes().introduce(introduction.clone());
    wait_until("the other node sees the change", async || {
        b.nodes().list().await.unwrap()[0].introduction == introduction
    })
    .await;
    let id = a.nodes().claimant().unwrap().node;
    let peer = Some(crate::nodes::Peer { url: introduction.url, certificate: introduction.certificate });
    wait_until("the other node knows the address", async || b.nodes().peer(&id) == peer).await;
    assert!(matches!(server_for(dir.path()).take_offline(false).err(), Some(StoreError::Served)));
    let began = Instant::now();
    a.close();
    wait_until("the other node leads", async || b.nodes().is_leader()).await;
    let listed = b.nodes().list().await.unwrap();
    assert!(!listed[0].is_alive && listed[1].is_leader, "{listed:?} after {:?}", began.elapsed());
    b.close();
    assert!(server_for(dir.path()).take_offline(false).is_ok());
}

#[tokio::test]
async fn resigning_node_hands_over_and_keeps_claims() {
    let dir = tempfile::tempdir().unwrap();
    let (a_server, b_server) = (server_for(dir.path()), server_for(dir.path()));
    let a = a_server.open().unwrap();
    wait_until("the only node leads", async || a.nodes().is_leader()).await;
    let b = b_server.open().unwrap();
    let by_a = a.nodes().claimant();
    create_approved(&*a, "one", "file").await;
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    let deliveries = a_server.deliveries().unwrap();
    deliveries.position("a", 0).unwrap();
    let led = deliveries.for_leader(by_a.as_ref().unwrap());
    led.enqueue("a", 1, &[]).unwrap();

    a.nodes().resign();
    assert!(!a.nodes().is_leader(), "it resigns at once");
    wait_until("the other node leads", async || b.nodes().is_leader()).await;
    let late = led.enqueue("a", 2, &[]);
    assert!(matches!(late, Err(StoreError::HandedOver)), "writes of the former leader are refused: {late:?}");
    let late = led.retain_only(&[]);
    assert!(matches!(late, Err(StoreError::HandedOver)), "{late:?}");
    b_server.deliveries().unwrap().for_leader(b.nodes().claimant().as_ref().unwrap()).enqueue("a", 3, &[]).unwrap();
    // The resigned node joined first, but it is not the leader.
    let listed = b.nodes().list().await.unwrap();
    let shown: Vec<_> = listed.iter().map(|node| (node.is_alive, node.is_leader, node.running)).collect();
    assert_eq!(shown, [(true, false, 1), (true, true, 0)]);
    // The resigned node does not lead alone either, and a new node leads without waiting for its end.
    b.close();
    let c = server_for(dir.path()).open().unwrap();
    wait_until("the later node leads", async || c.nodes().is_leader()).await;
    assert!(!a.nodes().is_leader() && a.nodes().holds_claim(by_a.as_ref()));
    assert!(c.orphaned_changes().await.unwrap().is_empty());
    write(&*a, applied_draft("one", by_a)).await.unwrap();
    a.close();
    c.close();
    // After a restart, the node may lead again.
    let again = a_server.open().unwrap();
    wait_until("the node leads", async || again.nodes().is_leader()).await;
    again.close();
}

#[tokio::test]
async fn resigned_node_never_leads_again() {
    let dir = tempfile::tempdir().unwrap();
    let a = server_for(dir.path()).open().unwrap();
    wait_until("the node leads", async || a.nodes().is_leader()).await;
    a.nodes().resign();
    wait_until("the other node sees the change", async || !a.nodes().list().await.unwrap()[0].is_leader).await;
    run_sql(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    wait_until("the node has a new epoch", async || {
        a.nodes().claimant().is_some_and(|by| by.epoch == 2) && a.nodes().holds_claim(None)
    })
    .await;
    // The node checks for leadership with each renewal.
    let renewed = a.nodes().list().await.unwrap()[0].lease_until;
    wait_until("the lease is renewed", async || a.nodes().list().await.unwrap()[0].lease_until > renewed).await;
    assert!(!a.nodes().is_leader() && !a.nodes().list().await.unwrap()[0].is_leader);
    a.close();
}

fn introduction(url: &str) -> crate::nodes::Introduction {
    crate::nodes::Introduction { url: url.into(), ..Default::default() }
}

#[tokio::test]
async fn peer_is_known_after_refresh_until_lease_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let a = server.open().unwrap();
    let b = server_for(dir.path()).open().unwrap();
    let id = b.nodes().claimant().unwrap().node;
    b.nodes().introduce(introduction("http://b"));
    b.nodes().refresh().await.unwrap();
    a.nodes().refresh().await.unwrap();
    assert_eq!(
        a.nodes().peer(&id).map(|peer| peer.url).as_deref(),
        Some("http://b"),
        "the refresh returns after the address is known"
    );
    // Without further renewals, the last known address counts until the lease of the peer ends.
    proxy.set(SILENT);
    wait_until("the peer counts as gone", async || a.nodes().peer(&id).is_none()).await;
    assert!(a.nodes().refresh().await.is_err());
    a.close();
    b.close();
}

#[tokio::test]
async fn sessions_end_with_lease_unless_node_was_alone() {
    let dir = tempfile::tempdir().unwrap();
    let a = server_for(dir.path()).open().unwrap();
    let (id, lapse) =
        (a.nodes().claimant().unwrap().node, "UPDATE nodes SET lease_until = clock_timestamp() WHERE id =");
    let began = a.nodes().sessions_since();
    run_sql(dir.path(), &format!("{lapse} '{id}'")).await;
    wait_until("the node has a new epoch", async || a.nodes().claimant().is_some_and(|by| by.epoch == 2)).await;
    assert_eq!(a.nodes().sessions_since(), began, "no other node was there to report the sessions as gone");
    let b = server_for(dir.path()).open().unwrap();
    run_sql(dir.path(), &format!("{lapse} '{id}'")).await;
    wait_until("the node has a new epoch", async || a.nodes().claimant().is_some_and(|by| by.epoch == 3)).await;
    assert_eq!(a.nodes().sessions_since(), 3);
    b.close();
    // The other node's lease ended after this node's lease, and before this node rejoins.
    let ago = format!("CASE id WHEN '{id}' THEN 2 ELSE 1 END * interval '1 second'");
    run_sql(dir.path(), &format!("UPDATE nodes SET lease_until = clock_timestamp() - {ago}")).await;
    wait_until("the node has a new epoch", async || a.nodes().claimant().is_some_and(|by| by.epoch == 4)).await;
    assert_eq!(a.nodes().sessions_since(), 4);
    a.close();
}

/// The database belongs to a gateway with schema 1, which serves alone.
#[tokio::test]
async fn older_schema_is_migrated_after_its_gateway_ends() {
    let dir = tempfile::tempdir().unwrap();
    run_sql(dir.path(), include_str!("migrations/0001_initial.sql")).await;
    run_sql(
        dir.path(),
        "CREATE TABLE countersign_schema (version BIGINT NOT NULL); INSERT INTO countersign_schema VALUES (1)",
    )
    .await;
    let left = change("left", "agent", 3, ChangeState::Executing);
    let body = serde_json::to_string(&left).unwrap().replace('\'', "''");
    run_sql(
        dir.path(),
        &format!(
            "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body, votes, title)
             VALUES ('left', 3, 'executing', 'agent', 10, '{}', '{body}', 1, 'x')",
            left.expires_at
        ),
    )
    .await;
    // The lock that the older gateway holds.
    let config = connect::parse(&crate::servers::url_of(dir.path())).unwrap();
    let older_gateway = PgConnector::start(&config, None).unwrap();
    let lock = older_gateway.block_on(older_gateway.serve(Duration::ZERO, true)).unwrap();
    assert!(matches!(server_for(dir.path()).open().err(), Some(StoreError::Served)));
    drop(lock);
    let store = server_for(dir.path()).open().unwrap();
    assert_eq!(store.orphaned_changes().await.unwrap(), ["left"], "no node runs the change");
    let lost = transition("left", 4, ChangeState::Executing, ChangeState::OutcomeUnknown, None, "");
    write(&*store, Draft { orphan: true, ..lost }).await.unwrap();
    write(&*store, settled_draft("left", None)).await.unwrap();
    assert!(store.nodes().is_leader());
    store.close();
}

#[tokio::test]
async fn node_closes_after_database_lost_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    for id in ["a", "b"] {
        write(&*store, created(id)).await.unwrap();
    }
    let mut updates = store.nodes().subscribe_updates();
    updates.wait_for(|updates| updates.event == 2).await.unwrap();
    run_sql(dir.path(), "UPDATE heads SET event = 1").await;
    wait_until("the store has closed", async || !store.is_open()).await;
    let refused = write(&*store, created("c")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded | StoreError::Lost))), "{refused:?}");
}

/// The hash of the last entry differs, as after a failover to a server that lacked the entry and another node's write.
/// The node need not renew its lease to detect this.
#[tokio::test]
async fn node_that_lost_writes_stops() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    write(&*store, created("a")).await.unwrap();
    run_sql(
        dir.path(),
        "UPDATE audit SET hash = '\\x00' || substr(hash, 2); UPDATE heads SET hash = (SELECT hash FROM audit)",
    )
    .await;
    let refused = write(&*store, created("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded | StoreError::Lost))), "{refused:?}");
    wait_until("the store has closed", async || !store.is_open()).await;
}

/// Another node has written more entries than were lost before this node noticed.
#[tokio::test]
async fn lost_entries_are_detected_after_newer_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, reader) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    write(&*writer, created("a")).await.unwrap();
    // Reading the event is how this node learns of the entry if it does not renew its lease in between.
    assert_eq!(reader.remote_events_after(0, 10).await.unwrap().len(), 1);
    let columns = "at, change_id, event, from_state, to_state, actor, details, prev_hash, hash";
    run_sql(
        dir.path(),
        &format!(
            "BEGIN;
             UPDATE audit SET hash = '\\x00' || substr(hash, 2);
             INSERT INTO audit (seq, {columns}) SELECT n, {columns} FROM audit, generate_series(2, 3) n WHERE seq = 1;
             INSERT INTO events (seq, kind, change_id, at_ms, data)
             SELECT 2, kind, change_id, at_ms, data FROM events;
             UPDATE heads SET event = 2, audit = 3, hash = (SELECT hash FROM audit WHERE seq = 3);
             COMMIT"
        ),
    )
    .await;
    let refused = write(&*writer, created("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded | StoreError::Lost))), "{refused:?}");
    let read = reader.remote_events_after(1, 10).await;
    assert!(matches!(read, Err(StoreError::Lost)), "{read:?}");
    for store in [writer, reader] {
        wait_until("the store has closed", async || !store.is_open()).await;
    }
}
