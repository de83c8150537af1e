use std::time::Duration;

use super::{BREAKER_KEYS, KEYS, LISTS_KEYS, TOOLS_KEYS, authorities, oauth};
use crate::{
    BreakerConfig, Config, Environment, Flags, Isolation, LoadedConfig, Secret, Serialization, UpstreamConfig,
    UpstreamOAuth, UpstreamTarget, UrlTransport,
    error::ConfigError,
    load::{DEFAULT_YAML, load},
    show,
};
use countersign_domain::recipes::Recipes;

struct Case {
    dir: tempfile::TempDir,
    vars: Vec<(String, String)>,
}

impl Case {
    fn new(yaml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc")).unwrap();
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        std::fs::write(dir.path().join("etc/c.yaml"), yaml).unwrap();
        let home = dir.path().join("home").display().to_string();
        Self { dir, vars: vec![("HOME".to_owned(), home)] }
    }
    fn var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }
    fn path(&self, below: &str) -> std::path::PathBuf {
        self.dir.path().join(below)
    }
    fn load(&self) -> Result<LoadedConfig, ConfigError> {
        let vars: Vec<(&str, &str)> = self.vars.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let flags = Flags {
            config: Some(self.path("etc/c.yaml")),
            data: Some(self.path("state/countersign")),
            ..Flags::default()
        };
        load(&flags, &Environment::new(self.dir.path(), &vars))
    }
    #[track_caller]
    fn config(&self) -> Config {
        self.load().unwrap_or_else(|error| panic!("{error}")).config
    }
    #[track_caller]
    fn only_upstream(&self) -> UpstreamConfig {
        let mut all = self.config().upstreams;
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

#[track_caller]
fn assert_refused(yaml: &str, parts: &[&str]) {
    let error = Case::new(yaml).load().unwrap_err();
    assert_eq!(error.problems.len(), 1, "{error}");
    let message = error.problems[0].to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

fn server(fields: &str) -> String {
    format!("mcpServers: {{ a: {{ {fields} }} }}")
}

#[test]
fn pasted_desktop_client_block_loads() {
    // A typical block, with the additional keys of several clients.
    let block = r#"{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp/documents"],
      "env": {"TOKEN": "${TOKEN}", "EMPTY": ""},
      "disabled": false,
      "autoApprove": ["read_file"]
    },
    "git": {"type": "stdio", "command": "uvx", "args": ["mcp-server-git"], "cwd": null},
    "remote": {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    "old": {"type": "sse", "url": "http://127.0.0.1:9/sse"},
    "surf": {"serverUrl": "https://a.example/mcp"},
    "gemini": {"httpUrl": "https://b.example/mcp"},
    "off": {"command": "x", "env": {"A": "${UNSET}"}, "disabled": true}
  }
}"#;
    // As a separate JSON file, and below a YAML key.
    let inner = block.trim().strip_prefix("{\n  \"mcpServers\": ").unwrap().strip_suffix('}').unwrap();
    for text in [block.to_owned(), format!("listen: 127.0.0.1:0\nmcpServers: {inner}\nlog: {{ format: json }}\n")] {
        let loaded = Case::new(&text).var("TOKEN", "t0p").load().unwrap_or_else(|e| panic!("{e}"));
        let all = &loaded.config.upstreams;
        let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["filesystem", "git", "remote", "old", "surf", "gemini"]);
        let UpstreamTarget::Command { command, args, env, cwd } = &all[0].target else { panic!("no command") };
        assert_eq!((command.as_str(), args.len(), cwd), ("npx", 3, &None));
        assert_eq!(env["TOKEN"], Secret("t0p".into()));
        assert_eq!(env["EMPTY"], Secret(String::new()));
        assert_eq!(all[0].prefix, "filesystem__");
        let url = |index: usize| match &all[index].target {
            UpstreamTarget::Url { urls, headers, transport } => (urls[0].as_str(), headers.clone(), *transport),
            UpstreamTarget::Command { .. } => panic!("no url"),
        };
        let token = vec![("authorization".to_owned(), Secret("Bearer t0p".into()))];
        assert_eq!(url(2), ("https://mcp.example.com/mcp", token, UrlTransport::StreamableHttp));
        assert_eq!(url(3).2, UrlTransport::Sse);
        assert_eq!(url(4).2, UrlTransport::Auto);
        assert_eq!(url(5).2, UrlTransport::StreamableHttp);
        assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
        assert!(loaded.warnings[0].contains("autoApprove is ignored"));
    }
}

