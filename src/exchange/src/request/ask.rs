//! Questions to handshake-era clients: requests of the gateway, sent where the request that they belong to is answered
//! (2025-11-25/basic/transports, "Sending Messages to the Server"; 2025-11-25/client/*).

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::related::Related;
use crate::session::shared::SessionShared;
use countersign_protocol::{RequestId, encode};

/// The time that a client has for an answer, which may come from a person.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Why a client did not answer a question with a result.
#[derive(Debug)]
pub enum AskError {
    /// Its `error` object.
    Refused(Box<RawValue>),
    /// It cannot be asked: it takes no stream, or too many questions are open.
    Unreachable(&'static str),
    /// It took too long.
    Silent,
    /// Its session has ended.
    Gone,
}

/// Asks a client and waits for its answer. Dropping the future takes the question back
/// (`notifications/cancelled`).
///
/// # Errors
/// See [`AskError`].
pub async fn ask(
    session: &Arc<SessionShared>,
    related: &Related,
    method: &str,
    params: Option<&str>,
) -> Result<Box<RawValue>, AskError> {
    if matches!(related, Related::Nowhere | Related::Queue(_)) {
        return Err(AskError::Unreachable("the client takes no event stream"));
    }
    let (id, answer) =
        session.questions.open().ok_or(AskError::Unreachable("too many questions to the client are open"))?;
    let mut question = Open { session, related, id, sent: false };
    if !related.send(encode::request(&question.id, method, params)) {
        return Err(AskError::Unreachable("the client does not read"));
    }
    question.sent = true;
    let answer = tokio::select! {
        answer = answer => answer.ok(),
        () = session.ended.cancelled() => None,
        () = tokio::time::sleep(PATIENCE) => return Err(AskError::Silent),
    };
    question.sent = false;
    match answer {
        Some(Ok(result)) => Ok(result),
        Some(Err(error)) => Err(AskError::Refused(error)),
        None => Err(AskError::Gone),
    }
}

/// Takes a question back that was not answered, however its wait ends.
struct Open<'a> {
    session: &'a Arc<SessionShared>,
    related: &'a Related,
    id: RequestId,
    /// And not answered.
    sent: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.session.questions.close(&self.id);
        if self.sent {
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
            questions::MAX_OPEN,
            shared::{Channel, Transport},
        },
        testing::identity,
    };
    use countersign_domain::principal::Role;
    use countersign_protocol::envelope;

    fn session() -> (Arc<SessionShared>, Related) {
        let limits = OutboxLimits { messages: 200, bytes: 100_000, replay_frames: 0, replay_bytes: 0 };
        let channel = Channel::Outbox(Outbox::new(limits));
        let identity = identity("ann", Role::Agent);
        let session = Arc::new(SessionShared::new(Transport::WebSocket, identity, channel, &CancellationToken::new()));
        (Arc::clone(&session), Related::Outbox(session))
    }

    fn sent(session: &SessionShared) -> Vec<Value> {
        let Channel::Outbox(outbox) = &session.channel else { unreachable!() };
        let frames = outbox.drain(0, usize::MAX).map(|drained| drained.frames).unwrap_or_default();
        frames.iter().map(|frame| serde_json::from_slice(frame).unwrap()).collect()
    }

    fn answer(session: &SessionShared, id: &str, outcome: Result<&str, &str>) {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let owned = outcome.map(raw).map_err(raw);
        let outcome = owned.as_ref().map(|raw| &**raw).map_err(|raw| &**raw);
        session.questions.answered(&envelope::Response { id: Some(RequestId::from_raw(id)), outcome });
    }

    #[tokio::test]
    async fn each_answer_goes_to_the_question_that_it_names() {
        let (session, related) = session();
        let mut first = Box::pin(ask(&session, &related, "roots/list", None));
        let mut second = Box::pin(ask(&session, &related, "elicitation/create", Some("{}")));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        let asked = sent(&session);
        assert_eq!((&asked[0]["method"], &asked[1]["params"]), (&json!("roots/list"), &json!({})));
        answer(&session, "77", Ok("{}"));
        answer(&session, &asked[1]["id"].to_string(), Err(r#"{"code":1}"#));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(matches!(second.await, Err(AskError::Refused(error)) if error.get() == r#"{"code":1}"#));
        answer(&session, &asked[0]["id"].to_string(), Ok(r#"{"n":1.0}"#));
        assert_eq!(first.await.unwrap().get(), r#"{"n":1.0}"#, "as the client wrote it");
        assert!(sent(&session).is_empty(), "what was answered is not taken back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_nobody_waits_for_is_taken_back() {
        let (session, related) = session();
        let mut dropped = Box::pin(ask(&session, &related, "roots/list", None));
        assert!(dropped.as_mut().now_or_never().is_none());
        let id = sent(&session)[0]["id"].clone();
        drop(dropped);
        let told = sent(&session);
        assert_eq!((&told[0]["method"], &told[0]["params"]["requestId"]), (&json!("notifications/cancelled"), &id));
        // So is one that was not answered in time.
        let silent = ask(&session, &related, "roots/list", None).await;
        assert!(matches!(silent, Err(AskError::Silent)));
        assert_eq!(sent(&session)[1]["method"], "notifications/cancelled");
        assert!(session.questions.is_empty());
    }

    #[tokio::test]
    async fn who_cannot_be_asked_is_not_waited_for() {
        let (session, related) = session();
        let unreachable = |answer: Option<Result<_, AskError>>| matches!(answer, Some(Err(AskError::Unreachable(_))));
        assert!(unreachable(ask(&session, &Related::Nowhere, "roots/list", None).now_or_never()));
        assert!(sent(&session).is_empty());
        let mut open: Vec<_> = (0..MAX_OPEN).map(|_| Box::pin(ask(&session, &related, "roots/list", None))).collect();
        open.iter_mut().for_each(|ask| assert!(ask.as_mut().now_or_never().is_none()));
        assert!(unreachable(ask(&session, &related, "roots/list", None).now_or_never()), "one too many");
        open.pop();
        assert!(ask(&session, &related, "roots/list", None).now_or_never().is_none(), "there is room again");
        session.end();
        assert!(matches!(open.pop().unwrap().await, Err(AskError::Gone)));
    }
}
