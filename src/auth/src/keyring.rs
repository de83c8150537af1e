//! Knows the ids of all keys that are valid now. A vote or a standing rule counts only while its key is valid.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::authenticator::MAX_KEY_AGE;
use countersign_domain::{policy::KeyRoles, principal::Role};
use countersign_protocol::McpError;
use countersign_store::StoreError;

/// The roles of all keys that are not revoked, by key id.
pub type ValidKeys = HashMap<String, Role>;

/// The source of valid keys. It must see what other processes have just committed.
pub trait ValidKeySource: Send + Sync + 'static {
    /// Reads all keys that are not revoked.
    ///
    /// # Errors
    /// Errors of the store.
    fn valid_keys(&self) -> Result<ValidKeys, StoreError>;
}

/// The valid keys, read at most once per [`MAX_KEY_AGE`].
pub struct Keyring {
    source: Arc<dyn ValidKeySource>,
    cached: Mutex<Option<(Instant, Arc<ValidKeys>)>>,
    revocation_count: AtomicU64,
}

impl Keyring {
    #[must_use]
    pub fn new(source: Arc<dyn ValidKeySource>) -> Self {
        Self { source, cached: Mutex::new(None), revocation_count: AtomicU64::new(0) }
    }

    /// Returns the keys from the cache if they are younger than `max_age`, otherwise from the source.
    fn read_keys(&self, now: Instant, max_age: Duration) -> Result<Arc<ValidKeys>, McpError> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, valid_keys)) = &*cached
            && now.saturating_duration_since(*read_at) < max_age
        {
            return Ok(Arc::clone(valid_keys));
        }
        let valid_keys = Arc::new(self.source.valid_keys().map_err(|error| {
            tracing::error!(%error, "cannot read the valid keys");
            error.to_mcp()
        })?);
        if cached.as_ref().is_some_and(|(_, before)| before.iter().any(|(id, role)| valid_keys.get(id) != Some(role))) {
            self.revocation_count.fetch_add(1, Ordering::AcqRel);
        }
        *cached = Some((now, Arc::clone(&valid_keys)));
        Ok(valid_keys)
    }
}

impl KeyRoles for Keyring {
    fn role(&self, key_id: &str) -> Result<Option<Role>, McpError> {
        let now = Instant::now();
        if let Some(role) = self.read_keys(now, MAX_KEY_AGE)?.get(key_id) {
            return Ok(Some(*role));
        }
        // The key may be newer than the cache.
        Ok(self.read_keys(now, Duration::ZERO)?.get(key_id).copied())
    }

    fn revocations(&self) -> Result<u64, McpError> {
        self.read_keys(Instant::now(), MAX_KEY_AGE)?;
        Ok(self.revocation_count.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_protocol::ErrorKind;

    #[derive(Default)]
    struct FakeSource(Mutex<Option<ValidKeys>>);
    impl ValidKeySource for FakeSource {
        fn valid_keys(&self) -> Result<ValidKeys, StoreError> {
            self.0.lock().unwrap().clone().ok_or(StoreError::Locked)
        }
    }

    #[test]
    fn key_is_valid_until_revocation_is_read() {
        let given = Arc::new(FakeSource::default());
        let ring = Keyring::new(Arc::clone(&given) as _);
        assert_eq!(ring.role("a").unwrap_err().kind, ErrorKind::StoreUnavailable);
        let set = |keys: &[(&str, Role)]| {
            *given.0.lock().unwrap() = Some(keys.iter().map(|(id, role)| ((*id).into(), *role)).collect());
        };
        let began = Instant::now();
        let role =
            |id: &str, after: u32| ring.read_keys(began + MAX_KEY_AGE * after, MAX_KEY_AGE).unwrap().get(id).copied();
        let revocations = || ring.revocation_count.load(Ordering::Acquire);
        set(&[("a", Role::Reviewer)]);
        assert_eq!((role("a", 1), role("b", 1)), (Some(Role::Reviewer), None));
        set(&[("a", Role::Reviewer), ("b", Role::Admin)]);
        assert_eq!((role("b", 1), role("b", 2), revocations()), (None, Some(Role::Admin), 0), "a new key is no loss");
        set(&[("b", Role::Viewer)]);
        assert_eq!((role("a", 3), role("b", 3), revocations()), (None, Some(Role::Viewer), 1));
        set(&[]);
        assert_eq!((role("b", 4), revocations()), (None, 2));
        *given.0.lock().unwrap() = None;
        assert!(ring.read_keys(began + MAX_KEY_AGE * 5, MAX_KEY_AGE).is_err(), "the cached keys are too old");

        let ring = Keyring::new(Arc::clone(&given) as _);
        set(&[("a", Role::Reviewer)]);
        assert_eq!(ring.role("a").unwrap(), Some(Role::Reviewer));
        set(&[("a", Role::Reviewer), ("new", Role::Admin)]);
        assert_eq!(ring.role("new").unwrap(), Some(Role::Admin), "a key that was made a moment ago");
    }
}
