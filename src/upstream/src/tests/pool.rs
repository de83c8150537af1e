//! Tests of link selection, pool limits, and attribution of messages outside of calls.

use std::sync::{Arc, atomic::Ordering};

use serde_json::json;

use super::{execution::run_approved_change, *};
use crate::link::LinkError;
use countersign_protocol::ErrorKind;

/// Makes calls take one second.
fn answer_after_a_second(fake: &FakeServer) {
    fake.answer_with(|_| {
        Box::pin(async {
            seconds(1).await;
            fake::ok(json!({ "content": [] }))
        })
    });
}

/// Makes one call for each caller, concurrently.
async fn call_concurrently(upstream: &Upstream, callers: &[Caller]) -> Vec<Result<Value, McpError>> {
    futures_util::future::join_all(callers.iter().map(|caller| call(upstream, caller))).await
}

#[actix::test]
async fn unaskable_clients_share_one_child() {
    let fake = legacy();
    let upstream = start(&fake).await;
    answer_after_a_second(&fake);
    let callers: Vec<_> = (0..20).map(|n| in_session(agent(&format!("agent {n}")), &format!("s{n}"))).collect();
    assert!(call_concurrently(&upstream, &callers).await.iter().all(Result::is_ok));
    assert_eq!(fake.link_count(), 1);
    assert_eq!(fake.open_links()[0].peak.load(Ordering::SeqCst), 20);
    assert_eq!(*fake.open_links()[0].declared.lock(), json!({}));
}

#[actix::test]
async fn askable_client_gets_exclusive_child() {
    let fake = legacy();
    let upstream = start(&fake).await;
    answer_after_a_second(&fake);
    let callers: Vec<_> = (0..10).map(|_| askable("a")).chain([askable("b")]).collect();
    assert!(call_concurrently(&upstream, &callers).await.iter().all(Result::is_ok));
    // There are the common link, four links of the first principal and one link of the second.
    assert_eq!(fake.link_count(), 6);
    for link in &fake.open_links()[1..] {
        assert_eq!(link.peak.load(Ordering::SeqCst), 1);
        assert_eq!(*link.declared.lock(), json!({ "elicitation": { "form": {} } }));
    }
    // Later calls reuse the links.
    assert!(call_concurrently(&upstream, &callers[..4]).await.iter().all(Result::is_ok));
    assert_eq!(fake.link_count(), 6);
}

#[actix::test]
async fn idle_child_is_replaced_for_other_capabilities() {
    let fake = legacy();
    let upstream = start(&fake).await;
    answer_after_a_second(&fake);
    call_concurrently(&upstream, &vec![askable("a"); 4]).await;
    let other =
        Caller { capabilities: ClientCapabilities { sampling: true, ..ClientCapabilities::default() }, ..agent("a") };
    call(&upstream, &other).await.unwrap();
    assert_eq!((fake.link_count(), fake.open_links().len()), (6, 5));
}

