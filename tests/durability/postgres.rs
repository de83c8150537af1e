//! Tests of the real program on a PostgreSQL that ends under it, is shared with another gateway, or is absent.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use support::{Gateway, Options, eventually, postgres::Server};

fn options(url: &str) -> Options<'_> {
    Options { env: vec![("COUNTERSIGN_STORE__URL", url)], config: None }
}

/// Returns options of a gateway that does not wait for its database.
fn fail_fast_options(url: &str) -> Options<'_> {
    Options { env: vec![("COUNTERSIGN_STORE__URL", url), ("COUNTERSIGN_STORE__START_TIMEOUT", "0s")], config: None }
}

fn health(gateway: &Gateway) -> (u16, Value) {
    let response = gateway.request("GET", "/health", &[], b"");
    (response.status, response.json())
}

/// Creates a reviewer's key in the store.
fn reviewer(gateway: &Gateway, url: &str) -> String {
    support::create_key_in(url, &gateway.data(), "reviewer", "rita")
}

/// Approves the current version.
fn approve(gateway: &Gateway, key: &str, id: &str) -> (u16, Value) {
    let (_, change) = gateway.api_as(key, "GET", &format!("/api/changes/{id}"), None);
    let body =
        json!({ "decision": "approve", "comment": "x", "version": change["version"], "digest": change["digest"] });
    gateway.api_as(key, "POST", &format!("/api/changes/{id}/decision"), Some(&body))
}

/// Proposes so many changes, and more until `over` is set, repeating proposals that the store could not take.
fn propose_until(
    gateway: &Gateway,
    project: &str,
    agent: usize,
    changes: usize,
    over: &AtomicBool,
    accepted: &AtomicUsize,
) {
    for n in 0.. {
        if n >= changes {
            if over.load(Ordering::SeqCst) {
                return;
            }
            // Limits the number, however long it takes.
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        let title = format!("agent {agent} change {n}");
        let body = json!({ "projectId": project, "title": title, "type": "Story" }).to_string();
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", title.as_str())];
        eventually("it is accepted in the end", || {
            let response = gateway.request("POST", "/tools/create_issue", &headers, body.as_bytes());
            let reply = response.json_or_null();
            assert!(response.status == 202 || reply["code"] == "STORE_UNAVAILABLE", "{} {reply}", response.status);
            (response.status == 202).then_some(())
        });
        accepted.fetch_add(1, Ordering::SeqCst);
    }
}

fn verify_trail(gateway_data: &std::path::Path, url: &str) -> String {
    let mut verify = support::command(&[("COUNTERSIGN_STORE__URL", url)]);
    let output = verify.args(["audit", "verify", "--data"]).arg(gateway_data).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr
}

#[test]
fn gateway_recovers_from_database_crash() {
    let server = Server::start(&["-c", "fsync=off"]);
    server.sql("postgres", "CREATE DATABASE gateway");
    let url = server.database("gateway");
    let gateway = Gateway::with_options(&options(&url));
    let key = reviewer(&gateway, &url);
    let project = gateway.project();
    let first = gateway.propose("before the crash");
    // Agents propose all the time, and repeat refused proposals.
    let (accepted, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for agent in 0..4 {
            let (gateway, project, accepted, over) = (&gateway, &project, &accepted, &over);
            scope.spawn(move || propose_until(gateway, project, agent, 25, over, accepted));
        }
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(200));
            server.halt();
            let unready = eventually("it says so", || Some(health(&gateway)).filter(|(status, _)| *status == 503)).1;
            assert_eq!((&unready["live"], &unready["checks"]["store"]), (&json!(true), &json!("unreachable")));
            server.restart();
            eventually("it is ready again, by itself", || (health(&gateway).0 == 200).then_some(()));
        }
    });
    let accepted = accepted.into_inner();
    let count = server.sql("gateway", "SELECT count(*), count(DISTINCT idempotency_key) FROM changes");
    assert_eq!(count, format!("{}|{accepted}", accepted + 1), "each once");
    let events = server.sql("gateway", "SELECT count(*), min(seq), max(seq) FROM events");
    assert_eq!(events, format!("{0}|1|{0}", accepted + 1), "without a gap");
    let (status, change) = approve(&gateway, &key, &first);
    assert_eq!(status, 200, "{change}");
    eventually("it is applied", || {
        let (_, change) = gateway.api_as(&key, "GET", &format!("/api/changes/{first}"), None);
        (change["state"] == "applied").then_some(())
    });
    assert_eq!(gateway.issues_titled("before the crash"), 1);
    let (status, home) = gateway.stop();
    assert!(status.success());
    let verdict = verify_trail(&home.path().join("data"), &url);
    assert!(verdict.contains(&format!("{} changes", accepted + 1)), "{verdict}");
}

