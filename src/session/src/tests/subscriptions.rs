//! What clients are told of resources that change.

use serde_json::{Value, json};

use super::bench::{Bench, ask, pause, refused};
use crate::Handling;
use countersign_exchange::testing::sent;
use countersign_protocol::Revision;
use countersign_provider::ProviderEvent;

const OLD: Revision = Revision::V2025_11_25;
const NEW: Revision = Revision::MODERN;

fn changed(bench: &Bench) {
    let uris = ["f://a", "f://b"].map(str::to_owned).to_vec();
    bench.fake.events.send(ProviderEvent::ResourcesUpdated(uris)).unwrap();
}

/// The next notification of that method.
async fn told(client: &Handling, method: &str) -> Value {
    loop {
        if let Some(message) = sent(client).into_iter().find(|message| message["method"] == method) {
            return message["params"].clone();
        }
        pause().await;
    }
}

#[actix::test]
async fn a_subscriber_hears_of_its_resource_until_it_unsubscribes() {
    let bench = Bench::new("").await;
    let (client, other) = (bench.client(OLD, "{}"), bench.client(OLD, "{}"));
    let before = bench.server.memory.used_by("ann");
    let uri = json!({ "uri": "f://a" });
    ask(&client, "resources/subscribe", &uri).await;
    assert!(bench.server.memory.used_by("ann") > before, "it takes its principal's memory");
    changed(&bench);
    assert_eq!(told(&client, "notifications/resources/updated").await["uri"], "f://a");
    ask(&client, "resources/unsubscribe", &uri).await;
    assert_eq!(bench.server.memory.used_by("ann"), before);
    ask(&other, "resources/subscribe", &uri).await;
    changed(&bench);
    told(&other, "notifications/resources/updated").await;
    assert!(sent(&client).is_empty());
}

#[actix::test]
async fn a_subscription_is_refused_as_reading_is_and_beyond_a_bound() {
    let bench = Bench::new("limits: { max_subscriptions: 1 }").await;
    let client = bench.client(OLD, "{}");
    assert_eq!(refused(&client, "resources/subscribe", &json!({ "uri": "f://b" })).await.1, "RESOURCE_NOT_FOUND");
    // One that is not there yet may come.
    ask(&client, "resources/subscribe", &json!({ "uri": "f://later" })).await;
    assert_eq!(refused(&client, "resources/subscribe", &json!({ "uri": "f://a" })).await.1, "OVERLOADED");
    ask(&client, "resources/unsubscribe", &json!({ "uri": "f://later" })).await;
    ask(&client, "resources/subscribe", &json!({ "uri": "f://a" })).await;
}

#[actix::test]
async fn a_listener_is_told_what_it_will_hear_and_hears_that_until_the_gateway_ends() {
    let bench = Bench::new("").await;
    let client = bench.client(NEW, "{}");
    let asked = json!({ "notifications": {
        "toolsListChanged": true, "resourceSubscriptions": ["f://a", "f://b", "g://nowhere"],
    } });
    let hearing = async {
        let acknowledged = told(&client, "notifications/subscriptions/acknowledged").await;
        assert_eq!(acknowledged["notifications"]["resourceSubscriptions"], json!(["f://a"]), "what it may read");
        changed(&bench);
        let updated = told(&client, "notifications/resources/updated").await;
        assert_eq!(updated["uri"], "f://a");
        assert_eq!(updated["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
        bench.server.long_requests.shutdown.cancel();
    };
    let (result, ()) = tokio::join!(ask(&client, "subscriptions/listen", &asked), hearing);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
}

#[actix::test]
async fn a_listener_makes_room_for_the_next_one_of_its_principal() {
    let bench = Bench::new("limits: { max_streams: 1, max_subscriptions: 1 }").await;
    let (first, second) = (bench.client(NEW, "{}"), bench.client(NEW, "{}"));
    let asked = json!({ "notifications": { "toolsListChanged": true } });
    let next = async {
        told(&first, "notifications/subscriptions/acknowledged").await;
        tokio::select! {
            _ = told(&second, "notifications/subscriptions/acknowledged") => {}
            _ = ask(&second, "subscriptions/listen", &asked) => panic!("it listens"),
        }
    };
    let (result, ()) = tokio::join!(ask(&first, "subscriptions/listen", &asked), next);
    assert!(result["_meta"].get("io.modelcontextprotocol/subscriptionId").is_some(), "it is ended in good order");
    let many = json!({ "notifications": { "resourceSubscriptions": ["f://a", "f://c"] } });
    assert_eq!(refused(&first, "subscriptions/listen", &many).await.1, "OVERLOADED");
}
