//! Tests of connecting, reading lists and reconnecting.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

use super::{super::server::Phase, *};
use crate::{catalog::ListKinds, credentials::AuthorizationError};
use countersign_protocol::{ErrorKind, rpc_error::RpcError};
use countersign_provider::{Provider, ProviderEvent};

fn names(upstream: &Arc<Upstream>) -> Vec<String> {
    upstream.tools().into_iter().map(|tool| tool.name).collect()
}

fn events(receiver: &mut Receiver<ProviderEvent>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match receiver.try_recv() {
            Ok(event) => all.push(format!("{event:?}")),
            Err(TryRecvError::Empty) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[actix::test]
async fn all_pages_are_read_despite_missing_lists() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "resources": {} });
    let mut first = fake::tools(&["a", "b"]);
    first["nextCursor"] = "1".into();
    fake.lists.lock().insert("tools/list", json!([first, fake::tools(&["c"])]));
    fake.lists.lock().insert("resources/list", json!({ "resources": [{ "uri": "file:///a", "name": "a" }] }));
    let upstream = start_with(config("fake"), &[&fake]);
    let mut receiver = upstream.events.subscribe();
    upstream.wait_until_settled().await;
    assert_eq!(names(&upstream), ["fake__a", "fake__b", "fake__c"]);
    assert_eq!(events(&mut receiver), ["ListChanged(Tools)", "ListChanged(Resources)"]);
    assert_eq!(fake.request_count("prompts/list"), 0);
    // The list is requested, but the server does not have it.
    assert_eq!(fake.request_count("resources/templates/list"), 1);
    let status = upstream.status();
    assert_eq!((status.status, status.tools, status.resources), ("up", 3, 1));
    assert_eq!((status.era, status.revision), (Some("handshake"), Some("2025-11-25")));
    assert!(status.omitted.is_empty(), "{:?}", status.omitted);
}

#[actix::test]
async fn endless_list_is_truncated_and_failed_list_kept() {
    let fake = legacy();
    let mut page = fake::tools(&["a"]);
    page["nextCursor"] = "0".into();
    fake.lists.lock().insert("tools/list", page);
    let upstream = start(&fake).await;
    // The second page equals the first one, so the list would never end.
    assert_eq!(fake.request_count("tools/list"), 2);
    assert_eq!(names(&upstream), ["fake__a"]);
    fake.lists.lock().insert("tools/list", json!({ "garbage": true }));
    fake.open_links()[0].send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!(names(&upstream), ["fake__a"]);
    assert!(upstream.status().omitted[0].contains("tools/list"), "{:?}", upstream.status().omitted);
}

#[actix::test]
async fn burst_of_changes_is_read_once() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let mut receiver = upstream.events.subscribe();
    let link = &fake.open_links()[0];
    for _ in 0..100 {
        link.send_notification("notifications/tools/list_changed", json!({}));
    }
    seconds(2).await;
    assert_eq!((fake.request_count("tools/list"), events(&mut receiver).len()), (2, 0));
    fake.lists.lock().insert("tools/list", fake::tools(&["echo", "more"]));
    link.send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!(events(&mut receiver), ["ListChanged(Tools)"]);
    assert_eq!(names(&upstream), ["fake__echo", "fake__more"]);
}

#[actix::test]
async fn expired_lists_are_read_again_on_use() {
    let fake = modern();
    *fake.capabilities.lock() = json!({ "tools": {} });
    fake.lists.lock().insert("tools/list", json!({ "tools": [], "ttlMs": 60_000 }));
    let upstream = start(&fake).await;
    for _ in 0..5 {
        call(&upstream, &agent("a")).await.unwrap();
        seconds(1).await;
    }
    assert_eq!(fake.request_count("tools/list"), 1);
    seconds(600).await;
    assert_eq!(fake.request_count("tools/list"), 1, "lists that nobody needs are not read again");
    fake.lists.lock().insert("tools/list", fake::tools(&["new"]));
    call(&upstream, &agent("a")).await.unwrap();
    seconds(1).await;
    assert_eq!(names(&upstream), ["fake__new"]);
    // Lists without a hint are stale at once, but the server is not asked all the time.
    for _ in 0..100 {
        call(&upstream, &agent("a")).await.unwrap();
    }
    seconds(1).await;
    assert_eq!(fake.request_count("tools/list"), 2);
}

