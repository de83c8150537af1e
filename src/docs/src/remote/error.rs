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
    Status { status: u16, said: String },
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("its answer is not what was asked for: {0}")]
    Garbage(String),
    #[error("the call was given up")]
    Cancelled,
}

impl RemoteError {
    pub fn status(status: u16, body: &[u8]) -> Self {
        Self::Status { status, said: told(String::from_utf8_lossy(body).trim()) }
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
            Self::Late(_) | Self::TooLong(_) | Self::Cancelled => self.to_string(),
        }
    }

    /// Returns `true` if another attempt a moment later may go better. One that was too slow has used its time up, and
    /// one that was told to wait (429) is not to ask again so soon.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
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
            for error in [RemoteError::status(500, text.as_bytes()), RemoteError::garbage(&text)] {
                assert!(!error.to_string().contains("xr"), "{before}: {error}");
            }
        }
    }
}
