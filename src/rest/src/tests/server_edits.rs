//! Tests of editing servers over REST: roles, versions, secrets, and consent to trials.

use super::*;
use countersign_config::{AuthMode, DashboardEdit};
use countersign_protocol::redact::redact;

impl Endpoints {
    pub(super) fn config_file(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("c.yaml")).unwrap()
    }

    async fn file(&self, key: &str) -> Value {
        let reply = self.get("/api/server-file", key).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    async fn version(&self, key: &str) -> String {
        self.file(key).await["version"].as_str().unwrap().to_owned()
    }

    pub(super) async fn edit(&self, method: &str, path: &str, key: &str, body: &Value) -> Reply {
        let authorization = format!("Bearer {key}");
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        self.send(method, path, &headers, Some(&body.to_string())).await
    }
}

const FILE: &str = "# mine\ndashboard: { edit: on }\nmcpServers:\n  a: # first\n    command: x\n    env: { TOKEN: hidden-value, LEVEL: info }\n";
const BLOCK: &str =
    r#"{"mcpServers": {"b": {"command": "sh", "args": ["-c", "exit 3"], "env": {"B_TOKEN": "s3cret-b"}}}}"#;

#[actix::test]
async fn admin_adds_changes_and_removes_a_server() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let key = endpoints.key("root", Role::Admin);
    let file = endpoints.file(&key).await;
    assert_eq!((&file["editing"], &file["mayEdit"]), (&json!("on"), &json!(true)));
    assert_eq!(file["servers"][0]["settings"]["env"], json!({ "TOKEN": "[secret]", "LEVEL": "[secret]" }));
    let version = endpoints.version(&key).await;

    let preview =
        endpoints.post("/api/servers", &key, &json!({ "version": version, "text": BLOCK, "preview": true })).await;
    assert_eq!((preview.status, endpoints.config_file().as_str()), (200, FILE), "{preview:?}");
    let preview = preview.json();
    assert_eq!((&preview["saved"], &preview["unsetVariables"]), (&json!(false), &json!(["B_TOKEN"])));
    assert!(!preview.to_string().contains("s3cret-b") && !preview.to_string().contains("hidden-value"), "{preview}");
    assert!(preview["yaml"].as_str().unwrap().contains("B_TOKEN: \"${B_TOKEN}\""), "{preview}");
    // Values of servers that nobody started or saved are masked nowhere. Otherwise they could hide words in logs.
    let text = r#"{"c": {"command": "x", "env": {"KEY_1": "only-previewed"}}}"#;
    let body = json!({ "version": version, "text": text, "preview": true });
    let preview = endpoints.send_through_proxy("POST", "/api/servers", &key, &body).await;
    assert_eq!((preview.status, redact("only-previewed").as_ref()), (200, "only-previewed"), "{preview:?}");

    let added = endpoints.post("/api/servers", &key, &json!({ "version": version, "text": BLOCK })).await;
    assert_eq!((added.status, &added.json()["saved"]), (200, &json!(true)), "{added:?}");
    let text = endpoints.config_file();
    assert!(text.starts_with(FILE) && text.contains("disabled: true") && !text.contains("s3cret-b"), "{text}");
    assert_eq!(std::fs::read_to_string(endpoints.dir.path().join("c.yaml.bak")).unwrap(), FILE);

    // The version that was shown is outdated now.
    let conflict =
        endpoints.post("/api/servers", &key, &json!({ "version": version, "text": "c: {command: y}" })).await;
    assert_eq!(conflict.problem(409), "VERSION_CONFLICT");

    // A placeholder keeps the secret of the file, which no answer has.
    let version = endpoints.version(&key).await;
    let settings = json!({ "command": "x", "timeout": "5s", "env": { "TOKEN": "[secret]", "LEVEL": "[secret]" } });
    let preview = json!({ "version": version, "settings": settings, "preview": true });
    let preview = endpoints.edit("PUT", "/api/servers/a", &key, &preview).await;
    assert!(preview.json()["yaml"].as_str().unwrap().contains("TOKEN: \"[secret]\""), "{preview:?}");
    assert!(preview.json()["yaml"].as_str().unwrap().contains("timeout: \"5s\""), "{preview:?}");
    let removal =
        endpoints.edit("DELETE", &format!("/api/servers/a?version={version}&preview=true"), &key, &json!({})).await;
    assert_eq!(removal.status, 200, "{removal:?}");
    for unclear in ["1", "True", "yes"] {
        let path = format!("/api/servers/a?version={version}&preview={unclear}");
        assert_eq!(endpoints.edit("DELETE", &path, &key, &json!({})).await.problem(400), "INVALID_PARAMS", "{unclear}");
    }
    assert!(endpoints.config_file().contains("  a:"));
    for reply in [preview, removal] {
        assert!(!reply.text.contains("hidden-value") && !reply.text.contains("info"), "{reply:?}");
    }
    let settings = json!({ "command": "x", "timeout": "5s", "env": { "TOKEN": "[secret]", "LEVEL": "[secret]" } });
    let changed =
        endpoints.edit("PUT", "/api/servers/a", &key, &json!({ "version": version, "settings": settings })).await;
    assert!(changed.status == 200 && !changed.text.contains("hidden-value"), "{changed:?}");
    let text = endpoints.config_file();
    assert!(text.contains("  a: # first\n    command: x\n") && text.contains("TOKEN: hidden-value"), "{text}");
    assert!(text.contains("LEVEL: info") && text.contains("timeout: \"5s\""), "{text}");
    assert_eq!(endpoints.data.reloader.config().upstreams.len(), 1);

    // Another command does not get the secret.
    let version = endpoints.version(&key).await;
    let settings = json!({ "command": "y", "env": { "TOKEN": "[secret]" } });
    let moved =
        endpoints.edit("PUT", "/api/servers/a", &key, &json!({ "version": version, "settings": settings })).await;
    assert_eq!(moved.problem(422), "VALIDATION_FAILED");

    let removed = endpoints.edit("DELETE", &format!("/api/servers/a?version={version}"), &key, &json!({})).await;
    assert_eq!(removed.status, 200, "{removed:?}");
    assert!(!endpoints.config_file().contains("  a:"));
    assert!(endpoints.data.reloader.config().upstreams.is_empty());
    let version = endpoints.version(&key).await;
    let gone = endpoints.edit("DELETE", &format!("/api/servers/a?version={version}"), &key, &json!({})).await;
    assert_eq!(gone.problem(404), "NOT_FOUND");
    endpoints.close().await;
}

