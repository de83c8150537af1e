//! Tests of nodes that differ: in the home directory, in the configuration file, in the server behind a name, or in the
//! version of the schema.

use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

use serde_json::{Value, json};
use support::{Gateway, Options, eventually, mcp::JSON};

use crate::{
    crash_proof::upstream::Upstream,
    nodes::{Cluster, config_of},
};

/// Starts a separate server, and returns it with its address.
fn server() -> (Arc<Upstream>, String) {
    let ledger = tempfile::tempdir().unwrap();
    Upstream::start(&ledger.path().join("ledger"))
}

/// Kills a node, and starts it with that configuration.
fn restart(cluster: &mut Cluster, n: usize, config: &str) {
    let home = cluster.nodes[n].take().unwrap().kill();
    start(cluster, n, home, config);
}

fn start(cluster: &mut Cluster, n: usize, home: tempfile::TempDir, config: &str) {
    let url = cluster.url.clone();
    let env = vec![("COUNTERSIGN_STORE__URL", url.as_str())];
    cluster.nodes[n] = Some(Gateway::on_home(home, &Options { env, config: Some(config) }));
    eventually("it has its tools", || {
        let tools = cluster.node(n).request("GET", "/tools", &[], b"").text();
        tools.contains("count__apply").then_some(())
    });
}

#[test]
fn home_directory_is_not_part_of_the_configuration() {
    let homes = ["/nonexistent/a", "/nonexistent/b"];
    let cluster = Cluster::with_config_and_env(&["", ""], |n| vec![("HOME", homes[n])]);
    let nodes = cluster.nodes(0);
    assert!(nodes.iter().all(|node| node["sameConfiguration"] == true), "{nodes:?}");
}

#[test]
fn server_reachable_by_one_node_only_is_shown() {
    let dead = support::DeadPort::new();
    let (_upstream, near) = server();
    let more = format!("  near: {{url: '{near}'}}\n  away: {{url: 'http://{}/mcp'}}", dead.address);
    let own = "  mine: {command: countersign, args: [\"--no-such-flag\"]}";
    let cluster = Cluster::with_config(&[more.as_str(), own]);
    let of = |key: &str| cluster.nodes(1).iter().map(|node| node[key].clone()).collect::<Vec<_>>();
    eventually("it is shown", || (of("unreachable") == [json!(["away"]), json!(["mine"])]).then_some(()));
    eventually("so is what one of them reaches", || (of("onlyHere") == [json!(["near"]), json!([])]).then_some(()));
    assert!(cluster.nodes(0).iter().all(|node| node["here"] == true || node["sameConfiguration"] == false));
    for n in 0..2 {
        eventually("metrics say how many there are, and who leads", || {
            let metrics = cluster.node(n).request("GET", "/metrics", &[], b"").text();
            let has = |line: &str| metrics.lines().any(|metric| metric == line);
            let leads = format!("countersign_node_leads {}", u8::from(n == 0));
            (has("countersign_nodes 2") && has(&leads)).then_some(())
        });
    }
}

