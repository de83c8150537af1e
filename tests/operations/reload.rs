//! Tests of reloading at runtime: SIGHUP, a changed file, an invalid one, and one that loosens policy.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Gateway, Options, eventually, http::Conn, mcp, signal};

const DENIED_CODE: Option<&str> = Some("POLICY_DENIED");

struct TestGateway {
    gateway: Gateway,
}

impl TestGateway {
    fn new(yaml: &str) -> Self {
        Self { gateway: Gateway::with_options(&Options { config: Some(yaml), ..Options::default() }) }
    }

    /// Kills the gateway, and restarts it with that file.
    fn restart_with(self, yaml: &str) -> Self {
        let home = self.gateway.kill();
        Self { gateway: Gateway::on_home(home, &Options { config: Some(yaml), ..Options::default() }) }
    }

    fn lists(&self) -> Option<String> {
        let (id, method, params) = list_projects(1);
        error_code(&self.gateway.modern(id, method, params).json())
    }

    fn pending_digest(&self) -> Option<String> {
        self.status()["waiting"]["digest"].as_str().map(str::to_owned)
    }

    fn file(&self) -> PathBuf {
        self.gateway.home.path().join("countersign.yaml")
    }

    /// Replaces the file by a new one, as editors do.
    fn replace(&self, yaml: &str) {
        let new = self.gateway.home.path().join("new.yaml");
        std::fs::write(&new, yaml).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn status(&self) -> Value {
        let (status, body) = self.gateway.api("GET", "/api/reload", None);
        assert_eq!(status, 200, "{body}");
        body
    }

    #[track_caller]
    fn wait_until(&self, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || Some(self.status()).filter(&check))
    }

    fn consent(&self, key: &str, digest: &str, verdict: &str) -> (u16, Value) {
        let body = json!({ "digest": digest, "verdict": verdict });
        self.gateway.api_as(key, "POST", "/api/reload/consent", Some(&body))
    }

    fn feed(&self) -> Conn {
        let bearer = format!("Bearer {}", self.gateway.reviewer());
        let mut conn = self.gateway.connect();
        conn.request("GET", "/api/events", &[("Authorization", &bearer)], b"");
        assert_eq!(conn.head().status, 200);
        assert_eq!(conn.expect_event().event.as_deref(), Some("hello"));
        conn
    }
}

/// Returns the next event about the configuration.
#[track_caller]
fn config_event(feed: &mut Conn) -> Value {
    loop {
        let event = feed.expect_event();
        if event.event.as_deref().is_some_and(|kind| kind.starts_with("config.")) {
            let data = event.json();
            assert_eq!(data["type"].as_str(), event.event.as_deref());
            return data;
        }
    }
}

/// Returns the code of a call's error; `None` if it ran or became a change.
fn error_code(answer: &Value) -> Option<String> {
    if let Some(code) = answer["error"]["data"]["code"].as_str() {
        return Some(code.to_owned());
    }
    let result = Some(&answer["result"]).filter(|result| result["isError"] == true)?;
    let error: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    Some(error["code"].as_str().unwrap().to_owned())
}

fn list_projects(id: i64) -> (i64, &'static str, Value) {
    (id, "tools/call", json!({ "name": "list_projects", "arguments": {} }))
}

#[test]
fn stricter_policy_applies_at_once_to_live_sessions() {
    let case = TestGateway::new("log: { filter: info }\n");
    let session = case.gateway.session("2025-11-25");
    let call = |id| {
        let (id, method, params) = list_projects(id);
        session.call(id, method, params)
    };
    assert!(call(1)["result"]["structuredContent"]["projects"].is_array());
    case.replace("policy: { default: deny }\n");
    eventually("the call is denied", || (error_code(&call(2)).as_deref() == DENIED_CODE).then_some(()));
    let status = case.wait_until("it is told", |s| s["generation"] == 1);
    assert_eq!(status["last"]["why"], "file");
    assert_eq!(status["last"]["changes"]["policyTightened"].as_array().unwrap().len(), 1);
    assert_eq!(status["waiting"], Value::Null);
    let info = case.gateway.request("GET", "/info", &[], b"").json();
    assert_eq!(info["policy"], "deny");
    // The earlier session is still open.
    assert!(session.call(3, "tools/list", json!({}))["result"]["tools"].is_array());
}

