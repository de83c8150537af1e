//! Tests of whole reloads, with a gateway that records its actions.

mod restarts;

use std::path::Path;

use async_trait::async_trait;

use super::*;
use countersign_config::{OidcConfig, RoutesConfig, TokenIssuer, UpstreamConfig, WebhooksConfig};
use countersign_domain::policy::{PolicyConfig, PolicyDefault};
use countersign_store::PolicySnapshots;

/// The recorded actions, in order. The action that `fails_at` names fails.
#[derive(Default)]
struct GatewayLog {
    actions: Mutex<Vec<String>>,
    fails_at: Mutex<&'static str>,
    /// The policies in the store: the one that was saved here, and the newest.
    store: Mutex<PolicySnapshots>,
    /// The decisions in the audit trail that were not applied yet.
    unapplied_decisions: Mutex<Vec<bool>>,
}

impl GatewayLog {
    fn record(&self, action: &str, details: String) -> Result<(), String> {
        if *self.fails_at.lock() == action {
            return Err(format!("{action} is broken"));
        }
        self.actions.lock().push(format!("{action} {details}"));
        Ok(())
    }
}

struct RecordingGateway(Arc<GatewayLog>);

#[async_trait]
impl Reconfigurable for RecordingGateway {
    async fn apply_routing(&self, policy: &PolicyConfig, _: &RoutesConfig) -> Result<(), String> {
        self.0.record("routing", policy.default.as_str().to_owned())
    }
    async fn apply_servers(&self, servers: &[UpstreamConfig], strict: bool) -> Result<(), String> {
        let trust = |s: &UpstreamConfig| format!("{}{}", s.name, if s.trust_annotations { "!" } else { "" });
        let action = if strict { "servers" } else { "restore" };
        self.0.record(action, servers.iter().map(trust).collect::<Vec<_>>().join(","))
    }
    async fn apply_webhooks(&self, now: &WebhooksConfig) -> Result<(), String> {
        let show = |(name, webhook): (&str, Option<_>)| format!("{}{name}", if webhook.is_some() { "" } else { "-" });
        self.0.record("webhooks", now.entries().into_iter().map(show).collect::<Vec<_>>().join(","))
    }
    fn apply_issuers(&self, issuers: &[TokenIssuer]) {
        let names: Vec<&str> = issuers.iter().map(|issuer| issuer.issuer.as_str()).collect();
        let _ = self.0.record("issuers", names.join(","));
    }
    fn apply_identity_provider(&self, provider: Option<&OidcConfig>) {
        let _ =
            self.0.record("identity provider", provider.map(|provider| provider.issuer.clone()).unwrap_or_default());
    }
    fn apply_log_filter(&self, filter: &str) -> Result<(), String> {
        self.0.record("log", filter.to_owned())
    }
    async fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> Result<(), String> {
        if *self.0.fails_at.lock() == "save" {
            return Err("the store is away".to_owned());
        }
        let mut store = self.0.store.lock();
        let digest_of = |policy: &Option<PolicySnapshot>| policy.as_ref().map(|policy| policy.digest.clone());
        if by_consent || store.newest.is_none() || digest_of(&store.newest) == digest_of(&store.own) {
            store.newest = Some(snapshot.clone());
        }
        (store.own, store.has_audit_entry) = (Some(snapshot), true);
        Ok(())
    }
    async fn newest_digest(&self) -> Option<String> {
        self.0.store.lock().newest.clone().map(|newest| newest.digest)
    }
    async fn record(&self, event: &'static str, by: &str, details: String) -> Result<(), String> {
        let details: Value = serde_json::from_str(&details).unwrap();
        self.0.record("record", format!("{event} {by} {}", details["loosens"].as_array().unwrap().len()))
    }
    async fn unapplied_decisions(&self, _: &str) -> Result<Vec<bool>, String> {
        let is_readable = *self.0.fails_at.lock() != "decisions";
        let decisions = self.0.unapplied_decisions.lock().clone();
        if is_readable { Ok(decisions) } else { Err("the store is away".to_owned()) }
    }
}