#[actix::test]
async fn definition_is_read_again_when_asked_for() {
    for fake in [legacy(), modern(), FakeServer::new(Era::Legacy, LinkKind::Streams)] {
        let upstream = start(&fake).await;
        let hash = upstream.tools()[0].definition_hash();
        assert!(upstream.has_definition("fake__echo", &hash).await.unwrap());
        fake.lists.lock().insert("tools/list", json!({ "garbage": true }));
        assert!(upstream.has_definition("fake__echo", &hash).await.unwrap(), "the last known definition counts");
        let tool = json!({ "name": "echo", "description": "deletes", "inputSchema": { "type": "object" } });
        fake.lists.lock().insert("tools/list", json!({ "tools": [tool] }));
        assert!(!upstream.has_definition("fake__echo", &hash).await.unwrap());
        assert_ne!(upstream.tools()[0].definition_hash(), hash);
        tokio::time::resume();
    }
}

#[actix::test]
async fn definition_does_not_wait_for_more_announcements() {
    let fake = modern();
    let upstream = start(&fake).await;
    let hash = upstream.tools()[0].definition_hash();
    // Each of many announcements in a row delays the reading of the lists further.
    for _ in 0..20 {
        upstream.mark_stale(ListKinds::TOOLS);
        seconds(4).await;
    }
    upstream.mark_stale(ListKinds::TOOLS);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let reading = upstream.has_definition("fake__echo", &hash);
    assert_eq!(tokio::time::timeout(Duration::from_millis(100), reading).await, Ok(Ok(true)));
    tokio::time::resume();
}

#[actix::test]
async fn definition_of_ended_session_is_unknown_until_read_again() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    let hash = upstream.tools()[0].definition_hash();
    fake.end_sessions();
    *fake.refusal.lock() = Some(AuthorizationError::Unavailable("not now".into()));
    let unknown = upstream.has_definition("fake__echo", &hash).await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::UpstreamUnavailable);
    *fake.refusal.lock() = None;
    seconds(60).await;
    assert!(upstream.has_definition("fake__echo", &hash).await.unwrap());
}

