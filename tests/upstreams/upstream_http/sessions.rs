//! Tests of features of the handshake era: sessions, questions of the server, streams by GET, and resumption.

use std::{cell::Cell, rc::Rc};

use countersign_upstream::{LinkError, Response};
use serde_json::json;

use super::server::*;

#[actix::test]
async fn session_has_headers_and_is_deleted() {
    for (revision, version) in
        [("2025-11-25", Some("2025-11-25")), ("2025-06-18", Some("2025-06-18")), ("2025-03-26", None)]
    {
        let server = Server::start_for_each_request(move |conn, request| async move {
            match session(conn, request, revision).await {
                Ok(conn) => conn,
                Err((mut conn, request)) => {
                    conn.result(&request, json!({})).await;
                    conn
                }
            }
        })
        .await;
        let link = server.legacy(RecordingListener::new()).await;
        assert_eq!(text(ask(&link, call(1)).await), "{}");
        let get = server.log.find(|r| r.method == "GET").await;
        link.close();
        assert!(link.closed().is_cancelled());
        assert!(matches!(ask(&link, call(2)).await, Err(LinkError::Unreachable(_))));
        let delete = server.log.find(|r| r.method == "DELETE").await;
        let all = server.log.all();
        assert_eq!(server.log.rpcs()[..2], ["initialize", "notifications/initialized"]);
        assert_eq!(all[0].header("mcp-session-id"), None);
        assert_eq!(all[0].header("mcp-protocol-version"), None);
        let called = all.iter().find(|r| r.rpc() == "tools/call").unwrap();
        for request in [&all[1], called, &get, &delete] {
            assert_eq!(request.header("mcp-session-id"), Some("s-1"), "{request:?}");
            assert_eq!(request.header("mcp-protocol-version"), version, "{request:?}");
            assert_eq!(request.header("mcp-method"), None);
            assert_eq!(request.header("mcp-name"), None);
        }
        assert_eq!(get.header("accept"), Some("text/event-stream"));
    }
}

#[actix::test]
async fn dropped_link_ends_its_session() {
    let server = Server::start_for_each_request(|conn, request| async move {
        session(conn, request, "2025-11-25").await.ok().unwrap()
    })
    .await;
    drop(server.legacy(RecordingListener::new()).await);
    assert_eq!(server.log.find(|r| r.method == "DELETE").await.header("mcp-session-id"), Some("s-1"));
}

#[actix::test]
async fn invalid_session_id_is_refused() {
    for id in ["a b", "ä", ""] {
        let server = Server::start_for_each_request(move |mut conn, request| async move {
            let body = json!({"jsonrpc": "2.0", "id": request.id(), "result": {"protocolVersion": "2025-11-25"}});
            conn.answer("200 OK", &format!("mcp-session-id: {id}\r\n"), &body.to_string()).await;
            conn
        })
        .await;
        let outcome = legacy(&*server.connector(), RecordingListener::new()).await.map(|_| ());
        assert!(matches!(outcome, Err(LinkError::Protocol(_))), "{id}: {outcome:?}");
    }
}

#[actix::test]
async fn ended_session_is_reported() {
    for (status, body) in [
        ("404 Not Found", ""),
        ("404 Not Found", "Session not found"),
        ("404 Not Found", r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#),
        (
            "400 Bad Request",
            r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}"#,
        ),
        (
            "400 Bad Request",
            r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}"#,
        ),
    ] {
        let server = Server::start_for_each_request(move |conn, request| async move {
            match session(conn, request, "2025-11-25").await {
                Ok(conn) => conn,
                Err((mut conn, _)) => {
                    conn.answer(status, "", body).await;
                    conn
                }
            }
        })
        .await;
        let link = server.legacy(RecordingListener::new()).await;
        assert!(matches!(ask(&link, call(1)).await, Err(LinkError::SessionGone)));
        assert!(link.closed().is_cancelled());
        assert!(matches!(ask(&link, call(2)).await, Err(LinkError::Unreachable(_))));
    }
    // An answer to the request does not end the session. Some servers use 404 for unknown methods.
    for (status, code, message) in
        [("404 Not Found", -32601, "no such method"), ("400 Bad Request", -32000, "The session of this user is full")]
    {
        let server = Server::start_for_each_request(move |conn, request| async move {
            match session(conn, request, "2025-11-25").await {
                Ok(conn) => conn,
                Err((mut conn, request)) => {
                    let error = json!({"code": code, "message": message});
                    conn.json(status, &json!({"jsonrpc": "2.0", "id": request.id(), "error": error})).await;
                    conn
                }
            }
        })
        .await;
        let link = server.legacy(RecordingListener::new()).await;
        assert!(matches!(ask(&link, call(1)).await, Ok(Response::Error(error)) if error.code == code));
        assert!(!link.closed().is_cancelled());
    }
}