#[test]
fn sighup_adds_servers_and_names() {
    let case = TestGateway::new("");
    let session = case.gateway.session("2025-06-18");
    signal(case.gateway.process.0.id(), Signal::HUP);
    case.wait_until("an unchanged file is told", |s| {
        s["last"]["result"] == "unchanged" && s["last"]["why"] == "signal"
    });
    // Written in place, and read at once by the signal or the watcher, whichever comes first.
    let mut feed = case.feed();
    std::fs::write(
        case.file(),
        "routes: { prefixes: { pm_: tracker } }\nlog: { filter: debug }\nlimits: { max_batch: 9 }\n",
    )
    .unwrap();
    signal(case.gateway.process.0.id(), Signal::HUP);
    let event = config_event(&mut feed);
    assert_eq!(event["type"], "config.applied", "{event}");
    assert_eq!(event["changes"]["routesChanged"], true);
    assert_eq!(event["changes"]["logChanged"], true);
    let status = case.status();
    assert_eq!(status["generation"], 1);
    assert_eq!(status["needsRestart"], json!(["limits.max_batch"]));
    let answer = session.call(1, "tools/call", json!({ "name": "pm_list_projects", "arguments": {} }));
    assert!(answer["result"]["structuredContent"]["projects"].is_array(), "{answer}");
    assert!(
        eventually("it is logged", || Some(case.gateway.log()).filter(|log| log.contains("limits.max_batch")))
            .contains("at the next start")
    );
}

#[test]
fn invalid_file_is_refused_as_a_whole() {
    let case = TestGateway::new("routes: { prefixes: { pm_: tracker } }\n");
    let mut feed = case.feed();
    case.replace("policy: { default: deny }\nmcpServers: { a: { comand: x, env: { T: s3cret } } }\n");
    let event = config_event(&mut feed);
    assert_eq!((event["type"].as_str(), event["why"].as_str()), (Some("config.refused"), Some("file")));
    let status = case.status();
    let problems = status["last"]["problems"].as_array().unwrap();
    assert!(
        problems
            .iter()
            .any(|p| p["key"] == "mcpServers.a.comand" && p["remedy"].as_str().unwrap().contains("`command`")),
        "{status}"
    );
    assert!(problems[0]["place"].as_str().unwrap().contains("countersign.yaml:2:"), "{status}");
    assert_eq!((&status["generation"], &status["last"]["result"]), (&json!(0), &json!("refused")));
    let log =
        eventually("it is logged", || Some(case.gateway.log()).filter(|log| log.contains("Did you mean `command`?")));
    assert!(!log.contains("s3cret") && !status.to_string().contains("s3cret"));
    // Nothing of it takes effect.
    let answer = case.gateway.modern(1, "tools/call", json!({ "name": "pm_list_projects", "arguments": {} })).json();
    assert_eq!(error_code(&answer), None, "{answer}");
    // A removed file counts as invalid too, and a valid one is accepted again.
    std::fs::remove_file(case.file()).unwrap();
    assert!(config_event(&mut feed)["problems"][0]["message"].as_str().unwrap().contains("missing"));
    case.replace("policy: { default: review_all }\n");
    assert_eq!(config_event(&mut feed)["type"], "config.applied");
    assert_eq!(case.status()["generation"], 1);
}

