//! Tests of the configuration as a user meets it: the program's exit codes and messages.

use support::{
    cli::{Home, Lines},
    tls::create_certificate,
};

#[test]
fn defaults_are_valid() {
    let home = Home::new();
    home.run(&["config", "check"]).ends(0).says(&["The configuration is valid"]);
    assert!(!home.data().exists(), "checking opens and makes nothing");
}

#[test]
fn unknown_servers_in_rules_are_warned_about() {
    let home = Home::new();
    let file = home.write(
        "c.yaml",
        "mcpServers: { crm: { command: x }, files: { command: x, disabled: true }, gh: { command: x, prefix: hub_ },\n\
         \x20 off: { command: x, disabled: true, prefix: old_ } }\n\
         policy: { rules: [{ servers: crmm, then: deny }, { name: typo, tools: ['flies__*', 'files__{a,b}'], then: deny },\n\
         { servers: [crm, files, tracker, 'new-*'], tools: [create_issue, 'crm__*', hub__x, old__x, '*__x',\n\
         \x20 gateway__x], then: deny }] }\n",
    );
    let check = home.run(&["config", "check", "--config", file.to_str().unwrap()]).ends(0).complains(&[
        "`rule 1`: there is no server `crmm`; did you mean `crm`?",
        "`typo`: no server has tools whose names begin with `flies__`",
    ]);
    assert_eq!(check.stderr().matches("warning: policy.rules").count(), 2, "{}", check.stderr());
}

#[test]
fn invalid_file_exits_with_78_and_names_the_remedy() {
    let home = Home::new();
    let file = home.write("bad.yaml", "listen: 127.0.0.1:0\n\ntransports:\n  http:\n    max_bdy: 1MiB\n");
    let file = file.to_str().unwrap();
    for command in [&["serve", "--config", file][..], &["--config", file], &["stdio", "--config", file]] {
        let ran = home.run(command).ends(78).complains(&[
            "countersign: the configuration cannot be used",
            "bad.yaml:5:5: transports.http.max_bdy: unknown key. Did you mean `max_body`?",
        ]);
        assert_eq!(ran.stdout(), "");
        assert!(!home.data().exists());
    }
    home.run(&["config", "check", "--config", "missing.yaml"]).ends(78).complains(&["missing.yaml", "cannot be read"]);
    home.run(&["keys", "list", "--config", file]).ends(0);
}

#[test]
fn check_reports_unusable_files() {
    let home = Home::new();
    create_certificate(home.path());
    home.write("junk", "junk");
    for (yaml, key) in [
        ("tls: { cert: cert.pem, key: junk }\n", "tls.key"),
        ("secrets: { key_file: missing }\n", "secrets.key_file"),
        ("store: { url: 'postgres://localhost/c?sslmode=require', ca: missing }\n", "store.ca"),
        ("modules: { docs: { enabled: true, projects: { a: { root: missing } } } }\n", "modules.docs.projects.a.root"),
    ] {
        let file = home.write("c.yaml", yaml);
        let check = ["config", "check", "--config", file.to_str().unwrap()];
        home.run(&check).ends(78).complains(&["c.yaml:1:", &format!("{key}: ")]);
    }
}

#[test]
fn client_commands_ignore_errors_in_unused_settings() {
    const KEY: &str = "COUNTERSIGN_KEY";
    let home = Home::new().with_var("COUNTERSIGN_LISTEN", "127.0.0.1:0");
    let key = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0).stdout();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    std::fs::create_dir_all(home.path().join(".config/countersign")).unwrap();
    let commands: [&[&str]; 11] = [
        &["changes", "list"],
        &["servers"],
        &["rules"],
        &["webhooks"],
        &["nodes"],
        &["config", "pending"],
        &["policy", "test", "list_projects"],
        &["open", "--print"],
        &["keys", "list"],
        &["audit", "verify"],
        &["backup", "copy", "--force"],
    ];
    for wrong in
        ["mcpServers: { a: { command: x, env: { T: '${NOT_SET}' } } }\n", "polcy: {}\n", "webhooks: [\nlimits: 7\n"]
    {
        home.write(".config/countersign/countersign.yaml", wrong);
        home.run(&["config", "check"]).ends(78);
        for command in commands {
            home.run_with(&[(KEY, key.trim())], command).ends(0);
        }
        home.run_with(&[(KEY, key.trim())], &["config", "show"]).ends(0).complains(&["has in force"]);
        let mut other = Lines::start(&home, &["stdio"]);
        other.ping("2");
        other.close();
        assert_eq!(other.finish().0, 0);
    }
}

#[test]
fn invalid_variable_is_named() {
    let home = Home::new().with_var("COUNTERSIGN_TRANSPORTS__HTTP__REQUEST_TIMEOUT", "30");
    home.run(&["config", "check"]).ends(78).complains(&[
        "environment variable COUNTERSIGN_TRANSPORTS__HTTP__REQUEST_TIMEOUT",
        "transports.http.request_timeout",
        "30s or 30ms?",
    ]);
    let home = Home::new().with_var("COUNTERSIGN_TRANSPORT__HTTP__WORKERS", "2");
    home.run(&["config", "check"]).ends(78).complains(&["Did you mean COUNTERSIGN_TRANSPORTS__HTTP__WORKERS?"]);
}

#[cfg(unix)]
#[test]
fn non_unicode_variable_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let mut command = home.command(&["config", "check"]);
    command.env("COUNTERSIGN_LISTEN", std::ffi::OsStr::from_bytes(b"127.0.0.1:\xff"));
    let ran = support::cli::RunResult(command.output().unwrap()).ends(78);
    ran.complains(&["environment variable COUNTERSIGN_LISTEN: listen: the value is not Unicode"]);
}

#[test]
fn listening_for_others_needs_keys_and_tls() {
    let home = Home::new();
    home.run(&["serve", "--listen", "0.0.0.0:0"]).ends(78).complains(&["flag --listen", "auth.mode: keys", "tls"]);
    assert!(!home.data().exists());
}

#[test]
fn config_show_names_sources_and_is_a_valid_file() {
    let home = Home::new().with_var("COUNTERSIGN_LOG__FORMAT", "json");
    let file = home.write("c.yaml", "transports: { http: { max_body: 2MiB } }\n");
    let arguments = ["config", "show", "--config", file.to_str().unwrap(), "--listen", "localhost:9"];
    let shown = home.run(&arguments).ends(0).says(&[
        "listen: 127.0.0.1:9 ",
        "# flag --listen",
        "# environment variable COUNTERSIGN_LOG__FORMAT",
        "c.yaml:1:23",
        "# default",
    ]);
    let again = home.write("again.yaml", &shown.stdout());
    let json = Home::new();
    let all = json.run(&["config", "show", "--json", "--config", again.to_str().unwrap()]).ends(0).stdout();
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["transports.http.max_body"]["value"], "2MiB");
    assert_eq!(all["log.format"]["value"], "json");
    assert!(all["listen"]["source"].as_str().unwrap().contains("again.yaml:1:1"));
}

#[test]
fn default_file_is_a_valid_configuration() {
    let home = Home::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/countersign.yaml");
    home.run(&["config", "check", "--config", file]).ends(0).says(&["countersign.yaml"]);
}
