//! Notifications about resources that change.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error, pause};
use crate::gateway::server::RequestScope;
use countersign_config::{UpstreamConfig, UpstreamTarget};
use countersign_domain::policy::Policy;
use countersign_exchange::{reply::RelatedChannel, testing::take_sent_messages};
use countersign_protocol::{Era, Revision, rpc_error::RpcError};
use countersign_provider::ProviderEvent;
use countersign_routing::{RouteTarget, actor::Reconfigure, table::Aliases};
use countersign_upstream::{
    LinkKind, Response,
    testing::{
        connected_upstream,
        fake::{self, FakeServer},
    },
};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;

fn change_resources(bench: &Bench) {
    let uris = ["f://a", "f://b"].map(str::to_owned).to_vec();
    bench.fake.events.send(ProviderEvent::ResourcesUpdated(uris)).unwrap();
}

/// Waits for the next notification with this method and returns its parameters.
async fn next_notification(client: &RequestScope, method: &str) -> Value {
    loop {
        if let Some(message) =
            take_sent_messages(&client.exchange).into_iter().find(|message| message["method"] == method)
        {
            return message["params"].clone();
        }
        pause().await;
    }
}

#[actix::test]
async fn subscriber_gets_updates_until_it_unsubscribes() {
    let bench = Bench::new("").await;
    let (client, other) = (bench.client(LEGACY, "{}"), bench.client(LEGACY, "{}"));
    let before = bench.server.memory.used_by("ann");
    let uri = json!({ "uri": "f://a" });
    ask(&client, "resources/subscribe", &uri).await;
    assert!(bench.server.memory.used_by("ann") > before, "a subscription takes its principal's memory");
    change_resources(&bench);
    assert_eq!(next_notification(&client, "notifications/resources/updated").await["uri"], "f://a");
    ask(&client, "resources/unsubscribe", &uri).await;
    assert_eq!(bench.server.memory.used_by("ann"), before);
    ask(&other, "resources/subscribe", &uri).await;
    change_resources(&bench);
    next_notification(&other, "notifications/resources/updated").await;
    assert!(take_sent_messages(&client.exchange).is_empty());
}

#[actix::test]
async fn unreadable_or_excess_subscription_is_refused() {
    let bench = Bench::new("limits: { max_subscriptions: 1 }").await;
    let client = bench.client(LEGACY, "{}");
    assert_eq!(ask_error(&client, "resources/subscribe", &json!({ "uri": "f://b" })).await.1, "RESOURCE_NOT_FOUND");
    // A resource that does not exist yet may appear later.
    ask(&client, "resources/subscribe", &json!({ "uri": "f://later" })).await;
    assert_eq!(ask_error(&client, "resources/subscribe", &json!({ "uri": "f://a" })).await.1, "OVERLOADED");
    ask(&client, "resources/unsubscribe", &json!({ "uri": "f://later" })).await;
    ask(&client, "resources/subscribe", &json!({ "uri": "f://a" })).await;
}