#[actix::test]
async fn only_admins_edit_and_only_where_it_is_on() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let admin = endpoints.key("root", Role::Admin);
    let version = endpoints.version(&admin).await;
    let body = json!({ "version": version, "text": BLOCK });
    for role in [Role::Reviewer, Role::Viewer, Role::Agent] {
        let key = endpoints.key(role.as_str(), role);
        assert_eq!(endpoints.post("/api/servers", &key, &body).await.problem(403), "FORBIDDEN");
        let trial = json!({ "name": "b", "text": BLOCK });
        assert_eq!(endpoints.post("/api/server-trials", &key, &trial).await.problem(403), "FORBIDDEN");
    }
    let text = endpoints.config_file().replace("edit: on", "edit: off");
    endpoints.configure(&text).await;
    let file = endpoints.file(&admin).await;
    assert_eq!((&file["editing"], &file["mayEdit"], &file["mayTest"]), (&json!("off"), &json!(false), &json!(false)));
    let body = json!({ "version": file["version"], "text": BLOCK });
    assert_eq!(endpoints.post("/api/servers", &admin, &body).await.problem(403), "FORBIDDEN");
    // The lines are shown all the same.
    let body = json!({ "version": file["version"], "text": BLOCK, "preview": true });
    assert!(endpoints.post("/api/servers", &admin, &body).await.json()["yaml"].as_str().unwrap().contains("  b:\n"));
    assert_eq!(endpoints.config_file(), text);
    // Turning it on again waits for consent.
    endpoints.configure(FILE).await;
    assert_eq!(endpoints.file(&admin).await["editing"], "off");
    let status = endpoints.get("/api/reload", &admin).await.json();
    assert_eq!(status["waiting"]["loosens"][0]["key"], "dashboard.edit");
    endpoints.close().await;
}