#[test]
fn looser_policy_waits_for_a_reviewer() {
    let case = TestGateway::new("policy: { rules: [{ name: no-lists, tools: list_projects, then: deny }] }\n");
    let gateway = &case.gateway;
    let mut feed = case.feed();
    let list = || {
        let (id, method, params) = list_projects(1);
        gateway.modern(id, method, params).json()
    };
    assert_eq!(error_code(&list()).as_deref(), DENIED_CODE, "{}", list());
    case.replace("policy: { default: allow }\nroutes: { prefixes: { pm_: tracker } }\n");
    let event = config_event(&mut feed);
    assert_eq!(event["type"], "config.waiting");
    let keys: Vec<&str> = event["loosens"].as_array().unwrap().iter().map(|l| l["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["policy.default", "policy.rules"]);
    assert_eq!(config_event(&mut feed)["changes"]["routesChanged"], true, "the rest does not wait");
    let status = case.status();
    let digest = status["waiting"]["digest"].as_str().unwrap().to_owned();
    assert_eq!(event["digest"], digest);
    assert_eq!(error_code(&list()).as_deref(), DENIED_CODE);

    // Only reviewers may decide on policy.
    let (agent, viewer) = (gateway.create_key("agent", "bot"), gateway.create_key("viewer", "vera"));
    for (key, status, code) in
        [(&agent, 403, "FORBIDDEN"), (&viewer, 403, "FORBIDDEN"), (&"nobody".to_owned(), 401, "UNAUTHORIZED")]
    {
        let (consent_status, body) = case.consent(key, &digest, "accept");
        assert_eq!((consent_status, body["code"].as_str()), (status, Some(code)), "{body}");
    }
    let unsigned = json!({ "digest": digest, "verdict": "accept" }).to_string();
    let answer = gateway.request("POST", "/api/reload/consent", &[mcp::JSON], unsigned.as_bytes());
    assert_eq!(answer.status, 401, "on loopback too");
    let reviewer = gateway.reviewer();
    let (status, body) = case.consent(reviewer, "sha256:0", "accept");
    assert_eq!((status, body["code"].as_str()), (409, Some("VERSION_CONFLICT")), "{body}");
    assert_eq!(case.consent(reviewer, &digest, "perhaps").0, 422);
    assert_eq!(error_code(&list()).as_deref(), DENIED_CODE);

    let (status, body) = case.consent(reviewer, &digest, "accept");
    assert_eq!((status, &body["waiting"], &body["last"]["by"]), (200, &Value::Null, &json!("alice")), "{body}");
    let event = config_event(&mut feed);
    assert_eq!((event["type"].as_str(), event["why"].as_str()), (Some("config.applied"), Some("consent")));
    assert!(list()["result"]["structuredContent"]["projects"].is_array(), "{}", list());
    let (status, body) = case.consent(reviewer, &digest, "accept");
    assert_eq!((status, body["code"].as_str()), (404, Some("NOT_FOUND")), "{body}");

    // The consent is recorded, and the trail still verifies.
    let (_, audit) = gateway.api("GET", "/api/audit", None);
    let entries = audit["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["event"] == "configuration_accepted").unwrap();
    assert_eq!(entry["actor"], "alice", "{audit}");
    assert_eq!(entry["details"]["digest"], digest);
    let data = gateway.data();
    let (code, out, err) = support::run(&["audit", "verify", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}

#[test]
fn refused_loosening_never_takes_effect() {
    let case = TestGateway::new("policy: { default: deny }\n");
    case.replace("policy: { default: allow }\n");
    let status = case.wait_until("it waits", |s| !s["waiting"].is_null());
    let digest = status["waiting"]["digest"].as_str().unwrap().to_owned();
    let (status, body) = case.consent(case.gateway.reviewer(), &digest, "refuse");
    assert_eq!((status, &body["waiting"], &body["last"]["result"]), (200, &Value::Null, &json!("refused")), "{body}");
    let (id, method, params) = list_projects(1);
    assert_eq!(error_code(&case.gateway.modern(id, method, params).json()).as_deref(), DENIED_CODE);
    // SIGHUP asks for the decision again.
    signal(case.gateway.process.0.id(), Signal::HUP);
    let status = case.wait_until("it waits again", |s| !s["waiting"].is_null());
    assert_eq!(status["waiting"]["digest"], digest);
}

#[test]
fn pending_and_refused_changes_survive_a_kill() {
    const STRICT: &str = "policy: { default: deny }\n";
    const LOOSE: &str = "policy: { default: allow }\n";
    let case = TestGateway::new(STRICT);
    case.replace(LOOSE);
    let digest = eventually("it waits", || case.pending_digest());
    let case = case.restart_with(LOOSE);
    assert_eq!((case.pending_digest().as_ref(), case.lists().as_deref()), (Some(&digest), DENIED_CODE));
    let mut pending = support::command(&[("COUNTERSIGN_KEY", case.gateway.reviewer())]);
    let stdout = pending.args(["config", "pending", "--url", &format!("http://{}", case.gateway.address())]).output();
    let stdout = String::from_utf8(stdout.unwrap().stdout).unwrap();
    assert!(stdout.contains("policy.default: deny → allow"), "{stdout}");
    assert_eq!(case.consent(case.gateway.reviewer(), &digest, "refuse").0, 200);
    // It stays refused until the file changes or somebody asks again.
    let case = case.restart_with(LOOSE);
    assert_eq!((case.pending_digest(), case.lists().as_deref()), (None, DENIED_CODE));
    signal(case.gateway.process.0.id(), Signal::HUP);
    eventually("it waits again", || case.pending_digest().filter(|waiting| *waiting == digest));
    assert_eq!(case.consent(case.gateway.reviewer(), &digest, "accept").0, 200);
    assert_eq!(case.lists(), None);
    let case = case.restart_with(LOOSE);
    assert_eq!((case.pending_digest(), case.lists()), (None, None));
    // Stricter changes take effect at a start, and the way back does not, though no gateway saw the file change.
    let case = case.restart_with(STRICT);
    assert_eq!((case.pending_digest(), case.lists().as_deref()), (None, DENIED_CODE));
    let case = case.restart_with(LOOSE);
    assert!(case.pending_digest().is_some());
    assert_eq!(case.lists().as_deref(), DENIED_CODE);
    assert!(case.gateway.log().contains("countersign config consent"));

    // The operator may accept the change.
    let home = case.gateway.kill();
    let (data, file) = (home.path().join("data"), home.path().join("countersign.yaml"));
    let mut command = support::command_on(&data);
    command.args(["serve", "--accept-policy", "--listen", support::LISTEN, "--data"]).arg(&data);
    command.arg("--config").arg(file).stdin(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut process = support::Process(command.spawn().unwrap());
    assert!(support::wait_until_ready(&mut process, &data).is_some());
    process.0.kill().unwrap();
    process.wait_for_exit();
    let case = TestGateway { gateway: Gateway::on_home(home, &Options { config: Some(LOOSE), ..Options::default() }) };
    assert_eq!((case.pending_digest(), case.lists()), (None, None));
    let (_, audit) = case.gateway.api("GET", "/api/audit", None);
    let entries = audit["entries"].as_array().unwrap();
    let started = entries.iter().find(|entry| entry["event"] == "configuration_started").unwrap();
    assert_eq!(
        (&started["actor"], &started["details"]["loosens"][0]["key"]),
        (&json!("operator"), &json!("policy.default"))
    );
    let (code, out, err) = support::run(&["audit", "verify", "--data", case.gateway.data().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}

#[test]
fn emptied_file_is_refused_at_the_start() {
    let case = TestGateway::new("auth: { mode: keys }\n");
    let home = case.gateway.kill();
    let mut process = Gateway::spawn(home.path(), &Options { config: Some("# auth:\n"), ..Options::default() });
    assert_eq!(process.wait_for_exit().code(), Some(69));
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert!(log.contains("countersign.yaml sets no key, although"), "{log}");
}

/// A stdio server that exists wherever the tests run: the program itself, with its own data.
fn inner_server(case: &TestGateway, more: &str) -> String {
    let data = case.gateway.home.path().join("inner");
    let (binary, data) = (json!(support::binary()), json!(data));
    format!(
        "inner: {{ command: {binary}, args: [stdio, --standalone, --listen, '127.0.0.1:0', --data, {data}], \
         env: {{ XDG_CONFIG_HOME: /nonexistent }}{more} }}"
    )
}

fn tools(session: &mcp::Session<'_>) -> Vec<String> {
    let answer = session.call(9, "tools/list", json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn live_session_follows_server_changes() {
    let case = TestGateway::new("mcpServers: {}\n");
    let session = case.gateway.session("2025-11-25");
    let mut stream = session.stream(None);
    let own = tools(&session);
    let list_changed = |stream: &mut Conn| loop {
        let event = stream.expect_event();
        if event.data.as_deref().is_some_and(|data| data.contains("notifications/tools/list_changed")) {
            return;
        }
    };
    let appears = |tool: &str| eventually(tool, || tools(&session).contains(&tool.to_owned()).then_some(()));
    let goes = |tool: &str| eventually(tool, || (!tools(&session).contains(&tool.to_owned())).then_some(()));
    let call = |tool: &str| session.call(8, "tools/call", json!({ "name": tool, "arguments": {} }));

    // Trust waits for a reviewer; the server does not.
    case.replace(&format!("mcpServers: {{ {} }}\n", inner_server(&case, ", trust_annotations: true")));
    appears("inner__list_projects");
    list_changed(&mut stream);
    let status = case.wait_until("it is told", |s| s["generation"] == 1);
    assert_eq!(status["last"]["changes"]["upstreamsAdded"], json!(["inner"]));
    assert_eq!(status["waiting"]["loosens"][0]["key"], "mcpServers.inner.trust_annotations");
    let reviewed = call("inner__list_projects");
    assert_eq!(reviewed["result"]["structuredContent"]["status"], "pending", "{reviewed}");
    let digest = status["waiting"]["digest"].as_str().unwrap().to_owned();
    assert_eq!(case.consent(case.gateway.reviewer(), &digest, "accept").0, 200);
    eventually("it reads", || {
        call("inner__list_projects")["result"]["structuredContent"]["projects"].is_array().then_some(())
    });

    // A new name for its tools, and one tool less.
    case.replace(&format!(
        "mcpServers: {{ {} }}\n",
        inner_server(&case, ", trust_annotations: true, prefix: x_, tools: { deny: [get_issue] }")
    ));
    appears("x_list_projects");
    goes("inner__list_projects");
    list_changed(&mut stream);
    assert!(!tools(&session).contains(&"x_get_issue".to_owned()) && own.contains(&"get_issue".to_owned()));
    let status = case.wait_until("it is told", |s| s["last"]["changes"]["upstreamsChanged"] == json!(["inner"]));
    assert_eq!(status["waiting"], Value::Null, "{status}");

    // An invalid file removes nothing.
    case.replace("mcpServers: { inner: { command: x, url: 'http://127.0.0.1:1/' } }\n");
    case.wait_until("it is refused", |s| s["last"]["result"] == "refused");
    assert!(tools(&session).contains(&"x_list_projects".to_owned()));

    case.replace("mcpServers: {}\n");
    goes("x_list_projects");
    assert_eq!(tools(&session), own);
    let (id, method, params) = list_projects(1);
    assert!(session.call(id, method, params)["result"]["structuredContent"]["projects"].is_array());
}
