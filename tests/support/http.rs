//! A raw HTTP/1.1 client over one socket: sends the given bytes, and reads responses and event streams.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::MAX_WAIT;

/// A connection with its unread input.
pub struct Conn {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
}

/// A response with its whole body.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The head of a response whose body has not been read.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// One event of a stream; fields that were absent are `None`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: Option<String>,
    pub retry: Option<String>,
}

impl Event {
    #[track_caller]
    pub fn json(&self) -> Value {
        let data = self.data.as_deref().unwrap_or_else(|| panic!("no data: {self:?}"));
        serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
    }
}

fn find_header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: status {}, body {:?}", self.status, self.text()))
    }

    pub fn json_or_null(&self) -> Value {
        self.try_json().unwrap_or(Value::Null)
    }

    pub fn try_json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Returns the number of the JSON-RPC error, if the response is one.
    pub fn code(&self) -> Option<i64> {
        self.json_or_null()["error"]["code"].as_i64()
    }
}

impl Conn {
    pub fn open(address: SocketAddr) -> Self {
        Self::try_open(address).unwrap()
    }

    /// Connects like [`Conn::open`], to a gateway that may be gone.
    pub fn try_open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(MAX_WAIT))?;
        Ok(Self { stream, address, buffer: Vec::new() })
    }

    /// Sends exactly these bytes. A closed connection is no error here, because the response will show it.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends a request; adds `Host` and `Content-Length` if they are missing.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let has = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
        if !has("host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        if !has("content-length") && !has("transfer-encoding") && (!body.is_empty() || method == "POST") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.send(&bytes);
    }

    /// Reads the next response with its body.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.try_response().expect("the connection was closed without an answer")
    }

    /// Reads the next response; `None` if the peer closes instead.
    pub fn try_response(&mut self) -> Option<Response> {
        let head = self.try_head()?;
        let body = if head.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk() {
                body.extend_from_slice(&chunk);
            }
            body
        } else if let Some(length) = head.header("content-length") {
            self.exactly(length.parse().unwrap())?
        } else if matches!(head.status, 100..=199 | 202 | 204 | 304) {
            Vec::new()
        } else {
            self.read_to_end()
        };
        Some(Response { status: head.status, headers: head.headers, body })
    }

    #[track_caller]
    pub fn head(&mut self) -> Head {
        self.try_head().expect("the connection was closed without an answer")
    }

    pub fn try_head(&mut self) -> Option<Head> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if self.read()? == 0 {
                return None;
            }
        };
        let text = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        self.buffer.drain(..end);
        let mut lines = text.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Some(Head { status, headers })
    }

    /// Returns the next event of a chunked stream that has data, an id or a name; skips comments. `None` at the end.
    pub fn event(&mut self) -> Option<Event> {
        self.event_within(MAX_WAIT)
    }

    /// Returns the next event like [`Conn::event`]; `None` also after the time limit.
    pub fn event_within(&mut self, time: Duration) -> Option<Event> {
        let end = Instant::now() + time;
        let mut text = std::mem::take(&mut self.buffer);
        // Chunks are decoded as they arrive; an incomplete event stays in `pending`.
        let mut pending = String::new();
        loop {
            while let Some((chunk, used)) = take_chunk(&text) {
                text.drain(..used);
                if chunk.is_empty() {
                    return None;
                }
                pending.push_str(&String::from_utf8(chunk).unwrap());
                while let Some(stop) = pending.find("\n\n") {
                    let block: String = pending.drain(..stop + 2).collect();
                    if let Some(event) = parse_event(&block) {
                        // The rest belongs to the next event and is put back as a chunk.
                        let mut back = Vec::new();
                        if !pending.is_empty() {
                            back.extend_from_slice(format!("{:x}\r\n{pending}\r\n", pending.len()).as_bytes());
                        }
                        back.extend_from_slice(&text);
                        self.buffer = back;
                        return Some(event);
                    }
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.read_within(left).is_none_or(|read| read == 0) {
                let mut back = Vec::new();
                if !pending.is_empty() {
                    back.extend_from_slice(format!("{:x}\r\n{pending}\r\n", pending.len()).as_bytes());
                }
                back.extend_from_slice(&text);
                self.buffer = back;
                return None;
            }
            text.append(&mut self.buffer);
        }
    }

    /// Returns the next event of an event stream; panics if there is none.
    #[track_caller]
    pub fn expect_event(&mut self) -> Event {
        self.event().expect("an event")
    }

    /// Reads one line of bytes up to and without `\n`.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                return Some(line);
            }
            if self.read()? == 0 {
                return None;
            }
        }
    }

    pub fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if self.read()? == 0 {
                return None;
            }
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// Reads everything up to the peer's close.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.read().is_some_and(|read| read > 0) {}
        std::mem::take(&mut self.buffer)
    }

    /// Returns `true` if the peer has closed the connection.
    #[track_caller]
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.read() {
                Some(0) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Closes the sending side, and continues reading.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some((chunk, used)) = take_chunk(&self.buffer) {
                self.buffer.drain(..used);
                return Some(chunk).filter(|chunk| !chunk.is_empty());
            }
            if self.read()? == 0 {
                return None;
            }
        }
    }

    fn read(&mut self) -> Option<usize> {
        self.read_within(MAX_WAIT)
    }

    /// Reads like [`Conn::read_within`], but unread input counts too.
    pub fn arrived_within(&mut self, time: Duration) -> Option<usize> {
        if self.buffer.is_empty() { self.read_within(time) } else { Some(self.buffer.len()) }
    }

    /// Reads once: returns 0 at the end, `None` if nothing came in time. A reset counts as the end.
    pub fn read_within(&mut self, time: Duration) -> Option<usize> {
        self.stream.set_read_timeout(Some(time.max(Duration::from_millis(1)))).unwrap();
        let mut chunk = vec![0; 64 << 10];
        match self.stream.read(&mut chunk) {
            Ok(read) => {
                self.buffer.extend_from_slice(&chunk[..read]);
                Some(read)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(_) => Some(0),
        }
    }
}

/// Returns the first complete chunk and how many bytes it occupies.
fn take_chunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")?;
    let size = std::str::from_utf8(&bytes[..line]).ok()?.split(';').next()?.trim();
    let size = usize::from_str_radix(size, 16).ok()?;
    let (start, end) = (line + 2, line + 2 + size);
    (bytes.len() >= end + 2).then(|| (bytes[start..end].to_vec(), end + 2))
}

fn parse_event(block: &str) -> Option<Event> {
    let mut event = Event::default();
    for line in block.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            "id" => event.id = Some(value),
            "event" => event.event = Some(value),
            "retry" => event.retry = Some(value),
            "data" => {
                event.data = Some(match event.data.take() {
                    Some(before) => format!("{before}\n{value}"),
                    None => value,
                });
            }
            _ => {}
        }
    }
    (event != Event::default()).then_some(event)
}
