//! Errors of a model that another program runs.

use std::time::Duration;

use countersign_protocol::redact::redact;
use countersign_provider::text::one_line;

/// The maximum number of characters of a server's response in an error.
const MAX_EXCERPT_CHARS: usize = 200;

/// An error of a model. Its text is one line for the log, with only the beginning of the response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("no connection: {0}")]
    Unreachable(String),
    #[error("too many requests wait for it")]
    Overloaded,
    #[error("the gateway is stopping")]
    Stopping,
    #[error("its key cannot be sent in a header")]
    InvalidKey,
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("it answered {status}: {excerpt}")]
    Status { status: u16, excerpt: String },
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("its answer is not what was asked for: {0}")]
    InvalidResponse(String),
    #[error("the call was cancelled")]
    Cancelled,
}

impl RemoteError {
    pub fn status(status: u16, body: &[u8]) -> Self {
        Self::Status { status, excerpt: excerpt(String::from_utf8_lossy(body).trim()) }
    }

    pub fn invalid_response(problem: impl AsRef<str>) -> Self {
        Self::InvalidResponse(excerpt(problem.as_ref()))
    }

    /// Returns the message for agents, without the server's response, which may contain a key.
    pub fn agent_message(&self) -> String {
        match self {
            Self::Unreachable(_) => "it cannot be reached".to_owned(),
            Self::Status { status, .. } => format!("it answered with the status {status}"),
            Self::InvalidResponse(_) => "its answer is not what was asked for".to_owned(),
            Self::Overloaded
            | Self::Stopping
            | Self::InvalidKey
            | Self::TimedOut(_)
            | Self::TooLong(_)
            | Self::Cancelled => self.to_string(),
        }
    }

    /// Returns `true` if another attempt a moment later may succeed. Returns `false` for a timeout, which has used up
    /// the time, and for 429, which asks for a longer pause.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Returns `true` if the text may be the reason, so that the model may accept other texts.
    pub fn may_concern_text(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 400 | 413 | 422 | 500),
            Self::InvalidResponse(_) | Self::TooLong(_) => true,
            _ => false,
        }
    }
}

/// Returns the beginning of a server's response. Secrets are removed before the cut, which could otherwise leave a part
/// of one.
fn excerpt(text: &str) -> String {
    one_line(&redact(text), MAX_EXCERPT_CHARS).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_never_ends_within_a_secret() {
        const SECRET: &str = "remote-secret-0123456789";
        countersign_protocol::redact::register_secrets([SECRET.to_owned()]);
        for before in MAX_EXCERPT_CHARS - SECRET.len()..=MAX_EXCERPT_CHARS {
            let text = format!("{}{SECRET} and more", "x".repeat(before));
            for error in [RemoteError::status(500, text.as_bytes()), RemoteError::invalid_response(&text)] {
                assert!(!error.to_string().contains("xr"), "{before}: {error}");
            }
        }
    }
}
