//! Tests of time limits, retries, the circuit breaker and the queue.

use std::{
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{json, value::RawValue};

use super::{execution::run_approved_change, *};
use crate::link::LinkError;
use countersign_protocol::{ErrorKind, rpc_error::RpcError};

/// Makes the server fail `times` calls with this error, and then answer.
pub(super) fn fail_calls(fake: &FakeServer, times: usize, error: LinkError) {
    let left = AtomicUsize::new(times);
    fake.answer_with(move |_| {
        let fails = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        Box::pin(ready(if fails { Err(error.clone()) } else { fake::ok(json!({ "content": [] })) }))
    });
}

#[actix::test]
async fn only_unsent_calls_are_retried() {
    let gone = || LinkError::SessionGone;
    let unreachable = || LinkError::Unreachable("x".into());
    let lost = || LinkError::Lost("x".into());
    for (error, times, reads, sends) in [
        (unreachable(), 2, false, Ok(3)),
        (unreachable(), 3, false, Err("not_applied")),
        (gone(), 1, false, Ok(2)),
        (lost(), 1, false, Err("unknown")),
        (lost(), 1, true, Ok(2)),
        (lost(), 2, true, Err("unknown")),
        (LinkError::Protocol("x".into()), 1, true, Err("unknown")),
        (LinkError::Status { status: 503, body: String::new() }, 1, true, Err("unknown")),
        (LinkError::Status { status: 408, body: String::new() }, 1, true, Err("unknown")),
        (LinkError::Status { status: 401, body: String::new() }, 1, true, Err("not_applied")),
    ] {
        let fake = modern();
        let upstream = start(&fake).await;
        fail_calls(&fake, times, error.clone());
        let outgoing = OutgoingRequest { is_repeatable: reads, ..request(&upstream, "tools/call") };
        let result = upstream.call(&agent("a"), &outgoing, Arc::new(RecordingListener::default())).await;
        let calls = fake.request_count("tools/call");
        match sends {
            Ok(sends) => assert_eq!((result.is_ok(), calls), (true, sends), "{error}"),
            Err(outcome) => {
                let failed = result.unwrap_err();
                assert_eq!(failed.kind, ErrorKind::UpstreamUnavailable, "{error}");
                assert_eq!(failed.data["outcome"], outcome, "{error}");
            }
        }
        tokio::time::resume();
    }
}

#[actix::test]
async fn ended_session_is_reopened() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    fail_calls(&fake, 1, LinkError::SessionGone);
    let caller = in_session(agent("a"), "s");
    call(&upstream, &caller).await.unwrap();
    // The link of the gateway, the one that had ended, and its replacement.
    assert_eq!((fake.link_count(), fake.open_links().len()), (3, 2));
}

#[actix::test]
async fn call_is_not_repeated_if_tools_changed() {
    for (fake, error, outcome) in [
        (FakeServer::new(Era::Legacy, LinkKind::Streams), LinkError::SessionGone, "not_applied"),
        (legacy(), LinkError::Lost("x".into()), "unknown"),
    ] {
        let upstream = start(&fake).await;
        let read = || {
            let upstream = Arc::clone(&upstream);
            async move {
                let outgoing = OutgoingRequest { is_repeatable: true, ..request(&upstream, "tools/call") };
                upstream.call(&agent("a"), &outgoing, Arc::new(RecordingListener::default())).await
            }
        };
        fail_calls(&fake, 1, error.clone());
        assert!(read().await.is_ok());
        assert_eq!(fake.request_count("tools/call"), 2);
        fail_calls(&fake, 1, error);
        fake.lists.lock().insert("tools/list", fake::tools(&["echo", "more"]));
        let failed = read().await.unwrap_err();
        assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &outcome.into()));
        assert_eq!(fake.request_count("tools/call"), 3);
        // The next call is decided on with the new tools.
        assert!(read().await.is_ok());
        tokio::time::resume();
    }
}

#[actix::test]
async fn redeployed_server_gets_no_call_for_its_old_tools() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    let caller = in_session(agent("a"), "s");
    call(&upstream, &caller).await.unwrap();
    fake.end_sessions();
    fake.lists.lock().insert("tools/list", fake::tools(&["echo", "more"]));
    let failed = call(&upstream, &caller).await.unwrap_err();
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &"not_applied".into()));
    assert_eq!((fake.request_count("tools/call"), upstream.status().tools), (1, 2));
}

