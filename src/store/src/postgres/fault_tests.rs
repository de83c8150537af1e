//! Tests of failures that only a database server has: lost connections, unanswered commits, frozen servers and altered
//! rows.

use super::*;
use crate::{
    TransitionDraft, WriteError,
    accounts::{AccountKey, AccountStore as _, StoredAccount},
    drafts::{created_draft, updated_draft, write},
    keys::{ApiKey, CodeOutcome, SignIn},
    webhooks::{AttemptResult, DeliveryState, PendingDelivery},
};

use countersign_domain::{
    changes::ChangeState,
    principal::{Principal, Role},
};
use countersign_postgres::{
    proxy::{CUT_BEFORE_ANSWER, CUT_BEFORE_AUDIT, CUT_BEFORE_MESSAGE, DELAY_MESSAGE, PASS, Proxy, REFUSE, SILENT},
    url_of,
};

pub(super) fn server_for(dir: &std::path::Path) -> PostgresDatabase {
    PostgresDatabase::new(&url_of(dir), None, crate::nodes::NodeIdSource::generate()).unwrap()
}

pub(super) fn proxied_server(dir: &std::path::Path) -> (Proxy, PostgresDatabase) {
    let proxy = Proxy::for_database(&url_of(dir));
    let server = PostgresDatabase::new(&proxy.url, None, crate::nodes::NodeIdSource::generate()).unwrap();
    (proxy, server)
}

fn approved(version: u64) -> TransitionDraft {
    updated_draft("a", version, ChangeState::Pending, ChangeState::Approved)
}

pub(super) async fn run_sql(dir: &std::path::Path, sql: &str) {
    let connector = PgConnector::start(&connect::parse(&url_of(dir)).unwrap(), None).unwrap();
    let sql = sql.to_owned();
    connector.run_async(error::no_answer, async move |client| Ok(client.batch_execute(&sql).await?)).await.unwrap();
}

#[tokio::test]
async fn unanswered_commit_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();

    proxy.set(CUT_BEFORE_ANSWER);
    assert_eq!(write(&*store, approved(2)).await.unwrap().seq, 2, "the commit is durable, so the write succeeds");

    proxy.set(CUT_BEFORE_MESSAGE);
    let lost = write(&*store, approved(3)).await;
    let Err(WriteError::Store(error @ StoreError::Unreachable(_))) = lost else { panic!("{lost:?}") };
    assert!(error.is_certainly_aborted(), "{error}");
    assert_eq!(store.get("a").await.unwrap().unwrap().version, 2);

    // The numbers continue without a gap, and the chain is valid.
    assert_eq!(write(&*store, approved(3)).await.unwrap().seq, 3);
    store.close();
    assert_eq!(server.verify_audit(None).unwrap().entries, 3);
}

#[tokio::test]
async fn lost_connection_before_commit_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    for mode in [CUT_BEFORE_AUDIT, REFUSE] {
        proxy.set(mode);
        let lost = write(&*store, approved(2)).await;
        let Err(WriteError::Store(error @ StoreError::Unreachable(_))) = lost else { panic!("{lost:?}") };
        assert!(error.is_certainly_aborted(), "{error}");
        assert!(matches!(store.current_error(), Some(StoreError::Unreachable(_))) || mode == CUT_BEFORE_AUDIT);
    }
    assert!(matches!(store.get("a").await, Err(StoreError::Unreachable(_))));
    proxy.set(PASS);
    // The store detects that the server is back, although nobody writes.
    while store.current_error().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(store.get("a").await.unwrap().unwrap().version, 1);
    assert_eq!(write(&*store, approved(2)).await.unwrap().seq, 2);
    // The store also notices that an idle connection has ended.
    run_sql(
        dir.path(),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    assert_eq!(write(&*store, created_draft("b")).await.map_or(3, |written| written.seq), 3);
    store.close();
    server.verify_audit(None).unwrap();
}

pub(super) fn key(id: &str) -> ApiKey {
    ApiKey {
        id: id.into(),
        name: id.into(),
        role: Role::Viewer,
        owner: None,
        created_by: Vec::new(),
        created_at: Timestamp::UNIX_EPOCH,
        last_used_at: None,
        revoked_at: None,
    }
}

fn sign_in(id: u8) -> SignIn {
    SignIn {
        id: [id; 32],
        cookie: [id; 32],
        principal: Arc::new(Principal::new("rita", Role::Reviewer)),
        key: None,
        last_used: Timestamp::UNIX_EPOCH,
        session: None,
        refreshed_at: None,
    }
}

fn assert_unreachable<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(&answer, Err(StoreError::Unreachable(_))), "{answer:?}");
}

fn assert_unknown<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let Err(error @ StoreError::OutcomeUnknown) = answer else { panic!("{answer:?}") };
    assert!(!error.is_certainly_aborted());
    assert_eq!(error.to_mcp().data["outcome"], "unknown");
}

