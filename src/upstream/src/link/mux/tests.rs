use std::{future::Future, pin::Pin};

use bytes::Bytes;
use futures_util::{FutureExt as _, poll};
use serde_json::{Value, json};

use super::*;
use countersign_protocol::rpc_error::RpcError;
use countersign_provider::request::UpstreamRequest;

#[derive(Default)]
struct Recorder {
    notifications: Mutex<Vec<(String, Option<String>)>>,
    requests: Mutex<Vec<UpstreamRequest>>,
}

impl Listener for Recorder {
    fn handle_notification(&self, notification: UpstreamNotification) {
        let params = notification.params.map(|params| params.get().to_owned());
        self.notifications.lock().push((notification.method, params));
    }

    fn handle_request(&self, request: UpstreamRequest) {
        self.requests.lock().push(request);
    }
}

impl Recorder {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.notifications.lock()).into_iter().map(|(method, _)| method).collect()
    }
}

type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response, LinkError>>>>;

struct Case {
    mux: Arc<Mux>,
    unsolicited: Arc<Recorder>,
}

impl Case {
    fn new() -> Self {
        let unsolicited = Arc::new(Recorder::default());
        Self { mux: Mux::new("s", unsolicited.clone()), unsolicited }
    }

    async fn send(&self, id: u64, method: &str) -> (AnswerFuture, Arc<Recorder>) {
        let listener = Arc::new(Recorder::default());
        let (mux, recorder) = (self.mux.clone(), listener.clone());
        let outgoing = OutgoingRequest::new(id, method, None);
        let mut answer: AnswerFuture = Box::pin(async move { mux.request(&outgoing, recorder).await });
        assert!(poll!(&mut answer).is_pending());
        (answer, listener)
    }

    /// Returns the messages that the writer would write now.
    fn take_written(&self) -> Vec<Value> {
        let messages = std::iter::from_fn(|| self.mux.next_permitted().now_or_never().flatten());
        messages.map(|message| serde_json::from_slice(&message.text).unwrap()).collect()
    }

    fn receive(&self, message: Value) {
        self.mux.receive(message.to_string().as_bytes()).unwrap();
    }

