//! The questions of servers to clients: elicitation, sampling and roots. This module checks which questions a client
//! accepts and adapts them to it (2025-11-25/client/*, 2026-07-28/client/*). [`Relay`] carries questions and
//! notifications to the client of a call, and [`ClientAsker`] asks a handshake-era client.

mod stateless_client;

use std::{future::Future, sync::Arc};

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::mpsc;

use crate::translation::task_json;
use countersign_config::UpstreamConfig;
use countersign_domain::questions::{
    ELICITATION, check_capabilities, elicitation::params_for_client, missing_capability,
};
use countersign_exchange::{
    ask::{AskError, ask},
    context::Exchange,
    reply::RelatedChannel,
};
use countersign_protocol::{
    Era, ErrorKind, McpError, Method, Revision, encode,
    json::{MemberEdit, edit, member, members, string},
    negotiate::ClientCapabilities,
    params::LoggingLevel,
    rpc_error::RpcError,
};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::{Listener, Response, UpstreamNotification};

pub use stateless_client::{ClientQuestion, DeclinedQuestions, OpenQuestion, StatelessClient};

const INTERNAL: i64 = ErrorKind::Internal.number();

/// Returns the capabilities that this upstream may use: those that the client declared, its revision has and the
/// configuration allows. The second value is `true` if the client declared more.
pub fn allowed_capabilities(exchange: &Exchange, config: &UpstreamConfig) -> (ClientCapabilities, bool) {
    let declared = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
    let mut allowed = declared.clone();
    let revision = exchange.revision();
    allowed.elicitation_form &= config.elicitation && revision >= Revision::V2025_06_18;
    allowed.elicitation_url &= config.elicitation && revision >= Revision::V2025_11_25;
    allowed.sampling &= config.sampling;
    allowed.sampling_tools &= config.sampling && revision >= Revision::V2025_11_25;
    allowed.sampling_context &= config.sampling && revision >= Revision::V2025_11_25;
    let is_restricted = allowed != declared;
    (allowed, is_restricted)
}

/// Converts a client's failure to answer into the error for the upstream.
pub fn refusal_error(error: &AskError) -> RpcError {
    match error {
        AskError::Refused(object) => parse_rpc_error(object.get()),
        AskError::CannotAsk(reason) => RpcError::new(INTERNAL, format!("the client cannot be asked: {reason}")),
        AskError::TimedOut => RpcError::new(INTERNAL, "the client did not answer in time"),
        AskError::SessionEnded => RpcError::new(INTERNAL, "the client has gone"),
    }
}

/// Parses an `error` object. Missing and invalid members get default values.
pub(crate) fn parse_rpc_error(object: &str) -> RpcError {
    let code = member(object, "code").and_then(|code| code.parse().ok()).unwrap_or(INTERNAL);
    let message = member(object, "message").and_then(string).unwrap_or_default().into_owned();
    let data = member(object, "data").and_then(|data| RawValue::from_string(data.to_owned()).ok());
    RpcError { code, message, data, status: None }
}

