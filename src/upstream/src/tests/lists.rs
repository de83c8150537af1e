//! Connecting, the lists, and coming back.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

use super::{super::server::Phase, *};
use countersign_provider::{Provider, ProviderEvent};

fn names(upstream: &Arc<Upstream>) -> Vec<String> {
    upstream.tools().into_iter().map(|tool| tool.name).collect()
}

fn events(from: &mut Receiver<ProviderEvent>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match from.try_recv() {
            Ok(event) => all.push(format!("{event:?}")),
            Err(TryRecvError::Empty) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[actix::test]
async fn all_pages_of_what_it_offers_are_read_and_what_it_lacks_spoils_nothing() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "resources": {} });
    let mut first = fake::tools(&["a", "b"]);
    first["nextCursor"] = "1".into();
    fake.lists.lock().insert("tools/list", json!([first, fake::tools(&["c"])]));
    fake.lists.lock().insert("resources/list", json!({ "resources": [{ "uri": "file:///a", "name": "a" }] }));
    let upstream = start_with(config("fake"), &[&fake]);
    let mut heard = upstream.events.subscribe();
    upstream.wait_until_settled().await;
    assert_eq!(names(&upstream), ["fake__a", "fake__b", "fake__c"]);
    assert_eq!(events(&mut heard), ["ToolListChanged", "ResourceListChanged"]);
    assert_eq!(fake.request_count("prompts/list"), 0);
    // Asked for, and not there.
    assert_eq!(fake.request_count("resources/templates/list"), 1);
    let status = upstream.status();
    assert_eq!((status.status, status.tools, status.resources), ("up", 3, 1));
    assert_eq!((status.era, status.revision), (Some("handshake"), Some("2025-11-25")));
    assert!(status.left_out.is_empty(), "{:?}", status.left_out);
}

#[actix::test]
async fn a_list_without_an_end_is_cut_and_one_that_fails_stays_as_it_was() {
    let fake = legacy();
    let mut page = fake::tools(&["a"]);
    page["nextCursor"] = "0".into();
    fake.lists.lock().insert("tools/list", page);
    let upstream = start(&fake).await;
    // The second page is the first one: so it would go on for ever.
    assert_eq!(fake.request_count("tools/list"), 2);
    assert_eq!(names(&upstream), ["fake__a"]);
    fake.lists.lock().insert("tools/list", json!({ "garbage": true }));
    fake.open()[0].send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!(names(&upstream), ["fake__a"]);
    assert!(upstream.status().left_out[0].contains("tools/list"), "{:?}", upstream.status().left_out);
}

#[actix::test]
async fn a_burst_of_changes_is_read_once_and_told_only_if_something_changed() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let mut heard = upstream.events.subscribe();
    let link = &fake.open()[0];
    for _ in 0..100 {
        link.send_notification("notifications/tools/list_changed", json!({}));
    }
    seconds(2).await;
    assert_eq!((fake.request_count("tools/list"), events(&mut heard).len()), (2, 0));
    fake.lists.lock().insert("tools/list", fake::tools(&["echo", "more"]));
    link.send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!(events(&mut heard), ["ToolListChanged"]);
    assert_eq!(names(&upstream), ["fake__echo", "fake__more"]);
}

#[actix::test]
async fn lists_whose_time_is_over_are_read_again_when_somebody_uses_the_server() {
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
    assert_eq!(fake.request_count("tools/list"), 1, "nobody needs it");
    fake.lists.lock().insert("tools/list", fake::tools(&["new"]));
    call(&upstream, &agent("a")).await.unwrap();
    seconds(1).await;
    assert_eq!(names(&upstream), ["fake__new"]);
    // Without a hint lists are stale at once, but nobody asks a server all the time.
    for _ in 0..100 {
        call(&upstream, &agent("a")).await.unwrap();
    }
    seconds(1).await;
    assert_eq!(fake.request_count("tools/list"), 2);
}

#[actix::test]
async fn a_server_that_comes_late_is_found_and_one_that_ends_is_connected_again() {
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

    fake.open()[0].closed.cancel();
    // Nobody need know of it: the call waits for the new connection.
    call(&upstream, &agent("a")).await.unwrap();
    assert_eq!((fake.link_count(), fake.open().len()), (2, 1));
    let status = upstream.status();
    // Once after it had failed to start, and once after it was lost.
    assert_eq!((status.status, status.restarts, status.last_error), ("up", 2, None));
    assert_eq!(names(&upstream), ["fake__echo"]);
}

#[actix::test]
async fn a_server_that_dies_at_once_is_started_ever_less_often() {
    let fake = legacy();
    let upstream = start(&fake).await;
    let kill = async {
        loop {
            fake.open().iter().for_each(|link| link.closed.cancel());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(120), kill).await;
    let starts = fake.link_count();
    assert!((4..=12).contains(&starts), "{starts} starts in two minutes");
    // What it offered is still shown.
    assert_eq!(names(&upstream), ["fake__echo"]);
}

#[actix::test]
async fn another_replica_takes_over() {
    let (one, two) = (modern(), modern());
    one.set_unreachable(true);
    let upstream = start_with(config("fake"), &[&one, &two]);
    upstream.wait_until_settled().await;
    assert_eq!(upstream.status().status, "up");
    for _ in 0..20 {
        call(&upstream, &agent("a")).await.unwrap();
    }
    assert_eq!(two.request_count("tools/call"), 20);
    one.set_unreachable(false);
    seconds(60).await;
    for _ in 0..200 {
        call(&upstream, &agent("a")).await.unwrap();
    }
    let shares = (one.request_count("tools/call"), two.request_count("tools/call") - 20);
    assert!(shares.0 > 0 && shares.1 > 0 && shares.0 + shares.1 == 200, "{shares:?}");
}

#[actix::test]
async fn tools_for_clients_that_can_be_asked_are_found_and_followed() {
    let fake = legacy();
    *fake.tools_for_askable_clients.lock() = Some(fake::tools(&["echo", "ask"]));
    let upstream = start_with(UpstreamConfig { elicitation: true, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    seconds(10).await;
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask"]);
    // The plain one, for calls, and the one that declares everything, for the lists.
    assert_eq!(fake.open().len(), 2);
    let declared: Vec<bool> = fake.open().iter().map(|link| link.declared.lock()["elicitation"].is_object()).collect();
    assert_eq!(declared, [false, true]);
    *fake.tools_for_askable_clients.lock() = Some(fake::tools(&["echo", "ask", "more"]));
    fake.open()[1].send_notification("notifications/tools/list_changed", json!({}));
    seconds(2).await;
    assert_eq!(names(&upstream), ["fake__echo", "fake__ask", "fake__more"]);
    // It ends, and another one takes its place.
    fake.open()[1].closed.cancel();
    seconds(30).await;
    assert_eq!((fake.open().len(), fake.link_count()), (2, 3));
    assert_eq!(names(&upstream).len(), 3);
}

#[actix::test]
async fn a_server_that_offers_the_same_to_all_keeps_one_connection() {
    let fake = legacy();
    let upstream = start_with(UpstreamConfig { elicitation: true, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    seconds(10).await;
    assert_eq!((fake.open().len(), fake.link_count()), (1, 2));
    assert_eq!(names(&upstream), ["fake__echo"]);
}