#[test]
fn unanswered_key_write_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let (keys, now) = (server.credentials().unwrap(), Timestamp::UNIX_EPOCH);
    proxy.set(CUT_BEFORE_MESSAGE);
    assert_unreachable(keys.insert(&key("a"), &[1; 32]));
    assert_eq!((proxy.mode(), keys.list().unwrap()), (PASS, vec![]));
    proxy.set(CUT_BEFORE_ANSWER);
    keys.insert(&key("a"), &[1; 32]).unwrap();
    assert_eq!(keys.list().unwrap(), [key("a")], "once");

    proxy.set(CUT_BEFORE_MESSAGE);
    assert_unreachable(keys.revoke("a", now));
    assert_eq!(keys.holders().unwrap().keys.len(), 1);
    proxy.set(CUT_BEFORE_ANSWER);
    assert!(keys.revoke("a", now).unwrap(), "the lost answer reports this call's revocation");
    assert!(!keys.revoke("a", now).unwrap());
    assert_eq!(proxy.mode(), PASS);
    // Each of the two changes has its audit entry.
    assert_eq!(server.verify_audit(None).unwrap().entries, 2);
}

#[test]
fn unanswered_sign_in_is_repeated_and_code_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let (keys, now) = (server.credentials().unwrap(), Timestamp::UNIX_EPOCH);
    for (id, mode) in [(11, CUT_BEFORE_MESSAGE), (12, CUT_BEFORE_ANSWER)] {
        proxy.set_for_text(mode, [id; 32]);
        keys.put_sign_in(&sign_in(id), &[]).unwrap();
        assert_eq!((proxy.mode(), keys.sign_in(&[id; 32]).unwrap()), (PASS, Some(sign_in(id))));
        proxy.set_for_text(mode, [id; 32]);
        keys.forget_sign_ins(&[[id; 32]]).unwrap();
        assert_eq!((proxy.mode(), keys.sign_in(&[id; 32]).unwrap()), (PASS, None));

        proxy.set_for_text(mode, [id; 32]);
        keys.put_code(&[id; 32], None, now, Timestamp::MAX).unwrap();
        proxy.set_for_text(mode, [id; 32]);
        assert_unknown(keys.take_code(&[id; 32], now));
        let taken = if mode == CUT_BEFORE_ANSWER { CodeOutcome::AlreadyUsed } else { CodeOutcome::Accepted };
        assert_eq!((proxy.mode(), keys.take_code(&[id; 32], now).unwrap()), (PASS, taken));
    }
    // The server does not answer before the timeout.
    proxy.set(SILENT);
    assert_unknown(keys.put_sign_in(&sign_in(13), &[]));
    proxy.set(PASS);
}

#[test]
fn unanswered_refresh_of_tokens_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let accounts = server.stored_keys().unwrap();
    let account = StoredAccount {
        key: AccountKey { server: "crm".into(), holder: "alice".into() },
        target: "https://mcp.example".into(),
        issuer: "https://id.example".into(),
        sealed: "sealed".into(),
        version: 0,
        refreshing_since: None,
        connected_at: Timestamp::UNIX_EPOCH,
    };
    let (key, now) = (&account.key, Timestamp::UNIX_EPOCH);
    for mode in [CUT_BEFORE_MESSAGE, CUT_BEFORE_ANSWER] {
        proxy.set(mode);
        let version = accounts.connect_account(&account).unwrap();
        proxy.set(mode);
        assert!(accounts.begin_refresh(key, version, now).unwrap());
        assert!(!accounts.begin_refresh(key, version, now).unwrap());
        proxy.set(mode);
        assert!(accounts.finish_refresh(key, version, "renewed").unwrap());
        let renewed = accounts.account(key).unwrap().unwrap();
        assert_eq!((proxy.mode(), renewed.version, renewed.refreshing_since), (PASS, version + 1, None));
        assert!(!accounts.finish_refresh(key, version, "renewed by somebody else").unwrap());
    }
}

