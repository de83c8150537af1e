//! Sends a request to a server that may be hostile, with limits on the time and on the size of the response.

use std::time::Duration;

use actix_rt::time::timeout;
use awc::{
    ClientRequest,
    body::None as NoBody,
    error::{ConnectError, SendRequestError},
    http::header::HeaderMap,
};

use super::client::describe_send_error;

/// The maximum number of bytes of a response body.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// The time limit for the whole exchange, including the connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A complete response.
pub struct BoundedResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// The reason why there is no complete response.
#[derive(Debug)]
pub enum BoundedRequestError {
    /// The server was not reached, or did not answer completely in time.
    NoResponse {
        reason: String,
        /// `true` if certainly no byte of the request was sent. After a timeout, that is never certain.
        is_unsent: bool,
    },
    /// The response is too long or breaks off.
    Unreadable(String),
}

/// Sends a request and reads the response. Requests of this crate's clients follow no redirects. The connection is closed
/// afterwards, because a request for tokens is not sent again and must not meet an idle connection that the server is closing.
///
/// # Errors
/// Returns why there is no complete response.
pub async fn send_bounded(
    request: ClientRequest,
    body: Option<String>,
) -> Result<BoundedResponse, BoundedRequestError> {
    let request = request.force_close();
    let response = async {
        let sending = match body {
            Some(body) => request.send_body(body),
            None => request.send_body(NoBody::new()),
        };
        let mut response = sending.await.map_err(|error| BoundedRequestError::NoResponse {
            // The connection may end after the request was written to it.
            is_unsent: match &error {
                SendRequestError::Connect(error) => !matches!(error, ConnectError::Disconnected),
                SendRequestError::Url(_) => true,
                _ => false,
            },
            reason: describe_send_error(&error),
        })?;
        let body = response
            .body()
            .limit(MAX_BODY_BYTES)
            .await
            .map_err(|error| BoundedRequestError::Unreadable(format!("the answer cannot be read: {error}")))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(BoundedResponse { status, headers, body: body.to_vec() })
    };
    timeout(TIMEOUT, response).await.unwrap_or_else(|_| {
        let reason = format!("no complete answer within {} s", TIMEOUT.as_secs());
        Err(BoundedRequestError::NoResponse { reason, is_unsent: false })
    })
}
