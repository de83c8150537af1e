//! The gateway's subscriptions at one upstream: changes of its lists, and of the resources that clients watch.
//!
//! Handshake-era servers announce list changes unasked and need a subscription for each resource. Stateless ones send
//! everything on the stream of one `subscriptions/listen`, which is replaced when the set of resources changes
//! (2026-07-28/basic/patterns/subscriptions).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{ListKinds, ServerFeatures},
    credentials::AuthorizationFailure,
    link::{LinkError, Listener, OutgoingRequest, Response, UpstreamNotification},
    server::{
        Upstream,
        connection::UpstreamConnection,
        gateway_requests::{GatewayRequestError, add_gateway_meta},
    },
};
use countersign_net::Backoff;
use countersign_protocol::{Era, ErrorKind, McpError};
use countersign_provider::request::UpstreamRequest;

/// The pauses before a stream that ended is opened again, and before a subscription that failed is requested again.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The time limit for a server to acknowledge a new stream before the old one is closed.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream that ends sooner counts as a failure, so that the next one is opened after a longer pause.
const MIN_STREAM_TIME: Duration = Duration::from_secs(5);

impl Upstream {
    /// Adds a watch of a resource, by the upstream's own URI. The watch is counted at once, and the future resolves
    /// when the upstream has confirmed it or a time limit is reached.
    ///
    /// # Errors
    /// Those of [`Self::check_subscribable`]. The watch is counted in this case too.
    pub fn watch_resource(&self, uri: &str) -> impl Future<Output = Result<(), McpError>> + Send + 'static + use<> {
        self.resource_watches.add(uri);
        let mut confirmed = self.resource_watches.confirmed.subscribe();
        let checked = self.check_subscribable();
        let uri = uri.to_owned();
        let limit = self.config.timeout.min(ACKNOWLEDGEMENT_TIMEOUT);
        async move {
            checked?;
            let _ = tokio::time::timeout(limit, confirmed.wait_for(|uris| uris.contains(&uri))).await;
            Ok(())
        }
    }

    /// Removes a watch. The upstream is notified after the last watch of the resource.
    pub fn unwatch_resource(&self, uri: &str) {
        self.resource_watches.remove(uri);
    }

    /// Checks that the server announces changed resources, which is assumed until it was reached. Resources of persons
    /// are not watched, because an update must reach nobody else.
    ///
    /// # Errors
    /// `INVALID_REQUEST`
    pub fn check_subscribable(&self) -> Result<(), McpError> {
        let announces_changes =
            || self.negotiated().is_none_or(|negotiated| ServerFeatures::from_negotiated(&negotiated).subscribe);
        let message = if self.has_personal_accounts() {
            "the resources of this server cannot be subscribed to, because each person uses an account of their own there"
        } else if announces_changes() {
            return Ok(());
        } else {
            "this server does not announce changes of its resources"
        };
        Err(McpError::new(ErrorKind::InvalidRequest, message).with("upstream", self.config.name.as_str()))
    }
}

/// Maintains the subscriptions on one connection until `cancelled`.
pub(crate) async fn run(upstream: Arc<Upstream>, connection: Arc<UpstreamConnection>, cancelled: CancellationToken) {
    connection.calls.mark_subscribed();
    let work = async {
        match connection.era {
            Era::Legacy => subscribe(&upstream, &connection).await,
            Era::Modern => listen(&upstream, &connection).await,
        }
    };
    tokio::select! {
        () = work => cancelled.cancelled().await,
        () = cancelled.cancelled() => {}
    }
    upstream.resource_watches.confirmed.send_replace(BTreeSet::new());
}

/// Sends `resources/subscribe` and `resources/unsubscribe` whenever the set of resources has changed.
async fn subscribe(upstream: &Upstream, connection: &UpstreamConnection) {
    if !connection.features.subscribe {
        return;
    }
    let mut version = upstream.resource_watches.version.subscribe();
    let mut subscribed = BTreeSet::new();
    // A refused resource is not requested again on this connection, unless it was unwatched meanwhile.
    let mut refused = BTreeSet::new();
    let mut failures = 0_u32;
    loop {
        version.mark_unchanged();
        let mut has_failed = false;
        let wanted_uris = upstream.resource_watches.uris();
        refused.retain(|uri| wanted_uris.contains(uri));
        let added_uris: Vec<_> =
            wanted_uris.difference(&subscribed).filter(|uri| !refused.contains(*uri)).cloned().collect();
        let removed_uris: Vec<_> = subscribed.difference(&wanted_uris).cloned().collect();
        for (method, uris) in [("resources/subscribe", &added_uris), ("resources/unsubscribe", &removed_uris)] {
            for uri in uris {
                let answer =
                    upstream.send_gateway_request(connection, method, &json!({ "uri": uri }).to_string()).await;
                if let Err(error) = &answer {
                    tracing::info!(upstream = %upstream.config.name, method, %error, "a subscription at the upstream could not be changed");
                }
                match (method, answer) {
                    ("resources/subscribe", Ok(_)) => drop(subscribed.insert(uri.clone())),
                    ("resources/subscribe", Err(error)) if may_succeed_later(&error) => has_failed = true,
                    ("resources/subscribe", Err(_)) => drop(refused.insert(uri.clone())),
                    _ => drop(subscribed.remove(uri)),
                }
            }
        }
        // Refused resources count as confirmed, because nobody needs to wait for them.
        upstream.resource_watches.confirmed.send_replace(subscribed.union(&refused).cloned().collect());
        failures = if has_failed { failures.saturating_add(1) } else { 0 };
        let retry = async {
            match failures {
                0 => std::future::pending().await,
                failures => tokio::time::sleep(BACKOFF.pause(failures - 1)).await,
            }
        };
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = retry => {}
        }
    }
}

