//! The changes that run now and may ask the clients of their proposers, and what those say to them.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::sync::{mpsc, oneshot};

use countersign_protocol::{ErrorKind, McpError};

/// What is said to one change and waits for the Executor.
const QUEUE: usize = 64;

/// How long another node may take to hear what is said to a change that it runs.
pub(super) const HEARD: Duration = Duration::from_secs(5);

/// An answer, or why there is none.
pub type Said = Result<Arc<RawValue>, String>;

/// What a client says of the questions of its change.
pub(super) enum Word {
    Answers { by: String, answers: Vec<(String, Said)> },
    GiveUp { by: String },
}

impl Word {
    /// As one node tells another.
    pub(super) fn told(&self) -> String {
        let text = |answer: &Said| match answer {
            // As text, so that not a byte of it changes.
            Ok(answer) => json!({ "said": answer.get() }),
            Err(why) => json!({ "none": why }),
        };
        match self {
            Self::Answers { by, answers } => {
                let answers: Vec<_> = answers.iter().map(|(key, answer)| json!([key, text(answer)])).collect();
                json!({ "by": by, "answers": answers }).to_string()
            }
            Self::GiveUp { by } => json!({ "by": by }).to_string(),
        }
    }

    /// As [`Self::told`]; `None` for what is nothing of the kind.
    pub(super) fn heard(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Answer {
            said: Option<String>,
            none: Option<String>,
        }
        #[derive(Deserialize)]
        struct Told {
            by: String,
            answers: Option<Vec<(String, Answer)>>,
        }
        let Told { by, answers } = serde_json::from_str(text).ok()?;
        let Some(answers) = answers else { return Some(Self::GiveUp { by }) };
        let answers = answers.into_iter().map(|(key, answer)| {
            let said = answer.said.and_then(|text| RawValue::from_string(text).ok()).map(Arc::from);
            (key, said.ok_or_else(|| answer.none.unwrap_or_default()))
        });
        Some(Self::Answers { by, answers: answers.collect() })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_node_tells_another_is_told_to_the_byte() {
        let raw = |text: &str| -> Said { Ok(Arc::from(RawValue::from_string(text.to_owned()).unwrap())) };
        let answers = vec![
            ("a".to_owned(), raw(r#"{ "x":1.50, "big":1e400, "\u0041": 12345678901234567890 }"#)),
            ("b".to_owned(), Err("nobody was there".to_owned())),
        ];
        let Some(Word::Answers { by, answers: heard }) =
            Word::heard(&Word::Answers { by: "agent".into(), answers: answers.clone() }.told())
        else {
            panic!("it is an answer")
        };
        assert_eq!(by, "agent");
        for ((key, said), (key_heard, heard)) in answers.iter().zip(&heard) {
            let text = |said: &Said| said.as_ref().map(|raw| raw.get().to_owned()).map_err(Clone::clone);
            assert_eq!((key, text(said)), (key_heard, text(heard)));
        }
        assert!(matches!(Word::heard(&Word::GiveUp { by: "x".into() }.told()), Some(Word::GiveUp { by }) if by == "x"));
        for wrong in ["", "{}", "[]", r#"{"by":1}"#] {
            assert!(Word::heard(wrong).is_none(), "{wrong}");
        }
    }
}
