//! Tests of answers that do not come from the asked upstream: cached ones, those of a fallback server, and those to
//! requests that the gateway does not know.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ARGUMENTS, ENVELOPE, HANDSHAKE, Pair, mcp, text,
    upstream::{ODD_RESULT, STATELESS, Upstream, VENDOR},
};
use support::{command, eventually};

fn parse(text: &str) -> Value {
    serde_json::from_str(&text.replace("12345678901234567890123", "1").replace("1e400", "1")).unwrap()
}

fn caching_pair(client: &str, upstream: &'static str, server: Value) -> Pair {
    let upstream = Upstream::start(upstream);
    let mut server = server;
    server["url"] = json!(upstream.url);
    server["prefix"] = json!("");
    let config = json!({
        "policy": {"default": "allow"}, "modules": {"tracker": {"enabled": false}}, "mcpServers": {"fake": server},
    });
    Pair::start_with_config(client, upstream, &config, "read", &json!({}))
}

/// Repeats a read or call; returns how often the upstream was asked, and the last answer.
fn repeat(pair: &Pair, method: &str, what: &str, params: &str, meta: &str) -> (usize, Value) {
    let before = pair.upstream.count(what);
    let mut last = Value::Null;
    for _ in 0..3 {
        last = parse(&text(&mut pair.start(method, what, params, meta)));
    }
    (pair.upstream.count(what) - before, last)
}

