use super::*;
use countersign_protocol::{RequestId, negotiate::ClientCapabilities, rpc_error::RpcError};
use countersign_provider::request::Replier;

const ALL_EXCEPT_ROOTS: ClientCapabilities = ClientCapabilities {
    elicitation_form: true,
    elicitation_url: true,
    sampling: true,
    sampling_tools: false,
    sampling_context: false,
    roots: false,
    extensions: None,
    experimental: None,
};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

type AnswerReceiver = oneshot::Receiver<Result<Box<RawValue>, RpcError>>;

fn question(id: &str, method: &str, params: Option<&str>) -> (UpstreamRequest, AnswerReceiver, CancellationToken) {
    let (sender, answer) = oneshot::channel();
    let cancelled = CancellationToken::new();
    let request = UpstreamRequest {
        id: RequestId::from_json(id).unwrap(),
        method: method.into(),
        params: params.map(raw),
        reply: Replier::new(move |answer| drop(sender.send(answer))),
        cancelled: cancelled.clone(),
    };
    (request, answer, cancelled)
}

/// Returns a running call, the sender of its upstream's questions, and the sender of its outcome.
fn running_call() -> (RunningCall, mpsc::Sender<UpstreamRequest>, oneshot::Sender<Result<Response, McpError>>) {
    let (questions, requests) = mpsc::channel(64);
    let (end, ended) = oneshot::channel();
    let work = Box::pin(async move { ended.await.unwrap() });
    let declared = r#"{"elicitation":{"form":{},"url":{}},"sampling":{}}"#;
    let client = StatelessClient::new(ALL_EXCEPT_ROOTS, declared.into(), "s".to_owned());
    (RunningCall::new(work, requests, client, Answers::new()), questions, end)
}

