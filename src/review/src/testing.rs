//! A provider that counts its runs, and a gateway's worth of pending changes over a temporary directory.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, value::RawValue};
use tokio::sync::Semaphore;

use super::{Changes, DecideChange, DecideError, PendingConfig, Proposal};
use countersign_config::Config;
use countersign_domain::{
    changes::{
        Change, ChangeState, Operation, Preview, PreviewNote, Proposer, ServedBy, Target, Terms, Verdict,
        diff::DiffBuilder, fingerprint,
    },
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, Provider, ProviderDirectory, ToolDef, ToolResult};
use countersign_store::{SqliteOptions, SqliteStore, Store};

/// How the next calls of the fake end.
#[derive(Clone, Debug)]
pub enum Ending {
    Succeed,
    ToolError,
    Error(ErrorKind),
    Panic,
    Hang,
    /// It asks those things at once (keys and methods), and tells what it heard.
    Ask(Vec<(String, String)>),
}

pub struct Fake {
    /// The live state that previews are computed against.
    pub state: Mutex<String>,
    pub tool_hash: Mutex<String>,
    pub present: AtomicBool,
    /// It is an upstream that is not connected now, or that was not reached since the start.
    pub away: AtomicBool,
    pub unlisted: AtomicBool,
    pub ending: Mutex<Ending>,
    pub preview_error: Mutex<Option<ErrorKind>>,
    pub calls: Mutex<Vec<(String, String)>>,
    pub running: AtomicUsize,
    pub most_running: AtomicUsize,
    /// Calls take one of these; tests that hold calls back close it down to 0.
    pub gate: Semaphore,
    pub previews: AtomicUsize,
    /// What the policy says of edited arguments.
    /// What is behind its name.
    pub served_by: Mutex<ServedBy>,
    pub judgement: Mutex<Option<countersign_domain::policy::Decision>>,
    /// Calls are noted here too, durably enough to outlive a crash of the process.
    pub ledger: Mutex<Option<PathBuf>>,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new("one".into()),
            tool_hash: Mutex::new("sha256:tool".into()),
            served_by: Mutex::default(),
            present: AtomicBool::new(true),
            away: AtomicBool::new(false),
            unlisted: AtomicBool::new(false),
            ending: Mutex::new(Ending::Succeed),
            preview_error: Mutex::new(None),
            calls: Mutex::default(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            gate: Semaphore::new(1_000_000),
            previews: AtomicUsize::new(0),
            judgement: Mutex::new(None),
            ledger: Mutex::new(None),
        })
    }

    pub fn preview_now(&self, arguments: &RawValue) -> Preview {
        let state = self.state.lock().unwrap().clone();
        let value: Value = serde_json::from_str(arguments.get()).unwrap();
        let target = value["target"].as_str().unwrap_or("t").to_owned();
        Preview {
            note: PreviewNote::default(),
            operation: Operation::Update,
            target: Target {
                entity_type: "thing".into(),
                id: Some(target.clone()),
                label: target.clone(),
                lock_key: target,
            },
            summary: "Update the thing".into(),
            diff: DiffBuilder::new().field("state", "State", Some(&state), Some("two")).finish(),
            fingerprint: fingerprint(&[("state", &state)]),
        }
    }

    pub fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Provider for Fake {
    fn name(&self) -> &str {
        "fake"
    }
    fn tools(&self) -> Vec<ToolDef> {
        Vec::new()
    }
    fn served_by(&self) -> ServedBy {
        self.served_by.lock().unwrap().clone()
    }
    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(async move {
            self.calls.lock().unwrap().push((tool.into(), arguments.get().into()));
            if let Some(path) = &*self.ledger.lock().unwrap() {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                writeln!(file, "{tool}").unwrap();
            }
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_running.fetch_max(running, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            self.running.fetch_sub(1, Ordering::SeqCst);
            let ending = self.ending.lock().unwrap().clone();
            match ending {
                Ending::Succeed => Ok(ToolResult::text(&format!("done for {}", ctx.principal.name), None)),
                Ending::ToolError => Ok(ToolResult { is_error: true, ..ToolResult::text("it did not work", None) }),
                Ending::Error(kind) => Err(McpError::new(kind, "as the test wants it")),
                Ending::Ask(questions) => {
                    let Some(inquirer) = &ctx.inquirer else { return Ok(ToolResult::text("nobody to ask", None)) };
                    let mut heard = Vec::new();
                    for (key, method) in &questions {
                        let (answered, answer) = tokio::sync::oneshot::channel();
                        inquirer.ask(super::tests::inquiries::question(key, method, answered));
                        heard.push((key, answer));
                    }
                    let mut said = String::new();
                    for (key, answer) in heard {
                        said.push_str(&format!("{key}={} ", answer.await.unwrap()));
                    }
                    Ok(ToolResult::text(&said, None))
                }
                Ending::Panic => panic!("as the test wants it"),
                Ending::Hang => {
                    ctx.cancel.cancelled().await;
                    std::future::pending().await
                }
            }
        })
    }
    fn preview<'a>(
        &'a self,
        _: &'a str,
        arguments: &'a RawValue,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>> {
        Box::pin(async move {
            self.previews.fetch_add(1, Ordering::SeqCst);
            if let Some(kind) = *self.preview_error.lock().unwrap() {
                return Err(McpError::new(kind, "no preview"));
            }
            Ok(self.preview_now(arguments))
        })
    }
    fn available(&self) -> Result<(), McpError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(McpError::new(ErrorKind::UpstreamUnavailable, "away"));
        }
        Ok(())
    }
}

