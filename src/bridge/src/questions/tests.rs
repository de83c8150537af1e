//! Tests of the checks of questions and of the relay.

use super::*;
use countersign_config::UpstreamTarget;
use countersign_domain::questions::SAMPLING;
use countersign_exchange::{reply::ResponseQueue, testing::TestClients};

const ALL_CAPABILITIES: &str =
    r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}"#;

#[actix::test]
async fn declaration_revision_and_config_limit_capabilities() {
    let clients = TestClients::default();
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
    let open = UpstreamConfig::new("s", target);
    let no_people = UpstreamConfig { elicitation: false, ..open.clone() };
    let no_models = UpstreamConfig { sampling: false, ..open.clone() };
    for (revision, config, declared, form, url, sampling, tools, less) in [
        (Revision::MODERN, &open, ALL_CAPABILITIES, true, true, true, true, false),
        (Revision::V2025_11_25, &open, ALL_CAPABILITIES, true, true, true, true, false),
        (Revision::V2025_06_18, &open, ALL_CAPABILITIES, true, false, true, false, true),
        (Revision::V2025_03_26, &open, ALL_CAPABILITIES, false, false, true, false, true),
        (Revision::MODERN, &no_people, ALL_CAPABILITIES, false, false, true, true, true),
        (Revision::MODERN, &no_models, ALL_CAPABILITIES, true, true, false, false, true),
        (Revision::MODERN, &no_models, "{}", false, false, false, false, false),
    ] {
        let (can, is_restricted) = allowed_capabilities(&clients.exchange(revision, declared), config);
        let has = (can.elicitation_form, can.elicitation_url, can.sampling, can.sampling_tools);
        assert_eq!((has, is_restricted), ((form, url, sampling, tools), less), "{revision:?}");
    }
}

#[test]
fn clients_refusal_reaches_upstream_unchanged() {
    let refused = |text: &str| refusal_error(&AskError::Refused(RawValue::from_string(text.to_owned()).unwrap()));
    let error = refused(r#"{"code":-1,"message":"no","data":{"n":1.0}}"#);
    assert_eq!((error.code, error.message.as_str()), (-1, "no"));
    assert_eq!(error.data.unwrap().get(), r#"{"n":1.0}"#);
    assert_eq!(refused(r#"{"code":"x"}"#).code, INTERNAL, "an invalid code counts as an internal error");
    let error = no_answer_error(SAMPLING, &AskError::SessionEnded);
    assert_eq!((error.kind, &error.data["method"]), (ErrorKind::NotBridgeable, &SAMPLING.into()));
}

fn relay(token: Option<&str>, level: Option<LoggingLevel>, revision: Revision) -> (Arc<Relay>, Arc<ResponseQueue>) {
    let queue = Arc::new(ResponseQueue::new(100, 10_000));
    let recipient = MessageRecipient {
        related: RelatedChannel::Queue(Arc::clone(&queue)),
        progress_token: token.map(Into::into),
        log_level: level,
        revision,
        wants_unknown: true,
    };
    (Relay::new(recipient), queue)
}

fn notify(relay: &Relay, method: &str, params: &str) {
    let params = RawValue::from_string(params.to_owned()).ok();
    relay.handle_notification(UpstreamNotification { method: method.into(), params });
}

fn take_sent(queue: &ResponseQueue) -> Vec<String> {
    queue.take().iter().map(|message| String::from_utf8(message.to_vec()).unwrap()).collect()
}

#[test]
fn declined_questions_name_missing_capabilities() {
    let declined = DeclinedQuestions::default();
    let sampling = ClientCapabilities { sampling: true, ..ClientCapabilities::default() };
    assert_eq!(declined.missing_capabilities(&sampling), None);
    declined.record("vendor/ask", None);
    declined.record("sampling/createMessage", None);
    assert_eq!(
        declined.missing_capabilities(&sampling),
        None,
        "the client declares sampling, so it was declined for another reason"
    );
    for params in [r#"{"mode":"url"}"#, "{}"] {
        declined.record("elicitation/create", RawValue::from_string(params.to_owned()).ok());
    }
    declined.record("roots/list", None);
    let missing_capabilities = declined.missing_capabilities(&sampling).unwrap();
    assert_eq!(missing_capabilities, json!({ "elicitation": { "form": {}, "url": {} }, "roots": {} }));
    let missing_capabilities = declined.missing_capabilities(&ClientCapabilities::default()).unwrap();
    assert_eq!(missing_capabilities["sampling"], json!({}));
}

#[test]
fn progress_uses_clients_token_and_only_rises() {
    let (relay, queue) = relay(Some("\"t\\u0041\""), None, Revision::V2025_11_25);
    for progress in ["0", "0", "1.50", "1.2", "2e0"] {
        let params = format!(r#"{{"progressToken":17,"progress":{progress},"message":"m","vendor":[1.0]}}"#);
        notify(&relay, "notifications/progress", &params);
    }
    notify(&relay, "notifications/progress", r#"{"progressToken":17,"progress":"3"}"#);
    notify(&relay, "notifications/progress", "{}");
    let message = |progress: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"t\u0041","progress":{progress},"message":"m","vendor":[1.0]}}}}"#
        )
    };
    assert_eq!(take_sent(&queue), ["0", "1.50", "2e0"].map(message));
    // Another request of the client has another token, and its progress starts again.
    let mut next = relay.destination.lock().recipient.clone().unwrap();
    next.progress_token = Some("2".into());
    next.revision = Revision::V2024_11_05;
    relay.redirect_to(Some(next));
    notify(&relay, "notifications/progress", r#"{"progressToken":17,"progress":1,"message":"m"}"#);
    assert_eq!(
        take_sent(&queue),
        [r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}"#]
    );
    relay.redirect_to(None);
    notify(&relay, "notifications/progress", r#"{"progressToken":17,"progress":9}"#);
    assert!(take_sent(&queue).is_empty());
}

#[test]
fn notifications_that_client_did_not_request_are_dropped() {
    let (relay, queue) = relay(None, None, Revision::V2026_07_28);
    notify(&relay, "notifications/progress", r#"{"progressToken":1,"progress":1}"#);
    notify(&relay, "notifications/message", r#"{"level":"emergency","data":1}"#);
    for method in ["notifications/elicitation/complete", "notifications/cancelled", "notifications/tools/list_changed"]
    {
        notify(&relay, method, "{}");
    }
    assert!(take_sent(&queue).is_empty());
}

#[test]
fn log_messages_of_requested_level_pass_unchanged() {
    let (relay, queue) = relay(None, Some(LoggingLevel::Warning), Revision::V2025_11_25);
    for level in ["debug", "warning", "alert", "WARNING", "loud"] {
        notify(&relay, "notifications/message", &format!(r#"{{ "level":"{level}", "data":1.0 }}"#));
    }
    notify(&relay, "notifications/elicitation/complete", r#"{"elicitationId":"e"}"#);
    notify(&relay, "notifications/vendor/thing", r#"{"n":1e400}"#);
    let messages = take_sent(&queue);
    assert_eq!(messages.len(), 4);
    assert!(messages[0].ends_with(r#""params":{ "level":"warning", "data":1.0 }}"#) && messages[1].contains("alert"));
    assert!(messages[3].contains("1e400"));
}