#[actix::test]
async fn failed_call_names_missing_capability_of_late_question() {
    for (result, is_missing) in [(r#"{"content":[],"isError":true}"#, true), (r#"{"content":[]}"#, false)] {
        let (mut running_call, questions, end) = running_call();
        let (roots, _answer, _) = question("1", "roots/list", None);
        questions.send(roots).await.unwrap();
        end.send(Ok(Response::Result(raw(result)))).ok().unwrap();
        let CallEvent::Done(outcome) = running_call.advance().await else { panic!("the call has ended") };
        let kind = outcome.err().map(|error| (error.kind, error.data["requiredCapabilities"].to_string()));
        let missing = Some((ErrorKind::MissingCapability, r#"{"roots":{}}"#.to_owned()));
        assert_eq!(kind, missing.filter(|_| is_missing));
    }
}

fn keys(event: &CallEvent) -> Vec<String> {
    match event {
        CallEvent::InputRequired(questions) => questions.iter().map(|question| question.key.clone()).collect(),
        CallEvent::Done(_) => Vec::new(),
    }
}

fn input(params: &str) -> Answers {
    RetryParams::parse(params).unwrap().answers
}

#[actix::test]
async fn simultaneous_questions_reach_client_together() {
    let (mut running_call, questions, _end) = running_call();
    let (first, mut first_answer, _) =
        question("\"user_name\"", "elicitation/create", Some(r#"{"message":"?","task":{}}"#));
    let (second, _t, _) = question("7", "sampling/createMessage", Some("{}"));
    let (third, _t3, _) = question("\"7\"", "elicitation/create", None);
    // The client did not declare roots, so the question is refused at once and never shown.
    let (roots, refused, _) = question("8", "roots/list", None);
    for request in [first, second, third, roots] {
        questions.try_send(request).ok().unwrap();
    }
    let event = running_call.advance().await;
    assert_eq!(keys(&event), ["user_name", "7", "7'"]);
    let CallEvent::InputRequired(asked_questions) = event else { unreachable!() };
    assert_eq!(
        asked_questions[0].params.as_deref(),
        Some(r#"{"message":"The server \"s\" asks, not Countersign: ?"}"#)
    );
    assert_eq!(refused.await.unwrap().unwrap_err().code, -32601);
    running_call.answer(input(r#"{"inputResponses":{"user_name":{"n":1.0},"extra":{},"7":3}}"#));
    assert_eq!(first_answer.try_recv().unwrap().unwrap().get(), r#"{"n":1.0}"#);
    assert_eq!(running_call.list_open_questions().len(), 2, "an answer that is not an object is ignored");
}

#[actix::test]
async fn early_answers_match_textual_ids_only() {
    let (mut running_call, questions, _end) = running_call();
    running_call.early_answers = input(r#"{"inputResponses":{"user_name":{"a":1},"7":{"a":2}}}"#);
    let (first, answer, _) = question("\"user_name\"", "elicitation/create", None);
    let (second, _t, _) = question("7", "elicitation/create", None);
    questions.try_send(first).ok().unwrap();
    questions.try_send(second).ok().unwrap();
    assert_eq!(keys(&running_call.advance().await), ["7"]);
    assert_eq!(answer.await.unwrap().unwrap().get(), r#"{"a":1}"#);
}

#[actix::test]
async fn cancelled_question_is_not_asked() {
    let (mut running_call, questions, end) = running_call();
    let (first, _answer, cancelled) = question("1", "elicitation/create", None);
    cancelled.cancel();
    questions.try_send(first).ok().unwrap();
    end.send(Ok(Response::Result(raw("{}")))).ok().unwrap();
    assert!(matches!(running_call.advance().await, CallEvent::Done(Ok(_))));
}

fn resume(answers: &str) -> (Retry, oneshot::Receiver<(CallEvent, u64)>) {
    let (reply, event) = oneshot::channel();
    (Retry { answers: input(answers), recipient: MessageRecipient::none(), reply }, event)
}

fn spawn_parked(running_call: RunningCall, parked_calls: &Arc<ParkedCalls>) -> mpsc::Sender<Retry> {
    let (relay, _requests) = Relay::with_questions(MessageRecipient::none());
    let (slot, retries) = parked_calls.reserve_slot("alice", "u", usize::MAX).unwrap();
    let sender = parked_calls.calls.lock()[&slot.reference.call].retries.clone();
    actix::spawn(run_parked(running_call, relay, slot, retries));
    sender
}

#[actix::test]
async fn parked_call_asks_repeatedly_until_its_result() {
    let (mut running_call, questions, end) = running_call();
    let (first, first_answer, _) = question("\"a\"", "elicitation/create", None);
    questions.try_send(first).ok().unwrap();
    running_call.advance().await;
    let parked_calls = ParkedCalls::new(None, Arc::new(StateSealer::new([7; 32]).unwrap()));
    let retries = spawn_parked(running_call, &parked_calls);

    let (incomplete, event) = resume("{}");
    retries.send(incomplete).await.ok().unwrap();
    let (event, ticket) = event.await.unwrap();
    assert_eq!((keys(&event), ticket), (vec!["a".to_owned()], 2));

    let (answered, event) = resume(r#"{"inputResponses":{"a":{}}}"#);
    retries.send(answered).await.ok().unwrap();
    assert_eq!(first_answer.await.unwrap().unwrap().get(), "{}");
    let (second, _second_answer, _) = question("\"b\"", "sampling/createMessage", None);
    questions.try_send(second).ok().unwrap();
    let (event, ticket) = event.await.unwrap();
    assert_eq!((keys(&event), ticket), (vec!["b".to_owned()], 3));

    // The upstream continues without the answer while the client is away.
    end.send(Ok(Response::Result(raw(r#"{"n":1.0}"#)))).ok().unwrap();
    let (late, event) = resume(r#"{"inputResponses":{"b":{}}}"#);
    retries.send(late).await.ok().unwrap();
    let (CallEvent::Done(Ok(Response::Result(result))), _) = event.await.unwrap() else { unreachable!() };
    assert_eq!(result.get(), r#"{"n":1.0}"#);
    retries.closed().await;
    assert!(parked_calls.count() == 0);
}

#[actix::test]
async fn dropped_retry_cancels_parked_call() {
    let (mut running_call, questions, end) = running_call();
    let (first, _answer, _) = question("\"a\"", "elicitation/create", None);
    questions.try_send(first).ok().unwrap();
    running_call.advance().await;
    let parked_calls = ParkedCalls::new(None, Arc::new(StateSealer::new([7; 32]).unwrap()));
    let retries = spawn_parked(running_call, &parked_calls);
    let (answered, event) = resume(r#"{"inputResponses":{"a":{}}}"#);
    retries.send(answered).await.ok().unwrap();
    drop(event);
    retries.closed().await;
    assert!(end.is_closed() && parked_calls.count() == 0);
}

#[actix::test]
async fn ticket_is_valid_once_and_slots_are_limited() {
    let parked_calls = ParkedCalls::new(None, Arc::new(StateSealer::new([7; 32]).unwrap()));
    let mut slots: Vec<_> =
        (0..MAX_CALLS_PER_PRINCIPAL).map(|_| parked_calls.reserve_slot("alice", "u", usize::MAX).unwrap()).collect();
    assert_eq!(parked_calls.reserve_slot("alice", "v", usize::MAX).err().unwrap().kind, ErrorKind::Overloaded);
    assert!(parked_calls.reserve_slot("bob", "u", usize::MAX).is_ok());
    let (slot, _) = &mut slots[0];
    let reference = slot.reference;
    assert!(parked_calls.redeem(&ParkedCallRef { ticket: 9, ..reference }).is_err());
    assert!(parked_calls.redeem(&reference).is_ok());
    assert!(parked_calls.redeem(&reference).is_err());
    slot.renew(true);
    assert!(parked_calls.redeem(&reference).is_err());
    assert!(parked_calls.redeem(&slot.reference).is_ok());
    drop(slots);
    assert!(parked_calls.count() == 0 && parked_calls.redeem(&reference).is_err());
}

#[actix::test]
async fn state_of_earlier_run_says_that_outcome_is_unknown() {
    let sealer = Arc::new(StateSealer::new([7; 32]).unwrap());
    let calls = [Some("a".to_owned()), None].map(|node| ParkedCalls::new(node, Arc::clone(&sealer)));
    let reference = ParkedCallRef { call: [1; 16], ticket: 2 };
    for calls in &calls {
        let state = calls.seal_reference(reference, &[1; 32]).unwrap();
        assert_eq!(calls.unseal_reference(&state, &[1; 32]), Ok(reference));
        let later = ParkedCalls::new(calls.node.clone(), Arc::clone(&sealer));
        assert!(later.unseal_reference(&state, &[1; 32]).unwrap_err().message.contains("has been restarted"));
    }
    let state = calls[0].seal_reference(reference, &[1; 32]).unwrap();
    assert!(state.starts_with("a.cp1."));
    let other_node = ParkedCalls::new(Some("b".to_owned()), sealer);
    assert!(other_node.unseal_reference(&state, &[1; 32]).unwrap_err().message.contains("or is gone"));
    assert!(other_node.unseal_reference(&state, &[2; 32]).unwrap_err().message.contains("is not valid"));
}

#[actix::test]
async fn oldest_call_with_absent_client_is_evicted_beyond_limit() {
    let parked_calls = ParkedCalls::new(None, Arc::new(StateSealer::new([7; 32]).unwrap()));
    let slots: Vec<_> = (0..3).map(|_| parked_calls.reserve_slot("alice", "u", 3).unwrap().0).collect();
    // The client of the first call is back.
    parked_calls.redeem(&slots[0].reference).unwrap();
    let _other = parked_calls.reserve_slot("alice", "v", 3).unwrap();
    assert_eq!(slots.iter().map(|slot| slot.evicted.is_cancelled()).collect::<Vec<_>>(), [false; 3]);
    let _fourth = parked_calls.reserve_slot("alice", "u", 3).unwrap();
    assert_eq!(slots.iter().map(|slot| slot.evicted.is_cancelled()).collect::<Vec<_>>(), [false, true, false]);
    assert!(parked_calls.redeem(&slots[1].reference).is_err() && parked_calls.redeem(&slots[2].reference).is_ok());
}

#[test]
fn malformed_retry_members_are_refused_or_ignored() {
    for bad in [
        r#"{"inputResponses":null}"#,
        r#"{"inputResponses":[]}"#,
        r#"{"requestState":1}"#,
        r#"{"requestState":"a","requestState":"b"}"#,
    ] {
        assert_eq!(RetryParams::parse(bad).unwrap_err().kind, ErrorKind::InvalidParams, "{bad}");
    }
    let input = RetryParams::parse(r#"{"requestState":"\u0061","inputResponses":{"\u0061":{ },"b":1}}"#).unwrap();
    assert_eq!(input.state.as_deref(), Some("a"));
    assert_eq!(input.answers.keys().collect::<Vec<_>>(), ["a"]);
}
