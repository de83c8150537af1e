//! Relays notifications and requests of an upstream to the client of its call.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::mpsc;

use super::missing_capability;
use crate::translation::result::ResultMembers;
use countersign_exchange::{context::Exchange, related::RelatedChannel, shared::Transport};
use countersign_protocol::{
    ErrorKind, McpError, Revision, encode,
    json::{MemberEdit, edit, member, string},
    negotiate::ClientCapabilities,
    params::LoggingLevel,
};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::{Listener, Response, UpstreamNotification};

/// The maximum number of an upstream's questions that wait in the channel.
const MAX_QUEUED_QUESTIONS: usize = 64;

/// The client that receives the messages of a call.
#[derive(Clone)]
pub struct MessageRecipient {
    related: RelatedChannel,
    /// The client's own progress token, as JSON text.
    token: Option<Box<str>>,
    /// The least severe level of log messages that the client wants.
    log_level: Option<LoggingLevel>,
    revision: Revision,
    /// `true` if the client understands `notifications/elicitation/complete` (2025-11-25/client/elicitation).
    wants_completions: bool,
}

impl MessageRecipient {
    /// Returns the client of an exchange. `token` is its progress token.
    #[must_use]
    pub fn for_exchange(exchange: &Exchange, token: Option<&str>, log_level: Option<LoggingLevel>) -> Self {
        let revision = exchange.revision();
        let related =
            if exchange.transport == Transport::Rest { RelatedChannel::Nowhere } else { exchange.related.clone() };
        Self {
            related,
            token: token.map(Into::into),
            log_level,
            revision,
            wants_completions: !exchange.is_modern() && revision.rules().icons,
        }
    }
}

#[cfg(test)]
impl MessageRecipient {
    pub(crate) fn none() -> Self {
        let revision = Revision::MODERN;
        Self { related: RelatedChannel::Nowhere, token: None, log_level: None, revision, wants_completions: false }
    }
}

struct State {
    recipient: Option<MessageRecipient>,
    /// The last progress that the client got.
    progress: f64,
}

/// Questions of an upstream that were declined because their client cannot be asked.
#[derive(Default)]
pub struct DeclinedQuestions(OnceLock<Mutex<Vec<DeclinedQuestion>>>);

/// The method and the parameters of a declined question.
type DeclinedQuestion = (String, Option<Box<RawValue>>);

/// The maximum number of declined questions that are remembered. There are only three methods, one of them with two
/// modes.
const MAX_DECLINED: usize = 8;

impl DeclinedQuestions {
    pub fn note(&self, method: &str, params: Option<Box<RawValue>>) {
        let mut all = self.0.get_or_init(Mutex::default).lock();
        if all.len() < MAX_DECLINED {
            all.push((method.chars().take(64).collect(), params));
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    /// Returns the capabilities that the client would have needed for the declined questions, in the form of
    /// `requiredCapabilities`. `declared` are the capabilities that it has.
    #[must_use]
    pub fn lacking(&self, declared: &ClientCapabilities) -> Option<Value> {
        let all = self.0.get()?.lock();
        let mut found: Option<Value> = None;
        for (method, params) in all.iter() {
            let Some(missing) = missing_capability(declared, method, params.as_deref().map(RawValue::get)) else {
                continue;
            };
            match &mut found {
                Some(found) => merge(found, missing),
                None => found = Some(missing),
            }
        }
        found
    }

    /// Returns the error for a call that failed after its upstream had asked for something that the client did not
    /// declare: `-32021` with the capability (2026-07-28/basic/index, "Capabilities"). Returns `None` if the call
    /// succeeded without an answer. `declared` is the complete declaration of the client as JSON text, including
    /// capabilities that the configuration withholds.
    #[must_use]
    pub fn missing(&self, response: &Response, declared: &str, server: &str) -> Option<McpError> {
        // Nearly always nothing was declined, so nothing has to be parsed.
        if self.is_empty() {
            return None;
        }
        let lacking = self.lacking(&ClientCapabilities::from_declaration(declared))?;
        if let Response::Result(result) = response
            && !ResultMembers::parse(result.get()).is_error
        {
            return None;
        }
        let message =
            format!("the server {server} cannot do this without a capability that the client did not declare");
        Some(
            McpError::new(ErrorKind::MissingCapability, message)
                .with("requiredCapabilities", lacking)
                .with("upstream", server),
        )
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert_with(|| json!({})), value));
        }
        (into, more) => *into = more,
    }
}

