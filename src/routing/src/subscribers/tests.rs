use std::{cell::RefCell, collections::BTreeMap};

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use countersign_config::{UpstreamConfig, UpstreamTarget};
use countersign_domain::principal::{Principal, Role};
use countersign_protocol::Revision;
use countersign_upstream::{Catalog, Upstream, testing};

fn upstream() -> Arc<Upstream> {
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
    testing::disconnected_upstream(
        UpstreamConfig::new("fs", target),
        testing::negotiated(Revision::V2025_11_25),
        Catalog::default(),
    )
}

/// A session that counts its messages.
struct Counter {
    id: Arc<str>,
    principal: Principal,
    messages: AtomicUsize,
}

impl Subscriber for Counter {
    fn id(&self) -> &Arc<str> {
        &self.id
    }

    fn principal(&self) -> &Principal {
        &self.principal
    }

    fn requester(&self) -> Option<OwnedRequester> {
        Some(requester(self.principal.clone()))
    }

    fn send(&self, _: Bytes) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }
}

fn session() -> Arc<Counter> {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let id = format!("session {}", LAST.fetch_add(1, Ordering::Relaxed)).into();
    Arc::new(Counter { id, principal: Principal::local_agent(), messages: AtomicUsize::new(0) })
}

fn requester(principal: Principal) -> OwnedRequester {
    OwnedRequester { principal: Arc::new(principal), transport: "http", revision: "2025-11-25", client: None }
}

fn agent(name: &str) -> OwnedRequester {
    requester(Principal { name: name.into(), ..Principal::local_agent() })
}

fn message_count(session: &Counter) -> usize {
    session.messages.load(Ordering::Relaxed)
}

#[derive(Clone, Default)]
struct RecordingSink(Arc<Mutex<Vec<Value>>>);

