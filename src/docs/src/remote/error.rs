//! What goes wrong with a model that another program runs.

use std::time::Duration;

use countersign_protocol::redact::redacted;
use countersign_provider::text::one_line;

/// Characters of a server's own words that are told.
const TOLD: usize = 200;

/// In one line for the log, with no more of an answer than its beginning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("no connection: {0}")]
    Unreachable(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("it answered {status}: {said}")]
    Status {
        status: u16,
        said: String,
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("its answer is not what was asked for: {0}")]
    Garbage(String),
    #[error("it failed several times and is left alone for a while")]
    Open,
    #[error("the call was given up")]
    Cancelled,
}

impl RemoteError {
    pub fn status(status: u16, body: &[u8], after: Option<Duration>) -> Self {
        Self::Status { status, said: told(String::from_utf8_lossy(body).trim()), after }
    }

    pub fn garbage(why: impl AsRef<str>) -> Self {
        Self::Garbage(told(why.as_ref()))
    }

    /// What agents are told: nothing that the server said, in which a key may stand.
    pub fn for_agents(&self) -> String {
        match self {
            Self::Unreachable(_) => "it cannot be reached".to_owned(),
            Self::Status { status, .. } => format!("it answered with the status {status}"),
            Self::Garbage(_) => "its answer is not what was asked for".to_owned(),
            Self::Late(_) | Self::TooLong(_) | Self::Open | Self::Cancelled => self.to_string(),
        }
    }

    /// Whether another attempt may go better.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Late(_) => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            Self::TooLong(_) | Self::Garbage(_) | Self::Open | Self::Cancelled => false,
        }
    }

    /// Whether it says that the server is in trouble, and not the request.
    pub fn counts(&self) -> bool {
        self.passes() || matches!(self, Self::Garbage(_) | Self::TooLong(_))
    }
}

/// Returns the beginning of a server's own words. Secrets go before the cut, which could leave the beginning of one.
fn told(text: &str) -> String {
    one_line(&redacted(text), TOLD).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_ends_within_no_secret() {
        const SECRET: &str = "remote-secret-0123456789";
        countersign_protocol::redact::keep_secret([SECRET.to_owned()]);
        for before in TOLD - SECRET.len()..=TOLD {
            let text = format!("{}{SECRET} and more", "x".repeat(before));
            for error in [RemoteError::status(500, text.as_bytes(), None), RemoteError::garbage(&text)] {
                assert!(!error.to_string().contains("xr"), "{before}: {error}");
            }
        }
    }
}
