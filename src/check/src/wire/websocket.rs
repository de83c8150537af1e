//! A WebSocket client that writes the upgrade and the frames as bytes (RFC 6455).

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use url::Url;

use super::{
    Budget, HttpResponse, MAX_MESSAGE_BYTES, ProbeError, ReceivedMessage,
    http::read_head,
    net::{Connection, authority, request_target},
};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A received message, reassembled from its frames, or the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketMessage {
    Text(String),
    Binary,
    Close,
}

/// A part of a message, or a control frame.
struct Frame {
    /// `true` for the last part of a message.
    is_last: bool,
    opcode: u8,
    payload: Vec<u8>,
}

/// A WebSocket connection to the server.
pub(crate) struct WebSocket {
    socket: Connection,
    buffer: Vec<u8>,
    /// The opcode and the received parts of an incomplete message.
    partial: Option<(u8, Vec<u8>)>,
    /// The subprotocol that the server selected.
    pub subprotocol: Option<String>,
}

impl WebSocket {
    /// Upgrades a connection, and offers the subprotocol `mcp`. Any other response is an error.
    pub async fn open(
        url: &Url,
        headers: &[(String, String)],
        limit: Duration,
        budget: Arc<Budget>,
    ) -> Result<Self, ProbeError> {
        let opening = async {
            let mut socket = Connection::open(url, limit, budget).await?;
            let key = BASE64_STANDARD.encode(nanoid::nanoid!(16));
            let mut head = format!(
                "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: mcp\r\n",
                request_target(url),
                authority(url)
            );
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            head.push_str("\r\n");
            socket.write(head.as_bytes()).await?;
            let mut answer = HttpResponse::default();
            let buffer = read_head(&mut socket, &mut answer).await?;
            if answer.status != 101 {
                return Err(ProbeError::UpgradeRefused(answer.status));
            }
            if answer.header("sec-websocket-accept") != Some(accept_value(&key).as_str()) {
                return Err(ProbeError::InvalidData("`Sec-WebSocket-Accept` does not match the key".to_owned()));
            }
            let subprotocol = answer.header("sec-websocket-protocol").map(str::to_owned);
            Ok(Self { socket, buffer, partial: None, subprotocol })
        };
        tokio::time::timeout(limit, opening).await.unwrap_or(Err(ProbeError::Timeout(limit)))
    }

    pub async fn send_text(&mut self, payload: &[u8]) -> Result<(), ProbeError> {
        self.send_frame(TEXT, payload).await
    }

    pub async fn send_binary(&mut self, payload: &[u8]) -> Result<(), ProbeError> {
        self.send_frame(BINARY, payload).await
    }

    async fn send_frame(&mut self, opcode: u8, payload: &[u8]) -> Result<(), ProbeError> {
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let mut bytes = vec![0x80 | opcode];
        match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
            (Ok(length @ 0..=125), _) => bytes.push(0x80 | length),
            (_, Ok(length)) => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                bytes.push(0x80 | 127);
                bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(&mask);
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.socket.write(&bytes).await
    }

    /// Sends the beginning of a frame and disconnects.
    pub async fn abort_midway(mut self) -> Result<(), ProbeError> {
        self.socket.write(&[0x80 | TEXT, 0x80 | 100, 1, 2, 3, 4, b'{']).await
    }