#[actix::test]
async fn unrelated_bad_request_keeps_session() {
    let server = Server::start_for_each_request(|conn, request| async move {
        match session(conn, request, "2025-11-25").await {
            Ok(conn) => conn,
            Err((mut conn, _)) => {
                conn.answer("400 Bad Request", "", "Your session at the ticket system has expired").await;
                conn
            }
        }
    })
    .await;
    let link = server.legacy(RecordingListener::new()).await;
    assert!(matches!(ask(&link, call(1)).await, Err(LinkError::Status { status: 400, .. })));
    assert!(!link.closed().is_cancelled());
}

#[actix::test]
async fn dropped_request_sends_cancellation() {
    let server = Server::start_for_each_request(|conn, request| async move {
        match session(conn, request, "2025-11-25").await {
            Ok(conn) => conn,
            Err((mut conn, request)) => {
                if request.rpc() == "tools/call" {
                    conn.closed().await
                } else {
                    conn.accepted().await
                }
                conn
            }
        }
    })
    .await;
    let link = server.legacy(RecordingListener::new()).await;
    {
        let outgoing = call(9);
        let mut request = link.request(&outgoing, RecordingListener::new());
        tokio::select! { answer = &mut request => panic!("{answer:?}"), _ = server.log.find(|r| r.id() == 9) => {} }
    }
    let cancelled = server.log.find(|r| r.rpc() == "notifications/cancelled").await;
    assert_eq!(cancelled.json()["params"]["requestId"], 9);
    assert_eq!(cancelled.header("mcp-session-id"), Some("s-1"));
    // An answered request is not cancelled.
    let _ = link.send_initialized().await;
    assert_eq!(server.log.rpcs().iter().filter(|rpc| *rpc == "notifications/cancelled").count(), 1);
}

