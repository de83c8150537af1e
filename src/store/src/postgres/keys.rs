//! Keys, people, sign-ins and codes in PostgreSQL, with a copy of the keys, the people and the used sign-ins in memory, so that
//! requests need not wait for a remote server.

use std::{
    collections::{BTreeMap, HashMap},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use parking_lot::RwLock;

use super::{
    PgConnector, error,
    rows::{query_opt, take_heads},
};
use crate::{
    StoreError,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, StoredCode, is_touch_due},
    people::{Holders, People, ProviderSession, StoredPerson},
    sql::{BACKGROUND_TIMEOUT, Database as _, REQUEST_TIMEOUT, Sql as _},
    statements::facts,
    stored_keys::{StoredKeys, list_keys, list_people, touch_key},
};
use countersign_domain::{changes::Absence, principal::SecretHash};

/// The interval between refreshes of the copy. A revoked key or an ended sign-in therefore stops working within a second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum age of a copy in use. If only this gateway cannot reach the database, keys may have been revoked
/// meanwhile.
const MAX_COPY_AGE: Duration = Duration::from_secs(10);

/// The maximum time for finding out the outcome of a write to a key.
const MAX_RESOLVE_TIME: Duration = Duration::from_secs(20);

/// Selects the versions of all sign-ins. PostgreSQL sets `xmin` whenever it writes a row. The sign-ins themselves would be too
/// large for every refresh, because they contain tokens.
const SELECT_SIGN_IN_VERSIONS: &str =
    "SELECT s.id, concat(s.xmin, ' ', p.xmin) FROM sign_ins s LEFT JOIN people p ON p.name = s.name";

/// The keys, sign-ins and codes of a database, with a copy of the keys, the people and the used sign-ins.
pub(crate) struct Keys {
    stored: StoredKeys<Arc<PgConnector>>,
    copy: Arc<RwLock<KeyCopy>>,
}

/// The keys by hash, the people by name, and the versions of the sign-ins by id.
type Records = (HashMap<SecretHash, ApiKey>, BTreeMap<String, StoredPerson>, HashMap<SecretHash, String>);

struct KeyCopy {
    keys: HashMap<SecretHash, ApiKey>,
    /// The people by name.
    people: BTreeMap<String, StoredPerson>,
    /// The sign-ins that were used here, with their versions. A sign-in with another version in the database is removed.
    sign_ins: HashMap<SecretHash, (String, SignIn)>,
    /// The versions of all sign-ins.
    sign_in_versions: HashMap<SecretHash, String>,
    /// The start of the last read.
    read_at: Instant,
    /// The time at which this process last wrote a key, or wrote or read a single person.
    changed_at: Option<Instant>,
    /// The server did not answer the last read in time.
    is_silent: bool,
}

impl KeyCopy {
    /// Replaces the copy with records whose read began at `read_at`.
    fn replace(&mut self, (mut keys, mut people, sign_in_versions): Records, read_at: Instant) {
        if self.changed_at.is_some_and(|changed| changed >= read_at) {
            // The copy may have newer rows than this read.
            keys.extend(std::mem::take(&mut self.keys));
            people.append(&mut self.people);
        }
        // A use that was recorded here may not have been stored before the read.
        for (hash, key) in &mut keys {
            let recorded = self.keys.get(hash).and_then(|known| known.last_used_at);
            key.last_used_at = key.last_used_at.max(recorded);
        }
        self.sign_ins.retain(|id, (version, _)| sign_in_versions.get(id) == Some(&*version));
        (self.keys, self.people, self.sign_in_versions, self.read_at) = (keys, people, sign_in_versions, read_at);
    }

    /// Records a person whom this process has just written or read. Their sign-ins, which may have another role now, are
    /// removed from the copy.
    fn put_person(&mut self, person: &StoredPerson) {
        let revoked_at = self.people.get(&person.name).and_then(|known| known.revoked_at);
        let revoked_at = revoked_at.or(person.revoked_at);
        self.people.insert(person.name.clone(), StoredPerson { revoked_at, ..person.clone() });
        self.sign_ins.retain(|_, (_, sign_in)| sign_in.principal.name != person.name);
        self.changed_at = Some(Instant::now());
    }
}