struct TestGateway {
    dir: tempfile::TempDir,
    log: Arc<GatewayLog>,
    events: Arc<Mutex<Vec<Value>>>,
    /// The status that a subscriber reads when it receives an event.
    statuses: Arc<Mutex<Vec<ReloadStatus>>>,
    reloader: Arc<Reloader>,
}

impl TestGateway {
    fn new(yaml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("c.yaml"), yaml).unwrap();
        Self::start(dir, PolicySnapshots::default(), false)
    }

    /// Restarts the gateway on the same store with this file, as after a kill.
    async fn restart_with(self, yaml: &str) -> Self {
        std::fs::write(self.file(), yaml).unwrap();
        let store = self.log.store.lock().clone();
        let gateway = Self::start(self.dir, store, false);
        gateway.reloader.record_start().await.unwrap();
        gateway
    }

    fn start(dir: tempfile::TempDir, store: PolicySnapshots, accept: bool) -> Self {
        let file = dir.path().join("c.yaml");
        let flags = Flags { config: Some(file), data: Some("data".into()), ..Flags::default() };
        let source = ConfigSource { flags, env: Environment::new(dir.path(), &[("TOKEN", "s3cret")]) };
        let loaded = load(&source.flags, &source.env).unwrap();
        let (log, events) = (
            Arc::new(GatewayLog { store: Mutex::new(store.clone()), ..GatewayLog::default() }),
            Arc::new(Mutex::new(Vec::new())),
        );
        let (published, statuses) = (Arc::clone(&events), Arc::new(Mutex::new(Vec::new())));
        let read_statuses = Arc::clone(&statuses);
        let reloader = Arc::new_cyclic(|reloader: &std::sync::Weak<Reloader>| {
            let reloader = reloader.clone();
            let publish = Box::new(move |event: &Value| {
                read_statuses.lock().push(reloader.upgrade().unwrap().status());
                published.lock().push(event.clone());
            });
            let initial = InitialConfig::new(loaded, [7; 16], store, accept);
            Reloader::new(source, initial, Box::new(RecordingGateway(Arc::clone(&log))), publish)
        });
        Self { dir, log, events, statuses, reloader }
    }

    fn file(&self) -> &Path {
        self.reloader.file().unwrap()
    }

    /// Reloads, and returns the actions and the events.
    async fn reload(&self, yaml: &str) -> (Vec<String>, Vec<String>) {
        std::fs::write(self.file(), yaml).unwrap();
        self.reloader.reload(ReloadCause::File).await;
        self.take_actions()
    }

    fn take_actions(&self) -> (Vec<String>, Vec<String>) {
        let kind = |event: Value| event["type"].as_str().unwrap().to_owned();
        let actions = std::mem::take(&mut *self.log.actions.lock());
        (actions, std::mem::take(&mut *self.events.lock()).into_iter().map(kind).collect())
    }

    fn digest(&self) -> String {
        self.reloader.status().waiting.unwrap().digest
    }

    fn fail_at(&self, action: &'static str) {
        *self.log.fails_at.lock() = action;
    }

    fn default(&self) -> PolicyDefault {
        self.reloader.config().policy.default
    }
}

