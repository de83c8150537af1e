//! Requests with methods that the gateway does not know. They belong to an extension, or to an experimental capability,
//! that both the client and a server declare, and pass between the two as they are.
//!
//! Nothing can be said of what such a request does, so it passes only where nothing is reviewed or a rule names it: see
//! [`countersign_domain::policy::subjects`]. Notifications of clients never pass. Names and URIs inside are not translated, and neither is one era into the other.

use std::sync::Arc;

use crate::{
    calls::{self, Bridge, Call},
    tasks,
    translation::request::{Subject, Verb},
};
use countersign_domain::policy::Asker;
use countersign_exchange::{
    context::{Exchange, asker},
    facts::ClientFacts,
    reply::Reply,
    services::Services,
};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{member, members},
    method::Method,
};
use countersign_upstream::{Negotiated, Upstream};

/// The server that a request with this method goes to.
///
/// # Errors
/// `-32601`, with the reason where something of it is declared: no or several servers, the other era, the policy.
pub fn target(
    services: &Services,
    facts: &ClientFacts,
    asker: &Asker<'_>,
    method: &str,
) -> Result<Arc<Upstream>, McpError> {
    let refused = |message: &'static str| {
        let method: String = method.chars().take(128).collect();
        Err(McpError::new(ErrorKind::MethodNotFound, message).with("method", method))
    };
    let nowhere = || refused("no such method in this protocol revision");
    // What another revision has is known, and `notifications/` are no requests of anybody.
    if Method::parse(method).is_some() || method.starts_with("notifications/") {
        return nowhere();
    }
    let table = services.routes.load();
    let mut sharing = table.providers().iter().filter_map(|provider| {
        let upstream = provider.upstream()?;
        let negotiated = upstream.negotiated()?;
        shares(&facts.capabilities, &negotiated).then_some((upstream, negotiated))
    });
    let Some((upstream, negotiated)) = sharing.next() else { return nowhere() };
    if sharing.next().is_some() {
        return refused(
            "several servers declare an extension that this method may belong to, and the request does not say which of them it is for",
        );
    }
    if negotiated.revision.era() != facts.revision.era() {
        return refused("the server that this method may belong to speaks another era of the protocol");
    }
    if !table.passes(upstream, method, asker) {
        return refused(
            "the gateway's policy cannot judge this method: it passes only where nothing of its server could be reviewed or \
             denied, or where a rule names it by `methods`",
        );
    }
    Ok(Arc::clone(upstream))
}

/// Extensions that take more than to be passed on: declaring one is for who serves it.
pub const SERVED_HERE: &[&str] = &[tasks::ask::EXTENSION];

/// Whether both declare the same extension or experimental capability, but for those that the gateway itself serves.
fn shares(client: &str, server: &Negotiated) -> bool {
    ["extensions", "experimental"].into_iter().any(|kind| {
        let declared = member(client, kind).unwrap_or("{}");
        let offered = member(server.capabilities.get(), kind).unwrap_or("{}");
        members(declared)
            .any(|ours| !SERVED_HERE.contains(&&*ours.key) && members(offered).any(|theirs| theirs.key == ours.key))
    })
}

