//! What a call can be routed to, a module or an upstream: the traits [`Provider`] and [`Module`], and the previews of
//! writes.
//!
//! A provider decides nothing: it is asked to preview a call on behalf of its proposer, and to run one. This crate
//! depends on no provider; it finds one through [`ProviderDirectory`], and what a preview reads passes policy as the
//! proposer.
//!
//! [`previews`] makes the preview of a call, the module's own or one by a recipe. [`request`] is what a server asks while
//! it runs a call, and [`text`] helps modules to write for models and people.

pub mod previews;
pub mod request;
pub mod schema_cost;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
mod tool_result;

pub use tool_result::{AnswerFault, ToolResult};

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use tokio_util::sync::CancellationToken;

use crate::request::UpstreamRequest;
use countersign_domain::{
    changes::{Change, Preview, ServedBy},
    policy::{Decision, Verdict},
    principal::Principal,
    recipes::Recipe,
};
use countersign_protocol::{ErrorKind, McpError, annotations::ToolAnnotations, capabilities::ClientCapabilities};

/// A tool as its provider defines it.
#[derive(Clone, Debug)]
pub struct ToolDef {
    pub name: String,
    pub title: String,
    pub description: String,
    /// JSON Schema 2020-12 with an object root.
    pub input_schema: Value,
    /// JSON Schema of `structuredContent` of a call that ran (the pending answer is added by the router).
    pub output_schema: Option<Value>,
    pub annotations: ToolAnnotations,
    /// Manages the caller's own changes, or the gateway itself: never put under review, never denied by `policy.default`.
    pub self_service: bool,
    /// Sends progress or waits: its answer may have to be streamed.
    pub long_running: bool,
    /// Of a module's tool that writes: tells by their arguments which of its calls only read (a dry run). Policy takes
    /// these for calls of a tool that says so of itself.
    pub reads_when: Option<fn(&RawValue) -> bool>,
    /// The whole definition as an upstream wrote it, under the name that clients use; `None` for a module.
    pub raw: Option<Arc<RawValue>>,
}

/// A concrete resource (`resources/list`).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceDef {
    pub uri: String,
    pub name: String,
    pub title: String,
    pub description: String,
    pub mime_type: String,
    /// As an upstream wrote it, under the URI that clients use; `None` for a module.
    #[serde(skip)]
    pub raw: Option<Arc<RawValue>>,
}

/// A parameterized resource (`resources/templates/list`).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceTemplateDef {
    pub uri_template: String,
    pub name: String,
    pub title: String,
    pub description: String,
    pub mime_type: String,
    /// As an upstream wrote it, under the URI that clients use; `None` for a module.
    #[serde(skip)]
    pub raw: Option<Arc<RawValue>>,
}

/// One argument of a prompt.
#[derive(Clone, Debug, Serialize)]
pub struct PromptArgumentDef {
    pub name: String,
    pub title: String,
    pub description: String,
    pub required: bool,
}

/// A prompt (`prompts/list`).
#[derive(Clone, Debug, Serialize)]
pub struct PromptDef {
    pub name: String,
    pub title: String,
    pub description: String,
    pub arguments: Vec<PromptArgumentDef>,
    /// As an upstream wrote it, under the name that clients use; `None` for a module.
    #[serde(skip)]
    pub raw: Option<Arc<RawValue>>,
}

/// Sends progress of the running call to whoever asked for it; dropped silently where nobody did.
pub trait ProgressSink: Send + Sync {
    /// `progress` must rise from call to call (2026-07-28/basic/patterns/progress).
    fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>);
    /// Whether anybody listens.
    fn wanted(&self) -> bool;
}

/// Nobody listens.
#[derive(Debug, Default)]
pub struct NoProgress;
impl ProgressSink for NoProgress {
    fn progress(&self, _: f64, _: Option<f64>, _: Option<&str>) {}
    fn wanted(&self) -> bool {
        false
    }
}

/// Asks the client on whose behalf an approved change runs.
pub trait Inquirer: Send + Sync {
    /// What the client can be asked for.
    fn capabilities(&self) -> &ClientCapabilities;
    /// Hands a question over, which its client may be asked; where there is no room for it, it is declined.
    fn ask(&self, question: UpstreamRequest);
}

