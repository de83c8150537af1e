//! A copy of the keys, the people and the used sign-ins of a remote database, so that requests need not wait for its answers.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::{
    StoreError,
    error::no_answer,
    keys::{ApiKey, SignIn, is_touch_due},
    people::{Holders, StoredPerson},
};
use countersign_domain::principal::SecretHash;

/// The maximum age of a copy in use. If only this gateway cannot reach the database, keys may have been revoked
/// meanwhile.
const MAX_COPY_AGE: Duration = Duration::from_secs(10);

/// The records that are copied, as one refresh reads them.
pub(crate) struct KeyRecords {
    pub keys: HashMap<SecretHash, ApiKey>,
    /// The people by name.
    pub people: BTreeMap<String, StoredPerson>,
    /// The versions of all sign-ins. The sign-ins themselves would be too large for every refresh, because they contain tokens.
    pub sign_in_versions: HashMap<SecretHash, String>,
    /// The start of the read.
    pub read_at: Instant,
}

/// The copy, which the backend refreshes several times a second.
pub(crate) struct KeyCopy(RwLock<CopyState>);

struct CopyState {
    records: KeyRecords,
    /// The sign-ins that were used here, with their versions. A sign-in with another version in the database is removed.
    sign_ins: HashMap<SecretHash, (String, SignIn)>,
    /// The time at which this process last wrote a key, or wrote or read a single person.
    changed_at: Option<Instant>,
    /// The server did not answer the last refresh in time.
    is_silent: bool,
}

impl CopyState {
    /// Checks that the server has answered the last refresh in time. A look-up blocks the thread of its caller, and would delay
    /// all other requests there.
    fn check_server_answers(&self) -> Result<(), StoreError> {
        if self.is_silent { Err(no_answer()) } else { Ok(()) }
    }
}

impl KeyCopy {
    pub fn new(records: KeyRecords) -> Self {
        Self(RwLock::new(CopyState { records, sign_ins: HashMap::new(), changed_at: None, is_silent: false }))
    }

    /// Records whether the server has failed to answer the last refresh in time.
    pub fn set_silent(&self, is_silent: bool) {
        self.0.write().is_silent = is_silent;
    }

    /// Replaces the copy with records that were read from the database.
    pub fn replace(&self, mut read: KeyRecords) {
        let mut copy = self.0.write();
        let CopyState { records, sign_ins, changed_at, .. } = &mut *copy;
        if changed_at.is_some_and(|changed| changed >= read.read_at) {
            // The copy may have newer rows than this read.
            read.keys.extend(std::mem::take(&mut records.keys));
            read.people.append(&mut records.people);
        }
        // A use that was recorded here may not have been stored before the read.
        for (hash, key) in &mut read.keys {
            let recorded = records.keys.get(hash).and_then(|known| known.last_used_at);
            key.last_used_at = key.last_used_at.max(recorded);
        }
        sign_ins.retain(|id, (version, _)| read.sign_in_versions.get(id) == Some(&*version));
        *records = read;
    }

    /// Returns the state for a read.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the copy is too old. The backend keeps asking the database, so another query would
    /// not help.
    fn read(&self) -> Result<RwLockReadGuard<'_, CopyState>, StoreError> {
        let copy = self.0.read();
        if copy.records.read_at.elapsed() < MAX_COPY_AGE { Ok(copy) } else { Err(no_answer()) }
    }

    /// # Errors
    /// [`StoreError::Unreachable`] if the copy is too old.
    pub fn holders(&self) -> Result<Holders, StoreError> {
        let copy = self.read()?;
        let keys = copy.records.keys.values().filter(|key| key.revoked_at.is_none());
        Ok(Holders::new(keys.map(|key| (key.id.clone(), key.role)), copy.records.people.values()))
    }

    /// Returns a copied key. The database may have a key that is not copied yet.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the copy is too old, or has no such key and the server would not answer either.
    pub fn find_key(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        let copy = self.read()?;
        match copy.records.keys.get_key_value(hash) {
            Some((hash, key)) => Ok(Some((key.clone(), *hash))),
            None => copy.check_server_answers().map(|()| None),
        }
    }

    /// Adds a key that was created after the last refresh.
    pub fn add_key(&self, hash: SecretHash, key: ApiKey) {
        self.0.write().records.keys.insert(hash, key);
    }

    /// Adds a key that this process has just written.
    pub fn put_key(&self, hash: SecretHash, key: ApiKey) {
        let mut copy = self.0.write();
        copy.records.keys.insert(hash, key);
        copy.changed_at = Some(Instant::now());
    }

    /// Records that this process has just revoked a key.
    pub fn revoke_key(&self, id: &str, at: Timestamp) {
        let mut copy = self.0.write();
        if let Some(key) = copy.records.keys.values_mut().find(|key| key.id == id) {
            key.revoked_at = Some(at);
            copy.changed_at = Some(Instant::now());
        }
    }

    /// Records the use of a key. Returns `false` if a use was recorded here less than a minute ago.
    pub fn touch_key(&self, id: &str, at: Timestamp) -> bool {
        let mut copy = self.0.write();
        let Some(key) = copy.records.keys.values_mut().find(|key| key.id == id) else { return true };
        let is_due = is_touch_due(key, at);
        if is_due {
            key.last_used_at = Some(at);
        }
        is_due
    }

    /// Returns a copied sign-in. The database may have a sign-in that is not copied yet.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the copy is too old, or has no such sign-in and the server would not answer either.
    pub fn find_sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        let copy = self.read()?;
        match copy.sign_ins.get(id) {
            Some((_, sign_in)) => Ok(Some(sign_in.clone())),
            None => copy.check_server_answers().map(|()| None),
        }
    }

    /// Returns the version of a sign-in that the last refresh has read.
    pub fn sign_in_version(&self, id: &SecretHash) -> Option<String> {
        self.0.read().records.sign_in_versions.get(id).cloned()
    }

    /// Adds a sign-in that was read after this version of it was known. If it is newer than the version, the next refresh removes
    /// it.
    pub fn add_sign_in(&self, version: String, sign_in: SignIn) {
        let mut copy = self.0.write();
        if copy.records.sign_in_versions.get(&sign_in.id) == Some(&version) {
            copy.sign_ins.insert(sign_in.id, (version, sign_in));
        }
    }

    /// Removes sign-ins that this process has just written. They are copied again when they are used after the next refresh.
    pub fn remove_sign_ins(&self, ids: &[SecretHash]) {
        let mut copy = self.0.write();
        for id in ids {
            copy.sign_ins.remove(id);
            copy.records.sign_in_versions.remove(id);
        }
    }

    /// Records a person whom this process has just written or read. Their sign-ins, which may have another role now, are
    /// removed.
    pub fn put_person(&self, person: &StoredPerson) {
        let mut copy = self.0.write();
        let revoked_at = copy.records.people.get(&person.name).and_then(|known| known.revoked_at);
        let revoked_at = revoked_at.or(person.revoked_at);
        copy.records.people.insert(person.name.clone(), StoredPerson { revoked_at, ..person.clone() });
        copy.sign_ins.retain(|_, (_, sign_in)| sign_in.principal.name != person.name);
        copy.changed_at = Some(Instant::now());
    }
}
