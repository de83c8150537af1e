//! Tests of clients and upstreams of either era: messages pass byte for byte unless they must be translated.

mod upstream;

mod answers;

use std::sync::Arc;

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually,
    http::Conn,
    mcp::{self, ACCEPT, JSON, MODERN},
};
use upstream::{ERROR, ODD_RESULT, QUESTION, STATE, STATELESS, Upstream};

const HANDSHAKE: &str = "2025-11-25";

/// A gateway in front of one upstream, with a client.
struct Pair {
    upstream: Arc<Upstream>,
    gateway: Gateway,
    /// The session id; `None` for a stateless client.
    session: Option<String>,
}

impl Pair {
    fn new(client: &str, upstream: &'static str, prefix: &str, capabilities: &Value) -> Self {
        let upstream = Upstream::start(upstream);
        let server = json!({"url": upstream.url, "prefix": prefix, "forward_headers": ["x-team"]});
        let config = json!({
            "policy": {"default": "allow"},
            "modules": {"tracker": {"enabled": false}},
            "mcpServers": {"fake": server},
        });
        Self::start_with_config(client, upstream, &config, &format!("{prefix}bytes"), capabilities)
    }

    /// Starts a gateway with this configuration, and waits until it has the tool.
    fn start_with_config(
        client: &str,
        upstream: Arc<Upstream>,
        config: &Value,
        tool: &str,
        capabilities: &Value,
    ) -> Self {
        let gateway = Gateway::with_options(&Options { config: Some(&config.to_string()), ..Options::default() });
        eventually("the upstream's tools are there", || {
            let listed = gateway.modern(1, "tools/list", json!({})).json();
            listed["result"]["tools"].as_array().unwrap().iter().any(|t| t["name"] == tool).then_some(())
        });
        let session = (client != STATELESS).then(|| {
            let mut params = mcp::initialize_params(client);
            params["capabilities"] = capabilities.clone();
            let opened = gateway.post(&[], &mcp::request(0, "initialize", params).to_string());
            opened.header("mcp-session-id").unwrap().to_owned()
        });
        Self { upstream, gateway, session }
    }

    fn is_stateless(&self) -> bool {
        self.session.is_none()
    }

    /// Posts these bytes as the client.
    fn post(&self, method: &str, name: &str, body: &str) -> Conn {
        let mut headers = vec![JSON, ACCEPT, ("X-Team", "blue"), ("X-Other", "red"), ("Authorization", "Basic x")];
        headers.truncate(4);
        match &self.session {
            Some(session) => headers.push(("Mcp-Session-Id", session)),
            None => headers.extend([("MCP-Protocol-Version", MODERN), ("Mcp-Method", method), ("Mcp-Name", name)]),
        }
        let mut conn = self.gateway.connect();
        conn.request("POST", "/mcp", &headers, body.as_bytes());
        conn
    }