impl Keys {
    /// Reads the keys and refreshes the copy from then on.
    ///
    /// # Errors
    /// If the keys cannot be read, or the store was moved.
    pub fn open(connector: Arc<PgConnector>) -> Result<Self, StoreError> {
        let read_at = Instant::now();
        let (keys, people, sign_in_versions) = connector.read(BACKGROUND_TIMEOUT, async |client| {
            facts::check_moved(client).await?;
            read_records(client).await
        })?;
        let sign_ins = HashMap::new();
        let copy = KeyCopy { keys, people, sign_ins, sign_in_versions, read_at, changed_at: None, is_silent: false };
        let copy = Arc::new(RwLock::new(copy));
        let (weak_copy, weak_connector) = (Arc::downgrade(&copy), Arc::downgrade(&connector));
        connector.spawn(async move {
            loop {
                tokio::time::sleep(REFRESH_INTERVAL).await;
                let Some(connector) = weak_connector.upgrade() else { return };
                let began = Instant::now();
                let reading = connector.run_async(error::no_answer, async |client| read_records(client).await);
                let answer = tokio::time::timeout(REQUEST_TIMEOUT, reading).await;
                let Some(copy) = weak_copy.upgrade() else { return };
                copy.write().is_silent = answer.is_err();
                match answer.unwrap_or_else(|_| Err(error::no_answer())) {
                    Ok(records) => copy.write().replace(records, began),
                    Err(error) => {
                        tracing::debug!(%error, "the keys could not be read");
                        // The writer detects when the database can be reached again.
                        connector.health.record_failure(&error);
                    }
                }
            }
        });
        Ok(Self { stored: StoredKeys(connector), copy })
    }

    /// Reads from the copy.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the copy is too old. The refresh task keeps asking the database, so another
    /// query would not help.
    fn read_copy<T>(&self, read: impl FnOnce(&KeyCopy) -> T) -> Result<T, StoreError> {
        let copy = self.copy.read();
        if copy.read_at.elapsed() < MAX_COPY_AGE { Ok(read(&copy)) } else { Err(error::no_answer()) }
    }

    /// Checks that the server has answered the last refresh in time. A look-up blocks the thread of its caller, and would delay
    /// all other requests there.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    fn check_server_answers(&self) -> Result<(), StoreError> {
        if self.copy.read().is_silent { Err(error::no_answer()) } else { Ok(()) }
    }

    /// Removes sign-ins that this process has just written from the copy. They are copied again when they are used after the
    /// next refresh.
    fn remove_copied_sign_ins(&self, ids: &[SecretHash]) {
        let mut copy = self.copy.write();
        for id in ids {
            copy.sign_ins.remove(id);
            copy.sign_in_versions.remove(id);
        }
    }

    /// Finds out whether a write to a key with an unknown outcome was committed: whether the key exists and, if given,
    /// has the revocation time. Waits for the lock on the heads, which the transaction of the write holds until it
    /// ends.
    fn resolve_outcome(
        &self,
        written: Result<bool, StoreError>,
        id: &str,
        revoked_at: Option<String>,
    ) -> Result<bool, StoreError> {
        let Err(StoreError::OutcomeUnknown) = written else { return written };
        let end = Instant::now() + MAX_RESOLVE_TIME;
        loop {
            let row = self.stored.0.transaction(async |client| {
                take_heads(client).await?;
                let sql = "SELECT 1 FROM api_keys WHERE id = $1 AND ($2::text IS NULL OR revoked_at = $2)";
                query_opt(client, sql, &[&id, &revoked_at]).await
            });
            match row {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => return Err(StoreError::Unreachable("the connection ended before the commit".into())),
                Err(error) if Instant::now() > end => {
                    tracing::error!(%error, "it cannot be found out whether the write to a key was committed; check with `countersign keys list`");
                    return Err(StoreError::OutcomeUnknown);
                }
                Err(_) => std::thread::sleep(REFRESH_INTERVAL),
            }
        }
    }
}

async fn read_records(client: &ClientWrapper) -> Result<Records, StoreError> {
    let keys = list_keys(client).await?.into_iter().map(|(key, hash)| (hash, key)).collect();
    let people = list_people(client).await?.into_iter().map(|person| (person.name.clone(), person)).collect();
    let rows = client.rows(SELECT_SIGN_IN_VERSIONS, &[]).await?;
    let sign_in_versions: HashMap<SecretHash, String> =
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, StoreError>>()?;
    Ok((keys, people, sign_in_versions))
}

