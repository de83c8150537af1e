//! Tests of a node's answers when it has just started, has lost its database, or drains. Prints the figures of
//! `docs/cluster.md`.

use std::time::Instant;

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually,
    mcp::{ACCEPT, JSON, initialize_params, request, with_meta},
    ws::Ws,
};

use crate::{cluster_proof::proxy::Proxy, nodes::Cluster};

const MCP: (&str, &str) = ("Sec-WebSocket-Protocol", "mcp");
const LEGACY: (&str, &str) = ("MCP-Protocol-Version", "2025-11-25");

/// Prints how long a step took. A busy machine may take any time, so the time is not checked.
fn print_figure(what: &str, since: Instant) {
    println!("figure: {what}: {:.2} s", since.elapsed().as_secs_f64());
}

/// Returns the status of a ping of that session at that node.
fn ping(gateway: &Gateway, session: &str) -> u16 {
    let headers = [JSON, ACCEPT, LEGACY, ("Mcp-Session-Id", session)];
    gateway.request("POST", "/mcp", &headers, request(1, "ping", json!({})).to_string().as_bytes()).status
}

/// Waits until requests for one of two nodes reach it through the other.
fn wait_until_connected(cluster: &Cluster) {
    for (n, other) in [(0, 1), (1, 0)] {
        let session = cluster.node(n).session("2025-11-25").id;
        eventually("it is found", || (ping(cluster.node(other), &session) == 200).then_some(()));
    }
}

#[test]
fn request_that_names_two_nodes_is_forwarded_once() {
    let cluster = Cluster::start(2);
    wait_until_connected(&cluster);
    let nodes = cluster.nodes(0);
    let names: Vec<String> = nodes.iter().map(|node| format!("{}.nothing", node["id"].as_str().unwrap())).collect();
    let can = json!({
        "notifications": {"taskIds": names},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}},
    });
    for n in 0..2 {
        let mut listens = cluster.node(n).modern_conn(1, "subscriptions/listen", with_meta(can.clone()));
        assert_eq!(listens.head().status, 200, "it is answered, and not sent back and forth");
        let acknowledgment = listens.event().expect("an acknowledgment").json();
        assert_eq!(acknowledgment["method"], "notifications/subscriptions/acknowledged", "{acknowledgment}");
        let mut ws = Ws::open(cluster.node(n));
        ws.send_json(&request(2, "subscriptions/listen", with_meta(can.clone())));
        assert_eq!(ws.message()["method"], "notifications/subscriptions/acknowledged");
    }
}

#[test]
fn session_is_found_as_soon_as_its_node_serves() {
    let cluster = Cluster::start(1);
    for _ in 0..3 {
        let joins =
            Gateway::with_options(&Options { env: vec![("COUNTERSIGN_STORE__URL", &cluster.url)], config: None });
        let ready = Instant::now();
        let session = joins.session("2025-11-25").id;
        assert_eq!(ping(cluster.node(0), &session), 200);
        print_figure("from ready to a session that another node serves", ready);
        let mut ws = Ws::open(&joins);
        ws.initialize("2025-11-25");
        let path = format!("/ws?session={}&received={}", ws.session().unwrap(), ws.received);
        drop(ws);
        eventually("the session is free to be resumed", || {
            (Ws::try_open(cluster.node(0), &path, &[MCP]).head.status == 101).then_some(())
        });
    }
}

#[test]
fn session_of_a_killed_node_is_gone_at_once() {
    let mut cluster = Cluster::start(2);
    wait_until_connected(&cluster);
    let session = cluster.node(0).session("2025-11-25").id;
    assert_eq!(ping(cluster.node(1), &session), 200);
    drop(cluster.nodes[0].take().unwrap().kill());
    let killed = Instant::now();
    // A request at that very moment may still be told to try again.
    let mut unavailable = 0;
    eventually("it hears that it is gone", || match ping(cluster.node(1), &session) {
        404 => Some(()),
        503 => {
            unavailable += 1;
            None
        }
        other => panic!("{other}"),
    });
    print_figure("from the end of a killed node to 404 for its session", killed);
    println!("figure: 503 for a session of a killed node: {unavailable} times");
    assert!(unavailable < 3, "it was told {unavailable} times to try again");
}