    /// Calls with `params` (an object without `_meta`, as text) and the given members of `_meta`.
    fn start(&self, method: &str, name: &str, params: &str, meta: &str) -> Conn {
        let own = if self.is_stateless() { ENVELOPE } else { "" };
        let meta = [meta, own].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(",");
        let params = format!("{},\"_meta\":{{{meta}}}}}", params.strip_suffix('}').unwrap());
        self.post(method, name, &format!(r#"{{"jsonrpc":"2.0","id":"i\u0064","method":"{method}","params":{params}}}"#))
    }

    fn call(&self, tool: &str, more: &str, meta: &str) -> Conn {
        self.start("tools/call", tool, &format!(r#"{{"name":"{tool}","arguments":{ARGUMENTS}{more}}}"#), meta)
    }
}

/// The `_meta` members that a stateless client sends with each request.
const ENVELOPE: &str = concat!(
    "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",",
    "\"io.modelcontextprotocol/clientInfo\":{\"name\":\"c\",\"version\":\"1\",\"odd\":1.0},",
    "\"io.modelcontextprotocol/clientCapabilities\":{\"elicitation\":{\"form\":{},\"url\":{}}},",
    "\"io.modelcontextprotocol/logLevel\":\"warning\""
);
const ARGUMENTS: &str = "{ \"n\":12345678901234567890123,\"z\":1.0,\"a\":{\"k\":1E+2} }";
const INFO: &str = r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1"}}"#;

fn text(conn: &mut Conn) -> String {
    let answer = conn.response();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

/// Returns the messages of a stream up to its end.
fn read_events(conn: &mut Conn) -> Vec<String> {
    let answer = conn.response();
    assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"), "{}", answer.text());
    let data = answer.text();
    data.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|d| !d.is_empty()).map(str::to_owned).collect()
}

fn all_pairs() -> Vec<Pair> {
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    [(HANDSHAKE, HANDSHAKE), (HANDSHAKE, STATELESS), (STATELESS, HANDSHAKE), (STATELESS, STATELESS)]
        .map(|(client, upstream)| Pair::new(client, upstream, "", &capabilities))
        .into()
}

#[test]
fn common_messages_pass_byte_for_byte() {
    for pair in all_pairs() {
        let (from, to) = (pair.is_stateless(), pair.upstream.is_stateless());
        let case = format!("stateless client {from}, stateless upstream {to}");
        let answer = text(&mut pair.call("bytes", r#","vendor":[ 1.0 ]"#, r#""vendor.example/k":1E+2"#));
        let expected = match (to, from) {
            (false, false) | (true, false) => ODD_RESULT.to_owned(),
            (true, true) => format!("{},\"resultType\" : \"complete\"}}", ODD_RESULT.strip_suffix('}').unwrap()),
            (false, true) => format!("{},{INFO},\"resultType\":\"complete\"}}", ODD_RESULT.strip_suffix('}').unwrap()),
        };
        assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":"i\u0064","result":{expected}}}"#), "{case}");

        let (head, body) = pair.upstream.wait_for_post(r#""name":"bytes""#, 0);
        assert!(
            body.contains(&format!(r#""params":{{"name":"bytes","arguments":{ARGUMENTS},"vendor":[ 1.0 ],"#)),
            "{body}"
        );
        assert!(body.contains(r#""vendor.example/k":1E+2"#), "{case}: {body}");
        assert!(head.contains("x-team: blue") && !head.contains("x-other"), "{case}: {head}");
        let meta = serde_json::from_str::<Value>(&body.replace("1E+2", "1")).unwrap()["params"]["_meta"].clone();
        match (from, to) {
            (_, false) => assert_eq!(meta.as_object().unwrap().len(), 1, "{case}: {meta}"),
            (true, true) => assert!(body.contains(ENVELOPE), "{case}: {body}"),
            (false, true) => {
                assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], STATELESS);
                assert_eq!(meta["io.modelcontextprotocol/clientInfo"], json!({"name": "raw", "version": "1"}));
                assert_eq!(meta["io.modelcontextprotocol/logLevel"], "info");
                let elicitation = &meta["io.modelcontextprotocol/clientCapabilities"]["elicitation"];
                assert_eq!(elicitation, &json!({"form": {}, "url": {}}));
            }
        }
        assert_eq!(
            text(&mut pair.call("error", "", "")),
            format!(r#"{{"jsonrpc":"2.0","id":"i\u0064","error":{}}}"#, ERROR.replace("\\u0041", "A")),
            "{case}"
        );
    }
}

#[test]
fn resource_errors_follow_the_clients_era() {
    for pair in all_pairs() {
        let from = pair.is_stateless();
        let answer = text(&mut pair.start("resources/read", "x:here", r#"{"uri":"x:here"}"#, ""));
        assert!(answer.contains(r#""contents":[{"uri":"x:here","text":"t","n":1.0}]"#), "{answer}");
        let hints = answer.contains(r#""ttlMs":0,"cacheScope":"private""#);
        // Stateless clients require the hints, whatever the upstream sends.
        assert_eq!(hints, from, "{answer}");
        assert_eq!(answer.contains("resultType"), from, "{answer}");
        let code = if from { -32602 } else { -32002 };
        assert_eq!(
            text(&mut pair.start("resources/read", "x:gone", r#"{"uri":"x:gone"}"#, "")),
            format!(
                r#"{{"jsonrpc":"2.0","id":"i\u0064","error":{{"code":{code},"message":"gone","data":{{"uri":"x:gone","n":1.0}}}}}}"#
            )
        );
    }
}

#[test]
fn progress_and_logs_reach_their_call() {
    for pair in all_pairs() {
        if !pair.is_stateless() {
            let set = r#"{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"warning"}}"#;
            assert_eq!(pair.post("", "", set).response().status, 200);
        }
        let messages = read_events(&mut pair.call("talk", "", r#""progressToken":"t\u0041""#));
        let progress = |value: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"t\u0041","progress":{value},"message":"m"}}}}"#
            )
        };
        let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warning","data":1.0}}"#;
        assert_eq!(messages[..3], [progress("1.0"), progress("2.50"), log.to_owned()]);
        assert_eq!(messages.len(), 4, "{messages:?}");
        let request = pair.upstream.wait_for_post(r#""name":"talk""#, 0).1;
        assert!(!request.contains("t\\u0041") && request.contains("progressToken"), "{request}");
    }
}

/// Returns the upstream's question as the client receives it.
fn question_from_fake() -> String {
    QUESTION.replace("\"?\"", "\"The server \\\"fake\\\" asks, not Countersign: ?\"")
}

/// A client's answer with unusual formatting.
const ANSWER: &str = "{\"action\":\"accept\",\"content\":{\"n\":12345678901234567890123,\"s\":\"\\u0041\"} }";

#[test]
fn handshake_clients_are_asked_during_the_call() {
    for upstream in [HANDSHAKE, STATELESS] {
        let pair = Pair::new(HANDSHAKE, upstream, "", &json!({"elicitation": {}}));
        let mut call = pair.call("ask", "", "");
        assert!(call.head().header("content-type").unwrap().starts_with("text/event-stream"));
        let question = std::iter::from_fn(|| call.event()).filter_map(|e| e.data).find(|d| !d.is_empty()).unwrap();
        let params: Value = serde_json::from_str(&question).unwrap();
        let question_of_fake = question_from_fake();
        assert!(
            question.contains(&format!(r#""method":"elicitation/create","params":{question_of_fake}"#)),
            "{question}"
        );
        // An answer to no question, one of another session, and then the client's.
        for id in ["77", "\"user_name\""] {
            let stray = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            assert_eq!(pair.post("", "", &stray).response().status, 202);
        }
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{ANSWER}}}"#, params["id"]);
        assert_eq!(pair.post("", "", &answer).response().status, 202);
        let result = call.expect_event().data.unwrap();
        assert!(result.contains(ANSWER), "{result}");
        if upstream == STATELESS {
            let retry = pair.upstream.wait_for_post(r#""name":"ask""#, 1).1;
            let more = format!(r#""inputResponses":{{"user_name":{ANSWER}}},"requestState":{STATE}"#);
            assert!(retry.contains(&more) && retry.contains(ARGUMENTS), "{retry}");
            assert!(!result.contains("resultType"), "{result}");
        }
    }
}

#[test]
fn stateless_clients_get_questions_as_input() {
    for upstream in [HANDSHAKE, STATELESS] {
        let pair = Pair::new(STATELESS, upstream, "", &json!({}));
        let needed = text(&mut pair.call("ask", "", ""));
        assert!(
            needed.contains(&format!(
                r#""resultType":"input_required","inputRequests":{{"user_name":{{"method":"elicitation/create","params":{}}}}}"#,
                question_from_fake()
            )),
            "{needed}"
        );
        let parsed: Value = serde_json::from_str(&needed).unwrap();
        let state = parsed["result"]["requestState"].to_string();
        assert!(!needed.contains(STATE), "{needed}");
        let retry = |tool: &str, responses: &str, state: &str| {
            let more = format!(r#","inputResponses":{responses},"requestState":{state}"#);
            pair.call(tool, &more, "")
        };
        let answers = format!(r#"{{"user_name":{ANSWER},"extra":{{}}}}"#);
        if upstream == STATELESS {
            let done = text(&mut retry("ask", &answers, &state));
            assert!(done.contains(ANSWER) && done.contains(STATE), "{done}");
            continue;
        }
        // State of another request, altered, incomplete, complete, and reused.
        let refused = |tool: &str, state: &str| {
            let answer: Value = serde_json::from_str(&text(&mut retry(tool, &answers, state))).unwrap();
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        };
        refused("bytes", &state);
        refused("ask", &state.replace('"', "").chars().rev().collect::<String>().pipe(|s| format!("\"{s}\"")));
        let again: Value = serde_json::from_str(&text(&mut retry("ask", "{}", &state))).unwrap();
        assert_eq!(again["result"]["inputRequests"], parsed["result"]["inputRequests"]);
        refused("ask", &state);
        let state = again["result"]["requestState"].to_string();
        let done = text(&mut retry("ask", &answers, &state));
        assert!(done.contains(ANSWER) && done.contains(r#""resultType":"complete""#), "{done}");
        refused("ask", &state);
        assert_eq!(pair.upstream.wait_for_post(r#""name":"ask""#, 0).1.matches("requestState").count(), 0);
    }
}

#[test]
fn call_waiting_for_answers_is_counted_once() {
    let upstream = Upstream::start(HANDSHAKE);
    let config = json!({
        "policy": {"default": "review_all", "mode": "simulate"},
        "modules": {"tracker": {"enabled": false}},
        "mcpServers": {"fake": {"url": upstream.url, "prefix": ""}},
    });
    let pair = Pair::start_with_config(STATELESS, upstream, &config, "bytes", &json!({}));
    let counted = || {
        let metrics = pair.gateway.request("GET", "/metrics", &[], b"").text();
        let line =
            metrics.lines().find(|line| line.starts_with("countersign_policy_simulated_total")).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    let needed: Value = serde_json::from_str(&text(&mut pair.call("ask", "", ""))).unwrap();
    assert_eq!(counted(), Some(1), "{needed}");
    let more =
        format!(r#","inputResponses":{{"user_name":{ANSWER}}},"requestState":{}"#, needed["result"]["requestState"]);
    let done = text(&mut pair.call("ask", &more, ""));
    assert!(done.contains(r#""resultType":"complete""#), "{done}");
    assert_eq!(counted(), Some(1), "it goes on with the answers");
    let refused = text(&mut pair.call("ask", &more, ""));
    assert!(refused.contains("-32602"), "{refused}");
    assert_eq!(counted(), Some(1), "nothing was called");
    text(&mut pair.call("ask", "", ""));
    assert_eq!(counted(), Some(2), "another call");
}

trait Pipe: Sized {
    fn pipe<T>(self, f: impl FnOnce(Self) -> T) -> T {
        f(self)
    }
}
impl Pipe for String {}

#[test]
fn incapable_client_is_not_asked() {
    for upstream in [HANDSHAKE, STATELESS] {
        let pair = Pair::new(HANDSHAKE, upstream, "", &json!({}));
        let answer: Value = serde_json::from_str(&text(&mut pair.call("ask", "", ""))).unwrap();
        if upstream == STATELESS {
            assert_eq!(answer["result"]["isError"], true, "{answer}");
        } else {
            // The upstream is told, and continues as it likes.
            assert_eq!(answer["result"]["got"]["error"]["code"], -32601, "{answer}");
        }
    }
}

#[test]
fn cancelled_call_is_cancelled_upstream() {
    for pair in all_pairs() {
        let call = pair.call("slow", "", "");
        pair.upstream.wait_for_post(r#""name":"slow""#, 0);
        if !pair.is_stateless() {
            // Closing the connection is not a cancellation in this era.
            let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"id"}}"#;
            assert_eq!(pair.post("", "", cancel).response().status, 202);
        }
        drop(call);
        pair.upstream.wait_for_cancellation();
    }
}

#[test]
fn required_urls_are_input_for_stateless_clients() {
    let pair = Pair::new(STATELESS, HANDSHAKE, "", &json!({}));
    let needed: Value = serde_json::from_str(&text(&mut pair.call("url", "", ""))).unwrap();
    let message = "The server \"fake\" asks you to open a page at a.example. Not Countersign: open";
    let question = json!({"mode": "url", "url": "https://a.example/", "message": message});
    let input_requests = json!({"e1": {"method": "elicitation/create", "params": question}});
    assert_eq!(needed["result"]["inputRequests"], input_requests, "{needed}");
    let pair = Pair::new(HANDSHAKE, HANDSHAKE, "", &json!({"elicitation": {"url": {}}}));
    let error: Value = serde_json::from_str(&text(&mut pair.call("url", "", ""))).unwrap();
    assert_eq!(error["error"]["code"], -32042, "{error}");
    assert_eq!(error["error"]["data"]["elicitations"][0]["message"], message, "{error}");
}

#[test]
fn prefix_is_removed_from_names_and_uris() {
    for (client, upstream) in [(HANDSHAKE, STATELESS), (STATELESS, HANDSHAKE)] {
        let pair = Pair::new(client, upstream, "p_", &json!({}));
        let answer = text(&mut pair.call("p_bytes", "", ""));
        assert!(answer.contains("12345678901234567890123"), "{answer}");
        pair.upstream.wait_for_post(r#""params":{"name":"bytes","arguments""#, 0);
        let answer = text(&mut pair.start("resources/read", "fake+x:here", r#"{"uri":"fake+x:here"}"#, ""));
        assert!(answer.contains(r#"[{"uri":"fake+x:here","text":"t","n":1.0}]"#), "{answer}");
        pair.upstream.wait_for_post(r#""params":{"uri":"x:here""#, 0);
    }
}
