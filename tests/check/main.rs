//! Tests of `countersign check` against a conforming server, and against the same server with one fault at a time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "test code")]

mod faults;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
    sync::Mutex,
};

use countersign_check::{Check, checks};
use faults::{CheckTarget, dependants, target_of};
use serde_json::Value;
use support::{
    Gateway, Process, binary,
    children::{new_marker, processes_with},
};

const SERVER: &str = env!("CARGO_BIN_EXE_model-server");

/// The exit code and output of a run.
struct RunResult {
    code: Option<i32>,
    report: Value,
    errors: String,
}

fn run(arguments: &[&str]) -> RunResult {
    let output = Command::new(binary()).arg("check").args(arguments).stdin(Stdio::null()).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    RunResult { code: output.status.code(), report, errors: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// A timeout in seconds that a server exceeds only if it never answers.
const LONG_TIMEOUT: &str = "60";

/// Runs checks of a server that may never answer, with a short timeout. If the result is not as expected, the machine may have
/// been too busy for that timeout, and the result of a run with a long one counts.
fn run_with_timeouts(run: impl Fn(&str) -> RunResult, is_as_expected: impl Fn(&RunResult) -> bool) -> RunResult {
    let ran = run("5");
    if ran.report["checks"].is_array() && is_as_expected(&ran) { ran } else { run(LONG_TIMEOUT) }
}

/// Checks the model server with that fault.
fn check_model_server(target: CheckTarget, fault: &str, timeout: &str) -> RunResult {
    let mut server: Vec<&str> = Vec::new();
    server.extend(target.modern.then_some("--modern"));
    if !fault.is_empty() {
        server.extend(["--fault", fault]);
    }
    let revision = if target.modern { "2026-07-28" } else { "2025-11-25" };
    if target.transport == "stdio" {
        let all = ["--json", "--timeout", timeout, "--revision", revision, "--", SERVER];
        let arguments: Vec<&str> = all.into_iter().chain(server).collect();
        return run(&arguments);
    }
    let mut child = Command::new(SERVER).args(&server).arg("--listen").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _served = Process(child);
    let scheme = if target.transport == "http" { "http" } else { "ws" };
    let url = format!("{scheme}://{}/mcp", line.trim());
    run(&["--json", "--timeout", timeout, "--revision", revision, "--url", &url])
}

fn failed_checks(ran: &RunResult) -> BTreeSet<String> {
    let all = ran.report["checks"].as_array().unwrap_or_else(|| panic!("no report: {:?} {}", ran.code, ran.errors));
    let failed = all.iter().filter(|check| check["status"] == "failed");
    failed.map(|check| check["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn conforming_server_passes_everywhere() {
    // A run mostly waits.
    std::thread::scope(|threads| {
        for transport in ["stdio", "http", "websocket"] {
            for modern in [false, true] {
                threads.spawn(move || {
                    let ran = check_model_server(CheckTarget { transport, modern }, "", LONG_TIMEOUT);
                    assert_eq!(failed_checks(&ran), BTreeSet::new(), "{transport} {modern}: {}", ran.report);
                    assert_eq!((ran.code, &ran.report["complies"]), (Some(0), &Value::Bool(true)));
                });
            }
        }
    });
}

#[test]
fn each_check_finds_exactly_its_fault() {
    let all: Vec<&Check> = checks().collect();
    assert!(all.len() >= 60, "{}", all.len());
    let waiting = Mutex::new(all.into_iter());
    let wrong = Mutex::new(BTreeMap::new());
    std::thread::scope(|threads| {
        for _ in 0..12 {
            threads.spawn(|| {
                loop {
                    let Some(check) = waiting.lock().unwrap().next() else { return };
                    let mut expected: BTreeSet<String> =
                        dependants(check.id).iter().map(|id| (*id).to_owned()).collect();
                    expected.insert(check.id.to_owned());
                    let code = if check.level == countersign_check::Level::Must { 1 } else { 0 };
                    let is_as_expected = |ran: &RunResult| {
                        failed_checks(ran) == expected && (ran.code == Some(code) || expected.len() > 1)
                    };
                    let ran = run_with_timeouts(
                        |timeout| check_model_server(target_of(check), check.id, timeout),
                        is_as_expected,
                    );
                    if !is_as_expected(&ran) {
                        wrong.lock().unwrap().insert(check.id, (failed_checks(&ran), ran.code));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn gateway_complies_on_all_transports_and_revisions() {
    let gateway = Gateway::start();
    let (http, ws) = (format!("http://{}/mcp", gateway.address()), format!("ws://{}/ws", gateway.address()));
    let data = gateway.data();
    let program = binary();
    let targets = [
        vec!["--url", &http],
        vec!["--url", &ws],
        vec!["--", program.to_str().unwrap(), "stdio", "--data", data.to_str().unwrap()],
    ];
    // A run mostly waits.
    std::thread::scope(|threads| {
        for revision in ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"] {
            let targets = &targets;
            threads.spawn(move || {
                for target in targets {
                    let options = ["--json", "--timeout", "60", "--revision", revision];
                    let arguments: Vec<&str> = options.into_iter().chain(target.iter().copied()).collect();
                    let ran = run(&arguments);
                    assert_eq!(failed_checks(&ran), BTreeSet::new(), "{revision} {target:?}: {}", ran.errors);
                    assert_eq!(ran.code, Some(0));
                    assert_eq!(ran.report["revision"], revision);
                }
            });
        }
    });
}

#[test]
fn usage_errors_and_absent_servers_have_exit_codes() {
    for arguments in [
        &[][..],
        &["--url", "ftp://x"],
        &["--url", "http://x", "--", "y"],
        &["--revision", "2020-01-01", "--", "y"],
        &["--only", "nothing", "--", "y"],
        &["--no-such-flag"],
        &["--header", "no", "--url", "http://127.0.0.1:1"],
        &["--server", "nobody"],
    ] {
        assert_eq!(run(arguments).code, Some(64), "{arguments:?}");
    }
    // The groups of other transports have no checks, so nothing is known about the server.
    let groups = ["--json", "--timeout", "60", "--only", "http", "--only", "websocket"];
    let ran = run(&[&groups[..], &["--revision", "2025-11-25", "--", SERVER]].concat());
    assert_eq!(ran.code, Some(64), "{}", ran.errors);
    assert!(ran.errors.contains("no check of http and websocket applies to 2025-11-25 over stdio"), "{}", ran.errors);
    assert_eq!(run(&["--", "/no/such/program"]).code, Some(69));
    assert_eq!(run(&["--url", "http://127.0.0.1:1/mcp"]).code, Some(69));
    assert_eq!(run(&["--timeout", "1", "--", "cat"]).code, Some(69));
    assert_eq!(run(&["--timeout", "1", "--", "sleep", "60"]).code, Some(69));
}

/// Responses that never end, never begin, or claim to be huge, are refused at the time or size limit.
#[test]
fn babbling_or_hanging_server_is_refused() {
    for server in ["yes", "cat /dev/zero", "cat /dev/urandom", "exec 1>&-; sleep 60", "sleep 60 & sleep 60"] {
        let ran = run(&["--timeout", "1", "--", "sh", "-c", server]);
        assert_eq!(ran.code, Some(69), "{server}: {}", ran.errors);
        assert!(ran.errors.lines().count() == 1 && ran.errors.len() < 3000, "{server}: {}", ran.errors);
    }
    let chunked = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    for (head, again) in [
        ("HTTP/1.1 200 x\r\n".to_owned(), "x: y\r\n"),
        ("HTTP/1.1 200 x\r\ncontent-type: application/json\r\n\r\n".to_owned(), "{"),
        ("HTTP/1.1 200 x\r\ncontent-length: 18446744073709551615\r\n\r\n".to_owned(), ""),
        (format!("{chunked}ffffffffffffffff\r\n"), ""),
        (chunked.to_owned(), "5\r\ndata:\r\n"),
        ("HTTP/1.1 101 x\r\n\r\n\u{1}\u{7f}".to_owned(), "\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, head) = (stream.unwrap(), head.clone());
                std::thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let mut sent = stream.write_all(head.as_bytes());
                    let many = again.repeat(1000);
                    while sent.is_ok() && !again.is_empty() {
                        sent = stream.write_all(many.as_bytes());
                    }
                    // Open until the other side disconnects.
                    let _ = stream.read(&mut [0; 4096]);
                });
            }
        });
        for scheme in ["http", "ws"] {
            let ran = run(&["--timeout", "1", "--url", &format!("{scheme}://{address}/mcp")]);
            assert_eq!(ran.code, Some(69), "{address}: {}", ran.errors);
        }
    }
}

#[test]
fn reports_are_for_people_programs_and_ci() {
    let dir = tempfile::tempdir().unwrap();
    let junit = dir.path().join("report.xml");
    let arguments = [
        "check",
        "--only",
        "tools",
        "--junit",
        junit.to_str().unwrap(),
        "--",
        SERVER,
        "--fault",
        "tools/input-schema-root",
    ];
    let output = Command::new(binary()).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "✗ tools/input-schema-root",
        "the input schema of \"write\" has the type null",
        "server/tools#data-types",
        "Write `\"type\": \"object\"` at the root",
        "It does not comply: 1 required check failed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let xml = fs_text(&junit);
    assert!(xml.contains("failures=\"1\"") && xml.contains("name=\"tools/input-schema-root\""), "{xml}");
    let ran = run(&["--json", "--only", "tools", "--", SERVER, "--fault", "tools/input-schema-root"]);
    let check =
        ran.report["checks"].as_array().unwrap().iter().find(|check| check["id"] == "tools/input-schema-root").unwrap();
    for key in ["id", "group", "level", "status", "spec", "sent", "received", "advice"] {
        assert!(check.get(key).is_some(), "{key}: {check}");
    }
}

#[test]
fn wrong_id_type_is_reported() {
    for modern in [false, true] {
        // It also writes a banner.
        let expected = BTreeSet::from(["messages/id-integer", "messages/id-large", "stdio/stdout"].map(str::to_owned));
        let ran = run_with_timeouts(
            |timeout| check_model_server(CheckTarget { transport: "stdio", modern }, "run/text-ids", timeout),
            |ran| failed_checks(ran) == expected,
        );
        assert_eq!((ran.code, failed_checks(&ran)), (Some(1), expected), "{}", ran.errors);
        let checks = ran.report["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["id"] == "messages/id-integer").unwrap();
        assert!(found["received"].to_string().contains(r#"\"id\":\"42\""#), "{found}");
    }
    // If no answer belongs to a request, nothing more can be checked.
    for (modern, revision, member) in
        [(false, "2025-11-25", "protocolVersion"), (true, "2026-07-28", "supportedVersions")]
    {
        let expected = BTreeSet::from(["messages/id-integer".to_owned()]);
        let ran = run_with_timeouts(
            |timeout| check_model_server(CheckTarget { transport: "stdio", modern }, "run/no-ids", timeout),
            |ran| failed_checks(ran) == expected,
        );
        assert_eq!((ran.code, failed_checks(&ran)), (Some(1), expected));
        assert_eq!(ran.report["revision"], revision);
        let found = &ran.report["checks"][0];
        assert!(found["spec"].as_str().unwrap().starts_with(revision), "{found}");
        assert!(found["why"].as_str().unwrap().contains("null"), "{found}");
        assert!(found["received"][0].as_str().unwrap().contains(member), "{found}");
    }
}

/// A check that a server sends nothing but the answer does not pass if there is no answer.
#[test]
fn unanswered_calls_fail_checks() {
    let expected = BTreeSet::from(["utilities/no-requests", "utilities/progress-token"].map(str::to_owned));
    let check = |timeout: &str| {
        let options = ["--json", "--timeout", timeout, "--only", "utilities", "--revision", "2026-07-28"];
        let server = ["--", SERVER, "--modern", "--fault", "run/silent-calls"];
        run(&[&options[..], &server].concat())
    };
    let ran = run_with_timeouts(check, |ran| failed_checks(ran) == expected);
    assert_eq!((ran.code, failed_checks(&ran)), (Some(1), expected));
}

#[test]
fn server_that_sends_too_much_is_cut_off() {
    // In one answer, and in many messages before one.
    cut_off("run/large", &[]);
    cut_off("run/babble", &["--only", "utilities"]);
}

fn cut_off(fault: &str, more: &[&str]) {
    let mut check = Command::new(binary())
        .args(["check", "--json", "--revision", "2025-11-25"])
        .args(more)
        .args(["--", SERVER, "--fault", fault])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = check.stdout.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        printed.read_to_string(&mut text).map(|_| text)
    });
    let mut peak = 0;
    let code = loop {
        // The highest value so far; nothing once the process has ended.
        let status = std::fs::read_to_string(format!("/proc/{}/status", check.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or_default());
        match check.try_wait().unwrap() {
            Some(status) => break status.code(),
            None => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    let report: Value = serde_json::from_str(&reading.join().unwrap().unwrap()).unwrap();
    println!("check of a server with the fault {fault}: {} MiB at the peak", peak >> 10);
    assert!((1..200 << 10).contains(&peak), "{fault}: {peak} KiB");
    assert_eq!((code, &report["complies"]), (Some(1), &Value::Bool(false)), "{fault}");
}

#[test]
fn run_ends_when_its_time_is_over() {
    // The server becomes slow once it is opened and its lists are read.
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let count = count.to_str().unwrap();
    let slow = format!("echo >> {count}; [ $(wc -l < {count}) -lt 3 ] || sleep 300; exec {SERVER}");
    let limits = ["--max-time", "15", "--timeout", "60"];
    let arguments = [&["--json", "--revision", "2025-11-25"], &limits[..], &["--", "sh", "-c", &slow]].concat();
    let ran = run(&arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.errors);
    assert_eq!(ran.report["stopped"], "it took longer than 15 s");
    let last = ran.report["checks"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["status"], &last["why"]),
        (&"skipped".into(), &"the run was ended: it took longer than 15 s".into())
    );
}

#[test]
fn credentials_are_in_no_report() {
    const SECRET: &str = "tok-en-0123456789";
    let dir = tempfile::tempdir().unwrap();
    let junit = dir.path().join("report.xml");
    let mut server =
        Command::new(SERVER).args(["--fault", "run/given", "--listen"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _served = Process(server);
    let url = format!("http://{}/mcp", line.trim());
    let header = format!("Authorization: Bearer {SECRET}");
    let over_http = ["--header", &header, "--url", &url];
    let over_stdio = ["--env", "TOKEN", "--", SERVER, "--fault", "run/given"];
    let file = dir.path().join("c.yaml");
    let server = format!("command: {SERVER}, args: [--fault, run/given, --token, '${{TOKEN}}']");
    std::fs::write(&file, format!("mcpServers:\n  given: {{ {server} }}\n")).unwrap();
    let (file, data) = (file.to_str().unwrap(), dir.path().join("data"));
    let configured = ["--config", file, "--data", data.to_str().unwrap(), "--server", "given"];
    for target in [&over_http[..], &over_stdio, &configured] {
        for format in [&["--json"][..], &[]] {
            let mut command = Command::new(binary());
            command.args(["check", "--only", "messages", "--only", "tools", "--junit", junit.to_str().unwrap()]);
            let output = command.args(format).args(target).env("TOKEN", SECRET).output().unwrap();
            let texts = [output.stdout, output.stderr, std::fs::read(&junit).unwrap()];
            let all = texts.map(|text| String::from_utf8(text).unwrap()).concat();
            assert!(all.contains("[secret]") && all.contains("messages/jsonrpc"), "{all}");
            let parts = (4..SECRET.len()).map(|end| &SECRET[..end]);
            for part in parts {
                assert!(!all.contains(part), "{part}: {all}");
            }
        }
    }
}

#[test]
fn configured_command_is_shown_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("c.yaml"), dir.path().join("data"));
    let server = format!("command: {SERVER}, args: [--token, tok-en-0123456789]");
    std::fs::write(&file, format!("mcpServers:\n  model: {{ {server} }}\n")).unwrap();
    let configured = ["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap(), "--server", "model"];
    let options = ["--json", "--timeout", "60", "--revision", "2025-11-25", "--only", "messages"];
    let ran = run(&[&options[..], &configured].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.errors);
    assert!(ran.report["target"].as_str().unwrap().ends_with(" --token [secret]"), "{}", ran.report["target"]);
}

#[test]
fn checked_command_is_isolated_and_cleaned_up() {
    let dir = tempfile::tempdir().unwrap();
    let (file, marker) = (dir.path().join("env"), new_marker());
    let script = format!("env > {}; setsid sh -c 'sleep 1000; :' {marker} & exec {SERVER}", file.to_str().unwrap());
    let check = |more: &[&str]| {
        Command::new(binary())
            .args(["check", "--json", "--only", "handshake", "--revision", "2025-11-25"])
            .args(more)
            .args(["--", "sh", "-c", &script])
            .env("COUNTERSIGN_KEY", "csk_secret")
            .env("NODE_EXTRA_CA_CERTS", "/a/b.pem")
            .env("HTTPS_PROXY", "http://me:secret@127.0.0.1:1")
            .env("NAMED", "value")
            .output()
            .unwrap()
    };
    let output = check(&["--env", "NAMED"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("HTTPS_PROXY"), "the report names the withheld variable");
    let text = fs_text(&file);
    let names: BTreeSet<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(["PATH", "NODE_EXTRA_CA_CERTS", "NAMED"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(["COUNTERSIGN_KEY", "HTTPS_PROXY"].iter().all(|name| !names.contains(name)), "{names:?}");
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !processes_with(&marker).is_empty() {
        assert!(std::time::Instant::now() < limit, "processes in sessions of their own are still alive");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(check(&["--env", "NO_SUCH_VARIABLE"]).status.code(), Some(64));
}

/// The page has a row for each check, with the model server's fault that it detects.
#[test]
fn page_lists_each_check_with_its_fault() {
    let page = fs_text(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/checking.md")));
    let faults: BTreeMap<&str, &str> = faults::FAULTS.iter().copied().collect();
    assert_eq!(faults.len(), faults::FAULTS.len());
    assert!(faults.keys().all(|id| checks().any(|check| check.id == *id)));
    let rows: Vec<String> = checks()
        .map(|check| {
            let fault = faults.get(check.id).unwrap_or_else(|| panic!("the fault of {} is not described", check.id));
            format!("| `{}` | {} | {} | {} | {fault} |", check.id, check.level, check.revisions(), check.requirement)
        })
        .collect();
    let there: Vec<&str> = page.lines().filter(|line| line.starts_with("| `") && line.contains("/")).collect();
    assert_eq!(there, rows, "docs/checking.md should have:\n{}", rows.join("\n"));
    assert!(page.contains(&format!("{} checks", rows.len())));
}

fn fs_text(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
