//! Tests of an upstream's lists through the real program: byte for byte in every revision, kept fresh, and their
//! changes reported to exactly those who subscribed.

use serde_json::{Value, json};
use support::{Gateway, Options, eventually, mcp, ws::Ws};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/upstreams/upstream_lists/server.py");

fn gateway(prefix: &str) -> Gateway {
    let config = format!(
        "policy: {{default: allow}}\nmodules: {{tracker: {{enabled: false}}}}\nmcpServers:\n  demo:\n    \
         command: python3\n    args: [\"{SERVER}\"]\n    prefix: \"{prefix}\"\n"
    );
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    // Servers connect in the background.
    eventually("the server's tools are listed", || {
        let mut ws = open_session(&gateway, "2025-11-25");
        names(&ws.call(1, "tools/list", json!({})), "tools").contains(&format!("{prefix}odd")).then_some(())
    });
    gateway
}

fn open_session(gateway: &Gateway, version: &str) -> Ws {
    let mut ws = Ws::open(gateway);
    ws.initialize(version);
    ws
}

fn names(answer: &Value, list: &str) -> Vec<String> {
    let entries = answer["result"][list].as_array().unwrap_or_else(|| panic!("{answer}"));
    entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

fn tool(ws: &mut Ws, id: i64, name: &str, arguments: &Value) -> Value {
    ws.call(id, "tools/call", json!({"name": format!("demo__{name}"), "arguments": arguments}))
}

/// Returns the JSON in the text of a tool's result.
fn tool_json(ws: &mut Ws, id: i64, name: &str) -> Value {
    let answer = tool(ws, id, name, &json!({}));
    serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))).unwrap()
}

/// Counts notifications of that method up to the answer to a ping, which follows everything sent before.
fn count_notifications(ws: &mut Ws, id: i64, method: &str) -> usize {
    ws.send_json(&mcp::request(id, "tools/call", json!({"name": "demo__lists", "arguments": {}})));
    let (_, before) = ws.answer(&json!(id));
    before.iter().filter(|message| message["method"] == method).count()
}

#[test]
fn requests_wait_for_a_starting_server() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let script = format!("until [ -e {} ]; do sleep 0.02; done; exec python3 {SERVER}", gate.display());
    let config = json!({
        "policy": { "default": "allow" },
        "modules": { "tracker": { "enabled": false } },
        "limits": { "first_connection": "60s" },
        "mcpServers": { "demo": { "command": "sh", "args": ["-c", script], "prefix": "" } },
    });
    let gateway = Gateway::with_options(&Options { config: Some(&config.to_string()), ..Options::default() });
    let mut stateless = Ws::open(&gateway);
    let listen = json!({ "notifications": { "resourceSubscriptions": ["note:///b"] } });
    stateless.send_json(&mcp::request(1, "subscriptions/listen", mcp::with_meta(listen)));
    let mut ws = open_session(&gateway, "2025-11-25");
    let requests = [
        ("tools/call", json!({ "name": "lists", "arguments": {} })),
        ("prompts/get", json!({ "name": "ask" })),
        ("resources/read", json!({ "uri": "note:///a" })),
        ("resources/subscribe", json!({ "uri": "note:///a" })),
    ];
    for (id, (method, params)) in (1..).zip(&requests) {
        ws.send_json(&mcp::request(id, method, params.clone()));
    }
    // By then all have been accepted.
    ws.send_json(&mcp::request(9, "ping", json!({})));
    let (_, before) = ws.answer(&json!(9));
    assert!(before.is_empty(), "{before:?}");
    std::fs::write(&gate, "").unwrap();
    let mut unanswered: Vec<i64> = (1..=4).collect();
    while !unanswered.is_empty() {
        let message: Value = serde_json::from_slice(&ws.frame().unwrap().payload).unwrap();
        if message.get("method").is_none() {
            assert!(message["result"].is_object(), "{message}");
            unanswered.retain(|id| message["id"] != *id);
        }
    }
    let acknowledged: Value = serde_json::from_slice(&stateless.frame().unwrap().payload).unwrap();
    let count_notifications = &acknowledged["params"]["notifications"]["resourceSubscriptions"];
    assert_eq!(count_notifications, &json!(["note:///b"]), "{acknowledged}");
}

