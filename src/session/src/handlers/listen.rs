//! `subscriptions/listen`: a request that stays open and carries what was asked for
//! (2026-07-28/basic/patterns/subscriptions).

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use actix::Addr;
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{resources::remember, tasks::listen as tasks, upstream_wait};
use crate::{Handling, policy::admit};
use countersign_domain::policy::Subject;
use countersign_exchange::{
    cancel::Cancel,
    eviction::{self, Hold},
    facts::check_uri,
    related::Related,
    reply::Reply,
    slots::Evictable,
};
use countersign_protocol::{
    ErrorKind, McpError, encode,
    envelope::Request,
    params::{self, keys},
};
use countersign_routing::{
    RouteTarget, Router,
    actor::{Acknowledge, Listen, StopListening},
    resources::can_subscribe,
    subscribers::{ListenFilter, ListenSink},
    table::RouteTable,
};
use countersign_upstream::Upstream;

/// Stays until the client cancels it, stops reading, or the gateway shuts down; the last ends it with a result.
pub async fn listen(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params: params::Listen<'_> = params::parse(request.params)?;
    let server = &exchange.server;
    let (heard, taken) = (Arc::new(AtomicU64::new(eviction::now())), CancellationToken::new());
    let hold = {
        let heard = Arc::clone(&heard);
        move || Hold::Idle(heard.load(Ordering::Relaxed))
    };
    let _slot = server.long_requests.admit_stream(&exchange.identity.principal, Evictable::new(hold, taken.clone()))?;
    let asked = params.notifications;
    for uri in &asked.resource_subscriptions {
        check_uri(server.limits.max_uri, "notifications.resourceSubscriptions", uri)?;
    }
    for uri in &asked.resource_subscriptions {
        upstream_wait::wait_for_resource(exchange, uri).await;
    }
    let table = server.routing.routes.load_full();
    let mut uris: HashSet<String> = asked
        .resource_subscriptions
        .into_iter()
        .filter(|uri| {
            let admitted = |provider: &RouteTarget| {
                can_subscribe(provider) && admit(exchange, &table, &**provider, Subject::Resource(uri)).is_ok()
            };
            table.provider_for_uri(uri).is_some_and(|provider| admitted(&provider))
        })
        .map(std::borrow::Cow::into_owned)
        .collect();
    let max = server.limits.max_subscriptions;
    if uris.len() > max {
        return Err(McpError::new(ErrorKind::Overloaded, "too many subscriptions").with("limit", max as u64));
    }
    readable(exchange, &table, &mut uris, cancel).await;
    drop(table);
    let _share = remember(exchange, uris.iter().map(String::as_str))?;
    let tasks = tasks::honoured(exchange, &asked.task_ids).await?;
    let filter = ListenFilter {
        tools_list_changed: asked.tools_list_changed,
        prompts_list_changed: asked.prompts_list_changed,
        resources_list_changed: asked.resources_list_changed,
        uris: uris.clone(),
        tasks: tasks.ids().collect(),
    };
    let related = exchange.related.clone();
    // A listener that does not read loses its stream: it learns of the loss when it opens another.
    let deaf = CancellationToken::new();
    let sink: ListenSink = {
        let deaf = deaf.clone();
        Arc::new(move |message| {
            heard.store(eviction::now(), Ordering::Relaxed);
            let sent = related.send(message);
            if !sent {
                deaf.cancel();
            }
            sent
        })
    };
    let cancel = cancel.token(&exchange.session.ended);
    let principal = Arc::clone(&exchange.identity.principal);
    let listening = Listen { id: request.id.clone(), principal, filter, sink: sink.clone() };
    let gone = |_| McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down");
    let (key, resources) = server.routing.router.send(listening).await.map_err(gone)?;
    let _open = Open { router: server.routing.router.clone(), key };
    // What the client does once it is acknowledged may already be what it wants to hear of.
    let watched = resources.into_iter().map(|(uri, ready)| async move { ready.await.is_err().then_some(uri) });
    let refused = tokio::select! {
        refused = join_all(watched) => refused.into_iter().flatten().collect(),
        () = cancel.cancelled() => Vec::new(),
    };
    let own = apart(exchange, &uris);
    for (upstream, uri) in &own {
        countersign_bridge::subscribe_own(exchange, upstream, uri, "resources/subscribe").await;
    }
    let _own = Own { exchange, subscribed: own };
    server.routing.router.send(Acknowledge { key, refused }).await.map_err(gone)?;
    tokio::select! {
        () = server.long_requests.shutdown.cancelled() => {
            // On a shared channel the teardown is told as a cancellation too
            // (2026-07-28/basic/patterns/cancellation: a server must, for listen requests).
            if matches!(exchange.related, Related::Outbox(_)) {
                let params = format!(r#"{{"requestId":{},"reason":"the gateway is shutting down"}}"#, request.id);
                exchange.related.send(encode::notification("notifications/cancelled", Some(&params)));
            }
        }
        () = cancel.cancelled() => {}
        () = deaf.cancelled() => {}
        // Another stream of its principal needed the place.
        () = taken.cancelled() => {}
        () = tasks::watch(exchange, tasks, request.id.as_json(), &*sink) => {}
        revoked = server.long_requests.wait_until_revoked(&exchange.identity) => return Err(revoked),
    }
    let meta = Some((keys::SUBSCRIPTION_ID, request.id.as_json().to_owned()));
    Ok(Reply { meta, ..Reply::new("{}".into()) })
}

/// Takes out what the client may not read: the acknowledgement leaves it out, as what is not there.
async fn readable(exchange: &Handling, table: &RouteTable, uris: &mut HashSet<String>, cancel: &Cancel) {
    let context = exchange.call_context(cancel, None);
    let mut refused = Vec::new();
    for uri in uris.iter() {
        if let Some(RouteTarget::Module(module)) = table.provider_for_uri(uri)
            && exchange.server.limits.in_time(module.may_subscribe(uri, &context)).await.is_err()
        {
            refused.push(uri.clone());
        }
    }
    for uri in refused {
        uris.remove(&uri);
    }
}

/// The resources among those named whose servers are told on connections that may be the client's own.
fn apart(exchange: &Handling, uris: &HashSet<String>) -> Vec<(Arc<Upstream>, String)> {
    let table = exchange.server.routing.routes.load();
    let of = |uri: &String| {
        let provider = table.provider_for_uri(uri)?;
        let upstream = provider.upstream()?;
        Some((Arc::clone(upstream), upstream.names.own_uri(uri)?.to_owned()))
    };
    uris.iter().filter_map(of).collect()
}

/// Ends the subscriptions on the client's own connections however the request ends.
struct Own<'a> {
    exchange: &'a Handling,
    subscribed: Vec<(Arc<Upstream>, String)>,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let (exchange, subscribed) = (self.exchange.clone(), std::mem::take(&mut self.subscribed));
        if subscribed.is_empty() {
            return;
        }
        actix::spawn(async move {
            for (upstream, uri) in subscribed {
                countersign_bridge::subscribe_own(&exchange, &upstream, &uri, "resources/unsubscribe").await;
            }
        });
    }
}

/// Takes the listener from the router however the request ends.
struct Open {
    router: Addr<Router>,
    key: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.router.do_send(StopListening(self.key));
    }
}