#[actix::test]
async fn listener_gets_acknowledged_updates_until_shutdown() {
    let bench = Bench::new("").await;
    let client = bench.client(MODERN, "{}");
    let params = json!({ "notifications": {
        "toolsListChanged": true, "resourceSubscriptions": ["f://a", "f://b", "g://nowhere"],
    } });
    let listening = async {
        let acknowledged = next_notification(&client, "notifications/subscriptions/acknowledged").await;
        assert_eq!(
            acknowledged["notifications"]["resourceSubscriptions"],
            json!(["f://a"]),
            "only the readable resource"
        );
        change_resources(&bench);
        let updated = next_notification(&client, "notifications/resources/updated").await;
        assert_eq!(updated["uri"], "f://a");
        assert_eq!(updated["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
        bench.server.long_requests.shutdown.cancel();
    };
    let (result, ()) = tokio::join!(ask(&client, "subscriptions/listen", &params), listening);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
}

#[actix::test]
async fn new_listener_evicts_listener_of_same_principal() {
    let bench = Bench::new("limits: { max_streams: 1, max_subscriptions: 1 }").await;
    let (mut first, second) = (bench.client(MODERN, "{}"), bench.client(MODERN, "{}"));
    // All requests of the first client share one channel, as over stdio.
    first.exchange.session = bench.clients.session("ann", Era::Legacy);
    first.exchange.related = RelatedChannel::Outbox(Arc::clone(&first.exchange.session));
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let next = async {
        next_notification(&first, "notifications/subscriptions/acknowledged").await;
        tokio::select! {
            _ = next_notification(&second, "notifications/subscriptions/acknowledged") => {}
            _ = ask(&second, "subscriptions/listen", &params) => panic!("the second listener ended"),
        }
    };
    let (result, ()) = tokio::join!(ask(&first, "subscriptions/listen", &params), next);
    assert!(
        result["_meta"].get("io.modelcontextprotocol/subscriptionId").is_some(),
        "the first listener ends with a result"
    );
    assert_eq!(next_notification(&first, "notifications/cancelled").await["requestId"], 1);
    let many = json!({ "notifications": { "resourceSubscriptions": ["f://a", "f://c"] } });
    assert_eq!(ask_error(&first, "subscriptions/listen", &many).await.1, "OVERLOADED");
}

/// Connects a gateway to the server `fs`, at which each client has a connection of its own.
async fn serve(bench: &Bench) -> Arc<FakeServer> {
    let server = FakeServer::new(Era::Legacy, LinkKind::Streams);
    *server.capabilities.lock() = json!({ "resources": { "subscribe": true } });
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
    let config = UpstreamConfig { elicitation: false, sampling: false, ..UpstreamConfig::new("fs", target) };
    bench.offer(vec![RouteTarget::Upstream(connected_upstream(config, &server).await)]).await;
    server
}

/// Methods, URIs and links of the requests that a server received.
type ReceivedRequests = Arc<Mutex<Vec<(String, String, usize)>>>;

/// Makes a server answer everything except the fourth subscription. The gateway subscribes to both resources itself
/// before it does so for the client.
fn leave_last_subscription_unanswered(server: &FakeServer) -> ReceivedRequests {
    let requests = ReceivedRequests::default();
    let received = Arc::clone(&requests);
    server.answer_with(move |request| {
        let uri = request.params["uri"].as_str().unwrap().to_owned();
        let is_last = request.method == "resources/subscribe" && received.lock().len() == 3;
        received.lock().push((request.method.clone(), uri, Arc::as_ptr(&request.link) as usize));
        Box::pin(async move { if is_last { std::future::pending().await } else { fake::ok(json!({})) } })
    });
    requests
}

fn listen_to_two_resources() -> Value {
    json!({ "notifications": { "resourceSubscriptions": ["fs+file:///a", "fs+file:///b"] } })
}

async fn wait_for_last_subscription(server: &FakeServer) {
    while server.request_count("resources/subscribe") < 4 {
        pause().await;
    }
}

#[actix::test]
async fn listener_dropped_while_subscribing_is_unsubscribed() {
    let bench = Bench::new("policy: { default: allow }").await;
    let server = serve(&bench).await;
    let requests = leave_last_subscription_unanswered(&server);
    let (client, params) = (bench.client(MODERN, "{}"), listen_to_two_resources());
    tokio::select! {
        _ = ask(&client, "subscriptions/listen", &params) => panic!("the listener ended"),
        () = wait_for_last_subscription(&server) => {}
    }
    let own_link = requests.lock()[3].2;
    let unsubscribed_uris = || -> HashSet<String> {
        let requests = requests.lock();
        let on_own_link = requests.iter().filter(|(_, _, link)| *link == own_link);
        on_own_link.filter(|(method, ..)| method == "resources/unsubscribe").map(|(_, uri, _)| uri.clone()).collect()
    };
    while unsubscribed_uris().len() < 2 {
        pause().await;
    }
}

#[actix::test]
async fn shutdown_ends_listener_while_it_subscribes() {
    let bench = Bench::new("policy: { default: allow }").await;
    let server = serve(&bench).await;
    leave_last_subscription_unanswered(&server);
    let (client, params) = (bench.client(MODERN, "{}"), listen_to_two_resources());
    let shutting_down = async {
        wait_for_last_subscription(&server).await;
        bench.server.long_requests.shutdown.cancel();
    };
    let (result, ()) = tokio::join!(ask(&client, "subscriptions/listen", &params), shutting_down);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
}

#[actix::test]
async fn each_subscriber_of_refused_resource_gets_error() {
    let bench = Bench::new("policy: { default: allow }").await;
    let server = serve(&bench).await;
    server.answer_with(|_| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(Response::Error(RpcError::new(-32602, "no such resource")))
        })
    });
    let (first, second) = (bench.client(LEGACY, "{}"), bench.client(LEGACY, "{}"));
    let uri = json!({ "uri": "fs+file:///a" });
    let errors =
        tokio::join!(ask_error(&first, "resources/subscribe", &uri), ask_error(&second, "resources/subscribe", &uri));
    assert_eq!((errors.0.1.as_str(), errors.1.1.as_str()), ("UPSTREAM_ERROR", "UPSTREAM_ERROR"));
}