#[test]
fn unanswered_delivery_record_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let deliveries = server.deliveries().unwrap();
    deliveries.position("a", 0).unwrap();
    let event = PendingDelivery {
        id: 0,
        key: "7".into(),
        seq: Some(7),
        kind: "change.created".into(),
        subject: "chg".into(),
        event: "{}".into(),
        attempts: 0,
        since: Timestamp::UNIX_EPOCH,
    };
    let attempt = AttemptResult { attempts: 1, status: Some(200), error: None };
    for mode in [CUT_BEFORE_MESSAGE, CUT_BEFORE_ANSWER] {
        proxy.set(mode);
        assert_unknown(deliveries.enqueue("a", 7, std::slice::from_ref(&event)));
        assert_eq!(deliveries.pending("a").unwrap().len(), usize::from(mode == CUT_BEFORE_ANSWER));
    }
    let ids = deliveries.enqueue("a", 7, &[event]).unwrap();
    assert_eq!(deliveries.pending("a").unwrap().len(), 1, "once");
    let record_attempt =
        || deliveries.record_attempt("a", ids[0], DeliveryState::Delivered, &attempt, Timestamp::UNIX_EPOCH);
    for mode in [CUT_BEFORE_MESSAGE, CUT_BEFORE_ANSWER] {
        proxy.set(mode);
        assert_unknown(record_attempt());
        assert_eq!(deliveries.pending("a").unwrap().len(), usize::from(mode == CUT_BEFORE_MESSAGE));
    }
    record_attempt().unwrap();
}

#[tokio::test]
async fn message_is_received_once_despite_lost_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    let node = store.nodes().claimant().unwrap().node;
    proxy.set_for_text(CUT_BEFORE_MESSAGE, "lost before the server");
    assert_unknown(store.send_to_node(&node, "a", "lost before the server".into()).await);
    proxy.set_for_text(CUT_BEFORE_ANSWER, "lost answer");
    assert_unknown(store.send_to_node(&node, "a", "lost answer".into()).await);
    assert_eq!(proxy.mode(), PASS);
    // The text appears only in the first message with this statement, which prepares it for the connection.
    proxy.set_for_text(CUT_BEFORE_MESSAGE, "DELETE FROM words");
    assert_eq!(store.receive_messages().await.unwrap(), [("a".to_owned(), "lost answer".to_owned())]);
    assert_eq!(proxy.mode(), PASS);
    store.send_to_node(&node, "a", "answered".into()).await.unwrap();
    assert_eq!(store.receive_messages().await.unwrap(), [("a".to_owned(), "answered".to_owned())]);
    assert_eq!(store.receive_messages().await.unwrap(), []);
    store.close();
}

#[tokio::test]
async fn unanswered_policy_write_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    for (mode, digest) in [(CUT_BEFORE_MESSAGE, "lost before the server"), (CUT_BEFORE_ANSWER, "lost answer")] {
        proxy.set(mode);
        let policy = PolicySnapshot { digest: digest.into(), refused: None, body: "{}".into() };
        assert_unknown(store.save_policy(policy.clone(), true).await);
        assert_eq!(proxy.mode(), PASS);
        assert_eq!(store.policies().await.unwrap().own, Some(policy).filter(|_| mode == CUT_BEFORE_ANSWER));
    }
    store.close();
}

#[test]
fn abandoned_connection_is_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let connector = PgConnector::start(&connect::parse(&url_of(dir.path())).unwrap(), None).unwrap();
    let abandoned = connector.read(crate::sql::REQUEST_TIMEOUT, async |client| {
        client.batch_execute("BEGIN; SET LOCAL application_name = 'left open'").await?;
        std::future::pending::<Result<(), StoreError>>().await
    });
    assert_unreachable(abandoned);
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
    let shown = connector("")
        .run_async(error::no_answer, async |client| Ok(client.query_one("SHOW statement_timeout", &[]).await?));
    assert_eq!(shown.await.unwrap().get::<_, &str>(0), "30s");
    // Long enough for the other statements on a busy machine.
    let shorter = "-c%20statement_timeout%3D2000";
    let hangs = connector(shorter)
        .run_async(error::no_answer, async |client| Ok(client.batch_execute("SELECT pg_sleep(3600)").await?));
    let ended = hangs.await;
    assert!(matches!(ended, Err(StoreError::Locked)), "{ended:?}");

    // The limit also ends a write that waits for a lock.
    let url = format!("{}?options={shorter}", url_of(dir.path()));
    let server = PostgresDatabase::new(&url, None, crate::nodes::NodeIdSource::generate()).unwrap();
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    let mut connection = server_for(dir.path()).tables().unwrap().wait_for_connection().unwrap();
    // The server would end the transaction of a slow test.
    connection.begin("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE changes").unwrap();
    let blocked = write(&*store, approved(2)).await;
    let Err(WriteError::Store(error @ StoreError::Locked)) = blocked else { panic!("{blocked:?}") };
    assert!(error.is_certainly_aborted());
    connection.commit().unwrap();
    assert_eq!(write(&*store, approved(2)).await.unwrap().seq, 2);
    store.close();
    server.verify_audit(None).unwrap();
}

