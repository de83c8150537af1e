//! Exchanges bytes with a server over stdio, HTTP or WebSocket.
//!
//! It uses no framing code of the gateway, because the gateway may be the server under test. It parses messages only to set
//! the headers of HTTP requests and to find the response in a stream.

mod budget;
mod http;
mod net;
mod stdio;
mod websocket;

use std::{sync::Arc, time::Duration};

use serde_json::Value;

pub(crate) use budget::{Budget, MAX_PARSED_BYTES, estimate_parsed_bytes};

pub(crate) use http::{Http, HttpResponse};
pub(crate) use stdio::Stdio;
pub(crate) use websocket::{SocketMessage, WebSocket};

use crate::{LEGACY_REVISIONS, MODERN_REVISION, Target, redact::Redactor};

/// Maximum number of bytes of a message or body that are read.
pub(crate) const MAX_MESSAGE_BYTES: usize = 5 << 20;
/// Maximum number of bytes of an HTTP response head that are read.
pub(crate) const MAX_HEAD_BYTES: usize = 256 << 10;

/// The reason why a request got no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it closed the connection")]
    Closed,
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The HTTP response ended, or was read up to the time limit, and has no response to the request.
    #[error("its HTTP response contains no answer to the request")]
    NoAnswer,
    /// The server did not take a message from the connection.
    #[error("it did not read the message within {0:?}")]
    NotRead(Duration),
    #[error("there is no revision {0}; there are {all}", all = all_revisions())]
    UnknownRevision(String),
    /// The status of an answer to a WebSocket upgrade, other than 101.
    #[error("it answers the upgrade with HTTP {0}")]
    UpgradeRefused(u16),
    #[error("its answer is invalid: {0}")]
    InvalidData(String),
    /// All received responses had ids that match no request. `message` is the first of them.
    #[error("the request with the id {sent_id} got no answer, but a response with the id {received_id} arrived")]
    WrongId { sent_id: String, received_id: String, message: String },
    /// The limit on time or bytes of the whole run was reached.
    #[error("the run was ended: {0}")]
    RunEnded(String),
}

fn all_revisions() -> String {
    [MODERN_REVISION].into_iter().chain(LEGACY_REVISIONS).collect::<Vec<_>>().join(", ")
}

impl ProbeError {
    /// Masks the secrets that were sent to the server.
    pub(crate) fn redact(self, redactor: &Redactor) -> Self {
        let redact = |text: String| redactor.redact(&text).into_owned();
        match self {
            Self::Unreachable(reason) => Self::Unreachable(redact(reason)),
            Self::InvalidData(reason) => Self::InvalidData(redact(reason)),
            other => other,
        }
    }
}

/// A received message, or an HTTP response without a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedMessage {
    pub text: String,
    /// The status of its HTTP response.
    pub status: Option<u16>,
}

impl ReceivedMessage {
    pub fn json(&self) -> Option<Value> {
        parse(&self.text)
    }

    /// Returns `true` for a JSON-RPC error, and for an HTTP response with an error status.
    pub fn is_refusal(&self) -> bool {
        let is_error = self.json().is_some_and(|message| message.get("error").is_some());
        is_error || self.status.is_some_and(|status| status >= 400)
    }
}

/// Parses a text, unless it is not JSON or too large.
pub(crate) fn parse(text: &str) -> Option<Value> {
    if estimate_parsed_bytes(text) > MAX_PARSED_BYTES {
        return None;
    }
    text.parse().ok()
}

/// Returns `true` if a message is a response to any request.
pub(crate) fn is_response(message: &Value) -> bool {
    message.get("method").is_none() && (message.get("result").is_some() || message.get("error").is_some())
}

/// A connection to the server.
pub(crate) enum Wire {
    Stdio(Box<Stdio>),
    Http(Box<Http>),
    WebSocket(Box<WebSocket>),
}