impl Credentials for Keys {
    fn insert_by(&self, key: &ApiKey, hash: &SecretHash, actor: &str) -> Result<(), StoreError> {
        let inserted = self.stored.insert_by(key, hash, actor);
        self.resolve_outcome(inserted.map(|()| true), &key.id, None)?;
        let mut copy = self.copy.write();
        copy.changed_at = Some(Instant::now());
        copy.keys.insert(*hash, key.clone());
        Ok(())
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.stored.list()
    }

    fn holders(&self) -> Result<Holders, StoreError> {
        self.read_copy(|copy| {
            let keys = copy.keys.values().filter(|key| key.revoked_at.is_none());
            Holders::new(keys.map(|key| (key.id.clone(), key.role)), copy.people.values())
        })
    }

    fn newest_holders(&self) -> Result<Holders, StoreError> {
        self.stored.newest_holders()
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        let copied_key =
            self.read_copy(|copy| copy.keys.get_key_value(hash).map(|(hash, key)| (key.clone(), *hash)))?;
        if copied_key.is_some() {
            return Ok(copied_key);
        }
        self.check_server_answers()?;
        // The key may have been created after the last refresh.
        let key_and_hash = self.stored.find(hash)?;
        if let Some((key, hash)) = &key_and_hash {
            self.copy.write().keys.insert(*hash, key.clone());
        }
        Ok(key_and_hash)
    }

    fn revoke_by(&self, id: &str, now: Timestamp, actor: &str) -> Result<bool, StoreError> {
        let is_revoked = self.resolve_outcome(self.stored.revoke_by(id, now, actor), id, Some(now.to_string()))?;
        let mut copy = self.copy.write();
        if is_revoked && let Some(key) = copy.keys.values_mut().find(|key| key.id == id) {
            key.revoked_at = Some(now);
            copy.changed_at = Some(Instant::now());
        }
        Ok(is_revoked)
    }

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_touch_due(key, now) {
            return Ok(());
        }
        let mut copy = self.copy.write();
        if let Some(copied_key) = copy.keys.values_mut().find(|copied_key| copied_key.id == key.id) {
            if !is_touch_due(copied_key, now) {
                return Ok(());
            }
            copied_key.last_used_at = Some(now);
        }
        drop(copy);
        let (id, connector) = (key.id.clone(), &self.stored.0);
        let recording =
            connector.run_async(error::unknown_outcome, async move |client| touch_key(client, &id, now).await);
        // The use is recorded in the background, so that no request waits.
        connector.spawn(async move {
            if let Err(error) = recording.await {
                tracing::debug!(%error, "the use of a key could not be recorded");
            }
        });
        Ok(())
    }

    fn put_code(
        &self,
        hash: &SecretHash,
        session: Option<&ProviderSession>,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<(), StoreError> {
        self.stored.put_code(hash, session, now, expires_at)
    }

    fn code(&self, hash: &SecretHash) -> Result<Option<StoredCode>, StoreError> {
        self.stored.code(hash)
    }

    fn code_sessions(&self, now: Timestamp) -> Result<Vec<(SecretHash, ProviderSession)>, StoreError> {
        self.stored.code_sessions(now)
    }

    fn put_sign_in(&self, sign_in: &SignIn, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.stored.put_sign_in(sign_in, ended)?;
        self.remove_copied_sign_ins(ended);
        Ok(())
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        let (copied_sign_in, version) = self.read_copy(|copy| {
            let copied_sign_in = copy.sign_ins.get(id).map(|(_, sign_in)| sign_in.clone());
            (copied_sign_in, copy.sign_in_versions.get(id).cloned())
        })?;
        if copied_sign_in.is_some() {
            return Ok(copied_sign_in);
        }
        self.check_server_answers()?;
        // The sign-in is at least as new as the version that was known before the read. If it is newer, the next refresh removes
        // it. A sign-in without a known version may be newer than the last refresh, and is not copied yet.
        let sign_in = self.stored.sign_in(id)?;
        if let (Some(sign_in), Some(version)) = (&sign_in, version) {
            let mut copy = self.copy.write();
            if copy.sign_in_versions.get(id) == Some(&version) {
                copy.sign_ins.insert(*id, (version, sign_in.clone()));
            }
        }
        Ok(sign_in)
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.stored.sign_ins()
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        self.stored.use_sign_in(id, at)?;
        self.remove_copied_sign_ins(slice::from_ref(id));
        Ok(())
    }

    fn forget_sign_ins(&self, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.stored.forget_sign_ins(ended)?;
        self.remove_copied_sign_ins(ended);
        Ok(())
    }

    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.stored.take_code(hash, now)
    }

    fn ensure_token_key(&self, new: &str) -> Result<String, StoreError> {
        self.stored.ensure_token_key(new)
    }

    fn replace_token_key(&self, new: &str) -> Result<(), StoreError> {
        self.stored.replace_token_key(new)
    }
}

