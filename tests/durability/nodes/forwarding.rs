//! Tests of requests, sessions and streams that one node forwards to another.

use super::*;

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
    // A stateless request for a task of that node is answered by its id, first perhaps with an error that passes.
    let (node, _) = id.split_once('.').unwrap();
    let capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let task = json!({
        "taskId": format!("{node}.task"), "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities},
    });
    eventually("its tasks are gone, too", || {
        let answered = cluster.node(1).modern(9, "tasks/get", task.clone()).json();
        assert_eq!(answered["id"], 9, "{answered}");
        (answered["error"]["code"] == -32602).then_some(())
    });
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
    support::freeze(pid);
    // A stateless request has no session, so it does not wait for the node of a session id that it carries nevertheless.
    let params = with_meta(json!({}));
    let mut stateless = modern_headers("tools/list", &params);
    stateless.push(("Mcp-Session-Id".into(), ids[1].clone()));
    let list = request(3, "tools/list", params).to_string();
    let listed = cluster.node(1).request("POST", "/mcp", &borrow_headers(&stateless), list.as_bytes());
    assert_eq!(listed.status, 200, "{}", listed.text());
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
