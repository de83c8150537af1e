//! Clock changes: the real program under libfaketime, whose wall clock jumps back an hour and forward a day while
//! changes are pending, approved, about to run, about to expire, and held. Monotonic time is unaffected.

use std::{
    path::{Path, PathBuf},
    thread::JoinHandle,
};

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually,
    http::{Conn, Response},
    run,
};

const CONFIG: &str = r#"
changes: {expire_after: 3 days}
policy:
  rules:
    - {name: brief, tools: [create_issue], when: 'arguments.title.startsWith("Brief")', then: review, expire_after: 90m}
    - {name: soon, tools: [create_issue], when: 'arguments.title.startsWith("Soon over")', then: review, expire_after: 2s}
    - {name: later, tools: [create_issue], when: 'arguments.title.startsWith("Later")', then: review, undo_for: 2s}
    - {name: long, tools: [create_issue], when: 'arguments.title.startsWith("Long")', then: review, undo_for: 2h}
    - {name: held, tools: [create_issue], when: 'arguments.title.startsWith("Held")', then: review, on_review: hold, hold_for: 2s}
"#;

/// A gateway whose wall clock is off by the seconds in a file.
struct SkewedGateway {
    gateway: Gateway,
    project: String,
}

/// Returns the library that answers a program's requests for the time.
pub fn faketime_library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let mut files = folders.filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketimeMT.so.1")));
    files.find(|path| path.exists()).expect("libfaketime is missing: apt-get install faketime")
}

/// Sets the clock's offset in seconds. Written atomically, because the program reads it whenever it asks for the time.
pub fn set_clock(home: &Path, seconds: i64) {
    let next = home.join("clock.next");
    std::fs::write(&next, format!("{seconds:+}")).unwrap();
    std::fs::rename(next, home.join("clock")).unwrap();
}

/// Removes files that the library keeps in shared memory per process. A killed process leaves its file behind, and the
/// next one with the same pid could not start.
fn remove_stale_shared_memory() {
    for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let of = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if of.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another test may remove it first.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns how many seconds the clock of the responding program is ahead of the real one.
pub fn clock_offset(response: &Response) -> Option<i64> {
    let gateway_time = jiff::fmt::rfc2822::parse(response.header("date")?).unwrap().timestamp();
    Some(gateway_time.duration_since(jiff::Timestamp::now()).as_secs())
}

/// Returns variables that make a program use this library with the offset in that file.
pub fn faketime_env<'a>(library: &'a Path, clock: &'a Path) -> [(&'static str, &'a str); 5] {
    remove_stale_shared_memory();
    [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ]
}

impl SkewedGateway {
    fn start_on(home: tempfile::TempDir, library: &Path, seconds: i64) -> Self {
        set_clock(home.path(), seconds);
        let clock = home.path().join("clock");
        let env = faketime_env(library, &clock).to_vec();
        let gateway = Gateway::on_home(home, &Options { env, config: Some(CONFIG) });
        let project = gateway.project();
        Self { gateway, project }
    }

    fn set(&self, seconds: i64) {
        set_clock(self.gateway.home.path(), seconds);
    }

    /// Returns the time according to the gateway.
    fn now(&self, title: &str) -> jiff::Timestamp {
        let id = self.propose(title);
        self.gateway.change(&id)["createdAt"].as_str().unwrap().parse().unwrap()
    }

    fn propose(&self, title: &str) -> String {
        let (status, body) = propose(self.gateway.port, &self.project, title, title);
        assert_eq!(status, 202, "{body}");
        id_in(&body)
    }

    fn propose_approved(&self, title: &str) -> String {
        let id = self.propose(title);
        self.gateway.decide(&id, "approve");
        id
    }

    fn state(&self, id: &str) -> String {
        self.gateway.change(id)["state"].as_str().unwrap().to_owned()
    }

    /// Makes a call that is held open, and returns its final answer.
    fn propose_held(&self, title: &'static str) -> JoinHandle<(u16, Value)> {
        let (port, project) = (self.gateway.port, self.project.clone());
        let call = std::thread::spawn(move || propose(port, &project, title, title));
        eventually("it is there", || {
            let (_, listed) = self.gateway.api("GET", &format!("/api/changes?q={}", title.replace(' ', "+")), None);
            (!listed["changes"].as_array()?.is_empty()).then_some(())
        });
        call
    }
}

fn propose(port: u16, project: &str, title: &str, key: &str) -> (u16, Value) {
    let body = json!({"projectId": project, "title": title, "type": "Story"}).to_string();
    let mut conn = Conn::open(([127, 0, 0, 1], port).into());
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
    conn.request("POST", "/tools/create_issue", &headers, body.as_bytes());
    let response = conn.response();
    (response.status, response.json_or_null())
}