/// Sets the flag when dropped, also after a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn gateways_follow_database_failover_without_loss() {
    let server = Server::start(&["-c", "fsync=off", "-c", "max_connections=200"]);
    server.sql("postgres", "CREATE DATABASE gateway");
    server.add_replica();
    let url = server.database_of_both("gateway");
    let gateways: Vec<Gateway> = (0..3).map(|_| Gateway::with_options(&options(&url))).collect();
    let key = reviewer(&gateways[0], &url);
    let project = gateways[0].project();
    let (accepted, over, ended) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&ended);
        // Each node's reviewer approves all changes, wherever they were proposed.
        for gateway in &gateways {
            let (key, ended) = (&key, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    let (_, listed) = gateway.api_as(key, "GET", "/api/changes?status=pending&limit=5", None);
                    for change in listed["changes"].as_array().into_iter().flatten() {
                        // Refused if somebody else was faster, or without a store.
                        approve(gateway, key, change["id"].as_str().unwrap());
                    }
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            });
        }
        std::thread::scope(|agents| {
            let _over = SetOnDrop(&over);
            for agent in 0..6 {
                let (gateway, project, accepted, over) = (&gateways[agent % 3], &project, &accepted, &over);
                agents.spawn(move || propose_until(gateway, project, agent, 30, over, accepted));
            }
            eventually("they are at work", || (accepted.load(Ordering::SeqCst) > 40).then_some(()));
            server.halt();
            server.fail_over();
            let before = accepted.load(Ordering::SeqCst);
            eventually("they go on", || (accepted.load(Ordering::SeqCst) > before + 20).then_some(()));
        });
        eventually("all is decided and has ended", || {
            let open = "SELECT count(*) FROM changes WHERE state IN ('pending', 'approved', 'executing', 'stale')";
            (server.sql("gateway", open) == "0").then_some(())
        });
    });
    let (sql, accepted) = (|sql: &str| server.sql("gateway", sql), accepted.into_inner());
    let each = sql("SELECT count(*), count(DISTINCT idempotency_key) FROM changes");
    assert_eq!(each, format!("{accepted}|{accepted}"), "each once");
    assert_eq!(sql("SELECT count(*) - max(seq) FROM events"), "0", "without a gap");
    let count = |what: &str| sql(&format!("SELECT count(*) FROM {what}")).parse::<u64>().unwrap();
    let (applied, unknown) =
        (count("changes WHERE state = 'applied'"), count("changes WHERE state = 'outcome_unknown'"));
    let done = count("tracker_issues WHERE title LIKE 'agent %'");
    assert_eq!(
        count("(SELECT DISTINCT title FROM tracker_issues WHERE title LIKE 'agent %') AS one"),
        done,
        "none twice"
    );
    assert!((applied..=applied + unknown).contains(&done), "{applied} applied, {unknown} unknown, {done} done");
    assert!(applied > 100, "{applied}");
    let mut homes = Vec::new();
    for gateway in gateways {
        assert_eq!(health(&gateway).0, 200);
        let (_, listed) = gateway.api_as(&key, "GET", "/api/changes?limit=1", None);
        assert_eq!(listed["changes"].as_array().unwrap().len(), 1);
        homes.push(gateway.stop().1);
    }
    assert!(verify_trail(&homes[0].path().join("data"), &url).contains(&format!("{accepted} changes")));
}

#[test]
fn another_gateway_takes_over_a_killed_ones_store() {
    let server = Server::start(&["-c", "fsync=off"]);
    server.sql("postgres", "CREATE DATABASE gateway");
    let url = server.database("gateway");
    let gateway = Gateway::with_options(&options(&url));
    let id = gateway.propose("left behind");
    let key = reviewer(&gateway, &url);
    drop(gateway.kill());
    let gateway = Gateway::with_options(&options(&url));
    let (status, change) = gateway.api_as(&key, "GET", &format!("/api/changes/{id}"), None);
    assert_eq!((status, &change["state"]), (200, &json!("pending")), "{change}");
    gateway.propose("and on it goes");
    let (_, home) = gateway.stop();
    verify_trail(&home.path().join("data"), &url);
}

