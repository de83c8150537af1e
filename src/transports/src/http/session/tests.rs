use actix_web::{
    http::{
        Method as Verb,
        header::{ALLOW, AUTHORIZATION},
    },
    test::TestRequest,
};

use super::*;
use crate::testing::TestEndpoint;

#[test]
fn version_header_is_optional_but_must_exist() {
    let revision_of = |value: &str| {
        header_revision(&TestRequest::default().append_header(("mcp-protocol-version", value)).to_http_request())
    };
    assert_eq!(header_revision(&TestRequest::default().to_http_request()).unwrap(), Revision::V2025_03_26);
    for revision in Revision::ALL {
        assert_eq!(revision_of(revision.as_str()).unwrap(), revision);
    }
    for wrong in ["", "2025-06-19", "latest", "2025-06-18, 2025-11-25"] {
        let error = revision_of(wrong).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{wrong:?}");
        assert_eq!(error.data()["supported"].as_array().map(Vec::len), Some(Revision::ALL.len()));
    }
}

#[test]
fn no_error_of_a_call_has_status_404() {
    for kind in [ErrorKind::NotFound, ErrorKind::SessionNotFound, ErrorKind::Internal, ErrorKind::InvalidParams] {
        let answer = WireResponse::error(None, &McpError::new(kind, "x"), Revision::NEWEST_LEGACY);
        assert_eq!(status(&answer), StatusCode::OK, "{kind:?}");
    }
    let unauthorized = McpError::new(ErrorKind::Unauthorized, "x");
    assert_eq!(status(&WireResponse::error(None, &unauthorized, Revision::NEWEST_LEGACY)), StatusCode::UNAUTHORIZED);
}

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
    r#""capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#,
);

fn request(verb: Verb, key: &str, headers: &[(&str, &str)]) -> TestRequest {
    let request = TestRequest::with_uri("/mcp").method(verb).append_header((AUTHORIZATION, key));
    let request = request.append_header(("content-type", "application/json"));
    headers.iter().fold(request, |request, header| request.append_header(*header))
}

async fn initialize(endpoint: &TestEndpoint, key: &str) -> String {
    let reply = endpoint.ask(request(Verb::POST, key, &[]).set_payload(INITIALIZE)).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    reply.headers.get(&names::SESSION_ID).unwrap().to_str().unwrap().to_owned()
}

#[actix::test]
async fn session_is_known_to_its_principal_until_it_ends() {
    let endpoint = TestEndpoint::open("").await;
    let (own, stranger) = (endpoint.key("own"), endpoint.key("stranger"));
    let id = initialize(&endpoint, &own).await;
    let ping = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
    let ask = async |verb: Verb, key: &str| {
        let named = request(verb, key, &[("mcp-session-id", &id), ("accept", "*/*")]);
        endpoint.ask(named.set_payload(ping)).await.status.as_u16()
    };
    for verb in [Verb::POST, Verb::GET, Verb::DELETE] {
        assert_eq!(ask(verb.clone(), &stranger).await, 404, "{verb}");
    }
    assert_eq!(ask(Verb::POST, &own).await, 200);
    assert_eq!(ask(Verb::DELETE, &own).await, 204);
    for verb in [Verb::POST, Verb::GET, Verb::DELETE] {
        assert_eq!(ask(verb.clone(), &own).await, 404, "{verb}");
    }
}

#[actix::test]
async fn message_without_session_is_refused_if_it_needs_one() {
    let endpoint = TestEndpoint::open("").await;
    let key = endpoint.key("ci");
    for (message, status, code) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe"}"#, 400, Some("NOT_INITIALIZED")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, 200, None),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, 400, Some("NOT_INITIALIZED")),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, 400, Some("NOT_INITIALIZED")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, 200, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, 200, Some("METHOD_NOT_FOUND")),
    ] {
        let reply = endpoint.ask(request(Verb::POST, &key, &[]).set_payload(message)).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (status, code), "{message}: {reply:?}");
    }
    assert_eq!(endpoint.endpoint.sessions.registry.len(), 0, "none of them opened a session");
}

#[actix::test]
async fn stream_is_refused_for_the_first_fault_of_its_request() {
    let endpoint = TestEndpoint::open("limits: { max_streams: 1 }").await;
    let key = endpoint.key("ci");
    let id = initialize(&endpoint, &key).await;
    let (session, sse) = (("mcp-session-id", id.as_str()), ("accept", "text/event-stream"));
    let (old, last) = (("mcp-protocol-version", "1"), |id| ("last-event-id", id));
    for (headers, status) in [
        (&[sse][..], 405),
        (&[("mcp-session-id", "x"), ("accept", "application/json")], 406),
        (&[("mcp-session-id", "x"), sse, old], 404),
        (&[session, sse, old, last("x")], 400),
        (&[session, sse, last("x")], 400),
        (&[session, sse, last("0-9")], 400),
        (&[session, sse, last("7-0")], 410),
    ] {
        let reply = endpoint.ask(request(Verb::GET, &key, headers)).await;
        assert_eq!(reply.status.as_u16(), status, "{headers:?} {reply:?}");
        assert_eq!(reply.headers.contains_key(ALLOW), status == 405);
    }
    let principal = endpoint.identity(&key).principal;
    let _taken = endpoint.endpoint.server.long_requests.slots.take(&principal.name).unwrap();
    let reply = endpoint.ask(request(Verb::GET, &key, &[session, sse])).await;
    assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (503, Some("OVERLOADED")));
}