/// Converts the outcome of a question into the answer for the upstream. An elicitation that failed counts as cancelled.
/// Any other missing answer is an error.
///
/// # Errors
/// `NOT_BRIDGEABLE` if a question other than an elicitation has no answer.
pub fn answer_or_error(method: &str, outcome: Result<Box<RawValue>, AskError>) -> Result<Box<RawValue>, McpError> {
    match outcome {
        Ok(answer) => Ok(answer),
        Err(AskError::Refused(_) | AskError::TimedOut) if method == ELICITATION => {
            Ok(RawValue::from_string(r#"{"action":"cancel"}"#.to_owned()).unwrap_or_default())
        }
        Err(error) => Err(no_answer_error(method, &error)),
    }
}

/// Returns the error for a call that cannot continue without the answer.
fn no_answer_error(method: &str, error: &AskError) -> McpError {
    let refusal = refusal_error(error);
    McpError::new(ErrorKind::NotBridgeable, format!("the upstream needs an answer to {method}: {}", refusal.message))
        .with("method", method)
        .with("answerCode", refusal.code)
}

/// Puts the questions of an upstream to the client of an exchange.
pub struct ClientAsker<'a> {
    pub exchange: &'a Exchange,
    /// The name of the upstream.
    pub upstream: &'a str,
    pub capabilities: &'a ClientCapabilities,
    /// The task that the questions belong to, under the client's id.
    pub task: Option<&'a str>,
}

impl ClientAsker<'_> {
    /// Runs a call to its end and has the client answer its questions meanwhile.
    ///
    /// # Errors
    /// The errors of the call.
    pub async fn run(
        &self,
        work: impl Future<Output = Result<Response, McpError>>,
        mut requests: mpsc::Receiver<UpstreamRequest>,
    ) -> Result<Response, McpError> {
        let mut work = std::pin::pin!(work);
        let mut open_questions: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                response = &mut work => return response,
                Some(request) = requests.recv() => open_questions.push(Box::pin(self.answer(request))),
                Some(()) = open_questions.next(), if !open_questions.is_empty() => {}
            }
        }
    }

    /// Asks the client one question. See [`countersign_domain::questions::adapt_params`] for `elicitation_id`.
    ///
    /// # Errors
    /// The errors of [`ask`].
    pub async fn ask(
        &self,
        method: &str,
        params: Option<&str>,
        elicitation_id: Option<&str>,
    ) -> Result<Box<RawValue>, AskError> {
        let exchange = self.exchange;
        let mut params = params_for_client(self.upstream, method, params, exchange.revision(), elicitation_id);
        if let Some(task) = self.task {
            params = Some(task_json::with_related_task(params.as_deref().unwrap_or("{}"), task));
        }
        ask(&exchange.session, &exchange.related, method, params.as_deref()).await
    }

    /// Asks the client the question of a request and passes its answer to the upstream.
    async fn answer(&self, request: UpstreamRequest) {
        let UpstreamRequest { method, params, reply, cancelled, .. } = request;
        let params = params.as_deref().map(RawValue::get);
        if let Err(refused) = check_capabilities(self.capabilities, &method, params) {
            return reply.answer(Err(refused));
        }
        tokio::select! {
            answer = self.ask(&method, params, None) => reply.answer(answer.map_err(|error| refusal_error(&error))),
            () = cancelled.cancelled() => {}
        }
    }
}

/// The maximum number of an upstream's questions that wait in the channel.
const MAX_QUEUED_QUESTIONS: usize = 64;

/// The client that receives the messages of a call.
#[derive(Clone)]
pub struct MessageRecipient {
    related: RelatedChannel,
    /// The client's own progress token, as JSON text.
    progress_token: Option<Box<str>>,
    /// The least severe level of log messages that the client wants.
    log_level: Option<LoggingLevel>,
    revision: Revision,
    /// `true` if notifications that the gateway does not know are passed on. The client can understand them only if it
    /// belongs to the upstream's era.
    pub wants_unknown: bool,
}

impl MessageRecipient {
    /// Returns the client of an exchange, without notifications that the gateway does not know.
    pub fn for_exchange(exchange: &Exchange, progress_token: Option<&str>, log_level: Option<LoggingLevel>) -> Self {
        let (progress_token, revision) = (progress_token.map(Into::into), exchange.revision());
        Self { related: exchange.related.clone(), progress_token, log_level, revision, wants_unknown: false }
    }

    /// Returns `true` if the client understands `notifications/elicitation/complete` (2025-11-25/client/elicitation).
    fn understands_url_completion(&self) -> bool {
        // Icons and this notification came with the same revision.
        self.revision.era() == Era::Legacy && self.revision.rules().icons
    }
}

#[cfg(test)]
impl MessageRecipient {
    pub(crate) fn none() -> Self {
        let related = RelatedChannel::None;
        Self { related, progress_token: None, log_level: None, revision: Revision::MODERN, wants_unknown: false }
    }
}

/// The present destination of a relay's messages.
struct Destination {
    /// The client that receives the messages. Without one they are discarded.
    recipient: Option<MessageRecipient>,
    /// The last progress that the client got.
    last_progress: f64,
}