#[actix::test]
async fn children_and_waiting_calls_are_bounded() {
    let fake = legacy();
    let upstream = start_with(UpstreamConfig { max_queue: 5, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    answer_after_a_second(&fake);
    let callers: Vec<_> = (0..40).map(|n| askable(&format!("agent {n}"))).collect();
    let results = call_concurrently(&upstream, &callers).await;
    assert_eq!(fake.max_concurrent_calls(), 1);
    let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 3, "32 run, 5 wait");
    assert!(refused.iter().all(|e| e.kind == ErrorKind::Overloaded && e.data["outcome"] == "not_applied"));
    assert!(fake.open_links().len() <= 33);
}

#[actix::test]
async fn limits_are_those_of_the_detected_transport() {
    let (configured, spoken) = (FakeServer::new(Era::Legacy, LinkKind::Streams), legacy());
    *configured.fallback.lock() = Some(Arc::clone(&spoken));
    let upstream = start(&configured).await;
    answer_after_a_second(&spoken);
    assert!(call_concurrently(&upstream, &vec![askable("a"); 10]).await.iter().all(Result::is_ok));
    // There are the common link and four links of the principal.
    assert_eq!((configured.link_count(), spoken.link_count()), (0, 5));
}

#[actix::test]
async fn idle_children_are_closed_after_timeout() {
    let fake = legacy();
    let upstream = start(&fake).await;
    call_concurrently(&upstream, &[askable("a"), askable("b")]).await;
    assert_eq!(fake.open_links().len(), 3);
    seconds(100).await;
    call(&upstream, &askable("b")).await.unwrap();
    seconds(50).await;
    assert_eq!(fake.open_links().len(), 2);
    seconds(150).await;
    assert_eq!((fake.open_links().len(), upstream.status().links), (1, 0));
}

#[actix::test]
async fn child_with_task_outlives_the_idle_timeout() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let creator = Caller { link_choice: LinkChoice::recording(), ..askable("a") };
    call(&upstream, &creator).await.unwrap();
    let follow_up = Caller { link_choice: creator.link_choice.for_follow_up(), ..askable("a") };
    drop(creator);
    seconds(600).await;
    call(&upstream, &follow_up).await.unwrap();
    assert_eq!((fake.link_count(), fake.open_links().len()), (2, 2));
    drop(follow_up);
    seconds(150).await;
    assert_eq!(fake.open_links().len(), 1);
}

#[actix::test]
async fn child_with_abandoned_call_serves_no_other_session() {
    let fake = legacy();
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(std::future::pending()));
    let abandon_call = async |caller: Caller| {
        assert!(tokio::time::timeout(Duration::from_secs(5), call(&upstream, &caller)).await.is_err());
    };
    // A stateless client cannot be distinguished from another one, so its child is closed.
    abandon_call(askable("a")).await;
    assert_eq!(fake.open_links().len(), 1);
    // The next call of the same session may use the child.
    abandon_call(in_session(askable("a"), "s")).await;
    fake.answer_with(|_| Box::pin(std::future::ready(fake::ok(json!({ "content": [] })))));
    call(&upstream, &in_session(askable("a"), "s")).await.unwrap();
    assert_eq!(fake.link_count(), 3);
    call(&upstream, &in_session(askable("a"), "t")).await.unwrap();
    assert_eq!(fake.link_count(), 4);
}

#[actix::test]
async fn http_sessions_have_own_connections_until_they_end() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    answer_after_a_second(&fake);
    let callers: Vec<_> = (0..100).map(|n| in_session(agent("a"), &format!("s{n}"))).collect();
    assert!(call_concurrently(&upstream, &callers).await.iter().all(Result::is_ok));
    assert!(call_concurrently(&upstream, &callers).await.iter().all(Result::is_ok));
    assert_eq!(fake.open_links().len(), 101);
    // Two calls of one session share its connection.
    assert!(call_concurrently(&upstream, &[callers[0].clone(), callers[0].clone()]).await.iter().all(Result::is_ok));
    assert_eq!(fake.open_links().len(), 101);
    seconds(600).await;
    assert_eq!(fake.open_links().len(), 101, "a session's state is kept as long as the session");
    (0..100).for_each(|n| upstream.close_session(&format!("s{n}")));
    assert_eq!((fake.open_links().len(), upstream.status().links), (1, 0));
}

#[actix::test]
async fn session_ending_during_start_leaves_no_child() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    let caller = in_session(agent("a"), "s");
    let (result, ()) = tokio::join!(call(&upstream, &caller), async {
        caller.session_ended.as_ref().unwrap().cancel();
        upstream.close_session("s");
    });
    // The call was sent again on another link, which was opened after the end of the session.
    result.unwrap();
    assert_eq!(fake.open_links().len(), 2);
    seconds(60).await;
    assert_eq!((fake.open_links().len(), upstream.status().links), (1, 0));
}

