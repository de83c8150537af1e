//! Tests of claims by several nodes on one database: fences, orphaned changes, and calls of nodes that are gone.

use super::{
    fault_tests::{proxied_server, run_sql, server_for},
    multi_node_tests::wait_until,
    *,
};
use crate::{
    AuditRecord, LateCall, TransitionDraft, WriteError, WriteRequest,
    drafts::{UndoRace, claim_draft, create_approved, created_draft, transition_draft, write},
    nodes::Node,
};
use countersign_domain::changes::{ChangeState, Claimant, machine::EventKind};
use countersign_postgres::proxy::{PASS, REFUSE};

pub(super) fn applied_draft(id: &str, by: Option<Claimant>) -> TransitionDraft {
    transition_draft(id, 4, ChangeState::Executing, ChangeState::Applied, by, "")
}

fn orphan_draft(id: &str, by: Option<Claimant>) -> TransitionDraft {
    TransitionDraft {
        ends_orphaned_claim: true,
        ..transition_draft(id, 4, ChangeState::Executing, ChangeState::OutcomeUnknown, by, "")
    }
}

pub(super) fn settled_draft(id: &str, by: Option<Claimant>) -> TransitionDraft {
    transition_draft(id, 5, ChangeState::OutcomeUnknown, ChangeState::Failed, by, "")
}

async fn own_node(store: &dyn Store) -> Node {
    store.nodes().list().await.unwrap().into_iter().find(|node| node.is_self).unwrap()
}

#[tokio::test]
async fn target_has_one_claim_that_its_owner_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    let (by_a, by_b) = (a.nodes().claimant(), b.nodes().claimant());
    for id in ["one", "two", "three"] {
        create_approved(&*a, id, "file").await;
    }
    write(&*a, claim_draft("one", by_a.clone(), "file")).await.unwrap();
    let again = write(&*b, claim_draft("one", by_b.clone(), "file")).await;
    assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    let busy = write(&*b, claim_draft("two", by_b.clone(), "file")).await;
    assert!(matches!(busy, Err(WriteError::Busy)), "{busy:?}");
    let other = write(&*b, claim_draft("three", by_b.clone(), "another file")).await;
    assert!(other.is_ok(), "{other:?}");
    assert_eq!((own_node(&*a).await.running, own_node(&*b).await.running), (1, 1));

    let fenced = write(&*b, applied_draft("one", by_b.clone())).await;
    assert!(matches!(fenced, Err(WriteError::Fenced)), "{fenced:?}");
    let early = write(&*b, orphan_draft("one", by_a.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "its node is alive: {early:?}");
    assert!(b.orphaned_changes().await.unwrap().is_empty());
    let question = transition_draft("one", 4, ChangeState::Executing, ChangeState::Executing, by_a.clone(), "file");
    write(&*a, TransitionDraft { kind: EventKind::QuestionAsked, ..question }).await.unwrap();
    write(&*a, transition_draft("one", 5, ChangeState::Executing, ChangeState::Applied, by_a, "")).await.unwrap();
    write(&*b, claim_draft("two", by_b.clone(), "file")).await.unwrap();
    write(&*b, applied_draft("two", by_b)).await.unwrap();
    a.close();
    b.close();
    server_for(dir.path()).verify_audit(None).unwrap();
}

#[tokio::test]
async fn nodes_record_the_same_escalation_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    for n in 0..20 {
        let id = format!("c{n}");
        write(&*a, created_draft(&id)).await.unwrap();
        let record = || {
            let entry = AuditRecord::new("escalated", Timestamp::now(), "system", "{}".into());
            WriteRequest::Record(AuditRecord { change: id.clone(), once: true, ..entry })
        };
        let written = tokio::join!(crate::write(&*a, record()), crate::write(&*b, record()));
        let is_once = matches!(written, (Ok(()), Err(WriteError::Conflict)) | (Err(WriteError::Conflict), Ok(())));
        assert!(is_once, "{written:?}");
    }
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
    write(&*a, claim_draft("one", by_a.clone(), "file")).await.unwrap();
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
    let busy = write(&*b, claim_draft("two", by_b.clone(), "file")).await;
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
    let record = AuditRecord {
        change: "one".into(),
        late: by_a.clone().map(|claimant| LateCall { claimant, taken_until: None }),
        ..AuditRecord::new("late_result", Timestamp::now(), "gateway", r#"{"outcome":"applied"}"#.into())
    };
    a.submit(WriteRequest::Record(record), Box::new(|result, _| drop(reply.send(result))));
    answer.await.unwrap().unwrap();
    assert!(b.in_flight_until("one").await.unwrap().is_none());
    write(&*b, claim_draft("two", by_b.clone(), "file")).await.unwrap();
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
    write(&*store, claim_draft("one", by.clone(), "file")).await.unwrap();
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
    let claimed = claim_draft("one", Some(by.clone()), "file");
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
    write(&*store, claim_draft("one", by.clone(), "file")).await.unwrap();
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
    write(&*store, claim_draft("one", by.clone(), "file")).await.unwrap();
    let mut connection = server.tables().unwrap().wait_for_connection().unwrap();
    // The server would end the transaction of a slow test.
    connection.begin("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0").unwrap();
    assert!(connection.is_claimed("one").unwrap() && !connection.is_claimed("two").unwrap());
    run_sql(dir.path(), "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 second'").await;
    wait_until("the change counts as orphaned", async || store.orphaned_changes().await.unwrap() == ["one"]).await;
    let early = write(&*store, orphan_draft("one", by.clone())).await;
    assert!(matches!(early, Err(WriteError::Fenced)), "the locked claim is refused without waiting: {early:?}");
    connection.commit().unwrap();
    write(&*store, orphan_draft("one", by)).await.unwrap();
    let connection = server.tables().unwrap().wait_for_connection().unwrap();
    assert!(!connection.is_claimed("one").unwrap());
    store.close();
}

#[tokio::test]
async fn restarted_process_ends_wait_for_late_calls() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, first) = proxied_server(dir.path());
    let b = server_for(dir.path()).open().unwrap();
    let a = first.open().unwrap();
    let by_a = a.nodes().claimant();
    create_approved(&*a, "one", "file").await;
    write(&*a, claim_draft("one", by_a.clone(), "file")).await.unwrap();
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
    let refused = write(&*a, created_draft("x")).await;
    assert!(matches!(refused, Err(WriteError::Store(StoreError::Superseded))), "{refused:?}");
    assert!(again.is_open());
    write(&again, created_draft("y")).await.unwrap();
}

#[tokio::test]
async fn claim_and_undo_at_two_nodes_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (server_for(dir.path()).open().unwrap(), server_for(dir.path()).open().unwrap());
    let by_a = a.nodes().claimant();
    for round in 0..60 {
        let race = UndoRace::create(&*a, &format!("r{round}"), &by_a).await;
        let (claimed, undone) = tokio::join!(write(&*a, race.claim.clone()), write(&*b, race.undo.clone()));
        race.check(&*a, claimed, undone).await;
    }
    a.close();
    b.close();
    server_for(dir.path()).verify_audit(None).unwrap();
}
