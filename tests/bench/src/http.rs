//! A cheap HTTP/1.1 client: requests are prepared bytes, and answers are read up to their length.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub struct Http {
    pub stream: TcpStream,
    pub port: u16,
    buffer: Vec<u8>,
    filled: usize,
}

/// Renders a POST.
pub fn post(port: u16, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The header that every MCP client sends.
pub const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");

/// Renders a modern request with its headers and `_meta`.
pub fn modern(port: u16, method: &str, mut params: Value) -> Vec<u8> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    let mut headers = vec![ACCEPT, ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
    if !name.is_empty() {
        headers.push(("Mcp-Name", &name));
    }
    post(port, "/mcp", &headers, &body)
}

/// Returns the request with a credential.
pub fn with_bearer(request: &[u8], credential: &str) -> Result<Vec<u8>> {
    let line = memchr::memmem::find(request, b"\r\n").context("no request line")? + 2;
    let header = format!("Authorization: Bearer {credential}\r\n");
    Ok([&request[..line], header.as_bytes(), &request[line..]].concat())
}

impl Http {
    pub async fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, port, buffer: vec![0; 64 << 10], filled: 0 })
    }

    /// Sends the request and reads its answer; returns the status, the whole length, and the offset of the body.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<(u16, usize, usize)> {
        self.stream.write_all(request).await?;
        self.filled = 0;
        let (mut head, mut length) = (0, 0);
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize(self.filled * 2, 0);
            }
            let read = self.stream.read(&mut self.buffer[self.filled..]).await?;
            if read == 0 {
                bail!("the server has closed the connection");
            }
            self.filled += read;
            if head == 0
                && let Some(end) = memchr::memmem::find(&self.buffer[..self.filled], b"\r\n\r\n")
            {
                head = end + 4;
                length = content_length(&self.buffer[..head])?;
            }
            if head > 0 && self.filled >= head + length {
                let status = std::str::from_utf8(&self.buffer[9..12])?.parse()?;
                return Ok((status, head + length, head));
            }
        }
    }

    /// Returns the body of the last answer.
    pub fn body(&self, head: usize) -> &[u8] {
        &self.buffer[head..self.filled]
    }

    /// Sends the request, which must succeed; returns its JSON.
    pub async fn json(&mut self, request: &[u8]) -> Result<Value> {
        let (status, _, head) = self.exchange(request).await?;
        let text = String::from_utf8_lossy(self.body(head)).into_owned();
        if !(200..300).contains(&status) {
            bail!("{status} {text}");
        }
        let value: Value = serde_json::from_str(&text)?;
        if value.get("error").is_some() || value["result"]["isError"] == true {
            bail!("{text}");
        }
        Ok(value)
    }

    pub async fn get(&mut self, path: &str) -> Result<u16> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", self.port);
        Ok(self.exchange(request.as_bytes()).await?.0)
    }

    /// Opens a handshake session; returns its id.
    pub async fn session(&mut self) -> Result<String> {
        let body = json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
        });
        let (status, _, head) = self.exchange(&post(self.port, "/mcp", &[ACCEPT], &body.to_string())).await?;
        if status != 200 {
            bail!("initialize: {status} {}", String::from_utf8_lossy(self.body(head)));
        }
        let text = String::from_utf8_lossy(&self.buffer[..head]).into_owned();
        let id = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
        });
        let id = id.context("no session id")?;
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        self.exchange(&post(self.port, "/mcp", &[ACCEPT, ("Mcp-Session-Id", &id)], initialized)).await?;
        Ok(id)
    }
}

fn content_length(head: &[u8]) -> Result<usize> {
    for line in head.split(|byte| *byte == b'\n') {
        if line.len() > 15 && line[..15].eq_ignore_ascii_case(b"content-length:") {
            return Ok(std::str::from_utf8(&line[15..])?.trim().parse()?);
        }
        if line.len() > 18 && line[..18].eq_ignore_ascii_case(b"transfer-encoding:") {
            bail!("an answer of unknown length");
        }
    }
    Ok(0)
}
