//! One request with its answer, for servers that may be hostile: time and size are limited.

use std::time::Duration;

use actix_rt::time::timeout;
use awc::{
    SendClientRequest,
    error::{ConnectError, SendRequestError},
    http::header::HeaderMap,
};

/// The most bytes of an answer.
const MAX_ANSWER_LEN: usize = 256 * 1024;
/// The time limit of a request with its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A complete answer.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// The reason why there is no complete answer.
#[derive(Debug)]
pub enum ExchangeError {
    Unreachable {
        reason: String,
        /// `true` if not a byte of the request was sent.
        is_unsent: bool,
    },
    /// The answer is too long or breaks off.
    Unreadable(String),
}

/// Sends a request and reads its answer. No redirect is followed, if the client of the request is one of this crate.
///
/// # Errors
/// Returns why there is no complete answer.
pub async fn exchange(request: SendClientRequest) -> Result<Answer, ExchangeError> {
    let exchange = async {
        let mut answer = request.await.map_err(|error| ExchangeError::Unreachable {
            // The connection may end after the request was written to it.
            is_unsent: match &error {
                SendRequestError::Connect(error) => !matches!(error, ConnectError::Disconnected),
                SendRequestError::Url(_) => true,
                _ => false,
            },
            reason: error.to_string(),
        })?;
        let body = answer.body().limit(MAX_ANSWER_LEN).await;
        let body = body.map_err(|error| ExchangeError::Unreadable(format!("the answer cannot be read: {error}")))?;
        Ok(Answer { status: answer.status().as_u16(), headers: answer.headers().clone(), body: body.to_vec() })
    };
    timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| {
        let reason = format!("no answer within {} s", TIMEOUT.as_secs());
        Err(ExchangeError::Unreachable { reason, is_unsent: false })
    })
}
