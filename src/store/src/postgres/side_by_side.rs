//! Several nodes of one database: what each may do, and what becomes of what one leaves.

use std::time::Instant;

use super::{
    faults::{at, proxied, run},
    *,
};
use crate::{
    Draft, LateCall, PinStore, Record, WriteError, WriteRequest,
    drafts::{approved, claim, created, moved, send, step, write},
    nodes::Node,
    servers::proxy::{CLOSED, PASS, SILENT},
};
use countersign_domain::{
    changes::{ChangeState, Claimant, machine::EventKind, testing::change},
    policy::pins::{Definition, PinSource as _},
};

/// Long enough for whatever is to happen; nothing waits for it in vain.
const LONG: Duration = Duration::from_secs(60);

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn applied(id: &str, by: Option<Claimant>) -> Draft {
    step(id, 4, ChangeState::Executing, ChangeState::Applied, by, "")
}

fn lost(id: &str, by: Option<Claimant>) -> Draft {
    Draft { orphan: true, ..step(id, 4, ChangeState::Executing, ChangeState::OutcomeUnknown, by, "") }
}

fn settled(id: &str, by: Option<Claimant>) -> Draft {
    step(id, 5, ChangeState::OutcomeUnknown, ChangeState::Failed, by, "")
}

async fn here(store: &dyn Store) -> Node {
    store.nodes().list().await.unwrap().into_iter().find(|node| node.here).unwrap()
}

#[tokio::test]
async fn nodes_write_one_log_and_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<_> = (0..3).map(|_| at(dir.path()).open().unwrap()).collect();
    until("all know of each other", async || stores.iter().all(|store| store.nodes().live_count() == 3)).await;
    let mut news: Vec<_> = stores.iter().map(|store| store.nodes().subscribe_updates()).collect();
    let mut answers = Vec::new();
    for n in 0..40 {
        for (at, store) in stores.iter().enumerate() {
            answers.push(send(&**store, created(&format!("{at}-{n}"))));
        }
    }
    let mut seqs = Vec::new();
    for answer in answers {
        seqs.push(answer.await.unwrap().unwrap().seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=120).collect::<Vec<u64>>());
    for (store, news) in stores.iter().zip(&mut news) {
        news.wait_for(|news| news.event == 120).await.unwrap();
        let followed = store.remote_events_after(0, 1000).await.unwrap();
        assert!(followed.iter().map(|one| one.event.seq).eq(1..=120));
        assert!(followed.iter().all(|one| one.bytes > 0), "what a change counts is known");
    }
    // Two want the same thing at the same time.
    let (a, b) = tokio::join!(
        write(&*stores[0], moved("0-0", 2, ChangeState::Pending, ChangeState::Approved)),
        write(&*stores[1], moved("0-0", 2, ChangeState::Pending, ChangeState::Rejected)),
    );
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    assert_eq!(stores[2].get("0-0").await.unwrap().unwrap().version, 2);
    stores.iter().for_each(|store| store.close());
    at(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn second_observer_takes_over_first_pins() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (at(dir.path()).open().unwrap(), at(dir.path()).open().unwrap());
    let stored = Arc::clone(&a);
    let (a, b) = (PinStore::open(a).await.unwrap(), PinStore::open(b).await.unwrap());
    let tool = |hash: &str| Definition { name: "read".into(), hash: hash.into(), text: "{}".into() };
    let seen = |pins: &PinStore| pins.snapshot().pin("files", "read").and_then(|pin| pin.seen.clone());
    a.observe("files", &[tool("first")]);
    until("it is stored", async || !stored.pins().await.unwrap().servers.is_empty()).await;
    b.observe("files", &[tool("second")]);
    until("it is known to be another one's", async || b.is_behind()).await;
    b.reload().await.unwrap();
    assert_eq!((seen(&b).as_deref(), b.is_behind()), (Some("first"), false));
}

