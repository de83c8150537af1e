//! Tests of the end of child processes: nothing of them is left, whoever dies first.

use std::{
    io::BufRead,
    process::{Command, Stdio},
    sync::Arc,
};

use countersign_upstream::{Connector, Link, LinkError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::children::*;

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[track_caller]
fn assert_lost(answer: Result<countersign_upstream::Response, LinkError>, why: &str) {
    match answer {
        Err(LinkError::Lost(said)) if said.contains(why) => {}
        other => panic!("{other:?} instead of {why}"),
    }
}

#[tokio::test]
async fn death_during_a_call_reports_the_cause() {
    for (method, params, why) in [
        ("suicide", "{}", "killed by signal 9"),
        ("exit", r#"{"status":3}"#, "exited unexpectedly with status 3"),
        ("exit", r#"{"status":0,"last":"{\"jsonrpc\":\"2.0\",\"id\":2,\"resu"}"#, "exited unexpectedly with status 0"),
    ] {
        let child = Child::start(&[]).await;
        let outgoing = child.new_outgoing("never", "{}");
        let other = child.link.request(&outgoing, Arc::new(RecordingListener::default()));
        tokio::pin!(other);
        assert!(futures_util::poll!(&mut other).is_pending());
        assert_lost(child.call(method, params).await, why);
        assert_lost(within_max_wait("the other", other).await, why);
        child.wait_for_end().await;
        match child.call("echo", "{}").await {
            Err(LinkError::Unreachable(said)) => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
        child.wait_until_gone().await;
    }
}

#[tokio::test]
async fn last_output_of_a_dying_child_counts() {
    let child = Child::start(&[]).await;
    // Other processes keep its stdin and stdout open, so that neither ends with it.
    child.result("hold", "{}").await;
    let last = r#"{"jsonrpc":"2.0","id":2,"result":{"last":"words"}}"#;
    let answer = child.value("exit", &json!({ "status": 0, "last": format!("{last}\n") }).to_string()).await;
    assert_eq!(answer, json!({ "last": "words" }));
    child.wait_for_end().await;
    child.wait_until_gone().await;
    // Even without a final line break.
    let child = Child::start(&[]).await;
    let last = last.replace(":2,", ":1,");
    let answer = child.value("exit", &json!({ "status": 0, "last": last }).to_string()).await;
    assert_eq!(answer, json!({ "last": "words" }));
}

#[tokio::test]
async fn closed_stdout_ends_the_child() {
    let child = Child::start(&["stay", "ignore-term"]).await;
    let answer = child.call("close-stdout", "{}").await;
    assert_lost(answer, "closed its stdout");
    child.wait_for_end().await;
    child.wait_until_gone().await;
}

#[tokio::test]
async fn stubborn_child_is_killed_with_its_processes() {
    let all = [&[][..], &["stay"], &["stay", "ignore-term"], &["daemon"], &["daemon", "stay", "ignore-term"]];
    futures_util::future::join_all(all.into_iter().flat_map(|flags| [(flags, false), (flags, true)]).map(
        |(flags, dropped)| async move {
            let child = Child::start(flags).await;
            child.result("echo", "{}").await;
            let marker = child.marker.clone();
            let daemon = usize::from(flags.contains(&"daemon"));
            assert_eq!(processes_with(&marker).len(), 2 + daemon, "the guard, the server and its daemon: {flags:?}");
            if dropped {
                drop(child);
            } else {
                child.link.close();
                child.wait_for_end().await;
            }
            wait_until("everything gone", || processes_with(&marker).is_empty()).await;
        },
    ))
    .await;
}

#[tokio::test]
async fn leftover_processes_are_ended() {
    let child = Child::start(&["daemon"]).await;
    child.result("daemon", "{}").await;
    assert_eq!(processes_with(&child.marker).len(), 4);
    assert_lost(child.call("exit", r#"{"status":1}"#).await, "status 1");
    child.wait_until_gone().await;
}

#[tokio::test]
async fn daemonized_child_is_killed() {
    let child = Child::start(&[]).await;
    child.result("flee", "{}").await;
    let marker = child.marker.clone();
    assert!(processes_with(&marker).len() >= 2);
    drop(child);
    wait_until("all gone", || processes_with(&marker).is_empty()).await;
    // It could be missed once between two of its forks.
    for _ in 0..100 {
        assert!(processes_with(&marker).is_empty());
    }
}

#[test]
fn unneeded_guard_explains_itself() {
    for args in [&["__guard"][..], &["__guard", "--"], &["__guard", "--", "true"]] {
        let out = Command::new(gateway()).args(args).stdin(Stdio::null()).output().unwrap();
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&out.stderr).contains("started by the gateway"));
    }
}

#[tokio::test]
async fn stopped_processes_are_ended_too() {
    let child = Child::start(&[]).await;
    let server = child.value("where", "{}").await["pid"].as_i64().unwrap().try_into().unwrap();
    kill(server, Signal::STOP);
    child.link.close();
    child.wait_for_end().await;
    child.wait_until_gone().await;
}

#[tokio::test]
async fn terminated_guard_ends_its_server() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let child = Child::start(&["daemon"]).await;
        child.result("echo", "{}").await;
        kill(guard_of(&child.marker), signal);
        child.wait_for_end().await;
        child.wait_until_gone().await;
    }
}

#[tokio::test]
async fn killed_guard_takes_its_server_along() {
    let child = Child::start(&["stay", "ignore-term"]).await;
    child.result("echo", "{}").await;
    let outgoing = child.new_outgoing("never", "{}");
    let call = child.link.request(&outgoing, Arc::new(RecordingListener::default()));
    tokio::pin!(call);
    assert!(futures_util::poll!(&mut call).is_pending());
    kill(guard_of(&child.marker), Signal::KILL);
    assert_lost(within_max_wait("an error", call).await, "guard");
    child.wait_until_gone().await;
}

#[tokio::test]
async fn repeated_failures_leave_no_process() {
    let marker = new_marker();
    let data = tempfile::tempdir().unwrap();
    for status in 0..10 {
        let mut config = config(&marker, &[]);
        let countersign_config::UpstreamTarget::Command { args, .. } = &mut config.target else { panic!("no command") };
        *args = vec!["-c".to_owned(), format!("import sys; sys.exit({status})"), marker.clone()];
        let connector = connector(config, data.path());
        let link: Arc<dyn Link> =
            within_max_wait("a start", connector.connect(Arc::new(RecordingListener::default()))).await.unwrap();
        let outgoing = countersign_upstream::OutgoingRequest::new(1, "echo", None);
        let answer = link.request(&outgoing, Arc::new(RecordingListener::default()));
        match within_max_wait("an end", answer).await {
            Err(LinkError::Lost(why) | LinkError::Unreachable(why)) => {
                assert!(why.contains(&format!("status {status}")) || why.contains("ending it"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        within_max_wait("its end", link.closed().cancelled()).await;
    }
    wait_until("all gone", || processes_with(&marker).is_empty()).await;
}

#[test]
fn stopped_thread_leaves_no_process() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (marker, link) = first.block_on(async {
        let child = Child::start(&["daemon", "stay", "ignore-term"]).await;
        child.result("echo", "{}").await;
        (child.marker.clone(), child.link.clone())
    });
    drop(first);
    runtime().block_on(async {
        within_max_wait("its end", link.closed().cancelled()).await;
        wait_until("all gone", || processes_with(&marker).is_empty()).await;
    });
}

#[test]
fn orphaned_server_may_clean_up() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let child = runtime.block_on(async {
        let child = Child::start(&["tidy"]).await;
        child.result("echo", "{}").await;
        child
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(child.wait_until_gone());
    assert!(child.data().join("servers/test/tidied").exists());
}

/// The gateway of the next test: a process with a child, to be killed.
#[test]
#[ignore = "started by the next test"]
fn gateway_to_be_killed() {
    let Ok(marker) = std::env::var("TEST_MARKER") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = config(&marker, &["daemon", "stay", "ignore-term"]);
        let child = Child::start_with(&marker, |data| connector(config, data)).await;
        child.result("daemon", "{}").await;
        println!("\nready");
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn killed_gateway_leaves_no_process() {
    for signal in [Signal::KILL, Signal::TERM, Signal::ABORT] {
        let marker = new_marker();
        let mut gateway = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "upstream_child_ends::gateway_to_be_killed", "--ignored", "--nocapture"])
            .env("TEST_MARKER", &marker)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(gateway.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "it did not start");
        assert_eq!(processes_with(&marker).len(), 4, "guard, server, two daemons");
        kill(gateway.id().try_into().unwrap(), signal);
        gateway.wait().unwrap();
        wait_until("all gone", || processes_with(&marker).is_empty()).await;
    }
}
