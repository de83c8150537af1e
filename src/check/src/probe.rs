//! Speaks JSON-RPC to the server as a client by the book would, and keeps what was said.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    MODERN, Options, Target,
    redact::Redactor,
    wire::{Answer, Budget, Http, MAX_WEIGHT, ProbeError, ReceivedMessage, Wire, parse, weight},
};

/// Characters of a message that a report repeats.
const SHOWN: usize = 1500;
/// Messages that a report repeats, the last ones.
const KEPT: usize = 4;
/// How long nothing has to come for it to count as nothing.
pub(crate) const QUIET: Duration = Duration::from_millis(300);
/// Pages of a list that are read.
const PAGES: usize = 50;

/// What was sent and what came back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    pub sent: Vec<String>,
    pub received: Vec<String>,
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()),
        None => text.to_owned(),
    }
}

fn keep(list: &mut Vec<String>, text: &str) {
    list.push(shown(text));
    if list.len() > KEPT {
        list.remove(0);
    }
}

/// What the server said of itself when it was opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The result of `handshake_revision` or `server/discover`.
    pub opening: Value,
    pub tools: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    pub prompts: Vec<Value>,
}

impl Facts {
    pub fn offers(&self, capability: &str) -> bool {
        self.opening["capabilities"].get(capability).is_some_and(Value::is_object)
    }
}

/// What all checks of one run know.
#[derive(Clone)]
pub(crate) struct Probe {
    pub target: Target,
    pub options: Options,
    /// The revision that is spoken.
    pub revision: Arc<str>,
    pub facts: Arc<Facts>,
    pub transcript: Arc<std::sync::Mutex<Transcript>>,
    pub redactor: Arc<Redactor>,
    /// Of all connections of the run.
    pub budget: Arc<Budget>,
}

impl Probe {
    pub fn new(target: &Target, options: &Options) -> Self {
        Self {
            target: target.clone(),
            options: options.clone(),
            revision: MODERN.into(),
            facts: Arc::default(),
            transcript: Arc::default(),
            redactor: Arc::new(Redactor::new(target)),
            budget: Arc::default(),
        }
    }

    /// The same in another revision, with nothing said yet.
    pub fn speaking(&self, revision: &str) -> Self {
        Self { revision: revision.into(), ..self.anew() }
    }

    /// The same, with nothing said yet.
    pub fn anew(&self) -> Self {
        Self { transcript: Arc::default(), ..self.clone() }
    }

    pub fn is_modern(&self) -> bool {
        &*self.revision == MODERN
    }

    pub fn limit(&self) -> Duration {
        self.options.timeout
    }

    pub fn note_sent(&self, text: &str) {
        keep(&mut self.lock().sent, &self.redactor.redact(text));
    }

