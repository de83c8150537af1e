//! Tests of writes that wait while the server is silent.

use super::{
    fault_tests::{proxied_server, run_sql},
    *,
};
use crate::{
    CommittedWrite, WriteError,
    drafts::{created_draft, submit, write},
};
use countersign_postgres::proxy::{PASS, SILENT};

#[track_caller]
fn assert_unreachable(write: &Result<CommittedWrite, WriteError>) {
    assert!(matches!(write, Err(WriteError::Store(StoreError::Unreachable(_)))), "{write:?}");
}

#[tokio::test]
async fn writes_during_silence_fail_with_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    proxy.set(SILENT);
    let first = submit(&*store, created_draft("b"));
    // The second write is not in the transaction of the first.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = submit(&*store, created_draft("c"));
    let first = first.await.unwrap();
    // From now on, a new attempt would succeed.
    proxy.set(PASS);
    assert_unreachable(&first);
    assert_unreachable(&second.await.unwrap());
    while store.current_error().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(write(&*store, created_draft("d")).await.unwrap().seq, 2);
    store.close();
}

#[tokio::test]
async fn repetition_of_batch_ends_with_silence() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, server) = proxied_server(dir.path());
    let store = server.open().unwrap();
    // The second insertion fails, and each other one waits until it is released.
    let trigger = "CREATE SEQUENCE insertions; CREATE TABLE released (no bigint);
        CREATE FUNCTION hold_insertion() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE own_no bigint := nextval('insertions');
        BEGIN
            IF own_no = 2 THEN RAISE EXCEPTION 'the batch fails'; END IF;
            WHILE (SELECT count(*) FROM released) < own_no LOOP PERFORM pg_sleep(0.01); END LOOP;
            RETURN NEW;
        END $$;
        CREATE TRIGGER hold_insertion BEFORE INSERT ON changes FOR EACH ROW EXECUTE FUNCTION hold_insertion()";
    run_sql(dir.path(), trigger).await;
    let wait_for_insertion = async |no: u8| {
        let is_missing = format!("SELECT NOT is_called OR last_value < {no} FROM insertions");
        let sql = format!("DO $$ BEGIN WHILE ({is_missing}) LOOP PERFORM pg_sleep(0.01); END LOOP; END $$");
        run_sql(dir.path(), &sql).await;
    };
    let first = submit(&*store, created_draft("a"));
    wait_for_insertion(1).await;
    let [second, third] = ["b", "c"].map(|id| submit(&*store, created_draft(id)));
    run_sql(dir.path(), "INSERT INTO released VALUES (1)").await;
    first.await.unwrap().unwrap();
    // The second write is repeated alone.
    wait_for_insertion(3).await;
    proxy.set(SILENT);
    let second = second.await.unwrap();
    // From now on, a new attempt would succeed.
    proxy.set(PASS);
    run_sql(dir.path(), "INSERT INTO released VALUES (2), (3), (4)").await;
    assert_unreachable(&second);
    assert_unreachable(&third.await.unwrap());
    store.close();
}
