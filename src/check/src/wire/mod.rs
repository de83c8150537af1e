//! Bytes to a server and back, over stdio, HTTP or WebSocket. Nothing here knows what a message means, beyond what HTTP puts
//! into headers, and none of it is shared with the gateway: what is checked by it may be the gateway itself.

mod budget;
mod http;
mod net;
mod stdio;
mod websocket;

use std::{sync::Arc, time::Duration};

use serde_json::Value;

pub(crate) use budget::{Budget, MAX_WEIGHT, weight};

pub(crate) use http::{Answer, Http};
pub(crate) use stdio::Stdio;
pub(crate) use websocket::{Frame, WebSocket};

use crate::{Target, redact::Redactor};

/// Bytes of a message or body that are read.
pub(crate) const MAX_MESSAGE_BYTES: usize = 5 << 20;
/// Bytes of the head of an HTTP answer that are read.
pub(crate) const MAX_HEAD_BYTES: usize = 256 << 10;

/// Why nothing more comes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it has closed the connection")]
    Closed,
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("what it says is not of this transport: {0}")]
    InvalidData(String),
    /// Only answers came that have another id than any request.
    #[error("the request with the id {sent} has no answer, but one came with the id {id}")]
    WrongId { sent: String, id: String, received: String },
    /// Within the time or the bytes that the whole run has.
    #[error("the run was ended: {0}")]
    RunEnded(String),
}

impl ProbeError {
    /// The same without the secrets that the server was given.
    pub(crate) fn redact(self, redactor: &Redactor) -> Self {
        let redact = |text: String| redactor.redact(&text).into_owned();
        match self {
            Self::Unreachable(why) => Self::Unreachable(redact(why)),
            Self::InvalidData(why) => Self::InvalidData(redact(why)),
            other => other,
        }
    }
}

/// One message that came, or an HTTP answer without any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedMessage {
    pub text: String,
    /// Of its HTTP answer.
    pub status: Option<u16>,
}

impl ReceivedMessage {
    pub fn json(&self) -> Option<Value> {
        parse(&self.text)
    }
}

/// Returns what a text says, unless it is no JSON, or more of it than is taken from a server.
pub(crate) fn parse(text: &str) -> Option<Value> {
    if weight(text) > MAX_WEIGHT {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// A connection.
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
                Self::WebSocket(Box::new(WebSocket::open(url, headers, &["mcp"], limit, budget).await?))
            }
        })
    }

    /// Sends one message as it is. Over HTTP this waits for the answer, which [`Wire::receive`] gives.
    pub async fn send(&mut self, text: &[u8]) -> Result<(), ProbeError> {
        match self {
            Self::Stdio(wire) => wire.line(text).await,
            Self::Http(wire) => wire.send(text).await,
            Self::WebSocket(wire) => wire.text(text).await,
        }
    }

    /// The next message; none where nothing comes in that time.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let received = match self {
            Self::Stdio(wire) => wire.receive(limit).await?,
            Self::Http(wire) => wire.receive(),
            Self::WebSocket(wire) => wire.receive(limit).await?,
        };
        match received {
            Some(received) if weight(&received.text) > MAX_WEIGHT => {
                Err(ProbeError::InvalidData("a message with more values than are read of one".to_owned()))
            }
            received => Ok(received),
        }
    }
}