#[actix::test]
async fn questions_on_a_stream_are_answered_by_posts() {
    let answered = Rc::new(tokio::sync::Notify::new());
    let bell = Rc::clone(&answered);
    let server = Server::start_for_each_request(move |conn, request| {
        let bell = Rc::clone(&bell);
        async move {
            match session(conn, request, "2025-06-18").await {
                Ok(conn) => conn,
                Err((mut conn, request)) if request.rpc() == "tools/call" => {
                    conn.stream("").await;
                    conn.event(&json!({"jsonrpc": "2.0", "id": "p", "method": "ping"})).await;
                    conn.event(&json!({"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": {"message": "?"}})).await;
                    conn.event(&json!({"jsonrpc": "2.0", "id": "r", "method": "roots/list"})).await;
                    conn.event(&json!({"jsonrpc": "2.0", "id": "x", "method": "roots/list"})).await;
                    conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}})).await;
                    conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})).await;
                    bell.notified().await;
                    conn.event(&json!({"jsonrpc": "2.0", "id": request.id(), "result": {"done": 1}})).await;
                    conn.end().await;
                    conn
                }
                Err((mut conn, _)) => {
                    conn.accepted().await;
                    conn
                }
            }
        }
    })
    .await;
    let (unsolicited, listener) = (RecordingListener::new(), RecordingListener::new());
    let link = server.legacy(unsolicited.clone()).await;
    let outgoing = call(3);
    let call = link.request(&outgoing, listener.clone());
    let client = async {
        let question = listener.next_request().await;
        assert_eq!(
            (question.method.as_str(), question.params.as_ref().unwrap().get()),
            ("elicitation/create", r#"{"message":"?"}"#)
        );
        question.reply.answer(Ok(serde_json::from_str("{\"action\":\n\"decline\",\"n\":1.0}").unwrap()));
        drop(listener.next_request().await);
        let taken_back = listener.next_request().await;
        taken_back.cancelled.cancelled().await;
        drop(taken_back);
        let answers = [("p", "result"), ("e", "result"), ("r", "error")];
        for (id, member) in answers {
            let answer = server.log.find(|r| r.rpc().is_empty() && r.id() == id).await;
            assert!(answer.json().get(member).is_some(), "{answer:?}");
            assert_eq!(answer.header("mcp-session-id"), Some("s-1"));
        }
        let answer = server.log.find(|r| r.id() == "e").await;
        assert_eq!(answer.body, "{\"jsonrpc\":\"2.0\",\"id\":\"e\",\"result\":{\"action\": \"decline\",\"n\":1.0}}");
        answered.notify_one();
    };
    let (answer, ()) = within_max_wait(async { tokio::join!(call, client) }).await;
    assert_eq!(text(answer), r#"{"done":1}"#);
    assert!(server.log.all().iter().all(|r| r.id() != "x"), "a withdrawn question is not answered");
    assert_eq!(
        unsolicited.methods(),
        ["notifications/tools/list_changed"],
        "list changes concern the server, on whichever stream they come"
    );
}

#[actix::test]
async fn get_stream_is_read_and_resumed() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        if request.method != "GET" {
            return accept_in_session(conn, request, "2025-11-25").await;
        }
        conn.stream("").await;
        if let Some(last) = request.header("last-event-id") {
            assert_eq!(last, "e-2");
            conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "b"}}))
                .await;
            conn.event(&json!({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage"})).await;
            conn.closed().await;
        } else {
            conn.chunk("id: e-1\nretry: 10\ndata:\n\n").await;
            let message = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
            conn.chunk(&format!("id: e-2\ndata: {message}\n\n")).await;
            conn.end().await;
        }
        conn
    })
    .await;
    let rest = RecordingListener::new();
    let link = server.legacy(rest.clone()).await;
    assert_eq!(rest.next_notification().await.method, "notifications/tools/list_changed");
    assert_eq!(rest.next_notification().await.params.unwrap().get(), r#"{"uri":"b"}"#);
    assert_eq!(rest.next_request().await.method, "sampling/createMessage");
    assert!(server.log.find(|r| r.id() == 1 && r.rpc().is_empty()).await.body.contains("-32601"));
    drop(link);
}

#[actix::test]
async fn get_stream_is_opened_again_and_lists_are_read() {
    for has_ids in [true, false] {
        let gets = Rc::new(Cell::new(0));
        let server = Server::start_for_each_request(move |mut conn, request| {
            let gets = Rc::clone(&gets);
            async move {
                if request.method != "GET" {
                    return accept_in_session(conn, request, "2025-11-25").await;
                }
                gets.set(gets.get() + 1);
                match gets.get() {
                    1 => {
                        conn.stream("").await;
                        conn.chunk(if has_ids { "id: e-1\nretry: 10\ndata:\n\n" } else { "data:\n\n" }).await;
                        conn.end().await;
                    }
                    2 if has_ids => conn.answer("409 Conflict", "", "").await,
                    // The server has forgotten the event.
                    3 if has_ids => conn.answer("400 Bad Request", "", "").await,
                    _ => {
                        assert_eq!(request.header("last-event-id"), None);
                        conn.stream("").await;
                        conn.chunk(": open\n\n").await;
                        conn.closed().await;
                    }
                }
                conn
            }
        })
        .await;
        let rest = RecordingListener::new();
        let link = server.legacy(rest.clone()).await;
        for list in ["tools", "prompts", "resources"] {
            assert_eq!(rest.next_notification().await.method, format!("notifications/{list}/list_changed"));
        }
        drop(link);
    }
}

