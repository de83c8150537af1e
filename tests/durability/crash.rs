//! Kills the gateway at named points and under load, restarts it on its data, and checks the invariants: no promise
//! lost, nothing run twice, unknown outcomes reported, a trail that verifies, and a feed without gaps.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use support::{Gateway, Options, create_key, eventually, http::Conn, mcp, run};
use tempfile::TempDir;

/// Starts a gateway that kills itself at the n-th passage of that point.
fn start_armed(home: TempDir, point: &str, passage: u32) -> Gateway {
    let passage = passage.to_string();
    let env = vec![("COUNTERSIGN_CRASH_AT", point), ("COUNTERSIGN_CRASH_AFTER", passage.as_str())];
    Gateway::on_home(home, &Options { env, ..Options::default() })
}

/// Prepares data with a reviewer's key and one pending change; returns both.
fn prepare_pending_change(title: &str) -> (TempDir, String, String) {
    let gateway = Gateway::start();
    let key = gateway.create_key("reviewer", "carol");
    let change = gateway.propose(title);
    let (_, home) = gateway.stop();
    (home, key, change)
}

/// Sends an approval whether or not there is an answer.
fn approve_blindly(gateway: &Gateway, key: &str, change: &str) -> Option<u16> {
    let current = gateway.api_as(key, "GET", &format!("/api/changes/{change}"), None).1;
    let body = json!({"decision": "approve", "version": current["version"], "digest": current["digest"]}).to_string();
    let mut conn = gateway.connect();
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str()), mcp::JSON];
    conn.request("POST", &format!("/api/changes/{change}/decision"), &headers, body.as_bytes());
    conn.try_response().map(|response| response.status)
}

/// Waits until an armed gateway has ended itself by a signal.
#[track_caller]
fn wait_for_crash(mut gateway: Gateway) -> TempDir {
    let status = gateway.process.wait_for_exit();
    assert_eq!(status.code(), None, "it was killed, it did not exit: {status:?}\n{}", gateway.log());
    gateway.kill()
}