#[actix::test]
async fn invalid_servers_are_refused_before_anything_is_written() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let key = endpoints.key("root", Role::Admin);
    let version = endpoints.version(&key).await;
    for text in [
        "",
        "{\"mcpServers\": {}}",
        "{\"mcpServers\": {\"a\": {\"command\": \"y\"}}}",
        "{\"mcpServers\": {\"tracker\": {\"command\": \"y\"}}}",
        "{\"mcpServers\": {\"b\": {\"command\": \"y\\u202e\"}}}",
        "{\"mcpServers\": {\"b\": {\"url\": \"file:///etc/passwd\"}}}",
    ] {
        let reply = endpoints.post("/api/servers", &key, &json!({ "version": version, "text": text })).await;
        assert_eq!(reply.problem(422), "VALIDATION_FAILED", "{text}");
    }
    let huge = json!({ "version": version, "text": "x".repeat(300 << 10) });
    assert_eq!(endpoints.post("/api/servers", &key, &huge).await.problem(413), "TOO_LARGE");
    // A file that is not edited is answered with the lines to paste.
    let flow = "dashboard: { edit: on }\nmcpServers: { a: { command: x } }\n";
    endpoints.configure(flow).await;
    let version = endpoints.version(&key).await;
    let reply = endpoints.post("/api/servers", &key, &json!({ "version": version, "text": "b: {command: y}" })).await;
    assert_eq!(reply.problem(422), "VALIDATION_FAILED");
    assert_eq!(reply.json()["yaml"], "mcpServers:\n  b:\n    command: y\n");
    assert_eq!(endpoints.config_file(), flow);
    endpoints.close().await;
}