#[actix::test]
async fn new_session_of_other_version_waits_for_its_tools() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    call(&upstream, &in_session(agent("a"), "s")).await.unwrap();
    *fake.version.lock() = "2";
    fake.lists.lock().insert("tools/list", fake::tools(&["echo", "more"]));
    let caller = in_session(agent("a"), "t");
    let refused = call(&upstream, &caller).await.unwrap_err();
    assert_eq!((refused.kind, &refused.data["outcome"]), (ErrorKind::UpstreamUnavailable, &"not_applied".into()));
    assert_eq!((fake.request_count("tools/call"), upstream.status().tools), (1, 2));
    // The next call is decided on with the new tools.
    call(&upstream, &caller).await.unwrap();
    assert_eq!(fake.request_count("tools/call"), 2);
}

#[actix::test]
async fn timed_out_call_is_cancelled_at_server() {
    let fake = modern();
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(pending()));
    let began = tokio::time::Instant::now();
    let error = call(&upstream, &agent("a")).await.unwrap_err();
    assert_eq!((error.kind, &error.data["outcome"]), (ErrorKind::Timeout, &"unknown".into()));
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(fake.dropped_requests.load(Ordering::SeqCst), 1);
    // A client that disconnects has the same effect.
    let _ = tokio::time::timeout(Duration::from_secs(1), call(&upstream, &agent("a"))).await;
    assert_eq!(fake.dropped_requests.load(Ordering::SeqCst), 2);
    assert_eq!(upstream.status().in_flight, 0);
}

#[actix::test]
async fn timeout_is_suspended_while_server_waits_for_answer() {
    let fake = legacy();
    let upstream = start(&fake).await;
    fake.answer_with(|request| {
        Box::pin(async move {
            let (question, answer) = fake::question();
            request.listener.handle_request(question);
            assert!(answer.await.unwrap().is_ok());
            fake::ok(json!({ "content": [] }))
        })
    });
    let listener = Arc::new(RecordingListener::default());
    let caller = askable("a");
    let (result, ()) = tokio::join!(call_with_listener(&upstream, &caller, listener.clone()), async {
        seconds(250).await;
        listener.take_request().reply.answer(Ok(Box::<RawValue>::default()));
    });
    assert!(result.is_ok());
}

#[actix::test]
async fn failing_server_opens_circuit() {
    let fake = modern();
    let upstream = start(&fake).await;
    fail_calls(&fake, 1000, LinkError::Status { status: 500, body: String::new() });
    for _ in 0..5 {
        assert_eq!(call(&upstream, &agent("a")).await.unwrap_err().kind, ErrorKind::UpstreamUnavailable);
    }
    let sent = fake.request_count("tools/call");
    let error = call(&upstream, &agent("a")).await.unwrap_err();
    assert_eq!((error.kind, &error.data["outcome"]), (ErrorKind::CircuitOpen, &"not_applied".into()));
    assert!((1..=11).contains(&error.data["retryAfter"].as_u64().unwrap()));
    assert_eq!(fake.request_count("tools/call"), sent);
    assert_eq!(upstream.status().breaker, "open");
    // The server answers the gateway's own requests, so only time closes the circuit.
    seconds(5).await;
    assert_eq!((upstream.status().status, upstream.status().breaker), ("up", "open"));
    seconds(6).await;
    fail_calls(&fake, 0, LinkError::SessionGone);
    call(&upstream, &agent("a")).await.unwrap();
    assert_eq!(upstream.status().breaker, "closed");
}

#[actix::test]
async fn unreachable_stateless_server_recovers_on_answer() {
    let fake = modern();
    let upstream = start(&fake).await;
    fake.set_unreachable(true);
    for _ in 0..5 {
        assert_eq!(call(&upstream, &agent("a")).await.unwrap_err().kind, ErrorKind::UpstreamUnavailable);
    }
    assert_eq!(call(&upstream, &agent("a")).await.unwrap_err().kind, ErrorKind::CircuitOpen);
    seconds(2).await;
    assert_ne!(upstream.status().status, "up");
    fake.set_unreachable(false);
    seconds(5).await;
    assert_eq!((upstream.status().status, upstream.status().breaker), ("up", "closed"));
    call(&upstream, &agent("a")).await.unwrap();
}

