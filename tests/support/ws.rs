//! A raw WebSocket client: the upgrade and the frames as bytes.

use std::time::Duration;

use serde_json::Value;

use super::{
    Gateway,
    http::{Conn, Head},
};

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub fin: bool,
    pub opcode: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.opcode, TEXT, "{self:?}");
        serde_json::from_slice(&self.payload).unwrap()
    }

    /// Returns the code of a close frame.
    pub fn close_code(&self) -> Option<u16> {
        (self.opcode == CLOSE && self.payload.len() >= 2)
            .then(|| u16::from_be_bytes([self.payload[0], self.payload[1]]))
    }
}

pub struct Ws {
    pub conn: Conn,
    pub head: Head,
    /// Text frames received, which a resuming client reports.
    pub received: u64,
}

impl Ws {
    /// Requests an upgrade of `path`, and keeps the head of the response even if it is refused.
    #[track_caller]
    pub fn try_open(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Self {
        Self::open_on(gateway.connect(), path, headers).expect("the connection was closed without an answer")
    }

    /// Requests an upgrade on that connection; `None` if there is no response.
    pub fn open_on(mut conn: Conn, path: &str, headers: &[(&str, &str)]) -> Option<Self> {
        let mut all = vec![
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        all.extend_from_slice(headers);
        conn.request("GET", path, &all, b"");
        let head = conn.try_head()?;
        Some(Self { conn, head, received: 0 })
    }

    #[track_caller]
    pub fn open(gateway: &Gateway) -> Self {
        let ws = Self::try_open(gateway, "/ws", &[("Sec-WebSocket-Protocol", "mcp")]);
        assert_eq!(ws.head.status, 101, "{:?}", ws.head);
        ws
    }

    pub fn session(&self) -> Option<&str> {
        self.head.header("mcp-session-id")
    }

    pub fn send_frame(&mut self, fin: bool, opcode: u8, payload: &[u8]) {
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let mut bytes = vec![u8::from(fin) << 7 | opcode];
        match payload.len() {
            length @ 0..=125 => bytes.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                bytes.push(0x80 | 127);
                bytes.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(&mask);
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.conn.send(&bytes);
    }

    pub fn send(&mut self, text: &str) {
        self.send_frame(true, TEXT, text.as_bytes());
    }

    pub fn send_json(&mut self, message: &Value) {
        self.send(&message.to_string());
    }

    /// Returns the next frame; answers pings and skips them. `None` if the peer is gone.
    pub fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any_frame()?;
            if frame.opcode == PING {
                self.send_frame(true, PONG, &frame.payload);
            } else {
                return Some(frame);
            }
        }
    }

    /// Returns the next frame of any kind.
    pub fn any_frame(&mut self) -> Option<Frame> {
        let two = self.conn.exactly(2)?;
        assert_eq!(two[1] & 0x80, 0, "a server's frames are not masked");
        let length = match two[1] & 0x7f {
            126 => u64::from(u16::from_be_bytes(self.conn.exactly(2)?.try_into().unwrap())),
            127 => u64::from_be_bytes(self.conn.exactly(8)?.try_into().unwrap()),
            length => u64::from(length),
        };
        let payload = self.conn.exactly(usize::try_from(length).unwrap())?;
        let frame = Frame { fin: two[0] & 0x80 != 0, opcode: two[0] & 0x0f, payload };
        if frame.opcode == TEXT {
            self.received += 1;
        }
        Some(frame)
    }

    /// Returns the next message.
    #[track_caller]
    pub fn message(&mut self) -> Value {
        self.frame().expect("a frame").json()
    }

    /// Returns the answer to that id, and the messages before it.
    #[track_caller]
    pub fn answer(&mut self, id: &Value) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let message = self.message();
            if &message["id"] == id && message.get("method").is_none() {
                return (message, before);
            }
            before.push(message);
        }
    }

    /// Sends a request and returns its answer.
    #[track_caller]
    pub fn call(&mut self, id: i64, method: &str, params: Value) -> Value {
        self.send_json(&super::mcp::request(id, method, params));
        self.answer(&id.into()).0
    }

    /// Performs the handshake in that revision.
    #[track_caller]
    pub fn initialize(&mut self, version: &str) -> Value {
        let answer = self.call(0, "initialize", super::mcp::initialize_params(version));
        self.send_json(&super::mcp::notification("notifications/initialized"));
        answer
    }

    /// Returns `true` if nothing arrives for that long.
    pub fn is_quiet_for(&mut self, time: Duration) -> bool {
        self.conn.read_within(time).is_none()
    }
}