impl People for Keys {
    fn person(&self, name: &str) -> Result<Option<StoredPerson>, StoreError> {
        let stored_person = self.stored.person(name)?;
        if let Some(person) = &stored_person {
            self.copy.write().put_person(person);
        }
        Ok(stored_person)
    }

    fn people(&self) -> Result<Vec<StoredPerson>, StoreError> {
        self.stored.people()
    }

    fn put_person(&self, person: &StoredPerson) -> Result<(), StoreError> {
        self.stored.put_person(person)?;
        self.copy.write().put_person(person);
        Ok(())
    }

    fn renew_session(
        &self,
        id: &SecretHash,
        session: &ProviderSession,
        person: Option<&StoredPerson>,
    ) -> Result<(), StoreError> {
        self.stored.renew_session(id, session, person)?;
        self.remove_copied_sign_ins(slice::from_ref(id));
        if let Some(person) = person {
            self.copy.write().put_person(person);
        }
        Ok(())
    }

    fn claim_refresh(&self, id: &SecretHash, last: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
        let is_claimed = self.stored.claim_refresh(id, last, now)?;
        self.remove_copied_sign_ins(slice::from_ref(id));
        Ok(is_claimed)
    }

    fn revoke_person(&self, name: &str, now: Timestamp) -> Result<u64, StoreError> {
        let ended_count = self.stored.revoke_person(name, now)?;
        self.person(name)?;
        Ok(ended_count)
    }

    fn absences(&self) -> Result<Vec<Absence>, StoreError> {
        self.stored.absences()
    }

    fn put_absence(&self, absence: &Absence) -> Result<(), StoreError> {
        self.stored.put_absence(absence)
    }

    fn end_absence(&self, person: &str, actor: &str) -> Result<bool, StoreError> {
        self.stored.end_absence(person, actor)
    }

    fn use_token(
        &self,
        hash: &SecretHash,
        now: Timestamp,
        expires_at: Timestamp,
        ended: &[SecretHash],
        codes: &[SecretHash],
    ) -> Result<bool, StoreError> {
        let is_first_use = self.stored.use_token(hash, now, expires_at, ended, codes)?;
        self.remove_copied_sign_ins(ended);
        Ok(is_first_use)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::fault_tests::{key, server_for},
        *,
    };

    #[test]
    fn silent_server_is_not_asked_about_unknown_keys() {
        let dir = tempfile::tempdir().unwrap();
        let server = server_for(dir.path());
        server.credentials().unwrap().insert(&key("k"), &[1; 32]).unwrap();
        let copy = KeyCopy {
            keys: HashMap::new(),
            people: BTreeMap::new(),
            sign_ins: HashMap::new(),
            sign_in_versions: HashMap::new(),
            read_at: Instant::now(),
            changed_at: None,
            is_silent: true,
        };
        let keys = Keys { stored: StoredKeys(server.migrated_connector().unwrap()), copy: Arc::new(RwLock::new(copy)) };
        for answer in [keys.find(&[1; 32]).map(drop), keys.sign_in(&[1; 32]).map(drop)] {
            assert!(matches!(answer, Err(StoreError::Unreachable(_))), "{answer:?}");
        }
        keys.copy.write().is_silent = false;
        assert!(keys.find(&[1; 32]).unwrap().is_some());
        assert_eq!(keys.sign_in(&[1; 32]).unwrap(), None);
    }
}