#[actix::test]
async fn stateless_server_needs_one_connection() {
    for kind in [LinkKind::Streams, LinkKind::SingleStream] {
        let fake = FakeServer::new(Era::Modern, kind);
        let upstream = start(&fake).await;
        answer_after_a_second(&fake);
        let callers: Vec<_> = (0..10).map(|n| in_session(askable("a"), &format!("s{n}"))).collect();
        assert!(call_concurrently(&upstream, &callers).await.iter().all(Result::is_ok));
        assert_eq!(fake.open_links().len(), 1, "{kind:?}");
        tokio::time::resume();
    }
}

#[actix::test]
async fn unattributed_message_goes_to_only_call_or_is_dropped() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start_with(
        UpstreamConfig { isolation: Some(countersign_config::Isolation::Shared), ..config("fake") },
        &[&fake],
    );
    upstream.wait_until_settled().await;
    answer_after_a_second(&fake);
    let send_log_message =
        || fake.open_links()[0].send_notification("notifications/message", json!({ "level": "error", "data": "x" }));
    let half_second = || tokio::time::sleep(Duration::from_millis(500));

    // The messages are attributed to the only active call.
    let (one, two) = (Arc::new(RecordingListener::default()), Arc::new(RecordingListener::default()));
    let first = agent("a");
    let _ = tokio::join!(call_with_listener(&upstream, &first, one.clone()), async {
        half_second().await;
        send_log_message();
        let (question, _answer) = fake::question();
        fake.open_links()[0].unsolicited.handle_request(question);
    });
    assert_eq!(one.methods(), ["notifications/message"]);
    assert_eq!(one.take_request().method, "elicitation/create");

    // The messages cannot be attributed to one of two calls.
    let second = agent("b");
    let answers = tokio::join!(
        call_with_listener(&upstream, &first, one.clone()),
        call_with_listener(&upstream, &second, two.clone()),
        async {
            half_second().await;
            send_log_message();
            let (question, answer) = fake::question();
            fake.open_links()[0].unsolicited.handle_request(question);
            answer.await.unwrap().unwrap_err().code
        }
    );
    assert_eq!(answers.2, -32601);
    assert_eq!((one.methods().len(), two.methods().len()), (1, 0));

    // Either of two calls of one session may receive the message.
    let (a, b) = (in_session(agent("a"), "s"), in_session(agent("a"), "s"));
    let _ = tokio::join!(
        call_with_listener(&upstream, &a, two.clone()),
        call_with_listener(&upstream, &b, two.clone()),
        async {
            half_second().await;
            send_log_message();
        }
    );
    assert_eq!(two.methods().len(), 1);
    send_log_message();
    assert_eq!((one.methods().len(), two.methods().len()), (1, 1));
}

#[actix::test]
async fn gateway_notifications_are_not_forwarded_to_call() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let listener = Arc::new(RecordingListener::default());
    fake.answer_with(|request| {
        // On a single stream with one active call, the notification looks like part of the call.
        request.listener.handle_notification(fake::notification("notifications/tools/list_changed", json!({})));
        request.listener.handle_notification(fake::notification("notifications/progress", json!({ "progress": 1 })));
        Box::pin(std::future::ready(fake::ok(json!({ "content": [] }))))
    });
    call_with_listener(&upstream, &agent("a"), listener.clone()).await.unwrap();
    seconds(1).await;
    assert_eq!(listener.methods(), ["notifications/progress"]);
    assert_eq!(fake.request_count("tools/list"), 2);
}

