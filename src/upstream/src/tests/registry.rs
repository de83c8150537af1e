//! Tests of starting, replacing and stopping upstreams by configuration.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{registry::Upstreams, server::accounts::AccountCredentials};
use countersign_protocol::ErrorKind;

/// The servers by name, with one entry for each time that the name was configured.
type Servers = Arc<Mutex<HashMap<String, Vec<Arc<FakeServer>>>>>;

fn upstreams() -> (Upstreams, Servers) {
    upstreams_of(legacy)
}

/// Creates upstreams whose servers come from a function.
fn upstreams_of(new_server: fn() -> Arc<FakeServer>) -> (Upstreams, Servers) {
    let servers = Servers::default();
    let known = Arc::clone(&servers);
    let connectors = Arc::new(move |config: &Arc<UpstreamConfig>, _: Option<&AccountCredentials>| {
        let fake = new_server();
        known.lock().unwrap().entry(config.name.clone()).or_default().push(Arc::clone(&fake));
        vec![fake as Arc<dyn Connector>]
    });
    (Upstreams::with_connectors(connectors, None), servers)
}

fn names(providers: &[Arc<Upstream>]) -> Vec<String> {
    providers.iter().map(|provider| provider.config.name.clone()).collect()
}

async fn settle(upstreams: &Upstreams) {
    upstreams.wait_until_settled(Duration::from_secs(60)).await;
}

#[actix::test]
async fn unchanged_upstream_survives_reconfiguration() {
    let (upstreams, servers) = upstreams();
    let providers = upstreams.apply(&[config("b"), config("a"), config("c")]);
    assert_eq!(names(&providers), ["b", "a", "c"], "in the order of the configuration");
    settle(&upstreams).await;
    let tools = |upstreams: &Upstreams, name: &str| upstreams.get(name).unwrap().status().tools;
    assert_eq!(tools(&upstreams, "a"), 1);
    let before = upstreams.get("a").unwrap();

    let changed = UpstreamConfig { max_in_flight: 7, ..config("b") };
    let providers = upstreams.apply(&[config("a"), changed, config("d")]);
    assert_eq!(names(&providers), ["a", "b", "d"]);
    assert!(Arc::ptr_eq(&before, &upstreams.get("a").unwrap()));
    // Only the settings differ, so the lists are kept.
    assert_eq!(tools(&upstreams, "b"), 1);
    assert!(upstreams.get("c").is_none());
    settle(&upstreams).await;

    let servers = Arc::clone(&servers);
    let open = |name: &str, index: usize| servers.lock().unwrap()[name][index].open_links().len();
    wait_until(|| open("b", 0) == 0 && open("c", 0) == 0).await;
    assert_eq!((open("a", 0), open("b", 1), open("d", 0)), (1, 1, 1));
    upstreams.stop().await;
    wait_until(|| open("a", 0) + open("b", 1) + open("d", 0) == 0).await;
}

#[actix::test]
async fn stop_fails_running_calls() {
    for new_server in [legacy, modern] {
        let (upstreams, servers) = upstreams_of(new_server);
        upstreams.apply(&[config("a")]);
        settle(&upstreams).await;
        let fake = Arc::clone(&servers.lock().unwrap()["a"][0]);
        fake.answer_with(|_| Box::pin(std::future::pending()));
        let (upstream, caller) = (upstreams.get("a").unwrap(), agent("ann"));
        let (failed, ()) = tokio::join!(call(&upstream, &caller), async {
            wait_until(|| fake.request_count("tools/call") == 1).await;
            upstreams.stop().await;
        });
        let failed = failed.unwrap_err();
        assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &"unknown".into()));
    }
}

#[actix::test]
async fn removed_server_disappears_from_metrics() {
    let metrics = countersign_telemetry::metrics::Metrics::install().unwrap();
    let shown = |name: &str| metrics.render().contains(&format!("upstream=\"{name}\""));
    let (upstreams, _servers) = upstreams();
    upstreams.apply(&[config("metrics-one"), config("metrics-two")]);
    settle(&upstreams).await;
    assert!(shown("metrics-one") && shown("metrics-two"));
    // With other settings, it is still the same server in metrics.
    upstreams.apply(&[UpstreamConfig { max_in_flight: 7, ..config("metrics-two") }]);
    assert!(!shown("metrics-one") && shown("metrics-two"));
    settle(&upstreams).await;
    upstreams.apply(&[config("metrics-one")]);
    assert!(shown("metrics-one") && !shown("metrics-two"));
    upstreams.stop().await;
}

#[actix::test]
async fn missing_required_lists_unavailable_servers() {
    let (upstreams, servers) = upstreams();
    let required = |name: &str| UpstreamConfig { required: true, ..config(name) };
    upstreams.apply(&[required("a"), config("b")]);
    settle(&upstreams).await;
    assert!(upstreams.missing_required(|_| true).is_empty());
    assert_eq!(upstreams.missing_required(|_| false), ["a"], "its tools are in no route table");
    for server in ["a", "b"] {
        let fake = Arc::clone(&servers.lock().unwrap()[server][0]);
        fake.set_unreachable(true);
        fake.open_links()[0].closed.cancel();
    }
    wait_until(|| upstreams.missing_required(|_| true) == ["a"]).await;
    upstreams.stop().await;
}
