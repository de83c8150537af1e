//! Tests of the whole configuration: defaults, layers and refused values.

use std::{collections::BTreeSet, path::Path, time::Duration};

use super::{
    AuthMode, Config, Environment, Flags,
    error::{ConfigError, Origin},
    load::{
        DEFAULT_YAML, LoadedConfig, NON_KEY_VARIABLES, data_dir, group_members, list_keys, load, store_settings,
        variable_name,
    },
    show,
};
use countersign_domain::policy::PolicyDefault;
use countersign_telemetry::logs::LogFormat;

struct Case {
    dir: tempfile::TempDir,
    vars: Vec<(String, String)>,
    flags: Flags,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vars = vec![("HOME".to_owned(), dir.path().display().to_string())];
        Self { dir, vars, flags: Flags::default() }
    }
    fn file(yaml: &str) -> Self {
        let mut case = Self::new();
        let path = case.dir.path().join("c.yaml");
        std::fs::write(&path, yaml).unwrap();
        case.flags.config = Some(path);
        case
    }
    fn var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }
    fn listen(mut self, listen: &str) -> Self {
        self.flags.listen = Some(listen.to_owned());
        self
    }
    fn env(&self) -> Environment {
        let vars: Vec<(&str, &str)> = self.vars.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        Environment::new(self.dir.path(), &vars)
    }
    fn load(&self) -> Result<LoadedConfig, ConfigError> {
        load(&self.flags, &self.env())
    }
    #[track_caller]
    fn config(&self) -> Config {
        match self.load() {
            Ok(loaded) => loaded.config,
            Err(error) => panic!("{error}"),
        }
    }
    /// Returns the message of the only problem.
    #[track_caller]
    fn single_problem(&self) -> String {
        let error = self.load().unwrap_err();
        assert_eq!(error.problems.len(), 1, "{error}");
        error.problems[0].to_string()
    }
}

