//! How servers that are child processes end, and that nothing of them is left, whoever dies first.

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
fn lost(answer: Result<countersign_upstream::Response, LinkError>, why: &str) {
    match answer {
        Err(LinkError::Lost(said)) if said.contains(why) => {}
        other => panic!("{other:?} instead of {why}"),
    }
}

#[tokio::test]
async fn one_that_dies_in_mid_call_says_how() {
    for (method, params, why) in [
        ("suicide", "{}", "killed by signal 9"),
        ("exit", r#"{"status":3}"#, "exited unexpectedly with status 3"),
        ("exit", r#"{"status":0,"last":"{\"jsonrpc\":\"2.0\",\"id\":2,\"resu"}"#, "exited unexpectedly with status 0"),
    ] {
        let child = Child::start(&[]).await;
        let outgoing = child.outgoing("never", "{}");
        let other = child.link.request(&outgoing, Arc::new(Heard::default()));
        tokio::pin!(other);
        assert!(futures_util::poll!(&mut other).is_pending());
        lost(child.call(method, params).await, why);
        lost(soon("the other", other).await, why);
        child.ended().await;
        match child.call("echo", "{}").await {
            Err(LinkError::Unreachable(said)) => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
        child.gone().await;
    }
}

#[tokio::test]
async fn its_last_words_count() {
    let child = Child::start(&[]).await;
    // With processes that keep its stdin and stdout, so that neither ends with it.
    child.result("hold", "{}").await;
    let last = r#"{"jsonrpc":"2.0","id":2,"result":{"last":"words"}}"#;
    let answer = child.value("exit", &json!({ "status": 0, "last": format!("{last}\n") }).to_string()).await;
    assert_eq!(answer, json!({ "last": "words" }));
    child.ended().await;
    child.gone().await;
    // Even without the end of the line.
    let child = Child::start(&[]).await;
    let last = last.replace(":2,", ":1,");
    let answer = child.value("exit", &json!({ "status": 0, "last": last }).to_string()).await;
    assert_eq!(answer, json!({ "last": "words" }));
}

#[tokio::test]
async fn closing_stdout_is_the_end() {
    let child = Child::start(&["stay", "ignore-term"]).await;
    let answer = child.call("close-stdout", "{}").await;
    lost(answer, "closed its stdout");
    child.ended().await;
    child.gone().await;
}

#[tokio::test]
async fn one_that_will_not_leave_is_killed_with_all_it_started() {
    let all = [&[][..], &["stay"], &["stay", "ignore-term"], &["daemon"], &["daemon", "stay", "ignore-term"]];
    futures_util::future::join_all(all.into_iter().flat_map(|flags| [(flags, false), (flags, true)]).map(
        |(flags, dropped)| async move {
            let child = Child::start(flags).await;
            child.result("echo", "{}").await;
            let marker = child.marker.clone();
            let daemon = usize::from(flags.contains(&"daemon"));
            assert_eq!(alive(&marker).len(), 2 + daemon, "the guard, the server and its daemon: {flags:?}");
            if dropped {
                drop(child);
            } else {
                child.link.close();
                child.ended().await;
            }
            until("everything gone", || alive(&marker).is_empty()).await;
        },
    ))
    .await;
}

#[tokio::test]
async fn what_a_server_leaves_behind_is_ended() {
    let child = Child::start(&["daemon"]).await;
    child.result("daemon", "{}").await;
    assert_eq!(alive(&child.marker).len(), 4);
    lost(child.call("exit", r#"{"status":1}"#).await, "status 1");
    child.gone().await;
}

#[tokio::test]
async fn one_that_flees_is_caught() {
    let child = Child::start(&[]).await;
    child.result("flee", "{}").await;
    let marker = child.marker.clone();
    assert!(alive(&marker).len() >= 2);
    drop(child);
    until("all gone", || alive(&marker).is_empty()).await;
    // Between two of its lives it could be missed once.
    for _ in 0..100 {
        assert!(alive(&marker).is_empty());
    }
}

#[test]
fn a_guard_that_nobody_needs_says_so() {
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
    child.ended().await;
    child.gone().await;
}

#[tokio::test]
async fn a_guard_that_is_terminated_ends_its_server() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let child = Child::start(&["daemon"]).await;
        child.result("echo", "{}").await;
        kill(guard(&child.marker), signal);
        child.ended().await;
        child.gone().await;
    }
}

#[tokio::test]
async fn a_guard_that_is_killed_takes_its_server_along() {
    let child = Child::start(&["stay", "ignore-term"]).await;
    child.result("echo", "{}").await;
    let outgoing = child.outgoing("never", "{}");
    let call = child.link.request(&outgoing, Arc::new(Heard::default()));
    tokio::pin!(call);
    assert!(futures_util::poll!(&mut call).is_pending());
    kill(guard(&child.marker), Signal::KILL);
    lost(soon("an error", call).await, "guard");
    child.gone().await;
}

#[tokio::test]
async fn flapping_leaves_nothing() {
    let marker = marker();
    let data = tempfile::tempdir().unwrap();
    for status in 0..10 {
        let mut config = config(&marker, &[]);
        let countersign_config::UpstreamTarget::Command { args, .. } = &mut config.target else { panic!("no command") };
        *args = vec!["-c".to_owned(), format!("import sys; sys.exit({status})"), marker.clone()];
        let connector = connector(config, data.path());
        let link: Arc<dyn Link> = soon("a start", connector.connect(Arc::new(Heard::default()))).await.unwrap();
        let outgoing = countersign_upstream::Outgoing::new(1, "echo", None);
        let answer = link.request(&outgoing, Arc::new(Heard::default()));
        match soon("an end", answer).await {
            Err(LinkError::Lost(why) | LinkError::Unreachable(why)) => {
                assert!(why.contains(&format!("status {status}")) || why.contains("ending it"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        soon("its end", link.closed().cancelled()).await;
    }
    until("all gone", || alive(&marker).is_empty()).await;
}

#[test]
fn a_thread_that_stops_leaves_nothing() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (marker, link) = first.block_on(async {
        let child = Child::start(&["daemon", "stay", "ignore-term"]).await;
        child.result("echo", "{}").await;
        (child.marker.clone(), child.link.clone())
    });
    drop(first);
    runtime().block_on(async {
        soon("its end", link.closed().cancelled()).await;
        until("all gone", || alive(&marker).is_empty()).await;
    });
}

#[test]
fn a_server_may_tidy_up_although_the_gateway_is_gone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let child = runtime.block_on(async {
        let child = Child::start(&["tidy"]).await;
        child.result("echo", "{}").await;
        child
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(child.gone());
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
async fn a_gateway_that_is_killed_leaves_nothing() {
    for signal in [Signal::KILL, Signal::TERM, Signal::ABORT] {
        let marker = marker();
        let mut gateway = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "upstream_child_ends::gateway_to_be_killed", "--ignored", "--nocapture"])
            .env("TEST_MARKER", &marker)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(gateway.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "it did not start");
        assert_eq!(alive(&marker).len(), 4, "guard, server, two daemons");
        kill(gateway.id().try_into().unwrap(), signal);
        gateway.wait().unwrap();
        until("all gone", || alive(&marker).is_empty()).await;
    }
}
