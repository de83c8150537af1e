//! Rounds of a call to a stateless server. A server that needs input ends a round with a result that asks questions,
//! and the next round carries the answers (2026-07-28/basic/patterns/mrtr). Each round is sent once, after the server
//! has ended the previous one without a final result. The caller decides who answers. The bridge asks its client, and
//! an approved change asks its proposer.

use std::time::Duration;

use serde_json::value::RawValue;

use countersign_net::Backoff;
use countersign_protocol::{
    McpError,
    json::{Member, member, members, quoted},
};

/// The maximum number of rounds of a call.
pub const MAX_ROUNDS: usize = 16;
/// The maximum number of questions of a round.
pub const MAX_QUESTIONS: usize = 64;
/// The pauses before rounds without questions.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// The state between the rounds of one call.
#[derive(Default)]
pub struct InputRounds {
    count: usize,
    pauses: u32,
    responses: Option<String>,
    state: Option<String>,
}

/// The reason why there is no further round.
#[derive(Debug)]
pub enum RoundError {
    /// The server needs input but gives neither questions nor a state.
    NothingAsked,
    /// The server asks more than [`MAX_QUESTIONS`] questions at once.
    TooManyQuestions,
    /// The call needs more than [`MAX_ROUNDS`] rounds.
    TooManyRounds,
    /// A question was not answered in a way that lets the call continue.
    Unanswered(McpError),
}

impl InputRounds {
    /// Returns the parameters that this round adds to the call's own, as JSON.
    pub fn extra_params(&self) -> Vec<(&'static str, &str)> {
        let values = [("inputResponses", &self.responses), ("requestState", &self.state)];
        values.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?))).collect()
    }

    /// Prepares the next round. `ask` returns one answer for each question, in order; without questions, this waits a
    /// little.
    ///
    /// # Errors
    /// See [`RoundError`].
    pub async fn next<'r>(
        &mut self,
        result: &'r str,
        ask: impl AsyncFnOnce(&[Member<'r>]) -> Result<Vec<Box<RawValue>>, McpError>,
    ) -> Result<(), RoundError> {
        self.count += 1;
        if self.count >= MAX_ROUNDS {
            return Err(RoundError::TooManyRounds);
        }
        let requests = member(result, "inputRequests").filter(|requests| requests.starts_with('{'));
        let requests: Vec<_> = requests.into_iter().flat_map(members).collect();
        self.state = member(result, "requestState").map(ToOwned::to_owned);
        self.responses = None;
        if requests.len() > MAX_QUESTIONS {
            return Err(RoundError::TooManyQuestions);
        }
        if requests.is_empty() {
            if self.state.is_none() {
                return Err(RoundError::NothingAsked);
            }
            tokio::time::sleep(BACKOFF.pause_without_jitter(self.pauses)).await;
            self.pauses += 1;
            return Ok(());
        }
        let answers = ask(&requests).await.map_err(RoundError::Unanswered)?;
        let answers = requests.iter().zip(answers);
        let answers = answers.map(|(request, answer)| format!("{}:{}", quoted(&request.key), answer.get()));
        self.responses = Some(format!("{{{}}}", answers.collect::<Vec<_>>().join(",")));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_protocol::ErrorKind;

    async fn answer_all(requests: &[Member<'_>]) -> Result<Vec<Box<RawValue>>, McpError> {
        let model = Some(r#""sampling/createMessage""#);
        if requests.iter().any(|request| member(request.value, "method") == model) {
            return Err(McpError::new(ErrorKind::InputRequired, "no model here"));
        }
        let answer =
            |request: &Member<'_>| RawValue::from_string(format!(r#"{{"of":{}}}"#, quoted(&request.key))).unwrap();
        Ok(requests.iter().map(answer).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn round_carries_all_answers_and_verbatim_state() {
        let mut rounds = InputRounds::default();
        assert!(rounds.extra_params().is_empty());
        let asks = r#"{"resultType":"input_required","requestState":"a\u0041","inputRequests":{"x":{"method":"elicitation/create","params":{}},"y\"":{"method":"roots/list"}}}"#;
        rounds.next(asks, answer_all).await.unwrap();
        let responses = r#"{"x":{"of":"x"},"y\"":{"of":"y\""}}"#;
        assert_eq!(rounds.extra_params(), [("inputResponses", responses), ("requestState", r#""a\u0041""#)]);
        rounds.next(r#"{"resultType":"input_required","requestState":"b"}"#, answer_all).await.unwrap();
        assert_eq!(rounds.extra_params(), [("requestState", r#""b""#)], "the latest state replaces the earlier one");
        let bare = r#"{"resultType":"input_required","inputRequests":{"x":{"method":"roots/list"}}}"#;
        rounds.next(bare, answer_all).await.unwrap();
        assert_eq!(rounds.extra_params(), [("inputResponses", r#"{"x":{"of":"x"}}"#)]);
    }

    #[tokio::test(start_paused = true)]
    async fn unanswerable_round_ends_call() {
        let model = r#"{"inputRequests":{"x":{"method":"sampling/createMessage"}}}"#;
        let Err(RoundError::Unanswered(error)) = InputRounds::default().next(model, answer_all).await else { panic!() };
        assert_eq!(error.kind, ErrorKind::InputRequired);
        for nothing in [r#"{"resultType":"input_required"}"#, r#"{"inputRequests":{}}"#, r#"{"inputRequests":[7]}"#] {
            assert!(
                matches!(InputRounds::default().next(nothing, answer_all).await, Err(RoundError::NothingAsked)),
                "{nothing}"
            );
        }
        let many = (0..=MAX_QUESTIONS).map(|n| format!(r#""{n}":{{"method":"roots/list"}}"#)).collect::<Vec<_>>();
        let many = format!(r#"{{"inputRequests":{{{}}}}}"#, many.join(","));
        assert!(matches!(InputRounds::default().next(&many, answer_all).await, Err(RoundError::TooManyQuestions)));
        let mut rounds = InputRounds::default();
        let again = r#"{"requestState":"b"}"#;
        for _ in 1..MAX_ROUNDS {
            rounds.next(again, answer_all).await.unwrap();
        }
        assert!(matches!(rounds.next(again, answer_all).await, Err(RoundError::TooManyRounds)));
    }
}
