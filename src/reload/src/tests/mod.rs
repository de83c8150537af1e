//! Reloads as a whole, with a gateway that notes what it is told to do.

mod restarts;

use std::path::Path;

use futures_util::{FutureExt as _, future::BoxFuture};

use super::*;
use countersign_config::{RoutesConfig, UpstreamConfig, WebhookConfig};
use countersign_domain::policy::{PolicyConfig, PolicyDefault};
use countersign_store::PolicySnapshots;

/// What was put into force, in order; fails at whatever is named here.
#[derive(Default)]
struct Notes {
    done: Mutex<Vec<String>>,
    fails: Mutex<&'static str>,
    /// As the store has it: what was saved here, and the newest.
    store: Mutex<PolicySnapshots>,
}

impl Notes {
    fn note(&self, what: &str, more: String) -> Result<(), String> {
        if *self.fails.lock().unwrap() == what {
            return Err(format!("{what} is broken"));
        }
        self.done.lock().unwrap().push(format!("{what} {more}"));
        Ok(())
    }
}

struct Noting(Arc<Notes>);

impl Applies for Noting {
    fn routing<'a>(&'a self, policy: &'a PolicyConfig, _: &'a RoutesConfig) -> BoxFuture<'a, Result<(), String>> {
        let done = self.0.note("routing", policy.default.as_str().to_owned());
        async { done }.boxed()
    }
    fn servers<'a>(
        &'a self,
        _: &'a [UpstreamConfig],
        servers: &'a [UpstreamConfig],
    ) -> BoxFuture<'a, Result<(), String>> {
        let trust = |s: &UpstreamConfig| format!("{}{}", s.name, if s.trust_annotations { "!" } else { "" });
        let done = self.0.note("servers", servers.iter().map(trust).collect::<Vec<_>>().join(","));
        async { done }.boxed()
    }
    fn webhooks<'a>(&'a self, now: &'a [WebhookConfig]) -> BoxFuture<'a, Result<(), String>> {
        let done = self.0.note("webhooks", now.iter().map(|w| w.name.as_str()).collect::<Vec<_>>().join(","));
        async { done }.boxed()
    }
    fn log_filter(&self, filter: &str) -> Result<(), String> {
        self.0.note("log", filter.to_owned())
    }
    fn save(&self, snapshot: PolicySnapshot, by_consent: bool) -> BoxFuture<'static, Result<(), String>> {
        if *self.0.fails.lock().unwrap() == "save" {
            return async { Err("the store is away".to_owned()) }.boxed();
        }
        let mut store = self.0.store.lock().unwrap();
        let own = |one: &Option<PolicySnapshot>| one.as_ref().map(|one| one.digest.clone());
        if by_consent || store.newest.is_none() || own(&store.newest) == own(&store.here) {
            store.newest = Some(snapshot.clone());
        }
        (store.here, store.is_told) = (Some(snapshot), true);
        async { Ok(()) }.boxed()
    }
    fn newest(&self) -> BoxFuture<'static, Option<String>> {
        let newest = self.0.store.lock().unwrap().newest.clone();
        async { newest.map(|newest| newest.digest) }.boxed()
    }
    fn record(&self, event: &'static str, by: &str, details: String) -> BoxFuture<'static, Result<(), String>> {
        let details: Value = serde_json::from_str(&details).unwrap();
        let done = self.0.note("record", format!("{event} {by} {}", details["loosens"].as_array().unwrap().len()));
        async { done }.boxed()
    }
}

struct Case {
    dir: tempfile::TempDir,
    notes: Arc<Notes>,
    events: Arc<Mutex<Vec<Value>>>,
    /// What who is told of an event can read then.
    asked: Arc<Mutex<Vec<Status>>>,
    reloads: Arc<Reloads>,
}

