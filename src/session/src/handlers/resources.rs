//! Resources: lists, templates, reading, and the handshake era's subscriptions.

use std::{collections::HashMap, sync::Arc};

use serde_json::json;

use super::{
    ItemRequest,
    lists::{self, render_page},
};
use crate::{
    gateway::{limits::RequestLimits, server::Routing},
    policy::{ListFilter, check_policy},
};
use countersign_bridge::{self, Bridge, Call, RequestedItem};
use countersign_domain::{policy::Subject, text::truncate};
use countersign_exchange::{
    context::Exchange,
    facts::check_uri,
    memory::{MemoryBudget, MemoryShare},
    reply::{CacheHint, Reply},
};
use countersign_protocol::{ErrorKind, McpError, envelope::Request, params};
use countersign_provider::{CallContext, Provider as _, ResourceDef};
use countersign_routing::{
    RouteTable, RouteTarget,
    actor::{Subscribe, Unsubscribe},
    list_entries::{ResourceRoute, TemplateRoute},
};
use countersign_upstream::ListKinds;

/// The bytes that a subscription takes in addition to its URI.
const SUBSCRIPTION_BYTES: usize = 512;
/// The number of copies of a subscribed URI: in the session, twice in the router (one in the upstream's own form), and
/// in the request to the upstream.
const URI_COPIES: usize = 4;

/// Reserves memory of the principal for subscriptions to these resources.
///
/// # Errors
/// `OVERLOADED` if the principal has too little memory left.
pub fn reserve_memory<'a>(
    memory: &Arc<MemoryBudget>,
    principal: &str,
    uris: impl Iterator<Item = &'a str>,
) -> Result<MemoryShare, McpError> {
    let bytes = uris.map(|uri| URI_COPIES * uri.len() + SUBSCRIPTION_BYTES).sum();
    memory.take(principal, bytes)
}

/// Answers `resources/list` with the resources of all providers, in the order of the providers. Modules are asked now;
/// the lists of upstreams are in the route table, except those of people's own accounts.
pub async fn list(item: ItemRequest<'_>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, finder, limits } = item;
    let table = &**finder.table;
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let context = exchange.call_context(cancel, None);
    let filter = ListFilter::for_requester(exchange, table);
    let mut own_by_server = own_resources_by_server(table, limits, &context).await;
    let mut items: Vec<Arc<ResourceRoute>> = Vec::new();
    let mut upstream_routes = table.resources().iter().peekable();
    for provider in table.providers() {
        let is_shown = |def: &ResourceDef| filter.shows(provider, Subject::Resource(&def.uri));
        let to_route = |def| Arc::new(ResourceRoute::new(provider.clone(), def));
        if let Some(upstream) = provider.upstream() {
            while let Some(route) = upstream_routes.next_if(|route| route.provider.is_same_provider(provider)) {
                if is_shown(&route.def) {
                    items.push(Arc::clone(route));
                }
            }
            // What another provider would answer is not listed.
            let is_served = |def: &ResourceDef| {
                table.provider_for_uri(&def.uri).is_some_and(|owner| owner.is_same_provider(provider))
            };
            let own_resources = own_by_server.remove(&upstream.config.name).into_iter().flatten();
            items.extend(own_resources.filter(|def| is_served(def) && is_shown(def)).map(to_route));
            continue;
        }
        match limits.with_timeout(provider.as_provider().resources(&context)).await {
            Ok(resources) => items.extend(resources.into_iter().filter(is_shown).map(to_route)),
            // The failure of one provider must not hide the resources of the others. Cursors of the list that had them
            // are refused.
            Err(error) => {
                tracing::warn!(provider = provider.name(), %error, "the list leaves out the resources of a provider that failed")
            }
        }
    }
    let cursor = params.cursor.as_deref();
    let json = render_page("resources", &items, |route| &route.def.uri, |route| route.list_entry(revision), cursor)?;
    Ok(Reply::new(json).with_cache_hint(CacheHint::LIVE))
}

/// Returns the resources of the caller's own accounts, by the names of the servers. All servers are asked at once, and
/// those that fail are left out.
async fn own_resources_by_server(
    table: &RouteTable,
    limits: &RequestLimits,
    context: &CallContext,
) -> HashMap<String, Vec<ResourceDef>> {
    let upstreams = table.providers().iter().filter_map(RouteTarget::upstream);
    let reads = upstreams.filter(|upstream| upstream.has_personal_accounts()).map(|upstream| async move {
        let read = async { upstream.for_principal(&context.principal).await?.resources(context).await };
        match limits.with_timeout(read).await {
            Ok(resources) => Some((upstream.config.name.clone(), resources)),
            // Often the person has not connected.
            Err(error) => {
                tracing::debug!(upstream = %upstream.config.name, %error, "the list leaves out the resources of an account");
                None
            }
        }
    });
    futures_util::future::join_all(reads).await.into_iter().flatten().collect()
}