    fn notify(&self, method: &str, params: Value) {
        self.receive(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }
}

#[track_caller]
fn result(answer: Result<Response, LinkError>) -> String {
    match answer {
        Ok(Response::Result(result)) => result.get().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn malformed_answer_fails_only_its_request() {
    let case = Case::new();
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    for broken in [
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}"#,
        r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
        r#"{"id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"name":"\ud800"}}"#,
        r#"[5, {"jsonrpc":"2.0","id":1}]"#,
        &deep,
    ] {
        let (other, _) = case.send(2, "other").await;
        let (answer, _) = case.send(1, "broken").await;
        let _ = case.mux.receive(broken.as_bytes());
        match answer.await {
            Err(LinkError::Protocol(_)) => {}
            other => panic!("{broken}: {other:?}"),
        }
        case.receive(json!({ "jsonrpc": "2.0", "id": 2, "result": 7 }));
        assert_eq!(result(other.await), "7");
    }
}

#[tokio::test]
async fn malformed_text_answers_no_request() {
    let case = Case::new();
    let (mut answer, listener) = case.send(1, "tools/call").await;
    for garbage in [
        "Listening on stdio…",
        "{",
        r#"{"jsonrpc":"2.0","id":1,"result":{"#,
        "null",
        "[]",
        "{}\u{feff}",
        r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"x","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":99999999999999999999999999,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":7}]"#,
        r#"{"jsonrpc":"2.0","method":"notifications/x","params":[1]}"#,
    ] {
        assert!(case.mux.receive(garbage.as_bytes()).is_err(), "{garbage}");
        assert!(poll!(&mut answer).is_pending(), "{garbage}");
    }
    assert!(case.mux.receive(b"\xff\xfe{}").is_err());
    assert!(listener.take().is_empty() && case.unsolicited.take().is_empty());
    case.receive(json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
    assert_eq!(result(answer.await), "{}");
    // A second answer belongs to no request.
    assert!(case.mux.receive(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).is_err());
}

#[tokio::test]
async fn batches_and_ids_as_strings_are_accepted() {
    let case = Case::new();
    let (one, listener) = case.send(1, "a").await;
    let (two, _) = case.send(2, "b").await;
    let (three, _) = case.send(3, "c").await;
    case.mux.receive("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":3}".as_bytes()).unwrap();
    assert_eq!(result(three.await), "3");
    case.mux
        .receive(
            br#"[{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"1","progress":1}},
                 {"jsonrpc":"2.0","id":"2","result":{"two":2}}, 5,
                 {"jsonrpc":"2.0","id":1,"result": {"one":1.0} }]"#,
        )
        .unwrap_err();
    assert_eq!(listener.take(), ["notifications/progress"]);
    assert_eq!(result(one.await), r#"{"one":1.0}"#);
    assert_eq!(result(two.await), r#"{"two":2}"#);
}

#[tokio::test]
async fn error_without_id_fails_only_request_in_flight() {
    let case = Case::new();
    let error = br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}"#;
    let (mut one, _) = case.send(1, "a").await;
    let (mut two, _) = case.send(2, "b").await;
    assert!(case.mux.receive(error).is_err());
    assert!(poll!(&mut one).is_pending() && poll!(&mut two).is_pending());
    drop(two);
    case.mux.receive(error).unwrap();
    assert!(matches!(one.await, Ok(Response::Error(RpcError { code: -32700, .. }))));
}

#[tokio::test]
async fn notifications_are_attributed_to_their_request() {
    let case = Case::new();
    let (_one, first) = case.send(1, "tools/call").await;
    let (listen, subscription) = case.send(2, LISTEN_METHOD).await;
    let message = || case.notify("notifications/message", json!({ "level": "info", "data": "x" }));
    let about = |id: u64| json!({ "_meta": { "io.modelcontextprotocol/subscriptionId": id } });
    // A subscription is not a call, so an unattributed message belongs to the only call.
    message();
    assert_eq!(first.take(), ["notifications/message"]);
    case.notify("notifications/tools/list_changed", about(2));
    case.notify("notifications/subscriptions/acknowledged", about(2));
    assert_eq!(subscription.take(), ["notifications/tools/list_changed", "notifications/subscriptions/acknowledged"]);
    case.notify("notifications/tools/list_changed", about(77));
    // These messages belong to no call, even if a call is in flight.
    for method in ["notifications/tools/list_changed", "notifications/resources/updated"] {
        case.notify(method, json!({}));
        assert_eq!(case.unsolicited.take(), [method]);
    }
    let (_three, third) = case.send(3, "tools/call").await;
    message();
    assert_eq!(case.unsolicited.take(), ["notifications/message"]);
    case.notify("notifications/progress", json!({ "progressToken": 3, "progress": 1 }));
    assert_eq!(third.take(), ["notifications/progress"]);
    for token in [json!(99), json!("abc"), json!(null), json!({}), json!(-3)] {
        case.notify("notifications/progress", json!({ "progressToken": token, "progress": 1 }));
        assert_eq!(case.unsolicited.take(), ["notifications/progress"]);
    }
    assert!(first.take().is_empty() && subscription.take().is_empty() && third.take().is_empty());
    // A server may cancel a subscription, but no other request of the gateway.
    case.notify("notifications/cancelled", json!({ "requestId": 3 }));
    case.notify("notifications/cancelled", json!({ "requestId": 2 }));
    assert!(matches!(listen.await, Err(LinkError::Lost(_))));
    case.receive(json!({ "jsonrpc": "2.0", "id": 3, "result": {} }));
    result(_three.await);
}

#[tokio::test]
async fn dropped_request_is_cancelled_or_withdrawn() {
    let case = Case::new();
    let (initialize, _) = case.send(1, "initialize").await;
    let (call, _) = case.send(2, "tools/call").await;
    assert_eq!(case.take_written().len(), 2);
    let (unsent, _) = case.send(3, "tools/call").await;
    drop((initialize, call, unsent));
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {
        "requestId": 2, "reason": "the client no longer waits",
    } });
    assert_eq!(case.take_written(), [cancelled]);
    assert!(case.mux.receive(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#).is_err());
    // An answered request is not cancelled.
    let (mut call, _) = case.send(4, "tools/call").await;
    assert_eq!(case.take_written().len(), 1);
    case.receive(json!({ "jsonrpc": "2.0", "id": 4, "result": {} }));
    assert!(poll!(&mut call).is_ready());
    drop(call);
    assert!(case.take_written().is_empty());
}

#[tokio::test]
async fn server_requests_are_answered_or_cancelled() {
    let case = Case::new();
    let ask = |id: Value, method: &str| {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "n": 1 } });
        case.mux.receive(message.to_string().as_bytes())
    };
    ask(json!("p"), "ping").unwrap();
    assert_eq!(case.take_written(), [json!({ "jsonrpc": "2.0", "id": "p", "result": {} })]);

