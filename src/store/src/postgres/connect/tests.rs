use super::*;
use countersign_postgres::url_of;

#[test]
fn outward_address_is_local_address_to_server() {
    let outward = |url: &str| PgConnector::start(&parse(url).unwrap(), None).unwrap().outward_address();
    assert_eq!(outward("postgres://127.0.0.1:1/c"), Some(IpAddr::from([127, 0, 0, 1])));
    assert!(outward("postgres://[::1]:1/c").is_none_or(|ip| ip.is_loopback()));
    assert_eq!(outward("postgres://a@%2Fvar%2Frun/c"), None);
}

#[test]
fn tls_is_required_for_remote_servers_by_default() {
    let mode = |url: &str| parse(url).unwrap().get_ssl_mode();
    assert_eq!(mode("postgres://a:b@db.example/c"), SslMode::Require);
    assert_eq!(mode("postgres://a:b@localhost,db.example/c"), SslMode::Require);
    for local in ["postgres://a@127.0.0.1:5433/c", "postgres://localhost/c", "postgres://a@%2Fvar%2Frun/c"] {
        assert_eq!(mode(local), SslMode::Disable, "{local}");
    }
    assert_eq!(mode("postgres://db.example/c?sslmode=disable"), SslMode::Disable);
    assert_eq!(mode("postgres://localhost/c?sslmode=verify-full"), SslMode::Require);
    assert_eq!(mode("postgres://db.example/c?application_name=a&sslmode=verify-ca"), SslMode::Require);
    let password = "?sslmode=verify-ca&sslmode=disable";
    let config = parse(&format!("postgres://a:{password}@db.example/c")).unwrap();
    assert_eq!(config.get_ssl_mode(), SslMode::Require, "a password is no parameter");
    assert_eq!(config.get_password(), Some(password.as_bytes()));
    let error = parse("postgres://alice:hush@db.example:port/c").unwrap_err().to_string();
    assert!(!error.contains("hush"), "{error}");
}

#[tokio::test]
async fn isolation_level_of_the_database_is_overridden() {
    let dir = tempfile::tempdir().unwrap();
    let connector = || PgConnector::start(&parse(&url_of(dir.path())).unwrap(), None).unwrap();
    let alter = "DO $$ BEGIN
                     EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable',
                                    current_database());
                 END $$";
    connector().run_async(error::no_answer, async move |client| Ok(client.batch_execute(alter).await?)).await.unwrap();
    let show = "SHOW transaction_isolation";
    let level = connector().run_async(error::no_answer, async move |client| Ok(client.query_one(show, &[]).await?));
    assert_eq!(level.await.unwrap().get::<_, String>(0), "read committed");
}
