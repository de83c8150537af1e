//! Tests of the real program on a store that is locked, damaged, truncated, on a full disk, or backed up at runtime: it
//! refuses clearly, says what to do, and loses nothing.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use support::{Gateway, LISTEN, Options, Process, command, eventually, http::Conn, run, wait_until_ready};

/// Proposes over the plain endpoint with an idempotency key; returns status and body.
fn propose(port: u16, project: &str, key: &str, text: &str) -> (u16, Value) {
    let body = json!({"projectId": project, "title": key, "type": "Story", "description": text}).to_string();
    let mut conn = Conn::open(([127, 0, 0, 1], port).into());
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
    conn.request("POST", "/tools/create_issue", &headers, body.as_bytes());
    let response = conn.response();
    (response.status, response.json_or_null())
}

fn health(port: u16) -> (u16, Value) {
    let mut conn = Conn::open(([127, 0, 0, 1], port).into());
    conn.request("GET", "/health", &[], b"");
    let response = conn.response();
    (response.status, response.json())
}

/// Starts on the existing data, expects a refusal, and returns the exit code and output.
fn expect_refusal(home: &Path) -> (Option<i32>, String) {
    let log = home.join("log");
    let before = std::fs::read_to_string(&log).unwrap_or_default().len();
    let mut process = Gateway::spawn(home, &Options::default());
    let status = process.wait_for_exit();
    (status.code(), std::fs::read_to_string(&log).unwrap()[before..].to_owned())
}