/// Takes a request to the server that it belongs to.
///
/// # Errors
/// As [`target`] and [`calls::call`].
pub async fn call(bridge: &Arc<Bridge>, exchange: &Exchange, request: &Request<'_>) -> Result<Reply, McpError> {
    let upstream = target(&exchange.services, &exchange.facts, &asker(exchange), &request.method)?;
    if request.params.is_some_and(|params| !params.get().starts_with('{')) {
        return Err(McpError::new(ErrorKind::InvalidParams, "`params` is not an object"));
    }
    tracing::debug!(upstream = %upstream.config.name, "a request of an extension is passed on");
    let call = Call {
        exchange,
        bridge,
        upstream: &upstream,
        verb: Verb::Extension,
        subject: Subject::Method(&request.method),
        uri: None,
        request,
        definition: None,
        headers: &[],
        reads: false,
    };
    calls::call(call).await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Fixture, serve, value};
    use countersign_exchange::testing::{Bench, request};
    use countersign_protocol::{Era, Revision};
    use countersign_routing::Target;

    const DECLARED: &str = r#"{"extensions":{"acme/x":{}}}"#;

    /// Why the method goes nowhere, for a client of that revision that declares those capabilities.
    fn refusal(bench: &Bench, revision: Revision, capabilities: &str, method: &str) -> Option<String> {
        let exchange = bench.exchange(revision, capabilities);
        let target = target(&bench.services, &exchange.facts, &asker(&exchange), method);
        target.err().map(|error| {
            assert_eq!(error.kind, ErrorKind::MethodNotFound);
            error.message.to_string()
        })
    }

    fn offers(extension: &str) -> Value {
        json!({ "tools": {}, "extensions": { extension: {} } })
    }

    #[actix::test]
    async fn an_unknown_method_goes_to_the_one_server_that_shares_an_extension_and_the_clients_era() {
        let fixture = Fixture::with(Era::Modern, &offers("acme/x"), |_| {}).await;
        let refused = |revision, capabilities, method| refusal(&fixture.bench, revision, capabilities, method);
        assert_eq!(refused(Revision::MODERN, DECLARED, "acme/do"), None);
        for (revision, capabilities, method, reason) in [
            (Revision::MODERN, "{}", "acme/do", "no such method"),
            (Revision::MODERN, r#"{"extensions":{"acme/y":{}}}"#, "acme/do", "no such method"),
            (Revision::MODERN, r#"{"experimental":{"acme/x":{}}}"#, "acme/do", "no such method"),
            (Revision::MODERN, DECLARED, "initialize", "no such method"),
            (Revision::MODERN, DECLARED, "notifications/acme", "no such method"),
            (Revision::V2025_11_25, DECLARED, "acme/do", "another era"),
        ] {
            let said = refused(revision, capabilities, method).unwrap();
            assert!(said.contains(reason), "{method} {capabilities}: {said}");
        }
        let (_, other) = serve(Era::Modern, &offers("acme/x"), |config| {
            (config.name, config.prefix) = ("t".into(), "t__".into());
        })
        .await;
        fixture.bench.offer(vec![Target::Upstream(Arc::clone(&fixture.upstream)), Target::Upstream(other)]).await;
        let said = refused(Revision::MODERN, DECLARED, "acme/do").unwrap();
        assert!(said.contains("several servers"), "{said}");
    }

    #[actix::test]
    async fn tasks_are_served_here_and_share_nothing() {
        let fixture = Fixture::with(Era::Modern, &offers(SERVED_HERE[0]), |_| {}).await;
        let declared = json!({ "extensions": { SERVED_HERE[0]: {} } }).to_string();
        assert!(refusal(&fixture.bench, Revision::MODERN, &declared, "acme/do").is_some());
    }

    #[actix::test]
    async fn nothing_passes_unjudged_where_something_of_its_server_is_reviewed() {
        for (policy, passes) in [
            ("default: review_writes", false),
            ("default: review_writes, rules: [{ methods: \"acme/*\", servers: s, then: allow }]", true),
            ("default: allow, rules: [{ methods: \"acme/*\", then: deny }]", false),
        ] {
            let bench = Bench::new(&format!("policy: {{ {policy} }}")).await;
            let (_, upstream) = serve(Era::Modern, &offers("acme/x"), |_| {}).await;
            bench.offer(vec![Target::Upstream(upstream)]).await;
            assert_eq!(refusal(&bench, Revision::MODERN, DECLARED, "acme/do").is_none(), passes, "{policy}");
        }
    }

    #[actix::test]
    async fn its_parameters_and_its_result_pass_as_they_are() {
        let fixture = Fixture::with(Era::Modern, &offers("acme/x"), |_| {}).await;
        fixture.server.answers(|asked| {
            let result = json!({ "method": asked.method, "n": asked.params["n"], "name": asked.params["name"] });
            Box::pin(std::future::ready(countersign_upstream::testing::fake::ok(result)))
        });
        let exchange = fixture.bench.exchange(Revision::MODERN, DECLARED);
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"acme/do","params":{"n":1,"name":"s__x"}}"#;
        let reply = call(&fixture.bridge, &exchange, &request(text)).await.unwrap();
        assert_eq!(value(&reply), json!({ "method": "acme/do", "n": 1, "name": "s__x" }));
    }
}
