//! Tests of configuration files that appear late, wait for consent or have errors, and of the texts of errors.

use super::*;

/// A gateway without a configuration file, with its default place in a private home.
struct DefaultConfigGateway {
    process: Process,
    home: TempDir,
    port: u16,
    key: String,
}

impl DefaultConfigGateway {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        let key = support::create_key(&data, "reviewer", "alice");
        let log = std::fs::File::create(home.path().join("log")).unwrap();
        let config = home.path().join("config");
        let mut command = support::command(&[("XDG_CONFIG_HOME", config.to_str().unwrap())]);
        command.args(["serve", "--listen", support::LISTEN, "--data"]).arg(&data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut process = Process(command.spawn().unwrap());
        let port = support::wait_until_ready(&mut process, &data).expect("it listens");
        Self { process, home, port, key }
    }

    fn file(&self) -> std::path::PathBuf {
        self.home.path().join("config/countersign/countersign.yaml")
    }

    fn reload(&self) -> Value {
        let mut conn = support::http::Conn::open(([127, 0, 0, 1], self.port).into());
        let bearer = format!("Bearer {}", self.key);
        conn.request("GET", "/api/reload", &[("Authorization", &bearer)], b"");
        let response = conn.response();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }
}

#[test]
fn default_file_created_later_is_watched() {
    let homely = DefaultConfigGateway::start();
    assert!(homely.process.0.id() > 0);
    let file = homely.file();
    let status = homely.reload();
    assert_eq!(status["file"], file.to_str().unwrap(), "it says where it looks");
    eventually("the log says which path is watched", || {
        let log = std::fs::read_to_string(homely.home.path().join("log")).unwrap();
        log.contains(file.to_str().unwrap()).then_some(())
    });
    // Neither the file nor its folder exists.
    assert!(!file.parent().unwrap().exists());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "policy: { default: deny }\n").unwrap();
    let wait_for_tightening = |tightening: &str| {
        eventually(tightening, || {
            let last = homely.reload()["last"].clone();
            (last["why"] == "file"
                && last["result"] == "applied"
                && last["changes"]["policyTightened"].to_string().contains(tightening))
            .then_some(())
        });
    };
    wait_for_tightening("policy.default is deny");
    // Then it is edited.
    std::fs::write(&file, "policy: { default: deny, rules: [{ name: one-more, tools: x, then: deny }] }\n").unwrap();
    wait_for_tightening("one-more");
    // Once read, the file's removal changes nothing.
    std::fs::remove_file(&file).unwrap();
    eventually("its end is told", || (homely.reload()["last"]["result"] == "refused").then_some(()));
}

