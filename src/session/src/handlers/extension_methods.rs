//! Passes on requests with methods that the gateway does not know. They belong to an extension or experimental
//! capability that both the client and an upstream declare. They pass unchanged: names and URIs inside are not
//! translated, and eras are not bridged.
//!
//! The gateway cannot know what such a request does. It passes only if a rule names its method, or if no tool of its
//! upstream could be reviewed or denied: see [`countersign_domain::policy::subjects`]. Notifications of clients never
//! pass.

use std::sync::Arc;

use countersign_bridge::{self, Bridge, Call, RequestedItem};
use countersign_domain::{policy::Requester, text::truncate};
use countersign_exchange::{context::Exchange, facts::ClientFacts, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError, Method,
    envelope::Request,
    json::{Member, member, members},
    task,
};
use countersign_routing::RouteTable;
use countersign_upstream::{NegotiatedSession, Upstream};

/// Finds the upstream that a request with this method goes to.
///
/// # Errors
/// `-32601` with the reason: no upstream or several upstreams declare the extension, the upstream speaks the other era,
/// or the policy refuses the method.
pub fn find_upstream(
    table: &RouteTable,
    facts: &ClientFacts,
    requester: &Requester<'_>,
    method: &str,
) -> Result<Arc<Upstream>, McpError> {
    let refuse = |message: &'static str| {
        Err(McpError::new(ErrorKind::MethodNotFound, message).with("method", truncate(method, 128)))
    };
    let unknown = || refuse("no such method in this protocol revision");
    // Methods of other revisions are known methods, and `notifications/` never starts the name of a request.
    if Method::parse(method).is_some() || method.starts_with("notifications/") {
        return unknown();
    }
    let mut candidates = table.providers().iter().filter_map(|provider| {
        let upstream = provider.upstream()?;
        let negotiated = upstream.negotiated()?;
        let is_shared = |kind| shared_extensions(kind, &facts.capabilities, &negotiated).next().is_some();
        EXTENSION_KINDS.into_iter().any(is_shared).then_some((upstream, negotiated))
    });
    let Some((upstream, negotiated)) = candidates.next() else { return unknown() };
    if candidates.next().is_some() {
        return refuse(
            "several servers declare an extension that this method may belong to, and the request does not say which of them it is for",
        );
    }
    if negotiated.revision.era() != facts.revision.era() {
        return refuse("the server that this method may belong to speaks another era of the protocol");
    }
    if !table.allows_method(upstream, method, requester) {
        return refuse(
            "the gateway's policy cannot judge this method: it passes only if no call to its server could be reviewed or \
             denied, or if a rule names the method under `methods`",
        );
    }
    Ok(Arc::clone(upstream))
}

/// The extensions that the gateway serves itself. Their methods are never passed on.
const OWN_EXTENSIONS: &[&str] = &[task::TASKS_EXTENSION];

/// The capabilities that a client and the servers behind the gateway agree on without it.
pub const EXTENSION_KINDS: [&str; 2] = ["experimental", "extensions"];

/// Iterates over what an upstream declares of a kind of [`EXTENSION_KINDS`], if the client declares it too and the gateway does
/// not serve it itself.
pub fn shared_extensions<'a>(
    kind: &str,
    client_capabilities: &'a str,
    upstream: &'a NegotiatedSession,
) -> impl Iterator<Item = Member<'a>> {
    let declared = member(client_capabilities, kind).unwrap_or("{}");
    let offered = member(upstream.capabilities.get(), kind).unwrap_or("{}");
    members(offered)
        .filter(move |offer| !OWN_EXTENSIONS.contains(&&*offer.key) && member(declared, &offer.key).is_some())
}

