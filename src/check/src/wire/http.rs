//! HTTP/1.1 with one request per connection. Formats every byte of a request itself, without an HTTP library.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use serde_json::Value;
use url::Url;

use super::{
    Budget, MAX_HEAD_BYTES, MAX_MESSAGE_BYTES, ProbeError, ReceivedMessage, is_response,
    net::{Connection, authority, request_target},
    parse,
};

const ACCEPT: &str = "application/json, text/event-stream";

/// An HTTP response. It was read to its end, or up to the JSON-RPC response if it is a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpResponse {
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its transfer encoding.
    pub body: String,
    /// The events of a stream.
    pub events: Vec<Event>,
}

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub id: Option<String>,
    pub data: String,
}

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header_name, _)| header_name == name).map(|(_, value)| value.as_str())
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/event-stream"))
    }

    /// Returns the messages in the response.
    pub fn messages(&self) -> Vec<String> {
        if self.is_stream() {
            return self.events.iter().map(|event| event.data.clone()).filter(|data| !data.is_empty()).collect();
        }
        if self.body.trim().is_empty() { Vec::new() } else { vec![self.body.clone()] }
    }

    /// Returns the last message, or null.
    pub fn last_message(&self) -> Value {
        self.messages().last().and_then(|text| parse(text)).unwrap_or_default()
    }
}

/// The HTTP client of one server, with the headers of every request.
pub(crate) struct Http {
    url: Url,
    headers: Vec<(String, String)>,
    limit: Duration,
    /// The session id of a handshake-era session.
    pub session: Option<String>,
    /// The version header, sent once the version is negotiated.
    pub version: Option<String>,
    /// Repeats method and name in headers, as the stateless era requires.
    pub mirrors_body: bool,
    received: VecDeque<ReceivedMessage>,
    budget: Arc<Budget>,
}

impl Http {
    pub fn new(url: &Url, headers: &[(String, String)], limit: Duration, budget: Arc<Budget>) -> Self {
        Self {
            url: url.clone(),
            headers: headers.to_vec(),
            limit,
            session: None,
            version: None,
            mirrors_body: false,
            received: VecDeque::new(),
            budget,
        }
    }

    /// Returns the headers for a message.
    pub fn headers_for(&self, message: &Value) -> Vec<(String, String)> {
        let mut all =
            vec![("Content-Type".to_owned(), "application/json".to_owned()), ("Accept".to_owned(), ACCEPT.to_owned())];
        let mut add = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                all.push((name.to_owned(), value.to_owned()));
            }
        };
        add("Mcp-Session-Id", self.session.as_deref());
        add("MCP-Protocol-Version", self.version.as_deref());
        if self.mirrors_body {
            let method = message["method"].as_str();
            add("Mcp-Method", method);
            let params = &message["params"];
            let name = match method {
                Some("tools/call" | "prompts/get") => params["name"].as_str(),
                Some("resources/read") => params["uri"].as_str(),
                _ => None,
            };
            add("Mcp-Name", name);
        }
        all.extend(self.headers.iter().cloned());
        all
    }

    /// Posts a text with the headers for its message.
    pub async fn post(&self, message: &Value, text: &[u8]) -> Result<HttpResponse, ProbeError> {
        self.request("POST", &self.headers_for(message), text, self.limit).await
    }

    pub async fn send(&mut self, text: &[u8]) -> Result<(), ProbeError> {
        let message: Value = std::str::from_utf8(text).unwrap_or_default().parse().unwrap_or_default();
        let answer = self.post(&message, text).await?;
        let status = Some(answer.status);
        if self.session.is_none() && message["method"] == "initialize" {
            self.session = answer.header("mcp-session-id").map(str::to_owned);
        }
        let messages = answer.messages();
        if messages.is_empty() {
            self.received.push_back(ReceivedMessage { text: String::new(), status });
        }
        self.received.extend(messages.into_iter().map(|text| ReceivedMessage { text, status }));
        Ok(())
    }

    pub fn receive(&mut self) -> Option<ReceivedMessage> {
        self.received.pop_front()
    }

    /// Sends a request and returns its response. A stream is read until the JSON-RPC response or the time limit.
    pub async fn request(
        &self,
        method: &str,
        headers: &[(String, String)],
        body: &[u8],
        limit: Duration,
    ) -> Result<HttpResponse, ProbeError> {
        let mut answer = HttpResponse::default();
        let exchange = self.exchange(method, headers, body, &mut answer);
        match tokio::time::timeout(limit, exchange).await {
            Ok(outcome) => outcome?,
            // What was read of a stream that stays open is its response.
            Err(_) if answer.is_stream() => {}
            Err(_) => return Err(ProbeError::Timeout(limit)),
        }
        Ok(answer)
    }

    /// Sends the beginning of a request and disconnects.
    pub async fn abort_midway(&self, body: &[u8]) -> Result<(), ProbeError> {
        let mut socket = self.connect().await?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            request_target(&self.url),
            authority(&self.url),
            body.len()
        );
        socket.write(head.as_bytes()).await?;
        socket.write(body.get(..body.len() / 2).unwrap_or_default()).await
    }

    async fn connect(&self) -> Result<Connection, ProbeError> {
        Connection::open(&self.url, self.limit, Arc::clone(&self.budget)).await
    }

    async fn exchange(
        &self,
        method: &str,
        headers: &[(String, String)],
        body: &[u8],
        answer: &mut HttpResponse,
    ) -> Result<(), ProbeError> {
        let mut socket = self.connect().await?;
        let mut head = format!("{method} {} HTTP/1.1\r\nConnection: close\r\n", request_target(&self.url));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", authority(&self.url)));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        // A server that rejects a body may respond before receiving all of it.
        let _ = socket.write(&bytes).await;
        read_response(&mut socket, answer).await
    }
}