#[test]
fn error_details_are_objects_at_every_endpoint() {
    let gateway = Gateway::start();
    let arguments = json!({ "projectId": "no uuid", "title": "", "type": "Story" });
    let named = |details: &Value| {
        let errors = details["errors"].as_array().unwrap_or_else(|| panic!("{details}"));
        assert!(errors.iter().any(|error| error["pointer"] == "/title"), "{details}");
        assert!(errors.iter().all(|error| error["rule"].is_string() && error["message"].is_string()), "{details}");
    };
    let call = json!({ "name": "create_issue", "arguments": arguments });
    let old = gateway.session("2025-06-18").call(1, "tools/call", call.clone());
    named(&old["error"]["data"]["details"]);
    let new = gateway.session("2025-11-25").call(1, "tools/call", call);
    let text: Value = serde_json::from_str(new["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    named(&text["details"]);
    let plain = gateway.request("POST", "/tools/create_issue", &[mcp::JSON], arguments.to_string().as_bytes());
    assert_eq!(plain.status, 422, "{}", plain.text());
    named(&plain.json()["details"]);
    // A tool's own error, and a reviewer's edit.
    let missing = json!({ "issueId": "00000000-0000-4000-8000-000000000000" });
    let failed = gateway.request("POST", "/tools/get_issue", &[mcp::JSON], missing.to_string().as_bytes());
    assert_eq!(failed.status, 404, "{}", failed.text());
    assert!(failed.json()["details"].is_object(), "{}", failed.text());
    let id = gateway.propose("To be corrected");
    let change = gateway.change(&id);
    let body = json!({ "arguments": { "title": "" }, "version": change["version"] });
    let (status, problem) = gateway.api("POST", &format!("/api/changes/{id}/edit"), Some(&body));
    assert_eq!(status, 422, "{problem}");
    named(&problem["details"]);
}

#[test]
fn pending_policy_is_shown_and_accepted_in_terminal() {
    let strict = "policy: { default: deny, rules: [{ name: keep, tools: 'db__*', then: deny, reason: by hand }] }\nlimits: { max_batch: 8 }\n";
    let gateway = Gateway::with_options(&Options { config: Some(strict), ..Options::default() });
    let (key, data) = (gateway.reviewer().to_owned(), gateway.data());
    let file = gateway.home.path().join("countersign.yaml");
    let show = |key: &str, more: &[&str]| {
        let arguments = [&["config", "show", "--config", file.to_str().unwrap()], more].concat();
        let (code, out, err) = cli(&data, key, &arguments);
        assert_eq!(code, Some(0), "{out}{err}");
        (out, err)
    };
    assert_eq!(cli(&data, &key, &["config", "pending"]).1, "No change of the configuration waits for consent.\n");
    assert_eq!(cli(&data, &key, &["config", "consent", "--yes"]).0, Some(3));

    let looser = "policy: { default: review_writes, rules: [{ name: other, tools: 'web__*', then: deny }] }\nlimits: { max_batch: 9 }\n";
    std::fs::write(&file, looser).unwrap();
    eventually("it waits", || (!gateway.api("GET", "/api/reload", None).1["waiting"].is_null()).then_some(()));
    let (out, err) = show(&key, &[]);
    let line =
        |part: &str| out.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {out}")).to_owned();
    assert!(line("  default:").starts_with("  default: deny"), "{out}");
    assert!(line("waits for consent: policy.default").contains("the file says review_writes"), "{out}");
    assert!(
        line("  rules:").contains("\"keep\"") && line("  rules:").contains("\"other\""),
        "both are in force: {out}"
    );
    assert!(line("max_batch:").contains(" 8 ") && out.contains("takes effect at the next start"), "{out}");
    assert!(err.contains("config consent"), "{err}");
    let (json_out, _) = show(&key, &["--json"]);
    let all: Value = serde_json::from_str(&json_out).unwrap();
    assert_eq!(
        (&all["policy.default"]["value"], &all["policy.default"]["waiting"][0]["to"]),
        (&json!("deny"), &json!("review_writes"))
    );
    assert_eq!(all["limits.max_batch"]["needsRestart"], true);

    // Without access, the command says what it shows instead.
    let (out, err) = show("", &[]);
    assert!(out.contains("default: review_writes") && out.contains("# This is what the file says"), "{out}{err}");
    let (out, err) = show("csk_0000000000000000000000000000000000000000000", &[]);
    assert!(out.contains("default: review_writes") && out.contains("# This is what the file says"), "{out}{err}");
    let (out, _) = show(&key, &["--file"]);
    assert!(out.contains("default: review_writes"), "{out}");

    // The values themselves, not only their names.
    let (code, out, _) = cli(&data, &key, &["config", "pending"]);
    assert_eq!(code, Some(0));
    for part in [
        "policy.default: deny → review_writes",
        "- { name: \"keep\", tools: [\"db__*\"], then: deny, reason: \"by hand\" }",
        "- deny",
        "+ review_writes",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let waiting = gateway.api("GET", "/api/config", None).1["waiting"].clone();
    assert_eq!(waiting["content"][0]["key"], "policy.default", "{waiting}");

    // Without a terminal nobody is asked, and a viewer cannot consent.
    let (code, _, err) = cli(&data, &key, &["config", "consent"]);
    assert!(code == Some(2) && err.contains("--yes"), "{err}");
    let viewer = gateway.create_key("viewer", "vera");
    assert_eq!(cli(&data, &viewer, &["config", "consent", "--yes"]).0, Some(5));
    assert_eq!(cli(&data, &key, &["config", "consent", "--yes", "--digest", "sha256:0"]).0, Some(4));
    assert!(!gateway.api("GET", "/api/reload", None).1["waiting"].is_null());
    let digest = waiting["digest"].as_str().unwrap();
    let (code, out, err) = cli(&data, &key, &["config", "consent", "--yes", "--digest", digest]);
    assert!(code == Some(0) && out.contains("Accepted") && out.contains("\"keep\""), "{out}{err}");
    let (out, err) = show(&key, &[]);
    assert!(out.contains("  default: review_writes") && !out.contains("waits for consent"), "{out}");
    assert!(!out.contains("\"keep\"") && !err.contains("config consent"), "{out}{err}");

    // And a refusal.
    std::fs::write(&file, "policy: { default: allow }\nlimits: { max_batch: 9 }\n").unwrap();
    eventually("it waits", || (!gateway.api("GET", "/api/reload", None).1["waiting"].is_null()).then_some(()));
    let (code, out, _) = cli(&data, &key, &["config", "consent", "--refuse", "--yes"]);
    assert!(code == Some(0) && out.contains("Refused"), "{out}");
    let (out, _) = show(&key, &[]);
    assert!(out.contains("  default: review_writes") && out.contains("refused by a reviewer: policy.default"), "{out}");

    let (code, verdict) = verify(&data);
    assert_eq!(code, Some(0), "{verdict}");
}

#[test]
fn config_show_without_gateway_names_the_file() {
    let home = tempfile::tempdir().unwrap();
    let (code, out, err) = cli(home.path(), "", &["config", "show"]);
    assert!(code == Some(0) && out.contains("default: review_writes"), "{out}{err}");
    assert!(out.contains("\n# No gateway serves") && out.contains("what the file says"), "{out}");
    let (code, out, err) = cli(home.path(), "", &["config", "show", "--json"]);
    assert!(code == Some(0) && err.contains("what the file says"), "{err}");
    assert!(serde_json::from_str::<Value>(&out).is_ok(), "{out}");
}

#[test]
fn error_lists_values_and_suggests_one() {
    let gateway = Gateway::start();
    let error_text = |name: &str, arguments: Value| {
        let answer = gateway.modern(1, "tools/call", json!({ "name": name, "arguments": arguments })).json();
        let text = answer["result"]["content"][0]["text"].as_str().map(str::to_owned);
        text.unwrap_or_else(|| answer["error"].to_string())
    };
    let issue = gateway.project();
    let text = error_text("update_status", json!({ "issueId": issue, "newStatus": "Doing" }));
    for status in ["Backlog", "Todo", "InProgress", "Review", "Done", "Cancelled"] {
        assert!(text.contains(status), "{status}: {text}");
    }
    assert!(!text.contains("other candidates"), "{text}");
    let text = error_text("create_issue", json!({ "projectId": issue, "titel": "x", "title": "y", "type": "Story" }));
    assert!(text.contains("did you mean `title`?"), "{text}");
    let text = error_text("create_isue", json!({}));
    assert!(text.contains("TOOL_NOT_FOUND") && text.contains("create_issue"), "{text}");
    let text = error_text("entirely_else", json!({}));
    assert!(text.contains("TOOL_NOT_FOUND") && !text.contains("mean"), "{text}");
    let plain = gateway.request("POST", "/tools/create_isue", &[mcp::JSON], b"{}");
    assert!(plain.status == 404 && plain.text().contains("Did you mean create_issue?"), "{}", plain.text());
}

#[test]
fn suggestions_name_no_hidden_tool() {
    let config = "policy: { rules: [{ tools: create_issue, roles: [agent], then: deny }] }\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let answer = gateway.modern(1, "tools/call", json!({ "name": "create_isue", "arguments": {} })).json();
    assert_eq!(answer["error"]["data"]["code"], "TOOL_NOT_FOUND", "{answer}");
    assert!(!answer.to_string().contains("create_issue"), "{answer}");
    let answer = gateway.modern(1, "tools/call", json!({ "name": "delete_isue", "arguments": {} })).json();
    assert_eq!(answer["error"]["data"]["didYouMean"], "delete_issue", "{answer}");
}

#[test]
fn expression_error_has_position_and_sentence() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("c.yaml");
    for (when, expected) in [
        ("arguments.x = 1", "a single `=` compares nothing; write `==` (at character 13)"),
        ("arguments.x == 1 and arguments.y == 2", "there is no `and`; write `&&` (at character 18)"),
        ("(arguments.x == 1", "a `(` is not closed (at character 18)"),
        ("argument.x == 1", "there is no `argument` (did you mean `arguments`?)"),
        ("arguments.x.startWith(\"a\")", "there is no function `startWith` (did you mean `startsWith`?)"),
        ("path_within(arguments.path, \"notes\")", "the folder of path_within must be an absolute path"),
    ] {
        std::fs::write(&file, format!("policy:\n  rules:\n    - {{ tools: x, when: '{when}', then: deny }}\n"))
            .unwrap();
        let (code, _, err) = support::run(&["config", "check", "--config", file.to_str().unwrap()]);
        assert_eq!(code, Some(78), "{err}");
        assert!(err.contains("c.yaml:3:") && err.contains(expected), "{when}: {err}");
        for word in ["Syntax error", "mismatched", "extraneous", "viable", "<EOF>", "ANTLR"] {
            assert!(!err.contains(word), "{err}");
        }
    }
}

#[test]
fn recipes_are_checked_against_known_definitions() {
    let files = FileServerGateway::start("  default: review_writes\n");
    let (status, home) = files.gateway.stop();
    assert!(status.success());
    let data = home.path().join("data");
    let check = |previews: &str| {
        let file = home.path().join("check.yaml");
        std::fs::write(&file, format!("mcpServers:\n  fs:\n    command: python3\n    previews: {previews}\n")).unwrap();
        let (code, out, err) =
            support::run(&["config", "check", "--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{out}{err}");
        err
    };
    let fine = check(
        "{ write: { target: arguments.path, before: { tool: read, arguments: { path: arguments.path } }, after: arguments.path } }",
    );
    assert!(!fine.contains("previews"), "{fine}");
    let read = "{ tool: read, arguments: { path: arguments.path } }";
    for (previews, expected) in [
        (
            format!("{{ wirte: {{ before: {read}, after: arguments.path }} }}"),
            "`wirte` is not among the 3 known tools of fs; did you mean `write`?",
        ),
        (
            format!("{{ write: {{ before: {read}, after: arguments.pth }} }}"),
            "`write` has no argument `pth`; did you mean `path`?",
        ),
        (
            format!("{{ write: {{ target: arguments.pth, before: {read}, after: arguments.path }} }}"),
            "`write` has no argument `pth`; did you mean `path`?",
        ),
        ("{ write: { dry_run: { arguments: { dryRun: true } } } }".to_owned(), "`write` has no argument `dryRun`"),
        (
            "{ write: { reads: [{ label: a, tool: raed, arguments: { path: arguments.path } }] } }".to_owned(),
            "`raed` is not among",
        ),
        (
            "{ write: { reads: [{ label: a, tool: read, arguments: { file: arguments.path } }] } }".to_owned(),
            "`read` has no argument `file`",
        ),
        (
            format!(
                "{{ write: {{ variants: [{{ when: arguments.pht == 1, before: {read}, after: arguments.path }}] }} }}"
            ),
            "`write` has no argument `pht`",
        ),
        (
            "{ write: { before: { for_each: arguments.pth, tool: read }, after: { x?: 'a {arguments.path}' } } }"
                .to_owned(),
            "`write` has no argument `pth`; did you mean `path`?",
        ),
        (
            format!(
                "{{ write: {{ reads: [{read}], confirm: {{ question: Sure, answer: {{ name: arguments.pth }} }} }} }}"
            ),
            "`write` has no argument `pth`; did you mean `path`?",
        ),
    ] {
        let err = check(&previews);
        assert!(err.contains(expected), "{previews}: {err}");
    }
}