#[actix::test]
async fn get_stream_that_ends_after_message_is_opened_again_soon() {
    let gets = Rc::new(Cell::new(0));
    let server = Server::start_for_each_request(move |mut conn, request| {
        let gets = Rc::clone(&gets);
        async move {
            if request.method != "GET" {
                return accept_in_session(conn, request, "2025-11-25").await;
            }
            gets.set(gets.get() + 1);
            let params = json!({ "uri": gets.get().to_string() });
            let message = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params});
            conn.stream("").await;
            conn.chunk(&format!("retry: 10\ndata: {message}\n\n")).await;
            conn.end().await;
            conn
        }
    })
    .await;
    let rest = RecordingListener::new();
    let link = server.legacy(rest.clone()).await;
    // With pauses that grow, this would take longer than the wait.
    within_max_wait(async {
        while rest.next_notification().await.params.is_none_or(|params| params.get() != r#"{"uri":"8"}"#) {}
    })
    .await;
    drop(link);
}

#[actix::test]
async fn interrupted_answer_is_resumed() {
    for revision in ["2025-03-26", "2025-11-25"] {
        let gets = Rc::new(Cell::new(0));
        let count = Rc::clone(&gets);
        let server = Server::start_for_each_request(move |conn, request| {
            let count = Rc::clone(&count);
            async move {
                match session(conn, request, revision).await {
                    Ok(conn) => conn,
                    Err((mut conn, request)) if request.method == "POST" => {
                        conn.stream("").await;
                        conn.chunk("id: a-1\nretry: 1\ndata: \n\n").await;
                        conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}})).await;
                        // Half of an event must not spoil what comes after it.
                        conn.chunk("id: half\ndata: {\"jsonrpc\":").await;
                        conn.end().await;
                        conn
                    }
                    Err((mut conn, request)) => {
                        count.set(count.get() + 1);
                        match count.get() {
                            // Not every attempt succeeds.
                            1 => conn.answer("503 Busy", "", "").await,
                            2 => {
                                assert_eq!(request.header("last-event-id"), Some("a-1"));
                                conn.stream("").await;
                                conn.chunk("id: a-2\ndata: \n\n").await;
                                conn.end().await;
                            }
                            _ => {
                                assert_eq!(request.header("last-event-id"), Some("a-2"));
                                assert_eq!(request.header("mcp-session-id"), Some("s-1"));
                                conn.stream("").await;
                                conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 2}})).await;
                                conn.event(&json!({"jsonrpc": "2.0", "id": 4, "result": {"resumed": true}})).await;
                                conn.end().await;
                            }
                        }
                        conn
                    }
                }
            }
        })
        .await;
        let link = server.legacy(RecordingListener::new()).await;
        let listener = RecordingListener::new();
        let answer = within_max_wait(link.request(&call(4), listener.clone())).await;
        assert_eq!(text(answer), r#"{"resumed":true}"#);
        assert_eq!(listener.methods(), ["notifications/message"; 2]);
        assert_eq!(gets.get(), 3);
        assert_eq!(server.log.rpcs().iter().filter(|rpc| *rpc == "tools/call").count(), 1, "it is not called again");
    }
}

#[actix::test]
async fn unresumable_answer_is_lost() {
    // Without event ids, from a server without resumption, and from one that never sends anything new.
    for (primer, status) in
        [("data: \n\n", ""), ("id: 1\nretry: 1\ndata: \n\n", "405 No"), ("id: 1\nretry: 1\ndata: \n\n", "")]
    {
        let server = Server::start_for_each_request(move |conn, request| async move {
            match session(conn, request, "2025-11-25").await {
                Ok(conn) => conn,
                Err((mut conn, request)) => {
                    if request.method == "GET" && !status.is_empty() {
                        conn.answer(status, "", "").await;
                    } else {
                        conn.stream("").await;
                        if request.method == "POST" {
                            conn.chunk(primer).await;
                        }
                        conn.end().await;
                    }
                    conn
                }
            }
        })
        .await;
        let link = server.legacy(RecordingListener::new()).await;
        let outcome = ask(&link, call(4)).await;
        assert!(matches!(outcome, Err(LinkError::Lost(_))), "{outcome:?}");
    }
}
