//! Tests of several gateways on one PostgreSQL, each asked for another one's sessions, tasks and changes.

mod failures;
mod forwarding;

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use support::{
    Gateway, Options, create_key_in, eventually,
    http::Conn,
    mcp::{ACCEPT, JSON, borrow_headers, initialize_params, modern_headers, notification, request, with_meta},
    postgres::Server,
    tls::{TlsGateway, create_certificate},
    ws::Ws,
};

use crate::clock;

/// Configures one server that all nodes have under two names, one of them with a circuit breaker; calls that need no
/// review are allowed.
fn config(upstream: &str, more: &str) -> &'static str {
    let config = format!(
        "mcpServers:\n  \
         count: {{url: '{upstream}', breaker: {{threshold: 0}}, trust_annotations: true}}\n  \
         frail: {{url: '{upstream}', breaker: {{threshold: 2, cooldown: 1h}}, trust_annotations: true}}\n{more}\n"
    );
    config.leak()
}

/// The subprotocol of agents.
const MCP: (&str, &str) = ("Sec-WebSocket-Protocol", "mcp");

/// Returns the path of a gateway's configuration file.
pub(crate) fn config_of(gateway: &Gateway) -> std::path::PathBuf {
    gateway.data().with_file_name("countersign.yaml")
}

pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) url: String,
    pub(crate) nodes: Vec<Option<Gateway>>,
    pub(crate) key: String,
    pub(crate) upstream: std::sync::Arc<crate::crash_proof::upstream::Upstream>,
    _ledger: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn start(nodes: usize) -> Self {
        Self::with_config(&vec![""; nodes])
    }

    /// Starts nodes with extra configuration for each.
    pub(crate) fn with_config(more: &[&str]) -> Self {
        Self::with_config_and_env(more, |_| Vec::new())
    }

    /// Starts nodes with extra configuration and environment for each.
    pub(crate) fn with_config_and_env<'a>(
        more: &[&str],
        environment: impl Fn(usize) -> Vec<(&'a str, &'a str)>,
    ) -> Self {
        Self::start_nodes(more, environment, |_, _| None)
    }

    /// Starts nodes with extra configuration, and optionally other addresses of the database.
    pub(crate) fn with_database_urls(more: &[&str], url_of: impl Fn(&Server, usize) -> Option<String>) -> Self {
        Self::start_nodes(more, |_| Vec::new(), url_of)
    }

    fn start_nodes<'a>(
        more: &[&str],
        environment: impl Fn(usize) -> Vec<(&'a str, &'a str)>,
        url_of: impl Fn(&Server, usize) -> Option<String>,
    ) -> Self {
        let server = Server::start(&["-c", "fsync=off", "-c", "max_connections=200"]);
        server.sql("postgres", "CREATE DATABASE cluster");
        let url = server.database("cluster");
        let ledger = tempfile::tempdir().unwrap();
        let (upstream, address) = crate::crash_proof::upstream::Upstream::start(&ledger.path().join("ledger"));
        let start = |(n, more): (usize, &&str)| {
            let mut env: Vec<(&str, &str)> = environment(n);
            let own = url_of(&server, n);
            env.push(("COUNTERSIGN_STORE__URL", own.as_deref().unwrap_or(&url)));
            Some(Gateway::with_options(&Options { env, config: Some(config(&address, more)) }))
        };
        let nodes: Vec<_> = more.iter().enumerate().map(start).collect();
        let key = create_key_in(&url, &nodes[0].as_ref().unwrap().data(), "reviewer", "rita");
        let cluster = Self { server, url, nodes, key, upstream, _ledger: ledger };
        for n in 0..more.len() {
            eventually("all know of each other, and have the tools", || {
                let live = cluster.health(n)["checks"]["nodes"]["live"] == more.len();
                let tools = cluster.node(n).request("GET", "/tools", &[], b"").text().contains("count__apply");
                (live && tools).then_some(())
            });
        }
        cluster
    }

    pub(crate) fn node(&self, n: usize) -> &Gateway {
        self.nodes[n].as_ref().unwrap()
    }

    pub(crate) fn health(&self, n: usize) -> Value {
        self.node(n).request("GET", "/health", &[], b"").json()
    }

    /// Calls the REST API, and repeats calls that the store could not take at the moment.
    pub(crate) fn api(&self, n: usize, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        eventually("the store answers", || {
            let (status, answer) = self.node(n).api_as(&self.key, method, path, body);
            (answer["code"] != "STORE_UNAVAILABLE").then_some((status, answer))
        })
    }

    /// Proposes at one node and returns the id; repeats the proposal if necessary.
    pub(crate) fn propose(&self, n: usize, key: &str, mode: &str) -> String {
        let body = json!({"key": key, "value": "x", "mode": mode}).to_string();
        let answer = eventually("the store takes it", || {
            let result = self.node(n).request("POST", "/tools/count__apply", &[JSON], body.as_bytes()).json();
            (result["code"] != "STORE_UNAVAILABLE").then_some(result)
        });
        answer["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub(crate) fn decide(&self, n: usize, id: &str, decision: &str) -> (u16, Value) {
        let (_, change) = self.api(n, "GET", &format!("/api/changes/{id}"), None);
        let body =
            json!({"decision": decision, "comment": "x", "version": change["version"], "digest": change["digest"]});
        self.api(n, "POST", &format!("/api/changes/{id}/decision"), Some(&body))
    }

    pub(crate) fn state(&self, n: usize, id: &str) -> Value {
        self.api(n, "GET", &format!("/api/changes/{id}"), None).1
    }

    pub(crate) fn nodes(&self, n: usize) -> Vec<Value> {
        self.api(n, "GET", "/api/nodes", None).1["nodes"].as_array().unwrap().clone()
    }
}

