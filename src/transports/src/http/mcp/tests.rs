//! Tests of the checks of the MCP endpoint.

use actix_web::{
    body::to_bytes,
    http::header::{CONNECTION, WWW_AUTHENTICATE},
    test::TestRequest,
};

use super::*;
use crate::testing::TestEndpoint;
use countersign_domain::principal::{Credential, Role, Scope};
use countersign_exchange::testing::token_identity;
use countersign_http::protected_resource::METADATA_PATH;
use countersign_provider::testing::{FakeProvider, tool};
use countersign_session::owned_messages::OwnedRequest;

/// The parameters and the headers of `tools/list` in each era.
const LISTS: [(&str, &[(&str, &str)]); 2] = [
    ("", &[]),
    (
        r#","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#,
        &[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")],
    ),
];

fn request(headers: &[(&str, &str)]) -> TestRequest {
    headers.iter().fold(TestRequest::post().uri("/mcp"), |request, header| request.append_header(*header))
}

#[test]
fn era_follows_version_and_handshake_stays_legacy() {
    const VERSION: &str = "mcp-protocol-version";
    let modern = (VERSION, "2026-07-28");
    let legacy = (VERSION, "2025-06-18");
    let (method, session) = (("mcp-method", "tools/list"), ("mcp-session-id", "x"));
    let meta = r#","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
    for (name, params, headers, expected) in [
        ("tools/list", "", &[][..], false),
        ("tools/list", "", &[legacy], false),
        ("tools/list", "", &[legacy, method], false),
        ("tools/list", "", &[modern], true),
        ("tools/list", "", &[method], true),
        ("tools/list", meta, &[], true),
        ("tools/list", meta, &[legacy, session], true),
        // An unknown future version is stateless, and an invalid version is ignored.
        ("tools/list", "", &[(VERSION, "2027-01-01")], true),
        ("tools/list", "", &[(VERSION, "soon")], false),
        ("tools/list", "", &[modern, legacy], false),
        // Other headers of a handshake or of a session's message are ignored, unless one names a version.
        ("initialize", "", &[method], false),
        ("tools/list", "", &[session, method], false),
        ("initialize", "", &[modern], true),
        ("tools/list", "", &[session, modern], true),
        ("initialize", meta, &[], true),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}"{params}}}"#);
        let limits = envelope::Limits { max_depth: 10, max_batch: 10 };
        let Ok(Incoming::Single(message)) = envelope::parse(body.as_bytes(), &limits) else { panic!("{body}") };
        let Message::Request(call) = &message else { panic!("{body}") };
        let request = request(headers).to_http_request();
        let session_id = handshake_session_id(&request);
        let is_modern = is_modern(request.headers(), session_id, &message, &call.meta().unwrap());
        assert_eq!(is_modern, expected, "{body} {headers:?}");
    }
}

#[test]
fn session_id_of_stateless_request_is_ignored() {
    let (session, method) = (("mcp-session-id", "x"), ("mcp-method", "tools/list"));
    let version = |version| ("mcp-protocol-version", version);
    for (headers, expected) in [
        (&[session][..], Some("x")),
        (&[session, method], Some("x")),
        (&[session, version("2025-11-25")], Some("x")),
        (&[session, version("2025-11-25"), method], Some("x")),
        (&[session, version("soon")], Some("x")),
        (&[session, version("2026-07-28")], None),
        (&[session, version("2026-07-28"), method], None),
        (&[session, version("2027-01-01")], None),
        (&[version("2025-11-25")], None),
    ] {
        assert_eq!(handshake_session_id(&request(headers).to_http_request()), expected, "{headers:?}");
    }
}

#[test]
fn unreadable_body_is_refused_in_revision_of_header() {
    let revision_for = |headers: &[(&str, &str)]| assumed_revision(&request(headers).to_http_request());
    assert_eq!(revision_for(&[("mcp-protocol-version", "2026-07-28")]), Revision::MODERN);
    assert_eq!(revision_for(&[("mcp-protocol-version", "2024-11-05")]), Revision::V2024_11_05);
    assert_eq!(revision_for(&[("mcp-protocol-version", "1")]), Revision::V2025_03_26);
    assert_eq!(revision_for(&[]), Revision::V2025_03_26);
}