impl Case {
    fn new(yaml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("c.yaml"), yaml).unwrap();
        Self::on(dir, PolicySnapshots::default(), false)
    }

    /// What a gateway that is started with this file on the same store begins with. The one before was killed.
    async fn restarted(self, yaml: &str) -> Self {
        std::fs::write(self.file(), yaml).unwrap();
        let store = self.notes.store.lock().unwrap().clone();
        let case = Self::on(self.dir, store, false);
        case.reloads.begin().await.unwrap();
        case
    }

    fn on(dir: tempfile::TempDir, store: PolicySnapshots, accept: bool) -> Self {
        let file = dir.path().join("c.yaml");
        let flags = Flags { config: Some(file), data: Some("data".into()), ..Flags::default() };
        let source = Source { flags, env: Environment::of(dir.path(), &[("TOKEN", "s3cret")]) };
        let loaded = load(&source.flags, &source.env).unwrap();
        let (notes, events) = (
            Arc::new(Notes { store: Mutex::new(store.clone()), ..Notes::default() }),
            Arc::new(Mutex::new(Vec::new())),
        );
        let (told, asked) = (Arc::clone(&events), Arc::new(Mutex::new(Vec::new())));
        let statuses = Arc::clone(&asked);
        let reloads = Arc::new_cyclic(|me: &std::sync::Weak<Reloads>| {
            let me = me.clone();
            let tell = Box::new(move |event: &Value| {
                statuses.lock().unwrap().push(me.upgrade().unwrap().status());
                told.lock().unwrap().push(event.clone());
            });
            let opening = Opening::new(loaded, [7; 16], store, accept);
            Reloads::new(source, opening, Box::new(Noting(Arc::clone(&notes))), tell)
        });
        Self { dir, notes, events, asked, reloads }
    }

    fn file(&self) -> &Path {
        self.reloads.file().unwrap()
    }

    /// What was done, and what was told.
    async fn reload(&self, yaml: &str) -> (Vec<String>, Vec<String>) {
        std::fs::write(self.file(), yaml).unwrap();
        self.reloads.reload(Why::File).await;
        self.done()
    }

    fn done(&self) -> (Vec<String>, Vec<String>) {
        let kind = |event: Value| event["type"].as_str().unwrap().to_owned();
        let done = std::mem::take(&mut *self.notes.done.lock().unwrap());
        (done, std::mem::take(&mut *self.events.lock().unwrap()).into_iter().map(kind).collect())
    }

    fn digest(&self) -> String {
        self.reloads.status().waiting.unwrap().digest
    }

    fn fail(&self, what: &'static str) {
        *self.notes.fails.lock().unwrap() = what;
    }

    fn default(&self) -> PolicyDefault {
        self.reloads.config().policy.default
    }
}

const SERVERS: &str = "mcpServers: { a: { command: x }, b: { command: y } }\n";

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn what_only_concerns_servers_or_tightens_is_in_force_at_once() {
    let case = Case::new("");
    assert_eq!(case.reload("").await, (vec![], vec![]));
    assert!(case.reloads.status().last.is_none());
    assert_eq!(case.reload(SERVERS).await, (texts(&["servers a,b"]), texts(&["config.applied"])));
    let changes = case.reloads.status().last.unwrap().changes;
    assert_eq!(changes.upstreams_added, ["a", "b"]);
    let stricter = "mcpServers: { b: { command: y } }\npolicy: { default: deny }\nlog: { filter: debug }\n";
    let (done, told) = case.reload(stricter).await;
    assert_eq!((done, told), (texts(&["routing deny", "servers b", "log debug"]), texts(&["config.applied"])));
    let status = case.reloads.status();
    assert_eq!((status.generation, status.waiting.is_none()), (2, true));
    assert_eq!(status.last.unwrap().changes.policy_tightened.len(), 1);
    assert_eq!(case.default(), PolicyDefault::Deny);
}

#[tokio::test]
async fn a_bad_file_is_refused_as_a_whole() {
    let case = Case::new(SERVERS);
    let bad = "mcpServers: { c: { command: x, argz: [] } }\npolicy: { default: none }\n";
    assert_eq!(case.reload(bad).await, (vec![], texts(&["config.refused"])));
    let last = case.reloads.status().last.unwrap();
    let keys: Vec<_> = last.problems.iter().map(|p| p.key.as_deref().unwrap()).collect();
    assert_eq!((last.result, keys), (status::Effect::Refused, vec!["mcpServers.c.argz", "policy.default"]));
    assert!(last.problems[0].place.contains("c.yaml:1:32"), "{:?}", last.problems);
    assert_eq!(case.reloads.config().upstreams.len(), 2);
    std::fs::remove_file(case.file()).unwrap();
    case.reloads.reload(Why::Signal).await;
    assert!(case.reloads.status().last.unwrap().problems[0].message.contains("gone"));
    std::fs::create_dir(case.file()).unwrap();
    case.reloads.reload(Why::Signal).await;
    assert_eq!(case.done(), (vec![], texts(&["config.refused", "config.refused"])));
    assert!(case.dir.path().exists());
}