/// What modules note of a session of the handshake era; it ends with the session.
#[derive(Debug, Default)]
pub struct SessionNotes(Mutex<BTreeMap<&'static str, Arc<str>>>);

impl SessionNotes {
    /// What the module of that name noted last.
    #[must_use]
    pub fn get(&self, module: &'static str) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(module).cloned()
    }

    /// Notes something in place of what was noted before. A module notes no more than some hundred bytes.
    pub fn set(&self, module: &'static str, note: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(module, note.into());
    }
}

/// On whose behalf a call is made.
#[derive(Clone)]
pub struct CallContext {
    /// The proposer, also when the Executor runs an approved change long after.
    pub principal: Arc<Principal>,
    pub cancel: CancellationToken,
    pub progress: Arc<dyn ProgressSink>,
    /// Set when this is the run of an approved change.
    pub change_id: Option<String>,
    /// Who answers what the tool asks; none where every question is declined.
    pub inquirer: Option<Arc<dyn Inquirer>>,
    /// What was noted of the session that the call is made in; none for a stateless call, and for the Executor's.
    pub session: Option<Arc<SessionNotes>>,
    /// Whether the call may still go out, of the run of an approved change: to be asked just before its first byte does.
    pub permit: Option<Permit>,
    /// The fingerprint that was approved, of the run of an approved change: a module compares it where it writes.
    pub approved_state: Option<String>,
    /// Charges the time that a module's thread takes for the call to the rate of its caller; `None` where nobody is charged.
    pub meter: Option<Meter>,
}

/// See [`CallContext::meter`].
#[derive(Clone)]
pub struct Meter(pub Arc<dyn Fn(Duration) + Send + Sync>);

impl CallContext {
    /// Does work that grows with what the caller sent or asked for, and charges its time to the caller.
    pub fn charged<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        if let Some(Meter(charge)) = &self.meter {
            charge(began.elapsed());
        }
        done
    }

    /// Compares the live state with the one that was approved, if this is the run of an approved change. A module calls
    /// this under the lock or in the transaction that it writes in.
    ///
    /// # Errors
    /// `CHANGE_STALE`, with `not_applied`.
    pub fn check_state(&self, fingerprint: &str) -> Result<(), McpError> {
        match &self.approved_state {
            Some(approved) if approved != fingerprint => {
                let message = "The target has changed since it was approved, so nothing was written; propose it again";
                Err(McpError::new(ErrorKind::ChangeStale, message).with("outcome", "not_applied"))
            }
            _ => Ok(()),
        }
    }
}

/// See [`CallContext::permit`]. Cheap, and never blocks.
#[derive(Clone)]
pub struct Permit(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl Permit {
    /// Whether it may still go out at this moment.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.0)()
    }

    /// What a module looks at just before it does what was approved.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`, with `not_applied`.
    pub fn check(permit: Option<&Self>) -> Result<(), McpError> {
        if permit.is_none_or(Self::holds) { Ok(()) } else { Err(Self::lapsed()) }
    }

    /// Somebody else takes the gateway that had the change for gone.
    #[must_use]
    pub fn lapsed() -> McpError {
        let message = "The lease of the gateway that took it ran out before anything was sent; propose it again";
        McpError::new(ErrorKind::UpstreamUnavailable, message).with("outcome", "not_applied")
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit")
    }
}

/// See [`Provider::report`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What it has, one line each.
    pub details: Vec<String>,
    /// What is not as it should be and stops nobody.
    pub warnings: Vec<String>,
}

/// A text resource that was read. `json` and Markdown are both text.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceText {
    pub uri: String,
    pub mime_type: String,
    pub text: String,
}

/// One message of a prompt; text only.
#[derive(Clone, Debug)]
pub struct PromptMessage {
    /// `user` or `assistant`.
    pub role: &'static str,
    pub text: String,
}

/// What `prompts/get` answers.
#[derive(Clone, Debug)]
pub struct PromptResult {
    pub description: String,
    pub messages: Vec<PromptMessage>,
}

/// What is completed (2026-07-28/server/utilities/completion).
#[derive(Clone, Debug)]
pub enum CompletionRef {
    Prompt(String),
    ResourceTemplate(String),
}

