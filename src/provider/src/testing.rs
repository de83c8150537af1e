//! A fake provider for the tests of this crate and its users. Tests set what it offers, how its calls end and what its
//! policy decides, and can read which calls it received.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only built for tests")]

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::{Semaphore, broadcast, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    CallContext, Completion, CompletionRef, Module, PresentValues, PromptArgumentDef, PromptDef, PromptMessage,
    PromptResult, Provider, ProviderDirectory, ProviderEvent, ResourceDef, ResourceText, ToolDef, ToolResult,
    request::{Replier, UpstreamRequest},
};
use countersign_domain::{
    changes::{
        Change, Operation, Preview, PreviewNote, ServerIdentity, StateEffect, Target, diff::DiffBuilder, fingerprint,
    },
    policy::{Decision, Verdict, known_reads::KnownReads},
    principal::Principal,
    recipes::Recipe,
};
use countersign_protocol::{ErrorKind, McpError, RequestId, annotations::ToolAnnotations};

/// The outcome of the next calls of the fake.
#[derive(Clone, Debug)]
pub enum CallOutcome {
    Succeed,
    ToolError,
    Error(ErrorKind),
    Panic,
    Hang,
    /// Asks these questions concurrently (keys and methods), and returns the answers as text.
    Ask(Vec<(String, String)>),
}

/// Computes the result of a call or preview from the tool's name and the arguments.
pub type Script<T> = Box<dyn Fn(&str, &RawValue) -> Result<T, McpError> + Send + Sync>;

/// A provider whose behaviour is set by the test.
pub struct FakeProvider {
    pub name: &'static str,
    pub is_module: bool,
    pub tools: Mutex<Vec<ToolDef>>,
    pub prompts: Mutex<Vec<PromptDef>>,
    /// Each resource has its URI as contents. Those named `private` cannot be subscribed to.
    pub resources: Mutex<Vec<ResourceDef>>,
    /// Listing the resources never ends.
    pub resources_hang: AtomicBool,
    pub events: broadcast::Sender<ProviderEvent>,
    /// The live state that previews are computed against.
    pub state: Mutex<String>,
    pub tool_hash: Mutex<String>,
    /// The definitions of the provider have changed, and the directory does not know that yet.
    pub definitions_changed: AtomicBool,
    /// The directory finds the provider.
    pub present: AtomicBool,
    /// The provider is an upstream that is disconnected now.
    pub unavailable: AtomicBool,
    /// Names of principals who must connect an account.
    pub disconnected: Mutex<Vec<String>>,
    /// The provider is an upstream that was not reached since the start.
    pub tools_unknown: AtomicBool,
    pub outcome: Mutex<CallOutcome>,
    /// Replaces `outcome`.
    pub call_script: Option<Script<ToolResult>>,
    /// Replaces the preview of `state`.
    pub preview_script: Option<Script<Preview>>,
    pub preview_error: Mutex<Option<ErrorKind>>,
    /// Reads the target after a call.
    pub read_back_script: OnceLock<Script<PresentValues>>,
    /// Each read of the target after a call takes a permit.
    pub read_back_gate: Semaphore,
    /// The recipe of every tool.
    pub recipe: OnceLock<Recipe>,
    /// Tools and arguments of the calls received.
    pub received_calls: Mutex<Vec<(String, String)>>,
    /// Principals of the calls received.
    pub callers: Mutex<Vec<Arc<Principal>>>,
    pub running: AtomicUsize,
    pub max_running: AtomicUsize,
    /// Each call takes a permit; a test holds calls back by removing all permits.
    pub gate: Semaphore,
    /// The number of previews made.
    pub preview_count: AtomicUsize,
    /// The server behind the name, as stored with a change.
    pub served_by: Mutex<ServerIdentity>,
    /// The policy's verdict on every call.
    pub verdict: Mutex<Verdict>,
    /// Principals for which a verdict was requested.
    pub judged_principals: Mutex<Vec<Principal>>,
    /// The policy's decision on a change that was proposed before.
    pub policy_decision: Mutex<Option<Decision>>,
    pub pinned: AtomicBool,
    pub accepted: AtomicBool,
    pub known_reads: OnceLock<KnownReads>,
    /// A file to which calls are appended, so that they survive a crash of the process.
    pub call_log: Mutex<Option<PathBuf>>,
}