#[tokio::test]
async fn refusal_ends_when_file_is_restored_unchanged() {
    let loose = "policy: { default: allow }\n";
    for (started, file) in [(SERVERS, SERVERS), ("", loose)] {
        let case = Case::new(started);
        // As it is, or with something that waits for consent.
        case.reload(file).await;
        for why in [Why::File, Why::Signal] {
            assert_eq!(case.reload("mcpServers: [\n").await.1, texts(&["config.refused"]));
            let before = case.reloads.status();
            std::fs::write(case.file(), file).unwrap();
            case.reloads.reload(why).await;
            assert_eq!(case.done(), (vec![], texts(&["config.applied"])));
            let status = case.reloads.status();
            let last = status.last.unwrap();
            assert_eq!((last.result, last.why, last.problems.len()), (status::Effect::Unchanged, why, 0));
            assert_eq!(status.generation, before.generation);
            assert_eq!(status.waiting.map(|w| w.digest), before.waiting.map(|w| w.digest));
        }
    }
}

#[tokio::test]
async fn what_cannot_be_put_into_force_leaves_everything_as_it_was() {
    let case = Case::new(SERVERS);
    let new = "mcpServers: { c: { command: x } }\npolicy: { default: deny }\nlog: { filter: debug }\n";
    case.fail("routing");
    assert_eq!(case.reload(new).await, (vec![], texts(&["config.refused"])));
    case.fail("servers");
    assert_eq!(case.reload(new).await.0, texts(&["routing deny", "routing review_writes"]));
    case.fail("log");
    let (done, told) = case.reload(new).await;
    let back = texts(&["routing deny", "servers c", "servers a,b", "routing review_writes"]);
    assert_eq!((done, told), (back, texts(&["config.refused"])));
    assert_eq!(case.reloads.status().generation, 0);
    assert_eq!(case.default(), PolicyDefault::ReviewWrites);
    case.fail("");
    assert_eq!(case.reload(new).await.0, texts(&["routing deny", "servers c", "log debug"]));
}

#[tokio::test]
async fn what_loosens_waits_and_the_rest_does_not() {
    let case = Case::new(SERVERS);
    let looser = "mcpServers: { b: { command: y, trust_annotations: true }, c: { command: z, env: { T: '${TOKEN}' } } }\n\
                  policy: { default: allow }\n";
    let (done, told) = case.reload(looser).await;
    assert_eq!((done, told), (texts(&["servers b,c"]), texts(&["config.waiting", "config.applied"])));
    let status = case.reloads.status();
    let waiting = status.waiting.unwrap();
    let keys: Vec<&str> = waiting.loosens.iter().map(|l| l.key.as_str()).collect();
    assert_eq!(keys, ["policy.default", "mcpServers.b.trust_annotations"]);
    assert!(!serde_json::to_string(&case.reloads.status()).unwrap().contains("s3cret"));
    // The same file is no news and asks nobody again.
    case.reloads.reload(Why::File).await;
    assert_eq!((case.done(), case.digest()), ((vec![], vec![]), waiting.digest.clone()));

    assert_eq!(case.reloads.decide("sha256:other", true, "alice").await, Err(DecideError::Other));
    case.fail("record");
    let failed = case.reloads.decide(&waiting.digest, true, "alice").await;
    assert!(matches!(failed, Err(DecideError::NotRecorded(_))));
    assert_eq!((case.done(), case.default()), ((vec![], vec![]), PolicyDefault::ReviewWrites));
    case.fail("servers");
    let failed = case.reloads.decide(&waiting.digest, true, "alice").await;
    assert!(matches!(failed, Err(DecideError::NotInForce(_))));
    assert_eq!(case.default(), PolicyDefault::ReviewWrites);
    case.done();
    case.fail("");
    case.reloads.decide(&waiting.digest, true, "alice").await.unwrap();
    let (done, told) = case.done();
    assert_eq!(done, texts(&["record configuration_accepted alice 2", "routing allow", "servers b!,c"]));
    assert_eq!(told, texts(&["config.applied"]));
    let status = case.reloads.status();
    assert_eq!((status.waiting.is_none(), status.last.unwrap().by.as_deref()), (true, Some("alice")));
    assert_eq!(case.default(), PolicyDefault::Allow);
    assert_eq!(case.reloads.decide(&waiting.digest, true, "alice").await, Err(DecideError::Nothing));
}

