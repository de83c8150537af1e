//! A scripted upstream on raw sockets, so that every byte in both directions is known.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
};

use serde_json::{Value, json};

use support::MAX_WAIT;

pub const STATELESS: &str = "2026-07-28";

/// Requests seen so far, and the state that tests change.
#[derive(Default)]
struct UpstreamState {
    /// The headers (in lower case) and body of every POST that is not part of connecting.
    posts: Vec<(String, String)>,
    /// Connections closed before their answer.
    hung_up: usize,
    /// Set to answer calls with the HTTP status 500.
    fails: bool,
}

pub struct Upstream {
    pub url: String,
    pub revision: &'static str,
    state: Mutex<UpstreamState>,
    changed: Condvar,
}

/// Unusual formatting, which must be preserved.
pub const ODD_RESULT: &str = concat!(
    "{ \"content\":[ {\"type\":\"text\",\"text\":\"x\",\"n\":12345678901234567890123} ],\"vendor\" : {\"z\":1.0,\"a\":1e400},",
    "\"nextCursor\":\"c\",\"structuredContent\":{\"b\":1.50,\"a\":\"\\u0041\"}}"
);
pub const ERROR: &str =
    r#"{"code":-31234,"message":"no \u0041","data":{ "n":12345678901234567890123 , "code":"THEIRS","z":[1.0] }}"#;
pub const QUESTION: &str =
    r#"{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"number","default":1.50}}}}"#;
pub const VENDOR: &str = r#"{ "n":1.0,"resources":[{"uri":"x:here"}],"z":12345678901234567890123 }"#;
pub const STATE: &str = r#""s\u0041/+=""#;

impl Upstream {
    pub fn start(revision: &'static str) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let upstream = Arc::new(Self { url, revision, state: Mutex::default(), changed: Condvar::new() });
        let shared = Arc::clone(&upstream);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        upstream
    }

    /// Makes all calls fail with a server error.
    pub fn start_failing(&self) {
        self.update(|state| state.fails = true);
    }

    /// Returns how many POSTs contained the text.
    pub fn count(&self, text: &str) -> usize {
        self.state.lock().unwrap().posts.iter().filter(|(_, body)| body.contains(text)).count()
    }

    pub fn is_stateless(&self) -> bool {
        self.revision == STATELESS
    }

