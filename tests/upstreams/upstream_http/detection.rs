//! Tests of the detection of a server's era, over real bytes.

use std::{cell::Cell, rc::Rc, sync::Arc};

use countersign_config::UrlTransport;
use countersign_protocol::{Era, Revision};
use countersign_upstream::{
    Connector, LinkError, LinkKind,
    detect::{DetectionResult, detect},
};
use serde_json::json;

use super::server::*;

async fn find(connector: Arc<dyn Connector>) -> Result<DetectionResult, LinkError> {
    within_max_wait(detect(connector, RecordingListener::new())).await
}

#[actix::test]
async fn discovering_server_is_stateless() {
    let refused = Rc::new(Cell::new(false));
    let server = Server::start_for_each_request(move |mut conn, request| { let refused = Rc::clone(&refused); async move {
        let version = "2026-07-28";
        if request.rpc() == "server/discover" {
            let meta = &request.json()["params"]["_meta"];
            assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], version);
        }
        assert_eq!(request.header("mcp-protocol-version"), Some(version));
        assert_eq!(request.header("mcp-method"), Some(request.rpc().as_str()));
        let error = json!({"code": -32022, "message": "no", "data": {"supported": [version], "requested": version}});
        if !refused.replace(true) {
            conn.json("400 Bad Request", &json!({"jsonrpc": "2.0", "id": request.id(), "error": error})).await;
            return conn;
        }
        conn.result(&request, json!({"supportedVersions": ["2025-11-25", version], "capabilities": {"tools": {}}, "serverInfo": {"name": "top"}})).await;
        conn
    }})
    .await;
    let found = find(server.connector()).await.unwrap();
    assert_eq!((found.era(), found.negotiated.revision), (Era::Modern, Revision::MODERN));
    assert_eq!(found.negotiated.server_info.unwrap().get(), r#"{"name":"top"}"#);
    assert_eq!(found.connector.kind(), LinkKind::Streams);
    assert!(ask(&found.link, call(1)).await.is_ok());
    assert_eq!(server.log.rpcs(), ["server/discover", "server/discover", "tools/call"]);
}

#[actix::test]
async fn server_with_sessions_is_detected() {
    for (status, body) in [
        ("200 OK", "{}"),
        ("200 OK", r#"{"jsonrpc":"2.0","id":0,"result":{}}"#),
        (
            "400 Bad Request",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#,
        ),
        (
            "400 Bad Request",
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Missing session ID"}}"#,
        ),
        ("404 Not Found", r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"Method not found"}}"#),
        ("406 Not Acceptable", "Not Acceptable"),
        ("422 Unprocessable", "Unexpected message, expect initialize request"),
        ("202 Accepted", ""),
    ] {
        let server = Server::start_for_each_request(move |conn, request| async move {
            match session(conn, request, "2025-06-18").await {
                Ok(conn) => conn,
                Err((mut conn, request)) => {
                    if request.rpc() == "server/discover" {
                        conn.answer(status, "content-type: application/json\r\n", body).await;
                    } else {
                        conn.result(&request, json!({})).await;
                    }
                    conn
                }
            }
        })
        .await;
        let found = find(server.connector()).await.unwrap_or_else(|error| panic!("{body}: {error}"));
        assert_eq!((found.era(), found.negotiated.revision), (Era::Legacy, Revision::V2025_06_18));
        assert_eq!(found.connector.kind(), LinkKind::Streams);
        assert!(ask(&found.link, call(1)).await.is_ok());
    }
}

#[actix::test]
async fn unauthorized_answer_decides_no_era() {
    for status in ["401 Unauthorized", "403 Forbidden", "500 Oops", "503 Busy", "307 Elsewhere"] {
        let server = Server::start_for_each_request(move |mut conn, _| async move {
            conn.answer(status, "", "").await;
            conn
        })
        .await;
        let outcome = find(server.connector()).await.map(|_| ());
        assert!(matches!(outcome, Err(LinkError::Status { .. })), "{status}: {outcome:?}");
        assert_eq!(server.log.rpcs(), ["server/discover"]);
    }
    let server = Server::start(|mut conn| async move {
        conn.request().await;
    })
    .await;
    assert!(find(server.connector()).await.is_err());
    assert!(server.log.rpcs().iter().all(|rpc| rpc == "server/discover"));
}

#[actix::test]
async fn sse_pair_is_detected_if_post_is_refused() {
    for (status, transport, works) in [
        ("404 Not Found", UrlTransport::Auto, true),
        ("405 Method Not Allowed", UrlTransport::Auto, true),
        ("400 Bad Request", UrlTransport::Auto, true),
        ("405 Method Not Allowed", UrlTransport::StreamableHttp, false),
    ] {
        let (server, _) = super::pair::server(status, "/messages?s=1").await;
        let outcome = find(connector(&server.url, &[], transport)).await;
        assert_eq!(outcome.is_ok(), works, "{status}: {:?}", outcome.map(|_| ()).err());
        let Ok(found) = outcome else { continue };
        assert_eq!((found.era(), found.connector.kind()), (Era::Legacy, LinkKind::SingleStream));
        assert_eq!(text(ask(&found.link, call(1)).await), r#"{"echo":1}"#);
    }
}
