//! The state that outlives the gateways: their addresses, the requests sent, and the answers received.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{plans::PlanPromise, receiver::Receiver, scenario::Scenario, upstream::Upstream};
use support::{MAX_WAIT, http::Conn};

/// The number of names of the upstream for the most frequent tool; calls to one name run one after another.
pub const UPSTREAM_NAMES: usize = 4;

/// The extension of tasks, as a stateless client declares it.
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The driver's knowledge about one proposal. Every answer is a promise.
#[derive(Clone, Debug, Default)]
pub struct Promise {
    /// Every id that an answer named; a repeat with the same idempotency key must name the same one.
    pub ids: BTreeSet<String>,
    pub approved: bool,
    pub edited: bool,
    /// An answer confirmed that it will never run.
    pub rejected: bool,
    pub withdrawn: bool,
    /// An approval was sent, answered or not, and was not undone.
    pub approval_sent: bool,
    /// An answer confirmed that an approval was undone.
    pub undone: bool,
    /// Its target was altered while it was approved, so it may be pending again.
    pub moved_late: bool,
    /// It was proposed as a task.
    pub task: bool,
    /// The outcome that a person settled.
    pub settled: Option<&'static str>,
    /// The standing rule that was created from the change.
    pub rule: Option<RulePromise>,
    /// Values that a reviewer approved, or tried to approve.
    pub values: BTreeSet<String>,
}

/// The driver's knowledge about a standing rule and its calls.
#[derive(Clone, Debug, Default)]
pub struct RulePromise {
    pub denies: bool,
    /// Rules that an answer named.
    pub ids: BTreeSet<String>,
    /// Rules whose revocation an answer confirmed.
    pub revoked: BTreeSet<String>,
    /// Unreviewed calls: the number sent, and the number answered.
    pub sent_calls: usize,
    pub answered: usize,
}

pub struct World {
    pub home: TempDir,
    pub upstream: Arc<Upstream>,
    pub receivers: [Receiver; 2],
    pub reviewers: [String; 3],
    /// The ports of the gateways that should be up; 0 between two lives of one.
    pub ports: Vec<AtomicU16>,
    /// The gateway that is asked next.
    next_gateway: AtomicUsize,
    /// The number of gateways started so far.
    pub lives: AtomicUsize,
    /// Set when no gateway will start any more.
    pub is_over: AtomicBool,
    /// Set when no new proposals are made; those in progress complete.
    pub has_enough: AtomicBool,
    /// The scenario that brings the gateway past the point that it is armed for.
    pub wanted_scenario: Mutex<Option<Scenario>>,
    pub promises: Mutex<BTreeMap<String, Promise>>,
    pub plans: Mutex<BTreeMap<String, PlanPromise>>,
    pub proposed: AtomicUsize,
    /// Requests that ended without an answer.
    pub unanswered: AtomicUsize,
    /// Counters of the agents' sessions.
    pub sessions: Sessions,
    began: Instant,
    /// Faults of gateways and the database, with their times.
    pub trace: Mutex<Vec<String>>,
}

/// Counters of sessions that continued and that ended.
#[derive(Debug, Default)]
pub struct Sessions {
    /// Sessions opened: the first of each agent, and replacements.
    pub starts: AtomicUsize,
    pub streams_resumed: AtomicUsize,
    pub sockets_resumed: AtomicUsize,
    /// Sessions that an agent was told are gone: by 404, or by `RESUME_TOO_LATE`.
    pub losses: AtomicUsize,
    pub too_late: AtomicUsize,
    /// Updates of changes that arrived in sessions.
    pub updates: AtomicUsize,
}

/// The parts of an answer that the driver uses.
pub struct Answer {
    pub status: u16,
    pub body: Value,
    /// The id of the session that it opens.
    pub session: Option<String>,
}

/// Bounds the repetition of a request over all faults.
pub struct RetryBudget<'a> {
    world: &'a World,
    began: Instant,
    lives: usize,
}

