//! Remembers what a new gateway must know so that an agent's session continues when the old gateway has ended: the
//! handshake, the log level, the subscriptions and the requests in flight.
//!
//! Reads only the members that a new gateway needs (method, id, tool name, subscribed URI, log level, capabilities, progress).
//! Messages are not changed, but the ids of requests of later gateways get a prefix, because each gateway numbers its requests
//! from 1.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

/// The prefix of the ids of requests that the proxy itself sends to a new gateway.
const PROXY_ID_PREFIX: &str = "countersign-replay-";
/// The methods of requests that do no harm if they are sent twice.
const REPEATABLE_METHODS: [&str; 16] = [
    "ping",
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "subscriptions/listen",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
];
/// The gateway's own tools whose calls do no harm if they are sent twice.
const REPEATABLE_TOOLS: [&str; 3] = ["wait_for_change", "get_change", "list_changes"];
/// Maximum bytes of requests in flight that are kept to be sent again. The outcome of a request beyond it is unknown
/// when its gateway ends.
const MAX_KEPT_BYTES: usize = 32 << 20;
/// Maximum number of subscriptions that are made again at a new gateway. The gateway's own limit is lower by default.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// The members of a message that the proxy reads.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The members of parameters, and of `_meta` in them, that the proxy reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Params<'a> {
    #[serde(borrow, rename = "requestId")]
    request_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
    progress: Option<f64>,
}

impl<'a> Params<'a> {
    fn new(params: Option<&'a RawValue>) -> Self {
        params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default()
    }
}

/// A request of the agent that has not been answered yet.
struct PendingRequest {
    /// The order in which the agent sent the requests.
    number: u64,
    is_initialize: bool,
    /// `true` for `subscriptions/listen`, which the gateway may cancel.
    is_subscription: bool,
    /// `true` if the request does no harm if it is sent twice.
    is_repeatable: bool,
    /// The whole line; `None` if there was no room to keep it.
    line: Option<Vec<u8>>,
    /// `true` once the request was sent completely.
    is_sent: bool,
    /// `true` once the request was sent again. It is not sent a third time, because it may be what makes gateways end.
    is_repeated: bool,
    /// `true` once an ending gateway refused to begin with the request.
    is_refused: bool,
    /// The token of the request's progress, as JSON.
    progress_token: Option<String>,
    /// The progress that the agent has seen last.
    last_progress: f64,
}

/// A request of a gateway that the agent has not answered.
struct GatewayRequest {
    /// The number of the gateway.
    gateway: u32,
    /// The id that the gateway gave it, as JSON.
    id: String,
}

/// The handshake of a session.
struct Handshake {
    /// The agent's request.
    request: Vec<u8>,
    protocol_version: String,
    /// The lists whose changes the gateway announces.
    announced_lists: Vec<&'static str>,
    /// `true` once the agent has sent `notifications/initialized`.
    is_complete: bool,
}

/// Tells the proxy how to handle a line of the gateway.
#[derive(Debug, PartialEq, Eq)]
pub enum GatewayLine<'a> {
    Forward(Cow<'a, [u8]>),
    /// The line answers a request of the proxy, or a request that is sent again to the next gateway, or repeats progress.
    Drop,
    /// The new gateway knows the session now. The lines are for the agent.
    Resumed(Vec<Vec<u8>>),
    /// The new gateway does not continue the session. Contains its answer.
    NotResumed(String),
}

/// The conversation of one agent with one gateway after the other.
#[derive(Default)]
pub struct Conversation {
    /// The number of the current gateway; 0 for the first.
    gateway: u32,
    handshake: Option<Handshake>,
    log_level: Option<String>,
    subscriptions: BTreeSet<String>,
    /// The requests without an answer, by id as JSON.
    pending: HashMap<String, PendingRequest>,
    /// The bytes of the lines in `pending`.
    kept_bytes: usize,
    last_number: u64,
    /// The gateways' requests without an answer, by the id that the agent sees as JSON.
    gateway_requests: HashMap<String, GatewayRequest>,
}

