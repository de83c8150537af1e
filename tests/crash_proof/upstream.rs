//! The upstream that counts: a stateless MCP server on sockets, in the test's own process, so that it outlives every
//! gateway. What it does is on the disk before it answers.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};

const REVISION: &str = "2026-07-28";

/// What it did for one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The values that it was called with, one for each call.
    pub values: Vec<String>,
}

pub struct Upstream {
    pub url: String,
    done: Mutex<BTreeMap<String, Done>>,
    ledger: Mutex<File>,
}

impl Upstream {
    pub fn start(ledger: &Path) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let ledger = File::options().create_new(true).append(true).open(ledger).unwrap();
        let upstream = Arc::new(Self { url, done: Mutex::default(), ledger: Mutex::new(ledger) });
        let shared = Arc::clone(&upstream);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        upstream
    }

    pub fn done(&self) -> BTreeMap<String, Done> {
        self.done.lock().unwrap().clone()
    }

    /// Before the answer, on the disk: what was done stays done, whoever is told of it.
    fn apply(&self, key: &str, value: &str) {
        let mut ledger = self.ledger.lock().unwrap();
        writeln!(ledger, "{}", json!({"key": key, "value": value})).unwrap();
        ledger.sync_data().unwrap();
        self.done.lock().unwrap().entry(key.to_owned()).or_default().values.push(value.to_owned());
    }

    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some((line, body)) = read(&mut reader) {
            if !line.starts_with("POST") {
                answer(&mut stream, 405, "");
                continue;
            }
            let message: Value = serde_json::from_str(&body).unwrap();
            let id = &message["id"];
            let result = match message["method"].as_str().unwrap_or_default() {
                _ if id.is_null() => {
                    answer(&mut stream, 202, "");
                    continue;
                }
                "tools/call" => match self.call(&message["params"]["arguments"]) {
                    Some(result) => result,
                    // It was done, and nobody hears of it.
                    None => return,
                },
                "server/discover" => json!({"supportedVersions": [REVISION], "capabilities": {"tools": {}}}),
                "tools/list" => json!({"tools": [{
                    "name": "apply",
                    "description": "Does it, and counts",
                    "inputSchema": {
                        "type": "object",
                        "required": ["key", "value", "mode"],
                        "properties": {
                            "key": {"type": "string"}, "value": {"type": "string"}, "mode": {"type": "string"},
                        },
                    },
                }]}),
                _ => json!({}),
            };
            let mut result = result;
            result["resultType"] = "complete".into();
            result["ttlMs"] = 60_000.into();
            result["cacheScope"] = "public".into();
            result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": {"name": "counter", "version": "1"}});
            answer(&mut stream, 200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
        }
    }

    fn call(&self, arguments: &Value) -> Option<Value> {
        let text = |name: &str| arguments[name].as_str().unwrap_or_default();
        self.apply(text("key"), text("value"));
        match text("mode") {
            // Long enough that a kill often falls into the call.
            "slow" => std::thread::sleep(Duration::from_millis(60)),
            "lost" => return None,
            "fail" => {
                return Some(json!({"content": [{"type": "text", "text": "It failed on purpose"}], "isError": true}));
            }
            _ => {}
        }
        Some(json!({"content": [{"type": "text", "text": "Done"}]}))
    }
}

/// The request line and the body.
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
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((line, String::from_utf8(body).ok()?))
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) {
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all((head + body).as_bytes());
}