#[actix::test]
async fn follow_up_request_reaches_same_child_or_fails() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let requests: Arc<parking_lot::Mutex<Vec<(String, usize)>>> = Arc::default();
    let recorder = Arc::clone(&requests);
    fake.answer_with(move |request| {
        let link = Arc::as_ptr(&request.link) as usize;
        recorder.lock().push((request.method.clone(), link));
        Box::pin(async move {
            seconds(if request.method == "tasks/result" { 20 } else { 1 }).await;
            fake::ok(json!({ "content": [] }))
        })
    });
    let send = |caller: Caller, method: &'static str| {
        let upstream = Arc::clone(&upstream);
        async move { upstream.call(&caller, &request(&upstream, method), Arc::new(RecordingListener::default())).await }
    };
    // There are three children of one principal, and the call uses one of them.
    call_concurrently(&upstream, &vec![askable("a"); 3]).await;
    requests.lock().clear();
    let maker = Caller { link_choice: LinkChoice::recording(), ..askable("a") };
    let other_callers = vec![askable("a"); 2];
    let (made, _) = tokio::join!(send(maker.clone(), "tools/call"), call_concurrently(&upstream, &other_callers));
    made.unwrap();
    let child = requests.lock()[0].1;
    let follower = Caller { link_choice: maker.link_choice.for_follow_up(), ..askable("a") };
    requests.lock().clear();
    // All children are busy. A cancellation does not wait, but a result waits for its child.
    let busy_callers = vec![askable("a"); 3];
    let busy = call_concurrently(&upstream, &busy_callers);
    let follow = async {
        seconds(0).await;
        tokio::join!(send(follower.clone(), "tasks/result"), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            send(follower.clone(), "tasks/cancel").await
        })
    };
    let (_, (result, cancelled)) = tokio::join!(busy, follow);
    assert!(result.is_ok() && cancelled.is_ok());
    let links_of =
        |method: &str| requests.lock().iter().filter(|(m, _)| m == method).map(|(_, link)| *link).collect::<Vec<_>>();
    assert_eq!((links_of("tasks/result"), links_of("tasks/cancel")), (vec![child], vec![child]));
    let order: Vec<String> = requests.lock().iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(order[3..], ["tasks/cancel", "tasks/result"]);

    // The child has ended, and no other child knows its work.
    fake.open_links().iter().find(|link| Arc::as_ptr(link) as usize == child).unwrap().closed.cancel();
    requests.lock().clear();
    let error = send(follower, "tasks/cancel").await.unwrap_err();
    assert_eq!((error.kind, error.data["outcome"].as_str()), (ErrorKind::UpstreamUnavailable, Some("not_applied")));
    assert!(links_of("tasks/cancel").is_empty());
}

#[actix::test]
async fn waiting_for_results_of_tasks_opens_no_circuit() {
    let fake = modern();
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(std::future::pending()));
    for (method, breaker) in [("tasks/result", "closed"), ("tools/call", "open")] {
        let calls = (0..5).map(|_| {
            let upstream = Arc::clone(&upstream);
            async move {
                let outgoing = request(&upstream, method);
                upstream.call(&agent("a"), &outgoing, Arc::new(RecordingListener::default())).await
            }
        });
        for result in futures_util::future::join_all(calls).await {
            assert_eq!(result.unwrap_err().kind, ErrorKind::Timeout);
        }
        assert_eq!(upstream.status().breaker, breaker, "{method}");
    }
}

#[actix::test]
async fn approved_change_goes_to_the_replica_that_was_probed() {
    let fakes = [(); 2].map(|()| FakeServer::new(Era::Legacy, LinkKind::Streams));
    let upstream = start_with(config("fake"), &[&fakes[0], &fakes[1]]);
    upstream.wait_until_settled().await;
    let ended = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for fake in &fakes {
        let ended = Arc::clone(&ended);
        fake.answer_with(move |request| {
            let has_ended = ended.lock().iter().any(|link| Arc::ptr_eq(link, &request.link));
            let answer = if has_ended { Err(LinkError::SessionGone) } else { fake::ok(json!({ "content": [] })) };
            Box::pin(std::future::ready(answer))
        });
    }
    for _ in 0..20 {
        // Both replicas end all sessions.
        *ended.lock() = fakes.iter().flat_map(|fake| fake.links.lock().clone()).collect();
        run_approved_change(&upstream).await.unwrap();
    }
}
