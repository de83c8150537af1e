//! The counting upstream: a stateless MCP server on raw sockets in the test's process, so that it outlives every
//! gateway. Its effects are on disk before it answers.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use serde_json::{Value, json};

use super::wire::{self, Reaction};

const REVISION: &str = "2026-07-28";
/// The extension of tasks.
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// One applied call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCall {
    pub value: String,
    /// The previous value.
    pub base: String,
}

#[derive(Default)]
struct State {
    /// All applied calls by key.
    applied_calls: BTreeMap<String, Vec<AppliedCall>>,
    /// The keys of all applied calls, in their order.
    order: Vec<String>,
    texts: BTreeMap<String, String>,
    /// The running call of each target by its key, and calls that came while another one was running.
    working: BTreeMap<String, String>,
    overlaps: Vec<String>,
    /// Set once held calls may be answered.
    released: bool,
}

pub struct Upstream {
    state: Mutex<State>,
    ledger: Mutex<File>,
    release: Condvar,
}

impl Upstream {
    /// Starts the upstream; also returns its address.
    pub fn start(ledger: &Path) -> (Arc<Self>, String) {
        let ledger = File::options().create_new(true).append(true).open(ledger).unwrap();
        let upstream = Arc::new(Self { state: Mutex::default(), ledger: Mutex::new(ledger), release: Condvar::new() });
        let shared = Arc::clone(&upstream);
        let port = wire::serve(move |line, body| shared.react(line, body));
        (upstream, format!("http://127.0.0.1:{port}/mcp"))
    }

    pub fn applied_calls(&self) -> BTreeMap<String, Vec<AppliedCall>> {
        self.state.lock().unwrap().applied_calls.clone()
    }

    /// Returns the keys of the applied calls in the order in which they were applied.
    pub fn order(&self) -> Vec<String> {
        self.state.lock().unwrap().order.clone()
    }

    /// Returns `true` if the call with this key is still running.
    pub fn is_working_on(&self, key: &str) -> bool {
        self.state.lock().unwrap().working.values().any(|working| working == key)
    }

    /// Returns the calls that came while another one of their target was running, with both keys.
    pub fn overlaps(&self) -> Vec<String> {
        self.state.lock().unwrap().overlaps.clone()
    }

    pub fn has_applied(&self, key: &str) -> bool {
        self.state.lock().unwrap().applied_calls.contains_key(key)
    }

    /// Answers the held calls, now and in future.
    pub fn release(&self) {
        self.state.lock().unwrap().released = true;
        self.release.notify_all();
    }

    /// Changes a target from outside.
    pub fn alter(&self, key: &str, text: String) {
        self.state.lock().unwrap().texts.insert(key.to_owned(), text);
    }

    fn text(state: &State, key: &str) -> String {
        state.texts.get(key).cloned().unwrap_or_else(|| format!("{key} at first"))
    }

    /// Applies a value on disk before the answer, so that it stays applied whatever happens to the answer.
    fn apply(&self, key: &str, value: &str) {
        let mut ledger = self.ledger.lock().unwrap();
        writeln!(ledger, "{}", json!({"key": key, "value": value})).unwrap();
        ledger.sync_data().unwrap();
        let mut state = self.state.lock().unwrap();
        let base = Self::text(&state, key);
        state.texts.insert(key.to_owned(), value.to_owned());
        state.order.push(key.to_owned());
        state.applied_calls.entry(key.to_owned()).or_default().push(AppliedCall { value: value.to_owned(), base });
    }

    /// Starts a call at a target, which must be the only one until it ends.
    fn begin(&self, target: &str, key: &str) {
        let mut state = self.state.lock().unwrap();
        if let Some(other) = state.working.insert(target.to_owned(), key.to_owned()) {
            state.overlaps.push(format!("{key} while {other} was at {target}"));
        }
    }

    fn end(&self, target: &str, key: &str) {
        let mut state = self.state.lock().unwrap();
        if state.working.get(target).is_some_and(|other| other == key) {
            state.working.remove(target);
        }
    }