/// Forbids `ann` to read the secret resources of the server `fs`.
const SECRETS_ARE_DENIED: &str =
    r#"policy: { default: allow, rules: [{ resources: "fs+file:///secret/**", principals: [ann], then: deny }] }"#;

async fn subscribe(client: &RequestScope, uris: &[&str]) {
    for uri in uris {
        ask(client, "resources/subscribe", &json!({ "uri": uri })).await;
    }
}

/// Announces changes of a secret resource and then of an open one.
fn update_both_resources(server: &FakeServer) {
    for uri in ["file:///secret/a", "file:///open"] {
        server.open_links()[0].send_notification("notifications/resources/updated", json!({ "uri": uri }));
    }
}

async fn next_updated_uri(client: &RequestScope) -> Value {
    next_notification(client, "notifications/resources/updated").await["uri"].clone()
}

#[actix::test]
async fn updates_reach_only_subscribers_that_may_read() {
    let bench = Bench::new(SECRETS_ARE_DENIED).await;
    let early = bench.client(LEGACY, "{}");
    // No server has the resources yet.
    subscribe(&early, &["fs+file:///secret/a", "fs+file:///open"]).await;
    let server = serve(&bench).await;
    let (parent, other) = (bench.client(LEGACY, "{}"), bench.client_of("bob", LEGACY, "{}"));
    let refused = ask_error(&parent, "resources/subscribe", &json!({ "uri": "fs+file:///secret/a" })).await;
    assert_eq!(refused.1, "POLICY_DENIED");
    subscribe(&parent, &["fs+file:///"]).await;
    subscribe(&other, &["fs+file:///secret/a"]).await;
    update_both_resources(&server);
    assert_eq!(next_updated_uri(&other).await, "fs+file:///secret/a");
    for client in [&early, &parent] {
        assert_eq!(next_updated_uri(client).await, "fs+file:///open");
    }
}

#[actix::test]
async fn rule_loaded_later_stops_updates() {
    let bench = Bench::new(SECRETS_ARE_DENIED).await;
    bench.allow_all_calls().await;
    let server = serve(&bench).await;
    let (session, listener) = (bench.client(LEGACY, "{}"), bench.client(MODERN, "{}"));
    let uris = ["fs+file:///secret/a", "fs+file:///open"];
    subscribe(&session, &uris).await;
    let params = json!({ "notifications": { "resourceSubscriptions": uris } });
    let reloading = async {
        let acknowledged = next_notification(&listener, "notifications/subscriptions/acknowledged").await;
        let acknowledged_uris = &acknowledged["notifications"]["resourceSubscriptions"];
        assert_eq!(acknowledged_uris.as_array().map(Vec::len), Some(2));
        let reconfigure = Reconfigure { policy: Policy::new(&bench.config.policy), aliases: Aliases::default() };
        bench.server.routing.router.send(reconfigure).await.unwrap().unwrap();
        update_both_resources(&server);
        for client in [&session, &listener] {
            assert_eq!(next_updated_uri(client).await, "fs+file:///open");
        }
        bench.server.long_requests.shutdown.cancel();
    };
    tokio::join!(ask(&listener, "subscriptions/listen", &params), reloading);
}