/// Checks with `countersign audit verify` that nothing was altered or lost.
#[track_caller]
fn verify_trail(home: &Path) {
    let data = home.join("data");
    let (code, out, err) = run(&["audit", "verify", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}

/// Replays the whole feed; checks that its numbers have no gap and that each change's transitions are legal.
#[track_caller]
fn check_feed(gateway: &Gateway, key: &str) -> Vec<Value> {
    let bearer = format!("Bearer {key}");
    let trail = gateway.request("GET", "/api/audit/export", &[("Authorization", &bearer)], b"");
    assert_eq!(trail.status, 200);
    let trail: Vec<Value> = trail.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The trail also has keys and the policy, which the feed does not.
    let of_others = |entry: &&Value| entry["event"] == "key_created" || entry["event"] == "policy_recorded";
    let of_changes = trail.len() - trail.iter().filter(of_others).count();
    let mut conn = gateway.connect();
    conn.request("GET", "/api/events?since=0", &[("Authorization", &bearer)], b"");
    assert_eq!(conn.head().status, 200);
    // First the required number of events, then whether there are more.
    let mut events = Vec::new();
    while let Some(event) =
        if events.len() < of_changes { conn.event() } else { conn.event_within(Duration::from_millis(300)) }
    {
        if let Some(id) = &event.id {
            let event = event.json();
            assert_eq!(event["seq"].as_u64(), id.parse().ok(), "{event}");
            events.push(event);
        }
    }
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    let whole: Vec<u64> = (1..=seqs.len() as u64).collect();
    assert_eq!(seqs, whole, "gapless and in order");
    // Changes may be read back between both reads.
    let verified = events.iter().skip(of_changes).filter(|event| event["type"] == "change.verified").count();
    assert_eq!(of_changes + verified, seqs.len(), "the audit trail and the feed report the same transitions");
    let mut states: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in &events {
        let kinds = states.entry(event["change"]["id"].as_str().unwrap().to_owned()).or_default();
        kinds.push(event["type"].as_str().unwrap().to_owned());
    }
    for (change, kinds) in states {
        assert_eq!(kinds[0], "change.created", "{change}: {kinds:?}");
        let of = |kind: &str| kinds.iter().filter(|seen| *seen == kind).count();
        assert!(of("change.created") == 1 && of("change.applied") <= 1, "{change}: {kinds:?}");
        assert!(of("change.executing") <= 1, "claimed at most once: {change}: {kinds:?}");
    }
    events
}

#[test]
fn answered_proposal_is_durable() {
    for (point, survives) in [
        ("before_commit", false),
        ("after_commit", true),
        ("between_commit_and_announce", true),
        ("after_announce", true),
    ] {
        let first = Gateway::start();
        let key = first.create_key("reviewer", "carol");
        let project = first.project();
        let (_, home) = first.stop();
        let gateway = start_armed(home, point, 1);
        let params = json!({
            "name": "create_issue", "arguments": {"projectId": project, "title": "At a crash", "type": "Story"},
        });
        let answer = gateway.modern_conn(1, "tools/call", params).try_response();
        let home = wait_for_crash(gateway);
        let restarted = Gateway::on_home(home, &Options::default());
        let (_, listed) = restarted.api_as(&key, "GET", "/api/changes", None);
        let found = listed["changes"].as_array().unwrap().len();
        assert_eq!(found, usize::from(survives), "{point}: {listed}");
        if let Some(answer) = answer.filter(|answer| answer.status == 200) {
            assert!(survives, "{point}: answered and lost: {}", answer.text());
        }
        check_feed(&restarted, &key);
        let (_, home) = restarted.stop();
        verify_trail(home.path());
    }
}

#[test]
fn crash_after_claim_leaves_unknown_outcome() {
    for (point, ran) in [("after_claim", 0), ("after_call", 1), ("before_result", 1)] {
        let (home, key, change) = prepare_pending_change("Claimed");
        let gateway = start_armed(home, point, 1);
        approve_blindly(&gateway, &key, &change);
        let home = wait_for_crash(gateway);
        let restarted = Gateway::on_home(home, &Options::default());
        let current = restarted.wait_for_state(&change, "outcome_unknown");
        assert_eq!(restarted.issues_titled("Claimed"), ran, "{point}: never retried: {current}");
        assert_eq!(approve_blindly(&restarted, &key, &change), Some(409), "{point}: it cannot be approved again");
        let settle = json!({"outcome": if ran == 1 { "applied" } else { "failed" }, "comment": "I looked", "version": current["version"]});
        let (status, settled) = restarted.api_as(&key, "POST", &format!("/api/changes/{change}/settle"), Some(&settle));
        assert_eq!(status, 200, "{point}: {settled}");
        assert_eq!(settled["state"], settle["outcome"], "{point}");
        let kinds: Vec<Value> = check_feed(&restarted, &key).into_iter().map(|event| event["type"].clone()).collect();
        for kind in ["change.approved", "change.executing", "change.outcome_unknown", "change.settled"] {
            assert!(kinds.contains(&json!(kind)), "{point}: {kind} in {kinds:?}");
        }
        let (_, home) = restarted.stop();
        verify_trail(home.path());
        // After one more restart it is still settled, and has not run again.
        let third = Gateway::on_home(home, &Options::default());
        assert_eq!(third.change(&change)["state"], settle["outcome"]);
        assert_eq!(third.issues_titled("Claimed"), ran, "{point}");
    }
}

#[test]
fn crash_before_claim_runs_once_after_restart() {
    for point in ["after_decide", "before_claim"] {
        let (home, key, change) = prepare_pending_change("Approved");
        let gateway = start_armed(home, point, 1);
        approve_blindly(&gateway, &key, &change);
        let home = wait_for_crash(gateway);
        let restarted = Gateway::on_home(home, &Options::default());
        restarted.wait_for_state(&change, "applied");
        assert_eq!(restarted.issues_titled("Approved"), 1, "{point}");
        check_feed(&restarted, &key);
        let (_, home) = restarted.stop();
        verify_trail(home.path());
    }
}

#[test]
fn crash_after_result_repeats_nothing() {
    let (home, key, change) = prepare_pending_change("Applied");
    let gateway = start_armed(home, "after_result", 1);
    approve_blindly(&gateway, &key, &change);
    let home = wait_for_crash(gateway);
    let restarted = Gateway::on_home(home, &Options::default());
    assert_eq!(restarted.change(&change)["state"], "applied");
    assert_eq!(restarted.issues_titled("Applied"), 1);
    check_feed(&restarted, &key);
    let (_, home) = restarted.stop();
    verify_trail(home.path());
}

#[test]
fn gateway_killed_under_load_keeps_every_promise() {
    let mut home = tempfile::tempdir().unwrap();
    let key = {
        let gateway = Gateway::on_home(home, &Options::default());
        let key = gateway.create_key("reviewer", "carol");
        (_, home) = gateway.stop();
        key
    };
    let mut promised: Vec<(String, String)> = Vec::new();
    for round in 0..3 {
        let gateway = Gateway::on_home(home, &Options::default());
        settle_unknown(&gateway, &key);
        let project = gateway.project();
        let (address, stop) = (gateway.address(), AtomicBool::new(false));
        let answered = AtomicUsize::new(0);
        let found: Vec<Vec<(String, String)>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let (project, key, stop, answered) = (&project, &key, &stop, &answered);
                    scope.spawn(move || {
                        generate_load(address, project, key, &format!("r{round}w{worker}"), stop, answered)
                    })
                })
                .collect();
            eventually("some work is done", || (answered.load(Ordering::Relaxed) >= 40).then_some(()));
            support::signal(gateway.process.0.id(), rustix::process::Signal::KILL);
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        promised.extend(found.into_iter().flatten());
        home = gateway.kill();
        verify_trail(home.path());
    }
    let gateway = Gateway::on_home(home, &Options::default());
    settle_unknown(&gateway, &key);
    let mut titles: BTreeMap<String, usize> = BTreeMap::new();
    let final_states = ["applied", "outcome_unknown", "stale", "failed", "pending"];
    for (change, title) in &promised {
        let state = eventually("all changes have ended", || {
            let current = gateway.api_as(&key, "GET", &format!("/api/changes/{change}"), None).1;
            let state = current["state"].as_str().expect("an answered change is stored").to_owned();
            final_states.contains(&state.as_str()).then_some(state)
        });
        let times = gateway.issues_titled(title);
        assert!(times <= 1, "{title} ran {times} times");
        assert!(state != "applied" || times == 1, "{title} is {state} and there {times} times");
        assert!(state != "pending" || times == 0, "{title} is {state} and there {times} times");
        *titles.entry(state).or_default() += 1;
    }
    assert!(titles.get("applied").copied().unwrap_or_default() > 10, "{titles:?}");
    check_feed(&gateway, &key);
    let (_, home) = gateway.stop();
    verify_trail(home.path());
}