#[test]
fn lists_pass_byte_for_byte_in_every_revision() {
    for prefix in ["demo__", ""] {
        let gateway = gateway(prefix);
        let scheme = if prefix.is_empty() { "" } else { "demo+" };
        for version in mcp::LEGACY {
            let mut ws = open_session(&gateway, version);
            let mut raw = |method: &str| {
                ws.send_json(&mcp::request(9, method, json!({})));
                String::from_utf8(ws.frame().unwrap().payload).unwrap()
            };
            let mut odd = format!(
                r#"{{ "z":[1.0,12345678901234567890123], "name":"{prefix}odd","title":"Odd","icons":[],"_meta":{{"a":1e2}}, "inputSchema":{{"type":"object","x":1E5}},"annotations":{{"readOnlyHint":true}},"outputSchema":{{"type":"object"}} }}"#
            );
            let removed: &[&str] = match version {
                "2024-11-05" => &[
                    r#","title":"Odd""#,
                    r#","icons":[]"#,
                    r#","_meta":{"a":1e2}"#,
                    r#","annotations":{"readOnlyHint":true}"#,
                    r#","outputSchema":{"type":"object"}"#,
                ],
                "2025-03-26" => &[
                    r#","title":"Odd""#,
                    r#","icons":[]"#,
                    r#","_meta":{"a":1e2}"#,
                    r#","outputSchema":{"type":"object"}"#,
                ],
                "2025-06-18" => &[r#","icons":[]"#],
                _ => &[],
            };
            removed.iter().for_each(|removed| odd = odd.replacen(removed, "", 1));
            for (method, expected) in [
                ("tools/list", odd),
                (
                    "prompts/list",
                    format!(r#"{{"v":0.10,"name":"{prefix}ask","arguments":[{{"name":"who","z":1e1}}]}}"#),
                ),
                ("resources/list", format!(r#"{{"uri":"{scheme}note:///a","v":-0.0,"name":"a"}}"#)),
                (
                    "resources/templates/list",
                    format!(r#"{{"name":"n","uriTemplate":"{scheme}note:///{{name}}","v":1e-7}}"#),
                ),
            ] {
                let list = raw(method);
                assert!(list.contains(&expected), "{version} {method}: {list}");
            }
        }
        let modern = gateway.modern(1, "tools/list", json!({})).text();
        assert!(modern.contains("12345678901234567890123") && modern.contains(r#""cacheScope":"public""#), "{modern}");
    }
}

#[test]
fn list_change_is_reported_once_if_real() {
    let gateway = gateway("demo__");
    let (mut ws, mut waiting) = (open_session(&gateway, "2025-11-25"), open_session(&gateway, "2025-06-18"));
    let mut uninitialized = Ws::open(&gateway);
    uninitialized.call(1, "initialize", mcp::initialize_params("2025-11-25"));
    let mut listen = gateway.modern_conn(
        5,
        "subscriptions/listen",
        json!({"notifications": {"toolsListChanged": true, "promptsListChanged": true}}),
    );
    assert_eq!(listen.head().status, 200);
    let acknowledged = listen.expect_event().json();
    assert_eq!(acknowledged["params"]["notifications"], json!({"toolsListChanged": true, "promptsListChanged": true}));
    let before = tool_json(&mut ws, 1, "lists").as_u64().unwrap();
    tool(&mut ws, 2, "rumour", &json!({}));
    eventually("the gateway has listed again", || (tool_json(&mut ws, 3, "lists").as_u64()? > before).then_some(()));
    tool(&mut ws, 4, "grow", &json!({}));
    let (mut id, mut changes) = (100, 0);
    eventually("the new tool is listed", || {
        id += 1;
        waiting.send_json(&mcp::request(id, "tools/list", json!({})));
        let (answer, before) = waiting.answer(&json!(id));
        changes += before.iter().filter(|m| m["method"] == "notifications/tools/list_changed").count();
        names(&answer, "tools").contains(&"demo__more".to_owned()).then_some(())
    });
    // The tools are listed a moment before the notification is sent.
    eventually("the change is reported", || {
        id += 1;
        changes += count_notifications(&mut waiting, id, "notifications/tools/list_changed");
        (changes > 0).then_some(())
    });
    changes += count_notifications(&mut waiting, 99, "notifications/tools/list_changed");
    assert_eq!(changes, 1, "an unchanged list is not reported");
    let event = listen.expect_event().json();
    assert_eq!(event["method"], "notifications/tools/list_changed");
    assert_eq!(event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 5);
    assert_eq!(count_notifications(&mut uninitialized, 8, "notifications/tools/list_changed"), 0);
}

#[test]
fn updates_reach_subscribers_with_one_subscription() {
    let gateway = gateway("demo__");
    let (mut one, mut two) = (open_session(&gateway, "2025-11-25"), open_session(&gateway, "2024-11-05"));
    let subscribe = |ws: &mut Ws, verb: &str, uri: &str| {
        let answer = ws.call(20, &format!("resources/{verb}"), json!({"uri": uri}));
        assert_eq!(answer["result"], json!({}), "{answer}");
    };
    subscribe(&mut one, "subscribe", "demo+note:///a");
    subscribe(&mut two, "subscribe", "demo+note:///a");
    assert_eq!(tool_json(&mut one, 2, "subscribed"), json!(["note:///a"]));
    let requested = json!({"notifications": {"resourceSubscriptions": ["demo+note:///b", "nobody:///x"]}});
    let mut listen = gateway.modern_conn(6, "subscriptions/listen", requested);
    assert_eq!(listen.head().status, 200);
    let acknowledged = listen.expect_event().json();
    assert_eq!(acknowledged["params"]["notifications"], json!({"resourceSubscriptions": ["demo+note:///b"]}));
    assert_eq!(tool_json(&mut one, 3, "subscribed"), json!(["note:///a", "note:///b"]));

    let mut caller = open_session(&gateway, "2025-11-25");
    tool(&mut caller, 4, "touch", &json!({"uri": "note:///a"}));
    tool(&mut caller, 5, "touch", &json!({"uri": "note:///b"}));
    for ws in [&mut one, &mut two] {
        let update = ws.message();
        assert_eq!(update["method"], "notifications/resources/updated", "{update}");
        assert_eq!(update["params"], json!({"uri": "demo+note:///a"}));
    }
    let update = listen.expect_event().json();
    assert_eq!(update["params"]["uri"], "demo+note:///b");
    let updated = "notifications/resources/updated";
    assert_eq!(
        [
            count_notifications(&mut one, 6, updated),
            count_notifications(&mut two, 6, updated),
            count_notifications(&mut caller, 6, updated)
        ],
        [0, 0, 0]
    );

    subscribe(&mut one, "unsubscribe", "demo+note:///a");
    drop(listen);
    eventually("only the other's is left", || {
        (tool_json(&mut one, 7, "subscribed") == json!(["note:///a"])).then_some(())
    });
    subscribe(&mut two, "unsubscribe", "demo+note:///a");
    eventually("nothing is left", || (tool_json(&mut one, 8, "subscribed") == json!([])).then_some(()));
}

#[test]
fn completion_uses_own_names_and_is_cut() {
    let gateway = gateway("demo__");
    let mut ws = open_session(&gateway, "2025-11-25");
    for (reference, own) in [
        (json!({"type": "ref/prompt", "name": "demo__ask"}), json!({"type": "ref/prompt", "name": "ask"})),
        (
            json!({"type": "ref/resource", "uri": "demo+note:///{name}"}),
            json!({"type": "ref/resource", "uri": "note:///{name}"}),
        ),
    ] {
        let params = json!({"ref": reference, "argument": {"name": "who", "value": ""}});
        let answer = ws.call(3, "completion/complete", params);
        let completion = &answer["result"]["completion"];
        assert_eq!(completion["values"].as_array().map(Vec::len), Some(100), "{answer}");
        assert_eq!((&completion["hasMore"], &completion["total"]), (&json!(true), &json!(150)));
        assert_eq!(answer["result"]["ref"], own);
    }
}

#[test]
fn common_capabilities_pass_through() {
    let gateway = gateway("demo__");
    let mut ws = Ws::open(&gateway);
    let mut params = mcp::initialize_params("2025-11-25");
    params["capabilities"] = json!({"experimental": {"com.example/shared": {}, "com.example/theirs": {}}});
    ws.send_json(&mcp::request(1, "initialize", params));
    let answer = String::from_utf8(ws.frame().unwrap().payload).unwrap();
    assert!(answer.contains(r#""experimental":{"com.example/shared":{"n":12345678901234567890123}}"#), "{answer}");
    let mut plain = Ws::open(&gateway);
    let answer = plain.initialize("2025-11-25");
    assert!(answer["result"]["capabilities"].get("experimental").is_none(), "{answer}");
    for list in ["tools", "prompts", "resources"] {
        assert_eq!(answer["result"]["capabilities"][list]["listChanged"], true);
    }
}

#[test]
fn server_instructions_appear_under_its_name() {
    let gateway = gateway("demo__");
    let ends = "\n\nThe server `demo` says of itself:\n  Lists only.";
    let instructions_of =
        |answer: &Value| answer["result"]["instructions"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    for version in mcp::LEGACY {
        let instructions = instructions_of(&Ws::open(&gateway).initialize(version));
        assert!(instructions.starts_with("Countersign lets you") && instructions.ends_with(ends), "{instructions}");
    }
    let answer = gateway.modern(1, "server/discover", json!({})).json();
    assert!(instructions_of(&answer).ends_with(ends), "{answer}");
}
