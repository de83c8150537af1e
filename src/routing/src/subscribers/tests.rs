use std::collections::BTreeMap;

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use countersign_config::{UpstreamConfig, UpstreamTarget};
use countersign_domain::principal::Principal;
use countersign_protocol::Revision;
use countersign_upstream::{Catalog, testing};

fn upstream() -> Arc<Upstream> {
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
    testing::stocked(UpstreamConfig::new("fs", target), testing::negotiated(Revision::V2025_11_25), Catalog::default())
}

/// A session that counts what it is told.
struct Counter {
    id: Arc<str>,
    principal: Principal,
    heard: AtomicUsize,
}

impl Subscriber for Counter {
    fn id(&self) -> &Arc<str> {
        &self.id
    }

    fn principal(&self) -> &Principal {
        &self.principal
    }

    fn send(&self, _: Bytes) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }
}

fn session() -> Arc<Counter> {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let id = format!("session {}", LAST.fetch_add(1, Ordering::Relaxed)).into();
    Arc::new(Counter { id, principal: Principal::local_agent(), heard: AtomicUsize::new(0) })
}

fn agent(name: &str) -> Arc<Principal> {
    Arc::new(Principal { name: name.into(), ..Principal::local_agent() })
}

fn heard(session: &Counter) -> usize {
    session.heard.load(Ordering::Relaxed)
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Value>>>);

impl Ear {
    fn sink(&self) -> ListenSink {
        let heard = self.0.clone();
        Arc::new(move |message: Bytes| {
            heard.lock().push(serde_json::from_slice(&message).unwrap());
            true
        })
    }

    fn methods(&self) -> Vec<String> {
        self.0.lock().iter().map(|message| message["method"].as_str().unwrap().to_owned()).collect()
    }
}

fn filter(uris: &[&str]) -> ListenFilter {
    ListenFilter { uris: uris.iter().map(|uri| (*uri).to_owned()).collect(), ..ListenFilter::default() }
}

fn at(upstream: &Arc<Upstream>) -> impl Fn(&str) -> Option<Source> {
    let upstream = upstream.clone();
    move |uri| {
        let own = upstream.names.own_uri(uri)?.to_owned();
        Some(Source { upstream: upstream.clone(), own })
    }
}

fn id(number: u64) -> RequestId {
    RequestId::from_json(&number.to_string()).unwrap()
}

#[test]
fn an_upstream_watches_once_while_anybody_wants_to_hear() {
    let upstream = upstream();
    let mut all = Subscribers::default();
    let (one, two) = (session(), session());
    assert!(all.subscribe(&(one.clone() as Arc<dyn Subscriber>), "fs+a:b".into(), at(&upstream)).is_some());
    assert!(
        all.subscribe(&(one.clone() as Arc<dyn Subscriber>), "fs+a:b".into(), at(&upstream)).is_none(),
        "it is in force already"
    );
    assert!(all.subscribe(&(two.clone() as Arc<dyn Subscriber>), "fs+a:b".into(), at(&upstream)).is_none());
    let (key, ready) = all.listen(
        id(1),
        agent("local-agent"),
        filter(&["fs+a:b", "fs+a:c", "tracker://x"]),
        Ear::default().sink(),
        at(&upstream),
    );
    assert_eq!(ready.iter().map(|(uri, _)| uri.as_str()).collect::<Vec<_>>(), ["fs+a:c"]);
    assert_eq!(testing::watched(&upstream), ["a:b", "a:c"]);
    all.unlisten(key);
    assert_eq!(testing::watched(&upstream), ["a:b"]);
    all.unsubscribe(&one.id, "fs+a:b");
    all.unsubscribe(&one.id, "fs+a:b");
    assert_eq!(testing::watched(&upstream), ["a:b"]);
    all.unsubscribe(&two.id, "fs+a:b");
    assert!(testing::watched(&upstream).is_empty());
    assert!(all.by_uri.is_empty() && all.listeners.is_empty());
}