pub struct Directory(pub Arc<Fake>);

impl ProviderDirectory for Directory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        (name == "fake" && self.0.present.load(Ordering::SeqCst)).then(|| Arc::clone(&self.0) as Arc<dyn Provider>)
    }
    fn tool_hash(&self, _: &str, tool: &str) -> Option<String> {
        (tool == "update" && self.has_tools("fake")).then(|| self.0.tool_hash.lock().unwrap().clone())
    }
    fn verdict(&self, _: &str, _: &str, _: &Principal, _: &RawValue) -> countersign_domain::policy::Verdict {
        countersign_domain::policy::Verdict::Allow
    }
    fn validate(&self, _: &str, _: &str, arguments: &RawValue) -> Result<(), McpError> {
        if arguments.get().contains("\"bad\"") {
            return Err(McpError::new(ErrorKind::ValidationFailed, "the fake does not like it"));
        }
        Ok(())
    }
    fn judge(&self, _: &Change, _: &RawValue) -> Option<countersign_domain::policy::Decision> {
        self.0.judgement.lock().unwrap().clone()
    }
    fn has_tools(&self, _: &str) -> bool {
        !self.0.unlisted.load(Ordering::SeqCst)
    }
}

/// Everything that a test needs; the directory outlives a restart.
pub struct Bench {
    pub dir: Arc<tempfile::TempDir>,
    pub fake: Arc<Fake>,
    pub changes: Changes,
    /// Seconds added to the wall clock.
    pub skew: Arc<AtomicI64>,
}

pub fn config(skew: &Arc<AtomicI64>) -> PendingConfig {
    let skew = Arc::clone(skew);
    PendingConfig {
        clock: Arc::new(move || Timestamp::now() + SignedDuration::from_secs(skew.load(Ordering::SeqCst))),
        // Tests expire by hand.
        expiry_interval: Duration::from_secs(3600),
        retry_pause: Duration::from_millis(5),
        provider_grace: Duration::ZERO,
        max_proposals_per_minute: 0,
        max_bytes_per_day: 0,
        ..PendingConfig::from(&Config::default().changes)
    }
}

