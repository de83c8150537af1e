//! Defines the destinations of calls: the [`Provider`] trait for modules and upstreams, the [`Module`] trait, and
//! previews of writes.
//!
//! A provider decides nothing: it previews a call on behalf of its proposer, and runs one. This crate depends on no
//! provider and finds them through [`ProviderDirectory`]. What a preview reads has to pass policy as the proposer.
//!
//! [`previews`] makes the preview of a call, either the module's own or one by a recipe. [`mod@request`] holds the
//! requests that a server sends while it runs a call, [`compiled_schema`] checks arguments, and [`text`] helps modules to
//! write for models and people.

pub mod compiled_schema;
mod context;
pub mod previews;
pub mod request;
pub mod schema;
pub mod schema_cost;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
mod tool_result;

pub use context::{CallContext, Inquirer, Meter, NoProgress, Permit, ProgressSink, SessionNotes, question_channel};
pub use tool_result::{AnswerError, ToolResult};

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use countersign_domain::{
    changes::{Change, Preview, ServerIdentity},
    policy::{Decision, OwnedRequester, Verdict, known_reads::KnownReads},
    principal::Principal,
    recipes::Recipe,
};
use countersign_protocol::{ErrorKind, McpError, annotations::ToolAnnotations, arguments::canonical_text_hash};

/// A tool as its provider defines it.
#[derive(Clone, Debug, Default)]
pub struct ToolDef {
    pub name: String,
    pub title: String,
    pub description: String,
    /// JSON Schema 2020-12 with an object root.
    pub input_schema: Value,
    /// JSON Schema of `structuredContent` of a completed call (the router adds the schema of the pending answer).
    pub output_schema: Option<Value>,
    pub annotations: ToolAnnotations,
    /// `true` if the tool manages the caller's own changes or the gateway itself. Such a tool is never put under review
    /// and never denied by `policy.default`.
    pub self_service: bool,
    /// `true` if the tool sends progress or waits, so that its answer may have to be streamed.
    pub long_running: bool,
    /// Returns `true` for arguments with which a module's writing tool only reads (a dry run). Policy treats such calls
    /// like calls of a read-only tool.
    pub read_only_when: Option<fn(&RawValue) -> bool>,
    /// The whole definition as the upstream wrote it, but with the name that clients use; `None` for a module.
    pub raw: Option<Arc<RawValue>>,
}

impl ToolDef {
    /// Returns `sha256:…` of the definition, independent of the order of members. It covers all members that an upstream
    /// wrote, including unknown ones, and those of a module's definition that affect calls.
    pub fn definition_hash(&self) -> String {
        match &self.raw {
            Some(raw) => canonical_text_hash(raw.get()),
            None => {
                let definition = json!({
                    "name": self.name, "description": self.description, "inputSchema": self.input_schema,
                    "annotations": self.annotations,
                });
                canonical_text_hash(&definition.to_string())
            }
        }
    }
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
    /// The definition as the upstream wrote it, but with the URI that clients use; `None` for a module.
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
    /// The definition as the upstream wrote it, but with the URI that clients use; `None` for a module.
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
    /// The definition as the upstream wrote it, but with the name that clients use; `None` for a module.
    #[serde(skip)]
    pub raw: Option<Arc<RawValue>>,
}

/// A provider's report to operators (see [`Provider::report`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Facts about the data, one line each.
    pub details: Vec<String>,
    /// Problems that do not prevent the provider from working.
    pub warnings: Vec<String>,
}

/// The contents of a text resource, such as JSON or Markdown.
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

/// The result of `prompts/get`.
#[derive(Clone, Debug)]
pub struct PromptResult {
    pub description: String,
    pub messages: Vec<PromptMessage>,
}

/// The prompt or template whose argument is completed (2026-07-28/server/utilities/completion).
#[derive(Clone, Debug)]
pub enum CompletionRef {
    Prompt(String),
    ResourceTemplate(String),
}

/// Completion values, at most 100, and their total number if it is known.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    pub values: Vec<String>,
    pub total: Option<u64>,
    pub has_more: bool,
}

/// A list whose changes are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Tools,
    Prompts,
    Resources,
}

impl List {
    /// All lists, in the order in which their changes are announced.
    pub const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// Returns the method of the notification that announces changes of the list.
    #[must_use]
    pub const fn notification(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }
}

/// A change of a provider's lists or resources, of which subscribers are notified.
#[derive(Clone, Debug)]
pub enum ProviderEvent {
    /// The resources with exactly these URIs have new contents.
    ResourcesUpdated(Vec<String>),
    /// Restricted resources have new contents. Only subscribers within the [`Audience`] are notified.
    PrivateResourcesUpdated(Vec<(String, Audience)>),
    /// A list has changed for everybody. Changed definitions of tools count, too, and resource templates as resources.
    ListChanged(List),
    /// A list has changed that is seen only by the principals who use the account of this holder at the provider.
    AccountListChanged { list: List, holder: Arc<str> },
}