/// Relays the messages of one call to its client.
pub struct Relay {
    state: Mutex<State>,
    /// The channel for questions. Without it, all questions are declined.
    questions: Option<mpsc::Sender<UpstreamRequest>>,
    /// The questions that were declined because the client cannot be asked.
    declined: DeclinedQuestions,
    /// `true` if both sides belong to the same era, so that the client may understand methods that the gateway does not
    /// know.
    same_era: bool,
}

impl Relay {
    #[must_use]
    pub fn new(recipient: MessageRecipient, same_era: bool) -> Arc<Self> {
        let (state, declined) = (Mutex::new(State::new(recipient)), DeclinedQuestions::default());
        Arc::new(Self { state, questions: None, declined, same_era })
    }

    /// Creates a relay that passes the upstream's questions to the returned receiver.
    #[must_use]
    pub fn with_questions(recipient: MessageRecipient, same_era: bool) -> (Arc<Self>, mpsc::Receiver<UpstreamRequest>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_QUESTIONS);
        let (state, declined) = (Mutex::new(State::new(recipient)), DeclinedQuestions::default());
        let relay = Self { state, questions: Some(sender), declined, same_era };
        (Arc::new(relay), receiver)
    }

    /// Returns the questions that were declined.
    #[must_use]
    pub fn declined(&self) -> &DeclinedQuestions {
        &self.declined
    }

    /// Redirects further messages to another request of the client, or discards them if there is none.
    pub fn redirect_to(&self, recipient: Option<MessageRecipient>) {
        *self.state.lock() = State { recipient, progress: f64::NEG_INFINITY };
    }
}

impl State {
    fn new(recipient: MessageRecipient) -> Self {
        Self { recipient: Some(recipient), progress: f64::NEG_INFINITY }
    }
}

