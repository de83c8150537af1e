//! Questions to handshake-era clients: requests of the gateway, sent where the request that they belong to is answered
//! (2025-11-25/basic/transports, "Sending Messages to the Server"; 2025-11-25/client/*).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::shared::SessionShared;
use crate::context::Related;
use countersign_protocol::{RequestId, encode, envelope};

/// Questions of one session that wait for their answers.
const MAX_OPEN: usize = 64;

/// How long a client has for an answer: there may be a person behind it.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A client's `result`, or its `error` object.
type ClientAnswer = Result<Box<RawValue>, Box<RawValue>>;

/// The open questions of a session.
#[derive(Default)]
pub struct Questions {
    last: AtomicU64,
    open: Mutex<HashMap<RequestId, oneshot::Sender<ClientAnswer>>>,
}

impl Questions {
    /// Takes a client's answer; one that belongs to no open question is ignored.
    pub fn answered(&self, response: &envelope::Response<'_>) {
        let Some(id) = &response.id else { return };
        let Some(waiting) = self.open.lock().remove(id) else { return };
        let answer = response.outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
        // Whoever asked may be gone by now.
        let _ = waiting.send(answer);
    }

    fn open(&self) -> Option<(RequestId, oneshot::Receiver<ClientAnswer>)> {
        let id = RequestId::from_raw(&(self.last.fetch_add(1, Ordering::Relaxed) + 1).to_string());
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        open.insert(id.clone(), sender);
        Some((id, receiver))
    }
}

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
        self.session.questions.open.lock().remove(&self.id);
        if self.sent {
            let params = format!(r#"{{"requestId":{},"reason":"no answer is needed any more"}}"#, self.id);
            self.related.send(encode::notification("notifications/cancelled", Some(&params)));
        }
    }
}
