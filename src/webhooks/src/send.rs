//! Makes one delivery attempt: sends a signed POST and interprets the answer. Redirects are not followed, and the body of
//! an answer is used only to describe errors.
//!
//! Only the operator chooses the address, never an event, an agent or a receiver. Addresses in the local network are
//! therefore allowed, and redirects are refused. The text of an answer is truncated to 200 characters.

use std::{sync::Arc, time::Duration};

use awc::http::{
    StatusCode, Uri,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout_at};

use super::fence;
use countersign_config::WebhookConfig;
use countersign_domain::{
    changes::{digest::hex, visible::escape_hidden},
    text::truncate,
    webhooks::sign,
};
use countersign_net::{self as net, tls};
use countersign_protocol::redact::redact;
use countersign_store::Nodes;

/// The maximum number of bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 8 << 10;
/// The maximum number of characters of an answer in an error text.
const MAX_ERROR_CHARS: usize = 200;

/// The outcome of an attempt: the status of the answer, or the failure.
pub type AttemptOutcome = Result<u16, FailedAttempt>;

/// A failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// A description for people, on one line.
    pub error: String,
    /// The pause that the receiver requests.
    pub retry_after: Option<Duration>,
    /// The receiver wants no more deliveries (410).
    pub is_gone: bool,
}

/// The id of a delivery in all its attempts: the event's key and a part of the hash of its content, since a store that was
/// restored from a backup reuses event numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryId {
    /// The event's number in the feed, if it is about a change.
    pub seq: Option<u64>,
    pub kind: String,
    header_value: String,
}

impl DeliveryId {
    pub fn new(key: &str, seq: Option<u64>, kind: &str, event: &str) -> Self {
        let hash = hex(&Sha256::digest(event.as_bytes()));
        let hash: String = hash.chars().take(16).collect();
        Self { seq, kind: kind.to_owned(), header_value: format!("evt_{key}_{hash}") }
    }
}

/// Sends deliveries. Belongs to one thread.
#[derive(Clone)]
pub struct DeliverySender {
    client: awc::Client,
    /// The source of the store's time, which all nodes share: receivers refuse timestamps older than a few minutes.
    nodes: Arc<dyn Nodes>,
}

impl DeliverySender {
    /// Creates a sender that works on any node.
    pub fn for_any_node(nodes: Arc<dyn Nodes>) -> Self {
        Self { client: net::client(tls::public_config()), nodes }
    }

    /// Creates a sender that works only while this node is the leader.
    pub fn for_leader(nodes: Arc<dyn Nodes>) -> Self {
        Self { client: fence::client(Arc::clone(&nodes)), nodes }
    }

    /// Returns the store's time.
    pub fn now(&self) -> Timestamp {
        self.nodes.now()
    }

    /// Makes one attempt within the webhook's `timeout`. The status of the answer decides, even if its body does not end in time.
    pub async fn send(&self, webhook: &WebhookConfig, id: &DeliveryId, body: Bytes) -> AttemptOutcome {
        let deadline = Instant::now() + webhook.timeout;
        let uri = webhook.url.0.as_str().parse::<Uri>();
        let uri = uri.map_err(|_| failed_attempt("the url is not an http or https URL"))?;
        let timestamp = self.now().as_second();
        let mut request = self
            .client
            .post(&uri)
            .insert_header((USER_AGENT, net::USER_AGENT))
            .insert_header((CONTENT_TYPE, webhook.format.content_type()))
            .insert_header(("webhook-id", id.header_value.as_str()))
            .insert_header(("webhook-timestamp", timestamp.to_string()))
            .insert_header(("countersign-event", id.kind.as_str()));
        if let Some(seq) = id.seq {
            request = request.insert_header(("countersign-seq", seq.to_string()));
        }
        if !webhook.keys.is_empty() {
            let signature = sign::signature(&webhook.keys, &id.header_value, timestamp, &body);
            request = request.insert_header(("webhook-signature", signature));
        }
        // The text of an error contains at most the host, which is not secret.
        let sending = timeout_at(deadline, request.send_body(body)).await;
        let sending =
            sending.map_err(|_| failed_attempt(&format!("no answer within {}s", webhook.timeout.as_secs_f32())))?;
        let mut response = sending.map_err(|error| failed_attempt(&net::describe_send_error(&error)))?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| parse_retry_after(value, self.now()));
        // The body is read so that the connection can be reused, and to describe a failure.
        let body = timeout_at(deadline, response.body().limit(MAX_ANSWER_BYTES)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        if status.is_success() {
            return Ok(status.as_u16());
        }
        Err(FailedAttempt {
            status: Some(status.as_u16()),
            error: describe_failure(status, &body),
            retry_after,
            is_gone: status == StatusCode::GONE,
        })
    }
}

