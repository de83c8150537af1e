//! Speaks JSON-RPC to the server like a correct client, and records the messages.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    MODERN_REVISION, Options, Target,
    redact::Redactor,
    wire::{
        Budget, Http, HttpResponse, MAX_PARSED_BYTES, ProbeError, ReceivedMessage, Wire, estimate_parsed_bytes,
        is_response, parse,
    },
};

/// Maximum number of characters of a message in a report.
const MAX_MESSAGE_CHARS: usize = 1500;
/// Maximum number of messages of each direction in a report. The last messages are kept.
const MAX_MESSAGES: usize = 4;
/// The time after which a server counts as silent.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(300);
/// Maximum number of pages of a list that are read.
const MAX_PAGES: usize = 50;

/// The recorded messages in both directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    pub sent_messages: Vec<String>,
    pub received_messages: Vec<String>,
}

fn truncate_message(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()),
        None => text.to_owned(),
    }
}

fn push_bounded(list: &mut Vec<String>, text: &str) {
    list.push(truncate_message(text));
    if list.len() > MAX_MESSAGES {
        list.remove(0);
    }
}

/// The information that the server provided when the run began.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerInfo {
    /// The result of `initialize` or `server/discover`.
    pub handshake_result: Value,
    pub tools: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    pub prompts: Vec<Value>,
}

impl ServerInfo {
    pub fn offers(&self, capability: &str) -> bool {
        self.handshake_result["capabilities"].get(capability).is_some_and(Value::is_object)
    }
}

/// The context of a check: the target, the options, what is known of the server, and the transcript.
#[derive(Clone)]
pub(crate) struct Probe {
    pub target: Target,
    pub options: Options,
    /// The revision in use.
    pub revision: Arc<str>,
    pub server_info: Arc<ServerInfo>,
    pub transcript: Arc<std::sync::Mutex<Transcript>>,
    pub redactor: Arc<Redactor>,
    /// The read budget of all connections of the run.
    pub budget: Arc<Budget>,
}

impl Probe {
    pub fn new(target: &Target, options: &Options) -> Self {
        Self {
            target: target.clone(),
            options: options.clone(),
            revision: MODERN_REVISION.into(),
            server_info: Arc::default(),
            transcript: Arc::default(),
            redactor: Arc::new(Redactor::new(target, &options.secrets)),
            budget: Arc::default(),
        }
    }

    /// Returns a probe for another revision, with an empty transcript.
    pub fn with_revision(&self, revision: &str) -> Self {
        Self { revision: revision.into(), ..self.with_new_transcript() }
    }

    /// Returns a copy with an empty transcript.
    pub fn with_new_transcript(&self) -> Self {
        Self { transcript: Arc::default(), ..self.clone() }
    }

    pub fn is_modern(&self) -> bool {
        &*self.revision == MODERN_REVISION
    }

    /// Returns `true` if the server is a child process, which ends with its connection.
    pub fn is_child(&self) -> bool {
        matches!(self.target, Target::Command { .. })
    }