impl Listener for Relay {
    fn notification(&self, notification: UpstreamNotification) {
        let mut state = self.state.lock();
        let State { recipient: Some(recipient), progress } = &mut *state else { return };
        let params = notification.params.as_deref().map(RawValue::get);
        match notification.method.as_str() {
            "notifications/progress" => {
                let Some((token, params)) = recipient.token.as_deref().zip(params) else { return };
                let value = member(params, "progress").and_then(|value| value.parse::<f64>().ok());
                // Progress must rise with each notification (2026-07-28/basic/patterns/progress).
                let Some(value) = value.filter(|value| value > progress) else { return };
                *progress = value;
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
            "notifications/elicitation/complete" if recipient.wants_completions => {
                recipient.related.send(encode::notification(&notification.method, params));
            }
            known
                if countersign_protocol::Method::parse(known).is_some()
                    || known == "notifications/elicitation/complete" => {}
            // The notification may belong to an extension that both sides declare; other clients ignore it.
            unknown if self.same_era && unknown.starts_with("notifications/") => {
                recipient.related.send(encode::notification(unknown, params));
            }
            _ => {}
        }
    }

    fn request(&self, request: UpstreamRequest) {
        // A request that is dropped without an answer counts as declined.
        match &self.questions {
            None => self.declined.note(&request.method, request.params),
            Some(questions) if questions.try_send(request).is_err() => {
                tracing::debug!("a question of an upstream is declined because too many of its call are waiting");
            }
            Some(_) => {}
        }
    }
}

/// Notifies a client that the action at a URL is complete.
pub fn notify_url_completed(related: &RelatedChannel, elicitation: &str) {
    let params = format!(r#"{{"elicitationId":{}}}"#, Value::from(elicitation));
    related.send(encode::notification("notifications/elicitation/complete", Some(&params)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_exchange::related::ResponseQueue;

    fn relay(token: Option<&str>, level: Option<LoggingLevel>, revision: Revision) -> (Arc<Relay>, Arc<ResponseQueue>) {
        let queue = Arc::new(ResponseQueue::new(100, 10_000));
        let recipient = MessageRecipient {
            related: RelatedChannel::Queue(Arc::clone(&queue)),
            token: token.map(Into::into),
            log_level: level,
            revision,
            wants_completions: revision == Revision::V2025_11_25,
        };
        (Relay::new(recipient, true), queue)
    }

    fn notify(relay: &Relay, method: &str, params: &str) {
        let params = RawValue::from_string(params.to_owned()).ok();
        relay.notification(UpstreamNotification { method: method.into(), params });
    }

    fn take_sent(queue: &ResponseQueue) -> Vec<String> {
        queue.take().iter().map(|message| String::from_utf8(message.to_vec()).unwrap()).collect()
    }

    #[test]
    fn declined_questions_name_missing_capabilities() {
        let declined = DeclinedQuestions::default();
        let sampling = ClientCapabilities { sampling: true, ..ClientCapabilities::default() };
        assert_eq!(declined.lacking(&sampling), None);
        declined.note("vendor/ask", None);
        declined.note("sampling/createMessage", None);
        assert_eq!(
            declined.lacking(&sampling),
            None,
            "the client declares sampling, so it was declined for another reason"
        );
        for params in [r#"{"mode":"url"}"#, "{}"] {
            declined.note("elicitation/create", RawValue::from_string(params.to_owned()).ok());
        }
        declined.note("roots/list", None);
        let lacking = declined.lacking(&sampling).unwrap();
        assert_eq!(lacking, json!({ "elicitation": { "form": {}, "url": {} }, "roots": {} }));
        let lacking = declined.lacking(&ClientCapabilities::default()).unwrap();
        assert_eq!(lacking["sampling"], json!({}));
    }

    #[test]
    fn progress_uses_clients_token_and_only_rises() {
        let (relay, queue) = relay(Some("\"t\\u0041\""), None, Revision::V2025_11_25);
        for progress in ["0", "0", "1.50", "1.2", "2e0"] {
            let params = format!(r#"{{"progressToken":17,"progress":{progress},"message":"m","vendor":[1.0]}}"#);
            notify(&relay, "notifications/progress", &params);
        }
        notify(&relay, "notifications/progress", r#"{"progressToken":17,"progress":"3"}"#);
        notify(&relay, "notifications/progress", "{}");
        let message = |progress: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"t\u0041","progress":{progress},"message":"m","vendor":[1.0]}}}}"#
            )
        };
        assert_eq!(take_sent(&queue), ["0", "1.50", "2e0"].map(message));
        // Another request of the client has another token, and its progress starts again.
        let mut next = relay.state.lock().recipient.clone().unwrap();
        next.token = Some("2".into());
        next.revision = Revision::V2024_11_05;
        relay.redirect_to(Some(next));
        notify(&relay, "notifications/progress", r#"{"progressToken":17,"progress":1,"message":"m"}"#);
        assert_eq!(
            take_sent(&queue),
            [r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}"#]
        );
        relay.redirect_to(None);
        notify(&relay, "notifications/progress", r#"{"progressToken":17,"progress":9}"#);
        assert!(take_sent(&queue).is_empty());
    }

    #[test]
    fn notifications_that_client_did_not_request_are_dropped() {
        let (relay, queue) = relay(None, None, Revision::V2026_07_28);
        notify(&relay, "notifications/progress", r#"{"progressToken":1,"progress":1}"#);
        notify(&relay, "notifications/message", r#"{"level":"emergency","data":1}"#);
        for method in
            ["notifications/elicitation/complete", "notifications/cancelled", "notifications/tools/list_changed"]
        {
            notify(&relay, method, "{}");
        }
        assert!(take_sent(&queue).is_empty());
    }

    #[test]
    fn log_messages_of_requested_level_pass_unchanged() {
        let (relay, queue) = relay(None, Some(LoggingLevel::Warning), Revision::V2025_11_25);
        for level in ["debug", "warning", "alert", "WARNING", "loud"] {
            notify(&relay, "notifications/message", &format!(r#"{{ "level":"{level}", "data":1.0 }}"#));
        }
        notify(&relay, "notifications/elicitation/complete", r#"{"elicitationId":"e"}"#);
        notify(&relay, "notifications/vendor/thing", r#"{"n":1e400}"#);
        let messages = take_sent(&queue);
        assert_eq!(messages.len(), 4);
        assert!(
            messages[0].ends_with(r#""params":{ "level":"warning", "data":1.0 }}"#) && messages[1].contains("alert")
        );
        assert!(messages[3].contains("1e400"));
    }
}
