//! `subscriptions/listen`: a request that stays open and carries the notifications that it asks for
//! (2026-07-28/basic/patterns/subscriptions).

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{
    ItemRequest,
    resources::reserve_memory,
    tasks::{TaskSources, listen as tasks},
};
use crate::{gateway::server::Routing, policy::check_policy};
use countersign_bridge::tasks::TaskListener;
use countersign_domain::policy::Subject;
use countersign_exchange::{
    context::Exchange,
    eviction::{self, Activity},
    facts::check_uri,
    memory::MemoryBudget,
    reply::{RelatedChannel, Reply},
    slots::EvictableStream,
};
use countersign_protocol::{
    ErrorKind, McpError, encode,
    params::{self, keys},
};
use countersign_routing::{
    RouteTarget,
    actor::{Acknowledge, Listen},
    resources::{UpstreamResource, can_subscribe},
    subscribers::{ListenFilter, ListenSink, Listener},
};
use countersign_runtime::background;

/// Keeps the request open until the client cancels it or stops reading, another stream takes its slot, or the gateway
/// shuts down. An eviction or a shutdown ends it with a result, and a credential that is no longer valid ends it with
/// an error.
pub async fn listen(
    item: ItemRequest<'_>,
    memory: &Arc<MemoryBudget>,
    sources: TaskSources<'_>,
) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, .. } = item;
    let params: params::ListenParams<'_> = params::parse(request.params)?;
    let Routing { routes, router, long_requests, .. } = item.finder.routing;
    let (last_sent, evicted) = (Arc::new(AtomicU64::new(eviction::monotonic_ms())), CancellationToken::new());
    let activity = {
        let last_sent = Arc::clone(&last_sent);
        move || Activity::Idle(last_sent.load(Ordering::Relaxed))
    };
    let stream = EvictableStream::new(activity, evicted.clone());
    let _slot = long_requests.slots.take_evictable(&exchange.identity.principal.name, stream)?;
    let requested = params.notifications;
    let uris = find_subscriptions(item, requested.resource_subscriptions).await?;
    let _share = reserve_memory(memory, &exchange.identity.principal.name, uris.iter().map(String::as_str))?;
    let tasks = tasks::find_observable(exchange, sources, &requested.task_ids).await?;
    let filter = ListenFilter {
        tools_list_changed: requested.tools_list_changed,
        prompts_list_changed: requested.prompts_list_changed,
        resources_list_changed: requested.resources_list_changed,
        uris: uris.clone(),
        tasks: tasks.ids().collect(),
    };
    // A client that does not read loses its stream, and learns of the loss when it opens another one.
    let overflowed = CancellationToken::new();
    let sink = create_sink(exchange.related.clone(), last_sent, overflowed.clone());
    let cancel = cancel.token(&exchange.session.ended);
    let requester = exchange.facts.to_requester(Arc::clone(&exchange.identity.principal), exchange.transport);
    let listener = Listener::new(request.id.clone(), requester, filter, sink.clone());
    let (listener, resources) = router.send(Listen(listener)).await.map_err(|_| McpError::shutting_down())?;
    let mut own_link_subscriptions = OwnLinkSubscriptions { exchange, subscribed: Vec::new() };
    let work = async {
        // The acknowledgement must wait: what the client does after it may already change a subscribed resource.
        let watched = resources.into_iter().map(|(uri, ready)| async move { ready.await.is_err().then_some(uri) });
        let refused = join_all(watched).await.into_iter().flatten().collect();
        // The Router chose the providers by its newest table, which may be newer than that of the request.
        let table = routes.load_full();
        let upstream_resources: Vec<_> = uris.iter().filter_map(|uri| table.upstream_resource(uri)).collect();
        // This request may last for hours, and must not keep an old table in memory.
        drop(table);
        for resource in upstream_resources {
            own_link_subscriptions.subscribe(resource).await;
        }
        router.send(Acknowledge { key: listener.key, refused }).await.map_err(|_| McpError::shutting_down())?;
        let listener = TaskListener { exchange, subscription: request.id.as_json(), sink: &*sink };
        tasks::watch(listener, sources.reviews, tasks).await;
        Ok::<(), McpError>(())
    };
    // On a shared channel the client also gets a cancellation (2026-07-28/basic/patterns/cancellation: a server must, if it
    // ends a listen request).
    let send_cancellation = |reason: &str| {
        if matches!(exchange.related, RelatedChannel::Outbox(_)) {
            let params = format!(r#"{{"requestId":{},"reason":"{reason}"}}"#, request.id);
            exchange.related.send(encode::notification("notifications/cancelled", Some(&params)));
        }
    };
    tokio::select! {
        () = long_requests.shutdown.cancelled() => send_cancellation("the gateway is shutting down"),
        () = cancel.cancelled() => {}
        () = overflowed.cancelled() => {}
        () = evicted.cancelled() => send_cancellation("another stream of the same principal needs the slot"),
        ended = work => ended?,
        error = long_requests.authenticator.wait_until_invalid(&exchange.identity) => {
            send_cancellation("the credential is no longer valid");
            return Err(error);
        }
    }
    let meta = Some((keys::SUBSCRIPTION_ID, request.id.as_json().to_owned()));
    Ok(Reply { meta, ..Reply::new("{}".into()) })
}