fn failed_attempt(error: &str) -> FailedAttempt {
    FailedAttempt { error: single_line(error), ..FailedAttempt::default() }
}

fn describe_failure(status: StatusCode, body: &[u8]) -> String {
    let redirects = "; redirects are not followed, so configure the address that it redirects to";
    let hint = if status.is_redirection() { redirects } else { "" };
    match single_line(&String::from_utf8_lossy(body)) {
        text if text.is_empty() => format!("answered {status}{hint}"),
        text => format!("answered {status}{hint}: {text}"),
    }
}

/// Reduces a foreign text to one short line without control characters and secrets.
fn single_line(text: &str) -> String {
    let text = escape_hidden(text.trim()).replace(['\n', '\t'], " ");
    truncate(&redact(&text), MAX_ERROR_CHARS).to_owned()
}

/// Parses `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3).
fn parse_retry_after(value: &HeaderValue, now: Timestamp) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Duration::try_from(at.duration_since(now)).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::*;
    use crate::testing::FakeNodes;

    /// Sends a delivery to a receiver whose answer begins like this and does not end.
    async fn send_to_slow_receiver(answer: &'static str) -> AttemptOutcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = WebhookConfig::sample("hook");
        config.url.0 = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        config.timeout = Duration::from_secs(3);
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 4096]);
            stream.write_all(answer.as_bytes()).unwrap();
            // Open until the other side disconnects.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let sender = DeliverySender::for_any_node(Arc::new(FakeNodes::default()));
        sender.send(&config, &DeliveryId::new("1", None, "webhook.test", "{}"), Bytes::new()).await
    }

    #[actix::test]
    async fn status_decides_although_the_body_does_not_end() {
        let (delivered, gone, busy) = tokio::join!(
            send_to_slow_receiver("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nslow"),
            send_to_slow_receiver("HTTP/1.1 410 Gone\r\ncontent-length: 9\r\n\r\nslow"),
            send_to_slow_receiver("HTTP/1.1 429 Busy\r\nretry-after: 60\r\ntransfer-encoding: chunked\r\n\r\n"),
        );
        assert_eq!(delivered, Ok(200));
        let (gone, busy) = (gone.unwrap_err(), busy.unwrap_err());
        assert_eq!((gone.status, gone.is_gone), (Some(410), true));
        assert_eq!((busy.status, busy.retry_after), (Some(429), Some(Duration::from_secs(60))));
    }

    #[test]
    fn id_is_stable_per_event_and_has_no_dot() {
        let id = |seq: u64, event| DeliveryId::new(&seq.to_string(), Some(seq), "change.created", event).header_value;
        assert_eq!(id(7, "{}"), id(7, "{}"));
        assert_ne!(id(7, "{}"), id(7, "{ }"));
        assert!(id(7, "{}").starts_with("evt_7_") && !id(7, "{}").contains('.'));
    }

    #[test]
    fn retry_after_accepts_seconds_and_dates() {
        let now = "2015-10-21T07:27:00Z".parse().unwrap();
        let parsed = |text: &'static str| parse_retry_after(&HeaderValue::from_static(text), now);
        assert_eq!(parsed("120"), Some(Duration::from_secs(120)));
        assert_eq!(parsed("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(parsed("Wed, 21 Oct 2015 07:26:00 GMT"), None, "the time is in the past");
        for bad in ["", "-1", "soon", "1.5", "99999999999"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn answer_text_is_reduced_to_one_line() {
        let failure = describe_failure(StatusCode::BAD_REQUEST, "invalid\n\u{1b}[2Jblocks".as_bytes());
        assert_eq!(failure, "answered 400 Bad Request: invalid \\u{1b}[2Jblocks");
        assert!(describe_failure(StatusCode::FOUND, b"").contains("not followed"));
        assert!(describe_failure(StatusCode::BAD_GATEWAY, &[b'x'; 9000]).len() < 300);
    }
}
