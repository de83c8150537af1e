//! Servers that are child processes, good ones and bad ones.

#[path = "upstream_child/support.rs"]
mod support;

use std::sync::Arc;

use countersign::upstream::{LinkError, Outgoing, Response, RpcError};
use serde_json::{Value, json, value::RawValue};
use support::*;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

#[tokio::test]
async fn requests_are_answered_byte_for_byte_and_side_by_side() {
    let child = Child::start(&[]).await;
    // What a server wrote stays: order, numbers, spelling, spaces.
    let line = r#"{"jsonrpc":"2.0","result": {"b":12345678901234567890123,"a":1.0,"\u0061":"\u00e9"} ,"id":$ID,"x":1}"#;
    let result = child.result("raw", &json!({ "lines": [line] }).to_string()).await;
    assert_eq!(result, r#"{"b":12345678901234567890123,"a":1.0,"\u0061":"\u00e9"}"#);
    let calls = (0..100).map(|n| child.value("echo", format!("{{\n\"n\": {n}\r\n}}").leak()));
    for (n, answer) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(answer, json!({ "n": n }));
    }
    match child.call("unknown", "{}").await {
        Ok(Response::Error(RpcError { code: -32601, message, data: Some(data), status: None })) => {
            assert_eq!((&*message, data.get()), ("no such method", r#"{"method": "unknown"}"#));
        }
        other => panic!("{other:?}"),
    }
    assert!(!child.link.closed().is_cancelled());
    child.link.close();
    child.ended().await;
    child.gone().await;
    assert!(matches!(child.call("echo", "{}").await, Err(LinkError::Unreachable(_))));
    assert!(matches!(child.link.notify("notifications/x", None).await, Err(LinkError::Unreachable(_))));
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_told() {
    let data = tempfile::tempdir().unwrap();
    let connect = async |command: &str, cwd: Option<&str>| {
        let mut config = config(&marker(), &[]);
        let countersign::config::UpstreamTarget::Command { command: c, cwd: d, .. } = &mut config.target else {
            panic!()
        };
        *c = command.to_owned();
        *d = cwd.map(Into::into);
        let connector = connector(config, data.path());
        use countersign::upstream::Connector;
        match soon("a refusal", connector.connect(Arc::new(Heard::default()))).await {
            Err(LinkError::Unreachable(why)) => why,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it started"),
        }
    };
    let why = connect("no-such-program-anywhere", None).await;
    assert!(why.contains("`no-such-program-anywhere`") && why.contains("no such program"), "{why}");
    let why = connect(SERVER, None).await;
    assert!(why.contains("Permission denied"), "{why}");
    let why = connect("python3", Some("/nonexistent/folder")).await;
    assert!(why.contains("/nonexistent/folder"), "{why}");
}
