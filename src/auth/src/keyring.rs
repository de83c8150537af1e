//! Says which keys are valid now, by their ids: a vote or a standing rule counts only while the key that gave it is.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::authenticator::FRESH;
use countersign_domain::{policy::KeyRoles, principal::Role};
use countersign_protocol::McpError;
use countersign_store::StoreError;

/// The roles of all keys that are not revoked.
pub type Held = HashMap<String, Role>;

/// Where they are read. Must see what another process has committed a moment ago.
pub trait HeldKeys: Send + Sync + 'static {
    /// # Errors
    /// Those of the store.
    fn held(&self) -> Result<Held, StoreError>;
}

/// See the module's page. Read at most once within [`FRESH`], as keys themselves are.
pub struct Keyring {
    source: Arc<dyn HeldKeys>,
    known: Mutex<Option<(Instant, Arc<Held>)>>,
    losses: AtomicU64,
}

impl Keyring {
    #[must_use]
    pub fn new(source: Arc<dyn HeldKeys>) -> Self {
        Self { source, known: Mutex::new(None), losses: AtomicU64::new(0) }
    }

    /// As it was read within that time.
    fn held(&self, now: Instant, within: Duration) -> Result<Arc<Held>, McpError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, held)) = &*known
            && now.saturating_duration_since(*read) < within
        {
            return Ok(Arc::clone(held));
        }
        let held = Arc::new(self.source.held().map_err(|error| {
            tracing::error!(%error, "cannot read which keys hold");
            error.to_mcp()
        })?);
        if known.as_ref().is_some_and(|(_, before)| before.iter().any(|(id, role)| held.get(id) != Some(role))) {
            self.losses.fetch_add(1, Ordering::AcqRel);
        }
        *known = Some((now, Arc::clone(&held)));
        Ok(held)
    }
}

impl KeyRoles for Keyring {
    fn role(&self, key_id: &str) -> Result<Option<Role>, McpError> {
        let now = Instant::now();
        if let Some(role) = self.held(now, FRESH)?.get(key_id) {
            return Ok(Some(*role));
        }
        // It may be newer than what was read.
        Ok(self.held(now, Duration::ZERO)?.get(key_id).copied())
    }

    fn losses(&self) -> Result<u64, McpError> {
        self.held(Instant::now(), FRESH)?;
        Ok(self.losses.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_protocol::ErrorKind;

    #[derive(Default)]
    struct Given(Mutex<Option<Held>>);
    impl HeldKeys for Given {
        fn held(&self) -> Result<Held, StoreError> {
            self.0.lock().unwrap().clone().ok_or(StoreError::Locked)
        }
    }

    #[test]
    fn a_key_holds_until_it_is_seen_to_be_revoked_and_what_cannot_be_known_is_no_yes() {
        let given = Arc::new(Given::default());
        let ring = Keyring::new(Arc::clone(&given) as _);
        assert_eq!(ring.role("a").unwrap_err().kind, ErrorKind::StoreUnavailable);
        let set = |keys: &[(&str, Role)]| {
            *given.0.lock().unwrap() = Some(keys.iter().map(|(id, role)| ((*id).into(), *role)).collect());
        };
        let began = Instant::now();
        let role = |id: &str, after: u32| ring.held(began + FRESH * after, FRESH).unwrap().get(id).copied();
        let losses = || ring.losses.load(Ordering::Acquire);
        set(&[("a", Role::Reviewer)]);
        assert_eq!((role("a", 1), role("b", 1)), (Some(Role::Reviewer), None));
        set(&[("a", Role::Reviewer), ("b", Role::Admin)]);
        assert_eq!((role("b", 1), role("b", 2), losses()), (None, Some(Role::Admin), 0), "a new key is no loss");
        set(&[("b", Role::Viewer)]);
        assert_eq!((role("a", 3), role("b", 3), losses()), (None, Some(Role::Viewer), 1));
        set(&[]);
        assert_eq!((role("b", 4), losses()), (None, 2));
        *given.0.lock().unwrap() = None;
        assert!(ring.held(began + FRESH * 5, FRESH).is_err(), "what was known is too old");

        let ring = Keyring::new(Arc::clone(&given) as _);
        set(&[("a", Role::Reviewer)]);
        assert_eq!(ring.role("a").unwrap(), Some(Role::Reviewer));
        set(&[("a", Role::Reviewer), ("new", Role::Admin)]);
        assert_eq!(ring.role("new").unwrap(), Some(Role::Admin), "a key that was made a moment ago");
    }
}
