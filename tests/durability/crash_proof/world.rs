//! What outlives the gateways: where the current one is, what was asked of any of them, and what they answered.

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

use super::{plan::Plan, receiver::Receiver, upstream::Upstream};
use support::{PATIENCE, http::Conn};

/// How many names the upstream has for what is proposed most: what goes to one of them runs one after another.
pub const UPSTREAM_NAMES: usize = 4;

/// What a stateless client calls the extension of tasks.
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// What the driver knows of one proposal. What was answered is a promise.
#[derive(Clone, Debug, Default)]
pub struct Promise {
    /// Every id that an answer named; a repeat with the same idempotency key must name the same.
    pub ids: BTreeSet<String>,
    pub approved: bool,
    pub edited: bool,
    /// Answered: it will never run.
    pub rejected: bool,
    pub withdrawn: bool,
    /// An approval was sent, answered or not, and was not taken back.
    pub approval_sent: bool,
    /// An approval was taken back, answered.
    pub undone: bool,
    /// Its target was altered while it was approved: it may be pending again.
    pub moved_late: bool,
    /// It was proposed as a task.
    pub task: bool,
    /// How a person settled it.
    pub settled: Option<&'static str>,
    /// Of a change that a standing rule was given on.
    pub rule: Option<RulePromise>,
    /// Values that a reviewer ever approved, or tried to.
    pub values: BTreeSet<String>,
}

/// What is known of a standing rule and of the calls that it speaks of.
#[derive(Clone, Debug, Default)]
pub struct RulePromise {
    pub denies: bool,
    /// Rules that an answer named.
    pub ids: BTreeSet<String>,
    /// Those of them of which an answer said that they are revoked.
    pub revoked: BTreeSet<String>,
    /// Calls that nobody looked at: those that were sent, and those that were answered.
    pub sent: usize,
    pub answered: usize,
}

pub struct World {
    pub home: TempDir,
    pub upstream: Arc<Upstream>,
    pub receivers: [Receiver; 2],
    pub reviewers: [String; 3],
    /// The ports of the gateways that are meant to be up; 0 between two lives of one.
    pub ports: Vec<AtomicU16>,
    /// Which of them is asked next.
    turn: AtomicUsize,
    /// How many gateways there were.
    pub lives: AtomicUsize,
    /// There will be none any more.
    pub over: AtomicBool,
    /// No new proposals; those under way come to their end.
    pub enough: AtomicBool,
    /// What the gateway is armed for, and what brings it there.
    pub wanted: Mutex<Option<Plan>>,
    pub promises: Mutex<BTreeMap<String, Promise>>,
    pub proposed: AtomicUsize,
    /// Requests that ended without an answer.
    pub unanswered: AtomicUsize,
    /// What became of the sessions of agents.
    pub sessions: Sessions,
    began: Instant,
    /// What was done to gateways and the database, and when.
    pub trace: Mutex<Vec<String>>,
}

/// How often sessions of agents went on, and did not.
#[derive(Debug, Default)]
pub struct Sessions {
    /// That were begun, by each agent at first and where the one before was gone.
    pub begun: AtomicUsize,
    pub streams_resumed: AtomicUsize,
    pub sockets_resumed: AtomicUsize,
    /// Of which an agent heard that they are gone: 404, or `RESUME_TOO_LATE`.
    pub gone: AtomicUsize,
    pub too_late: AtomicUsize,
    /// Updates of changes that arrived in them.
    pub updates: AtomicUsize,
}

/// An answer, as far as the driver looks at it.
pub struct Answer {
    pub status: u16,
    pub body: Value,
    /// Of a session that it opens.
    pub session: Option<String>,
}

/// What is tried again and again over all faults, but not for ever.
pub struct RetryBudget<'a> {
    world: &'a World,
    began: Instant,
    lives: usize,
}