impl RetryBudget<'_> {
    /// Waits a little before the next attempt.
    pub fn pause(&self, what: impl Fn() -> String) {
        // Either many gateways had the time for it, or one had a long time.
        let many = self.world.lives.load(Ordering::SeqCst) > self.lives + 30;
        let limit = if many { MAX_WAIT * 6 } else { MAX_WAIT * 30 };
        assert!(self.began.elapsed() < limit, "never: {}\n{}", what(), self.world.log());
        assert!(!self.world.is_over.load(Ordering::SeqCst), "too late: {}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Answer {
    /// Builds an answer from a session's message, which itself says whether it is an error.
    pub fn in_session(body: Value) -> Self {
        Self { status: 200, body, session: None }
    }

    /// Returns `true` if the gateway could not do it now.
    pub fn is_retryable(&self) -> bool {
        self.status >= 500 || self.status == 429
    }
}

/// Three, because the editor of a change that needs two approvals leaves them to the others.
pub const REVIEWERS: [&str; 3] = ["carol", "dave", "erin"];

impl World {
    /// Creates a world with so many gateways at a time, each with its own directory.
    pub fn new(gateways: usize, make_keys: impl Fn(&Path, &str) -> String) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (upstream, url) = Upstream::start(&home.path().join("ledger"));
        // Two receivers, each refusing in its own way.
        let receivers = [Receiver::start(61, 53), Receiver::start(37, 71)];
        let data = home.path().join("data");
        let reviewers = REVIEWERS.map(|name| make_keys(&data, name));
        std::fs::write(home.path().join("countersign.yaml"), config(&url, &receivers)).unwrap();
        Self {
            home,
            upstream,
            receivers,
            reviewers,
            ports: (0..gateways).map(|_| AtomicU16::new(0)).collect(),
            next_gateway: AtomicUsize::new(0),
            lives: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            has_enough: AtomicBool::new(false),
            wanted_scenario: Mutex::default(),
            promises: Mutex::default(),
            plans: Mutex::default(),
            proposed: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            sessions: Sessions::default(),
            began: Instant::now(),
            trace: Mutex::default(),
        }
    }

    /// Returns the seconds since the beginning.
    pub fn seconds_since_start(&self, at: Instant) -> f64 {
        at.duration_since(self.began).as_secs_f64()
    }

    /// Records a fault for the analysis of failures.
    pub fn note_fault(&self, what: &str) {
        self.trace.lock().unwrap().push(format!("{what} at {:.3} s", self.seconds_since_start(Instant::now())));
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    pub fn log(&self) -> String {
        let homes = std::iter::once(self.home.path().to_owned()).chain((0..self.ports.len()).map(|n| self.node(n)));
        let mut all = String::new();
        for home in homes {
            let log = std::fs::read_to_string(home.join("log")).unwrap_or_default();
            let start = log.len().saturating_sub(8000);
            all += log.get(start..).unwrap_or(&log);
        }
        all
    }

    /// Returns the directory of one of several gateways.
    pub fn node(&self, n: usize) -> PathBuf {
        self.home.path().join(format!("node{n}"))
    }

    /// Returns the address of a gateway once there is one; of several, another one each time.
    pub fn address(&self) -> SocketAddr {
        loop {
            for _ in &self.ports {
                let turn = self.next_gateway.fetch_add(1, Ordering::Relaxed) % self.ports.len();
                match self.ports[turn].load(Ordering::SeqCst) {
                    0 => {}
                    port => return ([127, 0, 0, 1], port).into(),
                }
            }
            // However long a start takes on a slow machine: the starter fails by itself and reports it.
            assert!(!self.is_over.load(Ordering::SeqCst), "there is no gateway any more:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends one request to any gateway; `None` if no complete answer came.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Option<Answer> {
        let address = self.address();
        let answer = (|| {
            let mut conn = Conn::try_open(address).ok()?;
            let mut all = vec![("Content-Type", "application/json"), ("Connection", "close")];
            all.extend_from_slice(headers);
            let text = if body.is_null() { String::new() } else { body.to_string() };
            conn.request(method, path, &all, text.as_bytes());
            let response = conn.try_response()?;
            let session = response.header("mcp-session-id").map(str::to_owned);
            let body =
                if response.status == 202 && response.body.is_empty() { Value::Null } else { response.try_json()? };
            Some(Answer { status: response.status, body, session })
        })();
        if answer.is_none() {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
        answer
    }

    /// Sends a request like [`World::ask`], across all crashes, until there is an answer.
    pub fn ask_until_answered(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let patience = self.retry_budget();
        loop {
            // Not yet: the upstream's tools are still loading, or the store is overloaded.
            if let Some(answer) = self.ask(method, path, headers, body).filter(|answer| !answer.is_retryable()) {
                return answer;
            }
            patience.pause(|| format!("an answer to {method} {path} {body}"));
        }
    }

    pub fn retry_budget(&self) -> RetryBudget<'_> {
        RetryBudget { world: self, began: Instant::now(), lives: self.lives.load(Ordering::SeqCst) }
    }

    /// Sends a request of an agent that speaks 2026-07-28 and, with `tasks`, declares the extension; returns the
    /// result.
    pub fn rpc(&self, method: &str, name: &str, mut params: Value, tasks: bool) -> Answer {
        let extensions = if tasks { json!({"extensions": {TASKS: {}}}) } else { json!({}) };
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "crash-proof", "version": "1"});
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = extensions;
        let mut headers = vec![
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", method),
        ];
        if !name.is_empty() {
            headers.push(("Mcp-Name", name));
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.ask_until_answered("POST", "/mcp", &headers, &body)
    }

    /// Sends a GET as a reviewer.
    pub fn get_as_reviewer(&self, path: &str) -> Value {
        let bearer = format!("Bearer {}", self.reviewers[0]);
        let answer = self.ask_until_answered("GET", path, &[("Authorization", bearer.as_str())], &Value::Null);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Returns the change as a reviewer sees it. It must exist, because somebody was told of it.
    pub fn change(&self, id: &str) -> Value {
        let bearer = format!("Bearer {}", self.reviewers[0]);
        let answer = self.ask_until_answered(
            "GET",
            &format!("/api/changes/{id}"),
            &[("Authorization", bearer.as_str())],
            &Value::Null,
        );
        assert_eq!(answer.status, 200, "{id} was promised and is not there: {}", answer.body);
        answer.body
    }

    /// Sends a POST as a reviewer; `None` without an answer.
    pub fn review(&self, reviewer: usize, path: &str, body: &Value) -> Option<Answer> {
        let bearer = format!("Bearer {}", self.reviewers[reviewer]);
        self.ask("POST", path, &[("Authorization", bearer.as_str())], body)
    }

    /// Records that an answer named this change for that proposal.
    pub fn record_id(&self, key: &str, id: &str) {
        self.update_promise(key, |promise| {
            promise.ids.insert(id.to_owned());
        });
    }

    pub fn update_promise(&self, key: &str, change: impl FnOnce(&mut Promise)) {
        change(self.promises.lock().unwrap().entry(key.to_owned()).or_default());
    }
}

/// Configures one upstream under several names. Its failures are deliberate, so its breaker stays closed. A lost call
/// blocks its target for the longest time that a call may take.
fn config(url: &str, receivers: &[Receiver; 2]) -> String {
    let hook = |receiver: &Receiver| json!({"url": receiver.url, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    let server = |name: &str| json!({"url": format!("{url}/{name}"), "timeout": "2s", "breaker": {"threshold": 0}});
    let names =
        (0..UPSTREAM_NAMES).map(|n| format!("count{n}")).chain(["undo", "brief", "ruled", "free"].map(str::to_owned));
    let mut servers: serde_json::Map<String, Value> = names.map(|name| (name.clone(), server(&name))).collect();
    // Reviewers see this one as a diff to the current state.
    let recipe = json!({
        "entity": "text",
        "target": "arguments.key",
        "before": {"tool": "read", "arguments": {"key": "arguments.key"}},
        "after": "arguments.value",
    });
    let mut doc = server("doc");
    doc["trust_annotations"] = true.into();
    doc["previews"] = json!({"apply": recipe});
    servers.insert("doc".into(), doc);
    json!({
        "modules": {"tracker": {"enabled": false}},
        "changes": {"max_pending": 100_000, "max_proposals_per_minute": 0},
        "mcpServers": servers,
        "policy": {"rules": [
            {"name": "two people", "tools": "count2__*", "then": "review", "quorum": 2},
            {"name": "second thoughts", "tools": ["undo__apply", "doc__apply"], "then": "review", "undo_for": "1s"},
            {"name": "free", "tools": "free__*", "then": "allow"},
            {"name": "soon over", "tools": "brief__*", "then": "review", "expire_after": "1s"},
        ]},
        "webhooks": {"one": hook(&receivers[0]), "other": hook(&receivers[1])},
        "log": {"filter": "warn"},
    })
    .to_string()
}
