//! What outlives the gateways: where the current one is, what was asked of any of them, and what they answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    common::{PATIENCE, create_key, http::Conn},
    upstream::Upstream,
};

/// How many names the upstream has: what goes to one of them runs one after another.
pub const NAMES: usize = 4;

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
    /// An approval was sent, answered or not.
    pub approval_sent: bool,
    /// Values that a reviewer ever approved, or tried to.
    pub values: BTreeSet<String>,
}

pub struct World {
    pub home: TempDir,
    pub upstream: Arc<Upstream>,
    pub reviewers: [String; 2],
    /// The port of the gateway that is meant to be up; 0 between two of them.
    pub port: AtomicU16,
    /// No new proposals; those under way come to their end.
    pub enough: AtomicBool,
    pub promises: Mutex<BTreeMap<String, Promise>>,
    pub proposed: AtomicUsize,
    /// Requests that ended without an answer.
    pub unanswered: AtomicUsize,
}

/// An answer, as far as the driver looks at it.
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl World {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(&home.path().join("ledger"));
        let data = home.path().join("data");
        let reviewers = [create_key(&data, "reviewer", "carol"), create_key(&data, "reviewer", "dave")];
        std::fs::write(home.path().join("countersign.yaml"), config(&upstream.url)).unwrap();
        Self {
            home,
            upstream,
            reviewers,
            port: AtomicU16::new(0),
            enough: AtomicBool::new(false),
            promises: Mutex::default(),
            proposed: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
        }
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        let start = log.len().saturating_sub(8000);
        log.get(start..).unwrap_or(&log).to_owned()
    }

    /// Where the gateway is, once there is one.
    pub fn address(&self) -> SocketAddr {
        let end = Instant::now() + PATIENCE * 3;
        loop {
            match self.port.load(Ordering::SeqCst) {
                0 => assert!(Instant::now() < end, "there is no gateway any more:\n{}", self.log()),
                port => return ([127, 0, 0, 1], port).into(),
            }
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
            let body = serde_json::from_slice(&response.body).ok()?;
            Some(Answer { status: response.status, body })
        })();
        if answer.is_none() {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
        answer
    }

    /// As [`World::ask`], again and again over all crashes until there is an answer.
    pub fn insist(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let end = Instant::now() + PATIENCE * 6;
        loop {
            match self.ask(method, path, headers, body) {
                // Not yet: the upstream's tools are on their way, or the store is overloaded.
                Some(answer) if answer.status >= 500 || answer.status == 429 => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Some(answer) => return answer,
                None => {}
            }
            assert!(Instant::now() < end, "no answer to {method} {path}\n{}", self.log());
        }
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

/// One upstream under several names. Its failures are on purpose, so nothing is held against it.
fn config(url: &str) -> String {
    let servers: serde_json::Map<String, Value> =
        (0..NAMES).map(|n| (format!("count{n}"), json!({"url": url, "breaker": {"threshold": 0}}))).collect();
    json!({
        "modules": {"tracker": {"enabled": false}},
        "changes": {"max_pending": 100_000},
        "mcpServers": servers,
        // Of these, two people must approve.
        "policy": {"rules": [{"name": "two", "tools": "count2__*", "then": "review", "quorum": 2}]},
        "log": {"filter": "warn"},
    })
    .to_string()
}
