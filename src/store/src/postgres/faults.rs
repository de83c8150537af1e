//! What only a server meets: connections that end, commits that nobody answers, other gateways, rows that were tampered with.

use super::*;
use crate::{
    Draft, WriteError,
    drafts::{created, moved, write},
    keys::{ApiKey, CodeOutcome, SignIn},
    servers::{
        proxy::{CLOSED, CUT_BEFORE_AUDIT, DECEIVE, LATE, LOSE, PASS, Proxy, SILENT},
        url_of,
    },
    webhooks::{AttemptResult, DeliveryState, Waiting},
};

use countersign_domain::{
    changes::ChangeState,
    principal::{Principal, Role},
};

pub(super) fn at(dir: &std::path::Path) -> Server {
    Server::new(&url_of(dir), None, crate::nodes::Name::fresh()).unwrap()
}

pub(super) fn proxied(dir: &std::path::Path) -> (Proxy, Server) {
    let proxy = Proxy::to(&url_of(dir));
    let place = Server::new(&proxy.url, None, crate::nodes::Name::fresh()).unwrap();
    (proxy, place)
}

fn approved(version: u64) -> Draft {
    moved("a", version, ChangeState::Pending, ChangeState::Approved)
}

pub(super) async fn run(dir: &std::path::Path, sql: &str) {
    let connector = PgConnector::start(&connect::parse(&url_of(dir)).unwrap(), None).unwrap();
    let sql = sql.to_owned();
    connector.ask(error::no_answer, async move |client| Ok(client.batch_execute(&sql).await?)).await.unwrap();
}

#[tokio::test]
async fn unanswered_commit_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();

    proxy.set(DECEIVE);
    assert_eq!(write(&*store, approved(2)).await.unwrap().seq, 2, "it is durable, so it succeeded");

    proxy.set(LOSE);
    let lost = write(&*store, approved(3)).await;
    let Err(WriteError::Store(error @ StoreError::Unreachable(_))) = lost else { panic!("{lost:?}") };
    assert!(error.certainly_aborted(), "{error}");
    assert_eq!(store.get("a").await.unwrap().unwrap().version, 2);

    // The numbers go on without a gap, and the chain holds.
    assert_eq!(write(&*store, approved(3)).await.unwrap().seq, 3);
    store.close();
    assert_eq!(place.verify_audit(None).unwrap().entries, 3);
}

#[tokio::test]
async fn lost_connection_before_commit_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    for mode in [CUT_BEFORE_AUDIT, CLOSED] {
        proxy.set(mode);
        let lost = write(&*store, approved(2)).await;
        let Err(WriteError::Store(error @ StoreError::Unreachable(_))) = lost else { panic!("{lost:?}") };
        assert!(error.certainly_aborted(), "{error}");
        assert!(matches!(store.current_error(), Some(StoreError::Unreachable(_))) || mode == CUT_BEFORE_AUDIT);
    }
    assert!(matches!(store.get("a").await, Err(StoreError::Unreachable(_))));
    proxy.set(PASS);
    // Nobody writes anything, and yet it finds out.
    while store.current_error().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(store.get("a").await.unwrap().unwrap().version, 1);
    assert_eq!(write(&*store, approved(2)).await.unwrap().seq, 2);
    // An idle connection that ends is noticed, too.
    run(
        dir.path(),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    assert_eq!(write(&*store, created("b")).await.map_or(3, |written| written.seq), 3);
    store.close();
    place.verify_audit(None).unwrap();
}

fn key(id: &str) -> ApiKey {
    ApiKey {
        id: id.into(),
        name: id.into(),
        role: Role::Viewer,
        owner: None,
        created_at: Timestamp::UNIX_EPOCH,
        last_used_at: None,
        revoked_at: None,
    }
}

fn not_made<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(&answer, Err(StoreError::Unreachable(_))), "{answer:?}");
}

