//! A scripted upstream of either era: tests choose its lists, its answers to calls, and when it begins to answer.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use support::{MAX_WAIT, mcp::MODERN};

pub const HANDSHAKE: &str = "2025-11-25";

/// The lists of a server: `{"tools": […], "prompts": […], "resources": […], "resourceTemplates": […]}`.
pub type Offer = Value;

/// Answers a request with `{"result": …}` or `{"error": …}`.
pub type CallHandler = Box<dyn Fn(&Value, &mut PendingCall<'_>) -> Value + Send + Sync>;

#[derive(Default)]
struct ServerState {
    open: bool,
    /// Bodies of all requests that are not part of connecting.
    posts: Vec<String>,
}

pub struct Server {
    pub url: String,
    revision: &'static str,
    offer: Offer,
    act: CallHandler,
    state: Mutex<ServerState>,
    changed: Condvar,
}

/// A request that is being answered.
pub struct PendingCall<'a> {
    server: &'a Server,
    stream: &'a mut TcpStream,
    streams: bool,
}

impl PendingCall<'_> {
    /// Sends a message before the answer.
    pub fn send(&mut self, message: &Value) {
        if !std::mem::replace(&mut self.streams, true) {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = self.stream.write_all(head.as_bytes());
        }
        let event = format!("event: message\ndata: {message}\n\n");
        let _ = self.stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
    }

    /// Asks the client a question, and returns its whole answer.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
        let id = format!("q{}", NEXT_ID.fetch_add(1, Ordering::Relaxed));
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let wanted = format!(r#""id":"{id}""#);
        let answer = self.server.wait("an answer", |state| {
            state.posts.iter().rev().find(|body| body.contains(&wanted) && !body.contains("\"method\"")).cloned()
        });
        serde_json::from_str(&answer).unwrap()
    }
}

/// Returns a result with this text.
pub fn text(text: &str) -> Value {
    json!({"result": {"content": [{"type": "text", "text": text}], "resultType": "complete"}})
}

/// Returns a tool that claims to be read-only.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}})
}

impl Server {
    pub fn start(revision: &'static str, offer: Offer, act: CallHandler) -> Arc<Self> {
        let server = Self::start_silent(revision, offer, act);
        server.start_answering();
        server
    }

    /// Starts a server that accepts connections and answers nothing before [`Server::start_answering`].
    pub fn start_silent(revision: &'static str, offer: Offer, act: CallHandler) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (state, changed) = (Mutex::default(), Condvar::new());
        let server = Arc::new(Self { url, revision, offer, act, state, changed });
        let shared = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        server
    }

    pub fn start_answering(&self) {
        self.update(|state| state.open = true);
    }

    /// Stops answering.
    pub fn stop_answering(&self) {
        self.update(|state| state.open = false);
    }

    /// Returns the bodies with this text, without those of connecting.
    pub fn posts_with(&self, text: &str) -> Vec<String> {
        self.state.lock().unwrap().posts.iter().filter(|body| body.contains(text)).cloned().collect()
    }

    fn update(&self, change: impl FnOnce(&mut ServerState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait<T>(&self, what: &str, find: impl Fn(&ServerState) -> Option<T>) -> T {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(found) = find(&state) {
                return found;
            }
            let (again, time) = self.changed.wait_timeout(state, MAX_WAIT * 3).unwrap();
            assert!(!time.timed_out(), "did not happen: {what}; {:?}", again.posts);
            state = again;
        }
    }

    fn stateless(&self) -> bool {
        self.revision == MODERN
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some((line, body)) = read(&mut reader) {
            self.wait("it is open", |state| state.open.then_some(()));
            if !line.starts_with("POST") {
                answer(&mut stream, 405, "");
                continue;
            }
            let message: Value = serde_json::from_str(&body).unwrap();
            let method = message["method"].as_str().unwrap_or_default();
            let id = &message["id"];
            if method == "subscriptions/listen" {
                let mut turn = PendingCall { server: self, stream: &mut stream, streams: false };
                let tag = json!({"io.modelcontextprotocol/subscriptionId": id});
                let params = json!({"_meta": tag, "notifications": {}});
                let method = "notifications/subscriptions/acknowledged";
                turn.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
                let _ = reader.read(&mut [0]);
                return;
            }
            if method == "server/discover" && !self.stateless() {
                answer(&mut stream, 400, "{}");
                continue;
            }
            if method == "notifications/initialized" {
                answer(&mut stream, 202, "");
                continue;
            }
            if let Some(result) = self.connection_answer(method) {
                let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
                answer(&mut stream, 200, &body);
                continue;
            }
            self.update(|state| state.posts.push(body.clone()));
            if id.is_null() || method.is_empty() {
                answer(&mut stream, 202, "");
                continue;
            }
            let mut turn = PendingCall { server: self, stream: &mut stream, streams: false };
            let outcome = (self.act)(&message, &mut turn);
            let outcome = outcome.to_string();
            // The server's own bytes, if the test has set some.
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},{}"#, outcome.strip_prefix('{').unwrap());
            if turn.streams {
                turn.send(&serde_json::from_str(&body).unwrap());
                let _ = stream.write_all(b"0\r\n\r\n");
            } else {
                answer(&mut stream, 200, &body);
            }
        }
    }

    /// Answers the requests of connecting.
    fn connection_answer(&self, method: &str) -> Option<Value> {
        let capabilities = json!({
            "tools": {}, "prompts": {}, "resources": {"subscribe": true}, "completions": {}, "experimental": {"acme.example/x": {}},
        });
        let info = json!({"name": "scripted", "version": "1"});
        let list = |key: &str| json!({key: self.offer.get(key).cloned().unwrap_or(json!([]))});
        let mut result = match method {
            "initialize" => json!({"protocolVersion": self.revision, "capabilities": capabilities, "serverInfo": info}),
            "server/discover" => json!({"supportedVersions": [MODERN], "capabilities": capabilities}),
            "tools/list" => list("tools"),
            "prompts/list" => list("prompts"),
            "resources/list" => list("resources"),
            "resources/templates/list" => list("resourceTemplates"),
            "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => json!({}),
            _ => return None,
        };
        if self.stateless() {
            result["resultType"] = "complete".into();
            result["ttlMs"] = 60_000.into();
            result["cacheScope"] = "public".into();
        }
        Some(result)
    }
}

/// Reads the request line and the body.
fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut length = 0;
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field).ok()? == 0 {
            return None;
        }
        if field.trim().is_empty() {
            break;
        }
        if let Some(value) = field.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((line, String::from_utf8(body).unwrap()))
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) {
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all((head + body).as_bytes());
}
