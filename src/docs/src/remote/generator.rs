//! Generates answers (`POST /chat/completions`).

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{error::RemoteError, http::HttpSender};
use countersign_config::ModelEndpoint;

/// The maximum number of bytes of a response.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// The maximum number of tokens of an answer.
pub(crate) const MAX_ANSWER_TOKENS: u32 = 1024;

/// A client of one generating model.
pub(crate) struct Generator {
    model: String,
    sender: HttpSender,
}

impl Generator {
    /// Creates a client of the configured model.
    pub fn new(endpoint: &ModelEndpoint) -> Self {
        Self { model: endpoint.model.clone(), sender: HttpSender::new(endpoint, "/chat/completions") }
    }

    /// Returns the model's answer to a prompt.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub async fn answer(&self, system: &str, user: &str, cancel: &CancellationToken) -> Result<String, RemoteError> {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "system", "content": system }, { "role": "user", "content": user }],
            "max_tokens": MAX_ANSWER_TOKENS,
            "temperature": 0,
            "stream": false,
        });
        tokio::select! {
            answer = self.sender.post(Bytes::from(body.to_string()), MAX_RESPONSE_BYTES) => answer.and_then(|answer| parse_response(&answer)),
            () = cancel.cancelled() => Err(RemoteError::Cancelled),
        }
    }
}

fn parse_response(answer: &[u8]) -> Result<String, RemoteError> {
    let answer: Value =
        serde_json::from_slice(answer).map_err(|error| RemoteError::invalid_response(error.to_string()))?;
    match answer.pointer("/choices/0/message/content").and_then(Value::as_str) {
        Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(RemoteError::invalid_response("it has no text at choices[0].message.content")),
    }
}