/// The principals that may read a restricted resource.
#[derive(Clone, Debug)]
pub struct Audience {
    /// The principal that owns the resource.
    pub principal: String,
    /// `true` if every principal that may view proposals of others can read the resource, too.
    pub include_viewers: bool,
}

impl Audience {
    /// Returns `true` if the principal may read the resource.
    pub fn includes(&self, principal: &Principal) -> bool {
        self.principal == principal.name || (self.include_viewers && principal.role.may_view())
    }
}

/// The values of fields after a run (see [`Provider::read_back`]); `None` for a field without a value.
pub type PresentValues = Vec<(&'static str, Option<String>)>;

/// A session of the handshake era that subscribes to resources.
pub trait Subscriber: Send + Sync + 'static {
    fn id(&self) -> &Arc<str>;
    fn principal(&self) -> &Principal;
    /// Returns the session in the form that policy rules use; `None` before the handshake.
    fn requester(&self) -> Option<OwnedRequester>;
    /// Sends a message that belongs to no request.
    fn send(&self, message: Bytes);
}

/// A tool provider. All futures are `Send`: the Executor runs them away from the session's thread.
///
/// Names are the provider's own: the router has already resolved prefixes. A provider that only has tools keeps the
/// default methods.
///
/// To add a module:
/// 1. Write a crate that implements this trait, and list it in `Cargo.toml` and in the table of `docs/architecture.md`
///    (`crates_follow_the_order_of_the_architecture_page`).
/// 2. Read its section of `modules` in `src/config/src/read.rs`, and describe the keys in `config/countersign.yaml`
///    (`documented_keys_are_in_the_default_file`).
/// 3. Open it in `src/app/src/serve/providers.rs`, beside the other modules.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Returns the name: `tracker`, `gateway`, or the configured name of an upstream.
    fn name(&self) -> &str;

    fn tools(&self) -> Vec<ToolDef>;
    async fn resources(&self, _ctx: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
        Ok(Vec::new())
    }
    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        Vec::new()
    }
    fn prompts(&self) -> Vec<PromptDef> {
        Vec::new()
    }
    /// Returns the URI prefixes that this provider serves, such as `tracker://`.
    fn uri_prefixes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Runs a tool. `arguments` is a JSON object that has passed the tool's input schema.
    ///
    /// # Errors
    /// A failure of the tool itself (no such issue, an illegal transition) is an `McpError` too; the
    /// session layer turns it into an `isError` result.
    async fn call(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError>;

    /// Returns facts and warnings about the provider's data for operators.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Completes the arguments with the notes of the session; returns `None` if they stay unchanged. Only modules do
    /// this, and it happens before policy is evaluated: rules, reviewers and the Executor therefore see a complete call
    /// whose meaning no session can change later.
    ///
    /// # Errors
    /// Fails if the arguments contradict the session.
    fn complete_arguments(
        &self,
        _tool: &str,
        _arguments: &RawValue,
        _notes: &SessionNotes,
    ) -> Result<Option<Box<RawValue>>, McpError> {
        Ok(None)
    }

    /// Computes the effect of a write on the live state, without performing it.
    ///
    /// # Errors
    /// As [`Provider::call`]: a write that could not run is refused before a change is stored.
    async fn preview(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<Preview, McpError>;

    /// Reads the present values of the fields that the preview of a call shows, after it ran with this result. Fields
    /// that cannot be compared are left out. Returns `None` if the tool has no such read; only modules implement this.
    fn read_back<'a>(
        &'a self,
        _tool: &'a str,
        _arguments: &'a RawValue,
        _result: &'a RawValue,
        _ctx: &'a CallContext,
    ) -> Option<BoxFuture<'a, Result<PresentValues, McpError>>> {
        None
    }

    /// Subscribes to the provider's events from now on. The channel is bounded: a slow receiver gets `Lagged` and reads
    /// the lists again. The channel of a provider without events is closed.
    fn events(&self) -> tokio::sync::broadcast::Receiver<ProviderEvent> {
        tokio::sync::broadcast::channel(1).1
    }

    /// Checks whether a call of this principal could reach the provider now. This is checked before an approved change is
    /// claimed, so that a change whose server is down or does not list its tools, or whose proposer must connect to it again,
    /// waits instead of failing.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`, `AUTHORIZATION`
    async fn check_available(&self, _principal: &Principal) -> Result<(), McpError> {
        Ok(())
    }

    /// Returns `false` if the tool's definition no longer has this hash. An upstream reads its tools again first, because
    /// not every server announces that they have changed. If that fails, the last known definition counts.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE` if the session or process has ended that listed the last known definition.
    async fn has_definition(&self, _tool: &str, _hash: &str) -> Result<bool, McpError> {
        Ok(true)
    }

    /// Returns the time limit of a call after it was sent, if the provider sets one. `tool` is the name that clients
    /// use.
    fn call_timeout(&self, _tool: &str) -> Option<Duration> {
        None
    }

    /// Returns `true` for a provider that is compiled in: its annotations are trusted, and it previews its own calls.
    fn is_module(&self) -> bool {
        true
    }

    /// Returns the hash of the server behind the name (`UpstreamTarget::fingerprint`), or an empty string for a module.
    fn target_fingerprint(&self) -> &str {
        ""
    }

    /// Returns the identity of the server behind the name, as it is stored with a change.
    fn server_identity(&self) -> ServerIdentity {
        ServerIdentity { fingerprint: self.target_fingerprint().to_owned(), label: "built in".to_owned() }
    }

    /// Returns the provider's `instructions` for models, if they may be passed on.
    fn instructions(&self) -> Option<String> {
        None
    }

    /// Returns `true` if the operator vouches for the provider's annotations (`trust_annotations`).
    fn has_trusted_annotations(&self) -> bool {
        false
    }

    /// Returns the list of known reads for the server behind the name, if it is a known one.
    fn known_reads(&self) -> Option<&KnownReads> {
        None
    }

    /// Returns the configured recipe for previews of this tool. `tool` is the name that clients use.
    fn recipe(&self, _tool: &str) -> Option<&Recipe> {
        None
    }

    /// Returns the name that clients use for the provider's tool `own`.
    fn exposed_name(&self, own: &str) -> String {
        own.to_owned()
    }

    /// Returns the read calls (tool and arguments) that would show a client the same data as the preview of this call.
    /// Only modules implement this, because recipes name the reads of upstream tools.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` for arguments that are invalid in any state of the module.
    fn preview_reads(&self, _tool: &str, _arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
        Ok(Vec::new())
    }
}

