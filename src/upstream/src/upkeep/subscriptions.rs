//! The gateway's subscriptions at one upstream: changes of its lists, and of the resources that clients watch.
//!
//! Handshake-era servers announce list changes unasked and need a subscription for each resource. Stateless ones send
//! everything on the stream of one `subscriptions/listen`, which is replaced when the set of resources changes
//! (2026-07-28/basic/patterns/subscriptions).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{ListKinds, ServerFeatures},
    credentials::AuthorizationError,
    link::{LinkError, Listener, MIN_STREAM_TIME, UpstreamNotification},
    server::{
        Upstream,
        connection::UpstreamConnection,
        gateway_requests::{self, GatewayRequestError},
    },
};
use countersign_net::Backoff;
use countersign_protocol::{Era, ErrorKind, McpError, json::member};

/// The pauses before a stream that ended is opened again, and before a subscription that failed is requested again.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The time limit for a server to acknowledge a new stream before the old one is closed.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(10);

impl Upstream {
    /// Adds a watch of a resource, by the upstream's own URI. [`Self::wait_until_watched`] returns the upstream's
    /// answer. The watch is counted until [`Self::unwatch_resource`], even if the upstream refuses it.
    pub fn watch_resource(&self, uri: &str) {
        self.resource_watches.add(uri);
    }