/// Answers `resources/templates/list`.
pub fn list_templates(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let cursor = params.cursor.as_deref();
    let filter = ListFilter::for_requester(exchange, table);
    let is_shown =
        |route: &&Arc<TemplateRoute>| filter.shows(&route.provider, Subject::Resource(&route.def.uri_template));
    let templates: Vec<_> = table.templates_for(&exchange.identity.principal).filter(is_shown).collect();
    let json = render_page(
        "resourceTemplates",
        &templates,
        |route| &route.def.uri_template,
        |route| route.list_entry(revision),
        cursor,
    )?;
    Ok(Reply::new(json).with_cache_hint(lists::hint_for_filtered_list(table, ListKinds::RESOURCES)))
}

/// Answers `resources/read`.
pub async fn read(item: ItemRequest<'_>, bridge: &Arc<Bridge>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, mut finder, limits } = item;
    let params: params::ResourceUriParams<'_> = params::parse(request.params)?;
    check_uri(limits.max_uri, "uri", &params.uri)?;
    let provider = finder.find_resource(&params.uri).await?.ok_or_else(|| unknown_resource_error(&params.uri))?;
    check_policy(exchange, &finder.table, &provider, Subject::Resource(&params.uri))?;
    let module = match &provider {
        RouteTarget::Upstream(upstream) => {
            let uri = upstream.names.upstream_uri(&params.uri).unwrap_or(&params.uri);
            let item = RequestedItem::Resource { uri, exposed_uri: &params.uri };
            return countersign_bridge::call(Call::new(exchange, bridge, upstream, item, request)).await;
        }
        RouteTarget::Module(module) => module,
    };
    let context = exchange.call_context(cancel, None);
    let contents = limits.with_timeout(module.read_resource(&params.uri, &context)).await?;
    Ok(Reply::new(json!({ "contents": contents }).to_string()).with_cache_hint(CacheHint::LIVE))
}

/// Answers `resources/subscribe`. The resource need not exist yet, because a client may wait for it to appear. A
/// principal that may not read the resource gets the same error as for reading it, if the resource has a provider already.
/// The Router asks the policy again for each update.
pub async fn subscribe(item: ItemRequest<'_>, memory: &Arc<MemoryBudget>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, mut finder, limits } = item;
    let params: params::ResourceUriParams<'_> = params::parse(request.params)?;
    check_uri(limits.max_uri, "uri", &params.uri)?;
    // A server that does not connect does not prevent the subscription.
    let _ = finder.find_resource(&params.uri).await;
    let Routing { routes, router, .. } = finder.routing;
    let provider = finder.table.provider_for_uri(&params.uri);
    if let Some(provider) = &provider {
        check_policy(exchange, &finder.table, provider, Subject::Resource(&params.uri))?;
    }
    match provider {
        Some(RouteTarget::Module(module)) => {
            let context = exchange.call_context(cancel, None);
            limits.with_timeout(module.check_subscription(&params.uri, &context)).await?;
        }
        // The server of an upstream checks access itself.
        Some(RouteTarget::Upstream(upstream)) => upstream.check_subscribable()?,
        None => {}
    }
    let (session, principal) = (exchange.session.clone(), &exchange.identity.principal.name);
    let reserve = || reserve_memory(memory, principal, std::iter::once(&*params.uri));
    session.subscribe(&params.uri, limits.max_subscriptions, reserve)?;
    let subscribe = Subscribe { session: session.clone() as _, uri: params.uri.to_string() };
    let ready = router.send(subscribe).await.map_err(|_| McpError::shutting_down())?;
    if let Some(ready) = ready
        && let Err(error) = ready.await
    {
        // Without updates from its server there is no subscription.
        session.unsubscribe(&params.uri);
        router.do_send(Unsubscribe { session: session.id.clone(), uris: vec![params.uri.into_owned()] });
        return Err(error);
    }
    // The Router chose the provider by its newest table, which may be newer than that of the request.
    if let Some(resource) = routes.load_full().upstream_resource(&params.uri) {
        countersign_bridge::subscribe_on_own_link(
            exchange,
            &resource.upstream,
            &resource.own_uri,
            "resources/subscribe",
        )
        .await;
    }
    // The session may have ended, and its subscriptions may have been removed, while the upstream was asked.
    if session.ended.is_cancelled() {
        router.do_send(Unsubscribe { session: session.id.clone(), uris: vec![params.uri.into_owned()] });
    }
    Ok(Reply::new("{}".into()))
}

/// Answers `resources/unsubscribe`. Removing an unknown subscription succeeds.
pub async fn unsubscribe(item: ItemRequest<'_>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, finder, limits, .. } = item;
    let params: params::ResourceUriParams<'_> = params::parse(request.params)?;
    check_uri(limits.max_uri, "uri", &params.uri)?;
    exchange.session.unsubscribe(&params.uri);
    if let Some(resource) = finder.table.upstream_resource(&params.uri) {
        countersign_bridge::subscribe_on_own_link(
            exchange,
            &resource.upstream,
            &resource.own_uri,
            "resources/unsubscribe",
        )
        .await;
    }
    let unsubscribe = Unsubscribe { session: exchange.session.id.clone(), uris: vec![params.uri.into_owned()] };
    finder.routing.router.send(unsubscribe).await.map_err(|_| McpError::shutting_down())?;
    Ok(Reply::new("{}".into()))
}

fn unknown_resource_error(uri: &str) -> McpError {
    McpError::new(ErrorKind::ResourceNotFound, "Resource not found").with("uri", truncate(uri, 2048))
}