/// Reads the head of a response, and returns the bytes after it.
pub(super) async fn read_head(socket: &mut Connection, answer: &mut HttpResponse) -> Result<Vec<u8>, ProbeError> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = parse_head(&bytes, answer)? {
            return Ok(bytes.split_off(end));
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(ProbeError::InvalidData("headers without an end".to_owned()));
        }
        if socket.read(&mut bytes).await? == 0 {
            return Err(ProbeError::Closed);
        }
    }
}

async fn read_response(socket: &mut Connection, answer: &mut HttpResponse) -> Result<(), ProbeError> {
    let rest = read_head(socket, answer).await?;
    let is_chunked =
        answer.header("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked"));
    let content_length: Option<usize> = answer.header("content-length").and_then(|value| value.parse().ok());
    let mut body = Body { is_chunked, content_length, ..Body::default() };
    body.push(&rest);
    loop {
        if answer.is_stream() {
            answer.events.extend(body.take_events());
        }
        let has_response = answer.is_stream()
            && answer.events.iter().filter_map(|event| parse(&event.data)).any(|message| is_response(&message));
        let is_finished = has_response
            || body.is_complete()
            || matches!(answer.status, 204 | 304)
            || body.decoded.len() > MAX_MESSAGE_BYTES;
        let mut bytes = Vec::new();
        if is_finished || socket.read(&mut bytes).await? == 0 {
            answer.body = String::from_utf8_lossy(&body.decoded).into_owned();
            return Ok(());
        }
        body.push(&bytes);
    }
}

/// The received part of a body.
#[derive(Default)]
struct Body {
    is_chunked: bool,
    content_length: Option<usize>,
    /// The body without its transfer encoding.
    decoded: Vec<u8>,
    /// The part of a chunked body that is not decoded yet.
    undecoded: Vec<u8>,
    /// Set after the last chunk.
    has_ended: bool,
    /// The offset after the last returned event.
    events_end: usize,
    /// The offset up to which the body was searched for ends of events.
    searched: usize,
}

impl Body {
    fn push(&mut self, bytes: &[u8]) {
        if !self.is_chunked {
            self.decoded.extend_from_slice(bytes);
            return;
        }
        self.undecoded.extend_from_slice(bytes);
        self.decode_chunks();
    }

    fn is_complete(&self) -> bool {
        self.has_ended || (!self.is_chunked && self.content_length.is_some_and(|length| self.decoded.len() >= length))
    }

    /// Returns the complete events that were not returned before.
    fn take_events(&mut self) -> Vec<Event> {
        // The end of an event may be split across two reads.
        let from = self.searched.saturating_sub(3).max(self.events_end);
        let new = self.decoded.get(from..).unwrap_or_default();
        let ends = |end: &[u8]| new.windows(end.len()).rposition(|part| part == end).map(|at| at + end.len());
        let end = [ends(b"\n\n"), ends(b"\r\n\r\n"), ends(b"\r\r")].into_iter().flatten().max();
        self.searched = self.decoded.len();
        let Some(end) = end.map(|end| from + end) else { return Vec::new() };
        let complete = String::from_utf8_lossy(self.decoded.get(self.events_end..end).unwrap_or_default()).into_owned();
        self.events_end = end;
        parse_events(&complete)
    }