/// As a node whose machine has stopped right there. Without a limit others would give up before the server does.
#[tokio::test]
async fn frozen_transaction_delays_others_briefly() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path()).open().unwrap();
    write(&*store, created("a")).await.unwrap();
    let connector = PgConnector::start(&connect::parse(&crate::servers::url_of(dir.path())).unwrap(), None).unwrap();
    let stopped = connector.connect().await.unwrap();
    stopped.batch_execute("BEGIN").await.unwrap();
    rows::take_heads(&stopped).await.unwrap();
    rows::execute(&stopped, "UPDATE heads SET event = 99", &[]).await.unwrap();
    assert_eq!(write(&*store, created("b")).await.unwrap().seq, 2, "what was held is free, and nothing of it counts");
    // It finds out when it goes on.
    stopped.batch_execute("COMMIT").await.unwrap_err();
    assert_eq!(store.heads().await.unwrap().event, 2);
    store.close();
    at(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn target_has_one_claim_that_its_owner_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (at(dir.path()).open().unwrap(), at(dir.path()).open().unwrap());
    let (by_a, by_b) = (a.nodes().claimant(), b.nodes().claimant());
    for id in ["one", "two", "three"] {
        approved(&*a, id, "file").await;
    }
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    let again = write(&*b, claim("one", by_b.clone(), "file")).await;
    assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    let busy = write(&*b, claim("two", by_b.clone(), "file")).await;
    assert!(matches!(busy, Err(WriteError::Busy)), "{busy:?}");
    let other = write(&*b, claim("three", by_b.clone(), "another file")).await;
    assert!(other.is_ok(), "{other:?}");
    assert_eq!((here(&*a).await.running, here(&*b).await.running), (1, 1));

    let fenced = write(&*b, applied("one", by_b.clone())).await;
    assert!(matches!(fenced, Err(WriteError::Fenced)), "{fenced:?}");
    let early = write(&*b, lost("one", by_a.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "its node lives: {early:?}");
    assert!(b.orphaned_changes().await.unwrap().is_empty());
    let asks = step("one", 4, ChangeState::Executing, ChangeState::Executing, by_a.clone(), "file");
    write(&*a, Draft { kind: EventKind::Asked, ..asks }).await.unwrap();
    write(&*a, step("one", 5, ChangeState::Executing, ChangeState::Applied, by_a, "")).await.unwrap();
    write(&*b, claim("two", by_b.clone(), "file")).await.unwrap();
    write(&*b, applied("two", by_b)).await.unwrap();
    a.close();
    b.close();
    at(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn orphan_is_settled_after_late_calls_are_over() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let (a, b) = (place.open().unwrap(), at(dir.path()).open().unwrap());
    let (by_a, by_b) = (a.nodes().claimant(), b.nodes().claimant());
    until("the first one leads", async || a.nodes().is_leader()).await;
    assert!(!b.nodes().is_leader());
    approved(&*a, "one", "file").await;
    approved(&*a, "two", "file").await;
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    assert!(a.nodes().holds_claim(by_a.as_ref()));

    proxy.set(CLOSED);
    run(
        dir.path(),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    until("it is known to be gone", async || b.orphaned_changes().await.is_ok_and(|ids| ids == ["one"])).await;
    assert!(!a.nodes().holds_claim(by_a.as_ref()), "here it was over before");
    assert!(!a.nodes().is_leader());
    until("another leads", async || b.nodes().is_leader()).await;
    write(&*b, lost("one", by_a.clone())).await.unwrap();
    assert!(b.orphaned_changes().await.unwrap().is_empty());
    // What the first still has in its hands may yet go out: nobody settles it, and nothing else of its target runs.
    let busy = write(&*b, claim("two", by_b.clone(), "file")).await;
    assert!(matches!(busy, Err(WriteError::Busy)), "{busy:?}");
    assert!(b.in_flight_until("one").await.unwrap().is_some());
    let early = write(&*b, settled("one", by_a.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "{early:?}");

    proxy.set(PASS);
    until("it is back, in another life", async || {
        a.nodes().claimant() != by_a
            && a.nodes().holds_claim(None)
            && a.nodes().claimant().is_some_and(|by| by.epoch == 2)
    })
    .await;
    assert!(!a.nodes().holds_claim(by_a.as_ref()), "of the life before it holds nothing");
    assert!(!a.nodes().is_leader(), "it is the last to have joined");
    let late = loop {
        match write(&*a, applied("one", by_a.clone())).await {
            Err(WriteError::Store(StoreError::Unreachable(_))) => tokio::time::sleep(Duration::from_millis(20)).await,
            other => break other,
        }
    };
    assert!(matches!(late, Err(WriteError::Conflict)), "{late:?}");
    assert!(b.in_flight_until("one").await.unwrap().is_some(), "that its process lives says nothing of the call");
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
    write(&*b, settled("one", by_a)).await.unwrap();
    write(&*b, applied("two", by_b)).await.unwrap();
    a.close();
    b.close();
    at(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn late_call_delays_settlement_for_two_minutes() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path()).open().unwrap();
    let by = store.nodes().claimant();
    approved(&*store, "one", "file").await;
    write(&*store, claim("one", by.clone(), "file")).await.unwrap();
    // Its node is in another life by then, of the same process.
    run(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    until("its claim is nobody's", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    write(&*store, lost("one", by.clone())).await.unwrap();
    let until = store.in_flight_until("one").await.unwrap().unwrap();
    let left = until.duration_since(Timestamp::now()).as_secs();
    assert!(left <= i64::from(claims::MAX_SEND_DELAY_SECS), "{left}");
    let early = write(&*store, settled("one", by.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "{early:?}");
    run(dir.path(), "UPDATE claims SET lapsed_until = lapsed_until - interval '2 minutes'").await;
    assert!(store.in_flight_until("one").await.unwrap().is_none());
    write(&*store, settled("one", by)).await.unwrap();
    store.close();
}

#[tokio::test]
async fn restarted_node_frees_target_after_call_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path()).open().unwrap();
    let by = store.nodes().claimant().unwrap();
    approved(&*store, "one", "file").await;
    let claimed = claim("one", Some(by.clone()), "file");
    let target = claimed.change.target_hash();
    write(&*store, claimed).await.unwrap();
    run(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    until("its claim is nobody's", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    write(&*store, lost("one", Some(by.clone()))).await.unwrap();
    // Seconds from now on, of which a call has 120 where nothing else is known of it.
    let taken = async |store: &dyn Store| {
        let occupant = store.occupants(vec![target.clone()], Timestamp::now()).await.unwrap().pop().unwrap();
        occupant.until.unwrap().duration_since(Timestamp::now()).as_secs()
    };
    let call = 120;
    assert!(taken(&*store).await > call + i64::from(claims::MAX_SEND_DELAY_SECS) - 30, "the call may still go out");
    store.close();
    let again = PostgresStore::begin(at(dir.path()).migrated().unwrap(), by.node, Duration::ZERO).unwrap();
    assert!(again.in_flight_until("one").await.unwrap().is_none());
    assert!((call - 30..=call).contains(&taken(&again).await), "it went out before");
    again.close();
}

/// As after more than a day in which its machine stood still, and in which somebody has settled what it left.
#[tokio::test]
async fn deleted_node_row_invalidates_old_claims() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path()).open().unwrap();
    let by = store.nodes().claimant();
    approved(&*store, "one", "file").await;
    write(&*store, claim("one", by.clone(), "file")).await.unwrap();
    run(dir.path(), "BEGIN; DELETE FROM claims; DELETE FROM nodes; COMMIT").await;
    until("it is back", async || {
        let listed = store.nodes().list().await.unwrap();
        listed.iter().any(|node| node.live && node.epoch == 2)
    })
    .await;
    until("in another life", async || store.nodes().holds_claim(None) && store.nodes().claimant() != by).await;
    assert!(!store.nodes().holds_claim(by.as_ref()));
    let late = write(&*store, applied("one", by)).await;
    assert!(matches!(late, Err(WriteError::Fenced)), "{late:?}");
    store.close();
}

#[tokio::test]
async fn change_in_progress_is_not_orphaned() {
    let dir = tempfile::tempdir().unwrap();
    let place = at(dir.path());
    let store = place.open().unwrap();
    let by = store.nodes().claimant();
    approved(&*store, "one", "file").await;
    write(&*store, claim("one", by.clone(), "file")).await.unwrap();
    let mut session = place.tables().unwrap().wait_for_session().unwrap();
    session.begin("BEGIN").unwrap();
    assert!(session.is_claimed("one").unwrap() && !session.is_claimed("two").unwrap());
    run(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    until("its node is gone", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    let early = write(&*store, lost("one", by.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "nobody waits for it either: {early:?}");
    session.commit().unwrap();
    write(&*store, lost("one", by)).await.unwrap();
    let session = place.tables().unwrap().wait_for_session().unwrap();
    assert!(!session.is_claimed("one").unwrap());
    store.close();
}

#[tokio::test]
async fn outdated_node_keeps_newest_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (at(dir.path()).open().unwrap(), at(dir.path()).open().unwrap());
    let policy = |digest: &str| PolicySnapshot { digest: digest.into(), refused: None, body: "{}".into() };
    let newest = async |store: &dyn Store| store.policies().await.unwrap().newest.unwrap().digest;
    a.save_policy(policy("old"), false).await.unwrap();
    b.save_policy(policy("old"), false).await.unwrap();
    // By a reviewer at the one; the other goes its own way, and says nothing of it to others.
    a.save_policy(policy("agreed"), true).await.unwrap();
    b.save_policy(policy("stricter"), false).await.unwrap();
    assert_eq!(newest(&*b).await, "agreed");
    assert_eq!(b.policies().await.unwrap().here, Some(policy("stricter")));
    assert_eq!(a.policies().await.unwrap().here, Some(policy("agreed")));
    // Once it has come to the newest, it goes on from there.
    b.save_policy(policy("agreed"), false).await.unwrap();
    b.save_policy(policy("next"), false).await.unwrap();
    assert_eq!(newest(&*a).await, "next");
    // One that was compared with nothing begins nowhere.
    let c = at(dir.path()).open().unwrap();
    c.save_policy(policy("stranger"), false).await.unwrap();
    assert_eq!(newest(&*a).await, "next");
    for store in [a, b, c] {
        store.close();
    }
}

#[tokio::test]
async fn new_node_continues_from_newest_policy() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, c, d] = [(); 4].map(|()| at(dir.path()).open().unwrap());
    let policy = |digest: &str| PolicySnapshot { digest: digest.into(), refused: None, body: "{}".into() };
    let newest = async |store: &dyn Store| store.policies().await.unwrap().newest.unwrap().digest;
    a.save_policy(policy("old"), false).await.unwrap();
    for new in [&b, &c, &d] {
        assert_eq!(
            new.policies().await.unwrap(),
            PolicySnapshots { newest: Some(policy("old")), ..PolicySnapshots::default() }
        );
    }
    // As where each container is made anew with a stricter file: those after it are compared with that.
    b.save_policy(policy("stricter"), false).await.unwrap();
    assert_eq!(newest(&*b).await, "stricter");
    // One that was compared with what has been gone on from meanwhile takes nothing back, whatever it looks at since.
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
    let (proxy, first) = proxied(dir.path());
    let b = at(dir.path()).open().unwrap();
    let a = first.open().unwrap();
    let by_a = a.nodes().claimant();
    approved(&*a, "one", "file").await;
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    // As if it were killed.
    proxy.set(CLOSED);
    let beside = at(dir.path());
    let again = PostgresStore::begin(beside.migrated().unwrap(), by_a.clone().unwrap().node, Duration::ZERO).unwrap();
    assert_eq!(again.nodes().claimant().unwrap().epoch, 2);
    assert_eq!(b.orphaned_changes().await.unwrap(), ["one"], "at once");
    write(&again, lost("one", by_a.clone())).await.unwrap();
    assert!(b.in_flight_until("one").await.unwrap().is_none());
    write(&*b, settled("one", by_a)).await.unwrap();

    // It was not: its data directory was copied, and both would be one node.
    proxy.set(PASS);
    until("it serves no more", async || !a.is_open()).await;
    let refused = write(&*a, created("x")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded))), "{refused:?}");
    assert!(again.is_open());
    write(&again, created("y")).await.unwrap();
}

#[tokio::test]
async fn leaving_node_hands_over_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (at(dir.path()).open().unwrap(), at(dir.path()).open().unwrap());
    until("the first one leads", async || a.nodes().is_leader()).await;
    let [url, version, configuration, certificate] = ["http://a", "1", "x", "y"].map(String::from);
    let says = crate::nodes::Introduction { url, version, configuration, certificate };
    a.nodes().introduce(says.clone());
    until("it is known", async || b.nodes().list().await.unwrap()[0].says == says).await;
    let id = a.nodes().claimant().unwrap().node;
    let peer = Some(crate::nodes::Peer { url: says.url, certificate: says.certificate });
    until("it is reached there", async || b.nodes().peer(&id) == peer).await;
    assert!(matches!(at(dir.path()).take_offline(false).err(), Some(StoreError::Served)));
    let began = Instant::now();
    a.close();
    until("the other leads", async || b.nodes().is_leader()).await;
    let listed = b.nodes().list().await.unwrap();
    assert!(!listed[0].live && listed[1].leads, "{listed:?} after {:?}", began.elapsed());
    b.close();
    assert!(at(dir.path()).take_offline(false).is_ok());
}

#[tokio::test]
async fn resigning_node_hands_over_and_keeps_claims() {
    let dir = tempfile::tempdir().unwrap();
    let (a_place, b_place) = (at(dir.path()), at(dir.path()));
    let a = a_place.open().unwrap();
    until("it leads alone", async || a.nodes().is_leader()).await;
    let b = b_place.open().unwrap();
    let by_a = a.nodes().claimant();
    approved(&*a, "one", "file").await;
    write(&*a, claim("one", by_a.clone(), "file")).await.unwrap();
    let hooks = a_place.deliveries().unwrap();
    hooks.position("a", 0).unwrap();
    let led = hooks.for_leader(by_a.as_ref().unwrap());
    led.enqueue("a", 1, &[]).unwrap();

    a.nodes().resign();
    assert!(!a.nodes().is_leader(), "at this very moment");
    until("the other leads", async || b.nodes().is_leader()).await;
    let late = led.enqueue("a", 2, &[]);
    assert!(matches!(late, Err(StoreError::HandedOver)), "what it wrote as the one that led is over: {late:?}");
    let late = led.retain_only(&[]);
    assert!(matches!(late, Err(StoreError::HandedOver)), "{late:?}");
    b_place.deliveries().unwrap().for_leader(b.nodes().claimant().as_ref().unwrap()).enqueue("a", 3, &[]).unwrap();
    // It joined first, and yet it is not the one.
    let listed = b.nodes().list().await.unwrap();
    let shown: Vec<_> = listed.iter().map(|node| (node.live, node.leads, node.running)).collect();
    assert_eq!(shown, [(true, false, 1), (true, true, 0)]);
    // Nor is it when nobody else is left, nor does whoever comes wait for its end.
    b.close();
    let c = at(dir.path()).open().unwrap();
    until("who came later leads", async || c.nodes().is_leader()).await;
    assert!(!a.nodes().is_leader() && a.nodes().holds_claim(by_a.as_ref()));
    assert!(c.orphaned_changes().await.unwrap().is_empty());
    write(&*a, applied("one", by_a)).await.unwrap();
    a.close();
    c.close();
    // In its next life it may.
    let again = a_place.open().unwrap();
    until("it leads", async || again.nodes().is_leader()).await;
    again.close();
}

#[tokio::test]
async fn resigned_node_never_leads_again() {
    let dir = tempfile::tempdir().unwrap();
    let a = at(dir.path()).open().unwrap();
    until("it leads", async || a.nodes().is_leader()).await;
    a.nodes().resign();
    until("it is known", async || !a.nodes().list().await.unwrap()[0].leads).await;
    run(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    until("another life", async || a.nodes().claimant().is_some_and(|by| by.epoch == 2) && a.nodes().holds_claim(None))
        .await;
    // With a renewal it is looked at who leads.
    let renewed = a.nodes().list().await.unwrap()[0].lease_until;
    until("it is renewed", async || a.nodes().list().await.unwrap()[0].lease_until > renewed).await;
    assert!(!a.nodes().is_leader() && !a.nodes().list().await.unwrap()[0].leads);
    a.close();
}

fn introduction(url: &str) -> crate::nodes::Introduction {
    crate::nodes::Introduction { url: url.into(), ..Default::default() }
}

#[tokio::test]
async fn peer_is_known_after_a_refresh_and_until_its_lease_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let a = place.open().unwrap();
    let b = at(dir.path()).open().unwrap();
    let id = b.nodes().claimant().unwrap().node;
    b.nodes().introduce(introduction("http://b"));
    b.nodes().refresh().await.unwrap();
    a.nodes().refresh().await.unwrap();
    assert_eq!(a.nodes().peer(&id).map(|peer| peer.url).as_deref(), Some("http://b"), "as soon as it may be asked for");
    // Nothing more is heard: what was said last counts until its lease is over.
    proxy.set(SILENT);
    until("it counts as gone", async || a.nodes().peer(&id).is_none()).await;
    assert!(a.nodes().refresh().await.is_err());
    a.close();
    b.close();
}

#[tokio::test]
async fn sessions_end_with_the_lease_unless_the_node_was_alone() {
    let dir = tempfile::tempdir().unwrap();
    let a = at(dir.path()).open().unwrap();
    let (id, lapse) =
        (a.nodes().claimant().unwrap().node, "UPDATE nodes SET lease_until = clock_timestamp() WHERE id =");
    let began = a.nodes().sessions_since();
    run(dir.path(), &format!("{lapse} '{id}'")).await;
    until("another life", async || a.nodes().claimant().is_some_and(|by| by.epoch == 2)).await;
    assert_eq!(a.nodes().sessions_since(), began, "nobody has said that they are gone");
    let b = at(dir.path()).open().unwrap();
    run(dir.path(), &format!("{lapse} '{id}'")).await;
    until("another life", async || a.nodes().claimant().is_some_and(|by| by.epoch == 3)).await;
    assert_eq!(a.nodes().sessions_since(), 3);
    b.close();
    // The other one outlived its lease, and has ended since.
    let ago = format!("CASE id WHEN '{id}' THEN 2 ELSE 1 END * interval '1 second'");
    run(dir.path(), &format!("UPDATE nodes SET lease_until = clock_timestamp() - {ago}")).await;
    until("another life", async || a.nodes().claimant().is_some_and(|by| by.epoch == 4)).await;
    assert_eq!(a.nodes().sessions_since(), 4);
    a.close();
}

/// A database of a gateway of the version before, which serves alone.
#[tokio::test]
async fn older_schema_is_migrated_after_its_gateway_ends() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), include_str!("migrations/0001_initial.sql")).await;
    run(
        dir.path(),
        "CREATE TABLE countersign_schema (version BIGINT NOT NULL); INSERT INTO countersign_schema VALUES (1)",
    )
    .await;
    let left = change("left", "agent", 3, ChangeState::Executing);
    let body = serde_json::to_string(&left).unwrap().replace('\'', "''");
    run(
        dir.path(),
        &format!(
            "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body, votes, title)
             VALUES ('left', 3, 'executing', 'agent', 10, '{}', '{body}', 1, 'x')",
            left.expires_at
        ),
    )
    .await;
    // As that gateway holds it.
    let config = connect::parse(&crate::servers::url_of(dir.path())).unwrap();
    let held = PgConnector::start(&config, None).unwrap();
    let lock = held.block_on(held.serve(Duration::ZERO, true)).unwrap();
    assert!(matches!(at(dir.path()).open().err(), Some(StoreError::Served)));
    drop(lock);
    let store = at(dir.path()).open().unwrap();
    assert_eq!(store.orphaned_changes().await.unwrap(), ["left"], "nobody has it any more");
    let lost = step("left", 4, ChangeState::Executing, ChangeState::OutcomeUnknown, None, "");
    write(&*store, Draft { orphan: true, ..lost }).await.unwrap();
    write(&*store, settled("left", None)).await.unwrap();
    assert!(store.nodes().is_leader());
    store.close();
}