#[actix::test]
async fn fallback_text_never_answers_approved_change() {
    let fake = modern();
    let upstream =
        start_with(UpstreamConfig { fallback_text: Some("try \"later\"".into()), ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    fail_calls(&fake, 1000, LinkError::Status { status: 500, body: String::new() });
    for _ in 0..5 {
        let _ = call(&upstream, &agent("a")).await;
    }
    assert_eq!(call(&upstream, &agent("a")).await.unwrap()["content"][0]["text"], "try \"later\"");
    let prompt =
        upstream.call(&agent("a"), &request(&upstream, "prompts/get"), Arc::new(RecordingListener::default())).await;
    assert_eq!(prompt.unwrap_err().kind, ErrorKind::CircuitOpen);
    assert_eq!(run_approved_change(&upstream).await.unwrap_err().kind, ErrorKind::CircuitOpen);
}

#[actix::test]
async fn approved_change_probes_session_before_sending() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    let gone = AtomicUsize::new(1);
    fake.answer_with(move |request| {
        let first = request.method == "ping" && gone.swap(0, Ordering::SeqCst) == 1;
        Box::pin(ready(if first { Err(LinkError::SessionGone) } else { fake::ok(json!({ "content": [] })) }))
    });
    run_approved_change(&upstream).await.unwrap();
    assert_eq!(fake.request_count("tools/call"), 1);
}

#[actix::test]
async fn server_error_is_a_response() {
    let fake = modern();
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(ready(Ok(Response::Error(RpcError::new(-32603, "no"))))));
    for _ in 0..20 {
        assert_eq!(call(&upstream, &agent("a")).await.unwrap()["error"], -32603);
    }
    assert_eq!(upstream.status().breaker, "closed");
}

#[actix::test]
async fn concurrent_and_queued_calls_are_bounded() {
    let fake = modern();
    // The server has no other stream besides the calls.
    *fake.capabilities.lock() = json!({ "tools": {} });
    let upstream = start_with(UpstreamConfig { max_in_flight: 2, max_queue: 3, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    fake.answer_with(|_| {
        Box::pin(async {
            seconds(1).await;
            fake::ok(json!({ "content": [] }))
        })
    });
    let caller = agent("a");
    let results = futures_util::future::join_all((0..8).map(|_| call(&upstream, &caller))).await;
    let refused: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).map(|e| e.kind).collect();
    assert_eq!(refused, [ErrorKind::Overloaded; 3]);
    assert_eq!(fake.max_concurrent_calls(), 2);
    assert_eq!(upstream.status().waiting, 0);
}

#[actix::test]
async fn log_level_follows_most_verbose_call() {
    use countersign_protocol::params::LoggingLevel::{Debug, Error, Warning};
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "logging": {} });
    let upstream = start(&fake).await;
    let sent_levels = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let recorded_levels = Arc::clone(&sent_levels);
    fake.answer_with(move |request| {
        if request.method == "logging/setLevel" {
            recorded_levels.lock().push(request.params["level"].as_str().unwrap().to_owned());
            return Box::pin(ready(fake::ok(json!({}))));
        }
        Box::pin(async {
            seconds(5).await;
            fake::ok(json!({ "content": [] }))
        })
    });
    let with_level = |level| Caller { log_level: Some(level), ..agent("a") };
    let (debug, error) = (with_level(Debug), with_level(Error));
    let (one, two) = tokio::join!(call(&upstream, &debug), async {
        seconds(1).await;
        call(&upstream, &error).await
    });
    assert!(one.is_ok() && two.is_ok());
    call(&upstream, &agent("quiet")).await.unwrap();
    call(&upstream, &with_level(Warning)).await.unwrap();
    call(&upstream, &with_level(Warning)).await.unwrap();
    assert_eq!(*sent_levels.lock(), ["debug", "warning"]);
}

#[actix::test]
async fn log_level_is_sent_until_accepted_or_refused() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "logging": {} });
    let upstream = start(&fake).await;
    let attempts = AtomicUsize::new(0);
    let refuse =
        |status| -> fake::FakeReply { Box::pin(ready(Err(LinkError::Status { status, body: String::new() }))) };
    fake.answer_with(move |request| {
        if request.method != "logging/setLevel" {
            return Box::pin(ready(fake::ok(json!({ "content": [] }))));
        }
        match attempts.fetch_add(1, Ordering::SeqCst) {
            0 => Box::pin(ready(Err(LinkError::Lost("x".into())))),
            1 => Box::pin(pending()),
            2 => refuse(503),
            _ => refuse(400),
        }
    });
    let caller = Caller { log_level: Some(countersign_protocol::params::LoggingLevel::Debug), ..agent("a") };
    call(&upstream, &caller).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_secs(1), call(&upstream, &caller)).await;
    assert!(dropped.is_err());
    for _ in 0..3 {
        call(&upstream, &caller).await.unwrap();
    }
    assert_eq!(fake.request_count("logging/setLevel"), 4);
}

#[actix::test]
async fn unanswered_log_level_delays_only_one_call() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "logging": {} });
    let upstream = start_with(
        UpstreamConfig { tool_timeouts: vec![("*".into(), Duration::from_secs(5))], ..config("fake") },
        &[&fake],
    );
    upstream.wait_until_settled().await;
    fake.answer_with(|request| match request.method.as_str() {
        "logging/setLevel" => Box::pin(pending()),
        _ => Box::pin(ready(fake::ok(json!({ "content": [] })))),
    });
    let caller = Caller { log_level: Some(countersign_protocol::params::LoggingLevel::Debug), ..agent("a") };
    assert_eq!(call(&upstream, &caller).await.unwrap_err().kind, ErrorKind::Timeout);
    call(&upstream, &caller).await.unwrap();
    assert_eq!(fake.request_count("logging/setLevel"), 1);
}