/// Returns the error for a stateless client that did not declare what a server needs (2026-07-28/basic/index,
/// "Capabilities").
fn missing_capability_error(upstream: &str, missing: Value) -> McpError {
    let message = format!("the server {upstream} cannot do this without a capability that the client did not declare");
    McpError::new(ErrorKind::MissingCapability, message)
        .with("requiredCapabilities", missing)
        .with("upstream", upstream)
}

/// Returns the error for an upstream that needs a capability which its configuration withholds, so that no declaration of
/// the client helps. `required` is an object like `requiredCapabilities`, as JSON text.
fn withheld_capability_error(config: &UpstreamConfig, required: &str) -> Option<McpError> {
    let permissions = [("elicitation", config.elicitation), ("sampling", config.sampling)];
    let (key, _) = permissions.iter().find(|(key, is_allowed)| !is_allowed && member(required, key).is_some())?;
    let name = &config.name;
    let message =
        format!("the server {name} needs {key}, which the gateway's configuration withholds from it (`{key}: deny`)");
    Some(McpError::new(ErrorKind::NotBridgeable, message).with("upstream", name.as_str()))
}

/// Replaces an upstream's error about a missing capability, if its configuration withholds the capability.
pub fn explain_withheld_capability(config: &UpstreamConfig, error: McpError) -> McpError {
    let foreign = error.passthrough.as_ref().filter(|_| error.kind == ErrorKind::MissingCapability);
    let required = foreign.and_then(|foreign| member(foreign.data.as_deref()?, "requiredCapabilities"));
    let explained = required.and_then(|required| withheld_capability_error(config, required));
    explained.unwrap_or(error)
}

/// Checks that a client can be asked all questions of a stateless upstream. `capabilities` are those that the upstream
/// may use, and `requests` is the text of its `inputRequests`.
///
/// # Errors
/// `-32021` for a stateless client that does not declare what a question needs, and `NOT_BRIDGEABLE` for any other
/// question that the client cannot be asked, or that the configuration forbids.
pub fn check_requests(
    exchange: &Exchange,
    config: &UpstreamConfig,
    capabilities: &ClientCapabilities,
    requests: &str,
) -> Result<(), McpError> {
    let questions: Vec<_> = members(requests)
        .map(|request| {
            let method = member(request.value, "method").and_then(string).unwrap_or_default();
            (method, member(request.value, "params"))
        })
        .collect();
    let mut checks = questions.iter().map(|(method, params)| check_capabilities(capabilities, method, *params));
    let Some(refused) = checks.find_map(Result::err) else { return Ok(()) };
    let declared = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
    let missing = |declared: &ClientCapabilities| {
        missing_capabilities(declared, questions.iter().map(|(method, params)| (&**method, *params)))
    };
    if let Some(required) = missing(&ClientCapabilities::default())
        && let Some(error) = withheld_capability_error(config, &required.to_string())
    {
        return Err(error);
    }
    if exchange.is_modern()
        && let Some(missing) = missing(&declared)
    {
        return Err(missing_capability_error(&config.name, missing));
    }
    let message = format!("the upstream needs what this client cannot give: {}", refused.message);
    Err(McpError::new(ErrorKind::NotBridgeable, message))
}

/// Returns the capabilities that a client lacks for these questions, each a method with its parameters, in the form of
/// `requiredCapabilities`. `declared` are the capabilities that it has.
pub fn missing_capabilities<'q>(
    declared: &ClientCapabilities,
    questions: impl Iterator<Item = (&'q str, Option<&'q str>)>,
) -> Option<Value> {
    let missing = questions.filter_map(|(method, params)| missing_capability(declared, method, params));
    missing.reduce(|mut all, more| {
        merge_objects(&mut all, more);
        all
    })
}

/// Merges `more` into an object, and the objects in both of them as well.
fn merge_objects(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.into_iter()
                .for_each(|(key, value)| merge_objects(into.entry(key).or_insert_with(|| json!({})), value));
        }
        (into, more) => *into = more,
    }
}

