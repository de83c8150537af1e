//! A provider for tests, of this crate and of those that use it: what it offers, how its calls end and what its policy
//! says is set by the test, and what was asked of it can be read.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is only built for tests")]

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures_util::future::{BoxFuture, join_all, ready};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::{Semaphore, broadcast, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    CallContext, Completion, CompletionRef, Module, NoProgress, PromptArgumentDef, PromptDef, PromptMessage,
    PromptResult, Provider, ProviderDirectory, ProviderEvent, ResourceDef, ResourceText, ToolDef, ToolResult,
    request::{Replier, UpstreamRequest},
};
use countersign_domain::{
    changes::{Change, Operation, Preview, PreviewNote, ServedBy, Target, diff::DiffBuilder, fingerprint},
    policy::{Decision, Verdict},
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError, RequestId, annotations::ToolAnnotations};

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

/// Computes what a call or a preview gives, from the tool's name and the arguments.
pub type Script<T> = Box<dyn Fn(&str, &RawValue) -> Result<T, McpError> + Send + Sync>;

/// See the module's page.
pub struct Fake {
    pub name: &'static str,
    pub module: bool,
    pub tools: Mutex<Vec<ToolDef>>,
    pub prompts: Mutex<Vec<PromptDef>>,
    /// Their contents are their URIs; nobody may subscribe to one whose name is `private`.
    pub resources: Mutex<Vec<ResourceDef>>,
    pub events: broadcast::Sender<ProviderEvent>,
    /// The live state that previews are computed against.
    pub state: Mutex<String>,
    pub tool_hash: Mutex<String>,
    pub present: AtomicBool,
    /// It is an upstream that is not connected now, or that was not reached since the start.
    pub away: AtomicBool,
    pub unlisted: AtomicBool,
    pub ending: Mutex<Ending>,
    /// In place of `ending` and of the preview of `state`.
    pub calling: Option<Script<ToolResult>>,
    pub previewing: Option<Script<Preview>>,
    pub preview_error: Mutex<Option<ErrorKind>>,
    /// Tools and arguments, as they came, and the principals on whose behalf.
    pub calls: Mutex<Vec<(String, String)>>,
    pub callers: Mutex<Vec<Arc<Principal>>>,
    pub running: AtomicUsize,
    pub most_running: AtomicUsize,
    /// Calls take one of these; tests that hold calls back close it down to 0.
    pub gate: Semaphore,
    pub previews: AtomicUsize,
    /// What is behind its name.
    pub served_by: Mutex<ServedBy>,
    /// What the policy says of every call, whom it was asked about, and what it says of edited arguments.
    pub verdict: Mutex<Verdict>,
    pub judged: Mutex<Vec<Principal>>,
    pub judgement: Mutex<Option<Decision>>,
    pub pinned: AtomicBool,
    pub accepted: AtomicBool,
    /// Calls are noted here too, durably enough to outlive a crash of the process.
    pub ledger: Mutex<Option<PathBuf>>,
}

impl Fake {
    /// One whose calls succeed, and that policy lets through.
    #[must_use]
    pub fn named(name: &'static str) -> Self {
        Self {
            name,
            module: true,
            tools: Mutex::default(),
            prompts: Mutex::default(),
            resources: Mutex::default(),
            events: broadcast::Sender::new(16),
            state: Mutex::new("one".into()),
            tool_hash: Mutex::new("sha256:tool".into()),
            present: AtomicBool::new(true),
            away: AtomicBool::new(false),
            unlisted: AtomicBool::new(false),
            ending: Mutex::new(Ending::Succeed),
            calling: None,
            previewing: None,
            preview_error: Mutex::new(None),
            calls: Mutex::default(),
            callers: Mutex::default(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            gate: Semaphore::new(1_000_000),
            previews: AtomicUsize::new(0),
            served_by: Mutex::default(),
            verdict: Mutex::new(Verdict::Allow),
            judged: Mutex::default(),
            judgement: Mutex::new(None),
            pinned: AtomicBool::new(true),
            accepted: AtomicBool::new(true),
            ledger: Mutex::new(None),
        }
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// The preview of a write to what the arguments name as `target`.
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
            diff: DiffBuilder::new().field("state", "State", Some(&state), Some("<b>two</b>")).finish(),
            fingerprint: fingerprint(&[("state", &state)]),
        }
    }

