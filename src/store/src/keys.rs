//! API keys and one-time sign-in codes, stored as hashes only.
//!
//! Usable from the gateway and, at the same time, from command-line processes: each opens its own [`Keys`].
//! Calls block for one read (microseconds) or one durable write (milliseconds).

use std::{
    collections::HashMap,
    path::Path,
    sync::{Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::{StoreError, open::open_writer, trail::covered};
use countersign_domain::principal::Role;

/// Who makes and revokes keys: whoever may write the data directory, at a terminal.
const ACTOR: &str = "terminal";

/// SHA-256 of a secret.
pub type SecretHash = [u8; 32];

/// A key as it is stored; never its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: String,
    /// The principal's name.
    pub name: String,
    pub role: Role,
    /// Whose it is, where that is somebody else than the name says.
    pub owner: Option<String>,
    pub created_at: Timestamp,
    /// To the minute (see [`Keys::touch`]).
    pub last_used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// What became of a sign-in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOutcome {
    /// It was valid, and is used up now.
    Taken,
    Unknown,
    Expired,
    AlreadyUsed,
}

/// Keys and codes of one data directory.
pub struct Keys {
    conn: Mutex<Connection>,
}

const COLUMNS: &str = "id, name, role, created_at, last_used_at, revoked_at, owner";

impl Keys {
    /// Opens the database of the data directory; creates it where there is none.
    ///
    /// # Errors
    /// See [`open_writer`].
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Ok(Self { conn: Mutex::new(open_writer(data_dir)?) })
    }

    /// Stores a key.
    ///
    /// # Errors
    /// Those of the database; also if the id or the hash exists.
    pub fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tx.prepare_cached(
                "INSERT INTO api_keys (id, name, role, hash, created_at, last_used_at, revoked_at, owner)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                key.id,
                key.name,
                key.role.as_str(),
                hash,
                key.created_at.to_string(),
                key.last_used_at.map(|t| t.to_string()),
                key.revoked_at.map(|t| t.to_string()),
                key.owner,
            ])?;
            tell(&tx, covered::KEY_CREATED, &key.id)?;
            tx.commit()?;
            Ok(())
        })
    }

    /// All keys, the revoked ones too, oldest first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.with(|conn| {
            let mut statement =
                conn.prepare_cached(&format!("SELECT {COLUMNS} FROM api_keys ORDER BY created_at, id"))?;
            let rows = statement.query_map([], |row| Ok(read_key(row)))?;
            rows.map(|row| row?).collect()
        })
    }

    /// The roles of all keys that are not revoked, by the key's id.
    ///
    /// # Errors
    /// Those of the database.
    pub fn held(&self) -> Result<HashMap<String, Role>, StoreError> {
        self.with(|conn| held(conn))
    }

    /// The key with that secret, also if it is revoked: look at `revoked_at`.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find(&self, hash: &SecretHash) -> Result<Option<ApiKey>, StoreError> {
        self.with(|conn| {
            conn.prepare_cached(&format!("SELECT {COLUMNS} FROM api_keys WHERE hash = ?1"))?
                .query_row(params![hash], |row| Ok(read_key(row)))
                .optional()?
                .transpose()
        })
    }

    /// As [`Self::find`], with the hash as it is stored, for a comparison in constant time.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find_with_hash(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        self.with(|conn| {
            conn.prepare_cached(&format!("SELECT {COLUMNS}, hash FROM api_keys WHERE hash = ?1"))?
                .query_row(params![hash], |row| {
                    let stored: SecretHash = row.get(7)?;
                    Ok(read_key(row).map(|key| (key, stored)))
                })
                .optional()?
                .transpose()
        })
    }

    /// Revokes the key with that id. `false` if there is none or it was revoked before.
    ///
    /// # Errors
    /// Those of the database.
    pub fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let rows = tx
                .prepare_cached("UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL")?
                .execute(params![id, now.to_string()])?;
            if rows == 1 {
                tell(&tx, covered::KEY_REVOKED, id)?;
            }
            tx.commit()?;
            Ok(rows == 1)
        })
    }

    /// Notes that the key was used. Writes at most once a minute for each key: it is a durable write.
    ///
    /// # Errors
    /// Those of the database.
    pub fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if key.last_used_at.is_some_and(|at| now.duration_since(at).abs() < SignedDuration::from_mins(1)) {
            return Ok(());
        }
        self.with(|conn| {
            conn.prepare_cached("UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1")?
                .execute(params![key.id, now.to_string()])?;
            Ok(())
        })
    }

    /// Stores a one-time code, and forgets codes that expired more than a day ago.
    ///
    /// # Errors
    /// Those of the database.
    pub fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            {
                let mut codes = tx.prepare_cached("SELECT hash, expires_at FROM sign_in_codes")?;
                let old: Vec<Vec<u8>> = codes
                    .query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?)))?
                    .filter_map(Result::ok)
                    .filter(|(_, at)| {
                        at.parse::<Timestamp>().is_ok_and(|at| now.duration_since(at) > SignedDuration::from_hours(24))
                    })
                    .map(|(hash, _)| hash)
                    .collect();
                let mut delete = tx.prepare_cached("DELETE FROM sign_in_codes WHERE hash = ?1")?;
                for hash in old {
                    delete.execute(params![hash])?;
                }
                tx.prepare_cached("INSERT INTO sign_in_codes (hash, created_at, expires_at) VALUES (?1, ?2, ?3)")?
                    .execute(params![hash, now.to_string(), expires_at.to_string()])?;
            }
            tx.commit()?;
            Ok(())
        })
    }

    /// Whether there is a code with this hash, used or not.
    ///
    /// # Errors
    /// Those of the database.
    pub fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        self.with(|conn| {
            let mut statement = conn.prepare_cached("SELECT 1 FROM sign_in_codes WHERE hash = ?1")?;
            Ok(statement.exists(params![hash])?)
        })
    }

    /// Uses a code up. Of any number of callers, in any number of processes, one gets [`CodeOutcome::Taken`].
    ///
    /// # Errors
    /// Those of the database; then the code may be used up (if the commit's outcome is unknown), never shared.
    pub fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found: Option<(String, Option<String>)> = tx
                .prepare_cached("SELECT expires_at, used_at FROM sign_in_codes WHERE hash = ?1")?
                .query_row(params![hash], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((expires_at, used_at)) = found else { return Ok(CodeOutcome::Unknown) };
            if used_at.is_some() {
                return Ok(CodeOutcome::AlreadyUsed);
            }
            if timestamp(&expires_at)? <= now {
                return Ok(CodeOutcome::Expired);
            }
            tx.prepare_cached("UPDATE sign_in_codes SET used_at = ?2 WHERE hash = ?1")?
                .execute(params![hash, now.to_string()])?;
            tx.commit()?;
            Ok(CodeOutcome::Taken)
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // A panic under the lock cannot leave a transaction open: dropping one rolls it back.
        f(&mut self.conn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What became of a key, into the audit trail, by its row as it is now.
fn tell(conn: &Connection, event: &'static str, id: &str) -> Result<(), StoreError> {
    let mut statement =
        conn.prepare_cached(&format!("SELECT {} FROM api_keys WHERE id = ?1", covered::KeyRow::COLUMNS))?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else { return Err(StoreError::BadRecord(format!("there is no key {id:?}"))) };
    covered::key(conn, event, ACTOR, &covered::KeyRow::of(row)?)
}

/// See [`Keys::held`].
pub(super) fn held(conn: &Connection) -> Result<HashMap<String, Role>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT id, role FROM api_keys WHERE revoked_at IS NULL")?;
    let mut rows = statement.query([])?;
    let mut held = HashMap::new();
    while let Some(row) = rows.next()? {
        held.insert(row.get(0)?, role_of(row.get_ref(1)?.as_str().unwrap_or_default())?);
    }
    Ok(held)
}

fn read_key(row: &Row<'_>) -> Result<ApiKey, StoreError> {
    let role: String = row.get(2)?;
    let optional = |i: usize| -> Result<Option<Timestamp>, StoreError> {
        row.get::<_, Option<String>>(i)?.as_deref().map(timestamp).transpose()
    };
    Ok(ApiKey {
        id: row.get(0)?,
        name: row.get(1)?,
        role: role_of(&role)?,
        created_at: timestamp(&row.get::<_, String>(3)?)?,
        last_used_at: optional(4)?,
        revoked_at: optional(5)?,
        owner: row.get(6)?,
    })
}

fn timestamp(text: &str) -> Result<Timestamp, StoreError> {
    text.parse().map_err(|_| StoreError::BadRecord(format!("not a timestamp: {text:?}")))
}

fn role_of(name: &str) -> Result<Role, StoreError> {
    Role::parse(name).ok_or_else(|| StoreError::BadRecord(format!("unknown role {name:?} of a key")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn key(id: &str, role: Role) -> ApiKey {
        ApiKey {
            id: id.into(),
            name: "alice".into(),
            role,
            owner: (role == Role::Agent).then(|| "Alice Ä.".into()),
            created_at: at(0),
            last_used_at: None,
            revoked_at: None,
        }
    }

    #[test]
    fn a_key_is_found_by_its_hash_by_every_process_until_it_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let gateway = Keys::open(dir.path()).unwrap();
        let tool = Keys::open(dir.path()).unwrap();
        for (n, role) in [Role::Agent, Role::Reviewer, Role::Viewer, Role::Admin].into_iter().enumerate() {
            tool.insert(&key(&format!("key_{n}"), role), &[u8::try_from(n).unwrap(); 32]).unwrap();
        }
        assert!(tool.insert(&key("key_9", Role::Agent), &[1; 32]).is_err(), "a secret belongs to one key");
        assert_eq!(gateway.find(&[1; 32]).unwrap(), Some(key("key_1", Role::Reviewer)));
        assert_eq!(gateway.find(&[0; 32]).unwrap().unwrap().owner.as_deref(), Some("Alice Ä."));
        assert_eq!(gateway.find(&[9; 32]).unwrap(), None);
        assert_eq!(gateway.find_with_hash(&[1; 32]).unwrap(), Some((key("key_1", Role::Reviewer), [1; 32])));
        assert_eq!(gateway.list().unwrap().len(), 4);
        assert!(tool.revoke("key_1", at(5)).unwrap());
        assert!(!tool.revoke("key_1", at(6)).unwrap() && !tool.revoke("key_7", at(6)).unwrap());
        assert_eq!(gateway.find(&[1; 32]).unwrap().unwrap().revoked_at, Some(at(5)));
        let held = gateway.held().unwrap();
        assert_eq!((held.len(), held.get("key_1"), held.get("key_3")), (3, None, Some(&Role::Admin)));
    }

    #[test]
    fn use_is_noted_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        keys.insert(&key("k", Role::Agent), &[1; 32]).unwrap();
        let used = |now| {
            keys.touch(&keys.find(&[1; 32]).unwrap().unwrap(), now).unwrap();
            keys.find(&[1; 32]).unwrap().unwrap().last_used_at
        };
        assert_eq!(used(at(10)), Some(at(10)));
        assert_eq!(used(at(69)), Some(at(10)));
        assert_eq!(used(at(70)), Some(at(70)));
    }

    #[test]
    fn a_code_is_taken_once_whoever_asks() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        keys.put_code(&[1; 32], at(0), at(60)).unwrap();
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Keys::open(dir.path()).unwrap().take_code(&[1; 32], at(59)).unwrap()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|o| **o == CodeOutcome::Taken).count(), 1);
        assert_eq!(outcomes.iter().filter(|o| **o == CodeOutcome::AlreadyUsed).count(), 7);
        keys.put_code(&[2; 32], at(0), at(60)).unwrap();
        assert_eq!(keys.take_code(&[2; 32], at(60)).unwrap(), CodeOutcome::Expired);
        assert_eq!(keys.take_code(&[3; 32], at(0)).unwrap(), CodeOutcome::Unknown);
        keys.put_code(&[4; 32], at(3 * 86_400), at(3 * 86_400 + 60)).unwrap();
        assert_eq!(keys.take_code(&[1; 32], at(1)).unwrap(), CodeOutcome::Unknown, "old codes are forgotten");
    }
}