#[test]
fn updates_reach_exactly_who_asked() {
    let upstream = upstream();
    let mut all = Subscribers::default();
    let (one, two) = (session(), session());
    all.subscribe(&(one.clone() as Arc<dyn Subscriber>), "fs+a:/b".into(), at(&upstream));
    all.subscribe(&(two.clone() as Arc<dyn Subscriber>), "fs+a:/c".into(), at(&upstream));
    let ear = Ear::default();
    let (key, _) =
        all.listen(id(7), agent("local-agent"), filter(&["fs+a:/b", "tracker://x"]), ear.sink(), at(&upstream));
    all.updated("fs+a:/b", None);
    assert!(ear.methods().is_empty(), "nothing before the acknowledgement");
    all.acknowledge(key, &[]);
    all.updated("fs+a:/b", None);
    // Part of what was asked for, and no part of it.
    all.updated("fs+a:/b/d/e", None);
    all.updated("fs+a:/bb", None);
    // A module tells of each resource itself.
    all.updated("tracker://x/y", None);
    assert_eq!((heard(&one), heard(&two)), (3, 0));
    let messages = ear.0.lock().clone();
    assert_eq!(messages[0]["method"], "notifications/subscriptions/acknowledged");
    let honoured = serde_json::json!({ "resourceSubscriptions": ["fs+a:/b", "tracker://x"] });
    assert_eq!(messages[0]["params"]["notifications"], honoured);
    let uris: Vec<_> = messages[1..].iter().map(|m| m["params"]["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, ["fs+a:/b", "fs+a:/b/d/e"]);
    assert!(messages.iter().all(|m| m["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 7));
}

#[test]
fn what_a_server_refuses_is_not_honoured() {
    let upstream = upstream();
    let mut all = Subscribers::default();
    let ear = Ear::default();
    let (key, _) = all.listen(id(1), agent("local-agent"), filter(&["fs+a:b"]), ear.sink(), at(&upstream));
    all.acknowledge(key, &["fs+a:b".to_owned()]);
    assert_eq!(ear.0.lock()[0]["params"]["notifications"], serde_json::json!({}));
    assert!(testing::watched(&upstream).is_empty());
    all.updated("fs+a:b", None);
    assert_eq!(ear.methods().len(), 1);
}

#[test]
fn list_changes_reach_who_listens_for_that_list() {
    let mut all = Subscribers::default();
    let (tools, rest, deaf) = (Ear::default(), Ear::default(), Arc::new(|_: Bytes| false) as ListenSink);
    let none = |_: &str| None;
    let (a, _) = all.listen(
        id(1),
        agent("local-agent"),
        ListenFilter { tools_list_changed: true, ..ListenFilter::default() },
        tools.sink(),
        none,
    );
    let both = ListenFilter { prompts_list_changed: true, resources_list_changed: true, ..ListenFilter::default() };
    let (b, _) = all.listen(id(2), agent("local-agent"), both.clone(), rest.sink(), none);
    let (c, _) = all.listen(id(3), agent("local-agent"), both, deaf, none);
    for key in [a, b, c] {
        all.acknowledge(key, &[]);
    }
    for list in [List::Tools, List::Prompts, List::Resources] {
        all.list_changed(list);
    }
    assert_eq!(tools.methods()[1..], ["notifications/tools/list_changed"]);
    assert_eq!(rest.methods()[1..], ["notifications/prompts/list_changed", "notifications/resources/list_changed"]);
    assert_eq!(all.listeners.len(), 2, "who does not read is forgotten");
}

#[test]
fn watches_move_with_the_routes() {
    let (old, new) = (upstream(), upstream());
    let mut all = Subscribers::default();
    let one = session();
    all.subscribe(&(one.clone() as Arc<dyn Subscriber>), "fs+a:b".into(), at(&old));
    all.subscribe(&(one.clone() as Arc<dyn Subscriber>), "tracker://x".into(), |_| None);
    all.move_sources(at(&old));
    assert_eq!(testing::watched(&old), ["a:b"]);
    all.move_sources(at(&new));
    assert!(testing::watched(&old).is_empty());
    assert_eq!(testing::watched(&new), ["a:b"]);
    all.move_sources(|_| None);
    assert!(testing::watched(&new).is_empty());
    all.move_sources(at(&old));
    all.unsubscribe(&one.id, "fs+a:b");
    assert!(testing::watched(&old).is_empty());
}

#[test]
fn a_uri_is_part_of_those_above_it() {
    assert_eq!(wholes("a:/b/c?d").collect::<Vec<_>>(), ["a:/b/c", "a:/b/", "a:/b", "a:/", "a:"]);
    assert_eq!(wholes("a:b/").collect::<Vec<_>>(), ["a:b"]);
    assert!(wholes("é").next().is_none());
    assert!(wholes(&"/".repeat(100_000)).count() <= 64);
}

#[actix::test]
async fn what_is_not_everybodys_to_read_is_told_to_those_who_may() {
    let mut all = Subscribers::default();
    let own = session();
    let [mine, theirs, viewers] = [Ear::default(), Ear::default(), Ear::default()];
    let viewer =
        Arc::new(Principal { role: countersign_domain::principal::Role::Viewer, ..Principal::clone(&agent("eve")) });
    for uri in ["change://a", "countersign://changes"] {
        all.subscribe(&(own.clone() as Arc<dyn Subscriber>), uri.into(), |_| None);
    }
    for (n, principal, ear) in [(1, agent("bob"), &mine), (2, agent("mallory"), &theirs), (3, viewer, &viewers)] {
        let (key, _) =
            all.listen(id(n), principal, filter(&["change://a", "countersign://changes"]), ear.sink(), |_| None);
        all.acknowledge(key, &[]);
    }
    let of = |principal: &str, viewers| Audience { principal: principal.into(), viewers };
    all.updated("change://a", Some(&of("bob", true)));
    all.updated("countersign://changes", Some(&of("bob", false)));
    assert_eq!(heard(&own), 0, "it is another principal's session");
    // Beside the acknowledgement.
    assert_eq!([mine, theirs, viewers].map(|ear| ear.methods().len() - 1), [2, 0, 1]);
    all.updated("change://a", Some(&of("local-agent", true)));
    assert_eq!(heard(&own), 1);
}