impl RecordingSink {
    fn sink(&self) -> ListenSink {
        let messages = self.0.clone();
        Arc::new(move |message: Bytes| {
            messages.lock().push(serde_json::from_slice(&message).unwrap());
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

fn source_at(upstream: &Arc<Upstream>) -> impl Fn(&str) -> Option<UpstreamResource> {
    let upstream = upstream.clone();
    move |uri| {
        let own = upstream.names.upstream_uri(uri)?.to_owned();
        Some(UpstreamResource { upstream: upstream.clone(), own_uri: own })
    }
}

fn id(number: u64) -> RequestId {
    RequestId::from_json(&number.to_string()).unwrap()
}

#[test]
fn upstream_watches_resource_until_last_unsubscribe() {
    let upstream = upstream();
    let mut subscribers = Subscribers::default();
    let (one, two) = (session(), session());
    for session in [&one, &one, &two] {
        let subscriber = session.clone() as Arc<dyn Subscriber>;
        let ready = subscribers.subscribe(&subscriber, "fs+a:b".into(), source_at(&upstream));
        assert!(ready.is_some(), "each subscriber waits for the answer of the server");
    }
    let (key, ready) = subscribers.add_listener(
        Listener::new(
            id(1),
            agent("local-agent"),
            filter(&["fs+a:b", "fs+a:c", "tracker://x"]),
            RecordingSink::default().sink(),
        ),
        source_at(&upstream),
    );
    let awaited_uris: HashSet<_> = ready.iter().map(|(uri, _)| uri.as_str()).collect();
    assert_eq!(awaited_uris, HashSet::from(["fs+a:b", "fs+a:c"]));
    assert_eq!(testing::watched_uris(&upstream), ["a:b", "a:c"]);
    subscribers.remove_listener(key);
    assert_eq!(testing::watched_uris(&upstream), ["a:b"]);
    subscribers.unsubscribe(&one.id, "fs+a:b");
    subscribers.unsubscribe(&one.id, "fs+a:b");
    assert_eq!(testing::watched_uris(&upstream), ["a:b"]);
    subscribers.unsubscribe(&two.id, "fs+a:b");
    assert!(testing::watched_uris(&upstream).is_empty());
    assert!(subscribers.by_uri.is_empty() && subscribers.listeners.is_empty());
}

#[test]
fn updates_reach_only_matching_subscribers() {
    let upstream = upstream();
    let mut subscribers = Subscribers::default();
    let (one, two) = (session(), session());
    subscribers.subscribe(&(one.clone() as Arc<dyn Subscriber>), "fs+a:/b".into(), source_at(&upstream));
    subscribers.subscribe(&(two.clone() as Arc<dyn Subscriber>), "fs+a:/c".into(), source_at(&upstream));
    let recorder = RecordingSink::default();
    let (key, _) = subscribers.add_listener(
        Listener::new(id(7), agent("local-agent"), filter(&["fs+a:/b", "tracker://x"]), recorder.sink()),
        source_at(&upstream),
    );
    subscribers.notify_updated("fs+a:/b", None, None);
    assert!(recorder.methods().is_empty(), "nothing before the acknowledgement");
    subscribers.acknowledge(key, &[]);
    subscribers.notify_updated("fs+a:/b", None, None);
    // The first URI is a part of the watched resource, and the second URI is not.
    subscribers.notify_updated("fs+a:/b/d/e", None, None);
    subscribers.notify_updated("fs+a:/bb", None, None);
    // A module announces changes of each resource itself.
    subscribers.notify_updated("tracker://x/y", None, None);
    assert_eq!((message_count(&one), message_count(&two)), (3, 0));
    let messages = recorder.0.lock().clone();
    assert_eq!(messages[0]["method"], "notifications/subscriptions/acknowledged");
    let acknowledged_filter = serde_json::json!({ "resourceSubscriptions": ["fs+a:/b", "tracker://x"] });
    assert_eq!(messages[0]["params"]["notifications"], acknowledged_filter);
    let uris: Vec<_> = messages[1..].iter().map(|m| m["params"]["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, ["fs+a:/b", "fs+a:/b/d/e"]);
    assert!(messages.iter().all(|m| m["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 7));
}

#[test]
fn refused_resource_is_not_acknowledged() {
    let upstream = upstream();
    let mut subscribers = Subscribers::default();
    let recorder = RecordingSink::default();
    let (key, _) = subscribers.add_listener(
        Listener::new(id(1), agent("local-agent"), filter(&["fs+a:b"]), recorder.sink()),
        source_at(&upstream),
    );
    subscribers.acknowledge(key, &["fs+a:b".to_owned()]);
    assert_eq!(recorder.0.lock()[0]["params"]["notifications"], serde_json::json!({}));
    assert!(testing::watched_uris(&upstream).is_empty());
    subscribers.notify_updated("fs+a:b", None, None);
    assert_eq!(recorder.methods().len(), 1);
}

#[test]
fn list_changes_reach_only_matching_listeners() {
    let mut subscribers = Subscribers::default();
    let (tools, rest, closed) =
        (RecordingSink::default(), RecordingSink::default(), Arc::new(|_: Bytes| false) as ListenSink);
    let other = RecordingSink::default();
    let none = |_: &str| None;
    let (a, _) = subscribers.add_listener(
        Listener::new(
            id(1),
            agent("local-agent"),
            ListenFilter { tools_list_changed: true, ..ListenFilter::default() },
            tools.sink(),
        ),
        none,
    );
    let both = ListenFilter { prompts_list_changed: true, resources_list_changed: true, ..ListenFilter::default() };
    let all = ListenFilter { tools_list_changed: true, ..both.clone() };
    let (b, _) = subscribers.add_listener(Listener::new(id(2), agent("local-agent"), both.clone(), rest.sink()), none);
    let (c, _) = subscribers.add_listener(Listener::new(id(3), agent("local-agent"), both, closed), none);
    let (d, _) = subscribers.add_listener(Listener::new(id(4), agent("bob"), all, other.sink()), none);
    for key in [a, b, c, d] {
        subscribers.acknowledge(key, &[]);
    }
    for list in [List::Tools, List::Prompts, List::Resources] {
        subscribers.notify_list_changed(list, &|principal| principal.name == "local-agent");
    }
    assert_eq!(tools.methods()[1..], ["notifications/tools/list_changed"]);
    assert_eq!(rest.methods()[1..], ["notifications/prompts/list_changed", "notifications/resources/list_changed"]);
    assert_eq!(other.methods().len(), 1, "only the acknowledgement: the changes do not concern bob");
    assert_eq!(subscribers.listeners.len(), 3, "a listener that does not read is removed");
}

#[test]
fn watches_move_to_new_upstream_with_routes() {
    let (old, new) = (upstream(), upstream());
    let mut subscribers = Subscribers::default();
    let one = session();
    subscribers.subscribe(&(one.clone() as Arc<dyn Subscriber>), "fs+a:b".into(), source_at(&old));
    subscribers.subscribe(&(one.clone() as Arc<dyn Subscriber>), "tracker://x".into(), |_| None);
    subscribers.move_sources(source_at(&old));
    assert_eq!(testing::watched_uris(&old), ["a:b"]);
    subscribers.move_sources(source_at(&new));
    assert!(testing::watched_uris(&old).is_empty());
    assert_eq!(testing::watched_uris(&new), ["a:b"]);
    subscribers.move_sources(|_| None);
    assert!(testing::watched_uris(&new).is_empty());
    subscribers.move_sources(source_at(&old));
    subscribers.unsubscribe(&one.id, "fs+a:b");
    assert!(testing::watched_uris(&old).is_empty());
}

#[actix::test]
async fn private_updates_reach_only_the_audience() {
    let mut subscribers = Subscribers::default();
    let own = session();
    let [mine, theirs, viewers] = [RecordingSink::default(), RecordingSink::default(), RecordingSink::default()];
    let viewer = requester(Principal::new("eve", Role::Viewer));
    for uri in ["change://a", "countersign://changes"] {
        subscribers.subscribe(&(own.clone() as Arc<dyn Subscriber>), uri.into(), |_| None);
    }
    for (n, requester, recorder) in [(1, agent("bob"), &mine), (2, agent("mallory"), &theirs), (3, viewer, &viewers)] {
        let (key, _) = subscribers.add_listener(
            Listener::new(id(n), requester, filter(&["change://a", "countersign://changes"]), recorder.sink()),
            |_| None,
        );
        subscribers.acknowledge(key, &[]);
    }
    let audience = |principal: &str, include_viewers| Audience { principal: principal.into(), include_viewers };
    subscribers.notify_updated("change://a", Some(&audience("bob", true)), None);
    subscribers.notify_updated("countersign://changes", Some(&audience("bob", false)), None);
    assert_eq!(message_count(&own), 0, "it is another principal's session");
    // The counts exclude the acknowledgement.
    assert_eq!([mine, theirs, viewers].map(|recorder| recorder.methods().len() - 1), [2, 0, 1]);
    subscribers.notify_updated("change://a", Some(&audience("local-agent", true)), None);
    assert_eq!(message_count(&own), 1);
}

#[test]
fn policy_is_asked_once_per_requester_of_an_update() {
    let upstream = upstream();
    let mut subscribers = Subscribers::default();
    let (one, two) = (session(), session());
    for (session, uri) in [(&one, "fs+a:/"), (&one, "fs+a:/b"), (&two, "fs+a:/")] {
        subscribers.subscribe(&(session.clone() as Arc<dyn Subscriber>), uri.into(), source_at(&upstream));
    }
    let recorder = RecordingSink::default();
    let (key, _) = subscribers
        .add_listener(Listener::new(id(1), agent("bob"), filter(&["fs+a:/"]), recorder.sink()), source_at(&upstream));
    subscribers.acknowledge(key, &[]);
    let asked = RefCell::new(Vec::new());
    let may_read = |requester: &Requester<'_>| {
        asked.borrow_mut().push(requester.principal.name.clone());
        requester.principal.name == "bob"
    };
    subscribers.notify_updated("fs+b:/", None, Some(&may_read));
    assert!(asked.borrow().is_empty(), "nobody subscribed to the resource");
    subscribers.notify_updated("fs+a:/b", None, Some(&may_read));
    assert_eq!(*asked.borrow(), ["local-agent", "bob"]);
    assert_eq!((message_count(&one), message_count(&two)), (0, 0));
    assert_eq!(recorder.methods()[1..], ["notifications/resources/updated"]);
}
