//! Chooses which of several equal links a request takes: what was begun in one child process is unknown to the others.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::held::Held;

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub struct Pinned(Choice);

#[derive(Clone, Debug, Default)]
enum Choice {
    /// Any that fits.
    #[default]
    Any,
    /// Any that fits, and which it was is noted.
    Noted(Arc<Mutex<Option<Weak<Held>>>>),
    /// This one.
    Only(Weak<Held>),
}

impl Pinned {
    /// Which link the request takes is noted, for what follows it.
    #[must_use]
    pub fn noted() -> Self {
        Self(Choice::Noted(Arc::default()))
    }

    /// For what follows: the link that was noted last, if any.
    #[must_use]
    pub fn settled(&self) -> Self {
        match &self.0 {
            Choice::Noted(noted) => Self(noted.lock().clone().map_or(Choice::Any, Choice::Only)),
            _ => self.clone(),
        }
    }

    pub(crate) fn note(&self, held: &Arc<Held>) {
        if let Choice::Noted(noted) = &self.0 {
            *noted.lock() = Some(Arc::downgrade(held));
        }
    }

    /// The only link that will do.
    pub(crate) fn to(&self) -> Option<&Weak<Held>> {
        match &self.0 {
            Choice::Only(held) => Some(held),
            _ => None,
        }
    }
}