    // A request without a call goes to the unsolicited listener. Dropping it declines it.
    ask(json!(1), "roots/list").unwrap();
    let request = case.unsolicited.requests.lock().pop().unwrap();
    assert_eq!((&*request.method, request.params.as_ref().unwrap().get()), ("roots/list", r#"{"n":1}"#));
    drop(request);
    assert_eq!(case.take_written()[0]["error"]["code"], -32601);

    let (call, listener) = case.send(5, "tools/call").await;
    case.take_written();
    ask(json!("q"), "elicitation/create").unwrap();
    // A second request is ignored while a request with the same id is open.
    ask(json!("q"), "elicitation/create").unwrap();
    let question = listener.requests.lock().pop().unwrap();
    assert!(listener.requests.lock().is_empty());
    question.reply.answer(Ok(RawValue::from_string("{\"n\":\n1.00}".to_owned()).unwrap()));
    assert_eq!(case.take_written(), [json!({ "jsonrpc": "2.0", "id": "q", "result": { "n": 1.0 } })]);

    // A late answer to a cancelled request does not go to the next request with the same id.
    ask(json!("q"), "elicitation/create").unwrap();
    let first = listener.requests.lock().pop().unwrap();
    case.notify("notifications/cancelled", json!({ "requestId": "q" }));
    assert!(first.cancelled.is_cancelled());
    ask(json!("q"), "elicitation/create").unwrap();
    let second = listener.requests.lock().pop().unwrap();
    drop(first);
    assert!(case.take_written().is_empty() && !second.cancelled.is_cancelled());
    second.reply.answer(Err(RpcError::new(-1, "no \"thanks\"")));
    assert_eq!(
        case.take_written(),
        [json!({ "jsonrpc": "2.0", "id": "q", "error": { "code": -1, "message": "no \"thanks\"" } })]
    );

    // The end of a call cancels its questions.
    ask(json!("r"), "elicitation/create").unwrap();
    let left = listener.requests.lock().pop().unwrap();
    drop(call);
    assert!(left.cancelled.is_cancelled());
}

#[tokio::test]
async fn malformed_request_is_answered_with_reason() {
    let case = Case::new();
    for (request, code, reason) in [
        (
            r#"{"jsonrpc":"2.0","id":"y","method":"roots/list","params":[1]}"#,
            -32602,
            "`params` must be an object, not an array",
        ),
        (r#"{"jsonrpc":"2.0","id":"y","method":"roots/list","params":null}"#, -32600, "`params` must be an object"),
        (r#"{"id":"y","method":"ping"}"#, -32600, "`jsonrpc` must be \"2.0\""),
        (
            r#"{"jsonrpc":"2.0","id":"y","method":"ping","result":{}}"#,
            -32600,
            "A message with `method` must not have `result` or `error`",
        ),
        (r#"[{"jsonrpc":"2.0","id":"y","method":5}]"#, -32600, "`method` must be a string"),
    ] {
        assert!(case.mux.receive(request.as_bytes()).is_err(), "{request}");
        let refusal = json!({ "jsonrpc": "2.0", "id": "y", "error": { "code": code, "message": reason } });
        assert_eq!(case.take_written(), [refusal], "{request}");
    }
    case.receive(json!({ "jsonrpc": "2.0", "id": "q", "method": "roots/list" }));
    for text in [
        r#"{"jsonrpc":"2.0","method":"notifications/x","params":[1]}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":"y"}"#,
        r#"{"id":"y","result":{}}"#,
        // The answer would end the open request with this id.
        r#"{"jsonrpc":"2.0","id":"q","method":5}"#,
    ] {
        assert!(case.mux.receive(text.as_bytes()).is_err(), "{text}");
        assert!(case.take_written().is_empty(), "{text}");
    }
}

#[tokio::test]
async fn requests_of_stateless_server_are_not_answered() {
    let case = Case::new();
    case.mux.is_modern.store(true, Ordering::Relaxed);
    for method in ["ping", "elicitation/create"] {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method }).to_string();
        assert!(case.mux.receive(message.as_bytes()).is_err());
    }
    assert!(case.mux.receive(br#"{"jsonrpc":"2.0","id":1,"method":5}"#).is_err());
    assert!(case.take_written().is_empty() && case.unsolicited.requests.lock().is_empty());
}

#[tokio::test]
async fn end_distinguishes_sent_and_unsent_requests() {
    let case = Case::new();
    let (sent, listener) = case.send(1, "tools/call").await;
    case.take_written();
    case.receive(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create" }));
    let question = listener.requests.lock().pop().unwrap();
    let (waiting, _) = case.send(2, "tools/call").await;
    case.mux.end(LinkError::Lost("it died".to_owned()));
    case.mux.end(LinkError::Lost("again".to_owned()));
    assert!(case.mux.ended.is_cancelled() && question.cancelled.is_cancelled());
    assert!(matches!(sent.await, Err(LinkError::Lost(reason)) if reason == "it died"));
    assert!(matches!(waiting.await, Err(LinkError::Unreachable(reason)) if reason == "it died"));
    drop(question);
    assert!(case.take_written().is_empty());
    let later = case.mux.request(&OutgoingRequest::new(3, "x", None), listener.clone()).await;
    assert!(matches!(later, Err(LinkError::Unreachable(reason)) if reason == "it died"));
    assert!(matches!(case.mux.send_initialized(), Err(LinkError::Unreachable(_))));
}

#[tokio::test]
async fn requests_are_refused_while_queue_is_full() {
    let case = Case::new();
    let mut large = OutgoingRequest::new(1, "tools/call", None);
    large.body = Bytes::from(vec![b' '; 12 << 20]);
    let listener = Arc::new(Recorder::default());
    let outgoing = large.clone();
    let mut first = Box::pin(case.mux.request(&outgoing, listener.clone()));
    assert!(poll!(&mut first).is_pending());
    large.id = 2;
    let refused = case.mux.request(&large.clone(), listener.clone()).await;
    assert!(matches!(refused, Err(LinkError::Unreachable(_))), "{refused:?}");
    // The first request was never sent, so dropping it makes room.
    drop(first);
    large.id = 3;
    assert!(poll!(Box::pin(case.mux.request(&large, listener))).is_pending());
}

#[tokio::test]
async fn request_is_withheld_after_permit_expired() {
    let case = Case::new();
    let request = |id: u64, is_valid: bool| {
        let permit = Some(countersign_provider::Permit(Arc::new(move || is_valid)));
        let outgoing = OutgoingRequest { permit, ..OutgoingRequest::new(id, "tools/call", None) };
        let (mux, listener) = (Arc::clone(&case.mux), Arc::new(Recorder::default()));
        Box::pin(async move { mux.request(&outgoing, listener).await })
    };
    let (mut expired, mut valid) = (request(1, false), request(2, true));
    assert!(poll!(&mut expired).is_pending() && poll!(&mut valid).is_pending());
    assert_eq!(case.take_written().len(), 1);
    assert!(matches!(expired.await, Err(LinkError::PermitExpired)));
    case.receive(json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));
    assert_eq!(result(valid.await), "{}");
}
