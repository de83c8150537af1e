//! Reloads as a whole, with a gateway that notes what it is told to do.

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
        let done = self.0.note("routing", diff::default_name(policy.default).to_owned());
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
        store.here = Some(snapshot);
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

fn keys(all: &[Loosening]) -> Vec<&str> {
    all.iter().map(|loosening| loosening.key.as_str()).collect()
}

const LOOSER: &str = "mcpServers: { a: { command: x, trust_annotations: true }, b: { command: y } }\n\
                      policy: { default: allow, rules: [{ tools: 'get_*', then: allow }] }\n";

#[tokio::test]
async fn what_waits_waits_after_a_restart_and_consent_ends_it() {
    let strict = "mcpServers: { a: { command: x }, b: { command: y } }\n\
                  policy: { default: review_all, rules: [{ tools: del, then: deny, reason: no }] }\n";
    let case = Case::new(strict);
    case.reloads.begin().await.unwrap();
    case.reload(LOOSER).await;
    let digest = case.digest();
    let before = case.reloads.config();
    let case = case.restarted(LOOSER).await;
    let status = case.reloads.status();
    let waiting = status.waiting.unwrap();
    assert_eq!(waiting.digest, digest);
    assert_eq!(
        keys(&waiting.loosens),
        ["policy.default", "policy.rules", "policy.rules", "mcpServers.a.trust_annotations"]
    );
    assert_eq!((&case.reloads.config().policy, &case.reloads.config().upstreams), (&before.policy, &before.upstreams));
    // People are shown what is in force, and what would be.
    let settings = case.reloads.settings();
    let default = settings.iter().find(|one| one.key == "policy.default").unwrap();
    assert_eq!((default.value.as_str(), default.source.as_str()), ("review_all", "what was in force before"));
    let content = waiting.content.iter().find(|one| one.key == "policy.default").unwrap();
    let lines: Vec<_> = content.lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(lines, ["review_all", "allow"]);
    // The file is looked at once more when it is first watched.
    case.reloads.reload(Why::File).await;
    assert_eq!(case.digest(), digest);
    case.reloads.decide(&digest, true, "alice").await.unwrap();
    assert_eq!(case.default(), PolicyDefault::Allow);
    let case = case.restarted(LOOSER).await;
    assert!(case.reloads.status().waiting.is_none());
    assert_eq!(case.default(), PolicyDefault::Allow);
}

#[tokio::test]
async fn a_refusal_outlives_a_restart_as_long_as_the_file_is_the_same() {
    let case = Case::new("policy: { default: deny }");
    case.reloads.begin().await.unwrap();
    case.reload("policy: { default: allow }").await;
    case.reloads.decide(&case.digest(), false, "alice").await.unwrap();
    let case = case.restarted("policy: { default: allow }").await;
    case.reloads.reload(Why::File).await;
    assert!(case.reloads.status().waiting.is_none());
    assert_eq!(case.default(), PolicyDefault::Deny);
    let settings = case.reloads.settings();
    let default = settings.iter().find(|one| one.key == "policy.default").unwrap();
    assert_eq!((default.value.as_str(), keys(&default.refused)), ("deny", vec!["policy.default"]));
    let case = case.restarted("policy: { default: allow }").await;
    // Whoever sends the signal wants it looked at.
    case.reloads.reload(Why::Signal).await;
    assert!(case.reloads.status().waiting.is_some());
    let case = case.restarted("policy: { default: review_all }").await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["policy.default"]);
    assert_eq!(case.default(), PolicyDefault::Deny);
}

#[tokio::test]
async fn a_start_compares_the_file_with_what_was_in_force_last() {
    // At the first start nothing is known.
    let case = Case::new("policy: { default: allow }");
    case.reloads.begin().await.unwrap();
    assert_eq!(case.default(), PolicyDefault::Allow);
    // What tightens is in force, whether a gateway ran or not; and so is what loosens nothing.
    let case = case.restarted("policy: { default: deny }\nmcpServers: { s: { url: 'https://a.example' } }").await;
    assert_eq!(case.default(), PolicyDefault::Deny);
    let case = case.restarted("policy: { default: deny }\nlimits: { max_batch: 9 }").await;
    assert_eq!((case.reloads.config().limits.max_batch, case.reloads.status().waiting.is_none()), (9, true));
    // The way back loosens.
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_some()), (PolicyDefault::Deny, true));
    // The operator may say that it is meant.
    let store = case.notes.store.lock().unwrap().clone();
    let case = Case::on(case.dir, store, true);
    case.reloads.begin().await.unwrap();
    assert_eq!((case.default(), case.reloads.status().waiting.is_none()), (PolicyDefault::Allow, true));
    assert_eq!(case.done().0, texts(&["record configuration_started operator 1"]));
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.done().0), (PolicyDefault::Allow, vec![]));
}

