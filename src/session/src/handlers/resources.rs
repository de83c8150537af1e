//! Resources: lists, templates, reading, and the handshake era's subscriptions.

use std::sync::Arc;

use serde_json::json;

use super::{
    ItemRequest,
    lists::{self, page},
};
use crate::{
    limits::RequestLimits,
    policy::{ListFilter, admit},
    server::Routing,
};
use countersign_bridge::{self, Bridge, Call, RequestKind, request};
use countersign_domain::policy::Subject;
use countersign_exchange::{
    context::Exchange,
    facts::check_uri,
    memory::{Memory, Share},
    reply::{CacheHint, Reply},
    shared::Cancel,
};
use countersign_protocol::{ErrorKind, McpError, Revision, envelope::Request, params};
use countersign_routing::{
    RouteTable, RouteTarget,
    actor::{Subscribe, Unsubscribe},
    list_entries::{ResourceRoute, TemplateRoute},
    module_entries,
};

/// The bytes that a subscription takes in addition to its URI. The session, the router and the request to an upstream
/// keep it.
const SUBSCRIPTION_BYTES: usize = 512;
/// The number of copies that are kept of a subscribed URI.
const URI_COPIES: usize = 4;

/// Reserves memory of the principal for subscriptions to these resources.
///
/// # Errors
/// `OVERLOADED` if the principal has too little memory left.
pub fn reserve_memory<'a>(
    memory: &Arc<Memory>,
    principal: &str,
    uris: impl Iterator<Item = &'a str>,
) -> Result<Share, McpError> {
    let bytes = uris.map(|uri| URI_COPIES * uri.len() + SUBSCRIPTION_BYTES).sum();
    memory.take(principal, bytes)
}

/// Answers `resources/list` with the resources of all providers, in the order of the providers. Modules are asked now;
/// the lists of upstreams are in the route table.
pub async fn list(
    exchange: &Exchange,
    table: &RouteTable,
    limits: &RequestLimits,
    request: &Request<'_>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let context = exchange.call_context(cancel, None);
    let filter = ListFilter::for_requester(exchange, table);
    let mut items: Vec<ListedResource<'_>> = Vec::new();
    let mut upstream_routes = table.resources().iter().peekable();
    for provider in table.providers() {
        if provider.upstream().is_some() {
            while let Some(route) = upstream_routes.next_if(|route| route.provider.is_same_provider(provider)) {
                if filter.shows(provider, Subject::Resource(&route.def.uri)) {
                    items.push(ListedResource::Routed(route));
                }
            }
            continue;
        }
        match limits.with_timeout(provider.as_provider().resources(&context)).await {
            Ok(resources) => {
                let shown = resources.iter().filter(|r| filter.shows(provider, Subject::Resource(&r.uri)));
                let entry = |r| ListedResource::Module(module_entries::entry(serde_json::to_value(r), revision));
                items.extend(shown.map(entry));
            }
            // The failure of one provider must not hide the resources of the others.
            Err(error) => {
                tracing::warn!(provider = provider.name(), %error, "the list leaves out the resources of a provider that failed")
            }
        }
    }
    let json =
        page("resources", &items, |item| item.text(revision), params.cursor.as_deref(), table.versions.resources)?;
    Ok(Reply::new(json).cached(CacheHint::LIVE))
}

/// One entry of the list: the text that a module returned, or a route of an upstream.
enum ListedResource<'a> {
    Module(String),
    Routed(&'a ResourceRoute),
}

impl ListedResource<'_> {
    fn text(&self, revision: Revision) -> &str {
        match self {
            Self::Module(text) => text,
            Self::Routed(route) => route.list_entry(revision),
        }
    }
}

/// Answers `resources/templates/list`.
pub fn templates(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let cursor = params.cursor.as_deref();
    let filter = ListFilter::for_requester(exchange, table);
    let shown = |route: &&Arc<TemplateRoute>| filter.shows(&route.provider, Subject::Resource(&route.def.uri_template));
    let templates: Vec<_> = table.templates().iter().filter(shown).collect();
    let json =
        page("resourceTemplates", &templates, |route| route.list_entry(revision), cursor, table.versions.resources)?;
    Ok(Reply::new(json).cached(lists::hint_for_filtered_list(table)))
}

