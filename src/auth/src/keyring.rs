//! Caches the holders of all valid keys and the revoked people of the identity provider. A vote or a standing rule
//! counts only while its key is valid.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::authenticator::MAX_KEY_AGE;
use countersign_domain::{
    changes::Absence,
    policy::{KeyHolder, KeyHolders},
};
use countersign_protocol::McpError;
use countersign_store::{StoreError, people::Holders};

/// The source of valid keys.
pub trait ValidKeySource: Send + Sync + 'static {
    /// Reads the holders of all keys that are not revoked, and the people of the identity provider. What other processes have
    /// just stored may be missing.
    ///
    /// # Errors
    /// Errors of the store.
    fn holders(&self) -> Result<Holders, StoreError>;

    /// Reads the same holders, with all that other processes have stored.
    ///
    /// # Errors
    /// Errors of the store.
    fn newest_holders(&self) -> Result<Holders, StoreError>;

    /// Reads all absences, with all that other processes have stored.
    ///
    /// # Errors
    /// Errors of the store.
    fn absences(&self) -> Result<Vec<Absence>, StoreError>;
}

/// The holders of valid keys. They are read at most once per [`MAX_KEY_AGE`], and again for a key that is not among
/// them.
pub struct Keyring {
    source: Arc<dyn ValidKeySource>,
    cached: Mutex<Option<(Instant, Arc<Holders>)>>,
    /// The number of reads that found a key or a person with fewer rights than the read before.
    revocation_count: AtomicU64,
}

impl Keyring {
    pub fn new(source: Arc<dyn ValidKeySource>) -> Self {
        Self { source, cached: Mutex::new(None), revocation_count: AtomicU64::new(0) }
    }

    /// Returns the holders from the cache if they are younger than [`MAX_KEY_AGE`], otherwise from the source.
    fn read_holders(&self, now: Instant) -> Result<Arc<Holders>, McpError> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, holders)) = &*cached
            && now.saturating_duration_since(*read_at) < MAX_KEY_AGE
        {
            return Ok(Arc::clone(holders));
        }
        self.replace(&mut cached, self.source.holders(), now)
    }

    fn read_newest_holders(&self) -> Result<Arc<Holders>, McpError> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        self.replace(&mut cached, self.source.newest_holders(), now)
    }

    fn replace(
        &self,
        cached: &mut Option<(Instant, Arc<Holders>)>,
        read: Result<Holders, StoreError>,
        read_at: Instant,
    ) -> Result<Arc<Holders>, McpError> {
        let holders = Arc::new(read.map_err(|error| {
            tracing::error!(%error, "cannot read the valid keys");
            error.to_mcp()
        })?);
        if cached.as_ref().is_some_and(|(_, before)| has_lost_rights(before, &holders)) {
            self.revocation_count.fetch_add(1, Ordering::AcqRel);
        }
        *cached = Some((read_at, Arc::clone(&holders)));
        Ok(holders)
    }
}

/// Returns `true` if a decision that was valid before may not be valid now.
fn has_lost_rights(before: &Holders, now: &Holders) -> bool {
    let groups = |holder: &KeyHolder| holder.claims.as_ref().map(|claims| claims.groups.clone());
    let has_same_rights = |a: &KeyHolder, b: &KeyHolder| a.role == b.role && groups(a) == groups(b);
    before.keys.iter().any(|(id, holder)| !now.keys.get(id).is_some_and(|now| has_same_rights(holder, now)))
        || before.revoked_people != now.revoked_people
        || before.people_without_role != now.people_without_role
}

impl KeyHolders for Keyring {
    fn holder(&self, key_id: &str) -> Result<Option<KeyHolder>, McpError> {
        if let Some(holder) = self.read_holders(Instant::now())?.keys.get(key_id) {
            return Ok(Some(holder.clone()));
        }
        // The key may be newer than the cached holders.
        Ok(self.read_newest_holders()?.keys.get(key_id).cloned())
    }

    fn refresh(&self) -> Result<(), McpError> {
        self.read_newest_holders().map(drop)
    }

    fn absences(&self) -> Result<Vec<Absence>, McpError> {
        self.source.absences().map_err(|error| {
            tracing::error!(%error, "cannot read the absences");
            error.to_mcp()
        })
    }

    fn is_person_revoked(&self, name: &str) -> Result<bool, McpError> {
        Ok(self.read_holders(Instant::now())?.revoked_people.contains(name))
    }