/// Settles changes with unknown outcomes, because their targets are blocked until somebody does.
fn settle_unknown(gateway: &Gateway, key: &str) {
    let listed = gateway.api_as(key, "GET", "/api/changes?status=outcome_unknown", None).1;
    for change in listed["changes"].as_array().unwrap() {
        let times = gateway.issues_titled(change["arguments"]["title"].as_str().unwrap());
        let outcome = if times == 1 { "applied" } else { "failed" };
        let settle = json!({ "outcome": outcome, "comment": "by a test", "version": change["version"] });
        let path = format!("/api/changes/{}/settle", change["id"].as_str().unwrap());
        let (status, settled) = gateway.api_as(key, "POST", &path, Some(&settle));
        assert_eq!(status, 200, "{settled}");
    }
}

/// Proposes and approves until told to stop or until the gateway is gone; returns the answers.
fn generate_load(
    address: SocketAddr,
    project: &str,
    key: &str,
    name: &str,
    stop: &AtomicBool,
    answered: &AtomicUsize,
) -> Vec<(String, String)> {
    let mut done = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let title = format!("{name} {n}");
        let arguments = json!({"projectId": project, "title": title, "type": "Story"}).to_string();
        let Ok(mut conn) = std::panic::catch_unwind(|| Conn::open(address)) else { break };
        conn.request("POST", "/tools/create_issue", &[mcp::JSON], arguments.as_bytes());
        let Some(answer) = conn.try_response().filter(|answer| answer.status < 300) else { continue };
        let text = answer.text();
        let Some(start) = text.find("chg_") else { continue };
        let change = text[start..].chars().take(28).collect::<String>();
        done.push((change.clone(), title));
        let bearer = format!("Bearer {key}");
        let headers = [("Authorization", bearer.as_str()), mcp::JSON];
        let body = json!({"decision": "approve", "version": 1}).to_string();
        conn.request("POST", &format!("/api/changes/{change}/decision"), &headers, body.as_bytes());
        conn.try_response();
        answered.fetch_add(1, Ordering::Relaxed);
    }
    done
}

#[test]
fn altered_trail_is_detected() {
    let (home, _, _) = prepare_pending_change("To be altered");
    verify_trail(home.path());
    let database =
        std::fs::read_dir(home.path().join("data")).unwrap().flatten().map(|entry| entry.path()).find(|path| {
            std::fs::read(path)
                .is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3\0") && bytes.windows(4).any(|w| w == b"chg_"))
        });
    let database = database.expect("the store");
    let connection = rusqlite::Connection::open(database).unwrap();
    let tables: Vec<String> = connection
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%audit%'")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let table = tables.first().expect("an audit table").clone();
    let columns: Vec<String> = connection
        .prepare(&format!("PRAGMA table_info({table})"))
        .unwrap()
        .query_map([], |row| row.get(1))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let actor = columns.iter().find(|column| column.contains("actor")).expect("who did it").clone();
    connection.execute(&format!("UPDATE {table} SET {actor} = 'somebody else'"), []).unwrap();
    drop(connection);
    let (code, out, err) = run(&["audit", "verify", "--data", home.path().join("data").to_str().unwrap()]);
    assert_ne!(code, Some(0), "{out}{err}");
}

#[test]
fn keys_created_while_running_survive_a_kill() {
    let gateway = Gateway::start();
    let key = gateway.create_key("reviewer", "dave");
    assert_eq!(gateway.api_as(&key, "GET", "/api/me", None).1["name"], "dave");
    let home = gateway.kill();
    let restarted = Gateway::on_home(home, &Options::default());
    assert_eq!(restarted.api_as(&key, "GET", "/api/me", None).0, 200);
    let second = create_key(&restarted.data(), "viewer", "eve");
    let (status, me) = restarted.api_as(&second, "GET", "/api/me", None);
    assert_eq!((status, me["role"].as_str(), me["mayDecide"].as_bool()), (200, Some("viewer"), Some(false)));
}
