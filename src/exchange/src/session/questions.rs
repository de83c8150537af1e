//! The open questions of the gateway to a session's client.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use countersign_protocol::{RequestId, envelope};

/// The maximum number of open questions of one session.
pub const MAX_OPEN_QUESTIONS: usize = 64;

/// The client's `result` or its `error` object.
pub type ClientAnswer = Result<Box<RawValue>, Box<RawValue>>;

/// The open questions of a session.
#[derive(Default)]
pub struct Questions {
    last_id: AtomicU64,
    open: Mutex<HashMap<RequestId, oneshot::Sender<ClientAnswer>>>,
}

impl Questions {
    /// Passes a client's answer to the task that waits for it. An answer that matches no open question is ignored.
    pub fn deliver_answer(&self, response: &envelope::Response<'_>) {
        let Some(id) = &response.id else { return };
        let Some(sender) = self.open.lock().remove(id) else { return };
        let answer = response.outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
        // The task that asked may be gone.
        let _ = sender.send(answer);
    }

    /// Opens a question and returns its id and the receiver of its answer. Returns `None` if too many are open.
    /// [`Self::close`] must follow.
    pub fn open(&self) -> Option<(RequestId, oneshot::Receiver<ClientAnswer>)> {
        let id = RequestId::from_raw(&(self.last_id.fetch_add(1, Ordering::Relaxed) + 1).to_string());
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN_QUESTIONS {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        open.insert(id.clone(), sender);
        Some((id, receiver))
    }

    /// Closes a question whose answer is no longer awaited.
    pub fn close(&self, id: &RequestId) {
        self.open.lock().remove(id);
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.open.lock().is_empty()
    }
}