    /// Waits until `find` returns a value.
    #[track_caller]
    fn wait<T>(&self, what: &str, find: impl Fn(&UpstreamState) -> Option<T>) -> T {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(found) = find(&state) {
                return found;
            }
            let (again, time) = self.changed.wait_timeout(state, MAX_WAIT).unwrap();
            assert!(!time.timed_out(), "did not happen: {what}; {:?}", again.posts);
            state = again;
        }
    }

    /// Waits for the `nth` POST that contains the text; returns its headers and body.
    #[track_caller]
    pub fn wait_for_post(&self, text: &str, nth: usize) -> (String, String) {
        self.wait(text, |state| state.posts.iter().filter(|(_, body)| body.contains(text)).nth(nth).cloned())
    }

    /// Waits until a call is cancelled in the manner of its era.
    #[track_caller]
    pub fn wait_for_cancellation(&self) {
        self.wait("a cancelled call", |state| {
            let was_notified = state.posts.iter().any(|(_, body)| body.contains("notifications/cancelled"));
            (if self.is_stateless() { state.hung_up > 0 } else { was_notified }).then_some(())
        });
    }

    fn update(&self, change: impl FnOnce(&mut UpstreamState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some((line, head, body)) = read(&mut reader) {
            if !line.starts_with("POST") {
                answer(&mut stream, 405, "");
                continue;
            }
            let message: Value = serde_json::from_str(&body).unwrap();
            let method = message["method"].as_str().unwrap_or_default().to_owned();
            let id = message["id"].clone();
            let connecting = matches!(method.as_str(), "initialize" | "server/discover" | "notifications/initialized")
                || method.ends_with("/list")
                || method == "logging/setLevel"
                || method == "subscriptions/listen";
            if !connecting {
                self.update(|state| state.posts.push((head, body.clone())));
            }
            match method.as_str() {
                "tools/call" if self.state.lock().unwrap().fails => answer(&mut stream, 500, "no"),
                "vendor/do" => answer(&mut stream, 200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{VENDOR}}}"#)),
                "tools/call" | "prompts/get" | "resources/read" => self.call(&mut stream, &message, &body),
                "server/discover" if !self.is_stateless() => answer(&mut stream, 400, "{}"),
                "subscriptions/listen" => {
                    sse(&mut stream);
                    let tag = json!({"io.modelcontextprotocol/subscriptionId": id});
                    let params = json!({"_meta": tag, "notifications": {}});
                    let method = "notifications/subscriptions/acknowledged";
                    event(&mut stream, &json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
                    let _ = reader.read(&mut [0]);
                    return;
                }
                _ if id.is_null() || method.is_empty() => answer(&mut stream, 202, ""),
                _ => {
                    let result = self.fixed_answer(&method);
                    answer(&mut stream, 200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
                }
            }
        }
    }

    /// Returns the fixed answer to a method.
    fn fixed_answer(&self, method: &str) -> Value {
        let mut capabilities = json!({"tools": {}, "prompts": {}, "resources": {}, "logging": {}});
        capabilities["experimental"] = json!({"vendor.example/do": {"v": 1}});
        let info = json!({"name": "fake", "version": "1"});
        let named = |names: &[&str]| -> Value {
            names.iter().map(|name| json!({"name": name, "inputSchema": {"type": "object"}})).collect()
        };
        let mut result = match method {
            "initialize" => {
                json!({"protocolVersion": self.revision, "capabilities": capabilities, "serverInfo": info})
            }
            "server/discover" => json!({"supportedVersions": [STATELESS], "capabilities": capabilities}),
            "tools/list" => {
                let mut tools = named(&["bytes", "error", "talk", "ask", "slow", "url", "odd name"]);
                let read =
                    json!({"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}});
                tools.as_array_mut().unwrap().push(read);
                json!({"tools": tools})
            }
            "prompts/list" => json!({"prompts": [{"name": "bytes"}]}),
            "resources/list" => json!({"resources": [{"uri": "x:here", "name": "here"}]}),
            "resources/templates/list" => json!({"resourceTemplates": []}),
            _ => json!({}),
        };
        if self.is_stateless() {
            result["resultType"] = "complete".into();
            result["ttlMs"] = 60_000.into();
            result["cacheScope"] = "public".into();
            result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": info});
        }
        result
    }

    fn call(&self, stream: &mut TcpStream, message: &Value, body: &str) {
        let id = &message["id"];
        let params = &message["params"];
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default();
        let result = |result: &str| {
            let result = match result.strip_suffix('}') {
                Some(open) if self.is_stateless() => format!("{open},\"resultType\" : \"complete\"}}"),
                _ => result.to_owned(),
            };
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
        };
        let echo = || result(&format!(r#"{{"content":[],"got":{body}}}"#));
        match name {
            "bytes" => answer(stream, 200, &result(ODD_RESULT)),
            "error" => answer(stream, 200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{ERROR}}}"#)),
            "x:here" => answer(stream, 200, &result(r#"{"contents":[{"uri":"x:here","text":"t","n":1.0}]}"#)),
            "x:mine" | "x:ours" | "read" => {
                let scope = if name == "x:mine" { "private" } else { "public" };
                let contents = r#""contents":[{"uri":"x:mine","text":"t","n":1.0}],"content":[]"#;
                answer(stream, 200, &result(&format!(r#"{{{contents},"ttlMs":3600000,"cacheScope":"{scope}"}}"#)));
            }
            "x:gone" => {
                let code = if self.is_stateless() { -32602 } else { -32002 };
                let error = format!(r#"{{"code":{code},"message":"gone","data":{{"uri":"x:gone","n":1.0}}}}"#);
                answer(stream, 200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
            }
            "talk" => {
                sse(stream);
                let token = &params["_meta"]["progressToken"];
                for progress in ["1.0", "0.5", "2.50"] {
                    let progress_params = format!(r#"{{"progressToken":{token},"progress":{progress},"message":"m"}}"#);
                    event(
                        stream,
                        &format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{progress_params}}}"#),
                    );
                }
                for level in ["debug", "warning"] {
                    let log_params = format!(r#"{{"level":"{level}","data":1.0}}"#);
                    event(
                        stream,
                        &format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{log_params}}}"#),
                    );
                }
                event(stream, &echo());
                finish(stream);
            }
            "slow" => {
                sse(stream);
                let _ = stream.read(&mut [0]);
                self.update(|state| state.hung_up += 1);
            }
            "ask" if self.is_stateless() && params.get("inputResponses").is_some() => answer(stream, 200, &echo()),
            "ask" if self.is_stateless() => {
                let needed = format!(
                    r#"{{"resultType":"input_required","inputRequests":{{"user_name":{{"method":"elicitation/create","params":{QUESTION}}}}},"requestState":{STATE}}}"#
                );
                answer(stream, 200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{needed}}}"#));
            }
            "ask" => {
                sse(stream);
                let ask = format!(
                    r#"{{"jsonrpc":"2.0","id":"user_name","method":"elicitation/create","params":{QUESTION}}}"#
                );
                event(stream, &ask);
                let answer = self.wait("an answer", |state| {
                    state
                        .posts
                        .iter()
                        .find(|(_, body)| body.contains(r#""id":"user_name""#))
                        .map(|(_, body)| body.clone())
                });
                event(stream, &result(&format!(r#"{{"content":[],"got":{answer}}}"#)));
                finish(stream);
            }
            "url" => {
                let urls = r#"[{"mode":"url","elicitationId":"e1","url":"https://a.example/","message":"open"}]"#;
                let error = format!(r#"{{"code":-32042,"message":"open it","data":{{"elicitations":{urls}}}}}"#);
                answer(stream, 200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
            }
            other => panic!("{other}"),
        }
    }
}

/// Reads the request line, the head in lower case, and the body.
fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, String, String)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut head = String::new();
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field).ok()? == 0 {
            return None;
        }
        if field.trim().is_empty() {
            break;
        }
        head.push_str(&field.to_lowercase());
    }
    let length = head.lines().find_map(|field| field.strip_prefix("content-length:"));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some((line, head, String::from_utf8(body).unwrap()))
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) {
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all((head + body).as_bytes());
}

fn sse(stream: &mut TcpStream) {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let _ = stream.write_all(head.as_bytes());
}

fn event(stream: &mut TcpStream, message: &str) {
    let event = format!("event: message\ndata: {message}\n\n");
    let _ = stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
}

fn finish(stream: &mut TcpStream) {
    let _ = stream.write_all(b"0\r\n\r\n");
}