impl FakeProvider {
    /// Creates a provider whose calls succeed and are allowed by policy.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            is_module: true,
            tools: Mutex::default(),
            prompts: Mutex::default(),
            resources: Mutex::default(),
            resources_hang: AtomicBool::new(false),
            events: broadcast::Sender::new(16),
            state: Mutex::new("one".into()),
            tool_hash: Mutex::new("sha256:tool".into()),
            definitions_changed: AtomicBool::new(false),
            present: AtomicBool::new(true),
            unavailable: AtomicBool::new(false),
            disconnected: Mutex::default(),
            tools_unknown: AtomicBool::new(false),
            outcome: Mutex::new(CallOutcome::Succeed),
            call_script: None,
            preview_script: None,
            preview_error: Mutex::new(None),
            read_back_script: OnceLock::new(),
            read_back_gate: Semaphore::new(1_000_000),
            recipe: OnceLock::new(),
            received_calls: Mutex::default(),
            callers: Mutex::default(),
            running: AtomicUsize::new(0),
            max_running: AtomicUsize::new(0),
            gate: Semaphore::new(1_000_000),
            preview_count: AtomicUsize::new(0),
            served_by: Mutex::default(),
            verdict: Mutex::new(Verdict::Allow),
            judged_principals: Mutex::default(),
            policy_decision: Mutex::new(None),
            pinned: AtomicBool::new(true),
            accepted: AtomicBool::new(true),
            known_reads: OnceLock::new(),
            call_log: Mutex::new(None),
        }
    }

    /// Returns the number of calls received.
    pub fn call_count(&self) -> usize {
        self.received_calls.lock().unwrap().len()
    }

    /// Returns the preview of a write to the `target` named in the arguments.
    pub fn current_preview(&self, arguments: &RawValue) -> Preview {
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
            state_effect: StateEffect::Fields,
        }
    }

    async fn finish_call(&self, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let outcome = self.outcome.lock().unwrap().clone();
        match outcome {
            CallOutcome::Succeed => Ok(ToolResult::text(&format!("done for {}", ctx.principal.name), None)),
            CallOutcome::ToolError => Ok(ToolResult { is_error: true, ..ToolResult::text("it did not work", None) }),
            CallOutcome::Error(kind) => Err(McpError::new(kind, "as the test wants it")),
            CallOutcome::Ask(questions) => {
                let Some(inquirer) = &ctx.inquirer else { return Ok(ToolResult::text("nobody to ask", None)) };
                let answers = questions.iter().map(|(key, method)| {
                    let (answered, answer) = oneshot::channel();
                    inquirer.ask(upstream_request(key, method, answered));
                    async move { format!("{key}={} ", answer.await.unwrap()) }
                });
                let answers: Vec<_> = answers.collect();
                Ok(ToolResult::text(&join_all(answers).await.concat(), None))
            }
            CallOutcome::Panic => panic!("as the test wants it"),
            CallOutcome::Hang => {
                ctx.cancel.cancelled().await;
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
impl Module for FakeProvider {
    async fn read_resource(&self, uri: &str, _: &CallContext) -> Result<Vec<ResourceText>, McpError> {
        let found = self.resources.lock().unwrap().iter().any(|def| def.uri == uri);
        let text = ResourceText { uri: uri.into(), mime_type: "text/plain".into(), text: uri.into() };
        match found {
            true => Ok(vec![text]),
            false => Err(McpError::new(ErrorKind::ResourceNotFound, "the fake has no such resource")),
        }
    }
    async fn check_subscription(&self, uri: &str, _: &CallContext) -> Result<(), McpError> {
        let hidden = self.resources.lock().unwrap().iter().any(|def| def.uri == uri && def.name == "private");
        match hidden {
            true => Err(McpError::new(ErrorKind::ResourceNotFound, "the fake has no such resource")),
            false => Ok(()),
        }
    }
    async fn get_prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        _: &CallContext,
    ) -> Result<PromptResult, McpError> {
        let messages = vec![PromptMessage { role: "user", text: json!(arguments).to_string() }];
        Ok(PromptResult { description: name.into(), messages })
    }
    /// Suggests more values than a client accepts.
    async fn complete(
        &self,
        _: &CompletionRef,
        (_, typed): (&str, &str),
        _: &Map<String, Value>,
        _: &CallContext,
    ) -> Result<Completion, McpError> {
        let values = (0..150).map(|n| format!("{typed}{n}")).collect();
        Ok(Completion { values, total: Some(150), has_more: false })
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> &str {
        self.name
    }
    fn is_module(&self) -> bool {
        self.is_module
    }
    fn tools(&self) -> Vec<ToolDef> {
        self.tools.lock().unwrap().clone()
    }
    fn exposed_name(&self, own: &str) -> String {
        let prefix = format!("{}__", self.name);
        let is_prefixed = self.tools().iter().any(|tool| tool.name.starts_with(&prefix));
        if is_prefixed { format!("{prefix}{own}") } else { own.to_owned() }
    }
    fn known_reads(&self) -> Option<&KnownReads> {
        self.known_reads.get()
    }
    fn prompts(&self) -> Vec<PromptDef> {
        self.prompts.lock().unwrap().clone()
    }
    async fn resources(&self, _: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
        if self.resources_hang.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        Ok(self.resources.lock().unwrap().clone())
    }
    fn uri_prefixes(&self) -> Vec<String> {
        vec![format!("{}://", self.name)]
    }
    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }
    fn server_identity(&self) -> ServerIdentity {
        self.served_by.lock().unwrap().clone()
    }
    async fn call(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        self.received_calls.lock().unwrap().push((tool.into(), arguments.get().into()));
        self.callers.lock().unwrap().push(Arc::clone(&ctx.principal));
        if let Some(path) = &*self.call_log.lock().unwrap() {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(file, "{tool}").unwrap();
        }
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_running.fetch_max(running, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        match &self.call_script {
            Some(script) => script(tool, arguments),
            None => self.finish_call(ctx).await,
        }
    }
    async fn preview(&self, tool: &str, arguments: &RawValue, _: &CallContext) -> Result<Preview, McpError> {
        self.preview_count.fetch_add(1, Ordering::SeqCst);
        match (*self.preview_error.lock().unwrap(), &self.preview_script) {
            (Some(kind), _) => Err(McpError::new(kind, "no preview")),
            (None, Some(script)) => script(tool, arguments),
            (None, None) => Ok(self.current_preview(arguments)),
        }
    }
    fn read_back<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        _: &'a RawValue,
        _: &'a CallContext,
    ) -> Option<BoxFuture<'a, Result<PresentValues, McpError>>> {
        let script = self.read_back_script.get()?;
        Some(Box::pin(async move {
            self.read_back_gate.acquire().await.unwrap().forget();
            script(tool, arguments)
        }))
    }
    fn recipe(&self, _: &str) -> Option<&Recipe> {
        self.recipe.get()
    }
    async fn has_definition(&self, _: &str, _: &str) -> Result<bool, McpError> {
        Ok(!self.definitions_changed.load(Ordering::SeqCst))
    }
    async fn check_available(&self, principal: &Principal) -> Result<(), McpError> {
        if self.unavailable.load(Ordering::SeqCst) {
            Err(McpError::new(ErrorKind::UpstreamUnavailable, "away"))
        } else if self.disconnected.lock().unwrap().contains(&principal.name) {
            Err(McpError::new(ErrorKind::Authorization, "the server fake needs a connection"))
        } else {
            Ok(())
        }
    }
}

/// A directory with one provider.
pub struct FakeDirectory(pub Arc<FakeProvider>);

impl ProviderDirectory for FakeDirectory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        (name == self.0.name && self.0.present.load(Ordering::SeqCst)).then(|| Arc::clone(&self.0) as Arc<dyn Provider>)
    }
    fn tool_hash(&self, provider: &str, _: &str) -> Option<String> {
        self.has_tools(provider).then(|| self.0.tool_hash.lock().unwrap().clone())
    }
    fn verdict(&self, _: &str, _: &str, principal: &Principal, _: &RawValue) -> Verdict {
        self.0.judged_principals.lock().unwrap().push(principal.clone());
        *self.0.verdict.lock().unwrap()
    }
    fn is_pinned(&self, _: &str, _: &str) -> bool {
        self.0.pinned.load(Ordering::SeqCst)
    }
    fn is_accepted(&self, _: &str, _: &str, _: &RawValue) -> bool {
        self.0.accepted.load(Ordering::SeqCst)
    }
    /// Accepts all arguments but `wrong`.
    fn validate(&self, _: &str, _: &str, arguments: &RawValue) -> Result<(), McpError> {
        if !arguments.get().contains("\"wrong\"") {
            return Ok(());
        }
        let details =
            json!({ "errors": [{ "pointer": "/wrong", "rule": "additionalProperties", "message": "not that" }] });
        Err(McpError::new(ErrorKind::ValidationFailed, "the fake does not like it").with("details", details))
    }
    fn judge_change(&self, _: &Change, _: &RawValue) -> Option<Decision> {
        self.0.policy_decision.lock().unwrap().clone()
    }
    fn has_tools(&self, _: &str) -> bool {
        !self.0.tools_unknown.load(Ordering::SeqCst)
    }
}

/// Creates a server's request. Its answer, a result or an error code, is sent to `answered` as text.
#[must_use]
pub fn upstream_request(key: &str, method: &str, answered: oneshot::Sender<String>) -> UpstreamRequest {
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

/// Returns the context of a call by that principal, without anybody to ask.
pub fn context(principal: Principal) -> CallContext {
    CallContext::new(Arc::new(principal))
}

/// Returns a module's tool that takes an object with those properties.
pub fn tool(name: &str, properties: &Value) -> ToolDef {
    ToolDef {
        name: name.into(),
        title: name.into(),
        input_schema: json!({ "type": "object", "properties": properties }),
        ..ToolDef::default()
    }
}

/// Returns an upstream's tool; only the parts that matter to policy are parsed.
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

/// Returns a resource with that URI and name.
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

/// Returns a prompt with that name and one required argument.
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