    async fn end(&self, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let ending = self.ending.lock().unwrap().clone();
        match ending {
            Ending::Succeed => Ok(ToolResult::text(&format!("done for {}", ctx.principal.name), None)),
            Ending::ToolError => Ok(ToolResult { is_error: true, ..ToolResult::text("it did not work", None) }),
            Ending::Error(kind) => Err(McpError::new(kind, "as the test wants it")),
            Ending::Ask(questions) => {
                let Some(inquirer) = &ctx.inquirer else { return Ok(ToolResult::text("nobody to ask", None)) };
                let heard = questions.iter().map(|(key, method)| {
                    let (answered, answer) = oneshot::channel();
                    inquirer.ask(question(key, method, answered));
                    async move { format!("{key}={} ", answer.await.unwrap()) }
                });
                let heard: Vec<_> = heard.collect();
                Ok(ToolResult::text(&join_all(heard).await.concat(), None))
            }
            Ending::Panic => panic!("as the test wants it"),
            Ending::Hang => {
                ctx.cancel.cancelled().await;
                std::future::pending().await
            }
        }
    }
}

impl Module for Fake {
    fn read_resource<'a>(
        &'a self,
        uri: &'a str,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceText>, McpError>> {
        let found = self.resources.lock().unwrap().iter().any(|def| def.uri == uri);
        let text = ResourceText { uri: uri.into(), mime_type: "text/plain".into(), text: uri.into() };
        Box::pin(ready(match found {
            true => Ok(vec![text]),
            false => Err(McpError::new(ErrorKind::ResourceNotFound, "the fake has no such resource")),
        }))
    }
    fn may_subscribe<'a>(&'a self, uri: &'a str, _: &'a CallContext) -> BoxFuture<'a, Result<(), McpError>> {
        let hidden = self.resources.lock().unwrap().iter().any(|def| def.uri == uri && def.name == "private");
        Box::pin(ready(match hidden {
            true => Err(McpError::new(ErrorKind::ResourceNotFound, "the fake has no such resource")),
            false => Ok(()),
        }))
    }
    fn get_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<PromptResult, McpError>> {
        let messages = vec![PromptMessage { role: "user", text: json!(arguments).to_string() }];
        Box::pin(ready(Ok(PromptResult { description: name.into(), messages })))
    }
    /// It suggests more than clients take.
    fn complete<'a>(
        &'a self,
        _: &'a CompletionRef,
        (_, typed): (&'a str, &'a str),
        _: &'a Map<String, Value>,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Completion, McpError>> {
        let values = (0..150).map(|n| format!("{typed}{n}")).collect();
        Box::pin(ready(Ok(Completion { values, total: Some(150), has_more: false })))
    }
}

impl Provider for Fake {
    fn name(&self) -> &str {
        self.name
    }
    fn is_module(&self) -> bool {
        self.module
    }
    fn tools(&self) -> Vec<ToolDef> {
        self.tools.lock().unwrap().clone()
    }
    fn prompts(&self) -> Vec<PromptDef> {
        self.prompts.lock().unwrap().clone()
    }
    fn resources<'a>(&'a self, _: &'a CallContext) -> BoxFuture<'a, Result<Vec<ResourceDef>, McpError>> {
        Box::pin(ready(Ok(self.resources.lock().unwrap().clone())))
    }
    fn uri_schemes(&self) -> Vec<String> {
        vec![format!("{}://", self.name)]
    }
    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
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
            self.callers.lock().unwrap().push(Arc::clone(&ctx.principal));
            if let Some(path) = &*self.ledger.lock().unwrap() {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                writeln!(file, "{tool}").unwrap();
            }
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_running.fetch_max(running, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            self.running.fetch_sub(1, Ordering::SeqCst);
            match &self.calling {
                Some(script) => script(tool, arguments),
                None => self.end(ctx).await,
            }
        })
    }
    fn preview<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>> {
        self.previews.fetch_add(1, Ordering::SeqCst);
        Box::pin(ready(match (*self.preview_error.lock().unwrap(), &self.previewing) {
            (Some(kind), _) => Err(McpError::new(kind, "no preview")),
            (None, Some(script)) => script(tool, arguments),
            (None, None) => Ok(self.preview_now(arguments)),
        }))
    }
    fn available(&self) -> Result<(), McpError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(McpError::new(ErrorKind::UpstreamUnavailable, "away")),
            false => Ok(()),
        }
    }
}

/// Where there is that provider alone.
pub struct Directory(pub Arc<Fake>);