#[test]
fn killed_node_learns_of_consent_after_restart() {
    let mut cluster = Cluster::start(2);
    let (url, strict) = (cluster.url.clone(), std::fs::read_to_string(config_of(cluster.node(0))).unwrap());
    let loose = format!("{strict}policy: {{default: allow}}\n");
    let waiting =
        |cluster: &Cluster, n: usize| cluster.api(n, "GET", "/api/reload", None).1["waiting"]["digest"].clone();
    let arguments = json!({"key": "k", "value": "x", "mode": "ok"}).to_string();
    let call = |cluster: &Cluster, n: usize| {
        cluster.node(n).request("POST", "/tools/count__apply", &[JSON], arguments.as_bytes()).status
    };
    std::fs::write(config_of(cluster.node(1)), &loose).unwrap();
    let digest = eventually("it waits", || Some(waiting(&cluster, 1)).filter(Value::is_string));
    restart(&mut cluster, 1, &loose);
    assert_eq!((waiting(&cluster, 1), call(&cluster, 1)), (digest.clone(), 202));
    // A new node, as containers create them, gets the policy from the store.
    let fresh = tempfile::tempdir().unwrap();
    let env = vec![("COUNTERSIGN_STORE__URL", url.as_str())];
    cluster.nodes.push(Some(Gateway::on_home(fresh, &Options { env, config: Some(&loose) })));
    assert_eq!(waiting(&cluster, 2), digest);
    // The node is down when a reviewer consents, and starts with the accepted file.
    let home = cluster.nodes[1].take().unwrap().kill();
    let body = json!({"digest": digest, "verdict": "accept"});
    let (status, answer) = cluster.api(2, "POST", "/api/reload/consent", Some(&body));
    assert_eq!(status, 200, "{answer}");
    let env = vec![("COUNTERSIGN_STORE__URL", url.as_str())];
    cluster.nodes[1] = Some(Gateway::on_home(home, &Options { env, config: Some(&loose) }));
    assert!(waiting(&cluster, 1).is_null());
    eventually("it holds there", || (call(&cluster, 1) == 200).then_some(()));
    // A node with the old file does not revert it.
    assert_eq!(call(&cluster, 0), 202);
    restart(&mut cluster, 0, &strict);
    assert_eq!(call(&cluster, 0), 202);
    restart(&mut cluster, 1, &loose);
    assert!(waiting(&cluster, 1).is_null());
    assert_eq!(call(&cluster, 1), 200);
    // With the new file it asks for no new consent.
    std::fs::write(config_of(cluster.node(0)), &loose).unwrap();
    eventually("it holds everywhere", || (call(&cluster, 0) == 200).then_some(()));
    // The store contains no secrets; a server's command is stored as a hash.
    let stored_policies = cluster.server.sql("cluster", "SELECT string_agg(policy, ' ') FROM nodes");
    assert!(stored_policies.contains("policy.default") && !stored_policies.contains("http://"), "{stored_policies}");
}

/// Starts two nodes with different servers behind the same name and tools. An approval can be undone for longer than it
/// takes to kill a node.
fn split_cluster(expire_after: &str) -> (Cluster, [Arc<Upstream>; 2]) {
    let (servers, addresses): (Vec<_>, Vec<_>) = (0..2).map(|_| server()).unzip();
    let more = addresses.iter().map(|address| {
        format!(
            "  split: {{url: '{address}', trust_annotations: true}}\n\
             policy: {{review: {{undo_for: 15s, expire_after: {expire_after}}}}}"
        )
    });
    let more: Vec<String> = more.collect();
    let cluster = Cluster::with_config(&more.iter().map(String::as_str).collect::<Vec<_>>());
    for n in 0..2 {
        eventually("it has the tools of its own server", || {
            cluster.node(n).request("GET", "/tools", &[], b"").text().contains("split__apply").then_some(())
        });
    }
    (cluster, servers.try_into().ok().unwrap())
}