#[tokio::test]
async fn what_cannot_be_read_of_the_policy_in_force_is_put_on_record_and_locks_nobody_out() {
    let strict = "policy: { default: deny, mode: enforce }\nmcpServers: { a: { command: x } }";
    let loose =
        "policy: { default: allow, mode: simulate }\nmcpServers: { a: { command: x, trust_annotations: true } }";
    let (policy, server) = (["policy.mode", "policy.default"], "mcpServers.a.trust_annotations");
    // Each with what still waits. A key of another version hides nothing of the others, nor does the policy hide the servers.
    type Damage = fn(&str) -> String;
    let cases: [(Damage, Vec<&str>); 3] = [
        (
            |body| body.replacen("{\"policy\":{", "{\"policy\":{\"policy.new\":\"1\",", 1),
            [&policy[..], &[server]].concat(),
        ),
        (|body| body.replacen("\"policy.default\":\"deny\"", "\"policy.default\":\"other\"", 1), vec![server]),
        (|_| "no JSON".to_owned(), vec![]),
    ];
    for (change, expected) in cases {
        let case = Case::new(strict);
        case.reloads.begin().await.unwrap();
        let changed = {
            let mut store = case.notes.store.lock().unwrap();
            let body = &mut store.here.as_mut().unwrap().body;
            let before = std::mem::take(body);
            *body = change(&before);
            *body != before
        };
        assert!(changed);
        let case = case.restarted(loose).await;
        let mut waits: Vec<String> =
            case.reloads.status().waiting.map_or(vec![], |w| w.loosens.into_iter().map(|one| one.key).collect());
        waits.sort();
        let mut expected = texts(&expected);
        expected.sort();
        assert_eq!(waits, expected);
        assert_eq!(case.done().0, texts(&["record configuration_started system 0"]));
        // From then on it is known again.
        let case = case.restarted(loose).await;
        assert_eq!(case.done().0, texts(&[]));
    }
}

#[tokio::test]
async fn a_server_that_would_go_on_with_what_is_not_known_does_not_run_until_consent() {
    let case = Case::new("mcpServers: { a: { command: x, env: { T: '${TOKEN}' }, tools: { deny: [z] } } }");
    case.reloads.begin().await.unwrap();
    let own = "mcpServers: { a: { command: y, allow_own_files: true, tools: { deny: [z] } }, b: { command: y } }";
    case.reload(own).await;
    assert_eq!(case.reloads.config().upstreams.len(), 2, "it goes on");
    let case = case.restarted(own).await;
    let names = |case: &Case| {
        let config = case.reloads.config();
        config.upstreams.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&case), ["b"]);
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["mcpServers.a.allow_own_files"]);
    let saved = case.notes.store.lock().unwrap().here.clone().unwrap();
    assert!(!format!("{saved:?}").contains("s3cret"), "{saved:?}");
    // What it denied before is not forgotten, however often that goes.
    let case = case.restarted(own).await;
    case.reload("mcpServers: { a: { command: y }, b: { command: y } }").await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["mcpServers.a.tools.deny"]);
    assert_eq!(case.reloads.config().upstreams[0].tools_deny, ["z"]);
}

#[tokio::test]
async fn a_trusted_server_with_another_value_in_its_environment_or_headers_waits_after_a_restart_too() {
    let with = |value: &str| {
        [
            format!("mcpServers: {{ a: {{ command: x, env: {{ MODE: {value} }}, trust_annotations: true }} }}"),
            format!(
                "mcpServers: {{ a: {{ url: 'https://a.example', headers: {{ Tenant: {value} }}, \
                 trust_annotations: true }} }}"
            ),
        ]
    };
    for (old, new) in with("one-value").into_iter().zip(with("two-value")) {
        let case = Case::new(&old);
        case.reloads.begin().await.unwrap();
        let trusted = |case: &Case| case.reloads.config().upstreams[0].trust_annotations;
        let case = case.restarted(&old).await;
        assert!(trusted(&case) && case.reloads.status().waiting.is_none());
        let case = case.restarted(&new).await;
        assert!(!trusted(&case));
        assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["mcpServers.a.trust_annotations"]);
        // What a reviewer has refused stays refused.
        case.reloads.decide(&case.digest(), false, "alice").await.unwrap();
        let case = case.restarted(&new).await;
        assert!(!trusted(&case) && case.reloads.status().waiting.is_none());
        let saved = format!("{:?}", case.notes.store.lock().unwrap());
        assert!(!saved.contains("two-value"), "{saved}");
    }
}