const SERVERS: &str = "mcpServers: { a: { command: x }, b: { command: y } }\n";

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn server_and_stricter_changes_apply_at_once() {
    let gateway = TestGateway::new("");
    assert_eq!(gateway.reload("").await, (vec![], vec![]));
    assert!(gateway.reloader.status().last.is_none());
    assert_eq!(gateway.reload(SERVERS).await, (texts(&["servers a,b"]), texts(&["config.applied"])));
    let changes = gateway.reloader.status().last.unwrap().changes;
    assert_eq!(changes.upstreams_added, ["a", "b"]);
    let stricter = "mcpServers: { b: { command: y } }\npolicy: { default: deny }\nlog: { filter: debug }\n";
    let (actions, events) = gateway.reload(stricter).await;
    assert_eq!((actions, events), (texts(&["routing deny", "servers b", "log debug"]), texts(&["config.applied"])));
    let status = gateway.reloader.status();
    assert_eq!((status.generation, status.waiting.is_none()), (2, true));
    assert_eq!(status.last.unwrap().changes.policy_tightened.len(), 1);
    assert_eq!(gateway.default(), PolicyDefault::Deny);
}

#[tokio::test]
async fn bad_file_is_refused_as_a_whole() {
    let gateway = TestGateway::new(SERVERS);
    let bad = "mcpServers: { c: { command: x, argz: [] } }\npolicy: { default: none }\n";
    assert_eq!(gateway.reload(bad).await, (vec![], texts(&["config.refused"])));
    let last = gateway.reloader.status().last.unwrap();
    let keys: Vec<_> = last.problems.iter().map(|p| p.key.as_deref().unwrap()).collect();
    assert_eq!((last.result, keys), (status::ReloadEffect::Refused, vec!["mcpServers.c.argz", "policy.default"]));
    assert!(last.problems[0].place.contains("c.yaml:1:32"), "{:?}", last.problems);
    assert_eq!(gateway.reloader.config().upstreams.len(), 2);
    std::fs::remove_file(gateway.file()).unwrap();
    gateway.reloader.reload(ReloadCause::Signal).await;
    assert!(gateway.reloader.status().last.unwrap().problems[0].message.contains("missing"));
    std::fs::create_dir(gateway.file()).unwrap();
    gateway.reloader.reload(ReloadCause::Signal).await;
    assert_eq!(gateway.take_actions(), (vec![], texts(&["config.refused", "config.refused"])));
    assert!(gateway.dir.path().exists());
}

#[tokio::test]
async fn emptied_file_is_refused_until_sighup() {
    let gateway = TestGateway::new(&format!("{SERVERS}log: {{ filter: debug }}\n"));
    for empty in ["", "# mcpServers:\n", "log:\n"] {
        assert_eq!(gateway.reload(empty).await, (vec![], texts(&["config.refused"])), "{empty}");
        let problem = gateway.reloader.status().last.unwrap().problems.remove(0);
        assert!(problem.place.ends_with("c.yaml"), "{problem:?}");
        assert!(problem.message.contains("sets no key") && problem.remedy.contains("SIGHUP"), "{problem:?}");
    }
    gateway.reloader.reload(ReloadCause::Signal).await;
    assert_eq!(gateway.take_actions(), (texts(&["servers ", "log info"]), texts(&["config.applied"])));
    // Now the file in force is empty as well.
    assert_eq!(gateway.reload("").await, (vec![], vec![]));
}

#[tokio::test]
async fn emptied_file_is_found_at_the_next_start() {
    let is_emptied = |gateway: &TestGateway, yaml: &str| {
        std::fs::write(gateway.file(), yaml).unwrap();
        let loaded = load(&gateway.reloader.source.flags, &gateway.reloader.source.env).unwrap();
        find_emptied_file(&loaded, &gateway.log.store.lock()).is_some()
    };
    let gateway = TestGateway::new(SERVERS);
    assert!(!is_emptied(&gateway, ""), "no policy is known at the first start");
    gateway.reloader.record_start().await.unwrap();
    assert!(is_emptied(&gateway, "# mcpServers:\n") && !is_emptied(&gateway, "mcpServers: {}\n"));
    // SIGHUP confirms the empty file.
    std::fs::write(gateway.file(), "").unwrap();
    gateway.reloader.reload(ReloadCause::Signal).await;
    assert!(!is_emptied(&gateway, ""));
}

