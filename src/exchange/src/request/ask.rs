//! Questions to handshake-era clients. A question is a request of the gateway, sent over the channel of the client's
//! request that it belongs to (2025-11-25/basic/transports, "Sending Messages to the Server"; 2025-11-25/client/*).

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::reply::RelatedChannel;
use crate::session::state::SessionState;
use countersign_protocol::{RequestId, encode};

/// The time that a client has for an answer, which may come from a person.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// The reason why a client did not answer a question with a result.
#[derive(Debug)]
pub enum AskError {
    /// The client answered with this `error` object.
    Refused(Box<RawValue>),
    /// The client cannot be asked. The text says why.
    CannotAsk(&'static str),
    /// The client took too long.
    TimedOut,
    /// The client's session has ended.
    SessionEnded,
}

/// Asks a client and waits for its answer. Dropping the future cancels the question (`notifications/cancelled`).
///
/// # Errors
/// See [`AskError`].
pub async fn ask(
    session: &Arc<SessionState>,
    related: &RelatedChannel,
    method: &str,
    params: Option<&str>,
) -> Result<Box<RawValue>, AskError> {
    match related {
        RelatedChannel::None => return Err(AskError::CannotAsk("the client accepts no event stream")),
        RelatedChannel::Queue(_) => {
            return Err(AskError::CannotAsk("a stateless client is not asked during a request"));
        }
        RelatedChannel::Outbox(_) | RelatedChannel::Stream(_) => {}
    }
    let (id, answer) =
        session.questions.open().ok_or(AskError::CannotAsk("too many questions to the client are open"))?;
    let mut question = OpenQuestion { session, related, id, needs_cancellation: false };
    if !related.send(encode::request(&question.id, method, params)) {
        return Err(AskError::CannotAsk("the client does not read"));
    }
    question.needs_cancellation = true;
    let answer = tokio::select! {
        answer = answer => answer.ok(),
        () = session.ended.cancelled() => None,
        () = tokio::time::sleep(ANSWER_TIMEOUT) => return Err(AskError::TimedOut),
    };
    question.needs_cancellation = false;
    match answer {
        Some(Ok(result)) => Ok(result),
        Some(Err(error)) => Err(AskError::Refused(error)),
        None => Err(AskError::SessionEnded),
    }
}

/// A question to a client. If it is dropped before the answer, it is cancelled at the client.
struct OpenQuestion<'a> {
    session: &'a Arc<SessionState>,
    related: &'a RelatedChannel,
    id: RequestId,
    /// `true` while the question was sent and not answered.
    needs_cancellation: bool,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.session.questions.close(&self.id);
        if self.needs_cancellation {
            let params = format!(r#"{{"requestId":{},"reason":"no answer is needed any more"}}"#, self.id);
            self.related.send(encode::notification("notifications/cancelled", Some(&params)));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        session::{
            outbox::{Outbox, OutboxLimits},
            questions::MAX_OPEN_QUESTIONS,
            state::{Channel, Transport},
        },
        testing::identity,
    };
    use countersign_domain::principal::Role;
    use countersign_protocol::envelope;

    fn session() -> (Arc<SessionState>, RelatedChannel) {
        let limits = OutboxLimits { messages: 200, bytes: 100_000, replay_frames: 0, replay_bytes: 0 };
        let channel = Channel::Outbox(Outbox::new(limits));
        let identity = identity("ann", Role::Agent);
        let session = Arc::new(SessionState::new(Transport::WebSocket, identity, channel, &CancellationToken::new()));
        (Arc::clone(&session), RelatedChannel::Outbox(session))
    }

    fn take_sent_messages(session: &SessionState) -> Vec<Value> {
        let Channel::Outbox(outbox) = &session.channel else { unreachable!() };
        let frames = outbox.drain(0, usize::MAX).map(|drained| drained.frames).unwrap_or_default();
        frames.iter().map(|frame| serde_json::from_slice(frame).unwrap()).collect()
    }

    fn answer(session: &SessionState, id: &str, outcome: Result<&str, &str>) {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let owned = outcome.map(raw).map_err(raw);
        let outcome = owned.as_ref().map(|raw| &**raw).map_err(|raw| &**raw);
        session.questions.deliver_answer(&envelope::Response { id: Some(RequestId::from_raw(id)), outcome });
    }

    #[tokio::test]
    async fn answer_reaches_question_with_its_id() {
        let (session, related) = session();
        let mut first = Box::pin(ask(&session, &related, "roots/list", None));
        let mut second = Box::pin(ask(&session, &related, "elicitation/create", Some("{}")));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        let questions = take_sent_messages(&session);
        assert_eq!((&questions[0]["method"], &questions[1]["params"]), (&json!("roots/list"), &json!({})));
        answer(&session, "77", Ok("{}"));
        answer(&session, &questions[1]["id"].to_string(), Err(r#"{"code":1}"#));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(matches!(second.await, Err(AskError::Refused(error)) if error.get() == r#"{"code":1}"#));
        answer(&session, &questions[0]["id"].to_string(), Ok(r#"{"n":1.0}"#));
        assert_eq!(first.await.unwrap().get(), r#"{"n":1.0}"#, "the answer is unchanged");
        assert!(take_sent_messages(&session).is_empty(), "answered questions are not cancelled");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_or_unanswered_question_is_cancelled() {
        let (session, related) = session();
        let mut dropped = Box::pin(ask(&session, &related, "roots/list", None));
        assert!(dropped.as_mut().now_or_never().is_none());
        let id = take_sent_messages(&session)[0]["id"].clone();
        drop(dropped);
        let messages = take_sent_messages(&session);
        assert_eq!(
            (&messages[0]["method"], &messages[0]["params"]["requestId"]),
            (&json!("notifications/cancelled"), &id)
        );
        // A question without an answer in time is cancelled, too.
        let silent = ask(&session, &related, "roots/list", None).await;
        assert!(matches!(silent, Err(AskError::TimedOut)));
        assert_eq!(take_sent_messages(&session)[1]["method"], "notifications/cancelled");
        assert!(session.questions.is_empty());
    }

    #[tokio::test]
    async fn unreachable_client_fails_question_at_once() {
        let (session, related) = session();
        let unreachable = |answer: Option<Result<_, AskError>>| matches!(answer, Some(Err(AskError::CannotAsk(_))));
        assert!(unreachable(ask(&session, &RelatedChannel::None, "roots/list", None).now_or_never()));
        assert!(take_sent_messages(&session).is_empty());
        let mut open: Vec<_> =
            (0..MAX_OPEN_QUESTIONS).map(|_| Box::pin(ask(&session, &related, "roots/list", None))).collect();
        open.iter_mut().for_each(|ask| assert!(ask.as_mut().now_or_never().is_none()));
        assert!(unreachable(ask(&session, &related, "roots/list", None).now_or_never()), "too many questions are open");
        open.pop();
        assert!(ask(&session, &related, "roots/list", None).now_or_never().is_none(), "there is room again");
        session.end();
        assert!(matches!(open.pop().unwrap().await, Err(AskError::SessionEnded)));
    }
}