#[test]
fn change_of_one_node_is_decided_at_another() {
    let cluster = Cluster::start(3);
    // A dashboard at each node, and a waiting client at the third.
    let bearer = format!("Bearer {}", cluster.key);
    let mut dashboards: Vec<Conn> = (0..3)
        .map(|n| {
            let mut conn = cluster.node(n).connect();
            conn.request("GET", "/api/events", &[("Authorization", bearer.as_str())], b"");
            assert_eq!(conn.head().status, 200);
            assert_eq!(conn.event().unwrap().json()["type"], "hello");
            conn
        })
        .collect();
    let id = cluster.propose(0, "a", "ok");
    let mut waits = cluster.node(2).modern_conn(
        1,
        "tools/call",
        json!({"name": "wait_for_change", "arguments": {"changeId": id, "timeoutSeconds": 30}}),
    );
    let (status, answer) = cluster.decide(1, &id, "approve");
    assert_eq!(status, 200, "{answer}");
    let waited = waits.response().json();
    assert!(waited["result"]["structuredContent"].is_object(), "{waited}");
    eventually("it is applied", || (cluster.state(2, &id)["state"] == "applied").then_some(()));
    assert_eq!(cluster.upstream.applied_calls()["a"].len(), 1);
    for conn in &mut dashboards {
        let types = std::iter::from_fn(|| Some(conn.event()?.json()["type"].as_str()?.to_owned()));
        let event_types: Vec<_> = types.filter(|kind| kind.starts_with("change.")).take(4).collect();
        assert_eq!(event_types, ["change.created", "change.approved", "change.executing", "change.applied"]);
    }
    let nodes = cluster.nodes(1);
    assert_eq!(nodes.len(), 3);
    assert!(nodes.iter().all(|node| node["live"] == true && node["sameConfiguration"] == true), "{nodes:?}");
    assert_eq!(nodes.iter().filter(|node| node["leads"] == true).count(), 1);
    assert_eq!(cluster.state(0, &id)["claimedBy"]["node"], nodes[1]["id"], "the node that approved the change ran it");
}

