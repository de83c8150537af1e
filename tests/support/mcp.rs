//! MCP over raw HTTP: both eras, with every header visible.

use serde_json::{Map, Value, json};

use super::{
    Gateway,
    http::{Conn, Response},
};

pub const MODERN: &str = "2026-07-28";
pub const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
pub const JSON: (&str, &str) = ("Content-Type", "application/json");
pub const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");

pub fn request(id: i64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub fn notification(method: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": method})
}

pub fn initialize_params(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}})
}

/// What a modern request carries.
pub fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// `params` with the modern `_meta`; what `params._meta` has already wins.
pub fn with_meta(params: Value) -> Value {
    let mut params = params;
    let mut all = meta();
    if let Some(own) = params.get("_meta").and_then(Value::as_object) {
        for (key, value) in own {
            all[key] = value.clone();
        }
    }
    if params.is_null() {
        params = Value::Object(Map::new());
    }
    params["_meta"] = all;
    params
}

/// The headers of a modern request.
pub fn modern_headers(method: &str, params: &Value) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = vec![
        (JSON.0.into(), JSON.1.into()),
        (ACCEPT.0.into(), ACCEPT.1.into()),
        ("MCP-Protocol-Version".into(), MODERN.into()),
        ("Mcp-Method".into(), method.into()),
    ];
    let name = match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params["taskId"].as_str(),
        _ => None,
    };
    if let Some(name) = name {
        headers.push(("Mcp-Name".into(), name.into()));
    }
    headers
}

pub fn borrowed(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl Gateway {
    /// POSTs to `/mcp` with what every client sends, and these headers.
    #[track_caller]
    pub fn post(&self, headers: &[(&str, &str)], body: &str) -> Response {
        let mut all = vec![JSON, ACCEPT];
        all.extend_from_slice(headers);
        self.request("POST", "/mcp", &all, body.as_bytes())
    }

    /// A modern request by the book.
    #[track_caller]
    pub fn modern(&self, id: i64, method: &str, params: Value) -> Response {
        self.modern_conn(id, method, params).response()
    }

    /// As [`Gateway::stateless_revision`], with the answer still to be read.
    #[track_caller]
    pub fn modern_conn(&self, id: i64, method: &str, params: Value) -> Conn {
        let params = with_meta(params);
        let headers = modern_headers(method, &params);
        let mut conn = self.connect();
        conn.request("POST", "/mcp", &borrowed(&headers), request(id, method, params).to_string().as_bytes());
        conn
    }

    /// A handshake session, initialized.
    #[track_caller]
    pub fn session(&self, version: &'static str) -> Session<'_> {
        let session = self.opened(version);
        let accepted = session.post(&notification("notifications/initialized").to_string());
        assert_eq!((accepted.status, accepted.body.len()), (202, 0), "{}", accepted.text());
        session
    }

    /// A handshake session that has not said `notifications/initialized`.
    #[track_caller]
    pub fn opened(&self, version: &'static str) -> Session<'_> {
        let response = self.post(&[], &request(0, "initialize", initialize_params(version)).to_string());
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json()["result"]["protocolVersion"], version);
        let id = response.header("mcp-session-id").expect("a session id").to_owned();
        Session { gateway: self, id, version }
    }

    /// Calls a tool over the modern era and returns its `structuredContent`.
    #[track_caller]
    pub fn tool(&self, name: &str, arguments: Value) -> Value {
        let answer = self.modern(1, "tools/call", json!({"name": name, "arguments": arguments})).json();
        assert_ne!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"]["structuredContent"].clone()
    }

    /// The id of the sample project.
    #[track_caller]
    pub fn project(&self) -> String {
        self.tool("list_projects", json!({}))["projects"][0]["id"].as_str().expect("a project").to_owned()
    }

    /// Proposes a Story; answers the change's id.
    #[track_caller]
    pub fn propose(&self, title: &str) -> String {
        let arguments = json!({"projectId": self.project(), "title": title, "type": "Story"});
        let change = self.tool("create_issue", arguments);
        assert_eq!(change["status"], "pending", "{change}");
        change["changeId"].as_str().unwrap().to_owned()
    }

    /// How many issues have that title.
    #[track_caller]
    pub fn issues_titled(&self, title: &str) -> usize {
        let mut found = 0;
        let mut arguments = json!({"projectId": self.project()});
        loop {
            let page = self.tool("list_issues", arguments.clone());
            found += page["issues"].as_array().unwrap().iter().filter(|issue| issue["title"] == title).count();
            match page["nextCursor"].as_str() {
                Some(cursor) => arguments["cursor"] = cursor.into(),
                None => return found,
            }
        }
    }
}

/// A handshake session over HTTP.
pub struct Session<'a> {
    pub gateway: &'a Gateway,
    pub id: String,
    pub version: &'static str,
}

impl Session<'_> {
    pub fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("Mcp-Session-Id", self.id.as_str())];
        if self.version >= "2025-06-18" {
            headers.push(("MCP-Protocol-Version", self.version));
        }
        headers
    }

    /// POSTs these bytes as the session.
    #[track_caller]
    pub fn post(&self, body: &str) -> Response {
        self.gateway.post(&self.headers(), body)
    }

    /// A request and its JSON answer, whatever it says.
    #[track_caller]
    pub fn call(&self, id: i64, method: &str, params: Value) -> Value {
        self.post(&request(id, method, params).to_string()).json()
    }

    /// A request whose answer is still to be read.
    #[track_caller]
    pub fn start(&self, body: &Value) -> Conn {
        let mut headers = vec![JSON, ACCEPT];
        headers.extend(self.headers());
        let mut conn = self.gateway.connect();
        conn.request("POST", "/mcp", &headers, body.to_string().as_bytes());
        conn
    }

    /// The standalone stream, or the rest of another after `last`.
    #[track_caller]
    pub fn stream(&self, last: Option<&str>) -> Conn {
        let mut headers = vec![("Accept", "text/event-stream")];
        headers.extend(self.headers());
        if let Some(last) = last {
            headers.push(("Last-Event-ID", last));
        }
        let mut conn = self.gateway.connect();
        conn.request("GET", "/mcp", &headers, b"");
        let head = conn.head();
        assert_eq!(head.status, 200, "{head:?}");
        assert!(head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")), "{head:?}");
        conn
    }

    #[track_caller]
    pub fn delete(&self) -> Response {
        self.gateway.request("DELETE", "/mcp", &self.headers(), b"")
    }
}
