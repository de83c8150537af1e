//! Tests of the program as scripts use it: exit codes, stdout, configuration errors, TLS.

use std::{os::unix::fs::PermissionsExt as _, path::Path, process::Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::{
    Gateway, LISTEN, Options, Process, command, create_key, eventually, run, signal,
    tls::{TlsGateway, create_certificate},
    wait_until_ready,
};

#[test]
fn invalid_config_names_line_and_remedy() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("bad.yaml");
    let data = home.path().join("data");
    for (text, key) in [
        ("listen: 127.0.0.1:0\nauth:\n  mode: nobody\n", "auth.mode"),
        ("transports:\n  http:\n    max_body: many\n", "transports.http.max_body"),
        ("no_such_key: 1\n", "no_such_key"),
        ("listen: 0.0.0.0:8080\n", "auth.mode"),
        ("listen: [\n", ""),
    ] {
        std::fs::write(&file, text).unwrap();
        let args = ["serve", "--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()];
        let (code, out, err) = run(&args);
        assert_eq!(code, Some(78), "{text}: {out}{err}");
        assert!(err.contains("bad.yaml") && err.contains(key), "{text}: {err}");
        assert!(!data.exists(), "nothing was opened");
        assert_eq!(run(&["config", "check", "--config", file.to_str().unwrap()]).0, Some(78), "{text}");
    }
    let (code, _, err) =
        run(&["config", "check", "--config", concat!(env!("CARGO_MANIFEST_DIR"), "/../config/countersign.yaml")]);
    assert_eq!(code, Some(0), "the commented default file is itself valid: {err}");
    assert_eq!(run(&["serve", "--no-such-flag"]).0, Some(2));
    assert_eq!(run(&["--help"]).0, Some(0));
}

#[test]
fn one_data_directory_has_one_gateway() {
    let gateway = Gateway::start();
    let data = gateway.data();
    let (code, _, err) = run(&["serve", "--listen", LISTEN, "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(75), "{err}");
    assert!(err.contains("another gateway serves this data directory"), "{err}");
    let address = format!("127.0.0.1:{}", gateway.port);
    let other = tempfile::tempdir().unwrap();
    let (code, _, err) = run(&["serve", "--listen", &address, "--data", other.path().join("d").to_str().unwrap()]);
    assert_ne!(code, Some(0));
    assert!(err.to_lowercase().contains("in use"), "{err}");
}

#[test]
fn data_directory_open_to_others_is_reported_once() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (_, home) = Gateway::on_home(home, &Options::default()).stop();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(log.matches("the data directory is open to others").count(), 1, "{log}");
}

#[test]
fn stdout_has_results_only_and_sigterm_exits_0() {
    let home = tempfile::tempdir().unwrap();
    let key = create_key(&home.path().join("data"), "reviewer", "alice");
    assert!(key.len() >= 43 && !key.contains(char::is_whitespace), "256 bits and nothing else: {key}");
    let child = command(&[])
        .args(["serve", "--listen", LISTEN, "--data"])
        .arg(home.path().join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut process = Process(child);
    wait_until_ready(&mut process, &home.path().join("data")).expect("it listens");
    process.terminate();
    assert_eq!(process.wait_for_exit().code(), Some(0));
    let mut out = String::new();
    std::io::Read::read_to_string(process.0.stdout.as_mut().unwrap(), &mut out).unwrap();
    assert_eq!(out, "", "serve logs on stderr");
}

/// Runs `countersign changes …` as the reviewer; returns exit code, stdout and stderr.
fn changes(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String, String) {
    let url = format!("http://127.0.0.1:{}", gateway.port);
    let output = command(&[("COUNTERSIGN_KEY", gateway.reviewer())])
        .arg("changes")
        .args(args)
        .args(["--url", &url])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn terminal_commands_decide_and_hide_control_characters() {
    let gateway = Gateway::start();
    let hostile = "Red \u{1b}[31m and \u{202e}backwards";
    let (first, second) = (gateway.propose("From the terminal"), gateway.propose(hostile));
    let (code, out, err) = changes(&gateway, &["list", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let listed: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert!(listed.to_string().contains(&first), "{listed}");
    let (code, out, _) = changes(&gateway, &["show", &second]);
    assert_eq!(code, Some(0));
    assert!(!out.contains("\u{1b}[31m") && !out.contains('\u{202e}'), "control characters are made visible: {out:?}");
    let (code, _, err) = changes(&gateway, &["approve", &first, "--comment", "fine"]);
    assert_eq!(code, Some(0), "{err}");
    gateway.wait_for_state(&first, "applied");
    let (code, _, err) = changes(&gateway, &["reject", &second, "--comment", "no colours"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(gateway.change(&second)["decisions"][0]["comment"], "no colours");
    let again = changes(&gateway, &["approve", &second]);
    assert_ne!(again.0, Some(0), "a decided change stays decided");
    assert_ne!(changes(&gateway, &["show", "chg_nothing"]).0, Some(0));
}

#[test]
fn tls_serves_http_1_and_2() {
    let tls = TlsGateway::start();
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let out = tls.run(&[flag, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", "/health"]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("200 {version}"));
    }
    tls.stop();
}

#[test]
fn renewed_certificate_is_served_without_restart() {
    let tls = TlsGateway::start();
    let renewed = tempfile::tempdir().unwrap();
    let (cert, key) = create_certificate(renewed.path());
    let old = renewed.path().join("old.pem");
    std::fs::copy(&tls.cert, &old).unwrap();
    let is_trusted = |authority: &Path| {
        tls.run(&["--cacert", authority.to_str().unwrap(), "-o", "/dev/null", "/health"]).status.success()
    };
    // A certificate without its key is not used.
    std::fs::copy(&cert, &tls.cert).unwrap();
    signal(tls.process.0.id(), Signal::HUP);
    eventually("the pair is refused", || {
        let log = std::fs::read_to_string(tls.home.path().join("log")).unwrap();
        log.contains("is not the key of the first certificate").then_some(())
    });
    assert!(is_trusted(&old) && !is_trusted(&cert));
    std::fs::copy(&key, tls.home.path().join("key.pem")).unwrap();
    signal(tls.process.0.id(), Signal::HUP);
    eventually("the new certificate is served", || is_trusted(&cert).then_some(()));
    assert!(!is_trusted(&old));
    tls.stop();
}