#[track_caller]
fn assert_refused(yaml: &str, parts: &[&str]) {
    let message = Case::file(yaml).single_problem();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn bare_port_listens_on_loopback() {
    for case in [Case::file("listen: 8081"), Case::file("listen: '8081'"), Case::new().listen("8081")] {
        assert_eq!(case.load().unwrap().config.listen.to_string(), "127.0.0.1:8081");
    }
}

#[test]
fn default_file_equals_builtin_defaults() {
    let case = Case::new();
    let loaded = case.load().unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.file, None);
    let c = loaded.config;
    // Scripts depend on these values.
    assert_eq!(c.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(c.data, case.dir.path().join(".local/state/countersign"));
    assert_eq!(c.auth.mode, AuthMode::Local);
    assert_eq!(c.tls, None);
    assert_eq!(c.transports.http.max_connections, 1000);
    assert_eq!(c.transports.http.request_timeout, Duration::from_secs(30));
    assert_eq!(c.transports.http.cors_origins, Vec::<String>::new());
    assert_eq!(c.transports.http.max_body, 8 << 20);
    assert_eq!(c.transports.websocket.max_connections, 500);
    assert_eq!(c.transports.websocket.ping_interval, Duration::from_secs(30));
    assert_eq!(c.transports.websocket.max_message_size, 8 << 20);
    assert_eq!(c.transports.stdio.max_message_size, 8 << 20);
    assert_eq!(c.transports.stdio.linger, Duration::from_secs(900));
    assert!(c.modules.tracker.enabled);
    assert_eq!(c.policy.default, PolicyDefault::ReviewWrites);
    assert_eq!(c.changes.expire_after, Duration::from_secs(86_400));

    // `Config::default()` differs only in the home directory. The default file can also be loaded as a file.
    assert_eq!(Config { data: c.data.clone(), ..Config::default() }, c);
    assert_eq!(Case::file(DEFAULT_YAML).var("HOME", &case.dir.path().display().to_string()).config(), c);
}

#[test]
fn every_key_is_documented_in_the_default_file() {
    let lines: Vec<&str> = DEFAULT_YAML.lines().collect();
    for key in list_keys() {
        let (name, depth) = (key.rsplit('.').next().unwrap(), key.matches('.').count());
        let start = format!("{}{name}:", "  ".repeat(depth));
        let line_index =
            lines.iter().position(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("{key} is not in the file"));
        // The comment is above the key, its group of lines, or its section.
        let documented = (0..line_index).rev().take(3).any(|i| lines[i].trim_start().starts_with('#'));
        assert!(documented, "{key} has no comment");
    }
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    const TIME_ENDINGS: [&str; 6] = ["timeout", "alive", "interval", "drain", "wait", "first_connection"];
    let variables: BTreeSet<String> = list_keys().map(variable_name).collect();
    assert_eq!(variables.len(), list_keys().len());
    assert!(NON_KEY_VARIABLES.iter().all(|v| !variables.contains(*v)));
    assert_eq!(variable_name("transports.http.max_body"), "COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY");
    let cert = tempfile::NamedTempFile::new().unwrap();
    for key in list_keys() {
        let value = match key {
            "listen" => "127.0.0.1:9",
            "data" => "/elsewhere",
            "auth.mode" => "keys",
            "dashboard.edit" => "on",
            "dashboard.bundle_window" => "7s",
            "auth.oidc" => "{issuer: 'https://id.example', client_id: gateway}",
            "auth.tokens" => "[{issuer: 'https://id.example'}]",
            "secrets.key_file" => "/etc/countersign/key",
            "secrets.key" => "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "tls.cert" | "tls.key" => cert.path().to_str().unwrap(),
            "behind_tls_proxy" | "strict_versions" | "modules.docs.enabled" => "true",
            "modules.docs.projects" => "{a: {root: /srv/a}}",
            "modules.docs.embeddings" | "modules.docs.generation" => "{url: 'http://127.0.0.1:1', model: m}",
            "modules.tracker.enabled" | "modules.tracker.sample_project" => "false",
            "allowed_hosts" => "a.example, b.example:8443",
            "public_url" | "store.node_url" => "https://a.example",
            "store.url" => "postgres://a.example/b",
            "store.start_timeout" => "5s",
            "store.ca" => cert.path().to_str().unwrap(),
            "transports.http.cors_origins" => "https://a.example",
            "modules.tracker.workflow" => "{Todo: [InProgress]}",
            "mcpServers" => "{a: {command: x}}",
            "webhooks" => "{a: {url: 'http://127.0.0.1:1', format: text}}",
            "routes.prefixes" => "{pm_: tracker}",
            "routes.patterns" => "{'jira_(.*)': '$1'}",
            "routes.categories" => "{'file.*': fs/do_*}",
            "policy.default" => "deny",
            "policy.groups" => "{dba: [alice]}",
            "policy.mode" => "simulate",
            "policy.review.reviewers" => "admin",
            "policy.review.on_expiry" => "reject",
            "policy.review.on_failed_preview" => "review",
            "policy.review.edit" => "forbidden",
            "policy.review.preview" => "required",
            "policy.review.on_review" => "hold",
            "policy.review.questions" => "ask",
            "policy.review.own_agents" => "allow",
            "policy.review.sign_in" => "{max_age: 5m, acr: [urn:example:mfa]}",
            "policy.review.escalate" => "{after: 30m, to: [admin]}",
            "policy.review.require_comment" | "policy.review.open_page" => "true",
            _ if key.starts_with("policy.review.") && !key.ends_with("quorum") => "2m",
            "policy.rules" => "[{ tools: 'db__*', when: 'arguments.n > 1', then: deny }]",
            "log.filter" => "warn,countersign=trace",
            "log.format" => "json",
            "limits.max_depth" | "limits.max_batch" => "64",
            "limits.outbox_bytes" => "9MiB",
            "limits.max_capabilities" | "limits.max_uri" | "limits.principal_memory" | "limits.total_memory" => "2MiB",
            _ if key.ends_with("_bytes") || key.ends_with("max_body") || key.ends_with("_size") => "2MiB",
            _ if key.starts_with("changes.retention") => "7 days",
            _ if key.starts_with("changes.expire") || key.ends_with("linger") || key.ends_with("idle") => "2 days",
            _ if TIME_ENDINGS.iter().any(|ending| key.ends_with(ending)) => "7s",
            _ => "7",
        };
        let mut case = Case::new().var(&variable_name(key), value);
        if matches!(key, "auth.oidc" | "auth.tokens") {
            case = case.var("COUNTERSIGN_PUBLIC_URL", "https://a.example");
        }
        if let Some(other) = key.strip_prefix("tls.") {
            let other = if other == "cert" { "tls.key" } else { "tls.cert" };
            case = case.var(&variable_name(other), cert.path().to_str().unwrap());
        }
        let loaded = case.load().unwrap_or_else(|e| panic!("{key}: {e}"));
        let setting = loaded.settings.iter().find(|s| s.key == key).unwrap();
        assert_eq!(setting.origin, Origin::Env(variable_name(key)));
        assert_ne!(loaded.config, Case::new().config(), "{key} changed nothing");
        let default = Case::new().load().unwrap().settings.into_iter().find(|s| s.key == key).unwrap();
        assert_ne!(setting.value, default.value, "{key}");
    }
}

#[test]
fn flag_overrides_variable_overrides_file_overrides_default() {
    let case = Case::file("listen: 127.0.0.1:1\ntransports: { http: { max_body: 1MiB, workers: 3 } }\n");
    assert_eq!(case.config().listen.port(), 1);
    let case = case.var("COUNTERSIGN_LISTEN", "[::1]:2").var("COUNTERSIGN_TRANSPORTS__HTTP__WORKERS", "4");
    assert_eq!(case.config().listen.to_string(), "[::1]:2");
    let case = case.listen("localhost:3");
    let loaded = case.load().unwrap();
    assert_eq!(loaded.config.listen.to_string(), "127.0.0.1:3");
    assert_eq!(loaded.config.transports.http.workers, 4);
    assert_eq!(loaded.config.transports.http.max_body, 1 << 20);
    assert_eq!(loaded.config.transports.http.max_connections, 1000);
    let origin = |key: &str| loaded.settings.iter().find(|s| s.key == key).unwrap().origin.clone();
    assert_eq!(origin("listen"), Origin::Flag("--listen"));
    assert!(matches!(origin("transports.http.max_body"), Origin::File { line: 2, column: 23, .. }));
    assert_eq!(origin("log.filter"), Origin::Default);
}

#[test]
fn config_file_is_found_by_flag_variable_or_default_path() {
    let case = Case::new();
    let dir = case.dir.path().join(".config/countersign");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("countersign.yaml"), "listen: 127.0.0.1:4\ndata: state").unwrap();
    // A file in the working directory is not read.
    std::fs::write(case.dir.path().join("countersign.yaml"), "listen: 127.0.0.1:5").unwrap();
    let config = case.config();
    assert_eq!(config.listen.port(), 4);
    assert_eq!(config.data, dir.join("state"), "relative to the file");
    let other = case.dir.path().join("other.json");
    std::fs::write(&other, "{\"listen\": \"127.0.0.1:6\"}").unwrap();
    let case = case.var("COUNTERSIGN_CONFIG", "~/other.json");
    assert_eq!(case.config().listen.port(), 6);
    let mut case = case;
    case.flags.config = Some("countersign.yaml".into());
    case.flags.data = Some("~literal".into());
    assert_eq!(case.config().listen.port(), 5);
    assert_eq!(case.config().data, case.dir.path().join("./~literal"));
    case.flags.config = Some("missing.yaml".into());
    let message = case.single_problem();
    assert!(message.contains("missing.yaml") && message.contains("flag --config"), "{message}");
    case.flags.config = Some(".".into());
    assert!(case.single_problem().contains("folder"));
}