/// A provider that is compiled in and serves resources, prompts and completions itself. Those of an upstream are
/// forwarded as bytes.
#[async_trait]
pub trait Module: Provider {
    async fn read_resource(&self, uri: &str, _ctx: &CallContext) -> Result<Vec<ResourceText>, McpError> {
        Err(McpError::new(ErrorKind::ResourceNotFound, "There is no such resource").with("uri", uri))
    }

    /// Checks whether the client may subscribe to the resource. The check gives the same answer as reading it would.
    ///
    /// # Errors
    /// As [`Module::read_resource`] if reading is refused.
    async fn check_subscription(&self, _uri: &str, _ctx: &CallContext) -> Result<(), McpError> {
        Ok(())
    }

    async fn get_prompt(
        &self,
        _name: &str,
        _arguments: &serde_json::Map<String, Value>,
        _ctx: &CallContext,
    ) -> Result<PromptResult, McpError> {
        Err(McpError::new(ErrorKind::PromptNotFound, "There is no such prompt"))
    }

    /// Completes an argument. `argument` is its name and the typed prefix, `context` the other arguments given so far.
    async fn complete(
        &self,
        _reference: &CompletionRef,
        _argument: (&str, &str),
        _context: &serde_json::Map<String, Value>,
        _ctx: &CallContext,
    ) -> Result<Completion, McpError> {
        Ok(Completion::default())
    }
}

/// Finds providers and tool definitions by name. The route table implements it.
pub trait ProviderDirectory: Send + Sync + 'static {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>>;
    /// Returns the hash of the tool's current definition (`sha256:…`), for a comparison with the definition at the time
    /// of a proposal.
    fn tool_hash(&self, provider: &str, tool: &str) -> Option<String>;
    /// Returns the policy's verdict on a call by this principal. Standing rules apply, but simulate mode does not
    /// weaken the verdict; an unknown tool gives `Deny`.
    fn verdict(&self, provider: &str, tool: &str, principal: &Principal, arguments: &RawValue) -> Verdict;
    /// Returns `true` if the tool's definition is the pinned one, which was seen first or accepted last. Recipes call
    /// no other tools.
    fn is_pinned(&self, _provider: &str, _tool: &str) -> bool {
        false
    }
    /// Returns `true` if a reviewer has accepted the tool's current definition, at least for the operation that the call names.
    fn is_accepted(&self, _provider: &str, _tool: &str, _arguments: &RawValue) -> bool {
        false
    }
    /// Checks a call's arguments against the tool's current input schema.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` with `details`, or `TOOL_NOT_FOUND`.
    fn validate(&self, _provider: &str, tool: &str, _arguments: &RawValue) -> Result<(), McpError> {
        Err(McpError::new(ErrorKind::ToolNotFound, format!("The gateway cannot check arguments for {tool}")))
    }
    /// Returns the policy's decision on the change with these arguments, for the same proposer and the same kind of session.
    /// `None` if there is no policy, or the provider does not offer the tool now.
    fn judge_change(&self, _change: &Change, _arguments: &RawValue) -> Option<Decision> {
        None
    }
    /// Returns `true` if the provider's tools are known. An upstream that was not reached since the start has none yet.
    fn has_tools(&self, provider: &str) -> bool;
}
