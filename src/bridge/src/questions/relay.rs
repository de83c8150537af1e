//! Relays notifications and requests of an upstream to the client whose call it works on.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::mpsc;

use super::missing_capability;
use crate::translation::result::ResultMembers;
use countersign_exchange::{context::Exchange, related::Related, shared::Transport};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    capabilities::ClientCapabilities,
    encode,
    json::{MemberEdit, edit, member, string},
    params::LoggingLevel,
};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::{Listener, Response, UpstreamNotification};

/// Questions of an upstream that may wait to be looked at.
const MAX_WAITING: usize = 64;

/// The client that receives the messages of a call.
#[derive(Clone)]
pub struct Hearer {
    related: Related,
    /// The client's own progress token, as JSON text.
    token: Option<Box<str>>,
    /// The least severe log messages that it wants.
    log_level: Option<LoggingLevel>,
    revision: Revision,
    /// It hears that what a URL asked for is done (2025-11-25/client/elicitation).
    completions: bool,
}

impl Hearer {
    /// The client of an exchange. `token` is its progress token.
    #[must_use]
    pub fn for_exchange(exchange: &Exchange, token: Option<&str>, log_level: Option<LoggingLevel>) -> Self {
        let revision = exchange.revision();
        let related = if exchange.transport == Transport::Rest { Related::Nowhere } else { exchange.related.clone() };
        Self {
            related,
            token: token.map(Into::into),
            log_level,
            revision,
            completions: !exchange.is_modern() && revision.rules().icons,
        }
    }
}

#[cfg(test)]
impl Hearer {
    pub(crate) fn nobody() -> Self {
        let revision = Revision::MODERN;
        Self { related: Related::Nowhere, token: None, log_level: None, revision, completions: false }
    }
}

struct State {
    hearer: Option<Hearer>,
    /// The progress that the hearer was last told.
    progress: f64,
}

/// Questions of an upstream that were declined because their client cannot be asked.
#[derive(Default)]
pub struct DeclinedQuestions(OnceLock<Mutex<Vec<DeclinedQuestion>>>);

/// Its method and parameters.
type DeclinedQuestion = (String, Option<Box<RawValue>>);