async fn finished_trial(endpoints: &Endpoints, key: &str, id: &str) -> Value {
    loop {
        let all = endpoints.get("/api/server-trials", key).await.json();
        let trial = all["trials"].as_array().unwrap().iter().find(|trial| trial["id"] == id).unwrap().clone();
        if trial["state"] != "running" {
            return trial;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[actix::test]
async fn trial_of_a_new_command_needs_somebody_else() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let (root, bob) = (endpoints.key("root", Role::Admin), endpoints.key("bob", Role::Reviewer));
    // The keys of these tests come over loopback, but a proxy may be in between.
    let authorization = format!("Bearer {root}");
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Content-Type", "application/json"),
        ("X-Forwarded-For", "192.0.2.1"),
    ];
    let request = json!({ "name": "b", "text": "{\"command\": \"sh\", \"args\": [\"-c\", \"exit 3\"]}" }).to_string();
    let trial = endpoints.send("POST", "/api/server-trials", &headers, Some(&request)).await;
    assert_eq!((trial.status, &trial.json()["state"]), (200, &json!("waiting")), "{trial:?}");
    let id = trial.json()["id"].as_str().unwrap().to_owned();
    let decide = async |key: &str, verdict: &str| {
        endpoints.post(&format!("/api/server-trials/{id}/decision"), key, &json!({ "verdict": verdict })).await
    };
    assert_eq!(decide(&root, "run").await.problem(403), "SELF_APPROVAL");
    let viewer = endpoints.key("vic", Role::Viewer);
    assert_eq!(decide(&viewer, "run").await.problem(403), "FORBIDDEN");
    assert_eq!(decide(&bob, "run").await.status, 200);
    assert_eq!(decide(&bob, "run").await.problem(409), "VERSION_CONFLICT");
    let trial = finished_trial(&endpoints, &bob, &id).await;
    assert_eq!(
        (&trial["state"], &trial["decidedBy"], &trial["report"]["works"]),
        (&json!("finished"), &json!("bob"), &json!(false))
    );
    assert_eq!(endpoints.config_file(), FILE);
    endpoints.close().await;
}

#[actix::test]
async fn person_consents_to_the_whole_command_of_somebody_else() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let root = endpoints.key("root", Role::Admin);
    let authorization = format!("Bearer {root}");
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Content-Type", "application/json"),
        ("X-Forwarded-For", "192.0.2.1"),
    ];
    let request = async |settings: Value| {
        let body = json!({ "name": "b", "text": settings.to_string() }).to_string();
        endpoints.send("POST", "/api/server-trials", &headers, Some(&body)).await
    };
    // Neither the end of a long argument nor a variable that loads code is left out.
    let script = format!("{} && touch /end", "true; ".repeat(100));
    let settings = json!({ "command": "sh", "args": ["-c", script], "env": { "LD_PRELOAD": "/x.so" }, "cwd": "/usr" });
    let trial = request(settings).await.json();
    let yaml = trial["yaml"].as_str().unwrap_or_else(|| panic!("{trial}"));
    assert!(!yaml.contains("[secret]"), "{yaml}");
    assert!(yaml.contains("touch /end") && yaml.contains("LD_PRELOAD: /x.so") && yaml.contains("cwd: /usr"), "{yaml}");
    let huge = json!({ "command": "sh", "args": ["-c", "x".repeat(9_000)] });
    assert_eq!(request(huge).await.problem(422), "VALIDATION_FAILED");
    // Another account of the same person does not count as somebody else.
    let same = endpoints.key("Root", Role::Reviewer);
    let path = format!("/api/server-trials/{}/decision", trial["id"].as_str().unwrap());
    assert_eq!(endpoints.post(&path, &same, &json!({ "verdict": "run" })).await.problem(403), "SELF_APPROVAL");
    endpoints.close().await;
}

#[actix::test]
async fn trial_at_the_machine_itself_starts_at_once() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let root = endpoints.key("root", Role::Admin);
    assert_eq!(endpoints.data.reloader.config().auth.mode, AuthMode::Local);
    assert_eq!(endpoints.data.reloader.config().dashboard_edit, DashboardEdit::On);
    let text = "{\"command\": \"sh\", \"args\": [\"-c\", \"exit 3\"]}";
    let trial = endpoints.post("/api/server-trials", &root, &json!({ "name": "b", "text": text })).await.json();
    assert_ne!(trial["state"], "waiting", "{trial}");
    let trial = finished_trial(&endpoints, &root, trial["id"].as_str().unwrap()).await;
    assert_eq!(trial["state"], "finished");
    // A name alone means the server of the file.
    let trial = endpoints.post("/api/server-trials", &root, &json!({ "name": "a" })).await;
    let yaml = "mcpServers:\n  a:\n    command: x\n    env:\n      TOKEN: \"[secret]\"\n      LEVEL: \"[secret]\"\n";
    assert_eq!((trial.status, &trial.json()["yaml"]), (200, &json!(yaml)), "{trial:?}");
    assert!(!trial.text.contains("hidden-value"));
    assert_eq!(endpoints.post("/api/server-trials", &root, &json!({ "name": "none" })).await.problem(404), "NOT_FOUND");
    endpoints.close().await;
}