/// Passes a request on to the upstream that shares the extension, if the policy allows it.
///
/// # Errors
/// The errors of [`find_upstream`] and [`countersign_bridge::call`]; `-32602` for parameters that are not an object.
pub async fn call(
    exchange: &Exchange,
    table: &RouteTable,
    bridge: &Arc<Bridge>,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    let upstream = find_upstream(table, &exchange.facts, &exchange.requester(), &request.method)?;
    if request.params.is_some_and(|params| !params.get().starts_with('{')) {
        return Err(McpError::new(ErrorKind::InvalidParams, "`params` is not an object"));
    }
    tracing::debug!(upstream = %upstream.config.name, "a request of an extension is passed on");
    let item = RequestedItem::Extension(&request.method);
    countersign_bridge::call(Call::new(exchange, bridge, &upstream, item, request)).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Gateway;
    use countersign_config::{UpstreamConfig, UpstreamTarget};
    use countersign_protocol::{Era, Revision};
    use countersign_routing::RouteTarget;
    use countersign_upstream::{
        LinkKind,
        testing::{connected_upstream, fake::FakeServer},
    };

    const EXTENSION_DECLARATION: &str = r#"{"extensions":{"acme/x":{}}}"#;

    /// Returns the reason why the method is refused, for a client with this revision and these capabilities.
    fn refusal(bench: &Gateway, revision: Revision, capabilities: &str, method: &str) -> Option<String> {
        let exchange = bench.clients.exchange(revision, capabilities);
        let table = bench.server.routing.routes.load();
        let found = find_upstream(&table, &exchange.facts, &exchange.requester(), method);
        found.err().map(|error| {
            assert_eq!(error.kind, ErrorKind::MethodNotFound);
            error.message.to_string()
        })
    }

    /// Connects a modern upstream that offers the extension.
    async fn serve(name: &str, extension: &str) -> RouteTarget {
        let server = FakeServer::new(Era::Modern, LinkKind::Streams);
        *server.capabilities.lock() = json!({ "tools": {}, "extensions": { extension: {} } });
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
        RouteTarget::Upstream(connected_upstream(UpstreamConfig::new(name, target), &server).await)
    }

    #[actix::test]
    async fn unknown_method_goes_to_only_server_sharing_extension() {
        let bench = Gateway::new("policy: { default: allow }").await;
        let first = serve("s", "acme/x").await;
        bench.offer(vec![first.clone()]).await;
        let refused = |revision, capabilities, method| refusal(&bench, revision, capabilities, method);
        assert_eq!(refused(Revision::MODERN, EXTENSION_DECLARATION, "acme/do"), None);
        for (revision, capabilities, method, reason) in [
            (Revision::MODERN, "{}", "acme/do", "no such method"),
            (Revision::MODERN, r#"{"extensions":{"acme/y":{}}}"#, "acme/do", "no such method"),
            (Revision::MODERN, r#"{"experimental":{"acme/x":{}}}"#, "acme/do", "no such method"),
            (Revision::MODERN, EXTENSION_DECLARATION, "initialize", "no such method"),
            (Revision::MODERN, EXTENSION_DECLARATION, "notifications/acme", "no such method"),
            (Revision::V2025_11_25, EXTENSION_DECLARATION, "acme/do", "another era"),
        ] {
            let refusal = refused(revision, capabilities, method).unwrap();
            assert!(refusal.contains(reason), "{method} {capabilities}: {refusal}");
        }
        bench.offer(vec![first, serve("t", "acme/x").await]).await;
        let refusal = refused(Revision::MODERN, EXTENSION_DECLARATION, "acme/do").unwrap();
        assert!(refusal.contains("several servers"), "{refusal}");
    }

    #[actix::test]
    async fn tasks_extension_is_never_passed_on() {
        let bench = Gateway::new("policy: { default: allow }").await;
        bench.offer(vec![serve("s", OWN_EXTENSIONS[0]).await]).await;
        let declared = json!({ "extensions": { OWN_EXTENSIONS[0]: {} } }).to_string();
        assert!(refusal(&bench, Revision::MODERN, &declared, "acme/do").is_some());
    }

    #[actix::test]
    async fn unknown_method_is_refused_if_its_server_has_reviewed_tools() {
        for (policy, passes) in [
            ("default: review_writes", false),
            ("default: review_writes, rules: [{ methods: \"acme/*\", servers: s, then: allow }]", true),
            ("default: allow, rules: [{ methods: \"acme/*\", then: deny }]", false),
        ] {
            let bench = Gateway::new(&format!("policy: {{ {policy} }}")).await;
            bench.offer(vec![serve("s", "acme/x").await]).await;
            assert_eq!(
                refusal(&bench, Revision::MODERN, EXTENSION_DECLARATION, "acme/do").is_none(),
                passes,
                "{policy}"
            );
        }
    }
}
