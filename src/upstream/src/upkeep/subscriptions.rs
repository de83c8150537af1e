//! What the gateway wants to be told by one upstream: changes of its lists, and of the resources that clients watch.
//!
//! Handshake-era servers tell of lists by themselves and are asked for each resource; stateless ones tell on the stream
//! of one `subscriptions/listen`, which is opened anew when the resources are others
//! (2026-07-28/basic/patterns/subscriptions).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{ListKinds, Offers},
    link::{LinkError, Listener, Outgoing, Response, UpstreamNotification},
    server::{
        Upstream,
        held::Held,
        own_requests::{AskError, stamped},
    },
};
use countersign_net::Backoff;
use countersign_protocol::{Era, ErrorKind, McpError};
use countersign_provider::request::UpstreamRequest;

/// The pauses before it listens again.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// How long a server may take to acknowledge a new stream before the old one is closed.
const ACKNOWLEDGED: Duration = Duration::from_secs(10);

impl Upstream {
    /// One more client watches the resource (the upstream's own URI). Counted at once; the future resolves when the
    /// upstream tells of its changes, or cannot be asked to just now: then it is asked when it is back.
    ///
    /// # Errors
    /// `INVALID_REQUEST` where the server has no subscriptions. It is counted all the same.
    pub fn watch_resource(&self, uri: &str) -> impl Future<Output = Result<(), McpError>> + Send + 'static + use<> {
        self.watched.add(uri);
        let mut in_force = self.watched.in_force.subscribe();
        let can = self.can_subscribe();
        let uri = uri.to_owned();
        let limit = self.config.timeout.min(ACKNOWLEDGED);
        async move {
            if !can {
                return Err(McpError::new(ErrorKind::InvalidRequest, "this server does not tell of changed resources"));
            }
            let _ = tokio::time::timeout(limit, in_force.wait_for(|uris| uris.contains(&uri))).await;
            Ok(())
        }
    }

    /// One fewer watches it; at none, the upstream is told so.
    pub fn unwatch_resource(&self, uri: &str) {
        self.watched.remove(uri);
    }

    /// Whether it tells of changed resources at all; while it was never reached, that is assumed.
    #[must_use]
    pub fn can_subscribe(&self) -> bool {
        self.negotiated().is_none_or(|negotiated| Offers::of(&negotiated).subscribe)
    }
}

/// Runs for one connection, until `over`.
pub(crate) async fn run(upstream: Arc<Upstream>, held: Arc<Held>, over: CancellationToken) {
    held.traffic.subscribes();
    let work = async {
        match held.era {
            Era::Legacy => subscribe(&upstream, &held).await,
            Era::Modern => listen(&upstream, &held).await,
        }
    };
    tokio::select! {
        () = work => over.cancelled().await,
        () = over.cancelled() => {}
    }
    upstream.watched.in_force.send_replace(BTreeSet::new());
}

/// `resources/subscribe` and `resources/unsubscribe`, whenever the set has changed.
async fn subscribe(upstream: &Upstream, held: &Held) {
    if !held.offers.subscribe {
        return;
    }
    let mut version = upstream.watched.version.subscribe();
    let mut told = BTreeSet::new();
    // What it refused is not asked for again on this connection, unless it was given up in between.
    let mut refused = BTreeSet::new();
    loop {
        version.mark_unchanged();
        let wanted = upstream.watched.uris();
        refused.retain(|uri| wanted.contains(uri));
        let new: Vec<_> = wanted.difference(&told).filter(|uri| !refused.contains(*uri)).cloned().collect();
        let old: Vec<_> = told.difference(&wanted).cloned().collect();
        for (method, uris) in [("resources/subscribe", &new), ("resources/unsubscribe", &old)] {
            for uri in uris {
                let asked = upstream.ask(held, method, &json!({ "uri": uri }).to_string()).await;
                if let Err(error) = &asked {
                    tracing::info!(upstream = %upstream.config.name, method, %error, "it does not take a subscription");
                }
                match (method, asked) {
                    ("resources/subscribe", Ok(_)) => drop(told.insert(uri.clone())),
                    ("resources/subscribe", Err(_)) => drop(refused.insert(uri.clone())),
                    _ => drop(told.remove(uri)),
                }
            }
        }
        // A refused one is as much in force as it ever will be: nobody need wait for it.
        upstream.watched.in_force.send_replace(told.union(&refused).cloned().collect());
        if version.changed().await.is_err() {
            return;
        }
    }
}