#[test]
fn nodes_trust_the_certificates_in_the_store() {
    let server = Server::start(&["-c", "fsync=off"]);
    server.sql("postgres", "CREATE DATABASE cluster");
    let store = format!("store: {{url: '{}'}}\n", server.database("cluster"));
    // Each node has a self-signed certificate.
    let nodes = [TlsGateway::start_with(&store), TlsGateway::start_with(&store)];
    for node in &nodes {
        eventually("both live", || {
            let health: Value = serde_json::from_slice(&node.run(&["/health"]).stdout).unwrap();
            (health["checks"]["nodes"]["live"] == 2).then_some(())
        });
    }
    let post = |n: usize, more: &[&str], body: &Value| {
        let body = body.to_string();
        let headers = ["-H", "Content-Type: application/json", "-H", "Accept: application/json, text/event-stream"];
        let args = [&headers[..], more, &["-i", "-d", &body, "/mcp"]].concat();
        String::from_utf8(nodes[n].run(&args).stdout).unwrap()
    };
    let opened = post(0, &[], &request(1, "initialize", initialize_params("2025-11-25")));
    let line = opened.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id:")).unwrap();
    let session = format!("Mcp-Session-Id: {}", line.split_once(':').unwrap().1.trim());
    post(1, &["-H", &session], &notification("notifications/initialized"));
    for version in ["--http1.1", "--http2"] {
        let listed = post(1, &["-H", &session, version], &request(2, "tools/list", json!({})));
        assert!(listed.contains("create_issue"), "{listed}");
    }
    // A renewed certificate is registered as well.
    let registered = || server.sql("cluster", "SELECT string_agg(certificate, ' ' ORDER BY id) FROM nodes");
    let before = registered();
    create_certificate(nodes[0].home.path());
    eventually("the new certificate is registered", || (registered() != before).then_some(()));
    nodes.into_iter().for_each(TlsGateway::stop);
}

#[test]
fn open_breaker_makes_other_nodes_probe_once() {
    let cluster = Cluster::start(2);
    let read = |n: usize, key: &str| {
        let body = json!({"key": key}).to_string();
        cluster.node(n).request("POST", "/tools/frail__read", &[JSON], body.as_bytes()).status
    };
    let breaker = |n: usize| {
        let (_, servers_page) = cluster.api(n, "GET", "/api/servers", None);
        let servers = servers_page["servers"].as_array().unwrap().clone();
        let frail = servers.iter().find(|server| server["name"] == "frail").unwrap();
        frail["breaker"].as_str().unwrap_or_else(|| panic!("{frail}")).to_owned()
    };
    assert_eq!((read(0, "a"), read(1, "a")), (200, 200));
    while breaker(0) != "open" {
        assert_ne!(read(0, "lost"), 200);
    }
    eventually("the other node probes the server", || (breaker(1) == "half-open").then_some(()));
    let open = |n: usize| cluster.nodes(n).iter().map(|node| node["breakersOpen"].clone()).collect::<Vec<_>>();
    assert_eq!(open(1), [json!(["frail"]), json!([])]);
    // It reaches the server and closes its own breaker; the first node relies on its own experience.
    assert_eq!(read(1, "a"), 200);
    assert_eq!((breaker(0).as_str(), breaker(1).as_str()), ("open", "closed"));
    assert_ne!(read(0, "a"), 200);
    // Reported once: what is known is not reported again.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((read(1, "a"), breaker(1).as_str()), (200, "closed"));
}

