//! Selects among interchangeable links for follow-up requests, because work begun in one child process is unknown to
//! the others.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::connection::UpstreamConnection;

/// The choice of a link for a request.
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