impl Bench {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(adjust: impl FnOnce(&mut PendingConfig)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let skew = Arc::new(AtomicI64::new(0));
        let mut config = config(&skew);
        adjust(&mut config);
        Self::over(dir, Fake::new(), skew, config).await
    }

    pub async fn over(
        dir: Arc<tempfile::TempDir>,
        fake: Arc<Fake>,
        skew: Arc<AtomicI64>,
        config: PendingConfig,
    ) -> Self {
        let path = dir.path().to_owned();
        Self { dir, ..Self::at(&path, fake, skew, config).await }
    }

    /// In a directory of the caller's.
    pub async fn at(path: &Path, fake: Arc<Fake>, skew: Arc<AtomicI64>, config: PendingConfig) -> Self {
        let store = Arc::new(SqliteStore::open(path, SqliteOptions::default()).unwrap());
        Self::on(store, fake, skew, config).await
    }

    /// On a store of the caller's.
    pub async fn on(store: Arc<dyn Store>, fake: Arc<Fake>, skew: Arc<AtomicI64>, config: PendingConfig) -> Self {
        let changes = Changes::start(store, Arc::new(Directory(Arc::clone(&fake))), config).await.unwrap();
        Self { dir: Arc::new(tempfile::tempdir().unwrap()), fake, changes, skew }
    }

    pub async fn propose(&self, arguments: &str) -> Arc<Change> {
        self.changes.propose(self.proposal("agent", arguments)).await.unwrap()
    }

    pub fn proposal(&self, principal: &str, arguments: &str) -> Proposal {
        let arguments: Arc<RawValue> = Arc::from(RawValue::from_string(arguments.into()).unwrap());
        Proposal {
            proposer: Proposer {
                principal: principal.into(),
                owner: None,
                key_id: Some(format!("key_{principal}")),
                client_name: Some("test".into()),
                client_version: None,
                session: Some("0123456789abcdef".into()),
                transport: "http".into(),
                revision: None,
            },
            provider: "fake".into(),
            tool: "update".into(),
            tool_title: "Update".into(),
            tool_hash: "sha256:tool".into(),
            served_by: ServedBy::default(),
            preview: self.fake.preview_now(&arguments),
            arguments,
            review: None,
            terms: Terms::default(),
            client: None,
            idempotency_key: None,
            expire_after: Duration::from_secs(60),
        }
    }

    pub async fn decide(&self, change: &Change, verdict: Verdict) -> Result<Arc<Change>, DecideError> {
        self.changes.decide(decision(change, "alice", verdict)).await
    }

    pub async fn get(&self, id: &str) -> Arc<Change> {
        self.changes.get(id).await.unwrap().unwrap()
    }

    /// Waits until the change is in that state.
    pub async fn until(&self, id: &str, state: ChangeState) -> Arc<Change> {
        let mut version = 0;
        loop {
            let change = self.changes.wait(id, version, Duration::from_secs(20)).await.unwrap().unwrap();
            if change.state == state {
                return change;
            }
            assert!(!change.state.is_final() && change.version > version, "{change:?} will not be {state:?}");
            version = change.version;
        }
    }

    pub async fn end(self) -> (Arc<tempfile::TempDir>, Arc<Fake>, Arc<AtomicI64>) {
        self.changes.shutdown(Duration::from_secs(10)).await;
        (self.dir, self.fake, self.skew)
    }
}

pub fn reviewer(name: &str) -> Principal {
    Principal { name: name.into(), role: Role::Reviewer, key_id: Some(format!("key_{name}")), owner: None }
}

pub fn decision(change: &Change, reviewer_name: &str, verdict: Verdict) -> DecideChange {
    DecideChange {
        id: change.id.clone(),
        reviewer: Arc::new(reviewer(reviewer_name)),
        verdict,
        comment: Some("looks right".into()),
        version: change.version,
        digest: Some(change.digest.clone()),
        bulk: false,
    }
}