#[tokio::test]
async fn node_closes_after_database_lost_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path()).open().unwrap();
    for id in ["a", "b"] {
        write(&*store, created(id)).await.unwrap();
    }
    let mut news = store.nodes().subscribe_updates();
    news.wait_for(|news| news.event == 2).await.unwrap();
    run(dir.path(), "UPDATE heads SET event = 1").await;
    until("it has noticed", async || !store.is_open()).await;
    let refused = write(&*store, created("c")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded | StoreError::Lost))), "{refused:?}");
}

/// As after a failover to a server that lacked its last write, where another node has been quicker since. No beat has to have
/// come in between.
#[tokio::test]
async fn node_that_lost_writes_stops() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path()).open().unwrap();
    write(&*store, created("a")).await.unwrap();
    run(
        dir.path(),
        "UPDATE audit SET hash = '\\x00' || substr(hash, 2); UPDATE heads SET hash = (SELECT hash FROM audit)",
    )
    .await;
    let refused = write(&*store, created("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded | StoreError::Lost))), "{refused:?}");
    until("it has noticed", async || !store.is_open()).await;
}

/// As above, where another node has written on, and more than was lost, before this one heard of anything.
#[tokio::test]
async fn lost_entries_are_detected_after_newer_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (writes, reads) = (at(dir.path()).open().unwrap(), at(dir.path()).open().unwrap());
    write(&*writes, created("a")).await.unwrap();
    // By this alone it knows of the entry, where no beat comes in between.
    assert_eq!(reads.remote_events_after(0, 10).await.unwrap().len(), 1);
    let columns = "at, change_id, event, from_state, to_state, actor, details, prev_hash, hash";
    run(
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
    let refused = write(&*writes, created("b")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded | StoreError::Lost))), "{refused:?}");
    let read = reads.remote_events_after(1, 10).await;
    assert!(matches!(read, Err(StoreError::Lost)), "{read:?}");
    for store in [writes, reads] {
        until("it has noticed", async || !store.is_open()).await;
    }
}
