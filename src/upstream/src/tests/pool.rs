//! Who gets which link, how many there are, and whose is what arrives outside of a call.

use std::sync::{Arc, atomic::Ordering};

use serde_json::json;

use super::*;
use countersign_protocol::ErrorKind;

/// Calls take a second.
fn slow(fake: &FakeServer) {
    fake.answers(|_| {
        Box::pin(async {
            seconds(1).await;
            fake::ok(json!({ "content": [] }))
        })
    });
}

/// Calls at the same time.
async fn together(upstream: &Upstream, callers: &[Caller]) -> Vec<Result<Value, McpError>> {
    futures_util::future::join_all(callers.iter().map(|caller| call(upstream, caller))).await
}

#[actix::test]
async fn who_can_be_asked_nothing_shares_one_child() {
    let fake = legacy();
    let upstream = start(&fake).await;
    slow(&fake);
    let callers: Vec<_> = (0..20).map(|n| in_session(agent(&format!("agent {n}")), &format!("s{n}"))).collect();
    assert!(together(&upstream, &callers).await.iter().all(Result::is_ok));
    assert_eq!(fake.link_count(), 1);
    assert_eq!(fake.open()[0].peak.load(Ordering::SeqCst), 20);
    assert_eq!(*fake.open()[0].declared.lock(), json!({}));
}

#[actix::test]
async fn who_can_be_asked_has_a_child_of_its_own_with_one_call_at_a_time() {
    let fake = legacy();
    let upstream = start(&fake).await;
    slow(&fake);
    let callers: Vec<_> = (0..10).map(|_| askable("a")).chain([askable("b")]).collect();
    assert!(together(&upstream, &callers).await.iter().all(Result::is_ok));
    // The common one, four of the first principal, one of the other.
    assert_eq!(fake.link_count(), 6);
    for link in &fake.open()[1..] {
        assert_eq!(link.peak.load(Ordering::SeqCst), 1);
        assert_eq!(*link.declared.lock(), json!({ "elicitation": { "form": {} } }));
    }
    // Later calls use what is there.
    assert!(together(&upstream, &callers[..4]).await.iter().all(Result::is_ok));
    assert_eq!(fake.link_count(), 6);
}

#[actix::test]
async fn other_capabilities_take_the_place_of_an_idle_child() {
    let fake = legacy();
    let upstream = start(&fake).await;
    slow(&fake);
    together(&upstream, &vec![askable("a"); 4]).await;
    let other =
        Caller { capabilities: ClientCapabilities { sampling: true, ..ClientCapabilities::default() }, ..agent("a") };
    call(&upstream, &other).await.unwrap();
    assert_eq!((fake.link_count(), fake.open().len()), (6, 5));
}