fn unknown<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let Err(error @ StoreError::OutcomeUnknown) = answer else { panic!("{answer:?}") };
    assert!(!error.certainly_aborted());
    assert_eq!(error.to_mcp().data["outcome"], "unknown");
}

#[test]
fn unanswered_key_write_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let (keys, now) = (place.credentials().unwrap(), Timestamp::UNIX_EPOCH);
    proxy.set(LOSE);
    not_made(keys.insert(&key("a"), &[1; 32]));
    assert_eq!((proxy.mode(), keys.list().unwrap()), (PASS, vec![]));
    proxy.set(DECEIVE);
    keys.insert(&key("a"), &[1; 32]).unwrap();
    assert_eq!(keys.list().unwrap(), [key("a")], "once");

    proxy.set(LOSE);
    not_made(keys.revoke("a", now));
    assert_eq!(keys.active_roles().unwrap().len(), 1);
    proxy.set(DECEIVE);
    assert!(keys.revoke("a", now).unwrap(), "by this very call");
    assert!(!keys.revoke("a", now).unwrap());
    assert_eq!(proxy.mode(), PASS);
    // Each with its entry.
    assert_eq!(place.verify_audit(None).unwrap().entries, 2);
}

#[test]
fn unanswered_sign_in_is_repeated_and_code_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let (keys, now) = (place.credentials().unwrap(), Timestamp::UNIX_EPOCH);
    let sign_in = |id: u8| SignIn {
        id: [id; 32],
        cookie: [id; 32],
        principal: Arc::new(Principal { name: "rita".into(), role: Role::Reviewer, key_id: None, owner: None }),
        key: None,
        last_used: now,
    };
    for (id, mode) in [(11, LOSE), (12, DECEIVE)] {
        proxy.set_at(mode, [id; 32]);
        keys.put_sign_in(&sign_in(id), &[]).unwrap();
        assert_eq!((proxy.mode(), keys.sign_in(&[id; 32]).unwrap()), (PASS, Some(sign_in(id))));
        proxy.set_at(mode, [id; 32]);
        keys.forget_sign_ins(&[[id; 32]]).unwrap();
        assert_eq!((proxy.mode(), keys.sign_in(&[id; 32]).unwrap()), (PASS, None));

        proxy.set_at(mode, [id; 32]);
        keys.put_code(&[id; 32], now, Timestamp::MAX).unwrap();
        proxy.set_at(mode, [id; 32]);
        unknown(keys.take_code(&[id; 32], now));
        let taken = if mode == DECEIVE { CodeOutcome::AlreadyUsed } else { CodeOutcome::Taken };
        assert_eq!((proxy.mode(), keys.take_code(&[id; 32], now).unwrap()), (PASS, taken));
    }
    // Nobody says anything until it is too late.
    proxy.set(SILENT);
    unknown(keys.put_sign_in(&sign_in(13), &[]));
    proxy.set(PASS);
}

#[test]
fn unanswered_delivery_record_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let hooks = place.deliveries().unwrap();
    hooks.position("a", 0).unwrap();
    let event = Waiting {
        id: 0,
        key: "7".into(),
        seq: Some(7),
        kind: "change.created".into(),
        subject: "chg".into(),
        event: "{}".into(),
        attempts: 0,
        since: Timestamp::UNIX_EPOCH,
    };
    let tried = AttemptResult { attempts: 1, status: Some(200), error: None };
    for mode in [LOSE, DECEIVE] {
        proxy.set(mode);
        unknown(hooks.enqueue("a", 7, std::slice::from_ref(&event)));
        assert_eq!(hooks.pending("a").unwrap().len(), usize::from(mode == DECEIVE));
    }
    let ids = hooks.enqueue("a", 7, &[event]).unwrap();
    assert_eq!(hooks.pending("a").unwrap().len(), 1, "once");
    let note = || hooks.record_attempt("a", ids[0], DeliveryState::Delivered, &tried, Timestamp::UNIX_EPOCH);
    for mode in [LOSE, DECEIVE] {
        proxy.set(mode);
        unknown(note());
        assert_eq!(hooks.pending("a").unwrap().len(), usize::from(mode == LOSE));
    }
    note().unwrap();
}