/// DeclinedQuestions questions that are remembered: there are three things to ask for, one of them in two ways.
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

    /// The capabilities, as `requiredCapabilities` has them, that a client which declared these lacked for them.
    #[must_use]
    pub fn lacking(&self, declared: &ClientCapabilities) -> Option<Value> {
        let all = self.0.get()?.lock();
        let mut found: Option<Value> = None;
        for (method, params) in all.iter() {
            let Some(lack) = missing_capability(declared, method, params.as_deref().map(RawValue::get)) else {
                continue;
            };
            match &mut found {
                Some(found) => merge(found, lack),
                None => found = Some(lack),
            }
        }
        found
    }

    /// The error of a call that failed after its upstream had asked for what the client did not declare: `-32021` with
    /// the capability (2026-07-28/basic/index, "Capabilities"). An upstream that went on without it is passed through.
    /// `from_declaration` is all that the client says it can be asked for, as JSON text, whatever the configuration keeps back
    /// of it.
    #[must_use]
    pub fn missing(&self, response: &Response, declared: &str, server: &str) -> Option<McpError> {
        // Nearly always: nothing is parsed for it.
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

/// The listener of a call.
pub struct Relay {
    state: Mutex<State>,
    /// The receiver of questions. Without it all questions are declined.
    questions: Option<mpsc::Sender<UpstreamRequest>>,
    /// The questions that were declined because the client cannot be asked.
    declined: DeclinedQuestions,
    /// Both sides are of one era: methods that the gateway does not know may mean something to the client.
    same_era: bool,
}

impl Relay {
    #[must_use]
    pub fn new(hearer: Hearer, same_era: bool) -> Arc<Self> {
        let (state, declined) = (Mutex::new(State::new(hearer)), DeclinedQuestions::default());
        Arc::new(Self { state, questions: None, declined, same_era })
    }

    /// A relay that hands on the upstream's questions.
    #[must_use]
    pub fn asking(hearer: Hearer, same_era: bool) -> (Arc<Self>, mpsc::Receiver<UpstreamRequest>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let (state, declined) = (Mutex::new(State::new(hearer)), DeclinedQuestions::default());
        let relay = Self { state, questions: Some(sender), declined, same_era };
        (Arc::new(relay), receiver)
    }

    /// Returns the questions that were declined.
    #[must_use]
    pub fn declined(&self) -> &DeclinedQuestions {
        &self.declined
    }

    /// From now on another request of the client hears it, or none.
    pub fn turn_to(&self, hearer: Option<Hearer>) {
        *self.state.lock() = State { hearer, progress: f64::NEG_INFINITY };
    }
}

impl State {
    fn new(hearer: Hearer) -> Self {
        Self { hearer: Some(hearer), progress: f64::NEG_INFINITY }
    }
}

impl Listener for Relay {
    fn notification(&self, notification: UpstreamNotification) {
        let mut state = self.state.lock();
        let State { hearer: Some(hearer), progress } = &mut *state else { return };
        let params = notification.params.as_deref().map(RawValue::get);
        match notification.method.as_str() {
            "notifications/progress" => {
                let Some((token, params)) = hearer.token.as_deref().zip(params) else { return };
                let value = member(params, "progress").and_then(|value| value.parse::<f64>().ok());
                // It must rise with each notification (2026-07-28/basic/patterns/progress).
                let Some(value) = value.filter(|value| value > progress) else { return };
                *progress = value;
                let mut edits = vec![("progressToken", MemberEdit::Set(token))];
                if !hearer.revision.rules().annotations {
                    edits.push(("message", MemberEdit::Drop));
                }
                hearer.related.send(encode::notification(&notification.method, Some(&edit(params, &edits))));
            }
            "notifications/message" => {
                let level = params.and_then(|params| member(params, "level")).and_then(string);
                let level = level.and_then(|level| LoggingLevel::parse(&level));
                if level.is_some_and(|level| hearer.log_level.is_some_and(|least| level >= least)) {
                    hearer.related.send(encode::notification(&notification.method, params));
                }
            }
            "notifications/elicitation/complete" if hearer.completions => {
                hearer.related.send(encode::notification(&notification.method, params));
            }
            known
                if countersign_protocol::Method::parse(known).is_some()
                    || known == "notifications/elicitation/complete" => {}
            // An extension's, which both sides declare or ignore.
            unknown if self.same_era && unknown.starts_with("notifications/") => {
                hearer.related.send(encode::notification(unknown, params));
            }
            _ => {}
        }
    }

    fn request(&self, request: UpstreamRequest) {
        // Dropped unanswered it is declined.
        match &self.questions {
            None => self.declined.note(&request.method, request.params),
            Some(questions) if questions.try_send(request).is_err() => {
                tracing::debug!("an upstream asks more than the gateway keeps for one call");
            }
            Some(_) => {}
        }
    }
}

/// Tells a client that what a URL asked of its user is done.
pub fn tell_completed(related: &Related, elicitation: &str) {
    let params = format!(r#"{{"elicitationId":{}}}"#, Value::from(elicitation));
    related.send(encode::notification("notifications/elicitation/complete", Some(&params)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_exchange::related::ResponseQueue;

    fn relay(token: Option<&str>, level: Option<LoggingLevel>, revision: Revision) -> (Arc<Relay>, Arc<ResponseQueue>) {
        let queue = Arc::new(ResponseQueue::new(100, 10_000));
        let hearer = Hearer {
            related: Related::Queue(Arc::clone(&queue)),
            token: token.map(Into::into),
            log_level: level,
            revision,
            completions: revision == Revision::V2025_11_25,
        };
        (Relay::new(hearer, true), queue)
    }

    fn tell(relay: &Relay, method: &str, params: &str) {
        let params = RawValue::from_string(params.to_owned()).ok();
        relay.notification(UpstreamNotification { method: method.into(), params });
    }

    fn take_sent(queue: &ResponseQueue) -> Vec<String> {
        queue.take().iter().map(|message| String::from_utf8(message.to_vec()).unwrap()).collect()
    }

    #[test]
    fn what_was_declined_names_what_the_client_lacked() {
        let declined = DeclinedQuestions::default();
        let sampling = ClientCapabilities { sampling: true, ..ClientCapabilities::default() };
        assert_eq!(declined.lacking(&sampling), None);
        declined.note("vendor/ask", None);
        declined.note("sampling/createMessage", None);
        assert_eq!(declined.lacking(&sampling), None, "it was declined for another reason");
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
    fn progress_goes_under_the_clients_token_and_only_rises() {
        let (relay, queue) = relay(Some("\"t\\u0041\""), None, Revision::V2025_11_25);
        for progress in ["0", "0", "1.50", "1.2", "2e0"] {
            let params = format!(r#"{{"progressToken":17,"progress":{progress},"message":"m","vendor":[1.0]}}"#);
            tell(&relay, "notifications/progress", &params);
        }
        tell(&relay, "notifications/progress", r#"{"progressToken":17,"progress":"3"}"#);
        tell(&relay, "notifications/progress", "{}");
        let message = |progress: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"t\u0041","progress":{progress},"message":"m","vendor":[1.0]}}}}"#
            )
        };
        assert_eq!(take_sent(&queue), ["0", "1.50", "2e0"].map(message));
        // Another request of the client: another token, from the beginning.
        let mut next = relay.state.lock().hearer.clone().unwrap();
        next.token = Some("2".into());
        next.revision = Revision::V2024_11_05;
        relay.turn_to(Some(next));
        tell(&relay, "notifications/progress", r#"{"progressToken":17,"progress":1,"message":"m"}"#);
        assert_eq!(
            take_sent(&queue),
            [r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}"#]
        );
        relay.turn_to(None);
        tell(&relay, "notifications/progress", r#"{"progressToken":17,"progress":9}"#);
        assert!(take_sent(&queue).is_empty());
    }

    #[test]
    fn what_nobody_asked_for_is_not_told() {
        let (relay, queue) = relay(None, None, Revision::V2026_07_28);
        tell(&relay, "notifications/progress", r#"{"progressToken":1,"progress":1}"#);
        tell(&relay, "notifications/message", r#"{"level":"emergency","data":1}"#);
        for method in
            ["notifications/elicitation/complete", "notifications/cancelled", "notifications/tools/list_changed"]
        {
            tell(&relay, method, "{}");
        }
        assert!(take_sent(&queue).is_empty());
    }

    #[test]
    fn logs_from_the_wanted_level_on_word_for_word() {
        let (relay, queue) = relay(None, Some(LoggingLevel::Warning), Revision::V2025_11_25);
        for level in ["debug", "warning", "alert", "WARNING", "loud"] {
            tell(&relay, "notifications/message", &format!(r#"{{ "level":"{level}", "data":1.0 }}"#));
        }
        tell(&relay, "notifications/elicitation/complete", r#"{"elicitationId":"e"}"#);
        tell(&relay, "notifications/vendor/thing", r#"{"n":1e400}"#);
        let told = take_sent(&queue);
        assert_eq!(told.len(), 4);
        assert!(told[0].ends_with(r#""params":{ "level":"warning", "data":1.0 }}"#) && told[1].contains("alert"));
        assert!(told[3].contains("1e400"));
    }
}
