//! The changes that run now and may ask the clients of their proposers, and what those say to them.

use std::sync::Arc;

use dashmap::DashMap;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use countersign_protocol::{ErrorKind, McpError};

/// What is said to one change and waits for the Executor.
const QUEUE: usize = 64;

/// An answer, or why there is none.
pub type Said = Result<Arc<RawValue>, String>;

/// What a client says of the questions of its change.
pub(super) enum Word {
    Answers { by: String, answers: Vec<(String, Said)> },
    GiveUp { by: String },
}

/// What a client says, and where it hears that this is durable.
pub(super) type Heard = (Word, oneshot::Sender<Result<(), McpError>>);

/// The ways to the changes that run now and may ask.
#[derive(Default)]
pub(super) struct Inquiries(DashMap<String, mpsc::Sender<Heard>>);

impl Inquiries {
    /// What is said to this change from now on.
    pub(super) fn open(&self, id: &str) -> mpsc::Receiver<Heard> {
        let (sender, words) = mpsc::channel(QUEUE);
        self.0.insert(id.to_owned(), sender);
        words
    }

    pub(super) fn close(&self, id: &str) {
        self.0.remove(id);
    }

    /// Returns once it is durable, or where nobody listens.
    pub(super) async fn tell(&self, id: &str, word: Word) -> Result<(), McpError> {
        // One that does not run asks nothing.
        let Some(sender) = self.0.get(id).map(|sender| sender.clone()) else { return Ok(()) };
        let (done, heard) = oneshot::channel();
        match sender.try_send((word, done)) {
            Ok(()) => heard.await.unwrap_or(Ok(())),
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(McpError::new(ErrorKind::Overloaded, "Too many answers to this change are on their way; try again"))
            }
        }
    }
}