#[actix::test]
async fn post_is_refused_for_its_first_fault() {
    let endpoint = TestEndpoint::open("transports: { http: { max_body: 1KiB } }").await;
    let stranger = ("authorization", "Bearer csk_unknown");
    let (text, json) = (("content-type", "text/plain"), ("content-type", "application/json; charset=utf-8"));
    let (html, all) = (("accept", "text/html"), ("accept", "*/*"));
    let large = "x".repeat(1025);
    for (headers, body, status, code) in [
        (&[stranger, text, html][..], large.as_str(), 401, "UNAUTHORIZED"),
        (&[text, html], &large, 415, "INVALID_REQUEST"),
        (&[html], &large, 415, "INVALID_REQUEST"),
        (&[json, html], &large, 406, "INVALID_REQUEST"),
        (&[json, all], &large, 413, "TOO_LARGE"),
        (&[json], "{", 400, "PARSE_ERROR"),
        (&[json], "[]", 400, "INVALID_REQUEST"),
        (&[json], r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe"}"#, 400, "NOT_INITIALIZED"),
    ] {
        let reply = endpoint.ask(request(headers).set_payload(body.to_owned())).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (status, Some(code)), "{headers:?} {reply:?}");
    }
    endpoint.endpoint.shutdown.cancel();
    let reply = endpoint.ask(request(&[stranger, text])).await;
    assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (503, Some("SHUTTING_DOWN")));
    assert!(reply.headers.get(CONNECTION).is_none());
}

#[actix::test]
async fn missing_scope_is_a_challenge_in_both_eras() {
    let endpoint = TestEndpoint::open("").await;
    let mut identity = token_identity("ann", Role::Reviewer, &[Scope::ChangesDecide], i64::MAX);
    identity.credential = Credential::Loopback;
    let data = web::Data::from(Arc::clone(&endpoint.endpoint));
    for (params, headers) in LISTS {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list"{params}}}"#);
        let limits = envelope::Limits { max_depth: 10, max_batch: 10 };
        let Ok(Incoming::Single(message)) = envelope::parse(body.as_bytes(), &limits) else { panic!("{body}") };
        let request = request(headers).to_http_request();
        let accepts = AcceptedMedia { json: true, sse: true };
        let identity = identity.clone();
        let post = Post { endpoint: &data, request: &request, identity, session_id: None, accepts, reservation: None };
        let table = endpoint.endpoint.server.routing.routes.load_full();
        let response = answer_in_era(post, table, &message, None).await;
        assert_eq!(response.status().as_u16(), 403, "{body}");
        let challenge = response.headers().get(WWW_AUTHENTICATE).unwrap();
        assert_eq!(challenge, r#"Bearer error="insufficient_scope", scope="tools:read""#, "{body}");
    }
}

#[actix::test]
async fn request_keeps_the_table_of_its_parsing() {
    let endpoint = TestEndpoint::open("").await;
    let table = endpoint.endpoint.server.routing.routes.load_full();
    let fake = FakeProvider::new("f");
    fake.tools.lock().unwrap().push(tool("read", &serde_json::json!({})));
    endpoint.gateway.offer_module(fake).await;
    let newer_table = endpoint.endpoint.server.routing.routes.load_full();
    let identity = endpoint.identity(&endpoint.key("ann"));
    let data = web::Data::from(Arc::clone(&endpoint.endpoint));
    for (params, headers) in LISTS {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list"{params}}}"#);
        let limits = envelope::Limits { max_depth: 10, max_batch: 10 };
        let Ok(Incoming::Single(message)) = envelope::parse(body.as_bytes(), &limits) else { panic!("{body}") };
        let Message::Request(call) = &message else { panic!("{body}") };
        let large =
            LargeRequest { request: Arc::new(OwnedRequest::from_request(call)), mirror_check: Ok(MirrorCheck::Passed) };
        for (table, large, tools) in [(&newer_table, None, 1), (&table, None, 0), (&table, Some(large), 0)] {
            let request = request(headers).to_http_request();
            let accepts = AcceptedMedia { json: true, sse: true };
            let identity = identity.clone();
            let post =
                Post { endpoint: &data, request: &request, identity, session_id: None, accepts, reservation: None };
            let response = answer_in_era(post, Arc::clone(table), &message, large).await;
            let answer = to_bytes(response.into_body()).await.unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer["result"]["tools"].as_array().unwrap().len(), tools, "{body}");
        }
    }
}

#[actix::test]
async fn metadata_exists_if_issuers_are_configured() {
    let issuers = "public_url: https://gw.example\nauth: { tokens: [{ issuer: https://id.example }] }";
    let (with, without) = (TestEndpoint::open(issuers).await, TestEndpoint::open("").await);
    for (path, resource) in [("", "/mcp"), ("/mcp", "/mcp"), ("/ws", "/ws"), ("/sse", "/sse")] {
        let path = format!("{METADATA_PATH}{path}");
        let reply = with.ask(TestRequest::get().uri(&path)).await;
        let metadata: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(metadata["resource"], format!("https://gw.example{resource}"));
        assert_eq!(metadata["authorization_servers"], serde_json::json!(["https://id.example"]));
        assert_eq!(without.ask(TestRequest::get().uri(&path)).await.status.as_u16(), 404);
    }
    assert_eq!(with.ask(TestRequest::get().uri(&format!("{METADATA_PATH}/x"))).await.status.as_u16(), 404);
}
