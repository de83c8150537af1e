//! A small conforming MCP server in both eras, on stdio, HTTP and WebSocket. With `--fault ID`, it violates the
//! protocol in the one way that the check of that name detects.
//!
//! It shares no code with the gateway or the prober, so that a mistake is not made twice.
//!
//! Faults that begin with `run/` concern a whole run instead of one check: ids of another type (after a banner), no
//! ids, answers of 16 MiB, calls without answers, and answers with the credentials that it received.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "test code")]

mod server_transports;

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use base64::Engine as _;
use serde_json::{Value, json};

const MODERN: &str = "2026-07-28";
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

struct Server {
    fault: String,
    /// Set for the stateless revision; otherwise the handshake is served.
    modern: bool,
    listed: AtomicU32,
    sessions: Mutex<HashSet<String>>,
    /// Events of all streams, each with the id of its stream.
    events: Mutex<Vec<(usize, String)>>,
    /// The credentials of the environment or of the last request.
    credentials: Mutex<String>,
}

/// The state of one connection.
#[derive(Default)]
struct Peer {
    initialized: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let server = Arc::new(Server {
        fault: value("--fault").unwrap_or_default(),
        modern: arguments.iter().any(|argument| argument == "--modern"),
        listed: AtomicU32::new(0),
        sessions: Mutex::default(),
        events: Mutex::default(),
        credentials: Mutex::new(std::env::var("TOKEN").ok().or_else(|| value("--token")).unwrap_or_default()),
    });
    if arguments.iter().any(|argument| argument == "--listen") {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        println!("{}", listener.local_addr().unwrap());
        for stream in listener.incoming() {
            let (server, stream) = (Arc::clone(&server), stream.unwrap());
            std::thread::spawn(move || server_transports::serve(&server, stream));
        }
        return;
    }
    server_transports::stdio(&server);
}

fn error(id: Option<&Value>, code: i64, message: &str) -> Value {
    let mut response = json!({ "jsonrpc": "2.0", "error": { "code": code, "message": message } });
    if let Some(id) = id {
        response["id"] = id.clone();
    }
    response
}