#[actix::test]
async fn log_level_lost_by_timed_out_call_is_sent_again() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "logging": {} });
    let upstream = start_with(
        UpstreamConfig { tool_timeouts: vec![("*".into(), Duration::from_secs(5))], ..config("fake") },
        &[&fake],
    );
    upstream.wait_until_settled().await;
    let (levels, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
    fake.answer_with(move |request| match request.method.as_str() {
        "logging/setLevel" if levels.fetch_add(1, Ordering::SeqCst) == 0 => {
            Box::pin(ready(Err(LinkError::Lost("x".into()))))
        }
        "tools/call" if calls.fetch_add(1, Ordering::SeqCst) == 0 => Box::pin(pending()),
        _ => Box::pin(ready(fake::ok(json!({ "content": [] })))),
    });
    let caller = Caller { log_level: Some(countersign_protocol::params::LoggingLevel::Debug), ..agent("a") };
    assert_eq!(call(&upstream, &caller).await.unwrap_err().kind, ErrorKind::Timeout);
    call(&upstream, &caller).await.unwrap();
    assert_eq!(fake.request_count("logging/setLevel"), 2);
}

#[actix::test]
async fn tools_are_read_again_after_refused_headers() {
    let fake = modern();
    // A stream of notifications would lead to more readings.
    *fake.capabilities.lock() = json!({ "tools": {} });
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(ready(Ok(Response::Error(RpcError::new(-32020, "a header is missing"))))));
    let readings = fake.request_count("tools/list");
    call(&upstream, &agent("a")).await.unwrap();
    seconds(1).await;
    assert_eq!(fake.request_count("tools/list"), readings + 1);
}

/// Makes the server never answer calls. It answers other requests if `alive`.
fn hang_calls(fake: &FakeServer, alive: bool) {
    fake.answer_with(move |request| {
        if request.method == "tools/call" || !alive {
            Box::pin(pending())
        } else {
            Box::pin(ready(fake::ok(json!({}))))
        }
    });
}

#[actix::test]
async fn hanging_shared_child_is_replaced_and_calls_fail() {
    let fake = legacy();
    // The circuit breaker would otherwise refuse calls.
    let config = UpstreamConfig {
        timeout: Duration::from_secs(20),
        tool_timeouts: vec![("long".into(), Duration::from_secs(3600))],
        breaker: countersign_config::BreakerConfig { threshold: 0, ..config("fake").breaker },
        ..config("fake")
    };
    let upstream = start_with(config, &[&fake]);
    upstream.wait_until_settled().await;
    let timed_out = |count: usize| {
        let upstream = Arc::clone(&upstream);
        async move {
            for _ in 0..count {
                assert_eq!(call(&upstream, &agent("a")).await.unwrap_err().kind, ErrorKind::Timeout);
            }
        }
    };
    // The connection is kept if the server answers in between or answers the probe.
    hang_calls(&fake, true);
    timed_out(2).await;
    fake.answer_with(|_| Box::pin(ready(fake::ok(json!({ "content": [] })))));
    call(&upstream, &agent("a")).await.unwrap();
    hang_calls(&fake, true);
    timed_out(2).await;
    assert_eq!(fake.request_count("ping"), 0);
    timed_out(1).await;
    seconds(60).await;
    assert_eq!((fake.request_count("ping"), fake.link_count()), (1, 1));
    timed_out(3).await;
    seconds(60).await;
    assert_eq!((fake.request_count("ping"), fake.link_count()), (2, 1), "another probe after as many timeouts");

    hang_calls(&fake, false);
    let long = OutgoingRequest { name: Some("long".into()), ..request(&upstream, "tools/call") };
    let patient = agent("b");
    let long_call = upstream.call(&patient, &long, Arc::new(RecordingListener::default()));
    let (error, ()) = tokio::join!(long_call, timed_out(3));
    let error = error.unwrap_err();
    assert_eq!((error.kind, error.data["outcome"].as_str()), (ErrorKind::UpstreamUnavailable, Some("unknown")));
    assert!(error.message.contains("no longer answered"), "{}", error.message);
    fake.answer_with(|_| Box::pin(ready(fake::ok(json!({ "content": [] })))));
    call(&upstream, &agent("a")).await.unwrap();
    assert_eq!((fake.link_count(), fake.open_links().len()), (2, 1));
}