impl Conversation {
    /// Notes a line of the agent, and returns the line for the gateway, without answers to gateways that have ended. Returns
    /// `None` if nothing is left.
    pub fn note_agent_line<'a>(&mut self, line: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        map_messages(line, |message| self.note_agent_message(message))
    }

    fn note_agent_message<'a>(&mut self, line: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Ok(message) = serde_json::from_slice::<Envelope<'_>>(line) else { return Some(line.into()) };
        match (&message.method, message.id) {
            (Some(method), Some(id)) => self.note_request(line, method, id.get(), message.params),
            (Some(method), None) if method == "notifications/initialized" => {
                if let Some(handshake) = &mut self.handshake {
                    handshake.is_complete = true;
                }
            }
            (Some(method), None) if method == "notifications/cancelled" => {
                // A cancelled request gets no answer.
                if let Some(id) = Params::new(message.params).request_id {
                    self.remove(id.get());
                }
            }
            (Some(_), None) | (None, None) => {}
            (None, Some(id)) => {
                if let Some(request) = self.gateway_requests.remove(id.get()) {
                    if request.gateway != self.gateway {
                        return None;
                    }
                    return Some(splice(line, id, &request.id));
                }
            }
        }
        Some(line.into())
    }

    fn note_request(&mut self, line: &[u8], method: &str, id: &str, params: Option<&RawValue>) {
        let raw_params = params;
        let params = Params::new(raw_params);
        match method {
            "logging/setLevel" => self.log_level = raw_params.map(|params| params.get().to_owned()),
            "resources/subscribe" if self.subscriptions.len() < MAX_SUBSCRIPTIONS => {
                self.subscriptions.extend(params.uri.map(Cow::into_owned));
            }
            "resources/unsubscribe" => {
                if let Some(uri) = params.uri {
                    self.subscriptions.remove(&*uri);
                }
            }
            _ => {}
        }
        let is_repeatable = REPEATABLE_METHODS.contains(&method)
            || (method == "tools/call" && params.name.is_some_and(|name| REPEATABLE_TOOLS.contains(&&*name)));
        self.last_number += 1;
        let line = (self.kept_bytes + line.len() <= MAX_KEPT_BYTES).then(|| [line.trim_ascii_end(), b"\n"].concat());
        self.kept_bytes += line.as_ref().map_or(0, Vec::len);
        let pending = PendingRequest {
            number: self.last_number,
            is_initialize: method == "initialize",
            is_subscription: method == "subscriptions/listen",
            is_repeatable,
            line,
            is_sent: false,
            is_repeated: false,
            is_refused: false,
            progress_token: Params::new(params.meta).progress_token.map(|token| token.get().to_owned()),
            last_progress: f64::NEG_INFINITY,
        };
        self.remove(id);
        self.pending.insert(id.to_owned(), pending);
    }

    /// Notes that all lines so far were sent to the gateway.
    pub fn mark_sent(&mut self) {
        self.pending.values_mut().for_each(|pending| pending.is_sent = true);
    }

    /// Notes a line of the gateway, and returns what to do with it.
    pub fn note_gateway_line<'a>(&mut self, line: &'a [u8]) -> GatewayLine<'a> {
        if line.trim_ascii_start().first() == Some(&b'[') {
            let batch: Vec<Envelope<'_>> = serde_json::from_slice(line).unwrap_or_default();
            for answer in batch.iter().filter(|message| message.method.is_none()) {
                if let Some(id) = answer.id {
                    self.remove(id.get());
                }
            }
            return GatewayLine::Forward(line.into());
        }
        let Ok(message) = serde_json::from_slice::<Envelope<'_>>(line) else {
            return GatewayLine::Forward(line.into());
        };
        match (&message.method, message.id) {
            (Some(_), Some(id)) => {
                let visible = self.visible_id(id.get());
                let request = GatewayRequest { gateway: self.gateway, id: id.get().to_owned() };
                let out = splice(line, id, &visible);
                self.gateway_requests.insert(visible, request);
                GatewayLine::Forward(out)
            }
            (Some(method), None) if method == "notifications/cancelled" => {
                let Some(id) = Params::new(message.params).request_id else { return GatewayLine::Forward(line.into()) };
                let visible = self.visible_id(id.get());
                let is_own_request = self.gateway_requests.remove(&visible).is_some();
                if !is_own_request && self.pending.get(id.get()).is_some_and(|pending| pending.is_subscription) {
                    // The gateway ends a subscription of the agent (2026-07-28). The next one must not open it again.
                    self.remove(id.get());
                    return GatewayLine::Forward(line.into());
                }
                GatewayLine::Forward(splice(line, id, &visible))
            }
            (Some(method), None) if method == "notifications/progress" && !self.note_progress(message.params) => {
                GatewayLine::Drop
            }
            (None, Some(id)) => self.note_answer(line, id.get(), &message),
            _ => GatewayLine::Forward(line.into()),
        }
    }

    fn note_answer<'a>(&mut self, line: &'a [u8], id: &str, message: &Envelope<'_>) -> GatewayLine<'a> {
        if let Some(method) = id.strip_prefix('"').and_then(|id| id.strip_prefix(PROXY_ID_PREFIX)) {
            return match (method.trim_end_matches('"'), message.error) {
                ("initialize", Some(error)) => GatewayLine::NotResumed(error.get().to_owned()),
                ("initialize", None) => GatewayLine::Resumed(self.announcements()),
                _ => GatewayLine::Drop,
            };
        }
        let Some(pending) = self.pending.get_mut(id) else { return GatewayLine::Forward(line.into()) };
        if let Some(error) = message.error
            && pending.line.is_some()
            && !pending.is_repeated
            && allows_repetition(error, pending.is_repeatable)
        {
            pending.is_refused = true;
            return GatewayLine::Drop;
        }
        if let Some(pending) = self.remove(id)
            && pending.is_initialize
            && let (Some(request), Some(result)) = (pending.line, message.result)
        {
            self.handshake = Handshake::new(request, result);
        }
        GatewayLine::Forward(line.into())
    }

    /// Returns `false` for progress that the agent has seen before its request was sent again, because progress must increase
    /// (2025-11-25/basic/utilities/progress).
    fn note_progress(&mut self, params: Option<&RawValue>) -> bool {
        let params = Params::new(params);
        let Some((token, progress)) = params.progress_token.zip(params.progress) else { return true };
        let request = self.pending.values_mut().find(|request| request.progress_token.as_deref() == Some(token.get()));
        let Some(request) = request else { return true };
        if request.is_repeated && progress <= request.last_progress {
            return false;
        }
        request.last_progress = progress;
        true
    }

    fn remove(&mut self, id: &str) -> Option<PendingRequest> {
        let pending = self.pending.remove(id)?;
        self.kept_bytes -= pending.line.as_ref().map_or(0, Vec::len);
        Some(pending)
    }

    /// Returns the id under which the agent knows a request of the current gateway.
    fn visible_id(&self, id: &str) -> String {
        match (self.gateway, id.strip_prefix('"')) {
            (0, _) => id.to_owned(),
            (gateway, Some(text)) => format!("\"gateway-{gateway}-{text}"),
            (gateway, None) => format!("\"gateway-{gateway}-{id}\""),
        }
    }

    /// Notes that the gateway has ended. Returns the lines for the agent: an error for each request whose outcome is unknown
    /// now, and the cancellation of each request of the gateway that the agent has not answered.
    pub fn note_gateway_end(&mut self) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let lost_ids: Vec<String> = self
            .pending
            .iter()
            .filter(|(_, request)| request.is_sent && !request.may_repeat())
            .map(|(id, _)| id.clone())
            .collect();
        for id in lost_ids {
            self.remove(&id);
            lines.push(format_unknown_outcome(&id));
        }
        for (id, _) in self.gateway_requests.iter().filter(|(_, request)| request.gateway == self.gateway) {
            let params = format!(r#"{{"requestId":{id},"reason":"the connection to the gateway has ended"}}"#);
            lines.push(format_notification("notifications/cancelled", Some(&params)));
        }
        self.gateway += 1;
        lines
    }

    /// Returns `true` if a request was sent and is unanswered. After [`Self::note_gateway_end`], only those are left that the
    /// next gateway gets.
    pub fn has_unanswered_requests(&self) -> bool {
        self.pending.values().any(|request| request.is_sent)
    }

    /// Returns the request that opens the session at a new gateway, or `None` if there is no session. Its answer is
    /// [`GatewayLine::Resumed`] or [`GatewayLine::NotResumed`].
    pub fn handshake_request(&self) -> Option<Vec<u8>> {
        let handshake = self.handshake.as_ref().filter(|_| self.gateway > 0)?;
        let mut request: Value = std::str::from_utf8(&handshake.request).ok()?.parse().ok()?;
        request["id"] = format!("{PROXY_ID_PREFIX}initialize").into();
        // The agent keeps to the revision that it knows, even if this gateway has a newer one.
        request["params"]["protocolVersion"] = handshake.protocol_version.as_str().into();
        Some(format!("{request}\n").into_bytes())
    }

    /// Returns the lines that follow the handshake with a new gateway: the state of the session and the requests that are
    /// sent again, in their order.
    pub fn resuming_lines(&mut self) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        if self.gateway == 0 {
            return lines;
        }
        if let Some(handshake) = &self.handshake
            && handshake.is_complete
        {
            lines.push(format_notification("notifications/initialized", None));
            let own_request = |id: &str, method: &str, params: &str| {
                format!(r#"{{"jsonrpc":"2.0","id":"{PROXY_ID_PREFIX}{id}","method":"{method}","params":{params}}}"#)
                    + "\n"
            };
            if let Some(level) = &self.log_level {
                lines.push(own_request("level", "logging/setLevel", level).into_bytes());
            }
            for (number, uri) in self.subscriptions.iter().enumerate() {
                let params = json!({ "uri": uri }).to_string();
                lines.push(own_request(&format!("subscription-{number}"), "resources/subscribe", &params).into_bytes());
            }
        }
        let mut repeated: Vec<_> = self.pending.values_mut().filter(|request| request.is_sent).collect();
        repeated.sort_by_key(|request| request.number);
        for request in repeated {
            request.is_refused = false;
            request.is_repeated = true;
            lines.extend(request.line.clone());
        }
        lines
    }

    /// Returns the notifications that the lists may have changed, because another gateway serves them.
    fn announcements(&self) -> Vec<Vec<u8>> {
        let handshake = self.handshake.iter().filter(|handshake| handshake.is_complete);
        handshake
            .flat_map(|handshake| &handshake.announced_lists)
            .map(|method| format_notification(method, None))
            .collect()
    }
}