    /// Returns the next message. A binary message counts as an empty text.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        match self.next_message(limit).await? {
            None => Ok(None),
            Some(SocketMessage::Text(text)) => Ok(Some(ReceivedMessage { text, status: None })),
            Some(SocketMessage::Binary) => Ok(Some(ReceivedMessage { text: String::new(), status: None })),
            Some(SocketMessage::Close) => Err(ProbeError::Closed),
        }
    }

    /// Returns the next message and answers pings.
    pub async fn next_message(&mut self, limit: Duration) -> Result<Option<SocketMessage>, ProbeError> {
        let next = async {
            loop {
                // Parts that were read before a timeout stay in `buffer` and `partial`.
                let Some(Frame { is_last, opcode, payload }) = self.take_frame() else {
                    if self.buffer.len() > MAX_MESSAGE_BYTES {
                        return Err(ProbeError::InvalidData("a frame without an end".to_owned()));
                    }
                    if self.socket.read(&mut self.buffer).await? == 0 {
                        return Err(ProbeError::Closed);
                    }
                    continue;
                };
                match opcode {
                    PING => self.send_frame(PONG, &payload).await?,
                    PONG => {}
                    CLOSE => return Ok(SocketMessage::Close),
                    _ => {
                        let (_, all) = self.partial.get_or_insert((opcode, Vec::new()));
                        all.extend_from_slice(&payload);
                        if all.len() > MAX_MESSAGE_BYTES {
                            return Err(ProbeError::InvalidData("a message without an end".to_owned()));
                        }
                        if is_last {
                            return Ok(match self.partial.take() {
                                Some((TEXT, all)) => SocketMessage::Text(String::from_utf8_lossy(&all).into_owned()),
                                _ => SocketMessage::Binary,
                            });
                        }
                    }
                }
            }
        };
        tokio::time::timeout(limit, next).await.map_or(Ok(None), |message| message.map(Some))
    }

    /// Removes the next frame from the buffer, once it is complete.
    fn take_frame(&mut self) -> Option<Frame> {
        let (first, second) = (*self.buffer.first()?, *self.buffer.get(1)?);
        let (length, start): (u64, usize) = match second & 0x7f {
            126 => (u16::from_be_bytes(*self.buffer.get(2..)?.first_chunk()?).into(), 4),
            127 => (u64::from_be_bytes(*self.buffer.get(2..)?.first_chunk()?), 10),
            length => (length.into(), 2),
        };
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        let payload = self.buffer.get(start..end)?.to_vec();
        self.buffer.drain(..end);
        Some(Frame { is_last: first & 0x80 != 0, opcode: first & 0x0f, payload })
    }
}

/// Returns the value of `Sec-WebSocket-Accept` for a key (RFC 6455, section 4.2.2).
fn accept_value(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// The time limit for what the server sends at once.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Accepts a connection and upgrades it with an answer to that key, or to the key of the client. Sends `frame` at the same
    /// time.
    async fn upgrade(listener: &TcpListener, key: Option<&str>, frame: &[u8]) -> TcpStream {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let count = socket.read(&mut request).await.unwrap();
        let request = String::from_utf8_lossy(&request[..count]).into_owned();
        let sent_key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = accept_value(key.unwrap_or(sent_key));
        let mut answer = format!("HTTP/1.1 101 x\r\nSec-WebSocket-Accept: {accept}\r\n\r\n").into_bytes();
        answer.extend_from_slice(frame);
        socket.write_all(&answer).await.unwrap();
        socket
    }

    async fn open(listener: &TcpListener) -> Result<WebSocket, ProbeError> {
        let url = format!("ws://{}/ws", listener.local_addr().unwrap()).parse().unwrap();
        WebSocket::open(&url, &[], LIMIT, Arc::default()).await
    }

    #[tokio::test]
    async fn partial_message_survives_a_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut server, client) = tokio::join!(upgrade(&listener, None, b"\x01\x02[1"), open(&listener));
        let mut client = client.unwrap();
        assert_eq!(client.next_message(Duration::from_millis(100)).await, Ok(None));
        server.write_all(b"\x80\x02,2").await.unwrap();
        server.write_all(b"\x81\x01]").await.unwrap();
        assert_eq!(client.next_message(LIMIT).await, Ok(Some(SocketMessage::Text("[1,2".to_owned()))));
        assert_eq!(client.next_message(LIMIT).await, Ok(Some(SocketMessage::Text("]".to_owned()))));
    }

    #[tokio::test]
    async fn answer_to_another_key_is_invalid() {
        // The example of RFC 6455, section 1.3.
        assert_eq!(accept_value("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_server, client) = tokio::join!(upgrade(&listener, Some("another"), b""), open(&listener));
        assert!(matches!(client.map(drop), Err(ProbeError::InvalidData(_))));
    }
}