#[test]
fn unknown_key_is_refused_with_suggestion() {
    assert_refused("listne: 127.0.0.1:1", &["c.yaml:1:1: listne: unknown key", "Did you mean `listen`?"]);
    assert_refused(
        "\n\ntransports:\n  http:\n    max-body: 1",
        &["c.yaml:5:5: transports.http.max-body", "`max_body`"],
    );
    assert_refused("max_body: 8MiB", &["unknown key", "`transports.http.max_body`"]);
    assert_refused("transports: { htp: {} }", &["transports.htp", "`http`"]);
    assert_refused("transports.http.max_body: 1", &["unknown key", "nested"]);
    assert_refused("xyz: 1", &["Keys here: allowed_hosts, auth,"]);
    assert_refused(
        "auth: keys",
        &["c.yaml:1:7: auth: expected keys below it, found a text", "Keys here: mode, oidc, tokens."],
    );
    assert_refused("- a", &["found a list"]);
    assert_refused("\"a\\u001b[31m\": 1", &["`a\\u{1b}[31m`"]);
}

#[test]
fn wrong_value_names_position_key_and_remedy() {
    let cases: &[(&str, &[&str])] = &[
        ("listen: 80800", &["1:1: listen: expected a text, found 80800"]),
        ("listen: '80800'", &["80800", "Write PORT or IP:PORT"]),
        ("listen: 127.0.0.1", &["Add a port: 127.0.0.1:8080."]),
        ("listen: '::1'", &["[::1]:8080"]),
        ("listen: ':8080'", &["127.0.0.1:8080 for this machine"]),
        ("listen: example.com:80", &["not looked up"]),
        ("data: ~", &["data: the key has no value", "quote it"]),
        ("data: $NOPE/x", &["$NOPE"]),
        ("auth: { mode: key }", &["auth.mode: `key` is not one of local, keys"]),
        ("strict_versions: yes", &["expected true or false, found `yes`"]),
        ("transports: { http: { request_timeout: 30 } }", &["30 has no unit: 30s or 30ms?"]),
        ("transports: { http: { request_timeout: 0s } }", &["0s is out of range", "from 10ms to 1h"]),
        ("transports: { http: { max_body: 8M } }", &["8MiB or 8MB"]),
        ("transports: { http: { max_body: -1 } }", &["cannot be negative"]),
        ("transports: { http: { max_connections: 0 } }", &["from 1 to"]),
        ("transports: { http: { max_connections: 1.5 } }", &["whole number, found 1.5"]),
        ("transports: { http: { max_connections: '7' } }", &["whole number, found `7`"]),
        ("transports: { http: { cors_origins: '*' } }", &["expected a list, found `*`"]),
        ("transports: { http: { cors_origins: ['*'] } }", &["pages of any site"]),
        ("transports: { http: { cors_origins: ['https://a.example/'] } }", &["Write https://a.example."]),
        ("allowed_hosts: ['https://a']", &["not a host"]),
        ("allowed_hosts: ['*.example.com']", &["no wildcards"]),
        ("public_url: 'https://u:p@a.example'", &["password"]),
        ("public_url: 'https://a.example/x'", &["more than a scheme"]),
        ("public_url: 'ftp://a.example'", &["not an http"]),
        ("modules: { tracker: { workflow: { Todo: [Doing] } } }", &["`Doing` is not a status", "InProgress"]),
        ("modules: { tracker: { workflow: { Todo: Done } } }", &["map of lists"]),
        ("modules: { tracker: { people: [' '] } }", &["not a person's name"]),
        ("policy: { default: none }", &["allow, review_writes, review_all, deny"]),
        ("policy: { rules: { then: deny } }", &["expected a list of rules, found a map"]),
        ("policy:\n  rules:\n    - tools: a\n", &["c.yaml:3:7: policy.rules: rule 1 has no `then`"]),
        (
            "policy:\n  rules:\n    - then: allow\n    - then: allow\n      when: arguments.x ==\n",
            &["c.yaml:5:13: policy.rules.when: the condition cannot be used"],
        ),
        ("policy: { rules: [{ then: deny, when: argument.x }] }", &["there is no `argument`", "1:39"]),
        ("policy: { rules: [{ then: deny, tool: x }] }", &["policy.rules.tool: unknown key", "Did you mean `tools`?"]),
        (
            "policy: { rules: [{ then: review, resources: 'a:*' }] }",
            &["1:19: policy.rules: rule 1 names resources, prompts or methods and says review", "only calls of tools"],
        ),
        (
            "policy: { rules: [{ then: deny, prompts: x, annotations: { readOnlyHint: true } }] }",
            &["asks for annotations, which only tools have"],
        ),
        (
            "policy: { rules: [{ then: allow, methods: x, when: arguments.a == 1 }] }",
            &["its condition looks at a tool or its arguments", "may look at principal and session"],
        ),
        ("policy: { rules: [{ then: block }] }", &["`block` is not one of allow, review, deny"]),
        ("policy: { rules: [{ then: deny, roles: [boss] }] }", &["`boss` is not a role"]),
        ("policy: { rules: [{ then: deny, tools: '[' }] }", &["`[` is not a pattern"]),
        ("policy: { rules: [{ then: deny, tools: [] }] }", &["an empty list"]),
        (
            "policy: { rules: [{ then: deny, annotations: { readonly: true } }] }",
            &["policy.rules.annotations.readonly: unknown key", "readOnlyHint"],
        ),
        ("policy: { rules: [{ name: a, then: deny }, { name: a, then: allow }] }", &["the same name"]),
        (
            "policy:\n  rules:\n    - then: deny\n      quorum: 2\n",
            &["c.yaml:4:15", "quorum applies to reviews only, and rule 1 says deny"],
        ),
        ("policy: { rules: [{ then: review, quorum: 0 }] }", &["0 is out of range", "1 to 100"]),
        ("policy: { rules: [{ then: review, edit: no }] }", &["`no` is not one of allowed, other, forbidden"]),
        ("policy: { rules: [{ then: review, undo_for: 1500ms }] }", &["is not a whole number of seconds"]),
        ("policy: { rules: [{ then: review, reviewers: [dba] }] }", &["there is no group `dba`"]),
        ("policy: { rules: [{ then: review, reviewers: agent }] }", &["`agent` may not decide"]),
        (
            "policy: { groups: { dba: [a, b] }, rules: [{ then: review, reviewers: dba, quorum: 3 }] }",
            &["the quorum is 3, but only 2 reviewers may decide"],
        ),
        (
            "policy: { groups: { dba: [a] }, review: { reviewers: [dba], quorum: 2 } }",
            &["policy.review.reviewers: the quorum"],
        ),
        ("policy: { groups: { admin: [a] } }", &["policy.groups: `admin` is a role"]),
        ("log: { filter: 'a=loud' }", &["not a log filter"]),
        (
            "transports: { websocket: { max_message_size: 1MiB }, stdio: { max_message_size: 1MiB } }\nlimits: { outbox_bytes: 1MiB }",
            &["2:11: limits.outbox_bytes: ", "8MiB, is more than"],
        ),
        ("transports: { http: { max_body: 17MiB } }", &["1:23: transports.http.max_body: "]),
        (
            "limits: { max_batch: 2 }",
            &["limits.max_batch: limits.batch_concurrency, 8, is more than limits.max_batch, 2"],
        ),
        ("tls: { cert: /nonexistent }", &["tls.cert: tls.key is missing"]),
        ("a: [", &["not YAML"]),
        ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2", &["c.yaml:2", "not YAML"]),
    ];
    for (yaml, parts) in cases {
        assert_refused(yaml, parts);
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let error = Case::file("listne: 1\nauth: { mode: x }\nlog: { format: xml }\n").load().unwrap_err();
    assert_eq!(error.problems.len(), 3, "{error}");
    assert!(error.to_string().lines().count() == 4);
}

#[test]
fn wrong_variable_is_named() {
    let message = Case::new().var("COUNTERSIGN_AUTH__MODE", "x").single_problem();
    assert!(message.starts_with("environment variable COUNTERSIGN_AUTH__MODE: auth.mode: `x`"), "{message}");
    let message = Case::new().var("COUNTERSIGN_AUTH__MOD", "keys").single_problem();
    assert!(message.contains("Did you mean COUNTERSIGN_AUTH__MODE?"), "{message}");
    let message = Case::new().var("COUNTERSIGN_AUTH", "keys").single_problem();
    assert!(message.contains("Did you mean COUNTERSIGN_AUTH__MODE?"), "{message}");
    assert!(Case::new().var("COUNTERSIGN_UPSTREAMS__X", "1").single_problem().contains("COUNTERSIGN_UPSTREAMS__X"));
    // Set by container platforms, or read by the commands.
    let case = Case::new()
        .var("COUNTERSIGN_PORT_8080_TCP_ADDR", "10.0.0.1")
        .var("COUNTERSIGN_KEY", "k")
        .var("COUNTERSIGN_AGENT_KEY", "k");
    assert!(case.load().is_ok());
    assert!(Case::new().var("COUNTERSIGN_LISTEN", "").load().is_ok(), "empty counts as not set");
}

#[test]
fn listening_off_loopback_needs_keys_and_encryption() {
    let error = Case::new().listen("0.0.0.0:8080").load().unwrap_err();
    assert_eq!(error.problems.len(), 2, "{error}");
    assert_eq!(error.problems[0].origin, Origin::Flag("--listen"));
    let keys = |case: Case| case.var("COUNTERSIGN_AUTH__MODE", "keys");
    let message = keys(Case::new().listen("0.0.0.0:8080")).single_problem();
    assert!(message.contains("behind_tls_proxy"), "{message}");
    let case = keys(Case::new().listen("0.0.0.0:8080")).var("COUNTERSIGN_BEHIND_TLS_PROXY", "1");
    let loaded = case.load().unwrap();
    assert!(loaded.warnings[0].contains("allowed_hosts"), "{:?}", loaded.warnings);
    assert!(Case::new().listen("127.0.0.5:1").load().is_ok());
    assert!(Case::new().listen("[::1]:1").load().is_ok());
    assert!(Case::new().listen("192.168.1.1:1").load().is_err());
    let message = Case::file("tls: { cert: /nonexistent/c, key: /nonexistent/k }").load().unwrap_err();
    assert_eq!(message.problems.len(), 2);
}

#[test]
fn shown_config_loads_to_same_config() {
    let case = Case::file(
        "listen: 127.0.0.1:1\ndata: '/tmp/a b'\nallowed_hosts: [a.example, 'b.example:1']\nlog: {format: json}\n\
         modules: { tracker: { workflow: { Todo: [InProgress, Done], Done: [] } } }\npublic_url: https://x.example\n\
         policy: { rules: [{ name: 'a: b', tools: [x, 'y,z'], servers: s, roles: agent, principals: ['*'], then: deny,\n\
         annotations: { readOnlyHint: false }, when: 'arguments.a == \"b\"', reason: 'no' }, { then: review }, { then: review, tools: y, reviewers: [dba, admin],\n\
         quorum: 3, expire_after: null, on_expiry: reject, require_comment: true, edit: forbidden, preview: required,\n\
         on_review: hold, hold_for: 90s, undo_for: 10s, open_page: true, questions: ask }],\n\
         groups: { dba: [alice, 'b c'] }, review: { expire_after: 2h, quorum: 2, reviewers: [admin] } }\n",
    );
    let loaded = case.load().unwrap();
    let text = show::yaml(&loaded.settings);
    assert!(text.contains("c.yaml:1:1"), "{text}");
    assert!(text.contains("  # default"), "{text}");
    let again = Case::file(&text);
    assert_eq!(again.config(), loaded.config);
    assert_eq!(loaded.config.log.format, LogFormat::Json);
    let json = show::json(&loaded.settings);
    assert_eq!(json["log.format"]["value"], "json");
    assert_eq!(json.as_object().unwrap().len(), list_keys().len());
}

#[test]
fn data_dir_needs_home_or_flag() {
    let env = Environment::new(Path::new("/w"), &[]);
    let error = load(&Flags::default(), &env).unwrap_err();
    assert!(error.to_string().contains("--data DIR"), "{error}");
    let flags = Flags { data: Some("d".into()), ..Flags::default() };
    assert_eq!(load(&flags, &env).unwrap().config.data, Path::new("/w/d"));
}

#[test]
fn client_ignores_problems_in_unused_keys() {
    let wrong = [
        "mcpServers: { a: { command: x, env: { T: '${NOT_SET}' } } }",
        "limitz: { drain: 1s }",
        "limits: { drain: 7 }",
        "policy: { rulez: [], groups: { g: [ann] } }",
        "webhooks: [",
        "mcpServers:\n  a:\n    command: x\n   args: [y]",
    ];
    for wrong in wrong {
        let text = format!("data: /d\nstore: {{ url: 'postgres://${{DB}}@h/c' }}\n{wrong}\n");
        let case = Case::file(&text).var("DB", "u").var("COUNTERSIGN_LIMITS__DRAIM", "1s");
        assert!(case.load().is_err(), "{wrong}");
        assert_eq!(data_dir(&case.flags, &case.env()).unwrap(), Path::new("/d"), "{wrong}");
        let found = store_settings(&case.flags, &case.env()).unwrap();
        assert_eq!(found.server.unwrap().address(), ("postgres://u@h/c", None), "{wrong}");
        assert_eq!(found.data, Path::new("/d"));
    }
    let case = Case::file("policy: { rulez: [], groups: { g: [ann], h: [bo] } }");
    assert_eq!(group_members(&case.flags, &case.env()).unwrap(), ["ann", "bo"]);
}

#[test]
fn client_refuses_problems_in_used_keys() {
    for wrong in [
        "store: { url: 'postgres://${NOT_SET}@h/c' }",
        "store: { urll: 'postgres://h/c' }",
        "stoer: { url: 'postgres://h/c' }",
        "store: [",
        "{ store: { url: 'postgres://h/c' }",
        "store:\n  url: 'postgres://h/c'\n ca: x\nlimits: 7",
    ] {
        let case = Case::file(wrong);
        assert!(store_settings(&case.flags, &case.env()).is_err(), "{wrong}");
    }
    let case = Case::new().var("COUNTERSIGN_STORE_URL", "postgres://h/c");
    assert!(store_settings(&case.flags, &case.env()).is_err());
    let mut case = Case::file("dataa: /d");
    assert!(data_dir(&case.flags, &case.env()).is_err());
    // No file is read if the directory is named.
    case.flags.data = Some("/d".into());
    case.flags.config = Some("missing".into());
    assert_eq!(data_dir(&case.flags, &case.env()).unwrap(), Path::new("/d"));
    case.flags.data = None;
    assert!(data_dir(&case.flags, &case.env()).is_err());
    assert!(group_members(&Case::file("polcy: {}").flags, &case.env()).is_err());
}

#[test]
fn local_url_of_unspecified_address_is_loopback() {
    let url = |address: &str| Config::default().local_url(address.parse().unwrap());
    assert_eq!(url("[::]:8080"), "http://[::1]:8080");
    assert_eq!(url("127.0.0.1:1"), "http://127.0.0.1:1");
    assert_eq!(url("192.168.1.5:1"), "http://192.168.1.5:1");
}
