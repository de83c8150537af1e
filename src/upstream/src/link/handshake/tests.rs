use serde_json::json;

use super::*;
use crate::{
    link::LinkKind,
    testing::{RecordingListener, ScriptedConnector, error, negotiated, result},
};

fn listener() -> Arc<dyn Listener> {
    Arc::new(RecordingListener::default())
}

async fn legacy(
    scripted: &ScriptedConnector,
    capabilities: &ClientCapabilities,
) -> Result<NegotiatedSession, LinkError> {
    open(scripted, None, capabilities, listener()).await.map(|(_, negotiated)| negotiated)
}

#[tokio::test]
async fn initialize_declares_revision_and_capabilities() {
    let scripted = ScriptedConnector::new(LinkKind::SingleStream, |method, outgoing| {
        assert_eq!(method, "initialize");
        let body: serde_json::Value = serde_json::from_slice(&outgoing.body).unwrap();
        assert_eq!(body["id"], 0);
        assert_eq!(body["params"]["protocolVersion"], "2025-11-25");
        assert_eq!(body["params"]["capabilities"], json!({"elicitation": {"form": {}}, "roots": {}}));
        assert_eq!(body["params"]["clientInfo"]["name"], "countersign");
        result(r#"{"protocolVersion":"2024-11-05"}"#)
    });
    let capabilities = ClientCapabilities { elicitation_form: true, roots: true, ..ClientCapabilities::default() };
    let found = legacy(&scripted, &capabilities).await.unwrap();
    assert_eq!((found.revision, found.capabilities.get()), (Revision::V2024_11_05, "{}"));
    assert_eq!(scripted.sent_methods(), ["connect", "initialize", "opened 2024-11-05", "notifications/initialized"]);
}

#[tokio::test]
async fn link_is_closed_after_invalid_initialize_result() {
    for answer in [
        "{}",
        "[]",
        r#"{"protocolVersion":"2026-07-28","capabilities":{}}"#,
        r#"{"protocolVersion":"2099-01-01\u001b","capabilities":{}}"#,
        r#"{"protocolVersion":7}"#,
    ] {
        let scripted = ScriptedConnector::new(LinkKind::SingleStream, move |_, _| result(answer));
        let refused = legacy(&scripted, &ClientCapabilities::default()).await.unwrap_err();
        assert!(matches!(&refused, LinkError::Protocol(reason) if !reason.contains('\u{1b}')), "{answer}: {refused}");
        assert_eq!(scripted.sent_methods(), ["connect", "initialize", "close"]);
    }
    let scripted = ScriptedConnector::new(LinkKind::SingleStream, |_, _| error(-32603, None));
    assert!(matches!(legacy(&scripted, &ClientCapabilities::default()).await, Err(LinkError::Protocol(_))));
}

#[tokio::test]
async fn revision_listed_in_error_is_used() {
    let scripted = ScriptedConnector::new(LinkKind::SingleStream, |_, outgoing| {
        if outgoing.body.windows(10).any(|w| w == b"2025-03-26") {
            result(r#"{"protocolVersion":"2025-03-26","capabilities":{}}"#)
        } else {
            error(-32602, Some(r#"{"supported":["2024-11-05","2025-03-26","1999-01-01"],"requested":"2025-11-25"}"#))
        }
    });
    let found = legacy(&scripted, &ClientCapabilities::default()).await.unwrap();
    assert_eq!(found.revision, Revision::V2025_03_26);
    assert_eq!(scripted.sent_methods()[..5], ["connect", "initialize", "close", "connect", "initialize"]);

    // The handshake ends with an error if a server refuses the revisions that it lists.
    let scripted = ScriptedConnector::new(LinkKind::SingleStream, |_, _| {
        error(-32602, Some(r#"{"supported":["2025-11-25","2024-11-05"]}"#))
    });
    assert!(legacy(&scripted, &ClientCapabilities::default()).await.is_err());
}

#[tokio::test]
async fn stateless_link_needs_no_handshake() {
    let scripted = ScriptedConnector::new(LinkKind::Streams, |_, _| panic!("nothing is sent"));
    let known = negotiated(Revision::MODERN);
    let nothing = ClientCapabilities::default();
    open(&scripted, Some(&known), &nothing, listener()).await.unwrap();
    assert_eq!(scripted.sent_methods(), ["connect", "opened 2026-07-28"]);
}

#[test]
fn stateless_meta_names_the_gateway() {
    let value: serde_json::Value = serde_json::from_str(&add_meta_for("{}", &ClientCapabilities::default())).unwrap();
    let meta = &value["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "countersign");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
}