#[test]
fn documented_server_block_loads_and_names_every_key() {
    let start = DEFAULT_YAML.find("#mcpServers:").unwrap();
    let block: Vec<&str> = DEFAULT_YAML[start..].lines().take_while(|line| line.starts_with('#')).collect();
    let yaml: String = block.iter().map(|line| format!("{}\n", &line[1..])).collect();
    for key in KEYS.iter().filter(|key| !["serverUrl", "httpUrl", "autoApprove", "alwaysAllow"].contains(key)) {
        let start = format!("#    {key}:");
        let line_index =
            block.iter().position(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{key} is missing"));
        assert!(
            (0..line_index).rev().take(2).any(|i| block[i].trim_start_matches('#').trim().starts_with('#'))
                || line_index < 9,
            "{key}"
        );
    }
    for key in
        BREAKER_KEYS.iter().chain(&LISTS_KEYS).chain(&TOOLS_KEYS).chain(&authorities::TLS_KEYS).chain(&oauth::KEYS)
    {
        assert!(yaml.contains(&format!("{key}: ")), "{key} is missing");
    }
    let all = Case::new(&yaml).config().upstreams;
    assert_eq!(all.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["files", "search", "notes"]);
    assert_eq!(all[2].oauth, Some(UpstreamOAuth::default()));
    // The defaults in the comments are the real defaults.
    let plain = UpstreamConfig::new("files", all[0].target.clone());
    let shown = UpstreamConfig {
        isolation: None,
        tool_timeouts: Vec::new(),
        tools_deny: Vec::new(),
        fallback: None,
        fallback_text: None,
        previews: Recipes::default(),
        label: plain.label.clone(),
        ..all[0].clone()
    };
    assert_eq!(shown, plain);
    let previews = &all[0].previews;
    assert_eq!(previews.sets, ["filesystem"]);
    assert_eq!(previews.tools_with_own_recipe, ["call", "edit_page", "run_sql", "update_page"]);
    let UpstreamTarget::Url { urls, .. } = &all[1].target else { panic!("no url") };
    assert_eq!(urls.len(), 2);
}

#[test]
fn gateway_keys_of_server_are_read() {
    let yaml = "mcpServers:\n  a:\n    command: ./run\n    cwd: ~/work\n    prefix: ''\n    isolation: session\n    serialize: tool\n    \
                timeout: 2m\n    tool_timeouts: { 'slow_*': 10m, '*': 5s }\n    max_in_flight: 3\n    max_queue: 0\n    \
                required: true\n    tools: { allow: ['get_*'], deny: [get_x] }\n    trust_annotations: true\n    \
                sampling: deny\n    elicitation: deny\n    breaker: { threshold: 0, window: 1s }\n    fallback: b\n    \
                fallback_text: later\n    cache: true\n  b:\n    url: wss://x.example/\n    tools: [one]\n    \
                forward_headers: [X-Trace, X-Span, x-trace]\n";
    let case = Case::new(yaml);
    let all = case.config().upstreams;
    let s = Duration::from_secs;
    let expected = UpstreamConfig {
        label: "./run".into(),
        prefix: String::new(),
        isolation: Some(Isolation::Session),
        serialize: Serialization::Tool,
        timeout: s(120),
        tool_timeouts: vec![("slow_*".into(), s(600)), ("*".into(), s(5))],
        max_in_flight: 3,
        max_queue: 0,
        required: true,
        tools_allow: vec!["get_*".into()],
        tools_deny: vec!["get_x".into()],
        trust_annotations: true,
        sampling: false,
        elicitation: false,
        breaker: BreakerConfig { threshold: 0, window: s(1), cooldown: s(10) },
        fallback: Some("b".into()),
        fallback_text: Some("later".into()),
        cache: true,
        ..UpstreamConfig::new(
            "a",
            UpstreamTarget::Command {
                command: case.path("home/work/run").display().to_string().replace("/run", "/./run"),
                args: Vec::new(),
                env: Default::default(),
                cwd: Some(case.path("home/work")),
            },
        )
    };
    assert_eq!(all[0], expected);
    assert_eq!(all[1].tools_allow, ["one"]);
    assert_eq!(all[1].forward_headers, ["x-trace", "x-span"]);
}

#[test]
fn paths_are_relative_to_file_and_bare_names_use_path() {
    let target = |fields: &str| {
        let case = Case::new(&server(fields)).var("DIR", "sub").var("HOME_LIKE", "~/x");
        match case.only_upstream().target {
            UpstreamTarget::Command { command, cwd, .. } => {
                let cut = |text: String| text.replace(&case.dir.path().display().to_string(), "");
                (cut(command), cwd.map(|cwd| cut(cwd.display().to_string())))
            }
            UpstreamTarget::Url { .. } => panic!("no command"),
        }
    };
    assert_eq!(target("command: npx"), ("npx".into(), None));
    assert_eq!(target("command: bin/x, cwd: '${DIR}/y'"), ("/etc/sub/y/bin/x".into(), Some("/etc/sub/y".into())));
    assert_eq!(target("command: ~/x, cwd: /w"), ("/home/x".into(), Some("/w".into())));
    assert_eq!(target("command: x, cwd: $HOME"), ("x".into(), Some("/home".into())));
    // The value of a variable is not a pattern.
    assert_eq!(target("command: x, cwd: '${HOME_LIKE}'"), ("x".into(), Some("/etc/~/x".into())));
}

#[test]
fn unset_variable_is_reported_with_key_file_and_line() {
    let yaml = "mcpServers:\n  a:\n    command: x\n    env:\n      KEY: ok\n      TOKEN: Bearer ${MY_TOKEN}\n";
    let message = Case::new(yaml).load().unwrap_err().problems[0].to_string();
    assert!(
        message.contains("c.yaml:6:14: mcpServers.a.env.TOKEN: the environment variable MY_TOKEN is not set"),
        "{message}"
    );
    for fields in [
        "command: '${MY_TOKEN}'",
        "command: x, args: ['--k=${MY_TOKEN}']",
        "command: x, cwd: '${MY_TOKEN}'",
        "url: 'https://${MY_TOKEN}/'",
        "url: 'https://a/', replicas: ['https://${MY_TOKEN}/']",
        "url: 'https://a/', headers: { x: '${MY_TOKEN}' }",
    ] {
        assert_refused(&server(fields), &["c.yaml:1:", "MY_TOKEN is not set"]);
        assert!(Case::new(&server(fields)).var("MY_TOKEN", "x").load().is_ok(), "{fields}");
    }
}

#[test]
fn wrong_server_names_position_key_and_remedy() {
    let cases: &[(&str, &[&str])] = &[
        ("mcpServers: [a]", &["mcpServers: expected a map of servers, found a list"]),
        ("mcpServers: { a: npx }", &["mcpServers.a: expected a server, found a text"]),
        ("mcpServers: { tracker: { command: x } }", &["a provider of the gateway itself"]),
        ("mcpServers: { callback: { url: 'http://h/' } }", &["/api/servers/callback is another path of the REST API"]),
        ("mcpServers: { '.': { command: x } }", &[". cannot be a server's name"]),
        ("mcpServers: { '..': { command: x } }", &[".. cannot be a server's name"]),
        ("mcpServers: { io.github.user/weather: { command: x }, '50%+': { command: x } }", &[]),
        ("mcpServers: { '': { command: x } }", &["cannot be a server's name"]),
        ("mcpServers: { \"a\\u200b\": { command: x } }", &["cannot be a server's name"]),
        ("mcpServers: { a b: { url: 'http://h/' }, A.b: { command: x } }", &[]),
        ("mcpServers: { a b: { command: x }, A-b: { command: x } }", &["1:36: mcpServers.A-b", "`a b` do", "Rename"]),
    ];
    for (yaml, parts) in cases {
        if parts.is_empty() {
            assert!(Case::new(yaml).load().is_ok(), "{yaml}");
        } else {
            assert_refused(yaml, parts);
        }
    }
    let cases: &[(&str, &[&str])] = &[
        ("comand: x, url: 'http://a/'", &["mcpServers.a.comand: unknown key", "Did you mean `command`?"]),
        ("command: x, '': y", &["mcpServers.a: unknown key"]),
        ("command: x, trustAnnotation: true", &["trustAnnotation", "`trust_annotations`"]),
        ("command: x, disabledTools: [a]", &["tools: { deny:"]),
        ("command: x, tools: { allowed: [a] }", &["mcpServers.a.tools.allowed", "Keys here: allow, deny"]),
        ("command: x, breaker: { limit: 1 }", &["mcpServers.a.breaker.limit", "threshold"]),
        ("args: [x]", &["the server has neither a command nor a url"]),
        ("command: x, url: 'http://a/'", &["the server has both a command and a url"]),
        ("url: 'http://a/', httpUrl: 'http://a/'", &["two keys give the server's address"]),
        ("command: x, headers: {}", &["does not take this key"]),
        ("url: 'http://a/', args: []", &["mcpServers.a.args", "does not take this key"]),
        ("command: x, type: http", &["always uses stdio"]),
        ("url: 'http://a/', transport: stdio", &["cannot use stdio"]),
        ("url: 'http://a/', transport: grpc", &["`grpc` is not one of stdio"]),
        ("url: 'http://a/', transport: sse, type: http", &["contradict each other"]),
        ("url: 'http://a/', transport: ws", &["not a WebSocket address"]),
        ("url: 'ws://a/', type: http", &["is a WebSocket address"]),
        ("url: 'ftp://a/'", &["has a scheme"]),
        ("url: 'a.example/mcp'", &["is not a URL"]),
        ("url: 'http://u:p@a/'", &["user name or password"]),
        ("url: 'http://a/', replicas: ['http://a/']", &["an address is given twice"]),
        ("url: 'http://a/', replicas: ['ws://a/']", &["two servers"]),
        ("url: 'http://a/', headers: { Host: x }", &["headers.Host: host is set by the gateway itself"]),
        ("url: 'http://a/', headers: { Mcp-Session-Id: x }", &["set by the gateway itself"]),
        ("url: 'http://a/', headers: { 'a b': x }", &["not a header's name"]),
        ("url: 'http://a/', headers: { a: x, A: y }", &["twice"]),
        ("url: 'http://a/', forward_headers: [Connection]", &["set by the gateway itself"]),
        ("url: 'http://a/', forward_headers: [x-a, AUTHORIZATION]", &["authorization is meant for the gateway"]),
        ("url: 'http://a/', forward_headers: [Cookie]", &["cookie is meant for the gateway", "Take it out"]),
        ("url: 'http://a/', forward_headers: [Proxy-Authorization]", &["never passed on"]),
        ("url: 'http://a/', forward_headers: [X-Countersign-Secret]", &["never passed on"]),
        ("url: 'http://a/', forward_headers: [Mcp-Anything]", &["never passed on"]),
        ("url: 'http://a/', forward_headers: [X-Forwarded-For]", &["never passed on"]),
        ("command: ''", &["the command is empty"]),
        ("command: x, args: [8080]", &["mcpServers.a.args: expected a text, found a number", "quotes"]),
        ("command: x, env: { A: 1 }", &["env.A: expected a text, found a number"]),
        ("command: x, env: { 'A=B': x }", &["cannot name a variable"]),
        ("command: x, args: [\"a\\0\"]", &["NUL"]),
        ("command: x, cwd: ~bob/x", &["mcpServers.a.cwd", "another user's home"]),
        ("command: x, prefix: 'a b'", &["cannot begin a tool's name"]),
        ("command: x, isolation: none", &["`none` is not one of shared, session"]),
        ("command: x, serialize: none", &["`none` is not one of server, tool"]),
        ("command: x, timeout: 60", &["60 has no unit"]),
        ("command: x, tool_timeouts: { 'a[': 5s }", &["`a[` is not a pattern"]),
        ("command: x, tool_timeouts: { a: 0s }", &["tool_timeouts.a: 0s is out of range"]),
        ("command: x, max_in_flight: 0", &["out of range"]),
        ("command: x, required: yes", &["expected true or false"]),
        ("command: x, sampling: true", &["true is not one of allow, deny"]),
        ("command: x, tools: { deny: [''] }", &["the pattern is empty"]),
        ("command: x, fallback: a", &["its own fallback"]),
        ("command: x, fallback: b", &["mcpServers.a.fallback: `b` is not a server of mcpServers"]),
        ("command: x, tls: { ca: a.pem }", &["mcpServers.a.tls", "does not take this key"]),
        ("url: 'https://a/', tls: { cert: a.pem }", &["mcpServers.a.tls.cert", "Keys here: ca"]),
        ("url: 'https://a/', tls: { ca: 1 }", &["mcpServers.a.tls.ca", "expected a text"]),
        ("url: 'https://a/', tls: { ca: none.pem }", &["1:50", "mcpServers.a.tls.ca", "`none.pem`", "No such file"]),
        ("url: 'wss://a/', tls: { ca: . }", &["mcpServers.a.tls.ca", "it is not a file"]),
        ("url: 'https://a/', tls: { ca: c.yaml }", &["mcpServers.a.tls.ca", "`c.yaml`", "it contains no certificate"]),
        ("url: 'http://a/', tls: { ca: c.yaml }", &["mcpServers.a.tls.ca", "no https or wss address"]),
        ("command: x, instructions: true", &["true is not one of pass, drop"]),
        ("command: x, disabled: 1", &["expected true or false"]),
    ];
    for (fields, parts) in cases {
        assert_refused(&server(fields), parts);
    }
}

#[test]
fn server_secrets_are_never_shown() {
    let yaml = "mcpServers:\n  a:\n    command: ${DIR}/x\n    args: ['${SECRET}', plain, '--token=${SECRET:-s3cret-t}']\n    env: { A: s3cret-a, B: '${SECRET}', C: '${X:-s3cret-c}' }\n  \
                b:\n    url: https://h.example/${SECRET}?key=s3cret-q&k=${SECRET}\n    headers: { x: s3cret-h, authorization: 'Bearer ${SECRET}' }\n";
    let case = Case::new(yaml).var("SECRET", "s3cret-v").var("DIR", "/s3cret-d");
    let loaded = case.load().unwrap_or_else(|e| panic!("{e}"));
    let shown = show::yaml(&loaded.settings);
    for (text, what) in [
        (format!("{:?}", loaded.config), "Debug"),
        (shown.clone(), "config show"),
        (show::json(&loaded.settings).to_string(), "config show --json"),
        (loaded.warnings.join(""), "warnings"),
    ] {
        assert!(!text.contains("s3cret"), "{what}: {text}");
    }
    assert!(shown.contains("    env: { A: \"[secret]\", B: \"${SECRET}\", C: \"[secret]\" }\n"), "{shown}");
    assert!(shown.contains("authorization: \"Bearer ${SECRET}\""), "{shown}");
    assert!(format!("{:?}", loaded.config).contains("https://h.example"));
    let labels: Vec<&str> = loaded.config.upstreams.iter().map(|server| server.label.as_str()).collect();
    assert_eq!(labels, ["${DIR}/x ${SECRET} plain --token=[secret]", "https://h.example"]);
    // Invalid values.
    for fields in [
        "url: '${SECRET}'",
        "url: 'ftp://u:s3cret@h/?k=s3cret'",
        "url: 'http://h/', headers: { x: \"s3cret\\n\" }",
        "url: 'http://h/', headers: { x: [s3cret] }",
        "url: 'http://h/', headers: s3cret",
        "command: x, env: s3cret",
        "command: x, env: { A: [s3cret] }",
        "command: x, cwd: '${EMPTY}', env: { S: s3cret }",
    ] {
        let error = Case::new(&server(fields)).var("SECRET", "s3cret").var("EMPTY", "").load().unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[test]
fn shown_servers_load_to_same_servers() {
    let yaml = "listen: 127.0.0.1:1\nmcpServers:\n  \"my server\": { command: x, args: ['a: b', '', '$${x'], env: { T: '${T}' }, tools: { deny: ['*'] }, prefix: p_ }\n  \
                two: { url: 'https://h/?a=${T}', timeout: 5s, required: true, max_queue: 7 }\nlog: { format: json }\n";
    let loaded = Case::new(yaml).var("T", "v").load().unwrap();
    let again = Case::new(&show::yaml(&loaded.settings)).var("T", "v");
    assert_eq!(again.config().upstreams, loaded.config.upstreams, "{}", show::yaml(&loaded.settings));
}

#[test]
fn credentials_over_plain_http_cause_warning() {
    let warnings = |fields: &str| Case::new(&server(fields)).load().unwrap().warnings;
    assert!(warnings("url: 'http://h.example/', headers: { x: y }")[0].contains("unencrypted"));
    assert!(
        warnings("url: 'wss://h.example/', replicas: ['ws://g.example/'], headers: { x: y }")[0]
            .contains("unencrypted")
    );
    for fine in [
        "url: 'http://h.example/'",
        "url: 'http://localhost:1/', headers: { x: y }",
        "url: 'http://[::1]/', headers: { x: y }",
    ] {
        assert_eq!(warnings(fine), Vec::<String>::new());
    }
    let named = Case::new("mcpServers: { My Server: { command: x } }").load().unwrap().warnings;
    assert!(named[0].contains("My Server__"), "{named:?}");
}

#[test]
fn server_with_access_to_own_files_is_refused() {
    for (fields, key) in [
        ("command: npx, args: [-y, server-filesystem, '${ROOT}']", "a.args[2]"),
        ("command: npx, args: ['--root=${ROOT}/state/countersign']", "a.args[0]"),
        ("command: npx, args: ['${ROOT}/etc/c.yaml']", "a.args[0]"),
        ("command: npx, args: [/]", "a.args[0]"),
        ("command: npx, cwd: '${ROOT}/etc'", "a.cwd"),
        ("command: npx, cwd: .", "a.cwd"),
    ] {
        let case = Case::new(&server(fields));
        let root = case.path("").display().to_string();
        let error = case.var("ROOT", root.trim_end_matches('/')).load().unwrap_err();
        assert_eq!(error.problems.len(), 1, "{error}");
        let message = error.problems[0].to_string();
        let parts = [":1:", key, "the server a would get at the gateway's own files", "allow_own_files: true"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert!(message.contains("/state/countersign.") || message.contains("/etc/c.yaml."), "{message}");
        let case = Case::new(&server(&format!("{fields}, allow_own_files: true")));
        let root = case.path("").display().to_string();
        assert!(case.var("ROOT", root.trim_end_matches('/')).load().is_ok(), "{fields}");
    }
    assert!(Case::new(&server("command: npx, args: [../home]")).load().is_err(), "from its folder below data");
    assert!(Case::new(&server("command: npx, cwd: ../home, args: [x]")).load().is_ok());
}

#[test]
fn server_with_access_to_keys_or_logins_is_refused() {
    let keys = "secrets: { key_file: ../keys/token }\ntls: { cert: ../keys/c.pem, key: ../keys/tls }\n";
    let with_argument = |path: &str| {
        let case = Case::new(&format!("{keys}{}", server(&format!("command: x, args: ['${{ROOT}}/{path}']"))));
        std::fs::create_dir(case.path("keys")).unwrap();
        for file in ["c.pem", "tls"] {
            std::fs::write(case.path("keys").join(file), "x").unwrap();
        }
        let root = case.path("").display().to_string();
        case.var("ROOT", root.trim_end_matches('/'))
    };
    for path in ["keys", "keys/token", "keys/tls"] {
        let message = with_argument(path).load().unwrap_err().to_string();
        assert!(message.contains("the gateway's own files: this covers") && message.contains("/keys/t"), "{message}");
    }
    assert!(with_argument("keys/c.pem").load().is_ok());
    let case = with_argument("home/.config");
    assert!(case.load().is_ok(), "nobody has signed in");
    std::fs::create_dir_all(case.path("home/.config/countersign")).unwrap();
    std::fs::write(case.path("home/.config/countersign/credentials.json"), "{}").unwrap();
    let message = case.load().unwrap_err().to_string();
    assert!(message.contains("credentials.json"), "{message}");
}

#[test]
fn changed_authorities_change_the_configuration() {
    let case = Case::new(&server("url: 'https://a/', tls: { ca: '${NAME}.pem' }")).var("NAME", "ca");
    let make = || {
        let made = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-subj", "/CN=Us", "-keyout", "/dev/null", "-out"])
            .arg(case.path("etc/ca.pem"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        case.only_upstream()
    };
    let (first, second) = (make(), make());
    let authorities = first.authorities.as_ref().unwrap();
    assert_eq!((authorities.file.clone(), authorities.certificates.len()), (case.path("etc/ca.pem"), 1));
    assert_eq!(second, case.only_upstream());
    assert_ne!(first, second);
    // Consent covers the contents too.
    assert_ne!(format!("{first:?}"), format!("{second:?}"));
}
