//! What only a server meets: connections that end, commits that nobody answers, other gateways, rows that were tampered with.

use super::*;
use crate::{
    WriteError,
    drafts::{created, moved, write},
    servers::{
        proxy::{CLOSED, CUT, DECEIVE, LOSE, PASS, Proxy, SILENT},
        url_of,
    },
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
    let ground = Ground::start(&connect::parse(&url_of(dir)).unwrap(), None).unwrap();
    let sql = sql.to_owned();
    ground.ask(|client| async move { Ok(client.batch_execute(&sql).await?) }).await.unwrap();
}

#[tokio::test]
async fn a_commit_that_nobody_answers_is_looked_up_and_told_as_it_is() {
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
async fn a_connection_that_ends_before_the_commit_leaves_nothing_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    for mode in [CUT, CLOSED] {
        proxy.set(mode);
        let lost = write(&*store, approved(2)).await;
        let Err(WriteError::Store(error @ StoreError::Unreachable(_))) = lost else { panic!("{lost:?}") };
        assert!(error.certainly_aborted(), "{error}");
        assert!(matches!(store.trouble(), Some(StoreError::Unreachable(_))) || mode == CUT);
    }
    assert!(matches!(store.get("a").await, Err(StoreError::Unreachable(_))));
    proxy.set(PASS);
    // Nobody writes anything, and yet it finds out.
    while store.trouble().is_some() {
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

/// As one whose machine has stopped.
#[tokio::test]
async fn a_server_that_is_silent_holds_no_request_up_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, place) = proxied(dir.path());
    let (store, keys) = (place.open().unwrap(), place.credentials().unwrap());
    let key = crate::keys::ApiKey {
        id: "k".into(),
        name: "alice".into(),
        role: countersign_domain::principal::Role::Viewer,
        owner: None,
        created_at: Timestamp::UNIX_EPOCH,
        last_used_at: None,
        revoked_at: None,
    };
    keys.insert(&key, &[1; 32]).unwrap();
    write(&*store, created("a")).await.unwrap();
    proxy.set(SILENT);
    assert!(keys.find(&[1; 32]).unwrap().is_some(), "what is known needs no answer");
    let unknown = keys.find(&[2; 32]);
    assert!(matches!(unknown, Err(StoreError::Unreachable(_))), "{unknown:?}");
    while store.trouble().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Nobody can say any more whether it was revoked.
    while keys.find(&[1; 32]).is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(keys.held().is_err());
    proxy.set(PASS);
    while store.trouble().is_some() || keys.find(&[1; 32]).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(write(&*store, created("b")).await.unwrap().seq, 2);
    store.close();
    place.verify_audit(None).unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_nothing_is_altered() {
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
async fn what_was_altered_in_the_database_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let place = at(dir.path());
    let store = place.open().unwrap();
    write(&*store, created("a")).await.unwrap();
    write(&*store, approved(2)).await.unwrap();
    store.close();
    let head = place.verify_audit(None).unwrap().head;
    for (spoil, mend) in [
        ("UPDATE changes SET state = 'applied'", "UPDATE changes SET state = 'approved'"),
        ("UPDATE changes SET principal = 'b'", "UPDATE changes SET principal = 'agent'"),
        ("UPDATE audit SET actor = 'b' WHERE seq = 1", "UPDATE audit SET actor = 'alice' WHERE seq = 1"),
        ("UPDATE heads SET audit = 1", "UPDATE heads SET audit = 2"),
        ("INSERT INTO api_keys VALUES ('k', 'k', 'admin', NULL, '\\x00', '')", "DELETE FROM api_keys"),
    ] {
        run(dir.path(), spoil).await;
        assert!(place.verify_audit(None).is_err(), "{spoil}");
        run(dir.path(), mend).await;
        place.verify_audit(Some(head)).unwrap();
    }
}
