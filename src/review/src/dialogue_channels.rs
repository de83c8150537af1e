//! Channels that carry the answers of clients to the running changes whose tools ask questions.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use countersign_domain::changes::{Change, Dialogue};
use countersign_protocol::{ErrorKind, McpError};

/// The maximum number of messages to one change that wait for the Executor.
const MESSAGE_QUEUE_CAPACITY: usize = 64;

/// The longest wait for another node to confirm a message to a change that it runs.
pub(super) const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer, or the reason why there is none.
pub type DialogueAnswer = Result<Arc<RawValue>, String>;

/// A client's message about the questions of its change.
#[derive(Serialize, Deserialize)]
pub(super) enum DialogueMessage {
    Answers {
        by: String,
        answers: Vec<(String, DialogueAnswer)>,
    },
    // Older nodes send it under this name.
    #[serde(rename = "GiveUp")]
    Cancel {
        by: String,
    },
}

impl DialogueMessage {
    /// Returns `true` if the message closes a question of the change that is still open.
    pub(super) fn closes_question(&self, change: &Change) -> bool {
        let mut open = change.dialogue.iter().flat_map(Dialogue::open_questions);
        match self {
            Self::Answers { answers, .. } => open.any(|question| answers.iter().any(|(key, _)| *key == question.key)),
            Self::Cancel { .. } => open.next().is_some(),
        }
    }

    /// Serializes the message for another node. An answer's bytes stay as they are.
    pub(super) fn to_json(&self) -> Result<String, McpError> {
        serde_json::to_string(self).map_err(|_| McpError::new(ErrorKind::Internal, "The answer could not be passed on"))
    }

    /// Parses the output of [`Self::to_json`]; `None` if the text is something else.
    pub(super) fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// A message, and the reply channel that confirms it is durable.
pub(super) type PendingMessage = (DialogueMessage, oneshot::Sender<Result<(), McpError>>);

/// Channels to the running changes that may ask questions.
#[derive(Default)]
pub(super) struct DialogueChannels(DashMap<String, mpsc::Sender<PendingMessage>>);

impl DialogueChannels {
    /// Opens the channel of a change.
    pub(super) fn open(&self, id: &str) -> mpsc::Receiver<PendingMessage> {
        let (sender, messages) = mpsc::channel(MESSAGE_QUEUE_CAPACITY);
        self.0.insert(id.to_owned(), sender);
        messages
    }

    pub(super) fn close(&self, id: &str) {
        self.0.remove(id);
    }

    /// Sends a message and waits until it is durable. Returns at once if the change has no open channel.
    pub(super) async fn send(&self, id: &str, message: DialogueMessage) -> Result<(), McpError> {
        // A change without a channel does not run and has no questions.
        let Some(sender) = self.0.get(id).map(|sender| sender.clone()) else { return Ok(()) };
        let (reply, stored) = oneshot::channel();
        match sender.try_send((message, reply)) {
            Ok(()) => stored.await.unwrap_or(Ok(())),
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(McpError::new(ErrorKind::Overloaded, "Too many answers to this change are being stored; try again"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::{ChangeState, dialogue::Question, testing::change};

    #[test]
    fn message_without_an_open_question_needs_no_confirmation() {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let question = |key: &str, closed_at| Question {
            key: key.into(),
            method: "elicitation/create".into(),
            params: None,
            at,
            closed_at,
            answer: None,
            unanswered: None,
        };
        let with_questions = |questions| {
            let client = Arc::from(RawValue::from_string("{}".into()).unwrap());
            let dialogue = Some(Dialogue { questions, ..Dialogue::new(client) });
            Change { dialogue, ..change("a", "agent", 4, ChangeState::Executing) }
        };
        let answer = |key: &str| DialogueMessage::Answers {
            by: "agent".into(),
            answers: vec![(key.to_owned(), Err("nobody was there".to_owned()))],
        };
        let cancel = DialogueMessage::Cancel { by: "agent".into() };
        let one_open = with_questions(vec![question("closed", Some(at)), question("open", None)]);
        assert!(answer("open").closes_question(&one_open) && cancel.closes_question(&one_open));
        assert!(!answer("closed").closes_question(&one_open) && !answer("never asked").closes_question(&one_open));
        let none_open = with_questions(vec![question("closed", Some(at))]);
        assert!(!answer("closed").closes_question(&none_open) && !cancel.closes_question(&none_open));
        assert!(!cancel.closes_question(&change("a", "agent", 1, ChangeState::Executing)));
    }

    #[test]
    fn message_between_nodes_keeps_every_byte() {
        let raw = |text: &str| -> DialogueAnswer { Ok(Arc::from(RawValue::from_string(text.to_owned()).unwrap())) };
        let answers = vec![
            ("a".to_owned(), raw(r#"{ "x":1.50, "big":1e400, "\u0041": 12345678901234567890 }"#)),
            ("b".to_owned(), Err("nobody was there".to_owned())),
        ];
        let Some(DialogueMessage::Answers { by, answers: received }) = DialogueMessage::from_json(
            &DialogueMessage::Answers { by: "agent".into(), answers: answers.clone() }.to_json().unwrap(),
        ) else {
            panic!("the message must contain answers")
        };
        assert_eq!(by, "agent");
        for ((sent_key, sent), (received_key, received)) in answers.iter().zip(&received) {
            let text = |answer: &DialogueAnswer| answer.as_ref().map(|raw| raw.get().to_owned()).map_err(Clone::clone);
            assert_eq!((sent_key, text(sent)), (received_key, text(received)));
        }
        assert!(
            matches!(DialogueMessage::from_json(&DialogueMessage::Cancel { by: "x".into() }.to_json().unwrap()), Some(DialogueMessage::Cancel { by }) if by == "x")
        );
        for wrong in ["", "{}", "[]", r#"{"by":1}"#] {
            assert!(DialogueMessage::from_json(wrong).is_none(), "{wrong}");
        }
    }
}