#[actix::test]
async fn a_server_has_at_most_so_many_children_and_waiting_is_bounded() {
    let fake = legacy();
    let upstream = start_with(UpstreamConfig { max_queue: 5, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    slow(&fake);
    let callers: Vec<_> = (0..40).map(|n| askable(&format!("agent {n}"))).collect();
    let results = together(&upstream, &callers).await;
    assert_eq!(fake.peak(), 1);
    let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 3, "32 run, 5 wait");
    assert!(refused.iter().all(|e| e.kind == ErrorKind::Overloaded && e.data["outcome"] == "not_applied"));
    assert!(fake.open().len() <= 33);
}

#[actix::test]
async fn idle_children_are_closed() {
    let fake = legacy();
    let upstream = start(&fake).await;
    together(&upstream, &[askable("a"), askable("b")]).await;
    assert_eq!(fake.open().len(), 3);
    seconds(100).await;
    call(&upstream, &askable("b")).await.unwrap();
    seconds(50).await;
    assert_eq!(fake.open().len(), 2);
    seconds(150).await;
    assert_eq!((fake.open().len(), upstream.status().links), (1, 0));
}

#[actix::test]
async fn a_child_that_a_call_was_given_up_on_serves_nobody_else() {
    let fake = legacy();
    let upstream = start(&fake).await;
    fake.answers(|_| Box::pin(std::future::pending()));
    let give_up = async |caller: Caller| {
        assert!(tokio::time::timeout(Duration::from_secs(5), call(&upstream, &caller)).await.is_err());
    };
    // A stateless client's cannot be told from another's: its child is gone with it.
    give_up(askable("a")).await;
    assert_eq!(fake.open().len(), 1);
    // A session's own next call may have it.
    give_up(in_session(askable("a"), "s")).await;
    fake.answers(|_| Box::pin(std::future::ready(fake::ok(json!({ "content": [] })))));
    call(&upstream, &in_session(askable("a"), "s")).await.unwrap();
    assert_eq!(fake.link_count(), 3);
    call(&upstream, &in_session(askable("a"), "t")).await.unwrap();
    assert_eq!(fake.link_count(), 4);
}

#[actix::test]
async fn sessions_have_connections_of_their_own_over_http_and_leave_none_behind() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    slow(&fake);
    let callers: Vec<_> = (0..100).map(|n| in_session(agent("a"), &format!("s{n}"))).collect();
    assert!(together(&upstream, &callers).await.iter().all(Result::is_ok));
    assert!(together(&upstream, &callers).await.iter().all(Result::is_ok));
    assert_eq!(fake.open().len(), 101);
    // Two calls of one session share its connection.
    assert!(together(&upstream, &[callers[0].clone(), callers[0].clone()]).await.iter().all(Result::is_ok));
    assert_eq!(fake.open().len(), 101);
    seconds(600).await;
    assert_eq!(fake.open().len(), 101, "a session's state is kept as long as the session");
    (0..100).for_each(|n| upstream.session_ended(&format!("s{n}")));
    assert_eq!((fake.open().len(), upstream.status().links), (1, 0));
}

#[actix::test]
async fn a_session_that_ends_while_its_child_starts_leaves_none_behind() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    let caller = in_session(agent("a"), "s");
    let (result, ()) = tokio::join!(call(&upstream, &caller), async { upstream.session_ended("s") });
    drop(result);
    upstream.session_ended("s");
    seconds(1).await;
    assert_eq!((fake.open().len(), upstream.status().links), (1, 0));
}

#[actix::test]
async fn a_stateless_server_needs_one_connection_for_all() {
    for kind in [LinkKind::Stateless, LinkKind::Shared] {
        let fake = FakeServer::new(Era::Modern, kind);
        let upstream = start(&fake).await;
        slow(&fake);
        let callers: Vec<_> = (0..10).map(|n| in_session(askable("a"), &format!("s{n}"))).collect();
        assert!(together(&upstream, &callers).await.iter().all(Result::is_ok));
        assert_eq!(fake.open().len(), 1, "{kind:?}");
        tokio::time::resume();
    }
}

#[actix::test]
async fn what_belongs_to_no_call_goes_to_the_only_one_or_to_nobody() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start_with(
        UpstreamConfig { isolation: Some(countersign_config::Isolation::Shared), ..config("fake") },
        &[&fake],
    );
    upstream.wait_until_settled().await;
    slow(&fake);
    let say = || fake.open()[0].send_notification("notifications/message", json!({ "level": "error", "data": "x" }));
    let half = || tokio::time::sleep(Duration::from_millis(500));

    // The only call under way.
    let (one, two) = (Arc::new(RecordingListener::default()), Arc::new(RecordingListener::default()));
    let first = agent("a");
    let _ = tokio::join!(heard_call(&upstream, &first, one.clone()), async {
        half().await;
        say();
        let (question, _answer) = fake::question();
        fake.open()[0].unsolicited.request(question);
    });
    assert_eq!(one.methods(), ["notifications/message"]);
    assert_eq!(one.take_request().method, "elicitation/create");

    // One of two: nobody knows which.
    let second = agent("b");
    let answers =
        tokio::join!(heard_call(&upstream, &first, one.clone()), heard_call(&upstream, &second, two.clone()), async {
            half().await;
            say();
            let (question, answer) = fake::question();
            fake.open()[0].unsolicited.request(question);
            answer.await.unwrap().unwrap_err().code
        });
    assert_eq!(answers.2, -32601);
    assert_eq!((one.methods().len(), two.methods().len()), (1, 0));

    // Two calls of one session: either will do.
    let (a, b) = (in_session(agent("a"), "s"), in_session(agent("a"), "s"));
    let _ = tokio::join!(heard_call(&upstream, &a, two.clone()), heard_call(&upstream, &b, two.clone()), async {
        half().await;
        say();
    });
    assert_eq!(two.methods().len(), 1);
    say();
    assert_eq!((one.methods().len(), two.methods().len()), (1, 1));
}

