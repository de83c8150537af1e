//! Tests of several nodes on one database: their log, leadership, leases, policies and the loss of entries.

use std::time::Instant;

use super::{
    claim_tests::{applied_draft, settled_draft},
    fault_tests::{proxied_server, run_sql, server_for},
    *,
};
use crate::{
    PinStore, TransitionDraft, WriteError,
    drafts::{claim_draft, create_approved, created_draft, submit, transition_draft, updated_draft, write},
    nodes::ServerStates,
};
use countersign_domain::{
    changes::{ChangeState, testing::change},
    policy::pins::{Definition, PinSource as _},
};
use countersign_postgres::{
    proxy::{DROP_MESSAGE, PASS, REFUSE, SILENT},
    url_of,
};

/// The timeout of all waits, which no successful test reaches.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn wait_until(expected: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + WAIT_TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < end, "timed out waiting until {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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
            answers.push(submit(&**store, created_draft(&format!("{node}-{n}"))));
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
        write(&*stores[0], updated_draft("0-0", 2, ChangeState::Pending, ChangeState::Approved)),
        write(&*stores[1], updated_draft("0-0", 2, ChangeState::Pending, ChangeState::Rejected)),
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
    let seen = |pins: &PinStore| pins.pins().pin("files", "read").and_then(|pin| pin.seen.clone());
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
    write(&*store, created_draft("a")).await.unwrap();
    let connector = PgConnector::start(&connect::parse(&url_of(dir.path())).unwrap(), None).unwrap();
    let frozen = connector.connect().await.unwrap();
    frozen.batch_execute("BEGIN").await.unwrap();
    rows::take_heads(&frozen).await.unwrap();
    rows::execute(&frozen, "UPDATE heads SET event = 99", &[]).await.unwrap();
    assert_eq!(
        write(&*store, created_draft("b")).await.unwrap().seq,
        2,
        "the server has rolled back the frozen transaction"
    );
    // The frozen node gets an error when it continues.
    frozen.batch_execute("COMMIT").await.unwrap_err();
    assert_eq!(store.heads().await.unwrap().event, 2);
    store.close();
    server_for(dir.path()).verify_audit(None).unwrap();
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
    let peer = Some(crate::nodes::PeerAddress { url: introduction.url, certificate: introduction.certificate });
    wait_until("the other node knows the address", async || b.nodes().peer(&id) == peer).await;
    assert!(matches!(server_for(dir.path()).take_offline(false).err(), Some(StoreError::AlreadyServed)));
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
    write(&*a, claim_draft("one", by_a.clone(), "file")).await.unwrap();
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
    let config = connect::parse(&url_of(dir.path())).unwrap();
    let older_gateway = PgConnector::start(&config, None).unwrap();
    let lock = older_gateway.block_on(older_gateway.serve(Duration::ZERO, true)).unwrap();
    assert!(matches!(server_for(dir.path()).open().err(), Some(StoreError::AlreadyServed)));
    drop(lock);
    let store = server_for(dir.path()).open().unwrap();
    assert_eq!(store.orphaned_changes().await.unwrap(), ["left"], "no node runs the change");
    let lost = transition_draft("left", 4, ChangeState::Executing, ChangeState::OutcomeUnknown, None, "");
    write(&*store, TransitionDraft { ends_orphaned_claim: true, ..lost }).await.unwrap();
    write(&*store, settled_draft("left", None)).await.unwrap();
    assert!(store.nodes().is_leader());
    store.close();
}

#[tokio::test]
async fn node_closes_after_database_lost_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    for id in ["a", "b"] {
        write(&*store, created_draft(id)).await.unwrap();
    }
    let mut updates = store.nodes().subscribe_updates();
    updates.wait_for(|updates| updates.event == 2).await.unwrap();
    run_sql(dir.path(), "UPDATE heads SET event = 1").await;
    wait_until("the store has closed", async || !store.is_open()).await;
    let refused = write(&*store, created_draft("c")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::WritesLost))), "{refused:?}");
    let reported = store.current_error();
    assert!(matches!(reported, Some(StoreError::WritesLost)), "{reported:?}");
}

/// The hash of the last entry differs, as after a failover to a server that lacked the entry and another node's write.
/// The node need not renew its lease to detect this.
#[tokio::test]
async fn node_that_lost_writes_stops() {
    let dir = tempfile::tempdir().unwrap();
    let store = server_for(dir.path()).open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    run_sql(
        dir.path(),
        "UPDATE audit SET hash = '\\x00' || substr(hash, 2); UPDATE heads SET hash = (SELECT hash FROM audit)",
    )
    .await;
    let refused = write(&*store, created_draft("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::WritesLost))), "{refused:?}");
    wait_until("the store has closed", async || !store.is_open()).await;
}

/// Another node has written more entries than were lost before this node noticed.
#[tokio::test]
async fn lost_entries_are_detected_after_newer_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, reader) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    write(&*writer, created_draft("a")).await.unwrap();
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
    let refused = write(&*writer, created_draft("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::WritesLost))), "{refused:?}");
    let read = reader.remote_events_after(1, 10).await;
    assert!(matches!(read, Err(StoreError::WritesLost)), "{read:?}");
    for store in [writer, reader] {
        wait_until("the store has closed", async || !store.is_open()).await;
    }
}

#[tokio::test]
async fn server_states_of_unanswered_renewal_are_published() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let (a, b) = (server.open().unwrap(), server_for(dir.path()).open().unwrap());
    wait_until("both nodes know each other", async || [&a, &b].iter().all(|store| store.nodes().live_count() == 2))
        .await;
    let states = ServerStates { down: vec!["files".into()], ..ServerStates::default() };
    proxy.set(SILENT);
    a.nodes().set_server_states(states.clone());
    // The node gives up this renewal, which never reaches the database, and renews its lease over another connection.
    tokio::time::sleep(Duration::from_millis(3300)).await;
    proxy.set(REFUSE);
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(PASS);
    wait_until("the other node knows the states", async || b.nodes().peer_server_states() == [states.clone()]).await;
    a.close();
    b.close();
}

#[tokio::test]
async fn node_without_an_answer_to_its_reconnect_tries_again() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    proxy.set_for_text(DROP_MESSAGE, "LISTEN");
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    run_sql(dir.path(), sql).await;
    wait_until("the node has reconnected in vain", async || proxy.mode() == PASS).await;
    wait_until("the node renews its lease", async || store.nodes().refresh().await.is_ok()).await;
    store.close();
}
