//! Implements the credentials, accounts and counts of rules for both backends with the same statements.

use jiff::Timestamp;

use super::{
    StoreError,
    accounts::{AccountKey, AccountStore, StoredAccount},
    coverage::{KEY_CREATED, KEY_REVOKED},
    identity::new_id,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, StoredCode, is_touch_due},
    people::{Holders, People, ProviderSession, StoredPerson},
    rule_counts::{HourlyRuleCount, RuleCountStore, VerdictTotals},
    sql::{BACKGROUND_TIMEOUT, Database, REQUEST_TIMEOUT, Sql as _},
    statements::{
        absences, accounts,
        facts::{self, TOKEN_KEY_FACT},
        keys::{self, EndedRights},
        people, rule_counts,
        trail::key_details,
    },
};
use countersign_domain::{changes::Absence, principal::SecretHash};

/// The keys, sign-ins, codes, accounts and counts of a database.
pub(crate) struct StoredKeys<D>(pub D);

impl<D: Database> Credentials for StoredKeys<D> {
    fn insert_by(&self, key: &ApiKey, hash: &SecretHash, actor: &str) -> Result<(), StoreError> {
        self.0.transaction(async |db| {
            keys::insert(db, key, hash).await?;
            db.append_entry(KEY_CREATED, actor, &key_details(db, &key.id, &EndedRights::default()).await?).await
        })
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        let keys = self.0.read(BACKGROUND_TIMEOUT, async |db| keys::list(db).await)?;
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    fn holders(&self) -> Result<Holders, StoreError> {
        self.newest_holders()
    }

    fn newest_holders(&self) -> Result<Holders, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::holders(db).await)
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::find(db, hash).await)
    }

    fn revoke_by(&self, id: &str, now: Timestamp, actor: &str) -> Result<bool, StoreError> {
        self.0.transaction(async |db| {
            let Some(ended) = keys::revoke(db, id, now).await? else { return Ok(false) };
            db.append_entry(KEY_REVOKED, actor, &key_details(db, id, &ended).await?).await?;
            Ok(true)
        })
    }

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_touch_due(key, now) {
            return Ok(());
        }
        self.0.write(async |db| keys::touch(db, &key.id, now).await)
    }

    fn put_code(
        &self,
        hash: &SecretHash,
        session: Option<&ProviderSession>,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<(), StoreError> {
        self.0.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            keys::put_code(db, hash, session, now, expires_at).await
        })
    }

    fn code(&self, hash: &SecretHash) -> Result<Option<StoredCode>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::code(db, hash).await)
    }

    fn code_sessions(&self, now: Timestamp) -> Result<Vec<(SecretHash, ProviderSession)>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| keys::code_sessions(db, now).await)
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

    // The row does not record who took the code. After a lost answer the code is used up, and perhaps nobody got it.
    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.0.write(async |db| keys::take_code(db, hash, now).await)
    }

    fn ensure_token_key(&self, new: &str) -> Result<String, StoreError> {
        self.0.write(async |db| facts::ensure(db, TOKEN_KEY_FACT, new).await)
    }

    fn replace_token_key(&self, new: &str) -> Result<(), StoreError> {
        self.0.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| facts::set(db, TOKEN_KEY_FACT, Some(new)).await)
    }
}