/// At most 100 values, with the total where it is known.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    pub values: Vec<String>,
    pub total: Option<u64>,
    pub has_more: bool,
}

/// Something happened to what a provider offers or holds; resource watchers are told.
#[derive(Clone, Debug)]
pub enum ProviderEvent {
    /// Resources with exactly these URIs have new contents.
    ResourcesUpdated(Vec<String>),
    /// The same of resources that not everybody may read: told to those of whom that is so.
    PrivateUpdated(Vec<(String, Audience)>),
    /// `resources/list` (or the templates) answers differently now.
    ResourceListChanged,
    /// The tools or their definitions are others now: the router asks for them again.
    ToolListChanged,
    /// The prompts are others now: the router asks for them again.
    PromptListChanged,
}

/// Who may read a resource.
#[derive(Clone, Debug)]
pub struct Audience {
    /// The principal whose it is.
    pub principal: String,
    /// Also whoever may view what others proposed.
    pub viewers: bool,
}

impl Audience {
    #[must_use]
    pub fn has(&self, principal: &Principal) -> bool {
        self.principal == principal.name || (self.viewers && principal.role.may_view())
    }
}

/// A session of the handshake era that subscribes to resources.
pub trait Subscriber: Send + Sync + 'static {
    fn id(&self) -> &Arc<str>;
    fn principal(&self) -> &Principal;
    /// Sends a message that belongs to no request.
    fn send(&self, message: Bytes);
}

/// A tool provider. All futures are `Send`: the Executor runs them away from the session's thread.
///
/// Names are the provider's own: the router has already resolved prefixes. One that only has tools leaves the rest as
/// it is here.
pub trait Provider: Send + Sync + 'static {
    /// `tracker`, `gateway`, or an upstream's configured name.
    fn name(&self) -> &str;

    fn tools(&self) -> Vec<ToolDef>;
    fn resources<'a>(&'a self, _ctx: &'a CallContext) -> BoxFuture<'a, Result<Vec<ResourceDef>, McpError>> {
        Box::pin(ready(Ok(Vec::new())))
    }
    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        Vec::new()
    }
    fn prompts(&self) -> Vec<PromptDef> {
        Vec::new()
    }
    /// URI prefixes this provider answers for, such as `tracker://`.
    fn uri_schemes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Runs a tool. `arguments` is a JSON object that has passed the tool's input schema.
    ///
    /// # Errors
    /// A failure of the tool itself (no such issue, an illegal transition) is an `McpError` too; the
    /// session layer turns it into an `isError` result.
    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>>;

    /// What a module has to tell operators about its data.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Of a module: the arguments as they are meant in this session, where its notes say more than the arguments do;
    /// `None` where they stay as they are. They are completed before policy is asked, so that what a rule looks at, a
    /// reviewer sees and the Executor runs is the whole call, which no session can give another meaning later.
    ///
    /// # Errors
    /// Where the arguments contradict what the session is about.
    fn in_session(
        &self,
        _tool: &str,
        _arguments: &RawValue,
        _notes: &SessionNotes,
    ) -> Result<Option<Box<RawValue>>, McpError> {
        Ok(None)
    }

    /// Computes what a write would do, against the live state, without doing it.
    ///
    /// # Errors
    /// As [`Provider::call`]: a write that could not run is refused before anything is stored.
    fn preview<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>>;

    /// Events from now on (bounded; a slow receiver sees `Lagged` and re-reads). One that has none ends at once.
    fn events(&self) -> tokio::sync::broadcast::Receiver<ProviderEvent> {
        tokio::sync::broadcast::channel(1).1
    }

    /// Whether a call could reach it now. Asked before an approved change is claimed, so that one whose server is away
    /// waits and does not fail.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`
    fn available(&self) -> Result<(), McpError> {
        Ok(())
    }

    /// How long a call of the tool may take once it is sent, where the provider bounds that itself. `tool` is the clients'
    /// name.
    fn call_timeout(&self, _tool: &str) -> Option<Duration> {
        None
    }

    /// Whether it is compiled in: what it says of its tools is believed, and it previews its own calls.
    fn is_module(&self) -> bool {
        true
    }

    /// What is behind the name, as a hash (`UpstreamTarget::fingerprint`); empty for a module.
    fn target(&self) -> &str {
        ""
    }

    /// What is behind the name, as it is noted in a change.
    fn served_by(&self) -> ServedBy {
        ServedBy { fingerprint: self.target().to_owned(), label: "built in".to_owned() }
    }

    /// What it says of itself to models, where that is passed on.
    fn instructions(&self) -> Option<String> {
        None
    }

    /// Whether the operator vouches for what it says of its tools (`trust_annotations`).
    fn trust_annotations(&self) -> bool {
        false
    }

    /// How the configuration has calls of this tool of an upstream previewed; the name is the clients'.
    fn recipe(&self, _tool: &str) -> Option<&Recipe> {
        None
    }

    /// What clients call the tool that the provider calls so.
    fn expose(&self, own: &str) -> String {
        own.to_owned()
    }

    /// Of a module: the calls by which a client would read what the preview of this one shows, each a tool of its own and
    /// its arguments. Recipes say so of the tools of upstreams.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` for arguments that are wrong whatever the module holds.
    fn reads(&self, _tool: &str, _arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
        Ok(Vec::new())
    }
}