#[tokio::test]
async fn message_is_received_once_despite_lost_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    let node = store.nodes().claimant().unwrap().node;
    proxy.set_at(LOSE, "never told");
    unknown(store.send_to_node(&node, "a", "never told".into()).await);
    proxy.set_at(DECEIVE, "told unanswered");
    unknown(store.send_to_node(&node, "a", "told unanswered".into()).await);
    assert_eq!(proxy.mode(), PASS);
    // Statements are prepared once for each connection.
    proxy.set_at(LOSE, "DELETE FROM words");
    assert_eq!(store.receive_messages().await.unwrap(), [("a".to_owned(), "told unanswered".to_owned())]);
    assert_eq!(proxy.mode(), PASS);
    store.send_to_node(&node, "a", "and more".into()).await.unwrap();
    assert_eq!(store.receive_messages().await.unwrap(), [("a".to_owned(), "and more".to_owned())]);
    assert_eq!(store.receive_messages().await.unwrap(), []);
    store.close();
}

#[tokio::test]
async fn unanswered_policy_write_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let store = place.open().unwrap();
    for (mode, digest) in [(LOSE, "never saved"), (DECEIVE, "saved unanswered")] {
        proxy.set(mode);
        let policy = PolicySnapshot { digest: digest.into(), refused: None, body: "{}".into() };
        unknown(store.save_policy(policy.clone(), true).await);
        assert_eq!(proxy.mode(), PASS);
        assert_eq!(store.policies().await.unwrap().here, Some(policy).filter(|_| mode == DECEIVE));
    }
    store.close();
}

#[test]
fn abandoned_connection_is_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let connector = PgConnector::start(&connect::parse(&url_of(dir.path())).unwrap(), None).unwrap();
    let given_up = connector.read(crate::sql::REQUEST_TIMEOUT, async |client| {
        client.batch_execute("BEGIN; SET LOCAL application_name = 'left open'").await?;
        std::future::pending::<Result<(), StoreError>>().await
    });
    not_made(given_up);
    let next =
        connector.read(BACKGROUND_TIMEOUT, async |client| Ok(client.query_one("SHOW application_name", &[]).await?));
    assert_eq!(next.unwrap().get::<_, &str>(0), "countersign");
}

#[tokio::test]
async fn hanging_statement_is_ended_by_server() {
    let dir = tempfile::tempdir().unwrap();
    let connector = |options: &str| {
        let url = format!("{}?options={options}", url_of(dir.path()));
        PgConnector::start(&connect::parse(&url).unwrap(), None).unwrap()
    };
    let shown =
        connector("").ask(error::no_answer, async |client| Ok(client.query_one("SHOW statement_timeout", &[]).await?));
    assert_eq!(shown.await.unwrap().get::<_, &str>(0), "30s");
    let shorter = "-c%20statement_timeout%3D200";
    let hangs = connector(shorter)
        .ask(error::no_answer, async |client| Ok(client.batch_execute("SELECT pg_sleep(3600)").await?));
    let ended = hangs.await;
    assert!(matches!(ended, Err(StoreError::Locked)), "{ended:?}");

    // The same of the writer, behind a lock that somebody does not let go.
    let url = format!("{}?options={shorter}", url_of(dir.path()));
    let place = Server::new(&url, None, crate::nodes::Name::fresh()).unwrap();
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    let mut session = at(dir.path()).tables().unwrap().wait_for_session().unwrap();
    session.begin("BEGIN; LOCK TABLE changes").unwrap();
    let held = write(&*store, approved(2)).await;
    let Err(WriteError::Store(error @ StoreError::Locked)) = held else { panic!("{held:?}") };
    assert!(error.certainly_aborted());
    session.commit().unwrap();
    assert_eq!(write(&*store, approved(2)).await.unwrap().seq, 2);
    store.close();
    place.verify_audit(None).unwrap();
}

