//! The questions that a session's client was asked and has not answered yet.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use countersign_protocol::{RequestId, envelope};

/// Questions of one session that wait for their answers.
pub const MAX_OPEN: usize = 64;

/// A client's `result`, or its `error` object.
pub type ClientAnswer = Result<Box<RawValue>, Box<RawValue>>;

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

    /// One more question, and where its answer comes; `None` for one too many. [`Self::close`] must follow.
    pub fn open(&self) -> Option<(RequestId, oneshot::Receiver<ClientAnswer>)> {
        let id = RequestId::from_raw(&(self.last.fetch_add(1, Ordering::Relaxed) + 1).to_string());
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        open.insert(id.clone(), sender);
        Some((id, receiver))
    }

    /// Nobody waits for its answer any more.
    pub fn close(&self, id: &RequestId) {
        self.open.lock().remove(id);
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.open.lock().is_empty()
    }
}
