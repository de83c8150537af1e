//! Posts JSON and returns JSON. Redirects are not followed, because they would carry the key elsewhere.
//!
//! The HTTP client runs on its own thread, so that callers may be on any thread.

use std::time::Duration;

use actix::Arbiter;
use awc::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::error::RemoteError;
use countersign_config::{ModelEndpoint, Secret};
use countersign_net::{self as net, tls};
use countersign_runtime::background;

/// The maximum number of requests that wait for the thread.
const QUEUE_LENGTH: usize = 64;
/// The maximum number of bytes of an error response that are read.
const MAX_ERROR_BODY_BYTES: usize = 8 << 10;
/// The pause before the second attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A request for the thread.
struct PostJob {
    body: Bytes,
    max_bytes: usize,
    reply: oneshot::Sender<Result<Bytes, RemoteError>>,
}

/// Sends requests to one URL.
pub(super) struct HttpSender {
    jobs: mpsc::Sender<PostJob>,
    timeout: Duration,
    thread: Arbiter,
}

impl Drop for HttpSender {
    fn drop(&mut self) {
        self.thread.stop();
    }
}

impl HttpSender {
    /// Creates a sender; `path` is appended to the endpoint's own.
    pub fn new(endpoint: &ModelEndpoint, path: &str) -> Self {
        let (jobs, mut job_receiver) = mpsc::channel::<PostJob>(QUEUE_LENGTH);
        let url = format!("{}{path}", endpoint.url);
        let (key, timeout) = (endpoint.key.clone(), endpoint.timeout);
        let thread = Arbiter::new();
        // The client is created on the thread that it belongs to.
        thread.spawn_fn(move || {
            background::spawn(async move {
                let client = net::client(tls::public_config());
                while let Some(job) = job_receiver.recv().await {
                    let (client, url, key) = (client.clone(), url.clone(), key.clone());
                    background::spawn(async move {
                        let PostJob { body, max_bytes, mut reply } = job;
                        let answer = tokio::select! {
                            answer = tokio::time::timeout(timeout, send(&client, &url, key.as_ref(), body, max_bytes)) => {
                                answer.unwrap_or(Err(RemoteError::TimedOut(timeout)))
                            }
                            // The caller has stopped waiting.
                            () = reply.closed() => return,
                        };
                        let _ = reply.send(answer);
                    });
                }
            });
        });
        Self { jobs, timeout, thread }
    }

    /// Posts the body, and once more after a transient error: an idle connection may have been closed. Each attempt has
    /// the endpoint's timeout. Reads up to `max_bytes`. Dropping the future cancels the request.
    pub async fn post(&self, body: Bytes, max_bytes: usize) -> Result<Bytes, RemoteError> {
        match self.post_once(body.clone(), max_bytes).await {
            Err(error) if error.is_transient() => {
                tokio::time::sleep(RETRY_PAUSE).await;
                self.post_once(body, max_bytes).await
            }
            outcome => outcome,
        }
    }

    async fn post_once(&self, body: Bytes, max_bytes: usize) -> Result<Bytes, RemoteError> {
        let (reply, answer) = oneshot::channel();
        let job = PostJob { body, max_bytes, reply };
        let sent = tokio::time::timeout(self.timeout, self.jobs.send(job)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return Err(RemoteError::Overloaded);
        }
        answer.await.unwrap_or(Err(RemoteError::Stopping))
    }
}

/// Sends one request and reads its response.
async fn send(
    client: &awc::Client,
    url: &str,
    key: Option<&Secret>,
    body: Bytes,
    max_bytes: usize,
) -> Result<Bytes, RemoteError> {
    let mut request =
        client.post(url).insert_header((USER_AGENT, net::USER_AGENT)).insert_header((CONTENT_TYPE, "application/json"));
    if let Some(Secret(key)) = key {
        let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {key}")) else {
            return Err(RemoteError::InvalidKey);
        };
        value.set_sensitive(true);
        request = request.insert_header((AUTHORIZATION, value));
    }
    // The error's text names at most the host, which is not secret.
    let sending = request.send_body(body).await;
    let mut response = sending.map_err(|error| RemoteError::Unreachable(net::describe_send_error(&error)))?;
    let status = response.status();
    if !status.is_success() {
        let error_body = response.body().limit(MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
        return Err(RemoteError::status(status.as_u16(), &error_body));
    }
    response.body().limit(max_bytes).await.map_err(|error| match error {
        awc::error::PayloadError::Overflow => RemoteError::TooLong(max_bytes),
        other => RemoteError::Unreachable(other.to_string()),
    })
}
