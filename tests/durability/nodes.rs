//! Tests of several gateways on one PostgreSQL, each asked for another one's sessions, tasks and changes.

use std::time::Duration;

use serde_json::{Value, json};
use support::{
    Gateway, Options, create_key_in, eventually,
    http::Conn,
    mcp::{ACCEPT, JSON, initialize_params, notification, request, with_meta},
    postgres::Server,
    tls::TlsGateway,
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
    fn with_config_and_env<'a>(more: &[&str], environment: impl Fn(usize) -> Vec<(&'a str, &'a str)>) -> Self {
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
fn session_is_served_by_all_nodes_until_its_own_ends() {
    let mut cluster = Cluster::start(3);
    let headers = |id: &str| {
        vec![JSON, ACCEPT, ("MCP-Protocol-Version", "2025-11-25"), ("Mcp-Session-Id", id.to_owned().leak() as &str)]
    };
    let id = cluster.node(0).session("2025-11-25").id;
    let post = |n: usize, id: &str, body: &Value| {
        cluster.node(n).request("POST", "/mcp", &headers(id), body.to_string().as_bytes())
    };
    for n in [1, 2, 0] {
        let listed = post(n, &id, &request(1, "tools/list", json!({}))).json();
        assert!(listed["result"]["tools"].to_string().contains("count__apply"), "{listed}");
    }
    // Its stream through another node, with its events.
    let mut stream = cluster.node(1).connect();
    stream.request("GET", "/mcp", &headers(&id), b"");
    let head = stream.head();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let body = json!({"key": "s", "value": "x", "mode": "ok"});
    let called = post(2, &id, &request(2, "tools/call", json!({"name": "count__apply", "arguments": body}))).json();
    let change = called["result"]["structuredContent"]["changeId"].as_str().unwrap().to_owned();
    let uri = format!("change://{change}");
    let subscribed = post(2, &id, &request(3, "resources/subscribe", json!({"uri": uri}))).json();
    assert!(subscribed["result"].is_object(), "{subscribed}");
    cluster.decide(2, &change, "reject");
    let updated = loop {
        let event = stream.event_within(Duration::from_secs(30)).expect("an update");
        // The first event of a stream has only an id.
        if event.data.as_deref().unwrap_or_default().is_empty() {
            continue;
        }
        let event = event.json();
        if event["method"] == "notifications/resources/updated" {
            break event;
        }
    };
    assert_eq!(updated["params"]["uri"], uri);
    // A guessed token is worth nothing, and neither is an unknown node.
    let forged = format!("{}.x", "nobody");
    assert_eq!(post(1, &forged, &request(4, "ping", json!({}))).status, 404);
    let mut with_word = headers(&id);
    with_word.push(("Countersign-Forwarded", "sha256:00"));
    // Headers of the client's own connection are not forwarded.
    with_word.extend([("Keep-Alive", "timeout=5"), ("Proxy-Connection", "keep-alive"), ("TE", "trailers")]);
    let answered =
        cluster.node(1).request("POST", "/mcp", &with_word, request(5, "ping", json!({})).to_string().as_bytes());
    assert_eq!(answered.status, 200);
    // Deleted through another node.
    let deleted = cluster.node(2).request("DELETE", "/mcp", &headers(&id), b"");
    assert_eq!(deleted.status, 204, "{}", deleted.text());
    assert_eq!(post(1, &id, &request(6, "ping", json!({}))).status, 404);

    // Gone with its node: after a 404 the client initializes again.
    let id = cluster.node(0).session("2025-11-25").id;
    assert_eq!(post(1, &id, &notification("notifications/cancelled")).status, 202);
    let answered = post(1, &id, &request(7, "ping", json!({})));
    assert_eq!(answered.status, 200, "{}", answered.text());
    drop(cluster.nodes[0].take().unwrap().kill());
    let status = |n: usize| {
        cluster
            .node(n)
            .request("POST", "/mcp", &headers(&id), request(8, "ping", json!({})).to_string().as_bytes())
            .status
    };
    eventually("it hears that it is gone", || match status(1) {
        404 => Some(()),
        503 => None,
        other => panic!("{other}"),
    });
    let new_session = cluster.node(1).session("2025-11-25");
    let read = new_session.call(9, "tools/call", json!({"name": "get_change", "arguments": {"changeId": change}}));
    assert!(
        read["result"]["structuredContent"].to_string().contains("rejected"),
        "its changes are as they were: {read}"
    );
}

#[test]
fn websocket_resumes_at_any_node_until_its_own_ends() {
    let mut cluster = Cluster::start(3);
    // Both changes are proposed where the session lives: one proposed elsewhere may be reported once more when its node
    // hears of it.
    let changes = [cluster.propose(0, "first", "ok"), cluster.propose(0, "second", "ok")];
    let mut ws = Ws::open(cluster.node(0));
    ws.initialize("2025-11-25");
    for (n, change) in changes.iter().enumerate() {
        let answer = ws.call(n as i64 + 1, "resources/subscribe", json!({"uri": format!("change://{change}")}));
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    let (session, received) = (ws.session().unwrap().to_owned(), ws.received);
    drop(ws);
    // Events during the absence arrive once at another node, and the session is as before.
    cluster.decide(2, &changes[0], "reject");
    let path = |received: u64| format!("/ws?session={session}&received={received}");
    let resume = |cluster: &Cluster, n: usize, received: u64| {
        eventually("the session is free to be resumed", || {
            let ws = Ws::try_open(cluster.node(n), &path(received), &[MCP]);
            (ws.head.status == 101).then_some(ws)
        })
    };
    let mut ws = resume(&cluster, 1, received);
    assert_eq!(ws.session(), Some(session.as_str()));
    assert_eq!(ws.message()["params"]["uri"], format!("change://{}", changes[0]));
    cluster.decide(2, &changes[1], "reject");
    assert_eq!(ws.message()["params"]["uri"], format!("change://{}", changes[1]));
    let long = "x".repeat(100_000);
    let echoed = ws.call(9, "tools/call", json!({"name": "count__read", "arguments": {"key": long}}));
    assert!(echoed["result"].to_string().contains(&long), "long messages pass, too");
    let received = received + ws.received;
    drop(ws);
    let mut ws = resume(&cluster, 2, received);
    assert_eq!(ws.call(10, "ping", json!({}))["result"], json!({}));
    let refused = |cluster: &Cluster, n: usize, path: &str| Ws::try_open(cluster.node(n), path, &[MCP]).head.status;
    assert_eq!(refused(&cluster, 1, &path(10_000)), 400, "never sent");
    let (node, _) = session.split_once('.').unwrap();
    assert_eq!(refused(&cluster, 1, &format!("/ws?session={node}.nobody&received=0")), 404);
    // Gone with its node: the connection through another node ends, and resuming is too late.
    drop(cluster.nodes[0].take().unwrap().kill());
    while ws.any_frame().is_some() {}
    eventually("it is too late", || (refused(&cluster, 1, &path(received)) == 410).then_some(()));
    let mut anew = Ws::open(cluster.node(1));
    anew.initialize("2025-11-25");
    let read = anew.call(1, "tools/call", json!({"name": "get_change", "arguments": {"changeId": changes[0]}}));
    assert!(read["result"]["structuredContent"].to_string().contains("rejected"), "{read}");
}

#[test]
fn websocket_request_reaches_the_node_of_a_task() {
    let mut cluster = Cluster::start(3);
    let bearer = format!("Bearer {}", create_key_in(&cluster.url, &cluster.node(0).data(), "agent", "robot"));
    let open = |cluster: &Cluster, n: usize| {
        let ws = Ws::try_open(cluster.node(n), "/ws", &[MCP, ("Authorization", &bearer)]);
        assert_eq!(ws.head.status, 101, "{:?}", ws.head);
        ws
    };
    let can = json!({
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    });
    let params = |mut params: Value| {
        params["_meta"] = can.clone();
        with_meta(params)
    };
    // A server's task is known only to the node that created it.
    let later = params(json!({"name": "count__read", "arguments": {"key": "later"}}));
    let created = open(&cluster, 0).call(1, "tools/call", later);
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    let task = created["result"]["taskId"].as_str().unwrap().to_owned();
    let task_params = || params(json!({"taskId": task}));
    for n in [1, 2, 0] {
        let answer = open(&cluster, n).call(7, "tasks/get", task_params());
        assert_eq!((&answer["id"], &answer["result"]["status"]), (&json!(7), &json!("working")), "{answer}");
    }
    // A subscriber elsewhere hears of it, among other messages, until it unsubscribes.
    let mut ws = open(&cluster, 1);
    ws.send_json(&request(8, "subscriptions/listen", params(json!({"notifications": {"taskIds": [task]}}))));
    let acknowledged = ws.message();
    assert_eq!(acknowledged["params"]["notifications"]["taskIds"], json!([task]), "{acknowledged}");
    assert_eq!(ws.message()["params"]["status"], "working");
    let mut busy = open(&cluster, 1);
    assert!(busy.call(9, "tools/list", params(json!({})))["result"]["tools"].is_array());
    cluster.upstream.release();
    let status_update = ws.message();
    assert_eq!(
        (&status_update["params"]["taskId"], &status_update["params"]["status"]),
        (&json!(task), &json!("completed")),
        "{status_update}"
    );
    ws.send_json(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}}));
    let answer = eventually("its id is free again", || {
        let answer = ws.call(8, "tasks/get", task_params());
        answer["error"].is_null().then_some(answer)
    });
    assert_eq!(answer["result"]["result"]["content"][0]["text"], "at last", "{answer}");
    // It belongs to nobody else, and is gone with its node.
    let refused = Ws::open(cluster.node(2)).call(1, "tasks/get", task_params());
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    drop(cluster.nodes[0].take().unwrap().kill());
    let not_found = eventually("it is gone", || {
        let answer = ws.call(10, "tasks/get", task_params());
        (answer["error"]["code"] == -32602).then_some(answer)
    });
    assert_eq!(not_found["error"], refused["error"]);
}