/// Uses the command of `docs/postgresql.md`.
#[test]
fn copied_store_is_served_and_old_one_is_closed() {
    let server = Server::start(&["-c", "fsync=off"]);
    server.sql("postgres", "CREATE DATABASE gateway");
    let url = server.database("gateway");
    let gateway = Gateway::start();
    let ids: Vec<String> = (0..20).map(|n| gateway.propose(&format!("moved {n}"))).collect();
    gateway.decide(&ids[0], "approve");
    gateway.wait_for_state(&ids[0], "applied");
    let key = gateway.reviewer().to_owned();
    let command = snippet("sh", "store copy");
    let from = gateway.data().to_str().unwrap().to_owned();
    let words: Vec<String> = command
        .split_whitespace()
        .skip(1)
        .map(|word| word.replace("~/.local/state/countersign", &from))
        .map(|word| if word.starts_with("postgres://") { url.clone() } else { word })
        .collect();
    let copy = || {
        let output = support::command(&[]).args(&words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let (code, stderr) = copy();
    assert_eq!(code, Some(75), "a gateway serves it: {stderr}");
    let (_, home) = gateway.stop();
    let (code, stderr) = copy();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("20 changes"), "{stderr}");
    let (code, stderr) = copy();
    assert_eq!(code, Some(2), "{stderr}");

    let status = Gateway::spawn(home.path(), &Options::default()).wait_for_exit();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.contains("belongs to another store: a store in PostgreSQL"), "{log}");
    let gateway = Gateway::on_home(home, &options(&url));
    let state = |id: &str| gateway.api_as(&key, "GET", &format!("/api/changes/{id}"), None).1["state"].clone();
    assert_eq!((state(&ids[0]), state(&ids[19])), (json!("applied"), json!("pending")));
    gateway.propose("and on it goes");
    assert_eq!(gateway.issues_titled("moved 0"), 1);
    let (_, home) = gateway.stop();
    verify_trail(&home.path().join("data"), &url);
}

/// Runs the program with a data directory and optionally a store; returns its exit code and output.
fn run(store: Option<&str>, data: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let env: Vec<(&str, &str)> = store.map(|url| ("COUNTERSIGN_STORE__URL", url)).into_iter().collect();
    let output = support::command(&env).args(args).arg("--data").arg(data).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), out, err)
}

const CREATE: [&str; 6] = ["keys", "create", "--role", "viewer", "--name", "vera"];

#[test]
fn commands_refuse_a_store_of_another_directory() {
    let server = support::postgres::shared_server();
    let [url, other] = ["identity", "identity_other"].map(|name| {
        server.sql("postgres", &format!("CREATE DATABASE {name}"));
        server.database(name)
    });
    let gateway = Gateway::with_options(&options(&url));
    let data = gateway.data();
    let copy = gateway.home.path().join("copy");
    let embedded = data.join("countersign.db");
    let commands: [&[&str]; 8] = [
        &CREATE,
        &["keys", "list"],
        &["keys", "revoke", "key_1"],
        &["keys", "sign-out"],
        &["open", "--print"],
        &["audit", "verify"],
        &["audit", "export"],
        &["backup", copy.to_str().unwrap()],
    ];
    for command in commands {
        let (code, out, err) = run(None, &data, command);
        assert_eq!((code, out.as_str()), (Some(78), ""), "{command:?}: {err}");
        assert!(err.contains("COUNTERSIGN_STORE__URL") && err.contains("identity.json"), "{command:?}: {err}");
        assert!(!embedded.exists() && !copy.exists(), "{command:?}");
    }
    // Another database is refused too, and the own one is used.
    for (store, code) in [(&other, 78), (&url, 0)] {
        let (exit_code, out, err) = run(Some(store), &data, &CREATE);
        assert_eq!((exit_code, out.is_empty()), (Some(code), code == 78), "{err}");
    }
    // A second gateway of the same store has a separate directory.
    let beside = Gateway::with_options(&options(&url));
    assert_eq!(run(Some(&url), &beside.data(), &["audit", "verify"]).0, Some(0));
    drop(beside.stop());
    // A gateway does not create another store there.
    let (_, home) = gateway.stop();
    for env in [vec![], vec![("COUNTERSIGN_STORE__URL", other.as_str())]] {
        let status = Gateway::spawn(home.path(), &Options { env, config: None }).wait_for_exit();
        assert_eq!(status.code(), Some(78), "{}", std::fs::read_to_string(home.path().join("log")).unwrap());
    }
    assert_eq!(run(None, &data, &["policy", "test", "create_issue"]).0, Some(78));
    assert!(!embedded.exists());
    // A directory's own store is not looked for in a database.
    let gateway = Gateway::start();
    assert_eq!(run(Some(&url), &gateway.data(), &CREATE).0, Some(78));
    // It is not ignored either if a key was created before the first start.
    let home = tempfile::tempdir().unwrap();
    assert_eq!(run(None, &home.path().join("data"), &CREATE).0, Some(0));
    let status = Gateway::spawn(home.path(), &options(&other)).wait_for_exit();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.contains("the store in its own countersign.db") && log.contains("identity.json"), "{log}");
}