#[actix::test]
async fn what_is_for_the_gateway_is_taken_out_of_a_call() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let heard = Arc::new(RecordingListener::default());
    fake.answers(|asked| {
        // On one stream, with one call under way, it looks like a part of it.
        asked.listener.notification(fake::notification("notifications/tools/list_changed", json!({})));
        asked.listener.notification(fake::notification("notifications/progress", json!({ "progress": 1 })));
        Box::pin(std::future::ready(fake::ok(json!({ "content": [] }))))
    });
    heard_call(&upstream, &agent("a"), heard.clone()).await.unwrap();
    seconds(1).await;
    assert_eq!(heard.methods(), ["notifications/progress"]);
    assert_eq!(fake.request_count("tools/list"), 2);
}

#[actix::test]
async fn what_follows_a_request_reaches_the_child_that_had_it_or_none() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let seen: Arc<parking_lot::Mutex<Vec<(String, usize)>>> = Arc::default();
    let noted = Arc::clone(&seen);
    fake.answers(move |asked| {
        let link = Arc::as_ptr(&asked.link) as usize;
        noted.lock().push((asked.method.clone(), link));
        Box::pin(async move {
            seconds(if asked.method == "tasks/result" { 20 } else { 1 }).await;
            fake::ok(json!({ "content": [] }))
        })
    });
    let send = |caller: Caller, method: &'static str| {
        let upstream = Arc::clone(&upstream);
        async move { upstream.call(&caller, &request(&upstream, method), Arc::new(RecordingListener::default())).await }
    };
    // Three children of one principal, and the call is made on some one of them.
    together(&upstream, &vec![askable("a"); 3]).await;
    seen.lock().clear();
    let maker = Caller { link_choice: LinkChoice::recording(), ..askable("a") };
    let others = vec![askable("a"); 2];
    let (made, _) = tokio::join!(send(maker.clone(), "tools/call"), together(&upstream, &others));
    made.unwrap();
    let child = seen.lock()[0].1;
    let follower = Caller { link_choice: maker.link_choice.for_follow_up(), ..askable("a") };
    seen.lock().clear();
    // Others are busy on every child meanwhile: a cancellation does not wait, a result waits for its place.
    let others = vec![askable("a"); 3];
    let busy = together(&upstream, &others);
    let follow = async {
        seconds(0).await;
        tokio::join!(send(follower.clone(), "tasks/result"), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            send(follower.clone(), "tasks/cancel").await
        })
    };
    let (_, (result, cancelled)) = tokio::join!(busy, follow);
    assert!(result.is_ok() && cancelled.is_ok());
    let of = |method: &str| seen.lock().iter().filter(|(m, _)| m == method).map(|(_, link)| *link).collect::<Vec<_>>();
    assert_eq!((of("tasks/result"), of("tasks/cancel")), (vec![child], vec![child]));
    let order: Vec<String> = seen.lock().iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(order[3..], ["tasks/cancel", "tasks/result"]);

    // Its child has ended, and no other knows what was begun there.
    fake.open().iter().find(|link| Arc::as_ptr(link) as usize == child).unwrap().closed.cancel();
    seen.lock().clear();
    let error = send(follower, "tasks/cancel").await.unwrap_err();
    assert_eq!((error.kind, error.data["outcome"].as_str()), (ErrorKind::UpstreamUnavailable, Some("not_applied")));
    assert!(of("tasks/cancel").is_empty());
}