/// Returns the nesting depth, without a parser that could fail at it.
fn depth(text: &[u8]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for byte in text {
        match byte {
            b'[' | b'{' => now += 1,
            b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

impl Server {
    fn has(&self, fault: &str) -> bool {
        self.fault == fault
    }

    fn recorded_credentials(&self) -> String {
        self.credentials.lock().unwrap().clone()
    }

    /// Ends the process if the fault is to die of this input.
    fn exit_if_faulty(&self, text: &[u8]) {
        let input = String::from_utf8_lossy(text);
        let parsed: Option<Value> = serde_json::from_slice(text).ok();
        let of = |value: &Option<Value>, name: &str| value.as_ref().and_then(|value| value.get(name)).cloned();
        let dies = match self.fault.as_str() {
            "robustness/broken-json" => parsed.is_none() && depth(text) < 100 && input.contains("nonsense"),
            "robustness/invalid-utf-8" => std::str::from_utf8(text).is_err(),
            "robustness/wrong-types" => of(&parsed, "params").is_some_and(|params| params.is_string()),
            "robustness/depth" => depth(text) > 1000,
            "robustness/numbers" => input.contains("99999999999999999999999999"),
            "robustness/surrogates" => input.contains("\\udfff"),
            "robustness/duplicate-keys" => input.matches("\"id\":").count() > 1 && !input.starts_with('['),
            "robustness/arrays" => input.trim() == "[]",
            "robustness/responses" => input.contains("check-nobody"),
            "robustness/names" => input.contains("__proto__"),
            _ => false,
        };
        if dies {
            std::process::exit(101);
        }
    }

    /// Returns the messages to write back, each on a separate line.
    fn answers(&self, peer: &mut Peer, text: &[u8]) -> Vec<String> {
        self.exit_if_faulty(text);
        let id_of_nothing = if self.modern { None } else { Some(Value::Null) };
        let text = text.trim_ascii();
        if text.is_empty() {
            return Vec::new();
        }
        if depth(text) > 100 {
            return vec![error(id_of_nothing.as_ref(), -32600, "too deep").to_string()];
        }
        let Ok(message) = serde_json::from_slice::<Value>(text) else {
            let code = if self.has("codes/parse-error") { -32000 } else { -32700 };
            return vec![error(id_of_nothing.as_ref(), code, "no JSON").to_string()];
        };
        let id = message.get("id").filter(|id| id.is_string() || id.is_i64() || id.is_u64());
        let is_message = message["jsonrpc"] == "2.0" && message.is_object();
        if is_message
            && message.get("method").is_none()
            && (message.get("result").is_some() || message.get("error").is_some())
        {
            return Vec::new();
        }
        let method = message["method"].as_str().filter(|_| is_message && (id.is_some() || message.get("id").is_none()));
        let Some(method) = method else {
            let code = if self.has("codes/invalid-request") { -32000 } else { -32600 };
            return vec![error(id.or(id_of_nothing.as_ref()), code, "no request").to_string()];
        };
        let Some(id) = id else {
            if method == "notifications/initialized" {
                peer.initialized = true;
            }
            let answered = (self.has("messages/notification-unanswered") && method == "notifications/check/unknown")
                || (self.has("utilities/cancel-unknown") && method == "notifications/cancelled");
            return if answered {
                vec![json!({ "jsonrpc": "2.0", "id": null, "result": {} }).to_string()]
            } else {
                Vec::new()
            };
        };
        if method != "initialize" && !self.modern && !peer.initialized && self.has("handshake/early-request") {
            return Vec::new();
        }
        if method == "subscriptions/listen" && self.modern {
            return self.subscription_messages(id, &message["params"]);
        }
        if self.has("messages/unknown-members") && message.get("check").is_some() {
            return vec![error(Some(id), -32602, "what is check?").to_string()];
        }
        let mut response = match self.result(peer, method, &message["params"]) {
            Ok(mut result) => {
                if self.modern && result.is_object() {
                    if !self.has("stateless/result-type") {
                        result["resultType"] = "complete".into();
                    }
                    if !self.has("stateless/server-info") {
                        result["_meta"] =
                            json!({ "io.modelcontextprotocol/serverInfo": { "name": "model", "version": "1" } });
                    }
                }
                json!({ "jsonrpc": "2.0", "id": id, "result": result })
            }
            Err(failed) => {
                let mut response = error(Some(id), failed.0, failed.1);
                if failed.0 == -32022 {
                    response["error"]["data"] =
                        json!({ "supported": [MODERN], "requested": version(&message["params"]) });
                }
                response
            }
        };
        self.break_envelope(&mut response, id, method);
        let mut text = response.to_string();
        if self.has("run/large") && !matches!(method, "initialize" | "server/discover") {
            text = text.replace("\"result\":{", &format!("\"result\":{{\"pad\":[{}[]],", "[],".repeat(16 << 20 >> 2)));
        }
        if self.has("messages/id-large") {
            text = text.replace("9007199254740991", "9007199254740992");
        }
        let mut all = Vec::new();
        if method == "tools/call" {
            if self.has("run/silent-calls") {
                return all;
            }
            if self.has("utilities/no-requests") {
                all.push(json!({ "jsonrpc": "2.0", "id": "roots", "method": "roots/list" }).to_string());
            }
            all.extend(self.progress_messages(&message["params"]["_meta"]["progressToken"]));
            if self.has("run/babble") {
                let note = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":[{}[]]}}}}"#,
                    "[],".repeat(95_000)
                );
                all.extend(std::iter::repeat_n(note, 60));
            }
        }
        all.push(text);
        if method == "initialize" && self.has("handshake/early-server-request") {
            all.push(json!({ "jsonrpc": "2.0", "id": "roots", "method": "roots/list" }).to_string());
        }
        all
    }

    /// Returns the notifications of a running call.
    fn progress_messages(&self, token: &Value) -> Vec<String> {
        let token = match token {
            Value::Null => return Vec::new(),
            _ if self.has("utilities/progress-token") => &Value::String("another".to_owned()),
            token => token,
        };
        let values = if self.has("utilities/progress-increases") { [1, 1] } else { [1, 2] };
        let notification = |progress: i32| {
            let params = json!({ "progressToken": token, "progress": progress, "total": 2 });
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }).to_string()
        };
        values.map(notification).to_vec()
    }

    /// Returns the beginning of a subscription without events.
    fn subscription_messages(&self, id: &Value, params: &Value) -> Vec<String> {
        let of = |method: &str, mut params: Value| {
            params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
            json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
        };
        let mut filter = json!({});
        if params["notifications"]["toolsListChanged"] == true {
            filter["toolsListChanged"] = true.into();
        }
        if self.has("utilities/listen-filter") {
            filter["promptsListChanged"] = true.into();
        }
        let acknowledged = of("notifications/subscriptions/acknowledged", json!({ "notifications": filter }));
        if self.has("utilities/listen") {
            return vec![of("notifications/tools/list_changed", json!({})), acknowledged];
        }
        vec![acknowledged]
    }

    /// Applies faults of the envelope.
    fn break_envelope(&self, response: &mut Value, id: &Value, method: &str) {
        let harmless = matches!(method, "ping" | "server/discover");
        match self.fault.as_str() {
            "messages/jsonrpc" if harmless && *id == 7 => response["jsonrpc"] = "1.0".into(),
            "messages/id-integer" if *id == 42 => response["id"] = "42".into(),
            "messages/id-string" if *id == "0042" => response["id"] = 42.into(),
            "messages/one-outcome" if method == "check/no-such-method" => response["result"] = json!({}),
            "messages/result-object" if harmless && *id == 7 => response["result"] = json!([]),
            "messages/error-object" if method == "check/no-such-method" => response["error"]["message"] = Value::Null,
            "run/text-ids" if id.is_number() => response["id"] = id.to_string().into(),
            "run/no-ids" => response["id"] = Value::Null,
            "run/given" => response["jsonrpc"] = self.recorded_credentials().into(),
            "messages/concurrent" if (100..108).any(|known| *id == known) => response["id"] = 100.into(),
            _ => {}
        }
    }

    fn result(&self, peer: &mut Peer, method: &str, params: &Value) -> Result<Value, (i64, &'static str)> {
        if self.modern {
            let meta = &params["_meta"];
            if meta["io.modelcontextprotocol/clientCapabilities"].is_null()
                && !self.has("stateless/client-capabilities")
            {
                return Err((-32602, "no capabilities"));
            }
            match version(params) {
                Value::Null if self.has("stateless/envelope") => {}
                Value::Null => return Err((-32602, "no version")),
                version if version != MODERN => {
                    return Err((
                        if self.has("stateless/unsupported-version") { -32602 } else { -32022 },
                        "another version",
                    ));
                }
                _ => {}
            }
        }
        let listing = |of: &str, all: Value| {
            let second = of == "tools" && params["cursor"] == "2" && !self.has("tools/pages");
            if params["cursor"].is_string() && !second {
                return if self.has("codes/internal-error") && of == "resources" {
                    Err((-32603, "panicked"))
                } else if self.has("codes/reserved") && of == "resources" {
                    Err((-32050, "own"))
                } else if self.has("tools/bad-cursor") && of == "tools" {
                    Ok(json!({ of: all }))
                } else {
                    Err((-32602, "no such cursor"))
                };
            }
            let mut result = json!({ of: all });
            if let Some(tools) = result["tools"].as_array_mut() {
                let rest = tools.split_off(1);
                if second {
                    *tools = rest;
                } else {
                    result["nextCursor"] = "2".into();
                }
            }
            if self.modern && !self.has("stateless/caching") {
                result["ttlMs"] = 0.into();
                result["cacheScope"] = "private".into();
            }
            Ok(result)
        };
        if method == "server/discover" {
            peer.initialized = true;
        }
        if self.modern && !peer.initialized && self.has("stateless/first-message") {
            return Err((-32600, "discover first"));
        }
        match method {
            "initialize" if !self.modern => self.initialize(params),
            "server/discover" if self.modern => {
                let mut result = json!({ "supportedVersions": [MODERN], "capabilities": self.capabilities(), "ttlMs": 0, "cacheScope": "public" });
                if self.has("stateless/discover") {
                    result["supportedVersions"] = json!([MODERN, 7]);
                }
                Ok(result)
            }
            "ping" if !self.modern => Ok(if self.has("handshake/ping") { json!({ "pong": true }) } else { json!({}) }),
            "ping" if self.has("stateless/removed-methods") => Ok(json!({})),
            "tools/list" => {
                let mut all = self.tools();
                if self.has("tools/stable") && self.listed.fetch_add(1, Ordering::SeqCst).is_multiple_of(3) {
                    all[0]["description"] = "new".into();
                }
                listing("tools", all)
            }
            "logging/setLevel" if !self.modern => {
                let is_valid = params["level"] == "emergency" || self.has("utilities/log-level");
                if is_valid { Ok(json!({})) } else { Err((-32602, "no such level")) }
            }
            "tools/call" if !self.modern && !peer.initialized => Err((-32600, "initialize first")),
            "tools/call" => self.call(params),
            "resources/list" => listing("resources", self.resources()),
            "resources/templates/list" => {
                if self.has("handshake/capabilities-answer") {
                    return Err((-32602, "no"));
                }
                let name = if self.has("lists/templates") { Value::Null } else { "entry".into() };
                listing("resourceTemplates", json!([{ "uriTemplate": "model://{name}", "name": name }]))
            }
            "resources/read" if params["uri"] == "model://one" => {
                let mut contents = json!({ "uri": "model://one", "text": "one" });
                if self.has("lists/resource-contents") {
                    contents["blob"] = "b25l".into();
                }
                Ok(json!({ "contents": [contents], "ttlMs": 0, "cacheScope": "private" }))
            }
            "resources/read" => Err(match (self.has("lists/missing-resource"), self.modern) {
                (true, _) => (-31000, "missing"),
                (false, true) => (-32602, "missing"),
                (false, false) => (-32002, "missing"),
            }),
            "resources/subscribe" if !self.modern => Ok(json!({})),
            "resources/unsubscribe" if !self.modern && self.has("lists/subscribe") => Err((-32601, "no")),
            "resources/unsubscribe" if !self.modern => Ok(json!({})),
            "prompts/list" => {
                let arguments = if self.has("lists/prompts") {
                    json!(["topic"])
                } else {
                    json!([{ "name": "topic", "required": true }])
                };
                listing("prompts", json!([{ "name": "greet", "arguments": arguments }]))
            }
            "prompts/get" if params["name"] == "greet" => {
                let role = if self.has("lists/prompt-messages") { "system" } else { "user" };
                Ok(json!({ "messages": [{ "role": role, "content": { "type": "text", "text": "Hello" } }] }))
            }
            "prompts/get" => Err((if self.has("lists/unknown-prompt") { -31000 } else { -32602 }, "no such prompt")),
            "completion/complete" => {
                let count = if self.has("lists/completion") { 101 } else { 3 };
                let values: Vec<String> = (0..count).map(|at| format!("v{at}")).collect();
                Ok(json!({ "completion": { "values": values } }))
            }
            _ => Err((if self.has("codes/method-not-found") { -31000 } else { -32601 }, "no such method")),
        }
    }

    fn capabilities(&self) -> Value {
        let mut all = json!({ "tools": { "listChanged": self.modern }, "resources": { "subscribe": !self.modern }, "prompts": {}, "completions": {} });
        if !self.modern {
            all["logging"] = json!({});
        }
        if self.has("handshake/capabilities") {
            all["experimental"] = true.into();
        }
        all
    }

    fn initialize(&self, params: &Value) -> Result<Value, (i64, &'static str)> {
        let requested = params["protocolVersion"].as_str();
        if requested.is_none() && !self.has("handshake/initialize-without-params") {
            return Err((-32602, "no version"));
        }
        let requested = requested.unwrap_or(LEGACY[0]);
        let version = match (LEGACY.contains(&requested), self.fault.as_str()) {
            (true, "handshake/version-format") => "2025.11.25",
            (true, "handshake/known-version") => LEGACY[3],
            (true, _) => requested,
            (false, "handshake/unknown-version") => requested,
            (false, _) => LEGACY[0],
        };
        let name = match self.fault.as_str() {
            "handshake/server-info" => Value::Null,
            "run/given" => self.recorded_credentials().into(),
            _ => "model".into(),
        };
        Ok(
            json!({ "protocolVersion": version, "capabilities": self.capabilities(), "serverInfo": { "name": name, "version": "1" } }),
        )
    }

    fn tools(&self) -> Value {
        let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] });
        let mut echo = json!({ "name": "echo", "inputSchema": schema, "outputSchema": schema, "annotations": { "readOnlyHint": true } });
        let mut write = json!({ "name": "write", "inputSchema": { "type": "object" } });
        match self.fault.as_str() {
            "tools/list" => write["inputSchema"] = Value::Null,
            "tools/unique" => write["name"] = "echo".into(),
            "tools/names" => write["name"] = "write it!".into(),
            // Longer than what a report repeats of it.
            "run/given" => write["name"] = format!("{}{}", "x".repeat(190), self.recorded_credentials()).into(),
            "tools/input-schema-root" => write["inputSchema"] = json!({ "properties": {} }),
            "tools/schemas" => write["inputSchema"]["properties"] = json!({ "a": { "type": "strin" } }),
            "tools/annotations" => write["annotations"] = json!({ "readOnlyHint": "no" }),
            "tools/structured" => echo["outputSchema"]["required"] = json!(["text", "length"]),
            _ => {}
        }
        json!([echo, write])
    }

    fn call(&self, params: &Value) -> Result<Value, (i64, &'static str)> {
        let Some(name) = params["name"].as_str() else {
            return Err((if self.has("codes/invalid-params") { -31000 } else { -32602 }, "no name"));
        };
        if name != "echo" {
            return if self.has("codes/unknown-tool") {
                Ok(json!({ "content": [] }))
            } else {
                Err((-32602, "no such tool"))
            };
        }
        let text = params["arguments"]["text"].as_str();
        if text.is_none() && !self.has("tools/arguments") {
            return Ok(json!({ "content": [{ "type": "text", "text": "`text` is required" }], "isError": true }));
        }
        let text = text.unwrap_or("nothing");
        let mut result =
            json!({ "content": [{ "type": "text", "text": text }], "structuredContent": { "text": text } });
        match self.fault.as_str() {
            "tools/content" => result["content"][0] = json!({ "type": "text", "value": text }),
            "tools/is-error" => result["isError"] = "false".into(),
            _ => {}
        }
        Ok(result)
    }

    fn resources(&self) -> Value {
        if self.has("lists/resources") {
            json!([{ "uri": "model://one" }])
        } else {
            json!([{ "uri": "model://one", "name": "one" }])
        }
    }
}

/// Returns the version that a stateless request names.
fn version(params: &Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"].clone()
}
