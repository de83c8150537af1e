//! Implements the credentials for both backends with the same statements.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{
    StoreError,
    coverage::{KEY_CREATED, KEY_REVOKED},
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, is_worth_noting},
    sql::{BACKGROUND_TIMEOUT, Database, REQUEST_TIMEOUT, Sql as _},
    statements::{keys, trail::key_details},
};
use countersign_domain::{
    changes::machine::TERMINAL,
    principal::{Role, SecretHash},
};

/// The keys, sign-ins and codes of a database.
pub(crate) struct StoredKeys<D>(pub D);

impl<D: Database> Credentials for StoredKeys<D> {
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        self.0.transaction(async |db| {
            keys::insert(db, key, hash).await?;
            db.append_entry(KEY_CREATED, TERMINAL, &key_details(db, &key.id).await?).await
        })
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        let keys = self.0.read(BACKGROUND_TIMEOUT, async |db| keys::list(db).await)?;
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    fn active_roles(&self) -> Result<HashMap<String, Role>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::active_roles(db).await)
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::find(db, hash).await)
    }

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        self.0.transaction(async |db| {
            let revoked = keys::revoke(db, id, now).await?;
            if revoked {
                db.append_entry(KEY_REVOKED, TERMINAL, &key_details(db, id).await?).await?;
            }
            Ok(revoked)
        })
    }

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_worth_noting(key, now) {
            return Ok(());
        }
        self.0.write(async |db| keys::touch(db, &key.id, now).await)
    }

    fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
        self.0.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| keys::put_code(db, hash, now, expires_at).await)
    }

    fn put_sign_in(&self, sign_in: &SignIn, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.0.repeatable_transaction(REQUEST_TIMEOUT, async |db| keys::put_sign_in(db, sign_in, ended).await)
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::sign_in(db, id).await)
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::sign_ins(db).await)
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        self.0.write(async |db| keys::use_sign_in(db, id, at).await)
    }

    fn forget_sign_ins(&self, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.0.repeatable_transaction(REQUEST_TIMEOUT, async |db| keys::forget_sign_ins(db, ended).await)
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::knows_code(db, hash).await)
    }

    // The row does not record who took the code. After a lost answer the code is used up, and perhaps nobody got it.
    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.0.write(async |db| keys::take_code(db, hash, now).await)
    }
}