#[tokio::test]
async fn refusal_ends_when_file_is_restored_unchanged() {
    let loose = "policy: { default: allow }\n";
    for (started, file) in [(SERVERS, SERVERS), ("", loose)] {
        let gateway = TestGateway::new(started);
        // The restored file is the same, or has a pending change.
        gateway.reload(file).await;
        for cause in [ReloadCause::File, ReloadCause::Signal] {
            assert_eq!(gateway.reload("mcpServers: [\n").await.1, texts(&["config.refused"]));
            let before = gateway.reloader.status();
            std::fs::write(gateway.file(), file).unwrap();
            gateway.reloader.reload(cause).await;
            assert_eq!(gateway.take_actions(), (vec![], texts(&["config.applied"])));
            let status = gateway.reloader.status();
            let last = status.last.unwrap();
            assert_eq!((last.result, last.cause, last.problems.len()), (status::ReloadEffect::Unchanged, cause, 0));
            assert_eq!(status.generation, before.generation);
            assert_eq!(status.waiting.map(|w| w.digest), before.waiting.map(|w| w.digest));
        }
    }
}

#[tokio::test]
async fn failed_apply_leaves_everything_unchanged() {
    let gateway = TestGateway::new(SERVERS);
    let new = "mcpServers: { c: { command: x } }\npolicy: { default: deny }\nlog: { filter: debug }\n";
    gateway.fail_at("routing");
    assert_eq!(gateway.reload(new).await, (vec![], texts(&["config.refused"])));
    gateway.fail_at("servers");
    assert_eq!(gateway.reload(new).await.0, texts(&["routing deny", "restore a,b", "routing review_writes"]));
    gateway.fail_at("log");
    let (actions, events) = gateway.reload(new).await;
    let back = texts(&["routing deny", "servers c", "restore a,b", "routing review_writes"]);
    assert_eq!((actions, events), (back, texts(&["config.refused"])));
    assert_eq!(gateway.reloader.status().generation, 0);
    assert_eq!(gateway.default(), PolicyDefault::ReviewWrites);
    gateway.fail_at("");
    assert_eq!(gateway.reload(new).await.0, texts(&["routing deny", "servers c", "log debug"]));
}

#[tokio::test]
async fn added_or_earlier_escalation_waits_for_consent() {
    let policy = |groups: &str, review: &str| {
        format!("policy: {{ groups: {{ dba: [ann], {groups} }}, review: {{ reviewers: [dba], {review} }} }}\n")
    };
    let gateway = TestGateway::new(&policy("oncall: [bob]", ""));
    let escalation = || gateway.reloader.config().policy.review.escalate.as_ref().map(|escalation| escalation.after);
    gateway.reload(&policy("oncall: [bob]", "escalate: { after: 30m, to: [oncall] }")).await;
    let waiting = gateway.reloader.status().waiting.unwrap();
    let texts: Vec<_> = waiting.loosenings.iter().map(|l| (l.key.as_str(), l.from.as_str(), l.to.as_str())).collect();
    assert_eq!(texts, [("policy.review", "no escalation", "escalation to oncall after 1800 s")]);
    assert_eq!(escalation(), None);
    gateway.reloader.decide(&waiting.digest, true, "alice").await.unwrap();
    assert_eq!(escalation(), Some(1800));
    gateway.reload(&policy("oncall: [bob]", "escalate: { after: 1h, to: [oncall] }")).await;
    assert_eq!((gateway.reloader.status().waiting.is_none(), escalation()), (true, Some(3600)));
    gateway.reload(&policy("oncall: [bob]", "escalate: { after: 10m, to: [oncall] }")).await;
    assert_eq!((gateway.reloader.status().waiting.is_some(), escalation()), (true, Some(3600)));
    gateway.reload(&policy("oncall: [bob, eve]", "escalate: { after: 1h, to: [oncall] }")).await;
    assert_eq!(gateway.reloader.status().waiting.unwrap().loosenings[0].key, "policy.groups.oncall");
}