    /// Returns a method that every server of the revision answers with a result.
    pub fn harmless_method(&self) -> &'static str {
        if self.is_modern() { "server/discover" } else { "ping" }
    }

    /// Builds a request of the harmless method.
    pub fn harmless_request(&self, id: impl Into<Value>) -> Value {
        self.message(Some(&id.into()), self.harmless_method(), Value::Null)
    }

    pub fn record_sent(&self, text: &str) {
        push_bounded(&mut self.lock().sent_messages, &self.redactor.redact(text));
    }

    pub fn record_received(&self, text: &str) {
        push_bounded(&mut self.lock().received_messages, &self.redactor.redact(text));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Transcript> {
        self.transcript.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the messages recorded since the last call.
    pub fn take_transcript(&self) -> Transcript {
        std::mem::take(&mut *self.lock())
    }

    /// Opens a connection without a handshake.
    pub async fn connect_without_handshake(&self) -> Result<ProbeConnection, ProbeError> {
        let mut wire = Wire::open(&self.target, self.options.timeout, &self.budget).await?;
        if let Wire::Http(http) = &mut wire
            && self.is_modern()
        {
            http.version = Some(self.revision.to_string());
            http.mirrors_body = true;
        }
        Ok(ProbeConnection { wire, probe: self.clone(), last_id: 1 })
    }

    /// Opens a connection on which any request may be sent.
    pub async fn connect_ready(&self) -> Result<ProbeConnection, ProbeError> {
        let mut conn = self.connect_without_handshake().await?;
        if !self.is_modern() {
            conn.initialize(&self.revision).await?;
            conn.notify("notifications/initialized").await?;
        } else if !matches!(conn.wire, Wire::Http(_)) {
            // The first message tells a server of both eras which one is used (2026-07-28/basic/versioning).
            conn.ensure_answers_with_result().await?;
        }
        // The messages of the handshake do not belong to the check.
        self.take_transcript();
        Ok(conn)
    }

    /// Sends a correct request on a connection of its own, and returns the response.
    pub async fn ask(&self, method: &str, params: Value) -> Result<Value, ProbeError> {
        self.connect_ready().await?.ask(method, params).await
    }

    /// Builds a message with the members that the revision requires.
    pub fn message(&self, id: Option<&Value>, method: &str, mut params: Value) -> Value {
        if self.is_modern() {
            if !params.is_object() {
                params = json!({});
            }
            // Metadata of the stateless revision (2026-07-28/basic/index#meta).
            let mut meta = json!({
                "io.modelcontextprotocol/protocolVersion": &*self.revision,
                "io.modelcontextprotocol/clientInfo": client_info(),
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            for (key, value) in params["_meta"].as_object().into_iter().flatten() {
                meta[key] = value.clone();
            }
            params["_meta"] = meta;
        }
        let mut message = json!({ "jsonrpc": "2.0" });
        if let Some(id) = id {
            message["id"] = id.clone();
        }
        message["method"] = method.into();
        if !params.is_null() {
            message["params"] = params;
        }
        message
    }
}

/// Returns `true` if the ids are equal, or equal as texts. Only the checks of ids report a wrong type.
pub(crate) fn ids_match(first: &Value, second: &Value) -> bool {
    let text = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    first == second || (first.as_f64().is_some() && first.as_f64() == second.as_f64()) || text(first) == text(second)
}

fn client_info() -> Value {
    json!({ "name": "countersign-check", "version": env!("CARGO_PKG_VERSION") })
}

/// Builds an `initialize` request.
pub(crate) fn initialize_request(id: &Value, version: &str) -> Value {
    let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client_info() });
    json!({ "jsonrpc": "2.0", "id": id, "method": "initialize", "params": params })
}

/// Collects the messages for one request, which together may be as large as one message.
#[derive(Default)]
struct MessageCollector {
    messages: Vec<Value>,
    total_bytes: usize,
}

impl MessageCollector {
    fn push(&mut self, text: &str, message: Option<Value>) -> Result<(), ProbeError> {
        self.total_bytes += estimate_parsed_bytes(text);
        if self.total_bytes > MAX_PARSED_BYTES {
            return Err(ProbeError::InvalidData("the messages for one request exceed the size limit".to_owned()));
        }
        self.messages.extend(message);
        Ok(())
    }
}

/// A connection, or a series of HTTP requests that stand for one.
pub(crate) struct ProbeConnection {
    pub wire: Wire,
    probe: Probe,
    last_id: i64,
}

impl ProbeConnection {
    pub fn http(&mut self) -> Option<&mut Http> {
        match &mut self.wire {
            Wire::Http(http) => Some(http),
            _ => None,
        }
    }

    /// Returns an id that was not used on this connection.
    pub fn next_id(&mut self) -> Value {
        self.last_id += 1;
        self.last_id.into()
    }

    /// Sends text unchanged.
    pub async fn send(&mut self, text: &str) -> Result<(), ProbeError> {
        self.send_bytes(text.as_bytes()).await
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        self.probe.record_sent(&String::from_utf8_lossy(bytes));
        // A server that does not read must not block the check. Over HTTP, sending includes the response.
        let limit = self.probe.options.timeout * 4;
        match tokio::time::timeout(limit, self.wire.send(bytes)).await {
            Ok(sent) => sent,
            Err(_) if matches!(self.wire, Wire::Http(_)) => Err(ProbeError::Timeout(limit)),
            Err(_) => Err(ProbeError::NotRead(limit)),
        }
    }

    /// Receives the next message, or returns `None` after the limit.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let incoming = self.wire.receive(limit).await?;
        if let Some(incoming) = &incoming {
            let status = incoming.status.map(|status| format!("HTTP {status} ")).unwrap_or_default();
            self.probe.record_received(&format!("{status}{}", incoming.text));
        }
        Ok(incoming)
    }

    /// Receives the next message before the deadline. A caller that waits for a certain message passes the same deadline each
    /// time, so that a server that never stops sending cannot hold it up.
    async fn receive_until(&mut self, deadline: Instant) -> Result<Option<ReceivedMessage>, ProbeError> {
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Ok(None),
            remaining => self.receive(remaining).await,
        }
    }

    /// Sends a message and returns the response with its id, skipping other messages.
    pub async fn exchange(&mut self, message: &Value) -> Result<ReceivedMessage, ProbeError> {
        self.send(&message.to_string()).await?;
        self.receive_response(&message["id"]).await
    }

    /// Receives messages until the response with the id arrives.
    pub async fn receive_response(&mut self, id: &Value) -> Result<ReceivedMessage, ProbeError> {
        let limit = self.probe.options.timeout;
        let deadline = Instant::now() + limit;
        let mut wrong_id = None;
        loop {
            let Some(incoming) = self.receive_until(deadline).await? else {
                return Err(wrong_id.unwrap_or_else(|| self.wire.missing_answer(limit)));
            };
            let Some(json) = incoming.json() else {
                // An HTTP response without a message is the answer.
                if incoming.status.is_some() {
                    return Ok(incoming);
                }
                continue;
            };
            if json.get("method").is_some() {
                self.answer_server_request(&json).await?;
            } else if ids_match(&json["id"], id) || incoming.status.is_some() {
                // Over HTTP a response belongs to its request, whatever its id is.
                return Ok(incoming);
            } else if is_response(&json) {
                wrong_id.get_or_insert_with(|| ProbeError::WrongId {
                    sent_id: id.to_string(),
                    received_id: json
                        .get("id")
                        .map_or_else(|| "missing".to_owned(), |id| truncate_message(&id.to_string())),
                    message: truncate_message(&self.probe.redactor.redact(&incoming.text)),
                });
            }
        }
    }

    /// Returns the next message that is not a request or notification of the server.
    pub async fn next_response(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let deadline = Instant::now() + limit;
        while let Some(incoming) = self.receive_until(deadline).await? {
            match incoming.json().filter(|message| message.get("method").is_some()) {
                Some(message) => self.answer_server_request(&message).await?,
                None => return Ok(Some(incoming)),
            }
        }
        Ok(None)
    }

    /// Answers a ping of the server, and declines all its other requests. A notification gets no answer.
    async fn answer_server_request(&mut self, message: &Value) -> Result<(), ProbeError> {
        let Some(id) = message.get("id") else { return Ok(()) };
        let answer = match message["method"].as_str() {
            Some("ping") => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
            _ => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "not offered" } }),
        };
        self.wire.send_unanswered(&answer).await
    }

    /// Sends a correct request and returns the response.
    pub async fn ask(&mut self, method: &str, params: Value) -> Result<Value, ProbeError> {
        let id = self.next_id();
        let message = self.probe.message(Some(&id), method, params);
        let reply = self.exchange(&message).await?;
        let status = reply.status.map(|status| format!("HTTP {status}")).unwrap_or_default();
        reply
            .json()
            .ok_or_else(|| ProbeError::InvalidData(format!("not JSON: {status} {}", truncate_message(&reply.text))))
    }

    /// Sends a message and returns everything received until its response or the time limit.
    pub async fn gather(&mut self, message: &Value, limit: Duration) -> Result<Vec<Value>, ProbeError> {
        let text = message.to_string();
        if let Wire::Http(http) = &self.wire {
            self.probe.record_sent(&text);
            let answer = http.request("POST", &http.headers_for(message), text.as_bytes(), limit).await?;
            let messages = answer.messages();
            messages.iter().for_each(|text| self.probe.record_received(text));
            let mut all = MessageCollector::default();
            for text in &messages {
                all.push(text, parse(text))?;
            }
            return Ok(all.messages);
        }
        self.send(&text).await?;
        let deadline = Instant::now() + limit;
        let mut all = MessageCollector::default();
        while let Some(incoming) = self.receive_until(deadline).await? {
            let Some(json) = incoming.json() else { continue };
            let is_answer = json.get("method").is_none() && ids_match(&json["id"], &message["id"]);
            all.push(&incoming.text, Some(json))?;
            if is_answer {
                break;
            }
        }
        Ok(all.messages)
    }

    pub async fn notify(&mut self, method: &str) -> Result<(), ProbeError> {
        let message = self.probe.message(None, method, Value::Null);
        self.send(&message.to_string()).await?;
        // The HTTP response to a notification was already received and answers no request.
        if let Wire::Http(http) = &mut self.wire {
            while http.receive().is_some() {}
        }
        Ok(())
    }

    /// Sends `initialize` and returns its result.
    pub async fn initialize(&mut self, version: &str) -> Result<Value, ProbeError> {
        let message = initialize_request(&self.next_id(), version);
        let reply = self.exchange(&message).await?;
        let response = reply.json().unwrap_or_default();
        let Some(result) = response.get("result") else {
            return Err(ProbeError::InvalidData(format!(
                "initialize is answered with {}",
                truncate_message(&reply.text)
            )));
        };
        let negotiated = result["protocolVersion"].as_str().unwrap_or(version).to_owned();
        if let Wire::Http(http) = &mut self.wire
            && negotiated.as_str() >= "2025-06-18"
        {
            http.version = Some(negotiated);
        }
        Ok(result.clone())
    }

    /// Returns all entries of a paginated list, which results contain under `key`.
    pub async fn read_list(&mut self, method: &str, key: &str) -> Result<Vec<Value>, ProbeError> {
        let mut all = Vec::new();
        let mut params = json!({});
        let mut total_bytes = 0;
        for _ in 0..MAX_PAGES {
            let response = self.ask(method, params).await?;
            total_bytes += estimate_parsed_bytes(&response.to_string());
            if total_bytes > MAX_PARSED_BYTES {
                return Err(ProbeError::InvalidData(format!("the list of {method} exceeds the size limit")));
            }
            let result = &response["result"];
            let Some(page) = result[key].as_array() else { break };
            all.extend(page.iter().cloned());
            match &result["nextCursor"] {
                cursor @ Value::String(_) => params = json!({ "cursor": cursor }),
                _ => break,
            }
        }
        Ok(all)
    }

    /// Fails if the server does not answer a harmless request with a result.
    pub async fn ensure_answers_with_result(&mut self) -> Result<(), ProbeError> {
        let method = self.probe.harmless_method();
        let response = self.ask(method, json!({})).await?;
        match response.get("result") {
            Some(_) => Ok(()),
            None => Err(ProbeError::InvalidData(format!(
                "{method} is answered with {}",
                truncate_message(&response.to_string())
            ))),
        }
    }

    /// Fails if the server does not answer a harmless request. An error counts as an answer.
    pub async fn ensure_answers(&mut self) -> Result<(), ProbeError> {
        self.ask(self.probe.harmless_method(), json!({})).await.map(drop)
    }

    /// Sends an HTTP request with exactly these headers.
    pub async fn request_with_headers(
        &mut self,
        method: &str,
        headers: &[(String, String)],
        body: &str,
    ) -> Result<HttpResponse, ProbeError> {
        self.request_within(method, headers, body, self.probe.options.timeout).await
    }

    /// Opens a stream with GET and reads it for the time limit. If the server sends nothing, not even the head of a
    /// response, it gets a second request with the limit for one answer.
    pub async fn listen(&mut self, headers: &[(String, String)], limit: Duration) -> Result<HttpResponse, ProbeError> {
        match self.request_within("GET", headers, "", limit).await {
            // Some servers send the response head only with the first event.
            Err(ProbeError::Timeout(_)) => self.request_with_headers("GET", headers, "").await,
            answer => answer,
        }
    }

    async fn request_within(
        &mut self,
        method: &str,
        headers: &[(String, String)],
        body: &str,
        limit: Duration,
    ) -> Result<HttpResponse, ProbeError> {
        let lines: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        self.probe.record_sent(&format!("{method}\n{}\n\n{body}", lines.join("\n")));
        let Wire::Http(http) = &self.wire else {
            return Err(ProbeError::InvalidData("the server is not reached over HTTP".to_owned()));
        };
        let answer = http.request(method, headers, body.as_bytes(), limit).await?;
        self.probe.record_received(&format!("HTTP {} {}", answer.status, answer.body));
        Ok(answer)
    }
}