impl RetryBudget<'_> {
    /// Waits a little before the next try.
    pub fn rest(&self, what: impl Fn() -> String) {
        // Many gateways had the time for it, or one had very much.
        let many = self.world.lives.load(Ordering::SeqCst) > self.lives + 30;
        let most = if many { PATIENCE * 6 } else { PATIENCE * 30 };
        assert!(self.began.elapsed() < most, "never: {}\n{}", what(), self.world.log());
        assert!(!self.world.over.load(Ordering::SeqCst), "too late: {}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Answer {
    /// What came in a session, whose answers say themselves whether they are errors.
    pub fn in_session(body: Value) -> Self {
        Self { status: 200, body, session: None }
    }

    /// The gateway could not do it now.
    pub fn is_retryable(&self) -> bool {
        self.status >= 500 || self.status == 429
    }
}

/// Three, because whoever corrects what two must approve leaves that to the others.
pub const REVIEWERS: [&str; 3] = ["carol", "dave", "erin"];

impl World {
    /// So many gateways at a time, of which each keeps its files in a directory of its own.
    pub fn new(gateways: usize, make_keys: impl Fn(&Path, &str) -> String) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (upstream, url) = Upstream::start(&home.path().join("ledger"));
        // Two, of which each refuses in its own way.
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
            turn: AtomicUsize::new(0),
            lives: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            enough: AtomicBool::new(false),
            wanted: Mutex::default(),
            promises: Mutex::default(),
            proposed: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            sessions: Sessions::default(),
            began: Instant::now(),
            trace: Mutex::default(),
        }
    }

    /// In seconds from the beginning.
    pub fn since(&self, at: Instant) -> f64 {
        at.duration_since(self.began).as_secs_f64()
    }

    /// Notes it for who wonders what went wrong.
    pub fn note_fault(&self, what: &str) {
        self.trace.lock().unwrap().push(format!("{what} at {:.3} s", self.since(Instant::now())));
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

    /// Where one of several gateways keeps its files.
    pub fn node(&self, n: usize) -> PathBuf {
        self.home.path().join(format!("node{n}"))
    }

    /// Where a gateway is, once there is one; of several another one each time.
    pub fn address(&self) -> SocketAddr {
        loop {
            for _ in &self.ports {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.ports.len();
                match self.ports[turn].load(Ordering::SeqCst) {
                    0 => {}
                    port => return ([127, 0, 0, 1], port).into(),
                }
            }
            // However long it takes on a slow machine: whoever starts them fails by itself, and says so.
            assert!(!self.over.load(Ordering::SeqCst), "there is no gateway any more:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// One request to whichever gateway there is. `None` where no whole answer came.
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

    /// As [`World::ask`], again and again over all crashes until there is an answer.
    pub fn insist(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let patience = self.patience();
        loop {
            // Not yet: the upstream's tools are on their way, or the store is overloaded.
            if let Some(answer) = self.ask(method, path, headers, body).filter(|answer| !answer.is_retryable()) {
                return answer;
            }
            patience.rest(|| format!("an answer to {method} {path} {body}"));
        }
    }

    pub fn patience(&self) -> RetryBudget<'_> {
        RetryBudget { world: self, began: Instant::now(), lives: self.lives.load(Ordering::SeqCst) }
    }

    /// A request of an agent that speaks 2026-07-28 and, with `tasks`, declares the extension; answers the result.
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
        self.insist("POST", "/mcp", &headers, &body)
    }

    /// A GET by a reviewer.
    pub fn look(&self, path: &str) -> Value {
        let bearer = format!("Bearer {}", self.reviewers[0]);
        let answer = self.insist("GET", path, &[("Authorization", bearer.as_str())], &Value::Null);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// The change as a reviewer sees it. It must be there: somebody was told of it.
    pub fn change(&self, id: &str) -> Value {
        let bearer = format!("Bearer {}", self.reviewers[0]);
        let answer =
            self.insist("GET", &format!("/api/changes/{id}"), &[("Authorization", bearer.as_str())], &Value::Null);
        assert_eq!(answer.status, 200, "{id} was promised and is not there: {}", answer.body);
        answer.body
    }

    /// A POST by a reviewer, unanswered or not.
    pub fn review(&self, reviewer: usize, path: &str, body: &Value) -> Option<Answer> {
        let bearer = format!("Bearer {}", self.reviewers[reviewer]);
        self.ask("POST", path, &[("Authorization", bearer.as_str())], body)
    }

    /// An answer named this change for that proposal.
    pub fn named(&self, key: &str, id: &str) {
        self.note(key, |promise| {
            promise.ids.insert(id.to_owned());
        });
    }

    pub fn note(&self, key: &str, change: impl FnOnce(&mut Promise)) {
        change(self.promises.lock().unwrap().entry(key.to_owned()).or_default());
    }
}

/// One upstream under several names, of which it hears. Its failures are on purpose, so nothing is held against it. A call
/// that is lost holds up its target for as long as it may take: longer than any does.
fn config(url: &str, receivers: &[Receiver; 2]) -> String {
    let hook = |receiver: &Receiver| json!({"url": receiver.url, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    let server = |name: &str| json!({"url": format!("{url}/{name}"), "timeout": "2s", "breaker": {"threshold": 0}});
    let names = (0..UPSTREAM_NAMES).map(|n| format!("count{n}")).chain(["undo".into(), "brief".into(), "ruled".into()]);
    let mut servers: serde_json::Map<String, Value> = names.map(|name| (name.clone(), server(&name))).collect();
    // Of this one, reviewers see the difference to what is there.
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
            {"name": "soon over", "tools": "brief__*", "then": "review", "expire_after": "1s"},
        ]},
        "webhooks": {"one": hook(&receivers[0]), "other": hook(&receivers[1])},
        "log": {"filter": "warn"},
    })
    .to_string()
}