impl<D: Database> People for StoredKeys<D> {
    fn person(&self, name: &str) -> Result<Option<StoredPerson>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| people::person(db, name).await)
    }

    fn people(&self) -> Result<Vec<StoredPerson>, StoreError> {
        self.0.read(BACKGROUND_TIMEOUT, async |db| people::list(db).await)
    }

    fn put_person(&self, person: &StoredPerson) -> Result<(), StoreError> {
        self.0.repeatable_transaction(REQUEST_TIMEOUT, async |db| people::put(db, person).await)
    }

    fn renew_session(
        &self,
        id: &SecretHash,
        session: &ProviderSession,
        person: Option<&StoredPerson>,
    ) -> Result<(), StoreError> {
        self.0
            .repeatable_transaction(BACKGROUND_TIMEOUT, async |db| people::renew_session(db, id, session, person).await)
    }

    fn claim_refresh(&self, id: &SecretHash, last: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
        self.0.write(async |db| people::claim_refresh(db, id, last, now).await)
    }

    fn revoke_person(&self, name: &str, now: Timestamp) -> Result<u64, StoreError> {
        self.0.transaction(async |db| people::revoke(db, name, now).await)
    }

    fn absences(&self) -> Result<Vec<Absence>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| absences::list(db).await)
    }

    fn put_absence(&self, absence: &Absence) -> Result<(), StoreError> {
        self.0.transaction(async |db| absences::put(db, absence).await)
    }

    fn end_absence(&self, person: &str, actor: &str) -> Result<bool, StoreError> {
        self.0.transaction(async |db| absences::end(db, person, actor).await)
    }

    // After a lost answer, the token may count as used. The sign-ins and codes have then ended as well.
    fn use_token(
        &self,
        hash: &SecretHash,
        now: Timestamp,
        expires_at: Timestamp,
        ended: &[SecretHash],
        codes: &[SecretHash],
    ) -> Result<bool, StoreError> {
        self.0.transaction(async |db| {
            let is_first_use = people::use_token(db, hash, now, expires_at).await?;
            if is_first_use {
                keys::forget_sign_ins(db, ended).await?;
                keys::forget_unused_codes(db, codes).await?;
            }
            Ok(is_first_use)
        })
    }
}

impl<D: Database> RuleCountStore for StoredKeys<D> {
    // A repetition could count calls twice.
    fn add_rule_counts(&self, counts: &[HourlyRuleCount], oldest: Timestamp) -> Result<(), StoreError> {
        self.0.transaction(async |db| rule_counts::add(db, counts, oldest).await)
    }

    fn rule_counts(&self, since: Timestamp) -> Result<Vec<(String, VerdictTotals)>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| rule_counts::totals(db, since).await)
    }
}

impl<D: Database> AccountStore for StoredKeys<D> {
    fn account(&self, key: &AccountKey) -> Result<Option<StoredAccount>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| accounts::account(db, key).await)
    }

    fn accounts(&self) -> Result<Vec<StoredAccount>, StoreError> {
        self.0.read(BACKGROUND_TIMEOUT, async |db| accounts::list(db).await)
    }

    // The tokens exist nowhere else, so the writes of tokens are worth a long wait.
    fn connect_account(&self, account: &StoredAccount) -> Result<i64, StoreError> {
        self.0.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| accounts::connect(db, account).await)
    }

    fn begin_refresh(&self, key: &AccountKey, version: i64, now: Timestamp) -> Result<bool, StoreError> {
        let id = new_id();
        self.0.repeatable_transaction(REQUEST_TIMEOUT, async |db| {
            accounts::begin_refresh(db, key, version, now, &id).await
        })
    }

    fn finish_refresh(&self, key: &AccountKey, version: i64, sealed: &str) -> Result<bool, StoreError> {
        self.0.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            accounts::finish_refresh(db, key, version, sealed).await
        })
    }

    // A repetition could take back the mark of another node.
    fn cancel_refresh(&self, key: &AccountKey, version: i64) -> Result<(), StoreError> {
        self.0.write(async |db| accounts::cancel_refresh(db, key, version).await)
    }

    fn remove_account(&self, key: &AccountKey) -> Result<bool, StoreError> {
        self.0.write(async |db| accounts::remove(db, key).await)
    }

    fn registration(&self, issuer: &str) -> Result<Option<String>, StoreError> {
        self.0.read(REQUEST_TIMEOUT, async |db| accounts::registration(db, issuer).await)
    }

    fn put_registration(&self, issuer: &str, sealed: &str) -> Result<(), StoreError> {
        self.0
            .repeatable_transaction(BACKGROUND_TIMEOUT, async |db| accounts::put_registration(db, issuer, sealed).await)
    }
}
