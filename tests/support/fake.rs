//! A fake REST endpoint over raw sockets that answers as the test says, and records its requests.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: String,
    pub target: String,
    pub authorization: String,
    pub body: serde_json::Value,
}

/// Returns the bytes to write on the connection, which is closed afterwards.
pub type Handler = dyn Fn(&RecordedRequest, usize) -> String + Send + Sync;

pub struct FakeGateway {
    pub url: String,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl FakeGateway {
    /// Starts the endpoint. `handler` gets the request and how many preceded it. The thread ends with the test's
    /// process.
    pub fn start(handler: impl Fn(&RecordedRequest, usize) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (notes, handler): (_, Arc<Handler>) = (Arc::clone(&requests), Arc::new(handler));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (notes, handler) = (Arc::clone(&notes), Arc::clone(&handler));
                thread::spawn(move || answer(stream.unwrap(), &notes, &*handler));
            }
        });
        Self { url, requests }
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(stream: TcpStream, notes: &Mutex<Vec<RecordedRequest>>, handler: &Handler) {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (mut length, mut authorization) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim();
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => value.trim().clone_into(&mut authorization),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let request =
        RecordedRequest { method, target, authorization, body: serde_json::from_slice(&body).unwrap_or_default() };
    let before = {
        let mut notes = notes.lock().unwrap();
        notes.push(request.clone());
        notes.len() - 1
    };
    let text = handler(&request, before);
    let _ = (&stream).write_all(text.as_bytes());
}

pub fn json(status: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

pub fn problem(status: &str, code: &str, detail: &str) -> String {
    let number: u16 = status.split(' ').next().unwrap().parse().unwrap();
    let body =
        serde_json::json!({"type": "about:blank", "title": status, "status": number, "detail": detail, "code": code});
    json(status, &body)
}

/// Returns a stream that sends this text and breaks off.
pub fn event_stream(body: &str) -> String {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{body}\r\n", body.len())
}

pub fn change(id: &str, version: u64, state: &str) -> serde_json::Value {
    serde_json::json!({
        "id": id, "version": version, "state": state,
        "proposer": {"principal": "local-agent", "clientName": "test", "clientVersion": "1", "transport": "http"},
        "provider": "tracker", "tool": "create_issue", "toolTitle": "Create issue", "toolHash": "sha256:t",
        "arguments": {"title": "Fix\u{202e} login"}, "operation": "CREATE",
        "target": {"entityType": "issue", "id": null, "label": "CORE", "lockKey": "CORE"},
        "summary": "Create Task “Fix\u{1b}[2J login”",
        "diff": {"fields": [{"field": "title", "label": "Title", "before": null, "after": "Fix login"}], "truncated": false},
        "fingerprint": "sha256:f", "digest": "sha256:d", "terms": { "quorum": 1 }, "decisions": [],
        "createdAt": "2027-01-01T00:00:00Z", "updatedAt": "2027-01-01T00:00:00Z", "expiresAt": "2099-01-01T00:00:00Z",
    })
}
