//! Notifications about resources that change.

use std::sync::Arc;

use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error, pause};
use crate::RequestScope;
use countersign_exchange::{reply::RelatedChannel, testing::take_sent_messages};
use countersign_protocol::{Era, Revision};
use countersign_provider::ProviderEvent;

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
