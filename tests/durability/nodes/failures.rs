//! Tests of nodes that die, end, freeze or have wrong clocks.

use super::*;

#[test]
fn differing_config_is_shown_and_dead_node_leaves_unknown() {
    let mut cluster = Cluster::with_config(&["", "", "changes: {max_pending: 7}"]);
    eventually("the nodes report different configurations", || {
        let differ = |n: usize| cluster.health(n)["checks"]["nodes"]["otherConfiguration"].as_u64().unwrap();
        (differ(0) == 1 && differ(1) == 1 && differ(2) == 2).then_some(())
    });
    let nodes = cluster.nodes(0);
    assert_eq!(nodes.iter().filter(|node| node["sameConfiguration"] == true).count(), 2, "{nodes:?}");
    let url = format!("http://{}", cluster.node(1).address());
    let mut list = support::command(&[("COUNTERSIGN_KEY", cluster.key.as_str())]);
    let listed = list.args(["nodes", "--url", &url]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("leads") && listed.contains("(this one)"), "{listed}");
    assert!(listed.contains("  epoch 1  since "), "{listed}");
    assert!(listed.contains("its configuration differs from this node's"), "{listed}");

    // Its answer never comes: it is running when its node dies.
    let id = cluster.propose(0, "d", "lost");
    let (node, other) = (0, 1);
    let (status, answer) = cluster.decide(node, &id, "approve");
    assert_eq!(status, 200, "{answer}");
    eventually("it was called", || cluster.upstream.has_applied("d").then_some(()));
    let home = cluster.nodes[node].take().unwrap().kill();
    eventually("another node notices", || (cluster.state(other, &id)["state"] == "outcome_unknown").then_some(()));
    let settle =
        json!({"outcome": "applied", "comment": "the ledger", "version": cluster.state(other, &id)["version"]});
    let path = format!("/api/changes/{id}/settle");
    let (status, answer) = cluster.api(other, "POST", &path, Some(&settle));
    if status != 200 {
        // It was claimed, and nobody knows whether the process with the claim is gone.
        assert_eq!((status, &answer["code"]), (409, &json!("CHANGE_NOT_PENDING")), "{answer}");
        assert!(answer["settleAfter"].is_string(), "{answer}");
        let env = vec![("COUNTERSIGN_STORE__URL", cluster.url.as_str())];
        // After the restart it has no call in flight.
        let config = std::fs::read_to_string(home.path().join("countersign.yaml")).unwrap().leak();
        cluster.nodes[node] = Some(Gateway::on_home(home, &Options { env, config: Some(config) }));
        let (status, answer) = cluster.api(other, "POST", &path, Some(&settle));
        assert_eq!((status, &answer["state"]), (200, &json!("applied")), "{answer}");
    }
    assert_eq!(cluster.upstream.applied_calls()["d"].len(), 1);
    assert_eq!(cluster.server.sql("cluster", "SELECT count(*) FROM claims"), "0");
}