impl Wire {
    pub async fn open(target: &Target, limit: Duration, budget: &Arc<Budget>) -> Result<Self, ProbeError> {
        let budget = Arc::clone(budget);
        Ok(match target {
            Target::Command { program, arguments, env, cwd } => {
                Self::Stdio(Box::new(Stdio::start(program, arguments, env, cwd.as_deref(), budget).await?))
            }
            Target::Http { url, headers } => Self::Http(Box::new(Http::new(url, headers, limit, budget))),
            Target::WebSocket { url, headers } => {
                Self::WebSocket(Box::new(WebSocket::open(url, headers, limit, budget).await?))
            }
        })
    }

    /// Sends a message unchanged. Over HTTP it waits for the response, which [`Wire::receive`] returns.
    pub async fn send(&mut self, text: &[u8]) -> Result<(), ProbeError> {
        match self {
            Self::Stdio(wire) => wire.write_line(text).await,
            Self::Http(wire) => wire.send(text).await,
            Self::WebSocket(wire) => wire.send_text(text).await,
        }
    }

    /// Sends a message that the server does not answer. Over HTTP its response, usually 202, is dropped: [`Wire::receive`] would
    /// return it as the answer to another request.
    pub async fn send_unanswered(&mut self, message: &Value) -> Result<(), ProbeError> {
        match self {
            Self::Http(wire) => wire.post(message, message.to_string().as_bytes()).await.map(drop),
            _ => self.send(message.to_string().as_bytes()).await,
        }
    }

    /// Returns the error for an answer that [`Wire::receive`] did not return within the limit. Over HTTP it does not wait.
    pub fn missing_answer(&self, limit: Duration) -> ProbeError {
        match self {
            Self::Http(_) => ProbeError::NoAnswer,
            Self::Stdio(_) | Self::WebSocket(_) => ProbeError::Timeout(limit),
        }
    }

    /// Returns the next message, or `None` if none arrives within the limit.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let incoming = match self {
            Self::Stdio(wire) => wire.receive(limit).await?,
            Self::Http(wire) => wire.receive(),
            Self::WebSocket(wire) => wire.receive(limit).await?,
        };
        match incoming {
            Some(incoming) if estimate_parsed_bytes(&incoming.text) > MAX_PARSED_BYTES => {
                Err(ProbeError::InvalidData("a message exceeds the size limit".to_owned()))
            }
            incoming => Ok(incoming),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn message_with_a_method_is_not_a_response() {
        assert!(is_response(&json!({ "id": 1, "result": {} })) && is_response(&json!({ "error": {} })));
        assert!(!is_response(&json!({ "method": "x", "id": 1 })) && !is_response(&json!({ "id": 1 })));
    }

    #[tokio::test]
    async fn http_response_to_an_answer_is_dropped() {
        const STREAM: &str = "data: {\"id\":\"roots\",\"method\":\"roots/list\"}\n\ndata: {\"id\":1,\"result\":{}}\n\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let server = tokio::spawn(async move {
            for (status, body) in [(200, STREAM), (202, "")] {
                let (mut socket, _) = listener.accept().await.unwrap();
                assert!(socket.read(&mut [0; 4096]).await.unwrap() > 0);
                let head = format!(
                    "HTTP/1.1 {status} x\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                socket.write_all((head + body).as_bytes()).await.unwrap();
            }
        });
        let limit = Duration::from_secs(60);
        let target = Target::Http { url, headers: Vec::new() };
        let mut wire = Wire::open(&target, limit, &Arc::default()).await.unwrap();
        wire.send(br#"{"id":1,"method":"tools/call"}"#).await.unwrap();
        let request = wire.receive(limit).await.unwrap().and_then(|message| message.json()).unwrap();
        wire.send_unanswered(&json!({ "id": request["id"], "result": {} })).await.unwrap();
        let response = wire.receive(limit).await.unwrap().and_then(|message| message.json());
        assert_eq!(response, Some(json!({ "id": 1, "result": {} })));
        assert_eq!(wire.receive(limit).await.unwrap(), None);
        server.await.unwrap();
    }
}
