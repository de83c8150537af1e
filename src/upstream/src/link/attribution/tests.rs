use futures_util::FutureExt;

use super::*;
use crate::testing::Heard;
use countersign_protocol::{Revision, rpc_error::RpcError};
use countersign_provider::request::UpstreamRequest;

fn link() -> (Arc<Attribution>, mpsc::Receiver<Message>, Arc<Heard>) {
    let unsolicited = Arc::new(Heard::default());
    let (link, out) = Attribution::new(unsolicited.clone(), CancellationToken::new());
    (link, out, unsolicited)
}

fn call(id: u64) -> Outgoing {
    Outgoing::new(id, "tools/call", Some(r#"{"name":"x"}"#))
}

fn next(out: &mut mpsc::Receiver<Message>) -> String {
    String::from_utf8(out.try_recv().unwrap().text.to_vec()).unwrap()
}

fn tell(link: &Attribution, text: &str) {
    link.received(text.as_bytes());
}

#[tokio::test]
async fn answers_go_by_id_and_progress_by_token() {
    let (link, mut out, rest) = link();
    let (one, two) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
    let outgoing = call(1);
    let mut first = Box::pin(link.request(&outgoing, one.clone()));
    let outgoing = call(2);
    let mut second = Box::pin(link.request(&outgoing, two.clone()));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    assert!(next(&mut out).contains(r#""id":1"#) && next(&mut out).contains(r#""id":2"#));

    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"1","progress":1}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}"#);
    // Two are in flight: nobody knows whose that is.
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","id":2,"result":{"n":1.0}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    tell(&link, "npm notice: no message");
    let Response::Result(result) = second.await.unwrap() else { panic!() };
    assert_eq!(result.get(), r#"{"n":1.0}"#);
    // Now there is one.
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":2}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    // The same answer again changes nothing.
    tell(&link, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}"#);
    assert!(matches!(first.await.unwrap(), Response::Error(RpcError { code: -32700, .. })));
    assert_eq!(one.methods(), ["notifications/progress", "notifications/message"]);
    assert_eq!(two.methods(), ["notifications/progress"]);
    assert_eq!(rest.methods(), ["notifications/message", "notifications/tools/list_changed"]);
}

#[tokio::test]
async fn what_waits_for_a_place_goes_out_only_if_it_still_may() {
    let (link, mut out, heard) = link();
    for _ in 0..OUTBOX {
        link.notify("x", None).await.unwrap();
    }
    let holds = Arc::new(AtomicBool::new(true));
    let looked = Arc::clone(&holds);
    let permit = Some(Permit(Arc::new(move || looked.load(Ordering::SeqCst))));
    let outgoing = Outgoing { permit, ..call(1) };
    let mut waiting = Box::pin(link.request(&outgoing, heard));
    assert!(waiting.as_mut().now_or_never().is_none());
    holds.store(false, Ordering::SeqCst);
    next(&mut out);
    assert!(matches!(waiting.await, Err(LinkError::Withheld)));
    while let Ok(message) = out.try_recv() {
        assert_eq!(message.request, None);
    }
}

#[tokio::test]
async fn a_dropped_request_is_cancelled_unless_it_is_initialize() {
    let (link, mut out, _) = link();
    let outgoing = call(4);
    let mut request = Box::pin(link.request(&outgoing, Arc::new(Heard::default())));
    assert!(request.as_mut().now_or_never().is_none());
    next(&mut out);
    drop(request);
    assert!(next(&mut out).contains(r#""method":"notifications/cancelled","params":{"requestId":4"#));

    let outgoing = Outgoing::new(0, "initialize", Some("{}"));
    let mut request = Box::pin(link.request(&outgoing, Arc::new(Heard::default())));
    assert!(request.as_mut().now_or_never().is_none());
    next(&mut out);
    drop(request);
    assert!(out.try_recv().is_err());
}

#[tokio::test]
async fn questions_go_to_the_only_call_and_their_answers_to_the_server() {
    let (link, mut out, rest) = link();
    let one = Arc::new(Heard::default());
    tell(&link, r#"{"jsonrpc":"2.0","id":"a","method":"roots/list"}"#);
    rest.take_request().reply.answer(Ok(serde_json::from_str(r#"{"roots":[]}"#).unwrap()));
    assert_eq!(next(&mut out), r#"{"jsonrpc":"2.0","id":"a","result":{"roots":[]}}"#);

    let outgoing = call(1);
    let mut first = Box::pin(link.request(&outgoing, one.clone()));
    assert!(first.as_mut().now_or_never().is_none());
    next(&mut out);
    tell(&link, r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#);
    assert_eq!(next(&mut out), r#"{"jsonrpc":"2.0","id":8,"result":{}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","id":8,"method":"elicitation/create","params":{}}"#);
    let asked: UpstreamRequest = one.take_request();
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":8}}"#);
    assert!(asked.cancelled.is_cancelled());
    drop(asked);
    assert!(out.try_recv().is_err());
}

#[tokio::test]
async fn a_subscription_is_told_by_its_id_and_ended_by_the_server() {
    let (link, mut out, rest) = link();
    link.opened(&crate::testing::negotiated(Revision::MODERN));
    let (feed, one) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
    let outgoing = Outgoing::new(1, "subscriptions/listen", Some("{}"));
    let mut listen = Box::pin(link.request(&outgoing, feed.clone()));
    let outgoing = call(2);
    let mut first = Box::pin(link.request(&outgoing, one.clone()));
    assert!(listen.as_mut().now_or_never().is_none() && first.as_mut().now_or_never().is_none());
    next(&mut out);
    next(&mut out);
    let meta = r#"{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}"#;
    tell(&link, &format!(r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{meta}}}"#));
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":2}}"#);
    // No requests in this era.
    tell(&link, r#"{"jsonrpc":"2.0","id":3,"method":"roots/list"}"#);
    assert!(next(&mut out).contains("-32601"));
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#);
    tell(&link, r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert!(matches!(listen.await, Err(LinkError::Lost(_))));
    assert!(first.as_mut().now_or_never().is_none(), "only subscriptions are ended so");
    assert_eq!(feed.methods(), ["notifications/tools/list_changed"]);
    assert_eq!(one.methods(), ["notifications/message"]);
    assert!(rest.methods().is_empty());
}

#[tokio::test]
async fn what_cannot_be_sent_fails_alone() {
    let (link, mut out, _) = link();
    let outgoing = call(1);
    let mut first = Box::pin(link.request(&outgoing, Arc::new(Heard::default())));
    let outgoing = call(2);
    let mut second = Box::pin(link.request(&outgoing, Arc::new(Heard::default())));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    assert_eq!(out.try_recv().unwrap().request, Some(1));
    link.failed(1, LinkError::Unreachable("no".into()));
    link.failed(7, LinkError::Unreachable("nothing".into()));
    assert!(matches!(first.await, Err(LinkError::Unreachable(_))));
    assert!(second.as_mut().now_or_never().is_none());
}

#[tokio::test]
async fn when_the_link_breaks_everything_fails_at_once() {
    let (link, mut out, _) = link();
    let outgoing = call(1);
    let mut first = Box::pin(link.request(&outgoing, Arc::new(Heard::default())));
    assert!(first.as_mut().now_or_never().is_none());
    next(&mut out);
    link.broken(&LinkError::Lost("it died".into()));
    link.broken(&LinkError::Lost("again".into()));
    assert!(matches!(first.await, Err(LinkError::Lost(why)) if why == "it died"));
    assert!(link.closed().is_cancelled());
    let late = link.request(&call(2), Arc::new(Heard::default())).await;
    assert!(matches!(late, Err(LinkError::Unreachable(_))));
    assert!(link.notify("notifications/initialized", None).await.is_err());
}