#[test]
fn ending_node_hands_over_leadership_during_a_call() {
    let brief = "policy: {rules: [{name: brief, tools: [frail__apply], then: review, expire_after: 1s}]}";
    let mut cluster = Cluster::with_config(&[brief; 2]);
    let leads = |cluster: &Cluster| cluster.nodes(1).iter().map(|node| node["leads"] == true).collect::<Vec<_>>();
    assert_eq!(leads(&cluster), [true, false]);
    let id = cluster.propose(0, "h", "held");
    assert_eq!(cluster.decide(0, &id, "approve").0, 200);
    eventually("it was called", || cluster.upstream.has_applied("h").then_some(()));
    let bearer = format!("Bearer {}", cluster.key);
    let feed = |conn: &mut Conn| {
        conn.request("GET", "/api/events", &[("Authorization", bearer.as_str())], b"");
        conn.head()
    };
    let mut follows = cluster.node(0).connect();
    assert_eq!(feed(&mut follows).status, 200);
    let mut ending = cluster.nodes[0].take().unwrap();
    ending.process.terminate();
    eventually("the other node leads", || (leads(&cluster) == [false, true]).then_some(()));
    // It accepts no more dashboards, and says why it is not ready.
    let health = eventually("it says that it drains", || {
        let health = ending.request("GET", "/health", &[], b"").json();
        (health["status"] == "draining").then_some(health)
    });
    assert_eq!((&health["ready"], &health["checks"]["store"]), (&json!(false), &json!("ok")), "{health}");
    const FEEDS: usize = 20;
    let heads: Vec<_> = (0..FEEDS).map(|_| feed(&mut ending.connect())).collect();
    println!(
        "figure: feeds opened at a draining node: {} of {FEEDS}",
        heads.iter().filter(|head| head.status == 200).count()
    );
    assert!(heads.iter().all(|head| (head.status, head.header("retry-after")) == (503, Some("1"))), "{heads:?}");
    // The other node does the leader's work.
    let body = json!({"key": "e", "value": "x", "mode": "ok"}).to_string();
    let answer = cluster.node(1).request("POST", "/tools/frail__apply", &[JSON], body.as_bytes()).json();
    let forgotten = answer["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    eventually("it expires", || (cluster.state(1, &forgotten)["state"] == "expired").then_some(()));
    let nodes = cluster.nodes(1);
    assert_eq!((&nodes[0]["live"], &nodes[0]["running"]), (&json!(true), &json!(1)), "it is not gone: {nodes:?}");
    assert_eq!(cluster.state(1, &id)["state"], "executing");

    cluster.upstream.release();
    eventually("it is recorded", || (cluster.state(1, &id)["state"] == "applied").then_some(()));
    assert_eq!(cluster.state(1, &id)["claimedBy"]["node"], nodes[0]["id"], "the node that ran the change recorded it");
    // Its subscribers get all events until the end.
    let received: Vec<Value> = std::iter::from_fn(|| follows.event())
        .filter_map(|event| serde_json::from_str(event.data.as_deref()?).ok())
        .collect();
    assert!(
        received.iter().any(|event| event["type"] == "change.applied" && event["change"]["id"] == id),
        "{received:?}"
    );
    assert!(ending.process.wait_for_exit().success());
    assert_eq!(cluster.upstream.applied_calls()["h"].len(), 1);
    assert_eq!(cluster.server.sql("cluster", "SELECT count(*) FROM claims"), "0");
}

#[test]
fn frozen_node_reports_a_late_result() {
    let cluster = Cluster::start(2);
    let id = cluster.propose(0, "z", "held");
    let pid = cluster.node(0).process.0.id();
    assert_eq!(cluster.decide(0, &id, "approve").0, 200);
    eventually("it was called", || cluster.upstream.has_applied("z").then_some(()));
    support::freeze(pid);
    // Its answer arrives while nobody can read it.
    cluster.upstream.release();
    let change = eventually("the other node notices", || {
        Some(cluster.state(1, &id)).filter(|change| change["state"] != "executing" && change["state"] != "approved")
    });
    assert_eq!(change["state"], "outcome_unknown", "{change}");
    let settle = json!({"outcome": "applied", "comment": "the ledger", "version": change["version"]});
    let path = format!("/api/changes/{id}/settle");
    let (status, answer) = cluster.api(1, "POST", &path, Some(&settle));
    assert_eq!(status, 409, "the call may still be about to go out: {answer}");
    assert!(answer["settleAfter"].is_string(), "{answer}");
    support::signal(pid, rustix::process::Signal::CONT);
    let late = eventually("it says so", || {
        let (_, trail) = cluster.api(1, "GET", &format!("/api/audit?change={id}"), None);
        trail["entries"].as_array().unwrap().iter().find(|entry| entry["event"] == "late_result").cloned()
    });
    assert_eq!(late["details"]["outcome"], "applied", "{late}");
    assert_eq!(cluster.state(0, &id)["state"], "outcome_unknown", "a person settles it");
    let (status, answer) = cluster.api(0, "POST", &path, Some(&settle));
    assert_eq!((status, &answer["state"]), (200, &json!("applied")), "{answer}");
    // The node may report the result before it has registered again.
    eventually("it lives again, with a new epoch", || {
        let node = cluster.nodes(1).into_iter().find(|node| node["here"] == false)?;
        (node["epoch"] == 2 && node["live"] == true && node["leads"] == false).then_some(())
    });
    assert_eq!(cluster.upstream.applied_calls()["z"].len(), 1);
}

#[test]
fn change_times_survive_wrong_node_clocks() {
    const HOUR: i64 = 3600;
    const RULES: &str = r#"policy:
  rules:
    - {name: soon, tools: [count__apply], when: 'arguments.key.startsWith("soon")', then: review, expire_after: 1s}
    - {name: brief, tools: [count__apply], when: 'arguments.key.startsWith("brief")', then: review, expire_after: 30m}"#;
    let library = clock::faketime_library();
    // The first node expires changes.
    for seconds in [[-HOUR, HOUR], [HOUR, -HOUR]] {
        let home = tempfile::tempdir().unwrap();
        let files = seconds.map(|seconds| {
            let folder = home.path().join(seconds.to_string());
            std::fs::create_dir(&folder).unwrap();
            clock::set_clock(&folder, seconds);
            folder.join("clock")
        });
        let cluster = Cluster::with_config_and_env(&[RULES; 2], |n| clock::faketime_env(&library, &files[n]).to_vec());
        for (n, seconds) in seconds.into_iter().enumerate() {
            let ahead = clock::clock_offset(&cluster.node(n).request("GET", "/health", &[], b"")).unwrap();
            assert!(ahead.abs_diff(seconds) < 600, "its clock is another one: {ahead}");
        }
        for n in 0..2 {
            let (soon, brief) = (format!("soon {n}"), format!("brief {n}"));
            let (soon, brief) = (cluster.propose(n, &soon, "ok"), cluster.propose(n, &brief, "ok"));
            for at in 0..2 {
                eventually("it expires everywhere", || (cluster.state(at, &soon)["state"] == "expired").then_some(()));
                let change = cluster.state(at, &brief);
                assert_eq!(change["state"], "pending", "{seconds:?} {change}");
                let created: jiff::Timestamp = change["createdAt"].as_str().unwrap().parse().unwrap();
                let off = created.duration_since(jiff::Timestamp::now()).as_secs().abs();
                assert!(off < HOUR / 2, "by the database's clock: {change}");
            }
        }
    }
}