/// Proposes and approves at the first node.
fn propose_and_approve(cluster: &Cluster, key: &str) -> String {
    let body = json!({"key": key, "value": "x", "mode": "ok"}).to_string();
    let answer = cluster.node(0).request("POST", "/tools/split__apply", &[JSON], body.as_bytes()).json();
    let id = answer["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    let (status, decided) = cluster.decide(0, &id, "approve");
    assert_eq!((status, &decided["state"]), (200, &json!("approved")), "{decided}");
    id
}

/// Returns the events of the change, oldest first.
fn events(cluster: &Cluster, id: &str) -> Vec<String> {
    let (_, trail) = cluster.api(1, "GET", &format!("/api/audit?change={id}"), None);
    let entries = trail["entries"].as_array().unwrap().iter().rev();
    entries.map(|entry| entry["event"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn change_runs_only_on_nodes_with_the_approved_server() {
    let (mut cluster, servers) = split_cluster("1h");
    let id = propose_and_approve(&cluster, "alive");
    eventually("it is applied", || (cluster.state(1, &id)["state"] == "applied").then_some(()));
    let nodes = cluster.nodes(1);
    assert_eq!(cluster.state(1, &id)["claimedBy"]["node"], nodes[0]["id"]);
    // Its node dies within the undo time, and is gone for longer than its lease.
    let id = propose_and_approve(&cluster, "dead");
    let config = std::fs::read_to_string(config_of(cluster.node(0))).unwrap();
    let home = cluster.nodes[0].take().unwrap().kill();
    eventually("the other node is alone", || (cluster.health(1)["checks"]["nodes"]["live"] == 1).then_some(()));
    assert_eq!(cluster.state(1, &id)["state"], "approved");
    start(&mut cluster, 0, home, &config);
    eventually("it is applied", || (cluster.state(1, &id)["state"] == "applied").then_some(()));
    assert_eq!(events(&cluster, &id), ["created", "approved", "executing", "applied"]);
    assert_eq!((servers[0].applied_calls().len(), servers[1].applied_calls().len()), (2, 0));
}

#[test]
fn change_without_a_matching_node_expires() {
    // Longer than the other node takes to notice that it is alone, and to look at the change twice.
    let (mut cluster, servers) = split_cluster("30s");
    let id = propose_and_approve(&cluster, "dead");
    drop(cluster.nodes[0].take().unwrap().kill());
    eventually("it is over", || (cluster.state(1, &id)["state"] != "approved").then_some(()));
    assert_eq!(cluster.state(1, &id)["state"], "expired");
    assert_eq!(events(&cluster, &id), ["created", "approved", "expired"]);
    assert!(servers.iter().all(|server| server.applied_calls().is_empty()));
}

#[test]
fn newer_schema_is_served_on_but_not_started_on() {
    let mut cluster = Cluster::start(2);
    let works = |cluster: &Cluster, key: &str| {
        let id = cluster.propose(0, key, "ok");
        let (status, answer) = cluster.decide(1, &id, "approve");
        assert_eq!(status, 200, "{answer}");
        eventually("it is applied", || (cluster.state(0, &id)["state"] == "applied").then_some(()));
    };
    works(&cluster, "before");
    // As a migration of the next version does it.
    cluster.server.sql(
        "cluster",
        "BEGIN; UPDATE countersign_schema SET version = version + 1;
         ALTER TABLE changes ADD COLUMN next TEXT NOT NULL DEFAULT '';
         ALTER TABLE audit ADD COLUMN next TEXT;
         ALTER TABLE events ADD COLUMN next TEXT;
         ALTER TABLE nodes ADD COLUMN next BIGINT NOT NULL DEFAULT 0;
         CREATE TABLE next (id BIGINT PRIMARY KEY); COMMIT",
    );
    works(&cluster, "after");
    // Also on new connections.
    let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                  WHERE datname = 'cluster' AND pid <> pg_backend_pid()";
    assert_ne!(cluster.server.sql("cluster", others), "0");
    for n in 0..2 {
        eventually("it has found the database again", || (cluster.health(n)["status"] == "ok").then_some(()));
    }
    works(&cluster, "again");

    let config = std::fs::read_to_string(config_of(cluster.node(1))).unwrap();
    let home = cluster.nodes[1].take().unwrap().stop().1;
    let env = vec![("COUNTERSIGN_STORE__URL", cluster.url.as_str())];
    let mut process = Gateway::spawn(home.path(), &Options { env, config: Some(&config) });
    assert!(!process.wait_for_exit().success());
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert!(log.contains("newer"), "{log}");
    let id = cluster.propose(0, "alone", "ok");
    assert_eq!(cluster.decide(0, &id, "approve").0, 200);
    eventually("the one that serves goes on", || (cluster.state(0, &id)["state"] == "applied").then_some(()));
}

#[test]
fn node_with_another_token_key_does_not_start() {
    let mut cluster = Cluster::start(1);
    let (url, home) = (cluster.url.clone(), tempfile::tempdir().unwrap());
    let key = home.path().join("key");
    std::fs::write(&key, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let env = vec![("COUNTERSIGN_STORE__URL", url.as_str()), ("COUNTERSIGN_SECRETS__KEY_FILE", key.to_str().unwrap())];
    let options = Options { env, config: None };
    let status = Gateway::spawn(home.path(), &options).wait_for_exit();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.contains("encrypts stored tokens with another key"), "{log}");
    // With no other gateway, the key may be a new one.
    drop(cluster.nodes[0].take().unwrap().stop());
    let alone = Gateway::on_home(home, &options);
    assert!(alone.log().contains("the key that encrypts stored tokens has changed"), "{}", alone.log());
}
