//! Tests of the bounds of HTTP/2: streams, idle frames, and request bodies.

use super::*;

#[test]
fn http2_stream_limit_is_announced_and_enforced() {
    let tls = support::tls::TlsGateway::start_with("transports:\n  http:\n    max_concurrent_streams: 3\n");
    let mut conn = Http2::connect(&tls);
    let settings = conn.receive();
    assert_eq!((settings.kind, settings.stream), (4, 0));
    let announced: Vec<_> = settings.payload.chunks(6).filter(|setting| setting[..2] == [0, 3]).collect();
    assert_eq!(announced, [[0, 3, 0, 0, 0, 3]], "{:?}", settings.payload);
    let authority = tls.base.trim_start_matches("https://").to_owned();
    for stream in [1, 3, 5, 7] {
        conn.post(stream, &authority);
    }
    // RFC 9113, 8.7: the request was not processed, and the client may repeat it.
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    assert_eq!(conn.reset(7), REFUSED_STREAM);
    // The other streams are served, and then there is room for more.
    let ping = request(1, "ping", json!({})).to_string();
    for stream in [5, 9] {
        if stream == 9 {
            conn.post(stream, &authority);
        }
        conn.frame(0, 1, stream, ping.as_bytes());
        let answer = conn.data(stream);
        assert!(answer.contains("result"), "{answer}");
    }
    drop(conn.openssl);
    tls.stop();
}

#[test]
fn http2_frame_flood_is_ended_with_enhance_your_calm() {
    const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];
    let tls = support::tls::TlsGateway::start();
    let authority = tls.base.trim_start_matches("https://").to_owned();
    for (kind, stream, payload) in [(8, 0, &[0, 0, 0, 1][..]), (0, 1, &[]), (2, 3, &[0; 5])] {
        let mut conn = Http2::connect(&tls);
        conn.post(1, &authority);
        conn.try_send(&frames(4000, (kind, 0), stream, payload));
        let goodbye = std::iter::from_fn(|| Some(conn.receive())).find(|frame| frame.kind == 7).unwrap();
        assert_eq!(goodbye.payload[4..8], ENHANCE_YOUR_CALM, "{kind}");
    }
    assert!(tls.run(&["/health"]).status.success(), "others are served");
    tls.stop();
}

#[test]
fn reset_http2_stream_cancels_its_request() {
    // Nothing is sent from which a cancelled stream would be noticed.
    let tls = support::tls::TlsGateway::start_with("transports: {http: {sse_keep_alive: 1h}}\n");
    let authority = tls.base.trim_start_matches("https://").to_owned();
    let key = format!("Authorization: Bearer {}", support::create_key(&tls.data(), "reviewer", "rita"));
    let sessions = || {
        let sessions = tls.run(&["-H", &key, "/api/sessions"]).stdout;
        serde_json::from_slice::<Value>(&sessions).unwrap()
    };
    let in_flight = || sessions()["inFlight"].clone();
    let call = |tool: &str, body: &Value| {
        let path = format!("/tools/{tool}");
        let body = body.to_string();
        let answer = tls.run(&["-H", "Content-Type: application/json", "-d", &body, &path]).stdout;
        serde_json::from_slice::<Value>(&answer).unwrap()["structuredContent"].clone()
    };
    let project = call("list_projects", &json!({}))["projects"][0]["id"].clone();
    let change = call("create_issue", &json!({"projectId": project, "title": "Waited for", "type": "Story"}));
    let arguments = json!({"name": "wait_for_change", "arguments": {"changeId": change["changeId"]}});
    let params = support::mcp::with_meta(arguments);
    let headers = support::mcp::modern_headers("tools/call", &params);
    // In lower case, as HTTP/2 requires; the usual headers are set already.
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), *value)).skip(2).collect();
    let body = request(1, "tools/call", params).to_string();
    let mut conn = Http2::connect(&tls);
    for stream in [1, 3] {
        conn.post_with(stream, &authority, &headers);
        conn.frame(0, 1, stream, body.as_bytes());
    }
    eventually("both wait", || (in_flight() == 2).then_some(()));
    // One is reset, and the other one's connection ends.
    conn.frame(3, 0, 1, &[0, 0, 0, 8]);
    eventually("one waits", || (in_flight() == 1).then_some(()));
    // A stream without any events.
    let open = || sessions()["sessions"].as_array().unwrap().iter().filter(|one| one["transport"] == "sse").count();
    let get = [(":method", "GET"), (":path", "/sse"), (":authority", &authority), ("accept", "text/event-stream")];
    conn.headers(5, 5, &get);
    eventually("its session is there", || (open() == 1).then_some(()));
    conn.frame(3, 0, 5, &[0, 0, 0, 8]);
    eventually("its session has ended", || (open() == 0).then_some(()));
    drop(conn.openssl);
    eventually("none does", || (in_flight() == 0).then_some(()));
    tls.stop();
}

#[test]
fn http2_streams_share_the_connections_body_budget() {
    let tls = support::tls::TlsGateway::start_with(SMALL_BODY_BUDGET);
    let mut conn = Http2::connect(&tls);
    let authority = tls.base.trim_start_matches("https://").to_owned();
    // Each stream has at most one window of unread data; together they would far exceed the connection's budget.
    let piece = vec![b' '; 16 << 10];
    for stream in [1, 3, 5] {
        conn.post(stream, &authority);
    }
    let mut windows = std::collections::HashMap::from([(0_u32, 65_535_i64)]);
    let mut sent = 0_usize;
    // The gateway reads until its budget is used, then stops, then refuses.
    let refused = 'all: loop {
        for stream in [1, 3, 5] {
            let window = *windows.get(&stream).unwrap_or(&65_535);
            if window >= 16 << 10 && windows[&0] >= 16 << 10 {
                conn.frame(0, 0, stream, &piece);
                windows.insert(stream, window - (16 << 10));
                *windows.get_mut(&0).unwrap() -= 16 << 10;
                sent += piece.len();
            }
        }
        let frame = conn.receive();
        match frame.kind {
            8 => {
                let more = i64::from(u32::from_be_bytes(*frame.payload.first_chunk().unwrap()));
                *windows.entry(frame.stream).or_insert(65_535) += more;
            }
            4 => {
                // The window that the settings announce for each stream.
                for setting in frame.payload.chunks(6).filter(|setting| setting[..2] == [0, 4]) {
                    let first = i64::from(u32::from_be_bytes(*setting[2..].first_chunk().unwrap()));
                    for stream in [1, 3, 5] {
                        *windows.entry(stream).or_insert(65_535) += first - 65_535;
                    }
                }
            }
            0 => break 'all frame,
            _ => {}
        }
    };
    assert!(String::from_utf8_lossy(&refused.payload).contains("OVERLOADED"));
    assert!((900 << 10..3 << 20).contains(&sent), "{sent}");
    drop(conn.openssl);
    tls.stop();
}