/// Returns those of the requested resources to which the client can subscribe.
///
/// # Errors
/// A URI is too long, or there are too many.
async fn find_subscriptions(item: ItemRequest<'_>, requested: Vec<Cow<'_, str>>) -> Result<HashSet<String>, McpError> {
    let ItemRequest { exchange, cancel, mut finder, limits, .. } = item;
    for uri in &requested {
        check_uri(limits.max_uri, "notifications.resourceSubscriptions", uri)?;
    }
    for uri in &requested {
        // An upstream that does not connect does not prevent the subscription.
        let _ = finder.find_resource(uri).await;
    }
    let table = finder.table;
    let is_allowed = |uri: &str| {
        let provider = table.provider_for_uri(uri);
        provider.is_some_and(|provider| {
            can_subscribe(&provider) && check_policy(exchange, &table, &provider, Subject::Resource(uri)).is_ok()
        })
    };
    let uris: HashSet<String> = requested.into_iter().filter(|uri| is_allowed(uri)).map(Cow::into_owned).collect();
    let max = limits.max_subscriptions;
    if uris.len() > max {
        return Err(McpError::new(ErrorKind::Overloaded, "too many subscriptions").with("limit", max as u64));
    }
    let context = exchange.call_context(cancel, None);
    let mut readable = HashSet::with_capacity(uris.len());
    for uri in uris {
        if let Some(RouteTarget::Module(module)) = table.provider_for_uri(&uri)
            && limits.with_timeout(module.check_subscription(&uri, &context)).await.is_err()
        {
            // The acknowledgement leaves it out like a resource that does not exist.
            continue;
        }
        readable.insert(uri);
    }
    Ok(readable)
}

/// Creates the sink that sends notifications to the client, and cancels `overflowed` if the client does not read.
fn create_sink(related: RelatedChannel, last_sent: Arc<AtomicU64>, overflowed: CancellationToken) -> ListenSink {
    Arc::new(move |message| {
        last_sent.store(eviction::monotonic_ms(), Ordering::Relaxed);
        let is_sent = related.send(message);
        if !is_sent {
            overflowed.cancel();
        }
        is_sent
    })
}

/// Ends the subscriptions on the client's own links, however the request ends.
struct OwnLinkSubscriptions<'a> {
    exchange: &'a Exchange,
    subscribed: Vec<UpstreamResource>,
}

impl OwnLinkSubscriptions<'_> {
    /// Subscribes to a resource. If the future is dropped, the subscription still ends with the others, because the
    /// server may have received it.
    async fn subscribe(&mut self, resource: UpstreamResource) {
        self.subscribed.push(resource.clone());
        let UpstreamResource { upstream, own_uri } = &resource;
        countersign_bridge::subscribe_on_own_link(self.exchange, upstream, own_uri, "resources/subscribe").await;
    }
}

impl Drop for OwnLinkSubscriptions<'_> {
    fn drop(&mut self) {
        let (exchange, subscribed) = (self.exchange.clone(), std::mem::take(&mut self.subscribed));
        if subscribed.is_empty() {
            return;
        }
        background::spawn(async move {
            for UpstreamResource { upstream, own_uri } in subscribed {
                countersign_bridge::subscribe_on_own_link(&exchange, &upstream, &own_uri, "resources/unsubscribe")
                    .await;
            }
        });
    }
}
