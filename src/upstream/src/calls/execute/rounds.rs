//! A stateless server that needs input ends the round with that, and the call goes on in another one that brings the
//! answers (2026-07-28/basic/patterns/mrtr). Each round is sent once, and only after the server itself has said that the
//! one before ended without a result: together they are the one run of the change.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, value::RawValue};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{input_required, unreadable};
use countersign_protocol::{
    McpError, RequestId,
    edit::{Op, edit, member, members, string},
    rpc_error::RpcError,
};
use countersign_provider::{
    Inquirer,
    request::{Replier, UpstreamRequest},
};

/// Rounds of one call at most.
const MAX_ROUNDS: usize = 16;
/// Questions of one round at most.
const MAX_QUESTIONS: usize = 64;
/// Before a round for which nothing was asked; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What the next round brings.
#[derive(Default)]
pub(super) struct Rounds {
    made: usize,
    responses: Option<String>,
    state: Option<String>,
}

impl Rounds {
    /// The parameters of the call, with what this round brings beside them.
    pub(super) fn continued(&self, params: &str) -> String {
        let mut edits = Vec::new();
        for (key, value) in [("inputResponses", &self.responses), ("requestState", &self.state)] {
            if let Some(value) = value {
                edits.push((key, Op::Set(value.as_str())));
            }
        }
        if edits.is_empty() { params.to_owned() } else { edit(params, &edits) }
    }

    /// Has the client asked what a result needs. `false` where it needs nothing.
    ///
    /// # Errors
    /// `INPUT_REQUIRED` where it gets no answer that it could go on with; nothing was done then.
    pub(super) async fn ask(&mut self, result: &str, inquirer: &dyn Inquirer) -> Result<bool, McpError> {
        if member(result, "resultType").and_then(string).is_none_or(|kind| kind != "input_required") {
            return Ok(false);
        }
        self.made += 1;
        if self.made >= MAX_ROUNDS {
            return Err(input_required("it asks again and again"));
        }
        let requests = member(result, "inputRequests").filter(|requests| requests.starts_with('{'));
        self.state = member(result, "requestState").map(ToOwned::to_owned);
        let requests: Vec<_> = requests.into_iter().flat_map(members).collect();
        if requests.is_empty() {
            if self.state.is_none() {
                return Err(unreadable("it needs input and does not say which"));
            }
            self.responses = None;
            let doubled = PAUSE.saturating_mul(1 << self.made.min(10));
            tokio::time::sleep(doubled.min(LONGEST_PAUSE)).await;
            return Ok(true);
        }
        if requests.len() > MAX_QUESTIONS {
            return Err(input_required("it asks too much at once"));
        }
        // Until all are answered; given up, they are taken back.
        let taken_back = CancellationToken::new();
        let _taken_back = taken_back.clone().drop_guard();
        let asked = requests.iter().map(|request| {
            let (answer, answered) = oneshot::channel();
            inquirer.ask(UpstreamRequest {
                id: RequestId::from_raw(&Value::from(request.key.as_ref()).to_string()),
                method: member(request.value, "method").and_then(string).unwrap_or_default().into_owned(),
                params: member(request.value, "params").and_then(|params| RawValue::from_string(params.into()).ok()),
                reply: Replier::new(move |outcome| drop(answer.send(outcome))),
                cancelled: taken_back.clone(),
            });
            answered
        });
        let answers: Vec<_> = join_all(asked.collect::<Vec<_>>()).await;
        let mut responses = String::from("{");
        for (request, answer) in requests.iter().zip(answers) {
            let answer: Result<_, RpcError> =
                answer.unwrap_or_else(|_| Err(RpcError::new(-32603, "the question was given up")));
            let answer = answer.map_err(|error| input_required(&error.message))?;
            if responses.len() > 1 {
                responses.push(',');
            }
            responses.push_str(&Value::from(request.key.as_ref()).to_string());
            responses.push(':');
            responses.push_str(answer.get());
        }
        responses.push('}');
        self.responses = Some(responses);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use countersign_protocol::{ErrorKind, capabilities::ClientCapabilities};

    /// Answers all but what `declines` names.
    struct Client(ClientCapabilities, Mutex<Vec<String>>);

    impl Inquirer for Client {
        fn capabilities(&self) -> &ClientCapabilities {
            &self.0
        }

        fn ask(&self, question: UpstreamRequest) {
            let id = question.id.as_json().to_owned();
            let answer = match question.method.as_str() {
                "sampling/createMessage" => Err(RpcError::new(-32601, "no model here")),
                _ => Ok(RawValue::from_string(format!(r#"{{"action":"accept","content":{{"of":{id}}}}}"#)).unwrap()),
            };
            self.1.lock().unwrap().push(id);
            question.reply.answer(answer);
        }
    }

    #[tokio::test]
    async fn a_round_brings_every_answer_and_the_state_as_it_came() {
        let client = Client(ClientCapabilities::default(), Mutex::default());
        let mut rounds = Rounds::default();
        let params = r#"{"name":"t","arguments":{"n":1.0}}"#;
        assert_eq!(rounds.continued(params), params);
        assert!(!rounds.ask(r#"{"content":[],"resultType":"complete"}"#, &client).await.unwrap());
        assert!(!rounds.ask(r#"{"content":[]}"#, &client).await.unwrap());
        let asks = r#"{"resultType":"input_required","requestState":"a\u0041","inputRequests":{"x":{"method":"elicitation/create","params":{}},"y":{"method":"roots/list"}}}"#;
        assert!(rounds.ask(asks, &client).await.unwrap());
        assert_eq!(client.1.lock().unwrap().as_slice(), [r#""x""#, r#""y""#]);
        assert_eq!(
            rounds.continued(params),
            r#"{"name":"t","arguments":{"n":1.0},"inputResponses":{"x":{"action":"accept","content":{"of":"x"}},"y":{"action":"accept","content":{"of":"y"}}},"requestState":"a\u0041"}"#
        );
        assert!(rounds.ask(r#"{"resultType":"input_required","requestState":"b"}"#, &client).await.unwrap());
        assert_eq!(
            rounds.continued(params),
            r#"{"name":"t","arguments":{"n":1.0},"requestState":"b"}"#,
            "its last words count"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_answered_ends_the_call_for_certain() {
        let client = Client(ClientCapabilities::default(), Mutex::default());
        let model = r#"{"resultType":"input_required","inputRequests":{"x":{"method":"sampling/createMessage"}}}"#;
        let error = Rounds::default().ask(model, &client).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InputRequired);
        let error = Rounds::default().ask(r#"{"resultType":"input_required"}"#, &client).await.unwrap_err();
        assert_eq!(error.data["outcome"], "unknown");
        let mut rounds = Rounds { made: MAX_ROUNDS, ..Rounds::default() };
        let state = r#"{"resultType":"input_required","requestState":"b"}"#;
        assert_eq!(rounds.ask(state, &client).await.unwrap_err().kind, ErrorKind::InputRequired);
    }
}