/// One stream of `subscriptions/listen` at a time, but for the moment in which a new one takes over.
async fn listen(upstream: &Arc<Upstream>, held: &Arc<Held>) {
    let mut version = upstream.watched.version.subscribe();
    let mut current: Option<LocalBoxFuture<'_, Ended>> = None;
    let mut failures = 0_u32;
    loop {
        version.mark_unchanged();
        let uris = if held.offers.subscribe { upstream.watched.uris() } else { BTreeSet::new() };
        let Some(filter) = filter(held, &uris) else {
            current = None;
            upstream.watched.in_force.send_replace(BTreeSet::new());
            if version.changed().await.is_err() {
                return;
            }
            continue;
        };
        let acknowledged = Arc::new(Notify::new());
        let mut next: LocalBoxFuture<'_, Ended> =
            Box::pin(one(Arc::clone(upstream), Arc::clone(held), filter, Arc::clone(&acknowledged)));
        // The old one goes on until the new one is there.
        let ready = async {
            let _ = tokio::time::timeout(ACKNOWLEDGED, acknowledged.notified()).await;
        };
        let mut early = None;
        tokio::select! {
            biased;
            ended = &mut next => early = Some(ended),
            () = ready => {}
        }
        if early.is_none() {
            upstream.watched.in_force.send_replace(uris);
            drop(current.replace(next));
            failures = 0;
        }
        let ended = match early {
            Some(ended) => Some(ended),
            None => match &mut current {
                Some(stream) => tokio::select! {
                    ended = stream => Some(ended),
                    changed = version.changed() => match changed {
                        Ok(()) => None,
                        Err(_) => return,
                    },
                },
                None => None,
            },
        };
        let Some(ended) = ended else { continue };
        current = None;
        upstream.watched.in_force.send_replace(BTreeSet::new());
        if matches!(ended, Ended::Refused) {
            // It has none, whatever it declared. Lists are read by their time, then.
            return;
        }
        tokio::time::sleep(BACKOFF.pause(failures)).await;
        failures = failures.saturating_add(1);
        // Nobody has said what changed meanwhile.
        upstream.stain(ListKinds::all());
    }
}

/// How a stream ended.
enum Ended {
    /// The server closed it, or it was lost.
    Over,
    /// The server does not do that.
    Refused,
}

async fn one(upstream: Arc<Upstream>, held: Arc<Held>, filter: Value, acknowledged: Arc<Notify>) -> Ended {
    let params = stamped(&json!({ "notifications": filter }).to_string());
    let outgoing = Outgoing::new(upstream.mint(), "subscriptions/listen", Some(&params));
    let listener = Arc::new(Stream { upstream: Arc::downgrade(&upstream), acknowledged });
    match held.link.request(&outgoing, listener).await {
        Ok(Response::Result(_)) | Err(LinkError::Lost(_) | LinkError::Unreachable(_) | LinkError::SessionGone) => {
            Ended::Over
        }
        Ok(Response::Error(error)) => {
            tracing::info!(upstream = %upstream.config.name, error = %AskError::Rpc(error), "it takes no subscription");
            Ended::Refused
        }
        Err(LinkError::Status { status, .. }) if status >= 500 => Ended::Over,
        Err(error) => {
            tracing::info!(upstream = %upstream.config.name, %error, "it takes no subscription");
            Ended::Refused
        }
    }
}

/// What to ask for; `None` where there is nothing.
fn filter(held: &Held, uris: &BTreeSet<String>) -> Option<Value> {
    let offers = held.offers;
    let mut filter = serde_json::Map::new();
    for (name, wanted) in [
        ("toolsListChanged", offers.tools_changed),
        ("promptsListChanged", offers.prompts_changed),
        ("resourcesListChanged", offers.resources_changed),
    ] {
        if wanted {
            filter.insert(name.into(), true.into());
        }
    }
    if !uris.is_empty() {
        filter.insert("resourceSubscriptions".into(), uris.iter().cloned().collect());
    }
    (!filter.is_empty()).then_some(Value::Object(filter))
}

/// Listens to one stream.
struct Stream {
    upstream: std::sync::Weak<Upstream>,
    acknowledged: Arc<Notify>,
}

impl Listener for Stream {
    fn notification(&self, notification: UpstreamNotification) {
        if notification.method == "notifications/subscriptions/acknowledged" {
            self.acknowledged.notify_one();
        } else if let Some(upstream) = self.upstream.upgrade()
            && !upstream.heard(&notification, true)
        {
            upstream.unattributed(&notification.method);
        }
    }

    /// Servers of this era send none: dropped, it declines.
    fn request(&self, _: UpstreamRequest) {}
}