impl PendingRequest {
    fn may_repeat(&self) -> bool {
        let is_harmless = self.is_refused || ((self.is_repeatable || self.is_initialize) && !self.is_repeated);
        is_harmless && self.line.is_some()
    }
}

/// Returns the line without answers to requests of the gateway, or `None` if nothing is left.
pub fn without_answers(line: &[u8]) -> Option<Cow<'_, [u8]>> {
    let is_answer = |message: &[u8]| {
        serde_json::from_slice::<Envelope<'_>>(message)
            .is_ok_and(|message| message.method.is_none() && message.id.is_some())
    };
    map_messages(line, |message| (!is_answer(message)).then_some(message.into()))
}

/// Returns the line with each of its messages replaced by `map`, which returns `None` to drop the message. A batch
/// (2025-03-26) has several messages. Returns `None` if no message is left.
fn map_messages<'a>(line: &'a [u8], mut map: impl FnMut(&'a [u8]) -> Option<Cow<'a, [u8]>>) -> Option<Cow<'a, [u8]>> {
    if line.trim_ascii_start().first() != Some(&b'[') {
        return map(line);
    }
    let Ok(batch) = serde_json::from_slice::<Vec<&'a RawValue>>(line) else { return Some(line.into()) };
    let count = batch.len();
    let messages: Vec<_> = batch.into_iter().filter_map(|message| map(message.get().as_bytes())).collect();
    if messages.len() == count && messages.iter().all(|message| matches!(message, Cow::Borrowed(_))) {
        return Some(line.into());
    }
    (!messages.is_empty()).then(|| [&b"["[..], &messages.join(&b','), b"]\n"].concat().into())
}

