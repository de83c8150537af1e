//! Keys and codes in SQLite.

use std::{collections::HashMap, path::Path};

use jiff::{SignedDuration, Timestamp};
use rusqlite::Connection;

use super::{
    open::open_writer,
    sql::{SharedConnection, execute, rows, run},
    trail,
};
use crate::{
    StoreError, covered,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, is_worth_noting},
    statements::{facts, keys},
    values,
};
use countersign_domain::principal::{Role, SecretHash};

/// Keys and codes of one data directory. Calls block for one read (microseconds) or one durable write (milliseconds).
pub(crate) struct Keys(SharedConnection);

impl Keys {
    /// Opens the database of the data directory; creates it where there is none.
    ///
    /// # Errors
    /// See [`open_writer`].
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let conn = open_writer(data_dir)?;
        run(facts::check_moved(&conn))?;
        Ok(Self(SharedConnection::new(conn)))
    }
}

impl Credentials for Keys {
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        self.0.transaction(async |db| {
            keys::insert(db, key, hash).await?;
            trail::tell_of_key(db, covered::KEY_CREATED, &key.id)
        })
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        Ok(self.0.run(async |db| keys::list(db).await)?.into_iter().map(|(key, _)| key).collect())
    }

    fn held(&self) -> Result<HashMap<String, Role>, StoreError> {
        self.0.run(async |db| keys::active_roles(db).await)
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        self.0.run(async |db| keys::find(db, hash).await)
    }

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        self.0.transaction(async |db| {
            let revoked = keys::revoke(db, id, now).await?;
            if revoked {
                trail::tell_of_key(db, covered::KEY_REVOKED, id)?;
            }
            Ok(revoked)
        })
    }

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_worth_noting(key, now) {
            return Ok(());
        }
        self.0.run(async |db| keys::touch(db, &key.id, now).await)
    }

    fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
        self.0.transaction(async |db| {
            forget_old_codes(db, now)?;
            let sql = "INSERT INTO sign_in_codes (hash, created_at, expires_at) VALUES (?1, ?2, ?3)";
            execute(db, sql, values![hash, &now.to_string(), &expires_at.to_string()]).map(drop)
        })
    }

    fn put_sign_in(&self, sign_in: &SignIn, gone: &[SecretHash]) -> Result<(), StoreError> {
        self.0.transaction(async |db| keys::put_sign_in(db, sign_in, gone).await)
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        self.0.run(async |db| keys::sign_in(db, id).await)
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.0.run(async |db| keys::sign_ins(db).await)
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        self.0.run(async |db| keys::use_sign_in(db, id, at).await)
    }

    fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), StoreError> {
        self.0.transaction(async |db| keys::forget_sign_ins(db, gone).await)
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        self.0.run(async |db| keys::knows_code(db, hash).await)
    }

    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.0.transaction(async |db| {
            let sql = "SELECT expires_at, used_at FROM sign_in_codes WHERE hash = ?1";
            let Some(row) = rows(db, sql, values![hash])?.pop() else { return Ok(CodeOutcome::Unknown) };
            if row.get::<Option<&str>>(1)?.is_some() {
                return Ok(CodeOutcome::AlreadyUsed);
            }
            if row.get::<Timestamp>(0)? <= now {
                return Ok(CodeOutcome::Expired);
            }
            let sql = "UPDATE sign_in_codes SET used_at = ?2 WHERE hash = ?1";
            execute(db, sql, values![hash, &now.to_string()])?;
            Ok(CodeOutcome::Taken)
        })
    }
}

/// Forgets codes that expired more than a day ago.
fn forget_old_codes(db: &Connection, now: Timestamp) -> Result<(), StoreError> {
    for row in rows(db, "SELECT hash, expires_at FROM sign_in_codes", &[])? {
        if row.get::<Timestamp>(1).is_ok_and(|at| now.duration_since(at) > SignedDuration::from_hours(24)) {
            execute(db, "DELETE FROM sign_in_codes WHERE hash = ?1", &[row.value(0)?])?;
        }
    }
    Ok(())
}