#[test]
fn commands_use_the_configuration_of_the_directory() {
    let server = support::postgres::shared_server();
    server.sql("postgres", "CREATE DATABASE identity_config");
    let url = server.database("identity_config");
    let config = format!("store: {{ url: '{url}' }}\n");
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    let (code, key, err) = run(None, &gateway.data(), &CREATE);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(gateway.api_as(key.trim(), "GET", "/api/me", None).0, 200);
    let (code, link, err) = run(None, &gateway.data(), &["open", "--print"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(link.contains("#code="), "{link}");
    // If the store is named in another way, the remedy names it.
    let (code, _, err) = run(Some(&server.database("postgres")), &gateway.data(), &CREATE);
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("countersign.yaml"), "{err}");
    // The file in the default place belongs to something else.
    let default = gateway.home.path().join("default");
    std::fs::create_dir_all(default.join("countersign")).unwrap();
    std::fs::write(default.join("countersign/countersign.yaml"), "listen: 127.0.0.1:1\n").unwrap();
    let list = || {
        let mut list = support::command(&[("XDG_CONFIG_HOME", default.to_str().unwrap())]);
        let output = list.args(["keys", "list", "--data"]).arg(gateway.data()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, listed) = list();
    assert!(code == Some(0) && listed.contains("vera"), "{listed}");
    std::fs::rename(gateway.home.path().join("countersign.yaml"), gateway.home.path().join("moved")).unwrap();
    let (code, error) = list();
    assert_eq!(code, Some(78), "{error}");
    assert!(error.contains("data directory") && error.contains("--config FILE"), "{error}");
    assert!(!error.contains("named by flag"), "{error}");
}

/// Creates a certificate for this machine's name with the system's openssl; returns it with its key.
fn certificate(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (cert, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=CA:FALSE", "-keyout"]).arg(&key).arg("-out").arg(&cert);
    let output = openssl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (cert, key)
}

#[test]
fn remote_database_needs_trusted_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path(), "server");
    let (other, _) = certificate(dir.path(), "other");
    // The server's system user must be able to read them, and nobody else may read the key.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    if rustix::process::getuid().is_root() {
        assert!(Command::new("chown").arg("postgres").args([&cert, &key]).status().unwrap().success());
    }
    // Below the ports that the system assigns itself, so that it is free when the server binds it.
    let port = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    let (cert_file, key_file) =
        (format!("ssl_cert_file={}", cert.display()), format!("ssl_key_file={}", key.display()));
    let settings = ["fsync=off", "listen_addresses=localhost", "ssl=on", &cert_file, &key_file];
    let server = Server::on_port(port, &settings.iter().flat_map(|setting| ["-c", setting]).collect::<Vec<_>>());
    server.sql("postgres", "CREATE DATABASE gateway");
    let url = format!("postgres://countersign@localhost:{port}/gateway?sslmode=require");
    let [cert, other] = [cert, other].map(|path| path.to_str().unwrap().to_owned());
    let with = |authority: Option<&'static str>| {
        let mut env = fail_fast_options(&url).env;
        env.extend(authority.map(|path| ("COUNTERSIGN_STORE__CA", path)));
        Options { env, ..Options::default() }
    };
    // Signed by nobody, or by another authority.
    for authority in [None, Some(&*other.leak())] {
        let home = tempfile::tempdir().unwrap();
        let status = Gateway::spawn(home.path(), &with(authority)).wait_for_exit();
        let log = std::fs::read_to_string(home.path().join("log")).unwrap();
        assert_eq!(status.code(), Some(69), "{log}");
        assert!(log.contains("the database cannot be reached") && log.contains("certificate"), "{log}");
    }
    assert_eq!(server.sql("gateway", "SELECT to_regclass('changes') IS NULL"), "t", "nothing was sent to it");
    let gateway = Gateway::with_options(&with(Some(cert.leak())));
    gateway.propose("in secret");
    let open = "SELECT count(*) FILTER (WHERE ssl) > 2, count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl
                JOIN pg_stat_activity USING (pid) WHERE application_name = 'countersign'";
    assert_eq!(server.sql("gateway", open), "t|0");
    drop(gateway.stop());
}

