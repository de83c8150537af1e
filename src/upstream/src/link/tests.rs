use super::*;

#[test]
fn error_continues_sentence_about_server() {
    let text = |error: LinkError| format!("the server files {error}");
    assert_eq!(
        text(LinkError::Lost("its process was killed by signal 9".into())),
        "the server files lost the connection: its process was killed by signal 9"
    );
    assert_eq!(text(LinkError::SessionGone), "the server files has ended its session");
}

fn response(text: &str) -> Response {
    let mut found = None;
    parse_messages(text.as_bytes(), |message| match message {
        Ok(Message::Response(response)) => found = Some(parse_response(response.outcome)),
        other => panic!("{other:?}"),
    });
    found.unwrap()
}

#[test]
fn result_keeps_its_text() {
    let text = r#"{"jsonrpc":"2.0","id":7,"result":{"n":12345678901234567890123, "b" : 1e2}}"#;
    let Response::Result(result) = response(text) else { panic!() };
    assert_eq!(result.get(), r#"{"n":12345678901234567890123, "b" : 1e2}"#);
}

#[test]
fn error_keeps_code_message_and_data() {
    let text = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":{"x":1.50}}}"#;
    let Response::Error(error) = response(text) else { panic!() };
    assert_eq!((error.code, error.message.as_str()), (-32022, "no"));
    assert_eq!(error.data.as_ref().unwrap().get(), r#"{"x":1.50}"#);

    let text = r#"{"jsonrpc":"2.0","id":1,"error":{"code":"boom"}}"#;
    let Response::Error(error) = response(text) else { panic!() };
    assert_eq!(error.code, -32603);
    assert_eq!(error.data.as_ref().unwrap().get(), r#"{"code":"boom"}"#);
}

#[test]
fn batch_is_read_in_order_with_malformed_members() {
    let text = r#"[{"jsonrpc":"2.0","method":"a"},7,{"jsonrpc":"2.0","id":"q","method":"b","params":{}}]"#;
    let mut found = Vec::new();
    parse_messages(text.as_bytes(), |message| {
        found.push(match &message {
            Ok(Message::Request(request)) => request.method.to_string(),
            Ok(Message::Notification(notification)) => notification.method.to_string(),
            Ok(Message::Response(_)) => "response".to_owned(),
            Err(malformed) => String::from_utf8(malformed.text.to_vec()).unwrap(),
        });
    });
    assert_eq!(found, ["a", "7", "b"]);
}

#[test]
fn truncated_text_is_lost_and_garbage_a_protocol_error() {
    let is_lost = |text: &str| {
        let mut error = None;
        parse_messages(text.as_bytes(), |message| error = Some(message.unwrap_err().to_error()));
        matches!(error.unwrap(), LinkError::Lost(_))
    };
    assert!(is_lost(r#"{"jsonrpc":"2.0","id":1,"resu"#));
    assert!(is_lost(""));
    assert!(!is_lost("<html>"));
    assert!(!is_lost("{}"));
    assert!(!is_lost(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#, "[".repeat(500), "]".repeat(500))));
}

#[test]
fn excerpt_is_short_and_without_control_characters() {
    assert_eq!(escape_excerpt(b"a\x1b[31m\nb\xff"), "a\\u{1b}[31m\\nb\u{fffd}");
    assert_eq!(escape_excerpt(&[b'x'; 5000]).len(), 1024);
}

#[test]
fn excerpt_cuts_no_secret_in_two() {
    const SECRET: &str = "shown-secret-0123456789";
    countersign_protocol::redact::register_secrets([SECRET.to_owned()]);
    for before in 1024 - SECRET.len()..=1024 {
        let shown = escape_excerpt(format!("{}{SECRET} and more", "x".repeat(before)).as_bytes());
        assert!(!shown.contains("xs") && shown.len() <= 1024, "{before}: {shown}");
    }
}