#[test]
fn forwarded_streams_share_connections() {
    let cluster = Cluster::start(2);
    let headers = |id: &str| {
        let version = ("MCP-Protocol-Version", "2025-11-25");
        vec![JSON, ACCEPT, version, ("Mcp-Session-Id", id.to_owned().leak() as &str)]
    };
    let ids: Vec<String> = (0..40).map(|_| cluster.node(0).session("2025-11-25").id).collect();
    let open = |id: &String| {
        let mut stream = cluster.node(1).connect();
        stream.request("GET", "/mcp", &headers(id), b"");
        assert_eq!(stream.head().status, 200);
        stream
    };
    let mut streams: Vec<_> = ids.iter().map(open).collect();
    let metrics = cluster.node(0).request("GET", "/metrics", &[], b"").text();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("countersign_connections_active") && line.contains("\"http\""))
        .unwrap();
    let connections: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(connections < 10.0, "40 streams come by a connection of each thread: {line}");
    // Ending one stream ends it at its node, and no other.
    drop(streams.pop());
    let reopened = open(&ids[39]);
    drop(reopened);
    // A large body, and its response.
    let long = "x".repeat(1_000_000);
    let call = request(1, "tools/call", json!({"name": "count__read", "arguments": {"key": long}})).to_string();
    let echoed = cluster.node(1).request("POST", "/mcp", &headers(&ids[0]), call.as_bytes());
    assert!(echoed.status == 200 && echoed.text().contains(&long), "{}", echoed.status);

    // The node freezes: once its lease has expired, requests are told that it is gone, and its streams end.
    let pid = cluster.node(0).process.0.id();
    support::signal(pid, rustix::process::Signal::STOP);
    let ping = request(2, "ping", json!({})).to_string();
    let answer = cluster.node(1).request("POST", "/mcp", &headers(&ids[1]), ping.as_bytes());
    assert_eq!(answer.status, 404, "{}", answer.text());
    for stream in &mut streams {
        while stream.event().is_some() {}
    }
    // It continues, and the streams stay gone at every node.
    support::signal(pid, rustix::process::Signal::CONT);
    eventually("it is ready", || (cluster.node(0).request("GET", "/health", &[], b"").status == 200).then_some(()));
    for n in 0..2 {
        let answer = cluster.node(n).request("POST", "/mcp", &headers(&ids[1]), ping.as_bytes());
        assert_eq!(answer.status, 404, "at {n}: {}", answer.text());
    }
}