#[actix::test]
async fn placeholder_keeps_its_secret_only_for_the_same_connection() {
    let endpoints = Endpoints::open().await;
    let server = "  a:\n    cwd: /usr\n    args: [-y, pkg]\n    command: npx\n    env: { TOKEN: hidden-value }\n";
    endpoints.configure(&format!("dashboard: {{ edit: on }}\nmcpServers:\n{server}")).await;
    let root = endpoints.key("root", Role::Admin);
    let version = endpoints.version(&root).await;
    let settings = |args: [&str; 2], cwd: &str, env: Value| json!({ "command": "npx", "args": args, "cwd": cwd, "env": env, "timeout": "9s" });
    let kept = json!({ "TOKEN": "[secret]" });
    let proxied = json!({ "TOKEN": "[secret]", "HTTPS_PROXY": "http://proxy.example" });
    let edit = async |settings: &Value| {
        let body = json!({ "version": version, "settings": settings, "preview": true });
        endpoints.edit("PUT", "/api/servers/a", &root, &body).await
    };
    let same = edit(&settings(["-y", "pkg"], "/usr", kept.clone())).await;
    assert_eq!(same.status, 200, "the order of the keys does not matter: {same:?}");
    for other in [
        settings(["-y", "other"], "/usr", kept.clone()),
        settings(["-y", "pkg"], "/usr/lib", kept),
        settings(["-y", "pkg"], "/usr", proxied),
    ] {
        assert_eq!(edit(&other).await.problem(422), "VALIDATION_FAILED", "{other}");
        let trial = endpoints.post("/api/server-trials", &root, &json!({ "name": "a", "settings": other })).await;
        assert_eq!(trial.problem(422), "VALIDATION_FAILED", "{other}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn placeholder_of_a_header_is_not_sent_elsewhere() {
    let endpoints = Endpoints::open().await;
    let server =
        "  a:\n    url: https://a.example/mcp\n    headers: { Authorization: hidden-value, X-Team: hidden-team }\n";
    endpoints.configure(&format!("dashboard: {{ edit: on }}\nmcpServers:\n{server}")).await;
    let root = endpoints.key("root", Role::Admin);
    let version = endpoints.version(&root).await;
    for (url, headers, status) in [
        ("https://a.example/mcp", json!({ "Authorization": "[secret]", "X-Team": "[secret]" }), 200),
        ("https://b.example/mcp", json!({ "Authorization": "[secret]", "X-Team": "[secret]" }), 422),
        ("https://a.example/mcp", json!({ "Authorization": "[secret]" }), 422),
        (
            "https://a.example/mcp",
            json!({ "Authorization": "[secret]", "X-Team": "[secret]", "Host": "b.example" }),
            422,
        ),
        ("https://b.example/mcp", json!({ "Authorization": "${AUTHORIZATION}" }), 200),
    ] {
        let settings = json!({ "url": url, "headers": headers, "disabled": true });
        let body = json!({ "version": version, "settings": settings, "preview": true });
        let reply = endpoints.edit("PUT", "/api/servers/a", &root, &body).await;
        assert_eq!(reply.status, status, "{settings}: {reply:?}");
        assert!(!reply.text.contains("hidden-"), "{reply:?}");
    }
    endpoints.close().await;
}

impl Endpoints {
    /// Sends a request that does not come from the machine itself.
    pub(crate) async fn send_through_proxy(&self, method: &str, path: &str, key: &str, body: &Value) -> Reply {
        let authorization = format!("Bearer {key}");
        let headers = [
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
            ("X-Forwarded-For", "192.0.2.1"),
        ];
        self.send(method, path, &headers, Some(&body.to_string())).await
    }

    /// Returns the newest trial or edit.
    async fn newest_trial(&self, key: &str) -> Value {
        self.get("/api/server-trials", key).await.json()["trials"][0].clone()
    }

    async fn decide_trial(&self, trial: &Value, key: &str, verdict: &str) -> Reply {
        let path = format!("/api/server-trials/{}/decision", trial["id"].as_str().unwrap());
        self.post(&path, key, &json!({ "verdict": verdict })).await
    }
}

#[actix::test]
async fn saved_command_waits_for_somebody_else() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let (root, bob) = (endpoints.key("root", Role::Admin), endpoints.key("bob", Role::Reviewer));
    let add = async |text: &str| {
        let body = json!({ "version": endpoints.version(&root).await, "text": text });
        endpoints.send_through_proxy("POST", "/api/servers", &root, &body).await
    };
    let added = add(r#"{"c": {"command": "sh", "args": ["-c", "exit 3"]}}"#).await;
    let answer = added.json();
    assert_eq!(
        (added.status, &answer["saved"], &answer["needsConsent"]),
        (200, &json!(false), &json!(true)),
        "{added:?}"
    );
    assert_eq!(endpoints.config_file(), FILE);
    let edit = endpoints.newest_trial(&bob).await;
    assert_eq!((&edit["purpose"], &edit["state"], &edit["by"]), (&json!("save"), &json!("waiting"), &json!("root")));
    assert!(edit["yaml"].as_str().unwrap().contains("command: sh"), "{edit}");
    // Neither another account of the same person nor a key that they create counts as somebody else.
    let second = endpoints.post("/api/keys", &root, &json!({ "name": "second", "role": "reviewer" })).await.json();
    for own in [&root, &endpoints.key("Root", Role::Reviewer), second["secret"].as_str().unwrap()] {
        assert_eq!(endpoints.decide_trial(&edit, own, "run").await.problem(403), "SELF_APPROVAL");
    }
    let saved = endpoints.decide_trial(&edit, &bob, "run").await;
    assert_eq!((saved.status, &saved.json()["state"]), (200, &json!("finished")), "{saved:?}");
    assert!(endpoints.config_file().contains("  c:\n    command: sh\n"), "{}", endpoints.config_file());

    // What runs already needs nobody's consent, and what is changed waits again.
    let replace = async |settings: Value| {
        let body = json!({ "version": endpoints.version(&root).await, "settings": settings });
        endpoints.send_through_proxy("PUT", "/api/servers/c", &root, &body).await.json()
    };
    let same = replace(json!({ "command": "sh", "args": ["-c", "exit 3"], "timeout": "5s" })).await;
    assert_eq!((&same["saved"], &same["needsConsent"]), (&json!(true), &json!(false)), "{same}");
    let other = replace(json!({ "command": "sh", "args": ["-c", "exit 4"], "timeout": "5s" })).await;
    assert_eq!(other["saved"], false, "{other}");
    let edit = endpoints.newest_trial(&bob).await;
    assert_eq!(endpoints.decide_trial(&edit, &bob, "refuse").await.json()["state"], "refused");
    assert!(!endpoints.config_file().contains("exit 4"));

    // A disabled server runs nothing, so consent is needed when it is enabled.
    assert_eq!(replace(json!({ "command": "evil", "disabled": true })).await["saved"], true);
    assert_eq!(replace(json!({ "command": "evil" })).await["saved"], false);
    let trial = endpoints.send_through_proxy("POST", "/api/server-trials", &root, &json!({ "name": "c" })).await;
    assert_eq!(trial.json()["state"], "waiting", "{trial:?}");
    endpoints.close().await;
}

#[actix::test]
async fn consent_shows_values_of_the_file_but_no_secrets() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(&FILE.replace("command: x\n", "command: x\n    disabled: true\n")).await;
    let (root, bob) = (endpoints.key("root", Role::Admin), endpoints.key("bob", Role::Reviewer));
    let shown = "    command: x\n    env:\n      TOKEN: \"[secret]\"\n      LEVEL: info\n";
    let settings = json!({ "command": "x", "env": { "TOKEN": "[secret]", "LEVEL": "[secret]" } });
    let version = endpoints.version(&root).await;
    for (method, path, body) in [
        ("POST", "/api/server-trials", json!({ "name": "a" })),
        ("POST", "/api/server-trials", json!({ "name": "a", "settings": settings })),
        ("PUT", "/api/servers/a", json!({ "version": version, "settings": settings })),
    ] {
        let reply = endpoints.send_through_proxy(method, path, &root, &body).await;
        assert!(reply.status == 200 && !reply.text.contains("hidden-value"), "{reply:?}");
        let waiting = endpoints.newest_trial(&bob).await;
        assert_eq!(waiting["state"], "waiting", "{body}");
        assert!(waiting["yaml"].as_str().unwrap().ends_with(shown), "{waiting}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn edit_of_a_file_that_changed_meanwhile_is_not_made() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let (root, bob) = (endpoints.key("root", Role::Admin), endpoints.key("bob", Role::Reviewer));
    let body = json!({ "version": endpoints.version(&root).await, "text": "c: {command: sh}" });
    assert_eq!(endpoints.send_through_proxy("POST", "/api/servers", &root, &body).await.status, 200);
    let changed = FILE.replace("# mine", "# ours");
    endpoints.configure(&changed).await;
    let edit = endpoints.newest_trial(&bob).await;
    assert_eq!(endpoints.decide_trial(&edit, &bob, "run").await.problem(409), "VERSION_CONFLICT");
    let edit = endpoints.newest_trial(&bob).await;
    assert_eq!((&edit["state"], edit["error"].is_string()), (&json!("finished"), true), "{edit}");
    assert_eq!(endpoints.config_file(), changed);
    // Without consent, nothing is based on an older file either.
    assert_eq!(
        endpoints.send_through_proxy("POST", "/api/servers", &root, &body).await.problem(409),
        "VERSION_CONFLICT"
    );
    endpoints.close().await;
}

#[actix::test]
async fn waiting_trials_of_one_person_do_not_block_others() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let (root, ann) = (endpoints.key("root", Role::Admin), endpoints.key("ann", Role::Admin));
    let request = async |key: &str| {
        let body = json!({ "name": "b", "text": "{\"command\": \"sh\"}" });
        endpoints.send_through_proxy("POST", "/api/server-trials", key, &body).await
    };
    for _ in 0..3 {
        assert_eq!(request(&root).await.status, 200);
    }
    for own in [&root, &endpoints.key("Root", Role::Admin)] {
        assert_eq!(request(own).await.problem(429), "RATE_LIMITED");
    }
    assert_eq!(request(&ann).await.status, 200);
    let newest = endpoints.get("/api/server-trials", &root).await.json()["trials"][1].clone();
    assert_eq!(endpoints.decide_trial(&newest, &root, "refuse").await.status, 200);
    assert_eq!(request(&root).await.status, 200, "a withdrawn one does not count");
    endpoints.close().await;
}

#[actix::test]
async fn viewers_see_no_new_lines_and_no_output_of_servers() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let (root, bob) = (endpoints.key("root", Role::Admin), endpoints.key("bob", Role::Reviewer));
    let viewer = endpoints.key("vic", Role::Viewer);
    let text = json!({ "command": "sh", "args": ["-c", "echo typed-in >&2; exit 3"] }).to_string();
    let trial = endpoints.post("/api/server-trials", &root, &json!({ "name": "b", "text": text })).await.json();
    let trial = finished_trial(&endpoints, &bob, trial["id"].as_str().unwrap()).await;
    assert!(trial["report"]["error"].is_string(), "{trial}");
    endpoints.configure(&format!("{FILE}    trust_annotations: true\n")).await;
    let paths = ["/api/server-trials", "/api/server-file", "/api/reload", "/api/config"];
    for (key, may_see) in [(&bob, true), (&viewer, false)] {
        let [trials, file, reload, config] = [
            endpoints.get(paths[0], key).await,
            endpoints.get(paths[1], key).await,
            endpoints.get(paths[2], key).await,
            endpoints.get(paths[3], key).await,
        ];
        assert_eq!(trials.text.contains("typed-in"), may_see, "{trials:?}");
        assert_eq!(trials.json()["trials"][0]["report"].is_object(), may_see, "{trials:?}");
        assert_eq!(file.json()["servers"][0]["settings"]["command"].is_string(), may_see, "{file:?}");
        for waiting in [&reload.json()["waiting"], &config.json()["waiting"]] {
            assert_eq!(waiting["loosens"][0]["key"], "mcpServers.a.trust_annotations");
            assert_eq!(waiting["content"].as_array().unwrap().is_empty(), !may_see, "{waiting}");
        }
    }
    endpoints.close().await;
}