/// Returns `true` if an ending gateway has refused the request, and another one may be asked: the gateway did not begin with
/// the request, or it is repeatable.
fn allows_repetition(error: &RawValue, is_repeatable: bool) -> bool {
    let error: Value = error.get().parse().unwrap_or_default();
    let data = &error["data"];
    data["code"] == "SHUTTING_DOWN" && (is_repeatable || data["started"] == false)
}

impl Handshake {
    /// Returns the handshake of a request and its result, or `None` if the result has no revision.
    fn new(request: Vec<u8>, result: &RawValue) -> Option<Self> {
        let result: Value = result.get().parse().ok()?;
        let lists = [
            ("tools", "notifications/tools/list_changed"),
            ("resources", "notifications/resources/list_changed"),
            ("prompts", "notifications/prompts/list_changed"),
        ];
        let announced = |(list, _): &(&str, _)| result["capabilities"][*list]["listChanged"] == true;
        Some(Self {
            request,
            protocol_version: result["protocolVersion"].as_str()?.to_owned(),
            announced_lists: lists.into_iter().filter(announced).map(|(_, method)| method).collect(),
            is_complete: false,
        })
    }
}

fn format_unknown_outcome(id: &str) -> Vec<u8> {
    let message = "The connection to the gateway ended before this request was answered, so its outcome is unknown: it may have \
                   been done. The gateway has ended, or it has closed the connection, as it does if its answers are not read. \
                   Read the live state, or call list_changes, before you repeat it.";
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32603,\"message\":\"{message}\",\"data\":{{\"code\":\"OUTCOME_UNKNOWN\"}}}}}}\n"
    )
    .into_bytes()
}

fn format_notification(method: &str, params: Option<&str>) -> Vec<u8> {
    let params = params.map(|params| format!(r#","params":{params}"#)).unwrap_or_default();
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\"{params}}}\n").into_bytes()
}

/// Replaces a part of the line. The part must be a slice of the line.
fn splice<'a>(line: &'a [u8], part: &RawValue, replacement: &str) -> Cow<'a, [u8]> {
    let part = part.get();
    let start = (part.as_ptr() as usize).wrapping_sub(line.as_ptr() as usize);
    match (line.get(..start), line.get(start.wrapping_add(part.len())..)) {
        (Some(before), Some(after)) if part != replacement => [before, replacement.as_bytes(), after].concat().into(),
        _ => line.into(),
    }
}

#[cfg(test)]
mod tests;