    fn revocations(&self) -> Result<u64, McpError> {
        self.read_holders(Instant::now())?;
        Ok(self.revocation_count.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::principal::{Claims, Role};
    use countersign_protocol::ErrorKind;

    #[derive(Default)]
    struct FakeSource {
        copied: Mutex<Option<Holders>>,
        stored: Mutex<Option<Holders>>,
    }

    impl FakeSource {
        fn set_copied(&self, holders: Option<Holders>) {
            *self.copied.lock().unwrap() = holders;
        }
        /// Sets the stored holders, and the copy too.
        fn set(&self, holders: Option<Holders>) {
            self.stored.lock().unwrap().clone_from(&holders);
            self.set_copied(holders);
        }
    }

    impl ValidKeySource for FakeSource {
        fn holders(&self) -> Result<Holders, StoreError> {
            self.copied.lock().unwrap().clone().ok_or(StoreError::Locked)
        }
        fn newest_holders(&self) -> Result<Holders, StoreError> {
            self.stored.lock().unwrap().clone().ok_or(StoreError::Locked)
        }
        fn absences(&self) -> Result<Vec<Absence>, StoreError> {
            Ok(Vec::new())
        }
    }

    fn holder(role: Role) -> KeyHolder {
        KeyHolder { role, claims: None }
    }

    fn holders(keys: &[(&str, Role)]) -> Option<Holders> {
        let keys = keys.iter().map(|(id, role)| ((*id).into(), holder(*role))).collect();
        Some(Holders { keys, ..Holders::default() })
    }

    #[test]
    fn key_is_valid_until_revocation_is_read() {
        let source = Arc::new(FakeSource::default());
        let ring = Keyring::new(Arc::clone(&source) as _);
        assert_eq!(ring.holder("a").unwrap_err().kind, ErrorKind::StoreUnavailable);
        let set = |keys: &[(&str, Role)]| source.set(holders(keys));
        let started_at = Instant::now();
        let role = |id: &str, after: u32| {
            let holders = ring.read_holders(started_at + MAX_KEY_AGE * after).unwrap();
            holders.keys.get(id).map(|holder| holder.role)
        };
        let revocations = || ring.revocation_count.load(Ordering::Acquire);
        set(&[("a", Role::Reviewer)]);
        assert_eq!((role("a", 1), role("b", 1)), (Some(Role::Reviewer), None));
        set(&[("a", Role::Reviewer), ("b", Role::Admin)]);
        assert_eq!((role("b", 1), role("b", 2), revocations()), (None, Some(Role::Admin), 0), "a new key is no loss");
        set(&[("b", Role::Viewer)]);
        assert_eq!((role("a", 3), role("b", 3), revocations()), (None, Some(Role::Viewer), 1));
        set(&[]);
        assert_eq!((role("b", 4), revocations()), (None, 2));
        source.set(None);
        assert!(ring.read_holders(started_at + MAX_KEY_AGE * 5).is_err(), "the cached keys are too old");

        let ring = Keyring::new(Arc::clone(&source) as _);
        set(&[("a", Role::Reviewer)]);
        assert_eq!(ring.holder("a").unwrap(), Some(holder(Role::Reviewer)));
        set(&[("a", Role::Reviewer), ("new", Role::Admin)]);
        assert_eq!(ring.holder("new").unwrap(), Some(holder(Role::Admin)), "a key that was made a moment ago");
    }

    #[test]
    fn holder_that_the_copy_lacks_is_read_from_the_store() {
        let source = Arc::new(FakeSource::default());
        let ring = Keyring::new(Arc::clone(&source) as _);
        source.set(holders(&[("a", Role::Reviewer)]));
        source.set_copied(holders(&[]));
        assert_eq!(ring.holder("a").unwrap(), Some(holder(Role::Reviewer)), "signed in at another node");
        source.set(holders(&[("a", Role::Admin)]));
        source.set_copied(holders(&[("a", Role::Reviewer)]));
        assert_eq!(ring.holder("a").unwrap(), Some(holder(Role::Reviewer)), "the holders are cached");
        ring.refresh().unwrap();
        assert_eq!(ring.holder("a").unwrap(), Some(holder(Role::Admin)));
    }

    #[test]
    fn lost_group_and_revoked_person_count_as_revocations() {
        let holders = |group: &str, revoked: &[&str]| {
            let claims = Claims { groups: vec![group.into()], ..Claims::default() };
            let holder = KeyHolder { role: Role::Reviewer, claims: Some(Arc::new(claims)) };
            let revoked_people = revoked.iter().map(|name| (*name).to_owned()).collect();
            Holders { keys: [("person:a".to_owned(), holder)].into(), revoked_people, people_without_role: 0 }
        };
        assert!(!has_lost_rights(&holders("dba", &[]), &holders("dba", &[])));
        assert!(has_lost_rights(&holders("dba", &[]), &holders("ops", &[])));
        assert!(has_lost_rights(&holders("dba", &[]), &holders("dba", &["b"])));
        assert!(has_lost_rights(&holders("dba", &["a"]), &holders("dba", &["b"])));
        let one_without_role = Holders { people_without_role: 1, ..holders("dba", &[]) };
        assert!(has_lost_rights(&holders("dba", &[]), &one_without_role));
    }
}