#[test]
fn foreign_lock_is_reported_and_recovered_from() {
    let gateway = Gateway::start();
    let project = gateway.project();
    let database = gateway.data().join("countersign.db");
    let other = rusqlite::Connection::open(&database).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (status, problem) = propose(gateway.port, &project, "held up", "");
    assert_eq!((status, &problem["code"]), (503, &json!("STORE_UNAVAILABLE")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("nothing was changed"), "{problem}");
    let (status, health_report) = health(gateway.port);
    assert_eq!(
        (status, &health_report["ready"], &health_report["checks"]["store"]),
        (503, &json!(false), &json!("locked"))
    );
    other.execute_batch("ROLLBACK").unwrap();
    eventually("it is ready again, by itself", || (health(gateway.port).0 == 200).then_some(()));
    assert_eq!(propose(gateway.port, &project, "held up", "").0, 202);
    let (_, listed) = gateway.api("GET", "/api/changes", None);
    assert_eq!(listed["changes"].as_array().unwrap().len(), 1, "the refused one left nothing");

    // At the start, too.
    let (_, home) = gateway.stop();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let (code, refusal) = expect_refusal(home.path());
    assert_eq!(code, Some(69), "{refusal}");
    assert!(refusal.contains("locked by another process"), "{refusal}");
}

#[test]
fn store_read_by_another_program_loses_no_writes() {
    let gateway = Gateway::start();
    // A program that believes that nobody else has the database open deletes the log when it closes it.
    let count_changes = || -> u32 {
        let other = rusqlite::Connection::open(gateway.data().join("countersign.db")).unwrap();
        other.query_row("SELECT count(*) FROM changes", [], |row| row.get(0)).unwrap()
    };
    gateway.propose("Before");
    assert_eq!(count_changes(), 1);
    gateway.propose("After");
    assert_eq!(count_changes(), 2);
    let home = gateway.kill();
    let restarted = Gateway::on_home(home, &Options::default());
    assert_eq!(restarted.api("GET", "/api/changes", None).1["changes"].as_array().unwrap().len(), 2);
}

#[test]
fn damaged_store_is_refused_and_left_alone() {
    let gateway = Gateway::start();
    for n in 0..30 {
        gateway.propose(&format!("{n} {}", "x".repeat(150)));
    }
    let (_, home) = gateway.stop();
    let path = home.path().join("data/countersign.db");
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    for byte in &mut damaged[middle..middle + 6000] {
        *byte ^= 0xff;
    }
    std::fs::write(&path, &damaged).unwrap();
    let (code, refusal) = expect_refusal(home.path());
    assert_eq!(code, Some(69), "{refusal}");
    assert!(refusal.contains("is damaged") && refusal.contains("restore it from a backup"), "{refusal}");
    assert_eq!(std::fs::read(&path).unwrap(), damaged, "the damaged store was not repaired");
    let to = home.path().join("copy");
    let data = home.path().join("data");
    let (code, _, refusal) = run(&["backup", to.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert_ne!(code, Some(0), "{refusal}");
    assert!(!to.exists(), "a copy that cannot be trusted is not kept");
    std::fs::write(&path, &whole).unwrap();
    let restarted = Gateway::on_home(home, &Options::default());
    assert_eq!(restarted.api("GET", "/api/changes?limit=100", None).1["changes"].as_array().unwrap().len(), 30);
}

#[test]
fn truncated_log_is_noticed() {
    let gateway = Gateway::start();
    for n in 0..5 {
        gateway.propose(&format!("promised {n}"));
    }
    let witness = gateway.data().join("audit.head");
    eventually("the recorded head covers all entries, including the policy", || {
        std::fs::read_to_string(&witness).ok().filter(|text| text.starts_with("6:"))
    });
    let home = gateway.kill();
    let log = home.path().join("data/countersign.db-wal");
    let length = std::fs::metadata(&log).unwrap().len();
    File::options().write(true).open(&log).unwrap().set_len(length / 2).unwrap();
    let (code, refusal) = expect_refusal(home.path());
    assert_eq!(code, Some(69), "{refusal}");
    assert!(refusal.contains("later entries are lost") && refusal.contains("audit.head"), "{refusal}");
    // The operator accepts the loss.
    std::fs::remove_file(&witness).unwrap();
    let restarted = Gateway::on_home(home, &Options::default());
    assert!(restarted.api("GET", "/api/changes", None).1["changes"].as_array().unwrap().len() < 5);
    restarted.propose("it goes on");
}

/// A gateway whose data directory is a disk of a few megabytes. It runs in a separate mount namespace, so its files are
/// reached through its process.
struct SmallDisk {
    process: Process,
    port: u16,
    home: tempfile::TempDir,
}

impl SmallDisk {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let log = File::create(home.path().join("log")).unwrap();
        let namespaces = if rustix::process::geteuid().is_root() { "-m" } else { "-Urm" };
        let script = "mount -t tmpfs -o size=6m,mode=0700 tmpfs \"$0\" && exec \"$@\"";
        let inner = command(&[]);
        let mut outer = Command::new("unshare");
        outer.env_clear().envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        outer.args([namespaces, "sh", "-c", script]).arg(&data).arg(support::binary());
        outer.args(["serve", "--listen", LISTEN, "--data"]).arg(&data);
        let mut process = Process(outer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        // This is the started process, since nothing in between forks. Its files are visible through it.
        let visible_data =
            PathBuf::from(format!("/proc/{}/root", process.0.id())).join(data.strip_prefix("/").unwrap());
        let Some(port) = wait_until_ready(&mut process, &visible_data) else {
            panic!("{}", std::fs::read_to_string(home.path().join("log")).unwrap());
        };
        Self { process, port, home }
    }

    /// Runs the program in the gateway's namespace, on its data.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new("nsenter");
        let pid = self.process.0.id().to_string();
        command.args(["--target", pid.as_str(), "--mount"]);
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg(support::binary()).args(arguments).arg("--data").arg(self.home.path().join("data"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8(text).unwrap().trim().to_owned())
    }

    /// Returns the directory as the gateway sees it.
    fn data(&self) -> PathBuf {
        let data = self.home.path().join("data");
        Path::new("/proc").join(self.process.0.id().to_string()).join("root").join(data.strip_prefix("/").unwrap())
    }
}

#[test]
fn full_disk_refuses_until_there_is_space() {
    let disk = SmallDisk::start();
    let (was_created, key) = disk.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]);
    assert!(was_created, "{key}");
    let bearer = format!("Bearer {key}");
    let get = |path: &str| {
        let mut conn = Conn::open(([127, 0, 0, 1], disk.port).into());
        conn.request("GET", path, &[("Authorization", bearer.as_str())], b"");
        conn.response().json()
    };
    let mut conn = Conn::open(([127, 0, 0, 1], disk.port).into());
    conn.request("POST", "/tools/list_projects", &[("Content-Type", "application/json")], b"{}");
    let projects = conn.response().json();
    let project = projects["structuredContent"]["projects"][0]["id"].as_str().unwrap().to_owned();
    let mut promised = vec![propose(disk.port, &project, "before", "").1];
    assert!(promised[0].to_string().contains("chg_"), "{promised:?}");

    let filler = disk.data().join("filler");
    let mut file = File::create(&filler).unwrap();
    let chunk = vec![0; 4096];
    while file.write_all(&chunk).is_ok() {}
    let text = "x".repeat(20_000);
    let refused = (0..200).find_map(|n| {
        let (status, body) = propose(disk.port, &project, &format!("full {n}"), &text);
        if status == 202 {
            promised.push(body);
            return None;
        }
        Some((n, status, body))
    });
    let (n, status, problem) = refused.expect("the disk was full");
    assert_eq!((status, &problem["code"]), (503, &json!("STORE_UNAVAILABLE")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("nothing was changed"), "{problem}");
    let listed = get("/api/changes?limit=200");
    assert_eq!(listed["changes"].as_array().map(Vec::len), Some(promised.len()), "{listed}");
    let (status, health_report) = health(disk.port);
    assert_eq!(
        (status, &health_report["ready"], &health_report["checks"]["store"]),
        (503, &json!(false), &json!("disk_full"))
    );
    assert_eq!(propose(disk.port, &project, &format!("full {n}"), &text).0, 503);
    assert_eq!(health(disk.port).1["checks"]["store"], "disk_full", "the disk is still full");

    std::fs::remove_file(&filler).unwrap();
    drop(file);
    let repeated = eventually("there is room again", || {
        let (status, body) = propose(disk.port, &project, &format!("full {n}"), &text);
        (status == 202).then_some(body)
    });
    promised.push(repeated);
    eventually("it is ready", || (health(disk.port).0 == 200).then_some(()));
    let listed = get("/api/changes?limit=200");
    assert!(listed["changes"].is_array(), "{listed}");
    let ids: Vec<&str> = listed["changes"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), promised.len(), "what was promised, once each, and nothing else");
    for body in &promised {
        let text = body.to_string();
        assert!(ids.iter().any(|id| text.contains(id)), "{text}");
    }
    let (holds, verdict) = disk.run(&["audit", "verify"]);
    assert!(holds, "{verdict}");
    disk.process.terminate();
}

/// Limits the size of files that the process may create.
fn limit_files(gateway: &Gateway, bytes: &str) {
    let pid = gateway.process.0.id().to_string();
    let limit = format!("--fsize={bytes}:unlimited");
    assert!(Command::new("prlimit").args(["--pid", pid.as_str(), limit.as_str()]).status().unwrap().success());
}

#[test]
fn refused_write_is_reported_and_recovered_from() {
    let gateway = Gateway::start();
    let project = gateway.project();
    let id = gateway.propose("Before");
    gateway.propose("Left alone");
    // Like a quota: smaller than the database's log, so that nothing more can be written.
    limit_files(&gateway, "8192");
    let call = {
        let (port, project) = (gateway.port, project.clone());
        std::thread::spawn(move || propose(port, &project, "refused", "x"))
    };
    let health_report = eventually("it says so", || Some(health(gateway.port)).filter(|(status, _)| *status == 503)).1;
    assert_eq!(
        (&health_report["live"], &health_report["ready"], &health_report["checks"]["store"]),
        (&json!(true), &json!(false), &json!("failed"))
    );
    // Reads continue in the meantime.
    assert_eq!(gateway.change(&id)["state"], "pending");
    limit_files(&gateway, "unlimited");
    let (status, answer) = call.join().unwrap();
    // It either waited for the outcome of the write, or was refused at once.
    assert!(status == 202 || answer["code"] == "STORE_UNAVAILABLE", "{status} {answer}");
    eventually("it is ready again, by itself", || (health(gateway.port).0 == 200).then_some(()));
    assert_eq!(propose(gateway.port, &project, "refused", "x").0, 202);
    gateway.decide(&id, "approve");
    gateway.wait_for_state(&id, "applied");
    let (_, listed) = gateway.api("GET", "/api/changes", None);
    assert_eq!(listed["changes"].as_array().unwrap().len(), 3, "once each: {listed}");
    let (_, home) = gateway.stop();
    let (code, out, err) = run(&["audit", "verify", "--data", home.path().join("data").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}

#[test]
fn store_damaged_at_runtime_is_reported() {
    use std::os::unix::fs::FileExt as _;
    let gateway = Gateway::start();
    let project = gateway.project();
    let key = gateway.reviewer().to_owned();
    // More than the readers cache.
    let text = "y".repeat(20_000);
    let one = &|n: usize| -> String {
        let (status, body) = propose(gateway.port, &project, &format!("large {n}"), &text);
        assert_eq!(status, 202, "{body}");
        let text = body.to_string();
        text[text.find("chg_").unwrap()..].chars().take(28).collect()
    };
    let ids: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|thread| scope.spawn(move || (0..8).map(|n| one(thread * 8 + n)).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let path = gateway.data().join("countersign.db");
    // The log is checkpointed into the database, as happens from time to time.
    rusqlite::Connection::open(&path).unwrap().query_row("PRAGMA wal_checkpoint", [], |_| Ok(())).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length > 3 << 20, "{length}");
    let file = File::options().write(true).open(&path).unwrap();
    let junk = vec![0xa5; usize::try_from(length).unwrap() - 65_536];
    file.write_all_at(&junk, 65_536).unwrap();
    let (status, problem) = ids
        .iter()
        .map(|id| gateway.api_as(&key, "GET", &format!("/api/changes/{id}"), None))
        .find(|(status, _)| *status != 200)
        .expect("not everything can be read");
    assert_eq!((status, &problem["code"]), (503, &json!("STORE_UNAVAILABLE")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("must restore a backup"), "{problem}");
    let (status, health_report) = health(gateway.port);
    assert_eq!(
        (status, &health_report["ready"], &health_report["checks"]["store"]),
        (503, &json!(false), &json!("damaged"))
    );
    let home = gateway.kill();
    let (code, refusal) = expect_refusal(home.path());
    assert_eq!(code, Some(69), "{refusal}");
    assert!(refusal.contains("damaged") && refusal.contains("backup"), "{refusal}");
}

#[test]
fn running_gateway_is_backed_up_and_restored() {
    let gateway = Gateway::start();
    let first = gateway.propose("In the backup");
    gateway.decide(&first, "approve");
    gateway.wait_for_state(&first, "applied");
    let pending = gateway.propose("Pending in the backup");
    let to = gateway.home.path().join("copy");
    let data = gateway.data();
    let backup = ["backup", to.to_str().unwrap(), "--data", data.to_str().unwrap()];
    let (code, out, err) = run(&backup);
    assert_eq!(code, Some(0), "{err}");
    let copies: Vec<&str> = out.lines().collect();
    assert_eq!(copies, [to.to_str().unwrap(), &format!("{}.tracker", to.display())]);
    assert!(err.contains("its pages and its audit trail were checked"), "{err}");
    let (code, _, err) = run(&backup);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--force"), "{err}");
    let later = gateway.propose("After the backup");

    // As `countersign backup --help` describes it.
    let home = tempfile::tempdir().unwrap();
    let restored = home.path().join("data");
    let ok = |command: &mut Command| assert!(command.status().unwrap().success());
    ok(Command::new("install").args(["-d", "-m", "700"]).arg(&restored));
    ok(Command::new("install").args(["-m", "600"]).arg(copies[0]).arg(restored.join("countersign.db")));
    ok(Command::new("install").args(["-m", "600"]).arg(copies[1]).arg(restored.join("tracker.db")));
    let key = gateway.reviewer().to_owned();
    let other = Gateway::on_home(home, &Options::default());
    // Keys are included.
    let (status, current) = other.api_as(&key, "GET", &format!("/api/changes/{first}"), None);
    assert_eq!((status, current["state"].as_str()), (200, Some("applied")));
    assert_eq!(other.issues_titled("In the backup"), 1);
    assert_eq!(other.api_as(&key, "GET", &format!("/api/changes/{later}"), None).0, 404);
    // A change that may have run since is previewed again before somebody decides.
    let stale = other.change(&pending);
    assert_eq!(stale["state"], "stale", "{stale}");
    assert!(stale["fault"]["message"].as_str().unwrap().contains("may have run since"), "{stale}");
    let body = json!({"version": stale["version"]});
    let (status, current) = other.api_as(&key, "POST", &format!("/api/changes/{pending}/refresh"), Some(&body));
    assert_eq!((status, current["state"].as_str()), (200, Some("pending")), "{current}");
    let body = json!({"decision": "approve", "version": current["version"], "digest": current["digest"]});
    assert_eq!(other.api_as(&key, "POST", &format!("/api/changes/{pending}/decision"), Some(&body)).0, 200);
    other.wait_for_state(&pending, "applied");
    // The original gateway does not know of all that.
    assert_eq!(gateway.change(&pending)["state"], "pending");
    let (_, home) = other.stop();
    let data = home.path().join("data");
    let (code, out, err) = run(&["audit", "verify", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}