#[actix::test]
async fn definition_is_read_if_session_ends_soon_after_connect() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start_with(UpstreamConfig { elicitation: true, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    let hash = upstream.tools()[0].definition_hash();
    assert_eq!(fake.open_links().len(), 2, "the lists of both connections were not compared yet");
    fake.end_sessions();
    assert!(upstream.has_definition("fake__echo", &hash).await.unwrap());
    fake.end_sessions();
    let tool = json!({ "name": "echo", "description": "deletes", "inputSchema": { "type": "object" } });
    fake.lists.lock().insert("tools/list", json!({ "tools": [tool] }));
    assert!(!upstream.has_definition("fake__echo", &hash).await.unwrap());
}

#[actix::test]
async fn announced_change_does_not_prolong_other_lists() {
    let fake = modern();
    *fake.capabilities.lock() = json!({ "tools": { "listChanged": true }, "prompts": {} });
    fake.lists.lock().insert("tools/list", json!({ "tools": [], "ttlMs": 100_000 }));
    fake.lists.lock().insert("prompts/list", json!({ "prompts": [], "ttlMs": 100_000 }));
    fake.answer_with(|request| {
        Box::pin(async move {
            if request.method == "subscriptions/listen" {
                return std::future::pending().await;
            }
            fake::ok(json!({ "content": [] }))
        })
    });
    let upstream = start(&fake).await;
    seconds(60).await;
    fake.open_links()[0].send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!((fake.request_count("tools/list"), fake.request_count("prompts/list")), (2, 1));
    seconds(50).await;
    call(&upstream, &agent("a")).await.unwrap();
    seconds(1).await;
    assert_eq!(fake.request_count("prompts/list"), 2);
}

#[actix::test]
async fn list_is_private_until_server_declares_it_public() {
    let fake = modern();
    *fake.capabilities.lock() = json!({ "tools": {}, "resources": {} });
    let tools = |scope: &str| json!({ "tools": [], "ttlMs": 60_000, "cacheScope": scope });
    fake.lists.lock().insert("tools/list", tools("public"));
    fake.lists.lock().insert("resources/list", json!({ "resources": [], "cacheScope": "private" }));
    fake.lists.lock().insert("resources/templates/list", json!({ "resourceTemplates": [], "cacheScope": "public" }));
    let upstream = start(&fake).await;
    assert_eq!(upstream.catalog().private_lists, ListKinds::RESOURCES);
    for (answer, private_lists) in [
        (tools("private"), ListKinds::TOOLS | ListKinds::RESOURCES),
        (json!({ "garbage": true }), ListKinds::TOOLS | ListKinds::RESOURCES),
        (tools("public"), ListKinds::RESOURCES),
        (json!({ "tools": [] }), ListKinds::TOOLS | ListKinds::RESOURCES),
    ] {
        fake.lists.lock().insert("tools/list", answer);
        upstream.mark_stale(ListKinds::TOOLS);
        seconds(2).await;
        assert_eq!(upstream.catalog().private_lists, private_lists);
    }
}

#[actix::test]
async fn late_and_lost_servers_are_reconnected() {
    let fake = legacy();
    fake.set_unreachable(true);
    let upstream = start_with(config("fake"), &[&fake]);
    upstream.wait_until_settled().await;
    assert!(matches!(upstream.phase(), Phase::Down(_)));
    assert!(upstream.status().last_error.unwrap().contains("refused"));
    let error = call(&upstream, &agent("a")).await.unwrap_err();
    assert_eq!((error.kind.code(), &error.data["outcome"]), ("UPSTREAM_UNAVAILABLE", &"not_applied".into()));
    fake.set_unreachable(false);
    seconds(120).await;
    call(&upstream, &agent("a")).await.unwrap();

    fake.open_links()[0].closed.cancel();
    // The call waits for the new connection, so clients do not notice.
    call(&upstream, &agent("a")).await.unwrap();
    assert_eq!((fake.link_count(), fake.open_links().len()), (2, 1));
    let status = upstream.status();
    // The gateway restarted the server once after the failed start, and once after the loss.
    assert_eq!((status.status, status.restarts, status.last_error), ("up", 2, None));
    assert_eq!(names(&upstream), ["fake__echo"]);
}

#[actix::test]
async fn http_server_that_changes_era_is_detected_again() {
    for (before, after) in [(Era::Modern, Era::Legacy), (Era::Legacy, Era::Modern)] {
        let fake = FakeServer::new(before, LinkKind::Streams);
        *fake.capabilities.lock() = json!({ "tools": {} });
        let upstream = start(&fake).await;
        seconds(20).await;
        call(&upstream, &agent("a")).await.unwrap();
        fake.change_era(after);
        assert!(call(&upstream, &agent("a")).await.unwrap()["error"].is_number());
        seconds(5).await;
        assert_eq!(call(&upstream, &agent("a")).await.unwrap(), json!({ "content": [] }));
        assert_eq!(upstream.negotiated().unwrap().revision.era(), after);
        assert_eq!(fake.request_count("tools/call"), 3, "no call is repeated");
        tokio::time::resume();
    }
}

#[actix::test]
async fn refused_handshake_of_further_link_checks_era() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    seconds(20).await;
    fake.change_era(Era::Modern);
    // The call may be sent once the era is known.
    let _ = call(&upstream, &agent("a")).await;
    seconds(5).await;
    call(&upstream, &agent("a")).await.unwrap();
    assert_eq!(upstream.negotiated().unwrap().revision.era(), Era::Modern);
}

#[actix::test]
async fn unchanged_era_keeps_connection_despite_refusals() {
    let fake = modern();
    *fake.capabilities.lock() = json!({ "tools": {} });
    let upstream = start(&fake).await;
    fake.answer_with(|_| {
        let refusal = RpcError { status: Some(400), ..RpcError::new(-32000, "no") };
        Box::pin(std::future::ready(Ok(Response::Error(refusal))))
    });
    for _ in 0..3 {
        seconds(20).await;
        assert_eq!(call(&upstream, &agent("a")).await.unwrap(), json!({ "error": -32000 }));
        seconds(1).await;
    }
    assert!(fake.link_count() > 1, "the era is checked");
    // A check that fails says nothing about the era.
    *fake.refusal.lock() = Some(AuthorizationError::Unavailable("not now".into()));
    seconds(20).await;
    assert_eq!(call(&upstream, &agent("a")).await.unwrap(), json!({ "error": -32000 }));
    seconds(1).await;
    assert!(fake.request_count("refused") > 0, "the era is checked");
    assert_eq!((fake.open_links().len(), upstream.status().restarts), (1, 0));
}