#[tokio::test]
async fn looser_changes_wait_and_the_rest_applies() {
    let gateway = TestGateway::new(SERVERS);
    let looser = "mcpServers: { b: { command: y, trust_annotations: true }, c: { command: z, env: { T: '${TOKEN}' } } }\n\
                  policy: { default: allow }\n";
    let (actions, events) = gateway.reload(looser).await;
    assert_eq!((actions, events), (texts(&["servers b,c"]), texts(&["config.waiting", "config.applied"])));
    let status = gateway.reloader.status();
    let waiting = status.waiting.unwrap();
    let keys: Vec<&str> = waiting.loosenings.iter().map(|l| l.key.as_str()).collect();
    assert_eq!(keys, ["policy.default", "mcpServers.b.trust_annotations"]);
    assert!(!serde_json::to_string(&gateway.reloader.status()).unwrap().contains("s3cret"));
    // The same file is not reported and asks for no new consent.
    gateway.reloader.reload(ReloadCause::File).await;
    assert_eq!((gateway.take_actions(), gateway.digest()), ((vec![], vec![]), waiting.digest.clone()));

    assert_eq!(gateway.reloader.decide("sha256:other", true, "alice").await, Err(ConsentError::Superseded));
    gateway.fail_at("record");
    let failed = gateway.reloader.decide(&waiting.digest, true, "alice").await;
    assert!(matches!(failed, Err(ConsentError::NotRecorded(_))));
    assert_eq!((gateway.take_actions(), gateway.default()), ((vec![], vec![]), PolicyDefault::ReviewWrites));
    gateway.fail_at("servers");
    let failed = gateway.reloader.decide(&waiting.digest, true, "alice").await;
    assert!(matches!(failed, Err(ConsentError::NotInForce(_))));
    assert_eq!(gateway.default(), PolicyDefault::ReviewWrites);
    gateway.take_actions();
    gateway.fail_at("");
    gateway.reloader.decide(&waiting.digest, true, "alice").await.unwrap();
    let (actions, events) = gateway.take_actions();
    assert_eq!(actions, texts(&["record configuration_accepted alice 2", "routing allow", "servers b!,c"]));
    assert_eq!(events, texts(&["config.applied"]));
    let status = gateway.reloader.status();
    assert_eq!((status.waiting.is_none(), status.last.unwrap().by.as_deref()), (true, Some("alice")));
    assert_eq!(gateway.default(), PolicyDefault::Allow);
    assert_eq!(gateway.reloader.decide(&waiting.digest, true, "alice").await, Err(ConsentError::NothingPending));
}

#[tokio::test]
async fn consent_applies_the_newest_file() {
    let gateway = TestGateway::new(SERVERS);
    let looser = format!("{SERVERS}policy: {{ default: allow }}\n");
    gateway.reload(&looser).await;
    let waiting = gateway.reloader.status().waiting.unwrap();
    // The digest does not cover the filter of the log.
    let (actions, events) = gateway.reload(&format!("{looser}log: {{ filter: debug }}\n")).await;
    assert_eq!((actions, events), (texts(&["log debug"]), texts(&["config.applied"])));
    let still_waiting = gateway.reloader.status().waiting.unwrap();
    assert_eq!((&still_waiting.digest, still_waiting.since), (&waiting.digest, waiting.since));
    gateway.reloader.decide(&waiting.digest, true, "alice").await.unwrap();
    let actions = gateway.take_actions().0;
    assert_eq!(actions, texts(&["record configuration_accepted alice 1", "routing allow"]));
    assert_eq!(gateway.reloader.config().log.filter, "debug");
}