/// As one whose machine has stopped.
#[tokio::test]
async fn silent_server_blocks_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let (store, keys) = (place.open().unwrap(), place.credentials().unwrap());
    keys.insert(&key("k"), &[1; 32]).unwrap();
    write(&*store, created("a")).await.unwrap();
    proxy.set(SILENT);
    assert!(keys.find(&[1; 32]).unwrap().is_some(), "what is known needs no answer");
    let unknown = keys.find(&[2; 32]);
    assert!(matches!(unknown, Err(StoreError::Unreachable(_))), "{unknown:?}");
    // Neither a read nor a write is waited for as long as keys that are known still count.
    let (read, written) = tokio::join!(store.get("a"), write(&*store, created("c")));
    assert!(matches!(read, Err(StoreError::Unreachable(_))), "{read:?}");
    not_made(written.map_err(|error| match error {
        WriteError::Store(error) => error,
        other => panic!("{other:?}"),
    }));
    assert!(keys.find(&[1; 32]).is_ok());
    while store.current_error().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Nobody can say any more whether it was revoked.
    while keys.find(&[1; 32]).is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(keys.active_roles().is_err());
    proxy.set(PASS);
    while store.current_error().is_some() || keys.find(&[1; 32]).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(write(&*store, created("b")).await.unwrap().seq, 2);
    store.close();
    place.verify_audit(None).unwrap();
}

#[tokio::test]
async fn long_change_has_longer_idle_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    proxy.set_at(LATE, "a_long_one");
    let mut long = created("a_long_one");
    long.body.push_str(&" ".repeat(2 << 20));
    assert_eq!(write(&*store, long).await.unwrap().seq, 2);
    assert_eq!(proxy.mode(), PASS);
    store.close();
}

#[tokio::test]
async fn newer_schema_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    at(dir.path()).open().unwrap().close();
    run(dir.path(), "UPDATE countersign_schema SET version = 99").await;
    for error in [at(dir.path()).open().err(), at(dir.path()).credentials().err(), at(dir.path()).said().err()] {
        assert!(matches!(error, Some(StoreError::Newer { found: 99, .. })), "{error:?}");
    }
    let none = tempfile::tempdir().unwrap();
    assert!(at(none.path()).said().unwrap().is_none(), "nothing there yet");
    assert!(matches!(at(none.path()).verify_audit(None), Err(VerifyError::Store(_))));
}

#[tokio::test]
async fn altered_rows_are_detected() {
    let dir = tempfile::tempdir().unwrap();
    let place = at(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    write(&*store, approved(2)).await.unwrap();
    let policy = PolicySnapshot { digest: "d".into(), refused: None, body: "strict".into() };
    store.save_policy(policy, false).await.unwrap();
    store.close();
    let head = place.verify_audit(None).unwrap().head;
    for (spoil, mend) in [
        ("UPDATE changes SET state = 'applied'", "UPDATE changes SET state = 'approved'"),
        ("UPDATE changes SET principal = 'b'", "UPDATE changes SET principal = 'agent'"),
        ("UPDATE audit SET actor = 'b' WHERE seq = 1", "UPDATE audit SET actor = 'alice' WHERE seq = 1"),
        ("UPDATE heads SET audit = 1", "UPDATE heads SET audit = 3"),
        (
            "UPDATE nodes SET policy = replace(policy, 'strict', 'loose')",
            "UPDATE nodes SET policy = replace(policy, 'loose', 'strict')",
        ),
        (
            "UPDATE facts SET value = replace(value, 'strict', 'loose')",
            "UPDATE facts SET value = replace(value, 'loose', 'strict')",
        ),
        ("INSERT INTO api_keys VALUES ('k', 'k', 'admin', NULL, '\\x00', '')", "DELETE FROM api_keys"),
    ] {
        run(dir.path(), spoil).await;
        assert!(place.verify_audit(None).is_err(), "{spoil}");
        run(dir.path(), mend).await;
        place.verify_audit(Some(head)).unwrap();
    }
}