#[tokio::test]
async fn a_rule_that_has_its_terms_from_a_review_that_is_held_keeps_them_over_a_restart() {
    let of = |review: &str, rule: &str| {
        format!("policy: {{ review: {{ {review} }}, rules: [{{ name: a, tools: one, then: review{rule} }}] }}")
    };
    let quorums = |case: &Case| {
        let policy = &case.reloads.config().policy;
        (policy.review.quorum, policy.rules[0].terms.quorum)
    };
    let case = Case::new(&of("quorum: 1, require_comment: true", ""));
    case.reloads.begin().await.unwrap();
    // The review waits as a whole, and the rule, which has the higher quorum from it, does not.
    case.reload(&of("quorum: 3, require_comment: false", ", require_comment: true")).await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["policy.review"]);
    assert_eq!(quorums(&case), (1, 3));
    let case = case.restarted(&of("quorum: 3, require_comment: false", ", require_comment: true, quorum: 1")).await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["policy.review", "policy.rules"]);
    assert_eq!(quorums(&case), (1, 3));
}

#[tokio::test]
async fn a_store_that_was_moved_knows_the_policy_and_asks_anew_what_its_salt_was_part_of() {
    let case = Case::new("policy: { default: deny }\nmcpServers: { a: { command: x, trust_annotations: true } }");
    case.reloads.begin().await.unwrap();
    let looser = "policy: { default: allow }\nmcpServers: { a: { command: x, trust_annotations: true } }";
    case.reload(looser).await;
    case.reloads.decide(&case.digest(), false, "alice").await.unwrap();
    let newest = case.notes.store.lock().unwrap().newest.clone();
    let loaded = load(&case.reloads.source.flags, &case.reloads.source.env).unwrap();
    let opening = Opening::new(loaded, [8; 16], PolicySnapshots { here: None, newest }, false);
    assert_eq!(opening.config().policy.default, PolicyDefault::Deny);
    let (waiting, _) = opening.waiting.unwrap();
    assert_eq!(keys(&waiting.loosens), ["policy.default", "mcpServers.a.trust_annotations"]);
}

#[test]
fn what_would_be_read_back_as_something_else_is_not_written_down() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.yaml"), "policy: { review: { quorum: 2 } }").unwrap();
    let flags = Flags { config: Some(dir.path().join("c.yaml")), data: Some("data".into()), ..Flags::default() };
    let loaded = load(&flags, &Environment::of(dir.path(), &[])).unwrap();
    let mut settings = Shown::new(&loaded.settings).in_force(&loaded.settings, &loaded.config, None, &[]);
    assert!(snapshot::body(&settings, &loaded.config, &[7; 16]).is_ok());
    for quorum in ["1", "3", "many"] {
        settings.iter_mut().find(|one| one.key == "policy.review.quorum").unwrap().value = quorum.to_owned();
        let refused = snapshot::body(&settings, &loaded.config, &[7; 16]).unwrap_err().to_string();
        assert!(refused.contains(if quorum == "many" { "quorum" } else { "policy.review" }), "{refused}");
    }
}

#[tokio::test]
async fn what_could_not_be_kept_is_kept_later_and_counts_as_stricter_until_then() {
    let case = Case::new("policy: { default: allow }");
    case.reloads.begin().await.unwrap();
    case.fail("save");
    case.reload("policy: { default: deny }").await;
    // The store still says that the looser one is the newest.
    case.reload("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_some()), (PolicyDefault::Deny, true));
    case.fail("");
    case.reloads.save_again().await;
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_some()), (PolicyDefault::Deny, true));
}

#[tokio::test]
async fn what_was_consented_to_at_another_gateway_waits_for_nobody() {
    let case = Case::new("policy: { default: deny }");
    case.reloads.begin().await.unwrap();
    let other = Case::new("policy: { default: deny }");
    other.reload("policy: { default: allow }").await;
    other.reloads.decide(&other.digest(), true, "alice").await.unwrap();
    let agreed = other.notes.store.lock().unwrap().newest.clone();
    // Before the file is here, and before the next start.
    case.notes.store.lock().unwrap().newest.clone_from(&agreed);
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_none()), (PolicyDefault::Allow, true));
    let case = case.restarted("policy: { default: deny }").await;
    case.notes.store.lock().unwrap().newest = agreed;
    case.reload("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_none()), (PolicyDefault::Allow, true));
}