#[tokio::test]
async fn own_decision_does_not_count_for_later_changes() {
    let gateway = TestGateway::new(SERVERS);
    gateway.reload("policy: { default: allow }\n").await;
    let digest = gateway.digest();
    gateway.reloader.decide(&digest, false, "alice").await.unwrap();
    gateway.reload(SERVERS).await;
    gateway.reload("policy: { default: allow }\n").await;
    // The audit trail is read later.
    gateway.reloader.apply_remote_decision(&digest, false, "alice").await;
    assert_eq!(gateway.digest(), digest);
    gateway.reloader.apply_remote_decision(&digest, false, "bob").await;
    assert!(gateway.reloader.status().waiting.is_none());
}

#[tokio::test]
async fn first_of_decisions_at_several_nodes_counts() {
    let gateway = TestGateway::new(SERVERS);
    let decide = async |recorded: &[bool], accept| {
        gateway.reload(SERVERS).await;
        gateway.reload("policy: { default: allow }\n").await;
        *gateway.log.unapplied_decisions.lock() = recorded.to_vec();
        gateway.reloader.decide(&gateway.digest(), accept, "alice").await
    };
    // Another node accepts the changes just before they are refused here.
    assert_eq!(decide(&[true, false], false).await, Err(ConsentError::DecidedElsewhere));
    let digest = gateway.digest();
    gateway.reloader.apply_remote_decision(&digest, true, "bob").await;
    gateway.reloader.apply_remote_decision(&digest, false, "alice").await;
    assert_eq!((gateway.reloader.status().waiting.is_none(), gateway.default()), (true, PolicyDefault::Allow));
    // Here they are refused just before another node accepts them.
    assert_eq!(decide(&[false, true], false).await, Ok(()));
    // This node's own refusal is an earlier one, and the other node decides as this one.
    assert_eq!(decide(&[false, true, true], true).await, Ok(()));
    assert_eq!(gateway.default(), PolicyDefault::Allow);
}

#[tokio::test]
async fn decision_waits_while_trail_cannot_be_read() {
    let gateway = TestGateway::new(SERVERS);
    gateway.reload("policy: { default: allow }\n").await;
    let digest = gateway.digest();
    gateway.fail_at("decisions");
    let decided = gateway.reloader.decide(&digest, true, "alice").await;
    assert!(matches!(decided, Err(ConsentError::NotYetInForce(_))));
    assert_eq!((gateway.digest(), gateway.default()), (digest.clone(), PolicyDefault::ReviewWrites));
    // Another node has refused the changes just before.
    gateway.reloader.apply_remote_decision(&digest, false, "bob").await;
    gateway.reloader.apply_remote_decision(&digest, true, "alice").await;
    assert_eq!((gateway.reloader.status().waiting.is_none(), gateway.default()), (true, PolicyDefault::ReviewWrites));
    // The own decision is applied as well once the trail is read.
    gateway.reload(SERVERS).await;
    gateway.reload("policy: { default: allow }\n").await;
    assert!(gateway.reloader.decide(&gateway.digest(), true, "alice").await.is_err());
    gateway.reloader.apply_remote_decision(&gateway.digest(), true, "alice").await;
    assert_eq!(gateway.default(), PolicyDefault::Allow);
}

#[tokio::test]
async fn event_is_sent_after_all_changes_are_visible() {
    let gateway = TestGateway::new(SERVERS);
    // The pending changes are reported while the rest takes effect.
    gateway.reload("policy: { default: allow }\n").await;
    let statuses: Vec<_> = std::mem::take(&mut *gateway.statuses.lock());
    let generation_and_removed =
        |status: &ReloadStatus| (status.generation, status.last.as_ref().map(|l| l.changes.upstreams_removed.len()));
    assert_eq!(statuses.iter().map(generation_and_removed).collect::<Vec<_>>(), [(1, Some(2)), (1, Some(2))]);
}