#[test]
fn gateway_waits_for_its_database_at_the_start() {
    let server = Server::start(&["-c", "fsync=off"]);
    server.sql("postgres", "CREATE DATABASE gateway");
    let (url, home) = (server.database("gateway"), tempfile::tempdir().unwrap());
    server.halt();
    let mut waits = Gateway::spawn(home.path(), &options(&url));
    let log = || std::fs::read_to_string(home.path().join("log")).unwrap();
    eventually("it tries again", || (log().matches("trying again").count() > 1).then_some(()));
    server.restart();
    assert!(support::wait_until_ready(&mut waits, &home.path().join("data")).is_some(), "{}", log());
}

#[test]
fn absent_database_is_named_without_password() {
    let home = tempfile::tempdir().unwrap();
    let dead = support::DeadPort::new();
    let url = format!("postgres://countersign:hush@{}/gateway", dead.address);
    let status = Gateway::spawn(home.path(), &fail_fast_options(&url)).wait_for_exit();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(log.contains("the database cannot be reached") && !log.contains("hush"), "{log}");
    let status = Gateway::spawn(home.path(), &options("mysql://a:hush@b/c")).wait_for_exit();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.contains("not an address of PostgreSQL") && !log.contains("hush"), "{log}");
}

/// Returns the first block in that language that contains the words.
fn snippet(language: &str, words: &str) -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/postgresql.md")).unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let found =
        blocks.filter_map(|block| block.strip_prefix(&format!("{language}\n"))).find(|block| block.contains(words));
    found.unwrap().to_owned()
}

/// Follows `docs/postgresql.md`: setup, dump and restore, and the report that it is a backup.
#[test]
fn postgresql_page_works_from_setup_to_restored_dump() {
    let server = Server::start(&["-c", "fsync=off"]);
    // The tests' own role has that name already.
    for statement in snippet("sql", "CREATE ROLE").replace("countersign", "gateway").lines() {
        server.sql("postgres", statement);
    }
    let host = server.folder().to_str().unwrap().replace('/', "%2F");
    let config = snippet("yaml", "store:")
        .replace("countersign:", "gateway:")
        .replace("db.example.com/countersign", &format!("{host}/gateway"));
    let with = |config: &'static str| Options { env: vec![("DB_PASSWORD", "choose one")], config: Some(config) };
    let policy = "policy: { review: { undo_for: 1h } }\n";
    let gateway = Gateway::with_options(&with(format!("{config}{policy}").leak()));
    let url = server.database("gateway").replace("countersign@", "gateway@");
    let key = reviewer(&gateway, &url);
    let id = gateway.propose("approved when the backup was taken");
    let state = |gateway: &Gateway| gateway.api_as(&key, "GET", &format!("/api/changes/{id}"), None).1;
    let (status, answer) = approve(&gateway, &key, &id);
    assert_eq!((status, &answer["state"]), (200, &json!("approved")), "{answer}");
    let dump = server.dump("gateway");
    let (_, home) = gateway.stop();
    server.sql("postgres", "CREATE DATABASE restored OWNER gateway");
    server.restore("restored", &dump);
    server.sql("restored", &snippet("sql", "backup_of"));
    let restored: &'static str =
        format!("{config}{policy}").replace(&format!("{host}/gateway"), &format!("{host}/restored")).leak();
    let gateway = Gateway::on_home(home, &with(restored));
    eventually("it waits for a reviewer again", || (state(&gateway)["state"] == "stale").then_some(()));
    let (_, home) = gateway.stop();
    verify_trail(&home.path().join("data"), &server.database("restored").replace("countersign@", "gateway@"));
}