#[test]
fn reads_are_cached_for_the_servers_ttl() {
    for client in [HANDSHAKE, STATELESS] {
        let pair = caching_pair(client, STATELESS, json!({"cache": true, "trust_annotations": true}));
        for uri in ["x:mine", "x:ours"] {
            let params = format!(r#"{{"uri":"{uri}"}}"#);
            let (request_count, last) = repeat(&pair, "resources/read", uri, &params, "");
            assert_eq!(request_count, 1, "{client} {uri}");
            assert_eq!(last["result"]["contents"][0]["n"], 1.0);
            let ttl = last["result"]["ttlMs"].as_u64();
            assert_eq!(ttl.is_some_and(|ttl| ttl < 3_600_000), pair.is_stateless(), "{last}");
            // Parameters outside the cache key are asked for again.
            for meta in [r#""progressToken":1"#, r#""vendor.example/who":"b""#] {
                assert_eq!(repeat(&pair, "resources/read", uri, &params, meta).0, 3, "{client} {meta}");
            }
            let other = format!(r#"{{"uri":"{uri}","page":1}}"#);
            assert_eq!(repeat(&pair, "resources/read", uri, &other, "").0, 1, "{client}");
        }
        let call = |number: u32| format!(r#"{{"name":"read","arguments":{{"n":{number}}}}}"#);
        let read = r#""name":"read""#;
        for number in 0..2 {
            let before = pair.upstream.count(read);
            for _ in 0..3 {
                text(&mut pair.start("tools/call", "read", &call(number), ""));
            }
            assert_eq!(pair.upstream.count(read) - before, 1, "{client} {number}");
        }
        let (hits, misses) = (
            r#"countersign_cache_hits_total{cache="upstreams"}"#,
            r#"countersign_cache_misses_total{cache="upstreams"}"#,
        );
        let metrics = pair.gateway.request("GET", "/metrics", &[], b"").text();
        for name in [hits, misses] {
            let value = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{metrics}"));
            assert!(value.trim().parse::<f64>().unwrap() > 0.0, "{value}");
        }
        // A write may have changed it.
        text(&mut pair.call("bytes", "", ""));
        text(&mut pair.start("tools/call", "read", &call(0), ""));
        assert_eq!(pair.upstream.count(read), 3, "{client}");
    }
}

#[test]
fn untrusted_or_untimed_reads_are_not_cached() {
    let uri = r#"{"uri":"x:mine"}"#;
    let off = caching_pair(STATELESS, STATELESS, json!({"trust_annotations": true}));
    assert_eq!(repeat(&off, "resources/read", "x:mine", uri, "").0, 3, "off by default");
    let pair = caching_pair(STATELESS, STATELESS, json!({"cache": true}));
    assert_eq!(repeat(&pair, "resources/read", "x:here", r#"{"uri":"x:here"}"#, "").0, 3);
    let before = pair.upstream.count(r#""name":"read""#);
    for _ in 0..3 {
        text(&mut pair.start("tools/call", "read", r#"{"name":"read","arguments":{}}"#, ""));
    }
    assert_eq!(pair.upstream.count(r#""name":"read""#) - before, 3, "nobody believes that it reads");
    let legacy = caching_pair(STATELESS, HANDSHAKE, json!({"cache": true}));
    assert_eq!(repeat(&legacy, "resources/read", "x:mine", uri, "").0, 3);
}

#[test]
fn cached_answers_are_private_unless_public() {
    let pair = caching_pair(STATELESS, STATELESS, json!({"cache": true}));
    let read = |uri: &str, key: Option<&str>| {
        let params = format!(r#"{{"uri":"{uri}","_meta":{{{ENVELOPE}}}}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{params}}}"#);
        let bearer = key.map(|key| format!("Bearer {key}")).unwrap_or_default();
        let mut headers = vec![mcp::JSON, mcp::ACCEPT, ("MCP-Protocol-Version", STATELESS)];
        headers.extend([("Mcp-Method", "resources/read"), ("Mcp-Name", uri)]);
        if key.is_some() {
            headers.push(("Authorization", &bearer));
        }
        let answer = pair.gateway.request("POST", "/mcp", &headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        pair.upstream.count(uri)
    };
    let key = pair.gateway.create_key("agent", "other");
    assert_eq!((read("x:mine", None), read("x:mine", Some(&key)), read("x:mine", None)), (1, 2, 2));
    assert_eq!((read("x:ours", None), read("x:ours", Some(&key))), (1, 1));
}

/// Starts a server with an open circuit, and a fallback server.
fn pair_with_open_circuit(server: Value, rules: Value) -> (Pair, Arc<Upstream>) {
    let (upstream, spare) = (Upstream::start(STATELESS), Upstream::start(HANDSHAKE));
    let mut first = json!({
        "url": upstream.url, "breaker": {"threshold": 2, "window": "1h", "cooldown": "1h"}, "fallback": "spare",
    });
    first.as_object_mut().unwrap().extend(server.as_object().unwrap().clone());
    let config = json!({
        "policy": {"default": "allow", "rules": rules},
        "modules": {"tracker": {"enabled": false}},
        "mcpServers": {"fake": first, "spare": {"url": spare.url, "tools": {"deny": ["error"]}}},
    });
    let pair = Pair::start_with_config(STATELESS, upstream, &config, "spare__url", &json!({}));
    eventually("the first is there too", || {
        let listed = pair.gateway.modern(1, "tools/list", json!({})).text();
        listed.contains("fake__bytes").then_some(())
    });
    pair.upstream.start_failing();
    for _ in 0..2 {
        let failed = parse(&text(&mut pair.call("fake__talk", "", "")));
        assert_eq!(failed["result"]["isError"], true, "{failed}");
    }
    (pair, spare)
}

#[test]
fn fallback_server_answers_for_an_open_circuit() {
    let (pair, spare) = pair_with_open_circuit(json!({"fallback_text": "later"}), json!([]));
    let answer = text(&mut pair.call("fake__bytes", "", ""));
    assert!(answer.contains(ODD_RESULT.strip_suffix('}').unwrap()), "{answer}");
    let (_, body) = spare.wait_for_post(r#""name":"bytes""#, 0);
    assert!(body.contains(ARGUMENTS), "{body}");
    // The plain endpoint uses the fallback, too.
    let plain = pair.gateway.request("POST", "/tools/fake__bytes", &[mcp::JSON], b"{}");
    assert_eq!((plain.status, spare.count(r#""name":"bytes""#)), (200, 2), "{}", plain.text());
    // A tool that the fallback lacks, or that asks a question, gets the fallback text.
    for (tool, more) in [("fake__error", ""), ("fake__bytes", r#","inputResponses":{}"#)] {
        let answer = parse(&text(&mut pair.call(tool, more, "")));
        assert_eq!(answer["result"]["content"][0]["text"], "later", "{tool} {answer}");
    }
    let plain = pair.gateway.request("POST", "/tools/fake__error", &[mcp::JSON], b"{}");
    assert_eq!((plain.status, &plain.json()["content"][0]["text"]), (200, &json!("later")), "{}", plain.text());
}

#[test]
fn fallback_obeys_the_policy() {
    let rules = json!([
        {"tools": ["spare__bytes"], "then": "deny"},
        {"tools": ["spare__talk"], "then": "review"},
        {"tools": ["fake__slow"], "then": "review"},
    ]);
    let (pair, spare) = pair_with_open_circuit(json!({}), rules);
    for tool in ["fake__bytes", "fake__url"] {
        let refused = parse(&text(&mut pair.call(tool, "", "")));
        let open = refused.to_string().contains("CIRCUIT_OPEN");
        assert_eq!(open, tool == "fake__bytes", "{refused}");
    }
    let refused = parse(&text(&mut pair.call("fake__talk", "", "")));
    assert!(refused.to_string().contains("CIRCUIT_OPEN"), "{refused}");
    let pending = parse(&text(&mut pair.call("fake__slow", "", "")));
    assert!(pending.to_string().contains("pending"), "{pending}");
    for tool in ["bytes", "talk", "slow"] {
        assert_eq!(spare.count(&format!(r#""name":"{tool}""#)), 0, "{tool}");
    }
}

#[test]
fn names_that_clients_refuse_are_reported() {
    let pair = caching_pair(STATELESS, STATELESS, json!({}));
    let (status, servers) = pair.gateway.api("GET", "/api/servers", None);
    assert_eq!(status, 200);
    let fake = servers["servers"].as_array().unwrap().iter().find(|p| p["name"] == "fake").unwrap();
    assert!(fake["warnings"][0].as_str().unwrap().contains("odd name"), "{fake}");
    let url = format!("http://{}", pair.gateway.address());
    let env = [("COUNTERSIGN_URL", url.as_str()), ("COUNTERSIGN_KEY", pair.gateway.reviewer())];
    let shown = command(&env).args(["servers", "show", "fake"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("! some clients refuse the tool name \"odd name\""), "{shown}");
}

fn pair_for_extension(client: &str, upstream: &'static str, policy: Value, declares: bool) -> Pair {
    let upstream = Upstream::start(upstream);
    let config = json!({
        "policy": policy,
        "modules": {"tracker": {"enabled": false}},
        "mcpServers": {"fake": {"url": upstream.url, "prefix": ""}},
    });
    let capabilities = if declares { json!({"experimental": {"vendor.example/do": {}}}) } else { json!({}) };
    Pair::start_with_config(client, upstream, &config, "bytes", &capabilities)
}

/// Returns the status and body of the answer, and what the upstream received.
fn call_extension(pair: &Pair, params: Option<&str>, declares: bool) -> (u16, String) {
    let capabilities = if declares { r#""experimental":{"vendor.example/do":{}}"# } else { "" };
    let envelope = format!(
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"c","version":"1"}},"io.modelcontextprotocol/clientCapabilities":{{{capabilities}}}"#
    );
    let params = match (params, pair.is_stateless()) {
        (Some(params), false) => format!(r#","params":{params}"#),
        (None, false) => String::new(),
        (params, true) => {
            let open = params.map_or("{", |params| params.strip_suffix('}').unwrap());
            let comma = if open.trim_end().ends_with('{') { "" } else { "," };
            format!(r#","params":{open}{comma}"_meta":{{{envelope}}}}}"#)
        }
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"vendor/do"{params}}}"#);
    let answer = pair.post("vendor/do", "", &body).response();
    (answer.status, answer.text())
}

#[test]
fn declared_extension_requests_pass_unchanged() {
    for era in [HANDSHAKE, STATELESS] {
        let pair = pair_for_extension(era, era, json!({"default": "allow"}), true);
        let odd = r#"{ "uri":"x:here","n":1E+2,"z":12345678901234567890123}"#;
        let (status, received) = call_extension(&pair, Some(odd), true);
        assert_eq!((status, received), (200, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{VENDOR}}}"#)), "{era}");
        let (head, body) = pair.upstream.wait_for_post("vendor/do", 0);
        assert!(body.contains(odd.strip_suffix('}').unwrap()), "{era}: {body}");
        assert_eq!(head.contains("mcp-method: vendor/do"), era == STATELESS, "{head}");
        assert_eq!(call_extension(&pair, None, true).0, 200);
        assert_eq!(pair.upstream.wait_for_post("vendor/do", 1).1.contains("params"), era == STATELESS);
    }
}

#[test]
fn undeclared_or_unjudged_requests_are_refused() {
    let allow = json!({"default": "allow"});
    let rule = json!({"default": "allow", "rules": [{"tools": ["vendor/*"], "then": "review"}]});
    let elsewhere = json!({"default": "allow", "rules": [{"tools": ["fs_*"], "then": "deny"}]});
    let cases = [
        (STATELESS, STATELESS, &allow, false, Some("no such method")),
        (HANDSHAKE, HANDSHAKE, &allow, false, Some("no such method")),
        (HANDSHAKE, STATELESS, &allow, true, Some("another era")),
        (STATELESS, HANDSHAKE, &allow, true, Some("another era")),
        (STATELESS, STATELESS, &json!({"default": "review_writes"}), true, Some("policy")),
        (HANDSHAKE, HANDSHAKE, &rule, true, Some("policy")),
        (STATELESS, STATELESS, &elsewhere, true, None),
    ];
    for (client, upstream, policy, declares, refused) in cases {
        let pair = pair_for_extension(client, upstream, policy.clone(), declares);
        let (status, body) = call_extension(&pair, Some("{}"), declares);
        let case = format!("{client} {upstream} {policy} {declares}: {status} {body}");
        match refused {
            Some(why) => {
                assert!(body.contains("-32601") && body.contains(why), "{case}");
                assert_eq!(status, if client == STATELESS { 404 } else { 200 }, "{case}");
                assert_eq!(pair.upstream.count("vendor/do"), 0, "{case}");
            }
            None => assert_eq!(status, 200, "{case}"),
        }
    }
}