#[tokio::test]
async fn refused_changes_are_dropped_and_newer_file_replaces_them() {
    let gateway = TestGateway::new("");
    gateway.reload("policy: { default: allow }").await;
    let first = gateway.digest();
    gateway.reloader.decide(&first, false, "alice").await.unwrap();
    let (actions, events) = gateway.take_actions();
    assert_eq!((actions, events), (texts(&["record configuration_refused alice 1"]), texts(&["config.refused"])));
    assert_eq!(gateway.default(), PolicyDefault::ReviewWrites);
    // A changed file asks again, and its content counts.
    gateway.reload("policy: { default: allow }\nmcpServers: { a: { command: x } }").await;
    let second = gateway.digest();
    assert_ne!(first, second);
    gateway.take_actions();
    // A changed secret of a server makes another configuration.
    gateway.reload("policy: { default: allow }\nmcpServers: { a: { command: x, env: { T: '1' } } }").await;
    let third = gateway.digest();
    assert_eq!(gateway.reloader.decide(&second, true, "alice").await, Err(ConsentError::Superseded));
    // A bad file does not change what is pending.
    gateway.reload("policy: {").await;
    assert_eq!(gateway.digest(), third);
    // A file that no longer loosens removes the pending changes.
    gateway.take_actions();
    let (actions, events) = gateway.reload("mcpServers: { a: { command: x, env: { T: '1' } } }").await;
    assert_eq!((actions, events), (vec![], texts(&["config.applied"])));
    assert!(gateway.reloader.status().waiting.is_none());
}

#[tokio::test]
async fn changed_start_only_keys_are_reported_only() {
    let gateway = TestGateway::new("");
    let (actions, events) = gateway.reload("limits: { max_batch: 9 }\nlog: { format: json }\n").await;
    assert_eq!((actions, events), (vec![], texts(&["config.applied"])));
    assert_eq!(gateway.reloader.status().needs_restart, ["limits.max_batch", "log.format"]);
    assert_eq!(gateway.reloader.config().limits.max_batch, 100);
    gateway.reload("mcpServers: {}\n").await;
    assert_eq!(gateway.reloader.status().needs_restart, Vec::<String>::new());
    assert_eq!(gateway.reloader.status().generation, 0);
}

#[tokio::test]
async fn failed_webhooks_undo_earlier_steps() {
    let hook = |name: &str| format!("webhooks: {{ {name}: {{ url: 'https://x.example', format: text }} }}\n");
    let gateway = TestGateway::new(&hook("a"));
    let (actions, events) = gateway.reload(&hook("a").replace("x.example", "y.example")).await;
    assert_eq!((actions, events), (texts(&["webhooks a"]), texts(&["config.applied"])));
    let last = gateway.reloader.status().last.unwrap().changes;
    assert_eq!((last.webhooks_changed, last.needs_restart), (texts(&["a"]), vec![]));
    gateway.fail_at("webhooks");
    let (actions, events) = gateway.reload(&format!("{}log: {{ filter: debug }}\n", hook("b"))).await;
    assert_eq!((actions, events), (texts(&["log debug", "log info"]), texts(&["config.refused"])));
    gateway.fail_at("");
    let (actions, _) = gateway.reload(&format!("{}log: {{ filter: debug }}\n", hook("b"))).await;
    assert_eq!(actions, texts(&["log debug", "webhooks b"]));
    let last = gateway.reloader.status().last.unwrap().changes;
    assert_eq!((last.webhooks_added, last.webhooks_removed), (texts(&["b"]), texts(&["a"])));
    // A disabled webhook is not removed before its entry is.
    assert_eq!(gateway.reload("webhooks: { b: { disabled: true } }\n").await.0, texts(&["log info", "webhooks -b"]));
    assert_eq!(gateway.reloader.status().last.unwrap().changes.webhooks_changed, texts(&["b"]));
    assert_eq!(gateway.reload("webhooks: {}\n").await.0, texts(&["webhooks "]));
    assert_eq!(gateway.reloader.status().last.unwrap().changes.webhooks_removed, texts(&["b"]));
}
