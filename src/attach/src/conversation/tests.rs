use super::*;

const INITIALIZE: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2099-01-01\"}}\n";

/// Returns a conversation whose session is open.
fn session() -> Conversation {
    let mut conversation = Conversation::default();
    send(&mut conversation, std::str::from_utf8(INITIALIZE).unwrap());
    let answer = br#"{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}}}}"#;
    assert!(matches!(conversation.note_gateway_line(answer), GatewayLine::Forward(_)));
    send(&mut conversation, r#"{"method":"notifications/initialized"}"#);
    conversation
}

fn send(conversation: &mut Conversation, line: &str) -> String {
    let out = conversation.note_agent_line(line.as_bytes()).unwrap_or_default().into_owned();
    conversation.mark_sent();
    String::from_utf8(out).unwrap()
}

fn texts(lines: Vec<Vec<u8>>) -> Vec<String> {
    lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
}

#[test]
fn session_is_opened_again_in_its_revision() {
    let mut conversation = session();
    send(&mut conversation, r#"{"id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#);
    send(&mut conversation, r#"{"id":3,"method":"resources/subscribe","params":{"uri":"a:1"}}"#);
    send(&mut conversation, r#"{"id":4,"method":"resources/subscribe","params":{"uri":"a:2"}}"#);
    send(&mut conversation, r#"{"id":5,"method":"resources/unsubscribe","params":{"uri":"a:1"}}"#);
    for id in 2..=5 {
        let answer = format!(r#"{{"id":{id},"result":{{}}}}"#);
        assert!(matches!(conversation.note_gateway_line(answer.as_bytes()), GatewayLine::Forward(_)));
    }
    assert!(conversation.handshake_request().is_none() && conversation.resuming_lines().is_empty());
    assert!(conversation.note_gateway_end().is_empty());
    let request = String::from_utf8(conversation.handshake_request().unwrap()).unwrap();
    assert!(request.contains("2025-11-25") && request.contains("countersign-replay-initialize"), "{request}");
    let answer = br#"{"id":"countersign-replay-initialize","result":{}}"#;
    let GatewayLine::Resumed(lines) = conversation.note_gateway_line(answer) else { panic!("not resumed") };
    assert_eq!(texts(lines), ["{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n"]);
    let lines = texts(conversation.resuming_lines());
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("initialized") && lines[1].contains("debug") && lines[2].contains("a:2"), "{lines:?}");
    assert_eq!(conversation.note_gateway_line(br#"{"id":"countersign-replay-level","result":{}}"#), GatewayLine::Drop);
}

#[test]
fn only_repeatable_requests_are_sent_again_and_only_once() {
    let mut conversation = session();
    send(&mut conversation, r#"{"id":"w","method":"tools/call","params":{"name":"create_issue"}}"#);
    send(&mut conversation, r#"{"id":"r","method":"tools/call","params":{"name":"wait_for_change"}}"#);
    send(&mut conversation, r#"{"id":"l","method":"tools/list"}"#);
    send(&mut conversation, r#"{"id":"c","method":"tools/list"}"#);
    send(&mut conversation, r#"{"method":"notifications/cancelled","params":{"requestId":"c"}}"#);
    let lines = texts(conversation.note_gateway_end());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(r#""id":"w""#) && lines[0].contains("OUTCOME_UNKNOWN"), "{lines:?}");
    assert!(lines[0].contains("answers are not read"), "the gateway may still run: {lines:?}");
    let lines = texts(conversation.resuming_lines());
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].contains("wait_for_change") && lines[2].contains("tools/list"), "{lines:?}");
    // A gateway that ends again gets none of them a third time.
    assert_eq!(conversation.note_gateway_end().len(), 2);
    assert!(!conversation.has_unanswered_requests());
}

#[test]
fn refused_request_is_sent_again() {
    let mut conversation = session();
    for (id, data, is_repeated) in [
        ("1", r#"{"code":"SHUTTING_DOWN","started":false}"#, true),
        ("2", r#"{"code":"SHUTTING_DOWN"}"#, false),
        ("3", r#"{"code":"OVERLOADED","started":false}"#, false),
    ] {
        send(&mut conversation, &format!(r#"{{"id":{id},"method":"tools/call","params":{{"name":"create_issue"}}}}"#));
        let answer = format!(r#"{{"id":{id},"error":{{"code":1,"message":"","data":{data}}}}}"#);
        assert_eq!(conversation.note_gateway_line(answer.as_bytes()) == GatewayLine::Drop, is_repeated, "{data}");
    }
    assert!(conversation.note_gateway_end().is_empty());
    assert_eq!(conversation.resuming_lines().len(), 2);
}

#[test]
fn wait_for_task_result_is_sent_again() {
    let mut conversation = session();
    for id in [2, 3] {
        send(&mut conversation, &format!(r#"{{"id":{id},"method":"tasks/result","params":{{"taskId":"chg_1"}}}}"#));
    }
    // The gateway ends one wait before it ends itself, and dies with the other.
    let refusal = br#"{"id":3,"error":{"code":-31020,"message":"","data":{"code":"SHUTTING_DOWN"}}}"#;
    assert_eq!(conversation.note_gateway_line(refusal), GatewayLine::Drop);
    assert!(conversation.note_gateway_end().is_empty());
    let lines = texts(conversation.resuming_lines());
    assert!(lines.len() == 3 && lines[1..].iter().all(|line| line.contains("tasks/result")), "{lines:?}");
}

#[test]
fn progress_of_repeated_request_only_rises() {
    let mut conversation = session();
    for (id, token) in [(2, r#""w""#), (3, "7")] {
        send(
            &mut conversation,
            &format!(r#"{{"id":{id},"method":"ping","params":{{"_meta":{{"progressToken":{token}}}}}}}"#),
        );
    }
    let is_sent = |conversation: &mut Conversation, token: &str, progress: &str| {
        let line = format!(
            r#"{{"method":"notifications/progress","params":{{"progressToken":{token},"progress":{progress}}}}}"#
        );
        conversation.note_gateway_line(line.as_bytes()) == GatewayLine::Forward(line.as_bytes().into())
    };
    assert!(is_sent(&mut conversation, r#""w""#, "10.004"));
    assert!(conversation.note_gateway_end().is_empty());
    assert_eq!(conversation.resuming_lines().len(), 3);
    for (token, progress, expected) in [
        (r#""w""#, "0.0000014", false),
        (r#""w""#, "10.004", false),
        (r#""w""#, "1.1e1", true),
        (r#""w""#, "10.5", false),
        ("7", "0", true),
        ("8", "0", true),
    ] {
        assert_eq!(is_sent(&mut conversation, token, progress), expected, "{token} {progress}");
    }
}

#[test]
fn unsent_request_is_neither_lost_nor_repeated() {
    let mut conversation = session();
    conversation.note_agent_line(br#"{"id":7,"method":"tools/call","params":{"name":"create_issue"}}"#);
    assert!(conversation.note_gateway_end().is_empty());
    assert_eq!(conversation.resuming_lines().len(), 1);
}

#[test]
fn answer_to_ended_gateway_reaches_no_other() {
    let mut conversation = session();
    let question = br#"{"id":1,"method":"elicitation/create"}"#;
    assert_eq!(conversation.note_gateway_line(question), GatewayLine::Forward(question[..].into()));
    let lines = texts(conversation.note_gateway_end());
    assert!(lines.len() == 1 && lines[0].contains(r#""requestId":1,"#), "{lines:?}");
    let GatewayLine::Forward(second) = conversation.note_gateway_line(question) else { panic!("dropped") };
    assert_eq!(&*second, br#"{"id":"gateway-1-1","method":"elicitation/create"}"#);
    assert_eq!(send(&mut conversation, r#"{"id":1,"result":{}}"#), "", "the first gateway has ended");
    assert_eq!(send(&mut conversation, r#"{ "id": "gateway-1-1", "result": {} }"#), r#"{ "id": 1, "result": {} }"#);
}

#[test]
fn answers_in_a_batch_are_treated_like_single_ones() {
    let mut conversation = session();
    let questions = [br#"{"id":1,"method":"roots/list"}"#, br#"{"id":2,"method":"roots/list"}"#];
    for question in questions {
        conversation.note_gateway_line(question);
    }
    conversation.note_gateway_end();
    conversation.note_gateway_line(questions[0]);
    let batch = r#"[{"id":1,"result":{"n":0}}, {"id":"gateway-1-1","result":{"n":1}}, {"id":5,"method":"ping"}]"#;
    let expected = "[{\"id\":1,\"result\":{\"n\":1}},{\"id\":5,\"method\":\"ping\"}]\n";
    assert_eq!(send(&mut conversation, batch), expected);
    assert_eq!(send(&mut conversation, r#"[{"id":2,"result":{}}]"#), "", "nothing is left for this gateway");
}

#[test]
fn line_that_was_noted_before_loses_only_its_answers() {
    let without = |line: &[u8]| without_answers(line).map(Cow::into_owned);
    assert_eq!(without(br#"{"id":1,"result":{}}"#), None);
    assert_eq!(without(br#"[{"id":1,"result":{}}]"#), None);
    let batch = br#"[{"id":1,"result":{}},{"id":2,"method":"ping"}]"#;
    assert_eq!(without(batch).unwrap(), b"[{\"id\":2,\"method\":\"ping\"}]\n");
    let request = br#"{"id":2,"method":"ping"}"#;
    assert_eq!(without(request).unwrap(), request);
}

#[test]
fn subscription_that_a_gateway_ends_is_not_opened_again() {
    let mut conversation = Conversation::default();
    for id in [5, 6] {
        send(&mut conversation, &format!(r#"{{"id":{id},"method":"subscriptions/listen","params":{{}}}}"#));
    }
    assert!(conversation.note_gateway_end().is_empty());
    assert_eq!(conversation.resuming_lines().len(), 2);
    // The agent knows its subscription by its own id, whatever the number of the gateway.
    let cancelled = br#"{"method":"notifications/cancelled","params":{"requestId":5}}"#;
    assert_eq!(conversation.note_gateway_line(cancelled), GatewayLine::Forward(cancelled[..].into()));
    let result = br#"{"id":5,"result":{}}"#;
    assert_eq!(conversation.note_gateway_line(result), GatewayLine::Forward(result[..].into()));
    send(&mut conversation, r#"{"id":7,"method":"subscriptions/listen","params":{}}"#);
    let cancelled = br#"{"method":"notifications/cancelled","params":{"requestId":7}}"#;
    assert_eq!(conversation.note_gateway_line(cancelled), GatewayLine::Forward(cancelled[..].into()));
    // The gateway ends before it has sent the result.
    let lines = texts(conversation.note_gateway_end());
    assert!(lines.len() == 1 && lines[0].contains(r#""id":6"#), "{lines:?}");
    assert!(conversation.resuming_lines().is_empty());
}

#[test]
fn other_lines_pass_unchanged() {
    let mut conversation = session();
    for line in ["", "\n", "nonsense", "[1,{}]", r#"{"id":9,"result":{}}"#, "\"x\"", "{\"id\":null}"] {
        assert_eq!(send(&mut conversation, line), line);
        assert_eq!(conversation.note_gateway_line(line.as_bytes()), GatewayLine::Forward(line.as_bytes().into()));
    }
    // The requests of a batch are answered in one line.
    send(&mut conversation, r#"[{"id":1,"method":"ping"},{"id":2,"method":"tools/call"}]"#);
    assert!(conversation.has_unanswered_requests());
    conversation.note_gateway_line(br#"[{"id":1,"result":{}},{"id":2,"result":{}}]"#);
    assert!(!conversation.has_unanswered_requests());
}
