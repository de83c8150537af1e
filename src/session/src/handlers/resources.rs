//! Resources: lists, templates, reading, and the handshake era's subscriptions.

use std::sync::Arc;

use serde_json::json;

use super::{cache_hint, page::page, upstream_wait};
use crate::{
    Handling,
    policy::{Lists, admit},
};
use countersign_bridge::{self, Call, Verb, request};
use countersign_domain::policy::Subject;
use countersign_exchange::{
    cancel::Cancel,
    context::Exchange,
    facts::check_uri,
    memory::Share,
    reply::{CacheHint, Reply},
};
use countersign_protocol::{ErrorKind, McpError, Revision, envelope::Request, params};
use countersign_routing::{
    RouteTable, RouteTarget,
    actor::{Subscribe, Unsubscribe},
    list_entries::{ResourceRoute, TemplateRoute},
    listing,
};

/// Bytes that a subscription takes beside its URI, which stands in the session, in the router and, of an upstream, in
/// what it is asked to tell of.
const SUBSCRIPTION: usize = 512;
/// The number of copies of a subscribed URI.
const COPIES: usize = 4;

/// Takes what subscriptions to those resources take of their principal's memory.
///
/// # Errors
/// `OVERLOADED`
pub fn remember<'a>(exchange: &Handling, uris: impl Iterator<Item = &'a str>) -> Result<Share, McpError> {
    let bytes = uris.map(|uri| COPIES * uri.len() + SUBSCRIPTION).sum();
    exchange.server.memory.take(&exchange.identity.principal.name, bytes)
}

/// `resources/list`: what all providers have, in their order. Modules are asked; what upstreams have is known.
pub async fn list(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let table = exchange.server.routing.routes.load_full();
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let context = exchange.call_context(cancel, None);
    let lists = Lists::for_requester(exchange, &table);
    let mut items: Vec<Item<'_>> = Vec::new();
    let mut known = table.resources().iter().peekable();
    for provider in table.providers() {
        if provider.upstream().is_some() {
            while let Some(route) = known.next_if(|route| route.provider.is_same_provider(provider)) {
                if lists.shows(&**provider, Subject::Resource(&route.def.uri)) {
                    items.push(Item::Known(route));
                }
            }
            continue;
        }
        match exchange.server.limits.in_time(provider.resources(&context)).await {
            Ok(resources) => {
                let shown = resources.iter().filter(|r| lists.shows(&**provider, Subject::Resource(&r.uri)));
                items.extend(shown.map(|r| Item::Live(listing::entry(serde_json::to_value(r), revision))));
            }
            // One bad provider never spoils the others.
            Err(error) => tracing::warn!(provider = provider.name(), %error, "resources left out of a list"),
        }
    }
    let json =
        page("resources", &items, |item| item.text(revision), params.cursor.as_deref(), table.versions.resources)?;
    Ok(Reply::new(json).cached(CacheHint::LIVE))
}

/// One entry of the list.
enum Item<'a> {
    Live(String),
    Known(&'a ResourceRoute),
}

impl Item<'_> {
    fn text(&self, revision: Revision) -> &str {
        match self {
            Self::Live(text) => text,
            Self::Known(route) => route.list_entry(revision),
        }
    }
}

/// `resources/templates/list`.
pub fn templates(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let cursor = params.cursor.as_deref();
    let lists = Lists::for_requester(exchange, table);
    let shown = |route: &&Arc<TemplateRoute>| lists.shows(&*route.provider, Subject::Resource(&route.def.uri_template));
    let templates: Vec<_> = table.templates().iter().filter(shown).collect();
    let json =
        page("resourceTemplates", &templates, |route| route.list_entry(revision), cursor, table.versions.resources)?;
    Ok(Reply::new(json).cached(cache_hint::for_filtered_list(table)))
}