#[test]
fn node_without_its_database_refuses_and_its_sessions_end() {
    let proxy = std::sync::OnceLock::new();
    let brief = "transports: {http: {request_timeout: 2s}}";
    let cluster = Cluster::with_database_urls(&["", brief], |server, n| {
        (n == 1).then(|| {
            let proxy = proxy.get_or_init(|| Proxy::to_server(&server.folder()));
            format!("postgres://countersign@127.0.0.1:{}/cluster", proxy.port)
        })
    });
    let proxy = proxy.get().unwrap();
    wait_until_connected(&cluster);
    let id = cluster.propose(1, "k", "ok");
    let change = cluster.state(1, &id);
    let session = cluster.node(1).session("2025-11-25").id;
    let mut ws = Ws::open(cluster.node(1));
    ws.initialize("2025-11-25");
    assert_eq!((ping(cluster.node(0), &session), ping(cluster.node(1), &session)), (200, 200));

    proxy.silence();
    let silent = Instant::now();
    // No request outlasts its timeout: neither a list, nor a read, a decision, or a proposal.
    let bearer = format!("Bearer {}", cluster.key);
    let body = json!({"decision": "reject", "comment": "x", "version": change["version"], "digest": change["digest"]});
    let (body, path) = (body.to_string(), format!("/api/changes/{id}"));
    let decision = format!("{path}/decision");
    let proposal = json!({"key": "l", "value": "x", "mode": "ok"}).to_string();
    let requests = [
        ("list", "GET", "/api/changes", ""),
        ("read", "GET", &path, ""),
        ("decision", "POST", &decision, &body),
        ("proposal", "POST", "/tools/count__apply", &proposal),
    ];
    let ask = |(name, method, path, body): (&str, &str, &str, &str)| {
        let mut conn = cluster.node(1).connect();
        let headers = [("Authorization", bearer.as_str()), JSON];
        conn.request(method, path, if name == "proposal" { &headers[1..] } else { &headers }, body.as_bytes());
        let answer = conn.response();
        print_figure(&format!("answer to a {name} while the database is silent"), silent);
        let code = answer.json()["code"].clone();
        // The timeouts of the request and of the store end at about the same time.
        let is_timeout = name != "proposal" && (answer.status, code.as_str()) == (504, Some("TIMEOUT"));
        let is_refusal = (answer.status, code.as_str()) == (503, Some("STORE_UNAVAILABLE"));
        assert!(is_timeout || is_refusal, "{name}: {} {}", answer.status, answer.text());
    };
    std::thread::scope(|scope| {
        for request in requests {
            scope.spawn(move || ask(request));
        }
    });

    // It gets no more requests, and starts nothing that the others do not know.
    let health = eventually("it is not ready", || {
        let health = cluster.node(1).request("GET", "/health", &[], b"");
        (health.status == 503).then(|| health.json())
    });
    print_figure("from the database's silence to /health 503", silent);
    assert_eq!((&health["live"], &health["checks"]["store"]), (&json!(true), &json!("unreachable")), "{health}");
    let initialize = request(1, "initialize", initialize_params("2025-11-25")).to_string();
    let refused = eventually("its lease is over", || {
        let answer = cluster.node(1).request("POST", "/mcp", &[JSON, ACCEPT], initialize.as_bytes());
        (answer.status != 200).then_some(answer)
    });
    print_figure("from the database's silence to initialize refused", silent);
    let code = |answer: Value| answer["error"]["data"]["code"].clone();
    assert_eq!((refused.status, code(refused.json())), (503, json!("STORE_UNAVAILABLE")));
    assert_eq!(Ws::try_open(cluster.node(1), "/ws", &[MCP]).head.status, 503);
    eventually("the other one says that its sessions are gone", || match ping(cluster.node(0), &session) {
        404 => Some(()),
        503 | 200 => None,
        other => panic!("{other}"),
    });
    print_figure("from the database's silence to 404 for its sessions through others", silent);
    assert_eq!(ping(cluster.node(1), &session), 503, "it cannot tell");

    // The node is back, and the sessions stay gone.
    proxy.pass();
    let healed = Instant::now();
    eventually("it is ready again", || {
        (cluster.node(1).request("GET", "/health", &[], b"").status == 200).then_some(())
    });
    print_figure("from the network's return to /health 200", healed);
    eventually("it reads", || (cluster.node(1).api_as(&cluster.key, "GET", &path, None).0 == 200).then_some(()));
    print_figure("from the network's return to a read that is served", healed);
    assert_eq!((ping(cluster.node(0), &session), ping(cluster.node(1), &session)), (404, 404));
    while ws.any_frame().is_some() {}
    let again = cluster.node(1).session("2025-11-25").id;
    assert_eq!((ping(cluster.node(0), &again), ping(cluster.node(1), &again)), (200, 200));
}