/// Keeps one stream of `subscriptions/listen` open, and two while a new one replaces it.
async fn listen(upstream: &Arc<Upstream>, connection: &Arc<UpstreamConnection>) {
    let mut version = upstream.resource_watches.version.subscribe();
    let mut current: Option<LocalBoxFuture<'_, StreamEnd>> = None;
    let mut failures = 0_u32;
    loop {
        version.mark_unchanged();
        let uris = if connection.features.subscribe { upstream.resource_watches.uris() } else { BTreeSet::new() };
        let Some(filter) = listen_filter(connection, &uris) else {
            current = None;
            upstream.resource_watches.confirmed.send_replace(BTreeSet::new());
            if version.changed().await.is_err() {
                return;
            }
            continue;
        };
        let acknowledged = CancellationToken::new();
        let mut next: LocalBoxFuture<'_, StreamEnd> =
            Box::pin(listen_once(Arc::clone(upstream), Arc::clone(connection), filter, acknowledged.clone()));
        let early = tokio::select! {
            biased;
            stream_end = &mut next => Some(stream_end),
            _ = tokio::time::timeout(ACKNOWLEDGEMENT_TIMEOUT, acknowledged.cancelled()) => None,
        };
        let stream_end = match early {
            Some(stream_end) => stream_end,
            None => {
                upstream.resource_watches.confirmed.send_replace(uris);
                // This drops the old stream, which was open until now.
                let (stream, opened_at) = (current.insert(next), Instant::now());
                let stream_end = tokio::select! {
                    stream_end = stream => stream_end,
                    changed = version.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                };
                if opened_at.elapsed() >= MIN_STREAM_TIME {
                    failures = 0;
                }
                stream_end
            }
        };
        current = None;
        upstream.resource_watches.confirmed.send_replace(BTreeSet::new());
        if matches!(stream_end, StreamEnd::Refused) {
            // The server has no such stream, regardless of its declaration, so its lists are read by their time to
            // live.
            return;
        }
        tokio::time::sleep(BACKOFF.pause(failures)).await;
        failures = failures.saturating_add(1);
        // Changes during the interruption were not announced.
        upstream.mark_stale(ListKinds::all());
    }
}

/// The reason why a stream ended.
enum StreamEnd {
    /// The server closed the stream, or it was lost.
    Closed,
    /// The server does not support the stream.
    Refused,
}

/// Opens one stream of `subscriptions/listen`, and returns why it ended.
async fn listen_once(
    upstream: Arc<Upstream>,
    connection: Arc<UpstreamConnection>,
    filter: Value,
    acknowledged: CancellationToken,
) -> StreamEnd {
    let params = add_gateway_meta(&json!({ "notifications": filter }).to_string());
    let outgoing = OutgoingRequest::new(upstream.next_request_id(), "subscriptions/listen", Some(&params));
    let listener = SubscriptionListener { upstream: Arc::downgrade(&upstream), acknowledged: acknowledged.clone() };
    let error = match connection.link.request(&outgoing, Arc::new(listener)).await {
        Ok(Response::Result(_)) => return StreamEnd::Closed,
        Ok(Response::Error(error)) => GatewayRequestError::Rpc(error),
        Err(error) => GatewayRequestError::Link(error),
    };
    // Over HTTP, the cancellation with which a server ends its own stream arrives as an error.
    if may_succeed_later(&error) || acknowledged.is_cancelled() {
        return StreamEnd::Closed;
    }
    tracing::info!(upstream = %upstream.config.name, %error, "the upstream refused the subscription");
    StreamEnd::Refused
}

/// Returns `true` if the server may accept the same subscription later.
const fn may_succeed_later(error: &GatewayRequestError) -> bool {
    match error {
        GatewayRequestError::Timeout => true,
        GatewayRequestError::Link(error) => match error {
            LinkError::Lost(_) | LinkError::Unreachable(_) | LinkError::SessionGone => true,
            LinkError::Status { status, .. } => *status >= 500 || *status == 429,
            LinkError::Unauthorized(failure) => matches!(failure, AuthorizationFailure::Unavailable(_)),
            LinkError::PermitExpired | LinkError::Protocol(_) => false,
        },
        GatewayRequestError::Rpc(_) | GatewayRequestError::Malformed(_) => false,
    }
}

/// Returns the filter to subscribe with; `None` if there is nothing to subscribe to.
fn listen_filter(connection: &UpstreamConnection, uris: &BTreeSet<String>) -> Option<Value> {
    let mut filter = serde_json::Map::new();
    for (name, list) in [
        ("toolsListChanged", ListKinds::TOOLS),
        ("promptsListChanged", ListKinds::PROMPTS),
        ("resourcesListChanged", ListKinds::RESOURCES),
    ] {
        if connection.features.announced.contains(list) {
            filter.insert(name.into(), true.into());
        }
    }
    if !uris.is_empty() {
        filter.insert("resourceSubscriptions".into(), uris.iter().cloned().collect());
    }
    (!filter.is_empty()).then_some(Value::Object(filter))
}

/// Receives the notifications of one stream.
struct SubscriptionListener {
    upstream: std::sync::Weak<Upstream>,
    /// Cancelled when the server acknowledges the stream.
    acknowledged: CancellationToken,
}

impl Listener for SubscriptionListener {
    fn handle_notification(&self, notification: UpstreamNotification) {
        if notification.method == "notifications/subscriptions/acknowledged" {
            self.acknowledged.cancel();
        } else if let Some(upstream) = self.upstream.upgrade()
            && !upstream.handle_notification(&notification, true)
        {
            upstream.count_unattributed(&notification.method);
        }
    }

    /// Servers of this era send no requests. Dropping a request declines it.
    fn handle_request(&self, _: UpstreamRequest) {}
}