impl ProviderDirectory for Directory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        (name == self.0.name && self.0.present.load(Ordering::SeqCst)).then(|| Arc::clone(&self.0) as Arc<dyn Provider>)
    }
    fn tool_hash(&self, provider: &str, _: &str) -> Option<String> {
        self.has_tools(provider).then(|| self.0.tool_hash.lock().unwrap().clone())
    }
    fn verdict(&self, _: &str, _: &str, principal: &Principal, _: &RawValue) -> Verdict {
        self.0.judged.lock().unwrap().push(principal.clone());
        *self.0.verdict.lock().unwrap()
    }
    fn is_pinned(&self, _: &str, _: &str) -> bool {
        self.0.pinned.load(Ordering::SeqCst)
    }
    fn is_accepted(&self, _: &str, _: &str) -> bool {
        self.0.accepted.load(Ordering::SeqCst)
    }
    /// It takes any arguments but `wrong`.
    fn validate(&self, _: &str, _: &str, arguments: &RawValue) -> Result<(), McpError> {
        if !arguments.get().contains("\"wrong\"") {
            return Ok(());
        }
        let details =
            json!({ "errors": [{ "pointer": "/wrong", "rule": "additionalProperties", "message": "not that" }] });
        Err(McpError::new(ErrorKind::ValidationFailed, "the fake does not like it").with("details", details))
    }
    fn judge(&self, _: &Change, _: &RawValue) -> Option<Decision> {
        self.0.judgement.lock().unwrap().clone()
    }
    fn has_tools(&self, _: &str) -> bool {
        !self.0.unlisted.load(Ordering::SeqCst)
    }
}

/// What a server asks; what it hears, a result or the code of an error, is sent on as text.
#[must_use]
pub fn question(key: &str, method: &str, answered: oneshot::Sender<String>) -> UpstreamRequest {
    UpstreamRequest {
        id: RequestId::from_raw(&Value::from(key).to_string()),
        method: method.into(),
        params: None,
        reply: Replier::new(move |answer| {
            let _ = answered.send(answer.map_or_else(|e| e.code.to_string(), |answer| answer.get().to_owned()));
        }),
        cancelled: CancellationToken::new(),
    }
}

/// A call on behalf of that principal, of whom nothing can be asked.
#[must_use]
pub fn context(principal: Principal) -> CallContext {
    CallContext {
        principal: Arc::new(principal),
        cancel: CancellationToken::new(),
        progress: Arc::new(NoProgress),
        change_id: None,
        inquirer: None,
        session: None,
        permit: None,
        approved_state: None,
        meter: None,
    }
}

/// A tool as a module defines it: it takes an object with those properties.
#[must_use]
pub fn tool(name: &str, properties: &Value) -> ToolDef {
    ToolDef {
        name: name.into(),
        title: name.into(),
        description: String::new(),
        input_schema: json!({ "type": "object", "properties": properties }),
        output_schema: None,
        annotations: ToolAnnotations::default(),
        self_service: false,
        long_running: false,
        reads_when: None,
        raw: None,
    }
}

/// A tool as an upstream defines it, of which only what matters to a policy is read.
#[must_use]
pub fn upstream_tool(raw: &Value) -> ToolDef {
    let text = |member: &str| raw[member].as_str().unwrap_or_default().to_owned();
    let annotations = ToolAnnotations {
        read_only_hint: raw["annotations"]["readOnlyHint"].as_bool().unwrap_or_default(),
        ..ToolAnnotations::default()
    };
    ToolDef {
        description: text("description"),
        input_schema: raw["inputSchema"].clone(),
        annotations,
        raw: Some(Arc::from(RawValue::from_string(raw.to_string()).unwrap())),
        ..tool(&text("name"), &Value::Null)
    }
}

/// A resource of that URI and name.
#[must_use]
pub fn resource(uri: &str, name: &str) -> ResourceDef {
    ResourceDef {
        uri: uri.into(),
        name: name.into(),
        title: name.into(),
        description: String::new(),
        mime_type: "text/plain".into(),
        raw: None,
    }
}

/// A prompt of that name, which needs that argument.
#[must_use]
pub fn prompt(name: &str, required: &str) -> PromptDef {
    let argument =
        PromptArgumentDef { name: required.into(), title: required.into(), description: String::new(), required: true };
    PromptDef {
        name: name.into(),
        title: name.into(),
        description: String::new(),
        arguments: vec![argument],
        raw: None,
    }
}