/// A provider that is compiled in: what it has besides tools is asked of it. What an upstream has passes through as bytes.
pub trait Module: Provider {
    fn read_resource<'a>(
        &'a self,
        uri: &'a str,
        _ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceText>, McpError>> {
        Box::pin(async move {
            Err(McpError::new(ErrorKind::ResourceNotFound, "There is no such resource").with("uri", uri))
        })
    }

    /// Whether this client may hear of the resource, which has the answer that reading it has.
    ///
    /// # Errors
    /// As [`Module::read_resource`] where reading is refused.
    fn may_subscribe<'a>(&'a self, _uri: &'a str, _ctx: &'a CallContext) -> BoxFuture<'a, Result<(), McpError>> {
        Box::pin(ready(Ok(())))
    }

    fn get_prompt<'a>(
        &'a self,
        _name: &'a str,
        _arguments: &'a serde_json::Map<String, Value>,
        _ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<PromptResult, McpError>> {
        Box::pin(async { Err(McpError::new(ErrorKind::PromptNotFound, "There is no such prompt")) })
    }

    /// `argument` is the name and the typed prefix; `context` the other arguments given so far.
    fn complete<'a>(
        &'a self,
        _reference: &'a CompletionRef,
        _argument: (&'a str, &'a str),
        _context: &'a serde_json::Map<String, Value>,
        _ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Completion, McpError>> {
        Box::pin(ready(Ok(Completion::default())))
    }
}

/// Finds providers and tool definitions by name; implemented by the route table.
pub trait ProviderDirectory: Send + Sync + 'static {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>>;
    /// The hash of the tool's current definition (`sha256:…`), to compare with the one a change was proposed against.
    fn tool_hash(&self, provider: &str, tool: &str) -> Option<String>;
    /// What the policy says of a call of this principal, standing rules included, whatever its mode lets through. `Deny` for a tool that is not there.
    fn verdict(&self, provider: &str, tool: &str, principal: &Principal, arguments: &RawValue) -> Verdict;
    /// Whether the tool's definition is the one that is pinned: first seen or accepted, and not another since. Recipes
    /// call no other tool.
    fn is_pinned(&self, _provider: &str, _tool: &str) -> bool {
        false
    }
    /// Whether a reviewer has accepted the tool's definition as it is now.
    fn is_accepted(&self, _provider: &str, _tool: &str) -> bool {
        false
    }
    /// Checks a call's arguments against the tool's input schema as it is now.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` with `details`; `TOOL_NOT_FOUND`.
    fn validate(&self, _provider: &str, tool: &str, _arguments: &RawValue) -> Result<(), McpError> {
        Err(McpError::new(ErrorKind::ToolNotFound, format!("The gateway cannot check arguments for {tool}")))
    }
    /// What the policy says of the change's call with these arguments instead of its own, made by its proposer in the
    /// way it was proposed. `None` where there is no policy.
    fn judge(&self, _change: &Change, _arguments: &RawValue) -> Option<Decision> {
        None
    }
    /// Whether the provider's tools are known: an upstream that was not reached since the start has none yet.
    fn has_tools(&self, provider: &str) -> bool;
}
