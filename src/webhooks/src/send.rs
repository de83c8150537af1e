//! One attempt: a signed POST, and what its answer means. Redirects are not followed, and an answer's body is only
//! looked at to say what was wrong.
//!
//! Where it goes is the operator's word alone: no event, agent or receiver has a say in an address, so addresses within
//! the own network are as good as others, and an answer that leads elsewhere leads nowhere. What an answer says is cut to
//! 200 characters before a viewer can read it.

use std::{sync::Arc, time::Duration};

use awc::http::{
    StatusCode, Uri,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::fence;
use countersign_config::WebhookConfig;
use countersign_domain::{
    changes::{digest::hex, visible::visible},
    webhooks::sign,
};
use countersign_net::{self as net, tls};
use countersign_protocol::redact::redacted;
use countersign_store::Nodes;

/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 8 << 10;
/// Characters of it that are told.
const MAX_TOLD: usize = 200;

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    Delivered(u16),
    Failed(Failed),
}

/// An attempt that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// None where there was no answer.
    pub status: Option<u16>,
    /// For people, on one line.
    pub error: String,
    /// How long the receiver wants to be left alone.
    pub retry_after: Option<Duration>,
    /// The receiver wants no more of this (410).
    pub gone: bool,
}

/// What a delivery is known by, however often it is sent: its event's key, and some of the hash of what it says, since a
/// store that was restored from a backup counts on from an older number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    /// Its number in the feed, of an event of a change.
    pub seq: Option<u64>,
    pub kind: String,
    text: String,
}

impl Id {
    #[must_use]
    pub fn new(key: &str, seq: Option<u64>, kind: &str, event: &str) -> Self {
        let hash = hex(&Sha256::digest(event.as_bytes()));
        let hash: String = hash.chars().take(16).collect();
        Self { seq, kind: kind.to_owned(), text: format!("evt_{key}_{hash}") }
    }
}

/// Sends deliveries; belongs to one thread.
#[derive(Clone)]
pub struct Sender {
    client: awc::Client,
    /// Receivers refuse what is older than a few minutes: the time is that of the store, as all nodes have it.
    nodes: Arc<dyn Nodes>,
}

impl Sender {
    /// Sends whether this node leads or not.
    #[must_use]
    pub fn always(nodes: Arc<dyn Nodes>) -> Self {
        Self { client: net::client(tls::public_config()), nodes }
    }

    /// Sends only as long as this node leads.
    #[must_use]
    pub fn leading(nodes: Arc<dyn Nodes>) -> Self {
        let client = net::client_over(fence::connector(Arc::clone(&nodes)), tls::public_config());
        Self { client, nodes }
    }

    /// The time that it is by the store.
    pub fn now(&self) -> Timestamp {
        self.nodes.now()
    }

    /// One attempt, within the webhook's `timeout`.
    pub async fn send(&self, webhook: &WebhookConfig, id: &Id, body: Bytes) -> AttemptOutcome {
        let attempt = self.attempt(webhook, id, body);
        match tokio::time::timeout(webhook.timeout, attempt).await {
            Ok(outcome) => outcome,
            Err(_) => failed(format!("no answer within {}s", webhook.timeout.as_secs_f32())),
        }
    }

    async fn attempt(&self, webhook: &WebhookConfig, id: &Id, body: Bytes) -> AttemptOutcome {
        let Ok(uri) = webhook.url.0.as_str().parse::<Uri>() else {
            return failed("the url is not an http or https URL".into());
        };
        let at = self.now().as_second();
        let mut request = self
            .client
            .post(&uri)
            .insert_header((USER_AGENT, net::USER_AGENT))
            .insert_header((CONTENT_TYPE, webhook.format.content_type()))
            .insert_header(("webhook-id", id.text.as_str()))
            .insert_header(("webhook-timestamp", at.to_string()))
            .insert_header(("countersign-event", id.kind.as_str()));
        if let Some(seq) = id.seq {
            request = request.insert_header(("countersign-seq", seq.to_string()));
        }
        if !webhook.keys.is_empty() {
            let signature = sign::signature(&webhook.keys, &id.text, at, &body);
            request = request.insert_header(("webhook-signature", signature));
        }
        let mut response = match request.send_body(body).await {
            Ok(response) => response,
            // Its text names the host at most, which is no secret.
            Err(error) => return failed(error.to_string()),
        };
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| wanted(value, self.now()));
        // Read to its end, so that the connection can be used again; what is no success says why.
        let told = response.body().limit(MAX_ANSWER).await.unwrap_or_default();
        if status.is_success() {
            return AttemptOutcome::Delivered(status.as_u16());
        }
        AttemptOutcome::Failed(Failed {
            status: Some(status.as_u16()),
            error: why(status, &told),
            retry_after,
            gone: status == StatusCode::GONE,
        })
    }
}

fn failed(error: String) -> AttemptOutcome {
    AttemptOutcome::Failed(Failed { error: line(&error), ..Failed::default() })
}

fn why(status: StatusCode, told: &[u8]) -> String {
    let what = match status.as_u16() {
        300..=399 => format!("answered {status}; redirects are not followed, write the address that it leads to"),
        _ => format!("answered {status}"),
    };
    match line(&String::from_utf8_lossy(told)) {
        told if told.is_empty() => what,
        told => format!("{what}: {told}"),
    }
}

/// Somebody else's text, on one line and cut.
fn line(text: &str) -> String {
    let text = visible(text.trim()).replace(['\n', '\t'], " ");
    redacted(&text).chars().take(MAX_TOLD).collect()
}

/// `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3).
fn wanted(value: &HeaderValue, now: Timestamp) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Duration::try_from(at.duration_since(now)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_for_the_same_event_and_has_no_full_stop() {
        let id = |seq: u64, event| Id::new(&seq.to_string(), Some(seq), "change.created", event).text;
        assert_eq!(id(7, "{}"), id(7, "{}"));
        assert_ne!(id(7, "{}"), id(7, "{ }"));
        assert!(id(7, "{}").starts_with("evt_7_") && !id(7, "{}").contains('.'));
    }

    #[test]
    fn a_receiver_may_ask_for_a_pause_in_seconds_or_until_a_date() {
        let now = "2015-10-21T07:27:00Z".parse().unwrap();
        let wanted = |text: &'static str| wanted(&HeaderValue::from_static(text), now);
        assert_eq!(wanted("120"), Some(Duration::from_secs(120)));
        assert_eq!(wanted("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(wanted("Wed, 21 Oct 2015 07:26:00 GMT"), None, "it is over");
        for bad in ["", "-1", "soon", "1.5", "99999999999"] {
            assert_eq!(wanted(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_an_answer_says_stays_on_its_line() {
        let told = why(StatusCode::BAD_REQUEST, "invalid\n\u{1b}[2Jblocks".as_bytes());
        assert_eq!(told, "answered 400 Bad Request: invalid \\u{1b}[2Jblocks");
        assert!(why(StatusCode::FOUND, b"").contains("not followed"));
        assert!(why(StatusCode::BAD_GATEWAY, &[b'x'; 9000]).len() < 300);
    }
}
