//! Selects among interchangeable links for follow-up requests, because work begun in one child process is unknown to
//! the others.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::connection::UpstreamConnection;

/// The choice of a link for a request.
#[derive(Clone, Debug, Default)]
pub struct LinkChoice(Selection);

#[derive(Clone, Debug, Default)]
enum Selection {
    /// Any suitable link.
    #[default]
    Any,
    /// Any suitable link, which is recorded.
    Recording(Arc<Mutex<Option<Weak<UpstreamConnection>>>>),
    /// Only this link.
    Only(Weak<UpstreamConnection>),
}

impl LinkChoice {
    /// Records the link that the request uses, for its follow-up requests.
    #[must_use]
    pub fn recording() -> Self {
        Self(Selection::Recording(Arc::default()))
    }

    /// Returns the choice for follow-up requests: the recorded link, if there is one.
    #[must_use]
    pub fn for_follow_up(&self) -> Self {
        match &self.0 {
            Selection::Recording(recorded) => Self(recorded.lock().clone().map_or(Selection::Any, Selection::Only)),
            _ => self.clone(),
        }
    }

    pub(crate) fn record(&self, connection: &Arc<UpstreamConnection>) {
        if let Selection::Recording(recorded) = &self.0 {
            *recorded.lock() = Some(Arc::downgrade(connection));
        }
    }

    /// Returns the only link that may be used, if there is one.
    pub(crate) fn required(&self) -> Option<&Weak<UpstreamConnection>> {
        match &self.0 {
            Selection::Only(connection) => Some(connection),
            _ => None,
        }
    }
}
