//! MCP over raw HTTP in both eras, with every header visible.

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

/// Returns the `_meta` of a modern request.
pub fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// Returns `params` with the modern `_meta`; members that are present already win.
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

/// Returns the headers of a modern request.
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

pub fn borrow_headers(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl Gateway {
    /// Posts to `/mcp` with the usual headers and these.
    #[track_caller]
    pub fn post(&self, headers: &[(&str, &str)], body: &str) -> Response {
        let mut all = vec![JSON, ACCEPT];
        all.extend_from_slice(headers);
        self.request("POST", "/mcp", &all, body.as_bytes())
    }

    /// Sends a correct modern request.
    #[track_caller]
    pub fn modern(&self, id: i64, method: &str, params: Value) -> Response {
        self.modern_conn(id, method, params).response()
    }

    /// Sends a request like [`Gateway::modern`], and leaves the response unread.
    #[track_caller]
    pub fn modern_conn(&self, id: i64, method: &str, params: Value) -> Conn {
        let params = with_meta(params);
        let headers = modern_headers(method, &params);
        let mut conn = self.connect();
        conn.request("POST", "/mcp", &borrow_headers(&headers), request(id, method, params).to_string().as_bytes());
        conn
    }

    /// Opens and initializes a handshake session.
    #[track_caller]
    pub fn session(&self, version: &'static str) -> Session<'_> {
        let session = self.session_without_initialized(version);
        let accepted = session.post(&notification("notifications/initialized").to_string());
        assert_eq!((accepted.status, accepted.body.len()), (202, 0), "{}", accepted.text());
        session
    }

    /// Opens a handshake session without sending `notifications/initialized`.
    #[track_caller]
    pub fn session_without_initialized(&self, version: &'static str) -> Session<'_> {
        let response = self.post(&[], &request(0, "initialize", initialize_params(version)).to_string());
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json()["result"]["protocolVersion"], version);
        let id = response.header("mcp-session-id").expect("a session id").to_owned();
        Session { gateway: self, id, version }
    }

    /// Calls a tool in the modern era and returns its `structuredContent`.
    #[track_caller]
    pub fn tool(&self, name: &str, arguments: Value) -> Value {
        let answer = self.modern(1, "tools/call", json!({"name": name, "arguments": arguments})).json();
        assert_ne!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"]["structuredContent"].clone()
    }

    /// Returns the id of the sample project.
    #[track_caller]
    pub fn project(&self) -> String {
        self.tool("list_projects", json!({}))["projects"][0]["id"].as_str().expect("a project").to_owned()
    }

    /// Proposes a Story, and returns the change's id.
    #[track_caller]
    pub fn propose(&self, title: &str) -> String {
        let arguments = json!({"projectId": self.project(), "title": title, "type": "Story"});
        let change = self.tool("create_issue", arguments);
        assert_eq!(change["status"], "pending", "{change}");
        change["changeId"].as_str().unwrap().to_owned()
    }

    /// Returns how many issues have this title.
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

    /// Posts these bytes in the session.
    #[track_caller]
    pub fn post(&self, body: &str) -> Response {
        self.gateway.post(&self.headers(), body)
    }

    /// Sends a request, and returns its JSON answer, even an error.
    #[track_caller]
    pub fn call(&self, id: i64, method: &str, params: Value) -> Value {
        self.post(&request(id, method, params).to_string()).json()
    }

    /// Sends a request, and leaves its answer unread.
    #[track_caller]
    pub fn start(&self, body: &Value) -> Conn {
        let mut headers = vec![JSON, ACCEPT];
        headers.extend(self.headers());
        let mut conn = self.gateway.connect();
        conn.request("POST", "/mcp", &headers, body.to_string().as_bytes());
        conn
    }

    /// Opens the standalone stream, or resumes a stream after `last`.
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