/// Relays the messages of one call to its client.
pub struct Relay {
    destination: Mutex<Destination>,
    /// The channel for questions. Without it, all questions are declined.
    questions: Option<mpsc::Sender<UpstreamRequest>>,
    /// The questions that were declined because the client cannot be asked.
    pub declined: DeclinedQuestions,
}

impl Relay {
    /// Creates a relay that declines the upstream's questions.
    pub fn new(recipient: MessageRecipient) -> Arc<Self> {
        Self::with_channel(recipient, None)
    }

    /// Creates a relay that passes the upstream's questions to the returned receiver.
    #[must_use]
    pub fn with_questions(recipient: MessageRecipient) -> (Arc<Self>, mpsc::Receiver<UpstreamRequest>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_QUESTIONS);
        (Self::with_channel(recipient, Some(sender)), receiver)
    }

    fn with_channel(recipient: MessageRecipient, questions: Option<mpsc::Sender<UpstreamRequest>>) -> Arc<Self> {
        let destination = Mutex::new(Destination::new(Some(recipient)));
        Arc::new(Self { destination, questions, declined: DeclinedQuestions::default() })
    }

    /// Redirects further messages to another request of the client, or discards them if there is none.
    pub fn redirect_to(&self, recipient: Option<MessageRecipient>) {
        *self.destination.lock() = Destination::new(recipient);
    }
}

impl Destination {
    fn new(recipient: Option<MessageRecipient>) -> Self {
        Self { recipient, last_progress: f64::NEG_INFINITY }
    }
}

impl Listener for Relay {
    fn handle_notification(&self, notification: UpstreamNotification) {
        let mut destination = self.destination.lock();
        let Destination { recipient: Some(recipient), last_progress } = &mut *destination else { return };
        let params = notification.params.as_deref().map(RawValue::get);
        match notification.method.as_str() {
            "notifications/progress" => {
                let Some((token, params)) = recipient.progress_token.as_deref().zip(params) else { return };
                let value = member(params, "progress").and_then(|value| value.parse::<f64>().ok());
                // Progress must rise with each notification (2026-07-28/basic/patterns/progress).
                let Some(value) = value.filter(|value| value > last_progress) else { return };
                *last_progress = value;
                let mut edits = vec![("progressToken", MemberEdit::Set(token))];
                if !recipient.revision.rules().annotations {
                    edits.push(("message", MemberEdit::Drop));
                }
                recipient.related.send(encode::notification(&notification.method, Some(&edit(params, &edits))));
            }
            "notifications/message" => {
                let level = params.and_then(|params| member(params, "level")).and_then(string);
                let level = level.and_then(|level| LoggingLevel::parse(&level));
                if level.is_some_and(|level| recipient.log_level.is_some_and(|least| level >= least)) {
                    recipient.related.send(encode::notification(&notification.method, params));
                }
            }
            "notifications/elicitation/complete" if recipient.understands_url_completion() => {
                recipient.related.send(encode::notification(&notification.method, params));
            }
            // An unknown notification may belong to an extension that both sides declare; other clients ignore it.
            unknown
                if recipient.wants_unknown
                    && unknown.starts_with("notifications/")
                    && unknown != "notifications/elicitation/complete"
                    && Method::parse(unknown).is_none() =>
            {
                recipient.related.send(encode::notification(unknown, params));
            }
            _ => {}
        }
    }

    fn handle_request(&self, request: UpstreamRequest) {
        // A request that is dropped without an answer counts as declined.
        match &self.questions {
            None => self.declined.record(&request.method, request.params),
            Some(questions) if questions.try_send(request).is_err() => {
                tracing::debug!(
                    "a question of an upstream is declined, because too many questions of its call wait already"
                );
            }
            Some(_) => {}
        }
    }
}

/// Notifies a client that the action at a URL is complete.
pub fn notify_url_completed(related: &RelatedChannel, elicitation_id: &str) {
    let params = format!(r#"{{"elicitationId":{}}}"#, Value::from(elicitation_id));
    related.send(encode::notification("notifications/elicitation/complete", Some(&params)));
}

#[cfg(test)]
mod tests;
