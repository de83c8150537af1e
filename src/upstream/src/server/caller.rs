//! The client for which an upstream is called, and its choice among interchangeable links.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::connection::UpstreamConnection;
use countersign_domain::principal::Principal;
use countersign_protocol::{negotiate::ClientCapabilities, params::LoggingLevel};

/// The client for which a request is sent to an upstream.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    /// The id of the client's handshake-era session, which gets its own link with `isolation: session`. `None` for
    /// stateless clients and for the Executor.
    pub session: Option<Arc<str>>,
    /// The client's capabilities, reduced by the configured `sampling` and `elicitation`.
    pub capabilities: ClientCapabilities,
    /// `true` if the client is stateless, so that questions to it are parked (2026-07-28/basic/patterns/mrtr).
    pub stateless: bool,
    /// The minimum severity of log messages that the client wants; `None` for no messages.
    pub log_level: Option<LoggingLevel>,
    /// The choice among the links that the client may use.
    pub link_choice: LinkChoice,
}

/// The choice of a link for a request. Work begun in one child process is unknown to the others, so follow-up requests
/// use the same link.
#[derive(Clone, Debug, Default)]
pub enum LinkChoice {
    /// Any suitable link.
    #[default]
    Any,
    /// Any suitable link, which is recorded for follow-up requests.
    Recording(Arc<Mutex<Option<Weak<UpstreamConnection>>>>),
    /// Only this link.
    Only(Weak<UpstreamConnection>),
}

impl LinkChoice {
    /// Records the link that the request uses, for its follow-up requests.
    #[must_use]
    pub fn recording() -> Self {
        Self::Recording(Arc::default())
    }

    /// Returns the choice for follow-up requests: the recorded link, if there is one.
    #[must_use]
    pub fn for_follow_up(&self) -> Self {
        match self {
            Self::Recording(recorded) => recorded.lock().clone().map_or(Self::Any, Self::Only),
            _ => self.clone(),
        }
    }

    pub(crate) fn record(&self, connection: &Arc<UpstreamConnection>) {
        if let Self::Recording(recorded) = self {
            *recorded.lock() = Some(Arc::downgrade(connection));
        }
    }

    /// Returns the only link that may be used, if there is one.
    pub(crate) fn required(&self) -> Option<&Weak<UpstreamConnection>> {
        if let Self::Only(connection) = self { Some(connection) } else { None }
    }
}