    /// Waits until the upstream has accepted or refused to watch the resource, or a time limit is reached, which begins with
    /// the first watch of the resource. An answer that is known already is returned at once.
    ///
    /// # Errors
    /// Those of [`Self::check_subscribable`]; `UPSTREAM_ERROR` if the upstream refuses the subscription.
    pub fn wait_until_watched(&self, uri: &str) -> impl Future<Output = Result<(), McpError>> + Send + 'static + use<> {
        let mut answers = self.resource_watches.answers.subscribe();
        let checked = self.check_subscribable();
        let uri = uri.to_owned();
        let deadline = self.resource_watches.watched_since(&uri) + self.config.timeout.min(ACKNOWLEDGEMENT_TIMEOUT);
        let upstream = self.config.name.clone();
        async move {
            checked?;
            match tokio::time::timeout_at(deadline, answers.wait_for(|answers| answers.contains_key(&uri))).await {
                Ok(Ok(answers)) if answers.get(&uri) == Some(&false) => {
                    let message = "this server refuses to announce changes of this resource";
                    Err(McpError::new(ErrorKind::UpstreamError, message).with("upstream", upstream))
                }
                _ => Ok(()),
            }
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
    cancelled.run_until_cancelled(work).await;
    cancelled.cancelled().await;
    upstream.resource_watches.publish_answers(&BTreeSet::new(), &BTreeSet::new());
}

/// Sends `resources/subscribe` and `resources/unsubscribe` whenever the set of resources has changed.
async fn subscribe(upstream: &Upstream, connection: &UpstreamConnection) {
    if !connection.features.subscribe {
        return;
    }
    let mut changes = upstream.resource_watches.watches.subscribe();
    let mut subscribed = BTreeSet::new();
    // A refused resource is not requested again on this connection, unless it was unwatched meanwhile.
    let mut refused = BTreeSet::new();
    let mut failures = 0_u32;
    loop {
        changes.mark_unchanged();
        let mut has_failed = false;
        let wanted_uris = upstream.resource_watches.uris();
        refused.retain(|uri| wanted_uris.contains(uri));
        let added_uris: Vec<_> =
            wanted_uris.difference(&subscribed).filter(|uri| !refused.contains(*uri)).cloned().collect();
        let removed_uris: Vec<_> = subscribed.difference(&wanted_uris).cloned().collect();
        for (method, uris) in [("resources/subscribe", &added_uris), ("resources/unsubscribe", &removed_uris)] {
            for uri in uris {
                let params = json!({ "uri": uri }).to_string();
                let answer = upstream.send_gateway_request(connection, method, &params, upstream.config.timeout).await;
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
        upstream.resource_watches.publish_answers(&subscribed, &refused);
        failures = if has_failed { failures.saturating_add(1) } else { 0 };
        let retry = async {
            match failures {
                0 => std::future::pending().await,
                failures => tokio::time::sleep(BACKOFF.pause(failures - 1)).await,
            }
        };
        tokio::select! {
            _ = changes.changed() => {}
            () = retry => {}
        }
    }
}

/// Keeps one stream of `subscriptions/listen` open, and two while a new one replaces it.
async fn listen(upstream: &Arc<Upstream>, connection: &Arc<UpstreamConnection>) {
    let mut changes = upstream.resource_watches.watches.subscribe();
    let watches = &upstream.resource_watches;
    let mut current: Option<LocalBoxFuture<'_, StreamEnd>> = None;
    let mut failures = 0_u32;
    let mut accepted = BTreeSet::new();
    // A refused resource is not requested again on this connection, unless it was unwatched meanwhile.
    let mut refused = BTreeSet::new();
    loop {
        changes.mark_unchanged();
        let wanted_uris = if connection.features.subscribe { watches.uris() } else { BTreeSet::new() };
        refused.retain(|uri| wanted_uris.contains(uri));
        let mut uris: BTreeSet<String> = wanted_uris.difference(&refused).cloned().collect();
        let Some(filter) = listen_filter(connection, &uris) else {
            current = None;
            watches.publish_answers(&uris, &refused);
            let _ = changes.changed().await;
            continue;
        };
        let acknowledgement = Arc::new(Acknowledgement::default());
        let mut next: LocalBoxFuture<'_, StreamEnd> =
            Box::pin(listen_once(Arc::clone(upstream), Arc::clone(connection), filter, Arc::clone(&acknowledgement)));
        let early_end = tokio::select! {
            biased;
            stream_end = &mut next => Some(stream_end),
            _ = tokio::time::timeout(ACKNOWLEDGEMENT_TIMEOUT, acknowledgement.received.cancelled()) => None,
        };
        let stream_end = match early_end {
            Some(stream_end) => stream_end,
            None => {
                refused.extend(acknowledgement.left_out(&uris));
                uris.retain(|uri| !refused.contains(uri));
                watches.publish_answers(&uris, &refused);
                accepted.clone_from(&uris);
                // This drops the old stream, which was open until now.
                let (stream, opened_at) = (current.insert(next), Instant::now());
                let stream_end = tokio::select! {
                    stream_end = stream => stream_end,
                    _ = changes.changed() => continue,
                };
                if opened_at.elapsed() >= MIN_STREAM_TIME {
                    failures = 0;
                }
                stream_end
            }
        };
        if matches!(stream_end, StreamEnd::Refused) {
            if uris.is_empty() {
                // The server has no such stream, regardless of its declaration, so its lists are read by their time to
                // live.
                loop {
                    watches.publish_answers(&BTreeSet::new(), &watches.uris());
                    let _ = changes.changed().await;
                }
            }
            // The server refuses the resources that were added, and may accept the others.
            let has_added = uris.difference(&accepted).next().is_some();
            refused.extend(uris.into_iter().filter(|uri| !has_added || !accepted.contains(uri)));
            watches.publish_answers(&accepted, &refused);
            continue;
        }
        current = None;
        accepted.clear();
        watches.publish_answers(&accepted, &refused);
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
    acknowledgement: Arc<Acknowledgement>,
) -> StreamEnd {
    let params = json!({ "notifications": filter }).to_string();
    let is_acknowledged = acknowledgement.received.clone();
    let listener = Arc::new(SubscriptionListener { upstream: Arc::downgrade(&upstream), acknowledgement });
    let (link, era, id) = (&*connection.link, connection.era, upstream.next_request_id());
    let answer = gateway_requests::send_request(link, era, id, "subscriptions/listen", &params, listener).await;
    let Err(error) = answer else { return StreamEnd::Closed };
    if may_succeed_later(&error) || is_acknowledged.is_cancelled() {
        return StreamEnd::Closed;
    }
    if error.may_be_other_era(connection.era) {
        upstream.era_doubted.notify_one();
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
            LinkError::Unauthorized(failure) => matches!(failure, AuthorizationError::Unavailable(_)),
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

/// The server's acknowledgement of a stream.
#[derive(Default)]
struct Acknowledgement {
    /// Cancelled when the acknowledgement arrives.
    received: CancellationToken,
    /// The resources that the server announces, unless it named none.
    uris: Mutex<Option<BTreeSet<String>>>,
}

impl Acknowledgement {
    /// Returns the requested resources that the server left out. A server that names as many as requested may write them in
    /// another form.
    fn left_out(&self, requested: &BTreeSet<String>) -> BTreeSet<String> {
        match &*self.uris.lock() {
            Some(announced) if announced.len() < requested.len() => requested.difference(announced).cloned().collect(),
            _ => BTreeSet::new(),
        }
    }

    fn receive(&self, params: Option<&RawValue>) {
        let filter = params.and_then(|params| member(params.get(), "notifications"));
        *self.uris.lock() = filter.map(|filter| {
            let uris = member(filter, "resourceSubscriptions").and_then(|uris| serde_json::from_str(uris).ok());
            uris.unwrap_or_default()
        });
        self.received.cancel();
    }
}

/// Receives the notifications of one stream. Servers of this era send no requests.
struct SubscriptionListener {
    upstream: std::sync::Weak<Upstream>,
    acknowledgement: Arc<Acknowledgement>,
}

impl Listener for SubscriptionListener {
    fn handle_notification(&self, notification: UpstreamNotification) {
        if notification.method == "notifications/subscriptions/acknowledged" {
            self.acknowledgement.receive(notification.params.as_deref());
        } else if let Some(upstream) = self.upstream.upgrade()
            && !upstream.handle_notification(&notification, true)
        {
            upstream.count_unattributed(&notification.method);
        }
    }
}
