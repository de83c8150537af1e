//! Tests of servers that are child processes: messages over their pipes.

use std::sync::Arc;

use countersign_child::environment::RUNNER_VARIABLES;
use countersign_config::UpstreamTarget;
use countersign_protocol::rpc_error::RpcError;
use countersign_upstream::{Connector, LinkError, Response, child::ChildConnector};
use serde_json::{Value, json, value::RawValue};
use support::children::*;

#[tokio::test]
async fn concurrent_requests_are_answered_byte_for_byte() {
    let child = Child::start(&[]).await;
    // The server's formatting is preserved: order, numbers, escapes and spaces.
    let line = r#"{"jsonrpc":"2.0","result": {"b":12345678901234567890123,"a":1.0,"\u0061":"\u00e9"} ,"id":$ID,"x":1}"#;
    let result = child.result("raw", &json!({ "lines": [line] }).to_string()).await;
    assert_eq!(result, r#"{"b":12345678901234567890123,"a":1.0,"\u0061":"\u00e9"}"#);
    let params: Vec<String> = (0..100).map(|n| format!("{{\n\"n\": {n}\r\n}}")).collect();
    let calls = params.iter().map(|params| child.value("echo", params));
    for (n, answer) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(answer, json!({ "n": n }));
    }
    match child.call("unknown", "{}").await {
        Ok(Response::Error(RpcError { code: -32601, message, data: Some(data), status: None })) => {
            assert_eq!((&*message, data.get()), ("no such method", r#"{"method": "unknown"}"#));
        }
        other => panic!("{other:?}"),
    }
    assert!(!child.link.closed().is_cancelled());
    child.link.close();
    child.wait_for_end().await;
    child.wait_until_gone().await;
    assert!(matches!(child.call("echo", "{}").await, Err(LinkError::Unreachable(_))));
    assert!(matches!(child.link.send_initialized().await, Err(LinkError::Unreachable(_))));
}

#[tokio::test]
async fn unstartable_program_is_reported() {
    let data = tempfile::tempdir().unwrap();
    let connect = async |program: &str, folder: Option<&str>| {
        let mut config = config(&new_marker(), &[]);
        let UpstreamTarget::Command { command, cwd, .. } = &mut config.target else { panic!("no command") };
        *command = program.to_owned();
        *cwd = folder.map(Into::into);
        refusal(&connector(config, data.path())).await
    };
    let why = connect("no-such-program-anywhere", None).await;
    assert!(why.contains("`no-such-program-anywhere`") && why.contains("no such program"), "{why}");
    let why = connect(SERVER, None).await;
    assert!(why.contains("Permission denied"), "{why}");
    let why = connect("python3", Some("/nonexistent/folder")).await;
    assert!(why.contains("/nonexistent/folder"), "{why}");
    // The program is not a guard.
    let other = connector(config(&new_marker(), &[]), data.path()).with_guard_program("/bin/true".as_ref());
    let why = refusal(&other).await;
    assert!(why.contains("guard"), "{why}");
}

async fn refusal(connector: &ChildConnector) -> String {
    match within_max_wait("a refusal", connector.connect(Arc::new(RecordingListener::default()))).await {
        Err(LinkError::Unreachable(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it started"),
    }
}

#[tokio::test]
async fn child_inherits_little_from_the_gateway() {
    let marker = new_marker();
    let mut config = config(&marker, &[]);
    set_env(&mut config, "TOKEN", "s3cret value");
    set_env(&mut config, "LANG", "xx_XX");
    let child = Child::start_with(&marker, |data| connector(config, data)).await;
    let guard = guard_of(&marker);
    let environ = std::fs::read_to_string(format!("/proc/{guard}/environ")).unwrap();
    let env: std::collections::BTreeMap<&str, &str> =
        environ.split_terminator('\0').filter_map(|entry| entry.split_once('=')).collect();
    assert_eq!((env["TOKEN"], env["LANG"]), ("s3cret value", "xx_XX"));
    let allowed = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME", "TOKEN", "MIMALLOC_ARENA_RESERVE"];
    let of_runners = |name: &str| RUNNER_VARIABLES.contains(&name.to_ascii_uppercase().as_str());
    for name in env.keys() {
        assert!(allowed.contains(name) || name.starts_with("LC_") || of_runners(name), "{name}");
    }
    let process = child.value("where", "{}").await;
    assert_eq!(process["env"]["TOKEN"], "s3cret value");
    // The guard's own variable is not passed to the server.
    assert!(process["env"].get("MIMALLOC_ARENA_RESERVE").is_none());
    assert_eq!(process["cwd"].as_str().unwrap(), child.data().join("servers/test").to_str().unwrap());
    assert_eq!(process["group"], process["pid"], "a group of its own");
    // Neither the guard's socket nor another child's pipes.
    let other = Child::start(&[]).await;
    for child in [&child, &other] {
        let fds = child.value("fds", "{}").await;
        let fds: Vec<(&String, &str)> =
            fds["fds"].as_object().unwrap().iter().map(|(fd, to)| (fd, to.as_str().unwrap())).collect();
        assert!(fds.iter().all(|(_, to)| !to.starts_with("socket:")), "{fds:?}");
        assert_eq!(
            fds.iter().filter(|(fd, to)| fd.len() == 1 && *fd.as_str() < *"3" && to.starts_with("pipe:")).count(),
            3
        );
        let inherited = inheritable_pipes();
        for (fd, to) in fds {
            assert!(
                fd.len() == 1 && *fd.as_str() < *"3" || !to.starts_with("pipe:") || inherited.contains(&to.to_owned()),
                "{fd} {to}"
            );
        }
    }
}

/// Pipes that this process inherited from its own parent: children inherit cargo's as well.
fn inheritable_pipes() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| {
        let info = std::path::Path::new("/proc/self/fdinfo").join(entry.file_name());
        let flags = std::fs::read_to_string(info).unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0").trim().to_owned();
        u32::from_str_radix(&flags, 8).unwrap() & 0o2_000_000 == 0
    });
    links.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned())).collect()
}