fn id_in(body: &Value) -> String {
    let text = body.to_string();
    let start = text.find("chg_").unwrap_or_else(|| panic!("no change: {text}"));
    text[start..].chars().take_while(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect()
}

const HOUR: i64 = 3600;

#[test]
fn clock_jumps_lose_and_repeat_nothing() {
    let library = faketime_library();
    let skewed = SkewedGateway::start_on(tempfile::tempdir().unwrap(), &library, 0);
    let real = skewed.now("Now");

    // Back an hour, with a change in each state that depends on time.
    let pending = skewed.propose("Pending before");
    let brief = skewed.propose("Brief before");
    let soon = skewed.propose("Soon over before");
    let later = skewed.propose_approved("Later before");
    let held = skewed.propose_held("Held before");
    skewed.set(-HOUR);
    assert!(skewed.now("An hour ago").duration_since(real).as_secs() < -HOUR / 2, "the clock was set back");
    skewed.gateway.wait_for_state(&later, "applied");
    let (status, answer) = held.join().unwrap();
    assert_eq!(status, 202, "it comes back as pending, and does not hang: {answer}");
    let over = skewed.gateway.wait_for_state(&soon, "expired");
    assert!(over["fault"]["message"].as_str().unwrap().contains("Nobody decided"), "{over}");
    for open in [&pending, &brief] {
        assert_eq!(skewed.state(open), "pending", "nothing expires because the clock goes back");
    }
    assert_eq!(skewed.propose("Pending before"), pending, "the same key is the same change");
    skewed.gateway.decide(&pending, "approve");
    let applied = skewed.gateway.wait_for_state(&pending, "applied");
    let at = |name: &str| applied[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(at("updatedAt") >= at("createdAt"), "a change's own history never goes back: {applied}");
    let early = skewed.propose("Soon over an hour ago");
    skewed.gateway.wait_for_state(&early, "expired");

    // Forward a day from there.
    let brief_too = skewed.propose("Brief an hour ago");
    let patient = skewed.propose("Pending an hour ago");
    let later = skewed.propose_approved("Later an hour ago");
    let held = skewed.propose_held("Held an hour ago");
    skewed.set(23 * HOUR);
    for over in [&brief, &brief_too] {
        skewed.gateway.wait_for_state(over, "expired");
    }
    skewed.gateway.wait_for_state(&later, "applied");
    assert_eq!(held.join().unwrap().0, 202);
    assert_eq!(skewed.state(&patient), "pending", "its three days are not over");
    // An approval with a long undo time, and a crash: it can be undone even after the clock was set back.
    let long = skewed.propose_approved("Long tomorrow");
    let waiting = skewed.propose_approved("Later tomorrow");

    // Killed, and started again a day earlier.
    let home = skewed.gateway.kill();
    let skewed = SkewedGateway::start_on(home, &library, -HOUR);
    skewed.gateway.wait_for_state(&waiting, "applied");
    let change = skewed.gateway.change(&long);
    assert_eq!(change["state"], "approved", "{change}");
    let body = json!({"version": change["version"]});
    let (status, undone) = skewed.gateway.api("POST", &format!("/api/changes/{long}/undo"), Some(&body));
    // The reviewer has another key of the same name now: approvals belong to the name.
    assert_eq!((status, undone["state"].as_str()), (200, Some("pending")), "{undone}");
    skewed.gateway.decide(&patient, "approve");
    skewed.gateway.wait_for_state(&patient, "applied");

    // Everything promised is there, everything that ran ran once, and the feed has no gap.
    let titles = ["Pending before", "Later before", "Later an hour ago", "Later tomorrow", "Pending an hour ago"];
    for title in titles {
        assert_eq!(skewed.gateway.issues_titled(title), 1, "{title}");
    }
    for title in ["Brief before", "Soon over before", "Held before", "Held an hour ago", "Long tomorrow"] {
        assert_eq!(skewed.gateway.issues_titled(title), 0, "{title}");
    }
    check_feed_numbers(&skewed.gateway);
    let (_, home) = skewed.gateway.stop();
    let (code, out, err) = run(&["audit", "verify", "--data", home.path().join("data").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}

/// Reads the whole feed and checks its numbers.
fn check_feed_numbers(gateway: &Gateway) {
    let bearer = format!("Bearer {}", gateway.reviewer());
    let open = |last: Option<&str>| {
        let mut conn = gateway.connect();
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(last.map(|last| ("Last-Event-ID", last)));
        conn.request("GET", "/api/events", &headers, b"");
        assert_eq!(conn.head().status, 200);
        conn
    };
    let head = open(None).event().unwrap().json()["seq"].as_u64().unwrap();
    let mut conn = open(Some("0"));
    let mut event_count = 0;
    while event_count < head {
        let event = conn.event().unwrap();
        if let Some(id) = &event.id {
            assert_eq!(id.parse(), Ok(event_count + 1), "{event:?}");
            event_count += 1;
        }
    }
}