/// `resources/read`.
pub async fn read(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params: params::ResourceUri<'_> = params::parse(request.params)?;
    check_uri(exchange.server.limits.max_uri, "uri", &params.uri)?;
    let provider = upstream_wait::find_resource(exchange, &params.uri).await?.ok_or_else(|| not_found(&params.uri))?;
    admit(exchange, &exchange.server.routing.routes.load(), &*provider, Subject::Resource(&params.uri))?;
    let module = match &provider {
        RouteTarget::Upstream(upstream) => {
            let subject = request::Subject::Uri(upstream.names.own_uri(&params.uri).unwrap_or(&params.uri));
            let bridge = &exchange.server.bridge;
            let call = Call::new(exchange, bridge, upstream, Verb::Resource, subject, request);
            return countersign_bridge::call(Call { uri: Some(&params.uri), ..call }).await;
        }
        RouteTarget::Module(module) => module,
    };
    let context = exchange.call_context(cancel, None);
    let contents = exchange.server.limits.in_time(module.read_resource(&params.uri, &context)).await?;
    Ok(Reply::new(json!({ "contents": contents }).to_string()).cached(CacheHint::LIVE))
}

/// `resources/subscribe`. The resource need not exist yet: a client may wait for one to appear. What not everybody may read
/// answers as reading it does.
pub async fn subscribe(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params: params::ResourceUri<'_> = params::parse(request.params)?;
    let server = &exchange.server;
    check_uri(server.limits.max_uri, "uri", &params.uri)?;
    upstream_wait::wait_for_resource(exchange, &params.uri).await;
    let provider = {
        let table = server.routing.routes.load();
        let provider = table.provider_for_uri(&params.uri);
        if let Some(provider) = &provider {
            admit(exchange, &table, &**provider, Subject::Resource(&params.uri))?;
        }
        provider
    };
    // Upstreams are asked themselves.
    if let Some(RouteTarget::Module(module)) = provider {
        let context = exchange.call_context(cancel, None);
        server.limits.in_time(module.may_subscribe(&params.uri, &context)).await?;
    }
    let max = server.limits.max_subscriptions;
    exchange.session.subscribe(&params.uri, max, || remember(exchange, std::iter::once(&*params.uri)))?;
    let session = exchange.session.clone();
    let subscribe = Subscribe { session: session.clone() as _, uri: params.uri.to_string() };
    let ready = server.routing.router.send(subscribe).await.map_err(|_| shutting_down())?;
    if let Some(ready) = ready
        && let Err(error) = ready.await
    {
        // Its server does not tell of changes: then there is no subscription.
        session.unsubscribe(&params.uri);
        server.routing.router.do_send(Unsubscribe { session: session.id.clone(), uris: vec![params.uri.into_owned()] });
        return Err(error);
    }
    if let Some(provider) = server.routing.routes.load().provider_for_uri(&params.uri)
        && let Some(upstream) = provider.upstream()
        && let Some(own) = upstream.names.own_uri(&params.uri)
    {
        countersign_bridge::subscribe_own(exchange, upstream, own, "resources/subscribe").await;
    }
    // The session may have ended while an upstream was asked, after its subscriptions were taken down.
    if session.ended.is_cancelled() {
        server.routing.router.do_send(Unsubscribe { session: session.id.clone(), uris: vec![params.uri.into_owned()] });
    }
    Ok(Reply::new("{}".into()))
}

/// `resources/unsubscribe`; unknown subscriptions are none any more.
pub async fn unsubscribe(exchange: &Handling, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ResourceUri<'_> = params::parse(request.params)?;
    check_uri(exchange.server.limits.max_uri, "uri", &params.uri)?;
    exchange.session.unsubscribe(&params.uri);
    let provider = exchange.server.routing.routes.load().provider_for_uri(&params.uri);
    if let Some(upstream) = provider.as_ref().and_then(|provider| provider.upstream())
        && let Some(own) = upstream.names.own_uri(&params.uri)
    {
        countersign_bridge::subscribe_own(exchange, upstream, own, "resources/unsubscribe").await;
    }
    let unsubscribe = Unsubscribe { session: exchange.session.id.clone(), uris: vec![params.uri.into_owned()] };
    exchange.server.routing.router.send(unsubscribe).await.map_err(|_| shutting_down())?;
    Ok(Reply::new("{}".into()))
}

fn not_found(uri: &str) -> McpError {
    let uri: String = uri.chars().take(2048).collect();
    McpError::new(ErrorKind::ResourceNotFound, "Resource not found").with("uri", uri)
}

fn shutting_down() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down")
}