/// The server keeps its connections open, like a frozen machine.
#[tokio::test]
async fn silent_server_blocks_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let (store, keys) = (server.open().unwrap(), server.credentials().unwrap());
    write(&*store, created_draft("a")).await.unwrap();
    keys.put_sign_in(&sign_in(1), &[]).unwrap();
    // A key that was created elsewhere is known once the copy of the keys is read again, which is then new, and has the sign-in.
    server_for(dir.path()).credentials().unwrap().insert(&key("k"), &[1; 32]).unwrap();
    while !keys.holders().is_ok_and(|holders| !holders.keys.is_empty()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(keys.sign_in(&[1; 32]).unwrap(), Some(sign_in(1)));
    proxy.set(SILENT);
    assert!(keys.find(&[1; 32]).unwrap().is_some(), "a known key needs no answer of the server");
    assert_eq!(keys.sign_in(&[1; 32]).unwrap(), Some(sign_in(1)), "nor does a sign-in that was used before");
    let unknown = keys.find(&[2; 32]);
    assert!(matches!(unknown, Err(StoreError::Unreachable(_))), "{unknown:?}");
    let (read, written) = tokio::join!(store.get("a"), write(&*store, created_draft("c")));
    assert!(matches!(read, Err(StoreError::Unreachable(_))), "{read:?}");
    assert_unreachable(written.map_err(|error| match error {
        WriteError::Store(error) => error,
        other => panic!("{other:?}"),
    }));
    while store.current_error().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The copy has become too old to exclude a revocation.
    while keys.find(&[1; 32]).is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(keys.holders().is_err() && keys.sign_in(&[1; 32]).is_err());
    proxy.set(PASS);
    while store.current_error().is_some() || keys.find(&[1; 32]).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(write(&*store, created_draft("b")).await.unwrap().seq, 2);
    store.close();
    server.verify_audit(None).unwrap();
}

#[tokio::test]
async fn long_change_has_longer_idle_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    proxy.set_for_text(DELAY_MESSAGE, "long_change");
    let mut long = created_draft("long_change");
    long.body.push_str(&" ".repeat(2 << 20));
    assert_eq!(write(&*store, long).await.unwrap().seq, 2);
    assert_eq!(proxy.mode(), PASS);
    store.close();
}

#[tokio::test]
async fn database_that_lacks_characters_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let create = "CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    run_sql(dir.path(), create).await;
    let url = url_of(dir.path());
    let (base, _) = url.rsplit_once('/').unwrap();
    let node = crate::nodes::NodeIdSource::generate();
    let opened = PostgresDatabase::new(&format!("{base}/latin1"), None, node).unwrap().open();
    let Some(StoreError::Database(text)) = opened.err() else { panic!("the database must be refused") };
    assert!(text.contains("LATIN1"), "{text}");
}

#[tokio::test]
async fn older_schema_is_migrated_only_by_a_gateway() {
    let dir = tempfile::tempdir().unwrap();
    server_for(dir.path()).open().unwrap().close();
    run_sql(dir.path(), "UPDATE countersign_schema SET version = version - 1").await;
    for error in [server_for(dir.path()).credentials().err(), server_for(dir.path()).reviewer_records().err()] {
        assert!(matches!(error, Some(StoreError::OlderDatabase { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn newer_schema_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    server_for(dir.path()).open().unwrap().close();
    run_sql(dir.path(), "UPDATE countersign_schema SET version = 99").await;
    for error in [
        server_for(dir.path()).open().err(),
        server_for(dir.path()).credentials().err(),
        server_for(dir.path()).reviewer_records().err(),
    ] {
        assert!(matches!(error, Some(StoreError::NewerDatabase { found: 99, .. })), "{error:?}");
    }
    let none = tempfile::tempdir().unwrap();
    assert!(server_for(none.path()).reviewer_records().unwrap().is_none(), "the database is empty");
    assert!(matches!(server_for(none.path()).verify_audit(None), Err(VerifyError::Store(_))));
}

#[tokio::test]
async fn altered_rows_are_detected() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_for(dir.path());
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    write(&*store, approved(2)).await.unwrap();
    let policy = PolicySnapshot { digest: "d".into(), refused: None, body: "strict".into() };
    store.save_policy(policy, false).await.unwrap();
    store.close();
    let head = server.verify_audit(None).unwrap().head;
    for (alter, restore) in [
        ("UPDATE changes SET state = 'applied'", "UPDATE changes SET state = 'approved'"),
        ("UPDATE changes SET principal = 'b'", "UPDATE changes SET principal = 'agent'"),
        ("UPDATE changes SET finished_at = 1", "UPDATE changes SET finished_at = NULL"),
        ("UPDATE changes SET redacted = true", "UPDATE changes SET redacted = false"),
        ("UPDATE changes SET plan_last = true", "UPDATE changes SET plan_last = NULL"),
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
        run_sql(dir.path(), alter).await;
        assert!(server.verify_audit(None).is_err(), "{alter}");
        run_sql(dir.path(), restore).await;
        server.verify_audit(Some(head)).unwrap();
    }
}