#[actix::test]
async fn crashing_server_is_restarted_with_backoff() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let kill = async {
        loop {
            fake.open_links().iter().for_each(|link| link.closed.cancel());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(120), kill).await;
    let starts = fake.link_count();
    assert!((4..=12).contains(&starts), "{starts} starts in two minutes");
    // The lists stay available.
    assert_eq!(names(&upstream), ["fake__echo"]);
}

#[actix::test]
async fn other_replica_takes_over() {
    let (first, second) = (modern(), modern());
    first.set_unreachable(true);
    let upstream = start_with(config("fake"), &[&first, &second]);
    upstream.wait_until_settled().await;
    assert_eq!(upstream.status().status, "up");
    for _ in 0..20 {
        call(&upstream, &agent("a")).await.unwrap();
    }
    assert_eq!(second.request_count("tools/call"), 20);
    first.set_unreachable(false);
    seconds(60).await;
    for _ in 0..200 {
        call(&upstream, &agent("a")).await.unwrap();
    }
    let shares = (first.request_count("tools/call"), second.request_count("tools/call") - 20);
    assert!(shares.0 > 0 && shares.1 > 0 && shares.0 + shares.1 == 200, "{shares:?}");
}

/// Starts an upstream that looks for tools of clients that can be asked, and waits until it has compared both lists.
async fn start_with_lists_connection(fake: &Arc<FakeServer>) -> Arc<Upstream> {
    let upstream = start_with(UpstreamConfig { elicitation: true, ..config("fake") }, &[fake]);
    upstream.wait_until_settled().await;
    seconds(10).await;
    upstream
}

#[actix::test]
async fn lists_connection_finds_tools_for_askable_clients() {
    let fake = legacy();
    *fake.tools_for_askable_clients.lock() = Some(fake::tools(&["echo", "ask"]));
    let upstream = start_with_lists_connection(&fake).await;
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask"]);
    // One is the common connection for calls, and the other declares all capabilities and reads the lists.
    assert_eq!(fake.open_links().len(), 2);
    let declared: Vec<bool> =
        fake.open_links().iter().map(|link| link.declared.lock()["elicitation"].is_object()).collect();
    assert_eq!(declared, [false, true]);
    *fake.tools_for_askable_clients.lock() = Some(fake::tools(&["echo", "ask", "more"]));
    fake.open_links()[1].send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask", "fake__more"]);
    // The second connection ends and is replaced.
    fake.open_links()[1].closed.cancel();
    seconds(30).await;
    assert_eq!((fake.open_links().len(), fake.link_count()), (2, 3));
    assert_eq!(names(&upstream).len(), 3);
}

#[actix::test]
async fn refused_lists_connection_does_not_repeat_reads() {
    let fake = legacy();
    *fake.tools_for_askable_clients.lock() = Some(fake::tools(&["echo", "ask"]));
    let upstream = start_with_lists_connection(&fake).await;
    let reads = fake.request_count("tools/list");
    *fake.refusal.lock() = Some(AuthorizationError::Unavailable("not now".into()));
    fake.open_links()[1].closed.cancel();
    seconds(600).await;
    assert!(fake.request_count("refused") > 5, "it is opened again and again");
    // The lists are read once on the common connection.
    assert_eq!(fake.request_count("tools/list"), reads + 1);
    assert_eq!(names(&upstream), ["fake__echo"]);
    *fake.refusal.lock() = None;
    seconds(120).await;
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask"]);
}

#[actix::test]
async fn tool_of_lost_lists_connection_keeps_its_definition() {
    let fake = legacy();
    *fake.tools_for_askable_clients.lock() = Some(fake::tools(&["echo", "ask"]));
    let upstream = start_with_lists_connection(&fake).await;
    let hash = upstream.tools()[1].definition_hash();
    fake.open_links()[1].closed.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(upstream.has_definition("fake__ask", &hash).await.unwrap());
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask"]);
    seconds(10).await;
    assert!(upstream.has_definition("fake__ask", &hash).await.unwrap());
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask"]);
}

#[actix::test]
async fn lists_connection_closes_if_lists_are_equal() {
    let fake = legacy();
    let upstream = start_with_lists_connection(&fake).await;
    assert_eq!((fake.open_links().len(), fake.link_count()), (1, 2));
    assert_eq!(names(&upstream), ["fake__echo"]);
}