#[tokio::test]
async fn whoever_is_told_of_a_reload_can_ask_for_all_of_it() {
    let case = Case::new(SERVERS);
    // Told of what waits while the rest was put into force.
    case.reload("policy: { default: allow }\n").await;
    let told: Vec<_> = std::mem::take(&mut *case.asked.lock().unwrap());
    let of = |status: &Status| (status.generation, status.last.as_ref().map(|l| l.changes.upstreams_removed.len()));
    assert_eq!(told.iter().map(of).collect::<Vec<_>>(), [(1, Some(2)), (1, Some(2))]);
}

#[tokio::test]
async fn a_refused_one_is_gone_and_a_newer_file_takes_its_place() {
    let case = Case::new("");
    case.reload("policy: { default: allow }").await;
    let first = case.digest();
    case.reloads.decide(&first, false, "alice").await.unwrap();
    let (done, told) = case.done();
    assert_eq!((done, told), (texts(&["record configuration_refused alice 1"]), texts(&["config.refused"])));
    assert_eq!(case.default(), PolicyDefault::ReviewWrites);
    // Another version of the file asks again, and what it says is what counts.
    case.reload("policy: { default: allow }\nmcpServers: { a: { command: x } }").await;
    let second = case.digest();
    assert_ne!(first, second);
    case.done();
    // Another secret of a server is another configuration.
    case.reload("policy: { default: allow }\nmcpServers: { a: { command: x, env: { T: '1' } } }").await;
    let third = case.digest();
    assert_eq!(case.reloads.decide(&second, true, "alice").await, Err(DecideError::Other));
    // A bad file changes nothing of what waits.
    case.reload("policy: {").await;
    assert_eq!(case.digest(), third);
    // One that no longer loosens takes it back.
    case.done();
    let (done, told) = case.reload("mcpServers: { a: { command: x, env: { T: '1' } } }").await;
    assert_eq!((done, told), (vec![], texts(&["config.applied"])));
    assert!(case.reloads.status().waiting.is_none());
}

#[tokio::test]
async fn keys_that_are_read_at_the_start_are_told_and_change_nothing() {
    let case = Case::new("");
    let (done, told) = case.reload("limits: { max_batch: 9 }\nlog: { format: json }\n").await;
    assert_eq!((done, told), (vec![], texts(&["config.applied"])));
    assert_eq!(case.reloads.status().needs_restart, ["limits.max_batch", "log.format"]);
    assert_eq!(case.reloads.config().limits.max_batch, 100);
    case.reload("").await;
    assert_eq!(case.reloads.status().needs_restart, Vec::<String>::new());
    assert_eq!(case.reloads.status().generation, 0);
}

#[tokio::test]
async fn webhooks_follow_the_file_and_are_put_back_where_the_rest_fails() {
    let hook = |name: &str| format!("webhooks: {{ {name}: {{ url: 'https://x.example', format: text }} }}\n");
    let case = Case::new(&hook("a"));
    let (done, told) = case.reload(&hook("a").replace("x.example", "y.example")).await;
    assert_eq!((done, told), (texts(&["webhooks a"]), texts(&["config.applied"])));
    let last = case.reloads.status().last.unwrap().changes;
    assert_eq!((last.webhooks_changed, last.needs_restart), (texts(&["a"]), vec![]));
    case.fail("webhooks");
    let (done, told) = case.reload(&format!("{}log: {{ filter: debug }}\n", hook("b"))).await;
    assert_eq!((done, told), (texts(&["log debug", "log info"]), texts(&["config.refused"])));
    case.fail("");
    let (done, _) = case.reload(&format!("{}log: {{ filter: debug }}\n", hook("b"))).await;
    assert_eq!(done, texts(&["log debug", "webhooks b"]));
    let last = case.reloads.status().last.unwrap().changes;
    assert_eq!((last.webhooks_added, last.webhooks_removed), (texts(&["b"]), texts(&["a"])));
    assert_eq!(case.reload("{}\n").await.0, texts(&["log info", "webhooks "]));
}