#[test]
fn forwarded_requests_evict_no_connection() {
    let few = "transports: {http: {max_connections: 8, reserved_connections: 4}}";
    let cluster = Cluster::with_config(&[few, ""]);
    let id = cluster.node(0).session("2025-11-25").id;
    let version = ("MCP-Protocol-Version", "2025-11-25");
    let mut stream = cluster.node(1).connect();
    stream.request("GET", "/mcp", &[ACCEPT, version, ("Mcp-Session-Id", &id)], b"");
    assert_eq!(stream.head().status, 200);
    // All connections are replaced again and again, the longest idle first.
    let others: Vec<Conn> = (0..30)
        .map(|_| {
            let mut conn = cluster.node(0).connect();
            conn.request("GET", "/health", &[], b"");
            assert_eq!(conn.response().status, 200);
            conn
        })
        .collect();
    let change = cluster.propose(1, "kept", "ok");
    let subscribe = request(1, "resources/subscribe", json!({"uri": format!("change://{change}")})).to_string();
    let headers = [JSON, ACCEPT, version, ("Mcp-Session-Id", id.as_str())];
    eventually("it is known there", || {
        let subscribed = cluster.node(1).request("POST", "/mcp", &headers, subscribe.as_bytes()).json();
        subscribed["result"].is_object().then_some(())
    });
    cluster.decide(1, &change, "reject");
    eventually("it is told on the stream", || {
        let event = stream.event_within(Duration::from_secs(30)).expect("the stream is there");
        event.data.as_deref().unwrap_or_default().contains("notifications/resources/updated").then_some(())
    });
    drop(others);
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
    support::signal(pid, rustix::process::Signal::STOP);
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
    let node = cluster.nodes(1).into_iter().find(|node| node["here"] == false).unwrap();
    assert_eq!(
        (&node["epoch"], &node["live"], &node["leads"]),
        (&json!(2), &json!(true), &json!(false)),
        "another life"
    );
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