    /// Decodes the complete chunks of a chunked body (RFC 9112, section 7.1).
    fn decode_chunks(&mut self) {
        let mut offset = 0;
        while let Some(bytes) = self.undecoded.get(offset..).filter(|_| !self.has_ended)
            && let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n")
        {
            let line = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned();
            let size = line.split(';').next().and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
            let Some(size @ 1..=MAX_MESSAGE_BYTES) = size else {
                // The last chunk, or an invalid one.
                self.has_ended = true;
                return;
            };
            let start = end + 2;
            let Some(chunk) = bytes.get(start..start + size + 2) else { break };
            self.decoded.extend_from_slice(chunk.get(..size).unwrap_or_default());
            offset += start + size + 2;
        }
        self.undecoded.drain(..offset);
    }
}

/// Parses the response head and returns its end offset, once it is complete.
fn parse_head(bytes: &[u8], answer: &mut HttpResponse) -> Result<Option<usize>, ProbeError> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(end)) => {
            answer.status = response.code.unwrap_or_default();
            answer.headers = response
                .headers
                .iter()
                .map(|header| (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned()))
                .collect();
            Ok(Some(end))
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(ProbeError::InvalidData(format!("not an HTTP response: {error}"))),
    }
}

/// Parses the complete events of a stream (html.spec.whatwg.org/multipage/server-sent-events.html).
fn parse_events(body: &str) -> Vec<Event> {
    let text = body.replace("\r\n", "\n").replace('\r', "\n");
    let complete = text.rfind("\n\n").map_or("", |end| text.get(..end).unwrap_or_default());
    let mut all = Vec::new();
    for block in complete.split("\n\n") {
        let mut event = Event::default();
        let mut data: Vec<&str> = Vec::new();
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => data.push(value),
                "id" => event.id = Some(value.to_owned()),
                _ => {}
            }
        }
        event.data = data.join("\n");
        if !event.data.is_empty() || event.id.is_some() {
            all.push(event);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_is_case_insensitive() {
        let response = |kind: &str| {
            let headers = vec![("content-type".to_owned(), kind.to_owned())];
            HttpResponse { headers, ..HttpResponse::default() }
        };
        assert!(response("text/event-stream").is_stream());
        assert!(response("Text/Event-Stream; charset=UTF-8").is_stream());
        assert!(!response("application/json").is_stream());
    }

    #[test]
    fn partial_chunked_body_is_decoded() {
        let decode = |pieces: &[&[u8]]| {
            let mut body = Body { is_chunked: true, ..Body::default() };
            pieces.iter().for_each(|piece| body.push(piece));
            (body.decoded.clone(), body.is_complete())
        };
        assert_eq!(decode(&[b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"]), (b"abcde".to_vec(), true));
        assert_eq!(decode(&[b"3\r", b"\nab", b"c\r\n5\r\nde"]), (b"abc".to_vec(), false));
        assert_eq!(decode(&[b"3\r\nabc\r\n5\r\nde", b"fgh\r\n0\r\n"]), (b"abcdefgh".to_vec(), true));
        // An invalid or oversized chunk ends the body.
        assert_eq!(decode(&[b"zz\r\n"]), (Vec::new(), true));
        assert_eq!(decode(&[b"ffffffffffffffff\r\nabc"]), (Vec::new(), true));
        assert_eq!(decode(&[b""]), (Vec::new(), false));
    }

    #[test]
    fn only_complete_events_are_parsed() {
        let event = |id: Option<&str>, data: &str| Event { id: id.map(str::to_owned), data: data.to_owned() };
        let text = ": ping\n\nid: 1\ndata: {}\n\nevent: message\r\ndata: a\r\ndata: b\r\n\r\ndata: half";
        assert_eq!(parse_events(text), [event(Some("1"), "{}"), event(None, "a\nb")]);
        // The result does not depend on how the text is split.
        for size in [1, 2, 3, 7] {
            let mut body = Body::default();
            let mut all = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                body.push(piece);
                all.extend(body.take_events());
            }
            assert_eq!(all, parse_events(text), "{size}");
        }
    }
}