#[test]
fn consent_reaches_every_node_with_pending_policy() {
    let cluster = Cluster::start(2);
    let file = |n: usize| config_of(cluster.node(n));
    let original = std::fs::read_to_string(file(0)).unwrap();
    let waiting = |n: usize| cluster.api(n, "GET", "/api/reload", None).1["waiting"]["digest"].clone();
    let decide = |n: usize, digest: &Value, accept: bool| {
        let body = json!({"digest": digest, "verdict": if accept { "accept" } else { "refuse" }});
        let (status, answer) = cluster.api(n, "POST", "/api/reload/consent", Some(&body));
        assert!(status < 300, "{status} {answer}");
    };
    let arguments = json!({"key": "c", "value": "x", "mode": "ok"}).to_string();
    let call = |n: usize| cluster.node(n).request("POST", "/tools/count__apply", &[JSON], arguments.as_bytes()).status;
    for (round, accept) in [false, true].into_iter().enumerate() {
        for n in 0..2 {
            std::fs::write(file(n), format!("{original}policy: {{default: allow}}\n# {round}\n")).unwrap();
        }
        let digest = eventually("the policy waits at both", || {
            let (first, other) = (waiting(0), waiting(1));
            (first.is_string() && first == other).then_some(first)
        });
        assert_eq!((call(0), call(1)), (202, 202));
        decide(0, &digest, accept);
        eventually("the other node knows the decision", || waiting(1).is_null().then_some(()));
        let expected = if accept { 200 } else { 202 };
        eventually("the decision applies at both", || ((call(0), call(1)) == (expected, expected)).then_some(()));
        if !accept {
            for n in 0..2 {
                std::fs::write(file(n), &original).unwrap();
            }
            // Read at both: the same file is not reported again when it is back.
            eventually("the original file is read at both", || {
                let read = |n: usize| {
                    support::signal(cluster.node(n).process.0.id(), rustix::process::Signal::HUP);
                    cluster.api(n, "GET", "/api/reload", None).1["last"]["result"] == "unchanged"
                };
                (read(0) && read(1)).then_some(())
            });
        }
    }
    // An earlier decision does not count for later changes.
    std::fs::write(file(1), &original).unwrap();
    eventually("the stricter policy applies again", || (call(1) == 202).then_some(()));
    std::fs::write(file(1), format!("{original}policy: {{default: allow}}\n")).unwrap();
    eventually("it waits", || waiting(1).is_string().then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    assert!(waiting(1).is_string());
    assert_eq!((call(0), call(1)), (200, 202));
}

#[test]
fn all_nodes_share_one_tracker() {
    let mut cluster = Cluster::start(3);
    // A subscriber at the third node hears of writes at the others.
    let session = cluster.node(2).session("2025-11-25");
    let id = session.id.clone();
    let headers = [JSON, ACCEPT, ("MCP-Protocol-Version", "2025-11-25"), ("Mcp-Session-Id", id.leak() as &'static str)];
    let uri = "tracker://issues/CORE-1";
    session.call(1, "resources/subscribe", json!({"uri": uri}));
    let mut stream = cluster.node(2).connect();
    stream.request("GET", "/mcp", &headers, b"");
    assert_eq!(stream.head().status, 200);

    let call = |cluster: &Cluster, n: usize, tool: &str, arguments: Value| {
        let path = format!("/tools/{tool}");
        let answer = cluster.node(n).request("POST", &path, &[JSON], arguments.to_string().as_bytes()).json();
        answer["structuredContent"].clone()
    };
    let write = |cluster: &Cluster, at: (usize, usize), tool: &str, arguments: Value| {
        let pending = call(cluster, at.0, tool, arguments);
        let change = pending["changeId"].as_str().unwrap_or_else(|| panic!("{pending}")).to_owned();
        let (status, decided) = cluster.decide(at.1, &change, "approve");
        assert_eq!(status, 200, "{decided}");
        eventually("it is applied", || (cluster.state(at.0, &change)["state"] == "applied").then_some(()));
    };
    let version = |cluster: &Cluster, n: usize| {
        call(cluster, n, "get_issue", json!({"issueId": "CORE-1"}))["issue"]["version"].clone()
    };
    let before = version(&cluster, 0).as_u64().unwrap();
    write(&cluster, (0, 1), "update_issue", json!({"issueId": "CORE-1", "title": "Said at the first"}));
    for n in 0..3 {
        assert_eq!(version(&cluster, n), before + 1);
    }
    let updated = loop {
        let event = stream.event_within(Duration::from_secs(30)).expect("an update");
        if event.data.as_deref().unwrap_or_default().is_empty() {
            continue;
        }
        let event = event.json();
        if event["method"] == "notifications/resources/updated" {
            break event;
        }
    };
    assert_eq!(updated["params"]["uri"], uri);
    // Of two changes to the same issue, the first to run makes the other one stale, wherever they are approved.
    let stale = call(&cluster, 0, "update_issue", json!({"issueId": "CORE-1", "title": "Shown too early"}));
    let stale = stale["changeId"].as_str().unwrap().to_owned();
    write(&cluster, (1, 2), "update_issue", json!({"issueId": "CORE-1", "title": "Said at the second"}));
    drop(cluster.nodes[0].take().unwrap().kill());
    cluster.decide(2, &stale, "approve");
    eventually("it is shown anew", || {
        let change = cluster.state(1, &stale);
        (change["state"] == "pending" && change["version"].as_u64() > Some(1)).then_some(())
    });
    let found = call(&cluster, 2, "search_issues", json!({"query": "said second"}));
    assert_eq!(found["results"][0]["key"], "CORE-1", "{found}");
}

#[test]
fn rules_and_revoked_keys_reach_every_node() {
    let cluster = Cluster::start(2);
    let arguments = json!({"key": "r", "value": "x", "mode": "ok"});
    let call = |n: usize| {
        cluster.node(n).request("POST", "/tools/count__apply", &[JSON], arguments.to_string().as_bytes()).status
    };
    // A dashboard, or a webhook of the leading node, receives events in this way.
    let bearer = format!("Bearer {}", cluster.key);
    let mut feeds: Vec<Conn> = (0..2)
        .map(|n| {
            let mut conn = cluster.node(n).connect();
            conn.request("GET", "/api/events", &[("Authorization", bearer.as_str())], b"");
            assert_eq!(conn.head().status, 200);
            conn
        })
        .collect();
    let id = cluster.propose(0, "r", "ok");
    let rule = json!({"verdict": "allow", "arguments": "exact", "principal": "same", "for": 3600});
    let (status, rule) = cluster.api(0, "POST", &format!("/api/changes/{id}/rule"), Some(&rule));
    assert!(status < 300, "{rule}");
    eventually("the other node allows the call", || (call(1) == 200).then_some(()));
    let revoke = format!("/api/rules/{}/revoke", rule["id"].as_str().unwrap());
    assert_eq!(cluster.api(1, "POST", &revoke, Some(&json!({"comment": "no more"}))).0, 200);
    eventually("the first node reviews the call again", || (call(0) == 202).then_some(()));
    for feed in &mut feeds {
        let events = std::iter::from_fn(|| Some(feed.event()?.json()));
        let rule_events: Vec<_> =
            events.filter(|event| event["type"].as_str().unwrap().starts_with("rule.")).take(2).collect();
        let of = |event: &Value| [&event["type"], &event["actor"], &event["rule"]["id"]].map(Value::clone);
        assert_eq!(of(&rule_events[0]), [json!("rule.created"), json!("rita"), rule["id"].clone()]);
        assert_eq!(of(&rule_events[1]), [json!("rule.revoked"), json!("rita"), rule["id"].clone()]);
        assert_eq!(rule_events[1]["comment"], "no more");
    }
    // Counting uses of a rule at one node does not revive a rule that another one has revoked.
    let (_, rules) = cluster.api(0, "GET", "/api/rules", None);
    assert!(rules["rules"][0]["revokedAt"].is_string(), "{rules}");

    let key = cluster.server.sql("cluster", "SELECT id FROM api_keys WHERE name = 'rita'");
    let revoke = |url: &str, data: &std::path::Path| {
        let mut revoke = support::command(&[("COUNTERSIGN_STORE__URL", url)]);
        let output = revoke.args(["keys", "revoke", key.as_str(), "--data"]).arg(data).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    revoke(&cluster.url, &cluster.node(0).data());
    for n in 0..2 {
        eventually("the revoked key is refused", || {
            (cluster.api(n, "GET", "/api/changes", None).0 == 401).then_some(())
        });
    }
}

#[test]
fn reminders_and_escalations_reach_every_dashboard() {
    let review =
        "policy: {review: {remind: 2s, escalate: {after: 2s, to: [admin]}, reviewers: [rita]}, groups: {rita: [rita]}}";
    let cluster = Cluster::with_config(&[review; 2]);
    let bearer = format!("Bearer {}", cluster.key);
    let feeds: Vec<Conn> = (0..2)
        .map(|n| {
            let mut conn = cluster.node(n).connect();
            conn.request("GET", "/api/events", &[("Authorization", bearer.as_str())], b"");
            assert_eq!(conn.head().status, 200);
            conn
        })
        .collect();
    let id = cluster.propose(1, "e", "ok");
    for mut feed in feeds {
        let mut missing = BTreeSet::from(["change.escalated", "change.reminder"]);
        while !missing.is_empty() {
            let event = feed.event().unwrap().json();
            if missing.remove(event["type"].as_str().unwrap()) {
                assert_eq!(event["change"]["id"], id.as_str(), "{event}");
            }
        }
    }
}