/// Answers `resources/read`.
pub async fn read(item: ItemRequest<'_>, bridge: &Arc<Bridge>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, mut finder, limits } = item;
    let params: params::ResourceUri<'_> = params::parse(request.params)?;
    check_uri(limits.max_uri, "uri", &params.uri)?;
    let provider = finder.find_resource(&params.uri).await?.ok_or_else(|| not_found(&params.uri))?;
    admit(exchange, &finder.table, &provider, Subject::Resource(&params.uri))?;
    let module = match &provider {
        RouteTarget::Upstream(upstream) => {
            let item = request::RequestedItem::Uri(upstream.names.own_uri(&params.uri).unwrap_or(&params.uri));
            let call = Call::new(exchange, bridge, upstream, RequestKind::Resource, item, request);
            return countersign_bridge::call(Call { uri: Some(&params.uri), ..call }).await;
        }
        RouteTarget::Module(module) => module,
    };
    let context = exchange.call_context(cancel, None);
    let contents = limits.with_timeout(module.read_resource(&params.uri, &context)).await?;
    Ok(Reply::new(json!({ "contents": contents }).to_string()).cached(CacheHint::LIVE))
}

/// Answers `resources/subscribe`. The resource need not exist yet, because a client may wait for it to appear. A
/// principal that may not read the resource gets the same error as for reading it.
pub async fn subscribe(item: ItemRequest<'_>, memory: &Arc<Memory>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, mut finder, limits } = item;
    let params: params::ResourceUri<'_> = params::parse(request.params)?;
    check_uri(limits.max_uri, "uri", &params.uri)?;
    // A server that does not connect does not prevent the subscription.
    let _ = finder.find_resource(&params.uri).await;
    let Routing { routes, router, .. } = finder.routing;
    let provider = finder.table.provider_for_uri(&params.uri);
    if let Some(provider) = &provider {
        admit(exchange, &finder.table, provider, Subject::Resource(&params.uri))?;
    }
    // An upstream checks access itself.
    if let Some(RouteTarget::Module(module)) = provider {
        let context = exchange.call_context(cancel, None);
        limits.with_timeout(module.may_subscribe(&params.uri, &context)).await?;
    }
    let (session, principal) = (exchange.session.clone(), &exchange.identity.principal.name);
    let reserve = || reserve_memory(memory, principal, std::iter::once(&*params.uri));
    session.subscribe(&params.uri, limits.max_subscriptions, reserve)?;
    let subscribe = Subscribe { session: session.clone() as _, uri: params.uri.to_string() };
    let ready = router.send(subscribe).await.map_err(|_| shutting_down())?;
    if let Some(ready) = ready
        && let Err(error) = ready.await
    {
        // Without updates from its server there is no subscription.
        session.unsubscribe(&params.uri);
        router.do_send(Unsubscribe { session: session.id.clone(), uris: vec![params.uri.into_owned()] });
        return Err(error);
    }
    if let Some(provider) = routes.load().provider_for_uri(&params.uri)
        && let Some(upstream) = provider.upstream()
        && let Some(own) = upstream.names.own_uri(&params.uri)
    {
        countersign_bridge::subscribe_on_own_link(exchange, upstream, own, "resources/subscribe").await;
    }
    // The session may have ended, and its subscriptions may have been removed, while the upstream was asked.
    if session.ended.is_cancelled() {
        router.do_send(Unsubscribe { session: session.id.clone(), uris: vec![params.uri.into_owned()] });
    }
    Ok(Reply::new("{}".into()))
}

/// Answers `resources/unsubscribe`. Removing an unknown subscription succeeds.
pub async fn unsubscribe(
    exchange: &Exchange,
    routing: &Routing,
    limits: &RequestLimits,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    let params: params::ResourceUri<'_> = params::parse(request.params)?;
    check_uri(limits.max_uri, "uri", &params.uri)?;
    exchange.session.unsubscribe(&params.uri);
    let provider = routing.routes.load().provider_for_uri(&params.uri);
    if let Some(upstream) = provider.as_ref().and_then(|provider| provider.upstream())
        && let Some(own) = upstream.names.own_uri(&params.uri)
    {
        countersign_bridge::subscribe_on_own_link(exchange, upstream, own, "resources/unsubscribe").await;
    }
    let unsubscribe = Unsubscribe { session: exchange.session.id.clone(), uris: vec![params.uri.into_owned()] };
    routing.router.send(unsubscribe).await.map_err(|_| shutting_down())?;
    Ok(Reply::new("{}".into()))
}

fn not_found(uri: &str) -> McpError {
    let uri: String = uri.chars().take(2048).collect();
    McpError::new(ErrorKind::ResourceNotFound, "Resource not found").with("uri", uri)
}

fn shutting_down() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down")
}