#[tokio::test]
async fn dropped_call_is_cancelled_and_late_answer_ignored() {
    let child = Child::start(&[]).await;
    let listener = Arc::new(RecordingListener::default());
    let hung = child.new_outgoing("never", "{}");
    let id = hung.id;
    {
        let mut call = child.link.request(&hung, listener.clone());
        tokio::select! {
            answer = &mut call => panic!("{answer:?}"),
            () = wait_until("progress", || !listener.methods().is_empty()) => {}
        }
    }
    let late = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"late":true}}}}"#);
    let next = r#"{"jsonrpc":"2.0","id":$ID,"result":{"late":false}}"#;
    let answer = child.value("raw", &json!({ "lines": [late, next] }).to_string()).await;
    assert_eq!(answer, json!({ "late": false }));
    let notified = child.value("notified", "{}").await;
    assert_eq!(
        notified,
        json!({ "notified": [{ "method": "notifications/cancelled", "params": { "requestId": id, "reason": "the client no longer waits" } }] })
    );
}

#[tokio::test]
async fn garbage_and_stray_answers_do_no_harm() {
    let child = Child::start(&["up"]).await;
    wait_until("what nobody asked for", || child.unsolicited.methods() == ["notifications/up"]).await;
    let outgoing = child.new_outgoing("never", "{}");
    let other = child.link.request(&outgoing, Arc::new(RecordingListener::default()));
    tokio::pin!(other);
    let lines = [
        "Server listening on stdio",
        "{\"jsonrpc\":",
        "",
        "\u{1b}[31mred\u{1b}[0m\r",
        r#"{"jsonrpc":"2.0","id":123456,"result":{"wrong":1}}"#,
        r#"{"jsonrpc":"2.0","id":"nobody","result":{"wrong":2}}"#,
        r#"{"jsonrpc":"2.0","id":null,"result":{"wrong":3}}"#,
        r#"[]"#,
        r#"[{"jsonrpc":"2.0","id":$ID,"result":{"right":1}}]"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"second":1}}"#,
    ];
    let answer = child.value("raw", &json!({ "lines": lines }).to_string()).await;
    assert_eq!(answer, json!({ "right": 1 }));
    let not_utf8: Vec<u8> = b"\xff\xfe\x00{\"jsonrpc\"\n\0\0\0\n".to_vec();
    assert_eq!(child.value("bytes", &json!({ "bytes": not_utf8 }).to_string()).await, json!({}));
    match child.call("raw", r#"{"lines":["{\"jsonrpc\":\"2.0\",\"id\":$ID}"]}"#).await {
        Err(LinkError::Protocol(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(futures_util::poll!(&mut other).is_pending());
    assert_eq!(child.value("echo", r#"{"still":"here"}"#).await, json!({ "still": "here" }));
    assert_eq!(child.unsolicited.methods(), ["notifications/up"]);
}

#[tokio::test]
async fn progress_precedes_results_and_questions_are_answered() {
    let child = Child::start(&[]).await;
    let recorder = Arc::new(RecordingListener::default());
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$ID,"progress":1.50}}"#;
    let lines = [progress, progress, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#];
    let outgoing = child.new_outgoing("raw", &json!({ "lines": lines }).to_string());
    let id = outgoing.id;
    within_max_wait("an answer", child.link.request(&outgoing, recorder.clone())).await.unwrap();
    let params = format!(r#"{{"progressToken":{id},"progress":1.50}}"#);
    let expected = ("notifications/progress".to_owned(), params);
    assert_eq!(*recorder.notifications.lock(), [expected.clone(), expected]);

    // From another thread: the child's tasks stay on theirs.
    let (link, outgoing) = (child.link.clone(), child.new_outgoing("ask", r#"{"ask":"elicitation/create"}"#));
    let recorder = Arc::new(RecordingListener::default());
    let listener = recorder.clone();
    let call = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(link.request(&outgoing, listener))
    });
    wait_until("a question", || !recorder.requests.lock().is_empty()).await;
    let question = recorder.requests.lock().pop().unwrap();
    assert_eq!((&*question.method, question.id.as_json()), ("elicitation/create", "\"q\""));
    let answer = r#"{"action":"accept","content":{"n":12345678901234567890123}}"#;
    question.reply.answer(Ok(RawValue::from_string(answer.to_owned()).unwrap()));
    let Ok(Response::Result(result)) = within_max_wait("an answer", call).await.unwrap() else { panic!("no result") };
    let result: Value = serde_json::from_str(result.get()).unwrap();
    assert_eq!(result["answer"]["result"]["action"], "accept");
    // Without a client the question is declined; a ping is answered by the link.
    let answer = child.value("ask", r#"{"ask":"ping","as":7}"#).await;
    assert_eq!(answer, json!({ "answer": { "jsonrpc": "2.0", "id": 7, "result": {} } }));
}

#[tokio::test]
async fn child_that_reads_nothing_stops_no_other() {
    let deaf = Child::start(&["ignore-term"]).await;
    let listener = Arc::new(RecordingListener::default());
    let send = |method, params: &str| {
        let (outgoing, link, listener) = (deaf.new_outgoing(method, params), Arc::clone(&deaf.link), listener.clone());
        Box::pin(async move { link.request(&outgoing, listener).await })
    };
    let mut calls = vec![send("deaf", "{}")];
    assert!(futures_util::poll!(&mut calls[0]).is_pending());
    wait_until("deaf", || !listener.methods().is_empty()).await;
    let large = json!({ "x": "x".repeat(5 << 20) }).to_string();
    let refused = loop {
        assert!(calls.len() < 100, "it takes everything");
        let mut call = send("echo", &large);
        match futures_util::poll!(&mut call) {
            std::task::Poll::Pending => calls.push(call),
            std::task::Poll::Ready(answer) => break answer,
        }
    };
    assert!(matches!(refused, Err(LinkError::Unreachable(_))), "{refused:?}");
    let other = Child::start(&[]).await;
    assert_eq!(other.value("echo", r#"{"n":1}"#).await, json!({ "n": 1 }));
    // It does not read that it should end either, so it is killed. Unsent requests are reported as such.
    deaf.link.close();
    let answers = within_max_wait("the end", futures_util::future::join_all(calls)).await;
    assert!(matches!(&answers[0], Err(LinkError::Lost(_))), "{:?}", answers[0]);
    assert!(matches!(answers.last(), Some(Err(LinkError::Unreachable(_)))), "{:?}", answers.last());
    deaf.wait_until_gone().await;
}

#[tokio::test]
async fn stderr_is_logged_without_secrets() {
    let log = LogBuffer::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _default = tracing::subscriber::set_default(subscriber);
    // While only one subscriber exists, a log statement that a thread of another test reaches first is off for good.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let marker = new_marker();
    let mut config = config(&marker, &[]);
    set_env(&mut config, "TOKEN", "hunter2");
    let child = Child::start_with(&marker, |data| connector(config, data)).await;
    let line = "token=hunter2 \u{1b}[2J\u{202e}";
    child.result("shout", &json!({ "lines": 1, "line": line }).to_string()).await;
    child.result("raw", r#"{"lines":["oops hunter2","{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":1}"]}"#).await;
    wait_until("a line", || log.text().contains(r"token=[secret] \u{1b}[2J\u{202e}")).await;
    wait_until("garbage", || log.text().contains("oops [secret]")).await;
    child.result("shout", &json!({ "lines": 5000, "line": "chatter" }).to_string()).await;
    child.result("shout", &json!({ "lines": 1, "line": "x".repeat(1 << 20) }).to_string()).await;
    child.link.close();
    child.wait_until_gone().await;
    wait_until("a count", || log.text().contains("lines were left out")).await;
    let text = log.text();
    assert!(text.contains("countersign_upstream") && text.contains("upstream=test"), "{text}");
    assert!(!text.contains("hunter2") && text.len() < 100_000);
    assert!(text.matches("chatter").count() < 1000);
}

#[tokio::test]
async fn child_that_writes_100_mib_is_ended() {
    let marker = new_marker();
    let config = config(&marker, &[]);
    let child = Child::start_with(&marker, |data| limited_connector(config, data, 1 << 20)).await;
    // Just below the limit is fine.
    child.result("huge", &json!({ "bytes": 15 << 16 }).to_string()).await;
    let outgoing = child.new_outgoing("never", "{}");
    let other = child.link.request(&outgoing, Arc::new(RecordingListener::default()));
    tokio::pin!(other);
    assert!(futures_util::poll!(&mut other).is_pending());
    match child.call("huge", &json!({ "bytes": 100 << 20 }).to_string()).await {
        Err(LinkError::Protocol(why)) => assert!(why.contains("1048576 bytes"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(within_max_wait("the other", other).await, Err(LinkError::Protocol(_))));
    child.wait_for_end().await;
    child.wait_until_gone().await;
}
