//! A stateless server that needs input ends the round with that, and the call goes on in another one that brings the
//! answers (2026-07-28/basic/patterns/mrtr). Each round is sent once, and only after the server itself has said that the
//! one before ended without a result: together they are one call. Who is asked, and how, is the caller's affair: the bridge
//! asks a client, an approved change whoever proposed it.

use std::time::Duration;

use serde_json::value::RawValue;

use countersign_net::Backoff;
use countersign_protocol::{
    McpError,
    json::{Member, member, members, quoted},
};

/// Rounds of one call at most.
pub const MAX_ROUNDS: usize = 16;
/// Questions of one round at most.
pub const MAX_QUESTIONS: usize = 64;
/// The pauses before rounds for which nothing was asked.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// The rounds of one call.
#[derive(Default)]
pub struct Rounds {
    made: usize,
    pauses: u32,
    responses: Option<String>,
    state: Option<String>,
}

/// Why there is no other round.
#[derive(Debug)]
pub enum Stop {
    /// It needs input and names neither questions nor a state.
    AsksNothing,
    /// More than [`MAX_QUESTIONS`] at once.
    TooMany,
    /// More than [`MAX_ROUNDS`].
    TooOften,
    /// Somebody who was asked gave no answer that it could go on with.
    Unanswered(McpError),
}

impl Rounds {
    /// What this round brings beside the call's own parameters, as JSON.
    #[must_use]
    pub fn brings(&self) -> Vec<(&'static str, &str)> {
        let values = [("inputResponses", &self.responses), ("requestState", &self.state)];
        values.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?))).collect()
    }

    /// Has `ask` find the answers to what a result needs, one for each question and in their order; waits a little where
    /// nothing is asked.
    ///
    /// # Errors
    /// See [`Stop`].
    pub async fn next<'r>(
        &mut self,
        result: &'r str,
        ask: impl AsyncFnOnce(&[Member<'r>]) -> Result<Vec<Box<RawValue>>, McpError>,
    ) -> Result<(), Stop> {
        self.made += 1;
        if self.made >= MAX_ROUNDS {
            return Err(Stop::TooOften);
        }
        let requests = member(result, "inputRequests").filter(|requests| requests.starts_with('{'));
        let requests: Vec<_> = requests.into_iter().flat_map(members).collect();
        self.state = member(result, "requestState").map(ToOwned::to_owned);
        self.responses = None;
        if requests.len() > MAX_QUESTIONS {
            return Err(Stop::TooMany);
        }
        if requests.is_empty() {
            if self.state.is_none() {
                return Err(Stop::AsksNothing);
            }
            tokio::time::sleep(BACKOFF.step(self.pauses)).await;
            self.pauses += 1;
            return Ok(());
        }
        let answers = ask(&requests).await.map_err(Stop::Unanswered)?;
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

    async fn answered(requests: &[Member<'_>]) -> Result<Vec<Box<RawValue>>, McpError> {
        let model = Some(r#""sampling/createMessage""#);
        if requests.iter().any(|request| member(request.value, "method") == model) {
            return Err(McpError::new(ErrorKind::InputRequired, "no model here"));
        }
        let answer =
            |request: &Member<'_>| RawValue::from_string(format!(r#"{{"of":{}}}"#, quoted(&request.key))).unwrap();
        Ok(requests.iter().map(answer).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_brings_every_answer_and_the_state_as_it_came() {
        let mut rounds = Rounds::default();
        assert!(rounds.brings().is_empty());
        let asks = r#"{"resultType":"input_required","requestState":"a\u0041","inputRequests":{"x":{"method":"elicitation/create","params":{}},"y\"":{"method":"roots/list"}}}"#;
        rounds.next(asks, answered).await.unwrap();
        let responses = r#"{"x":{"of":"x"},"y\"":{"of":"y\""}}"#;
        assert_eq!(rounds.brings(), [("inputResponses", responses), ("requestState", r#""a\u0041""#)]);
        rounds.next(r#"{"resultType":"input_required","requestState":"b"}"#, answered).await.unwrap();
        assert_eq!(rounds.brings(), [("requestState", r#""b""#)], "its last words count");
        let bare = r#"{"resultType":"input_required","inputRequests":{"x":{"method":"roots/list"}}}"#;
        rounds.next(bare, answered).await.unwrap();
        assert_eq!(rounds.brings(), [("inputResponses", r#"{"x":{"of":"x"}}"#)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_answered_ends_the_call() {
        let model = r#"{"inputRequests":{"x":{"method":"sampling/createMessage"}}}"#;
        let Err(Stop::Unanswered(error)) = Rounds::default().next(model, answered).await else { panic!() };
        assert_eq!(error.kind, ErrorKind::InputRequired);
        for nothing in [r#"{"resultType":"input_required"}"#, r#"{"inputRequests":{}}"#, r#"{"inputRequests":[7]}"#] {
            assert!(matches!(Rounds::default().next(nothing, answered).await, Err(Stop::AsksNothing)), "{nothing}");
        }
        let many = (0..=MAX_QUESTIONS).map(|n| format!(r#""{n}":{{"method":"roots/list"}}"#)).collect::<Vec<_>>();
        let many = format!(r#"{{"inputRequests":{{{}}}}}"#, many.join(","));
        assert!(matches!(Rounds::default().next(&many, answered).await, Err(Stop::TooMany)));
        let mut rounds = Rounds::default();
        let again = r#"{"requestState":"b"}"#;
        for _ in 1..MAX_ROUNDS {
            rounds.next(again, answered).await.unwrap();
        }
        assert!(matches!(rounds.next(again, answered).await, Err(Stop::TooOften)));
    }
}