    pub fn note_received(&self, text: &str) {
        keep(&mut self.lock().received, &self.redactor.redact(text));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Transcript> {
        self.transcript.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What was said since this was asked last.
    pub fn take_transcript(&self) -> Transcript {
        std::mem::take(&mut *self.lock())
    }

    /// A connection on which nothing was said.
    pub async fn connect(&self) -> Result<Conn, ProbeError> {
        let mut wire = Wire::open(&self.target, self.limit(), &self.budget).await?;
        if let Wire::Http(http) = &mut wire
            && self.is_modern()
        {
            http.version = Some(self.revision.to_string());
            http.mirrors = true;
        }
        Ok(Conn { wire, probe: self.clone(), next: 1 })
    }

    /// A connection on which anything may be asked.
    pub async fn open(&self) -> Result<Conn, ProbeError> {
        let mut conn = self.connect().await?;
        if !self.is_modern() {
            conn.initialize(&self.revision).await?;
            conn.notify("notifications/initialized").await?;
        } else if !matches!(conn.wire, Wire::Http(_)) {
            // A server of both eras learns from the first message which one is spoken (2026-07-28/basic/versioning).
            conn.lives().await?;
        }
        // What led here is no part of what is checked.
        self.take_transcript();
        Ok(conn)
    }

    /// What a message of this revision carries.
    pub fn message(&self, id: Option<&Value>, method: &str, params: Value) -> Value {
        let mut params = params;
        if self.is_modern() {
            if !params.is_object() {
                params = json!({});
            }
            let own = params["_meta"].as_object().cloned().unwrap_or_default();
            let mut meta = envelope(&self.revision);
            meta.extend(own);
            params["_meta"] = Value::Object(meta);
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

/// What a stateless request says of itself (2026-07-28/basic/index#meta).
pub(crate) fn envelope(revision: &str) -> Map<String, Value> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": revision,
        "io.modelcontextprotocol/clientInfo": client(),
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    meta.as_object().cloned().unwrap_or_default()
}

/// Returns `true` if the ids are equal, or would be if both were texts: the checks of ids say what is wrong with such an
/// answer, and all others go on with it.
pub(crate) fn is_same_id(one: &Value, other: &Value) -> bool {
    let text = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    one == other || (one.as_f64().is_some() && one.as_f64() == other.as_f64()) || text(one) == text(other)
}

/// Whether a message is a response, to whatever.
fn is_response(message: &Value) -> bool {
    message.get("method").is_none() && (message.get("result").is_some() || message.get("error").is_some())
}

pub(crate) fn client() -> Value {
    json!({ "name": "countersign-check", "version": env!("CARGO_PKG_VERSION") })
}

/// What comes to one request, no more than is read of one message.
#[derive(Default)]
struct Gathered {
    messages: Vec<Value>,
    taken: usize,
}

impl Gathered {
    fn push(&mut self, text: &str, message: Option<Value>) -> Result<(), ProbeError> {
        self.taken += weight(text);
        if self.taken > MAX_WEIGHT {
            return Err(ProbeError::InvalidData("more comes to one request than is read of it".to_owned()));
        }
        self.messages.extend(message);
        Ok(())
    }
}

/// One connection, or what stands for one over HTTP.
pub(crate) struct Conn {
    pub wire: Wire,
    probe: Probe,
    next: i64,
}

impl Conn {
    pub fn http(&mut self) -> Option<&mut Http> {
        match &mut self.wire {
            Wire::Http(http) => Some(http),
            _ => None,
        }
    }

    /// An id that was not used on this connection.
    pub fn id(&mut self) -> Value {
        self.next += 1;
        self.next.into()
    }

    /// Sends text as it is.
    pub async fn send(&mut self, text: &str) -> Result<(), ProbeError> {
        self.send_bytes(text.as_bytes()).await
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        self.probe.note_sent(&String::from_utf8_lossy(bytes));
        let limit = self.probe.limit();
        // One that reads nothing is waited for as long as one that says nothing.
        match tokio::time::timeout(limit * 4, self.wire.send(bytes)).await {
            Ok(sent) => sent,
            Err(_) => Err(ProbeError::Timeout(limit)),
        }
    }

    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let received = self.wire.receive(limit).await?;
        if let Some(received) = &received {
            let status = received.status.map(|status| format!("HTTP {status} ")).unwrap_or_default();
            self.probe.note_received(&format!("{status}{}", received.text));
        }
        Ok(received)
    }

    /// What comes until then; nothing after it, even if there was no end of it before.
    async fn receive_by(&mut self, end: Instant) -> Result<Option<ReceivedMessage>, ProbeError> {
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Ok(None),
            left => self.receive(left).await,
        }
    }

    /// Sends a message and gives the response with its id, whatever comes before.
    pub async fn exchange(&mut self, message: &Value) -> Result<ReceivedMessage, ProbeError> {
        self.send(&message.to_string()).await?;
        self.response(&message["id"]).await
    }

    /// The response with that id.
    pub async fn response(&mut self, id: &Value) -> Result<ReceivedMessage, ProbeError> {
        let limit = self.probe.limit();
        let end = Instant::now() + limit;
        let mut other = None;
        loop {
            let Some(received) = self.receive_by(end).await? else {
                return Err(other.unwrap_or(ProbeError::Timeout(limit)));
            };
            let Some(json) = received.json() else {
                // An HTTP answer without a message is the answer.
                if received.status.is_some() {
                    return Ok(received);
                }
                continue;
            };
            if json.get("method").is_some() {
                self.decline(&json).await?;
            } else if is_same_id(&json["id"], id) || received.status.is_some() {
                // Over HTTP an answer belongs to its request, whatever it says.
                return Ok(received);
            } else if is_response(&json) {
                other.get_or_insert_with(|| ProbeError::WrongId {
                    sent: id.to_string(),
                    id: json.get("id").map_or_else(|| "missing".to_owned(), |id| shown(&id.to_string())),
                    received: shown(&self.probe.redactor.redact(&received.text)),
                });
            }
        }
    }

    /// What comes next that is no request or notification of the server's own: those are nobody's answer.
    pub async fn next_answer(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let end = Instant::now() + limit;
        while let Some(received) = self.receive_by(end).await? {
            match received.json().filter(|message| message.get("method").is_some()) {
                Some(message) => self.decline(&message).await?,
                None => return Ok(Some(received)),
            }
        }
        Ok(None)
    }

    /// What a server asks is declined, but for a ping.
    async fn decline(&mut self, message: &Value) -> Result<(), ProbeError> {
        let Some(id) = message.get("id") else { return Ok(()) };
        let answer = match message["method"].as_str() {
            Some("ping") => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
            _ => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "not offered" } }),
        };
        self.wire.send(answer.to_string().as_bytes()).await
    }

    /// A request by the book, and its response.
    pub async fn ask(&mut self, method: &str, params: Value) -> Result<Value, ProbeError> {
        self.weighed(method, params).await.map(|(response, _)| response)
    }

    /// The same, and what the response takes.
    async fn weighed(&mut self, method: &str, params: Value) -> Result<(Value, usize), ProbeError> {
        let id = self.id();
        let message = self.probe.message(Some(&id), method, params);
        let received = self.exchange(&message).await?;
        let status = received.status.map(|status| format!("HTTP {status}")).unwrap_or_default();
        let response = received
            .json()
            .ok_or_else(|| ProbeError::InvalidData(format!("no JSON: {status} {}", shown(&received.text))))?;
        Ok((response, weight(&received.text)))
    }

    /// Sends a message, and gives everything that comes within that time, to its response at most.
    pub async fn gather(&mut self, message: &Value, limit: Duration) -> Result<Vec<Value>, ProbeError> {
        let text = message.to_string();
        if let Wire::Http(http) = &self.wire {
            self.probe.note_sent(&text);
            let answer = http.request_for("POST", &http.headers_of(message), text.as_bytes(), limit).await?;
            let messages = answer.messages();
            messages.iter().for_each(|text| self.probe.note_received(text));
            let mut all = Gathered::default();
            for text in &messages {
                all.push(text, parse(text))?;
            }
            return Ok(all.messages);
        }
        self.send(&text).await?;
        let end = Instant::now() + limit;
        let mut all = Gathered::default();
        while let Some(received) = self.receive_by(end).await? {
            let Some(came) = received.json() else { continue };
            let is_answer = came.get("method").is_none() && is_same_id(&came["id"], &message["id"]);
            all.push(&received.text, Some(came))?;
            if is_answer {
                break;
            }
        }
        Ok(all.messages)
    }

    pub async fn notify(&mut self, method: &str) -> Result<(), ProbeError> {
        let message = self.probe.message(None, method, Value::Null);
        self.send(&message.to_string()).await?;
        // Over HTTP its answer is there already, and is nobody's.
        if let Wire::Http(http) = &mut self.wire {
            while http.receive().is_some() {}
        }
        Ok(())
    }

    /// The handshake's first half; its result.
    pub async fn initialize(&mut self, version: &str) -> Result<Value, ProbeError> {
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client() });
        let id = self.id();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": "initialize", "params": params });
        let received = self.exchange(&message).await?;
        let response = received.json().unwrap_or_default();
        let Some(result) = response.get("result") else {
            return Err(ProbeError::InvalidData(format!("initialize is answered with {}", shown(&received.text))));
        };
        let negotiated = result["protocolVersion"].as_str().unwrap_or(version).to_owned();
        if let Wire::Http(http) = &mut self.wire
            && negotiated.as_str() >= "2025-06-18"
        {
            http.version = Some(negotiated);
        }
        Ok(result.clone())
    }

    /// Every entry of a list.
    pub async fn list(&mut self, method: &str, of: &str) -> Result<Vec<Value>, ProbeError> {
        let mut all = Vec::new();
        let mut cursor: Option<Value> = None;
        let mut taken = 0;
        for _ in 0..PAGES {
            let params = cursor.take().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let (response, weight) = self.weighed(method, params).await?;
            taken += weight;
            if taken > MAX_WEIGHT {
                return Err(ProbeError::InvalidData(format!("more in {method} than is read of a list")));
            }
            let Some(page) = response["result"][of].as_array() else { break };
            all.extend(page.iter().cloned());
            match response["result"].get("nextCursor") {
                Some(next @ Value::String(_)) => cursor = Some(next.clone()),
                _ => break,
            }
        }
        Ok(all)
    }

    /// Whether it still answers.
    pub async fn lives(&mut self) -> Result<(), ProbeError> {
        let method = if self.probe.is_modern() { "server/discover" } else { "ping" };
        let response = self.ask(method, json!({})).await?;
        match response.get("result") {
            Some(_) => Ok(()),
            None => Err(ProbeError::InvalidData(format!("{method} is answered with {}", shown(&response.to_string())))),
        }
    }

    /// Whether it still says anything to a request, an error too.
    pub async fn answers(&mut self) -> Result<(), ProbeError> {
        let method = if self.probe.is_modern() { "server/discover" } else { "ping" };
        self.ask(method, json!({})).await.map(drop)
    }

    /// One HTTP request with these headers in place of the usual ones.
    pub async fn post(&mut self, method: &str, headers: &[(String, String)], body: &str) -> Result<Answer, ProbeError> {
        let told: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        self.probe.note_sent(&format!("{method}\n{}\n\n{body}", told.join("\n")));
        let Wire::Http(http) = &self.wire else { return Err(ProbeError::InvalidData("this is no HTTP".to_owned())) };
        let answer = http.request(method, headers, body.as_bytes()).await?;
        self.probe.note_received(&format!("HTTP {} {}", answer.status, answer.body));
        Ok(answer)
    }

    /// A stream that GET opens, heard for that long; a server that says nothing for the whole time has none.
    pub async fn listen(&mut self, headers: &[(String, String)], limit: Duration) -> Result<Answer, ProbeError> {
        let told: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        self.probe.note_sent(&format!("GET\n{}", told.join("\n")));
        let Wire::Http(http) = &self.wire else { return Err(ProbeError::InvalidData("this is no HTTP".to_owned())) };
        let answer = match http.request_for("GET", headers, b"", limit).await {
            // Some servers send the head with the first event.
            Err(ProbeError::Timeout(_)) => http.request("GET", headers, b"").await?,
            answer => answer?,
        };
        self.probe.note_received(&format!("HTTP {} {}", answer.status, answer.body));
        Ok(answer)
    }
}