    /// Runs to the end whatever happens to the connection or the gateway.
    fn react(self: &Arc<Self>, line: &str, body: &str) -> Reaction {
        if !line.starts_with("POST") {
            return Some((405, String::new()));
        }
        let message: Value = serde_json::from_str(body).unwrap();
        let id = &message["id"];
        let capabilities = json!({"tools": {}, "extensions": {TASKS: {}}});
        let mut result = match message["method"].as_str().unwrap_or_default() {
            "tasks/get" | "tasks/cancel" => self.task(&message["params"]["taskId"]),
            _ if id.is_null() => return Some((202, String::new())),
            // Applied without an answer, so nobody hears of it.
            "tools/call" => {
                let server = line.split(' ').nth(1).and_then(|path| path.strip_prefix("/mcp/"));
                self.run_call(server, &message["params"])?
            }
            "server/discover" => json!({"supportedVersions": [REVISION], "capabilities": capabilities}),
            "tools/list" => tools(),
            _ => json!({}),
        };
        if result["resultType"].is_null() {
            result["resultType"] = "complete".into();
        }
        result["ttlMs"] = 60_000.into();
        result["cacheScope"] = "public".into();
        result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": {"name": "counter", "version": "1"}});
        Some((200, json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()))
    }

    fn task(&self, id: &Value) -> Value {
        let mut task = json!({
            "taskId": id, "status": "working", "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
            "ttlMs": null, "pollIntervalMs": 50,
        });
        if self.state.lock().unwrap().released {
            task["status"] = "completed".into();
            task["result"] = json!({"resultType": "complete", "content": [{"type": "text", "text": "at last"}]});
        }
        task
    }

    /// Runs a call with its effect on its target: a text of `doc`, else the whole server. Calls allowed by a standing
    /// rule are not serialized.
    fn run_call(self: &Arc<Self>, server: Option<&str>, params: &Value) -> Option<Value> {
        let key = params["arguments"]["key"].as_str().unwrap_or_default().to_owned();
        let target = match server {
            Some("doc") => key.clone(),
            Some(server) if server != "ruled" => server.to_owned(),
            _ => return self.call(params),
        };
        if params["name"] == "read" {
            return self.call(params);
        }
        self.begin(&target, &key);
        let answer = self.call(params);
        if answer.is_some() {
            self.end(&target, &key);
        } else {
            // The connection breaks, and the call continues.
            let upstream = Arc::clone(self);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(400));
                upstream.end(&target, &key);
            });
        }
        answer
    }

    fn call(&self, params: &Value) -> Option<Value> {
        let text = |name: &str| params["arguments"][name].as_str().unwrap_or_default();
        let says = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        if params["name"] == "read" {
            // Some calls are never answered.
            if text("key") == "lost" {
                return None;
            }
            // Some calls take until held calls are released.
            if text("key") == "later" {
                let mut task = self.task(&"later".into());
                task["resultType"] = "task".into();
                return Some(task);
            }
            return Some(says(&Self::text(&self.state.lock().unwrap(), text("key"))));
        }
        self.apply(text("key"), text("value"));
        match text("mode") {
            // Long enough that kills often hit the call.
            "slow" => std::thread::sleep(Duration::from_millis(60)),
            // Longer than a killed gateway takes to restart.
            "long" => std::thread::sleep(Duration::from_millis(1200)),
            "lost" => return None,
            "held" => drop(self.release.wait_while(self.state.lock().unwrap(), |state| !state.released).unwrap()),
            "fail" => {
                let mut failed = says("It failed on purpose");
                failed["isError"] = true.into();
                return Some(failed);
            }
            _ => {}
        }
        let mut done = says("Done");
        done["structuredContent"] = json!({"value": text("value")});
        Some(done)
    }
}

fn tools() -> Value {
    let text = json!({"type": "string"});
    json!({"tools": [{
        "name": "apply",
        "description": "Does it, and counts",
        "inputSchema": {
            "type": "object",
            "required": ["key", "value", "mode"],
            "properties": {"key": text, "value": text, "mode": text},
        },
    }, {
        "name": "read",
        "description": "What is there",
        "annotations": {"readOnlyHint": true},
        "inputSchema": {"type": "object", "required": ["key"], "properties": {"key": text}},
    }]})
}
