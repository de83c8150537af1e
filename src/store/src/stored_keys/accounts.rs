//! Accounts at servers, and registrations at authorization servers.

use jiff::Timestamp;

use super::StoredKeys;
use crate::{
    StoreError,
    accounts::{AccountKey, AccountStore, StoredAccount},
    identity::new_id,
    sql::{BACKGROUND_TIMEOUT, Database, REQUEST_TIMEOUT, Row, Sql},
    values,
};
use countersign_domain::changes::person::names_match;

const SELECT_ACCOUNTS: &str =
    "SELECT server, holder, target, issuer, sealed, version, refreshing_ms, connected_ms FROM accounts";

fn read_account(row: &Row) -> Result<StoredAccount, StoreError> {
    Ok(StoredAccount {
        key: AccountKey { server: row.get(0)?, holder: row.get::<&str>(1)?.into() },
        target: row.get(2)?,
        issuer: row.get(3)?,
        sealed: row.get(4)?,
        version: row.get(5)?,
        refreshing_since: row.get(6)?,
        connected_at: row.get(7)?,
    })
}

impl<D: Database> AccountStore for StoredKeys<D> {
    fn account(&self, key: &AccountKey) -> Result<Option<StoredAccount>, StoreError> {
        let sql = format!("{SELECT_ACCOUNTS} WHERE server = ?1 AND holder = ?2");
        self.db.read(REQUEST_TIMEOUT, async |db| {
            db.first(&sql, values![&key.server, key.holder.as_str()]).await?.as_ref().map(read_account).transpose()
        })
    }

    fn accounts(&self) -> Result<Vec<StoredAccount>, StoreError> {
        let sql = format!("{SELECT_ACCOUNTS} ORDER BY connected_ms, server, holder");
        self.db.read(BACKGROUND_TIMEOUT, async |db| db.rows(&sql, &[]).await?.iter().map(read_account).collect())
    }

    // The tokens exist nowhere else, so the writes of tokens are worth a long wait.
    fn connect_account(&self, account: &StoredAccount) -> Result<i64, StoreError> {
        let sql = "INSERT INTO accounts (server, holder, target, issuer, sealed, version, connected_ms)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                   ON CONFLICT (server, holder) DO UPDATE
                   SET target = excluded.target, issuer = excluded.issuer, sealed = excluded.sealed,
                       version = accounts.version + 1, refreshing_ms = NULL, connected_ms = excluded.connected_ms
                   RETURNING version";
        let StoredAccount { key, target, issuer, sealed, version: _, refreshing_since: _, connected_at } = account;
        let connected_ms = connected_at.as_millisecond();
        self.db.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            let values =
                values![&key.server, key.holder.as_str(), target, issuer, sealed, random_version(), connected_ms];
            let row = db.first(sql, values).await?;
            row.ok_or_else(|| StoreError::Database("the version of an account was not returned".into()))?.get(0)
        })
    }

    fn begin_refresh(&self, key: &AccountKey, version: i64, now: Timestamp) -> Result<bool, StoreError> {
        let AccountKey { server, holder } = key;
        // A repetition with the same id succeeds, too.
        let sql = "UPDATE accounts SET refreshing_ms = ?4, refresh_id = ?5
                   WHERE server = ?1 AND holder = ?2 AND version = ?3 AND (refreshing_ms IS NULL OR refresh_id = ?5)";
        let id = new_id();
        self.db.repeatable_transaction(REQUEST_TIMEOUT, async |db| {
            Ok(db.execute(sql, values![server, holder.as_str(), version, now.as_millisecond(), &id]).await? == 1)
        })
    }

    fn finish_refresh(&self, key: &AccountKey, version: i64, sealed: &str) -> Result<bool, StoreError> {
        let AccountKey { server, holder } = key;
        // A repetition succeeds, too, and leaves a refresh that began since then.
        let sql = "UPDATE accounts SET sealed = ?4, version = ?5,
                                       refreshing_ms = CASE WHEN version = ?3 THEN NULL ELSE refreshing_ms END
                   WHERE server = ?1 AND holder = ?2 AND (version = ?3 OR (version = ?5 AND sealed = ?4))";
        self.db.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            Ok(db.execute(sql, values![server, holder.as_str(), version, sealed, version + 1]).await? == 1)
        })
    }

    // A repetition could take back the mark of another node.
    fn cancel_refresh(&self, key: &AccountKey, version: i64) -> Result<(), StoreError> {
        let sql = "UPDATE accounts SET refreshing_ms = NULL WHERE server = ?1 AND holder = ?2 AND version = ?3";
        self.db.write(async |db| db.write(sql, values![&key.server, key.holder.as_str(), version]).await.map(drop))
    }

    fn remove_account(&self, key: &AccountKey) -> Result<bool, StoreError> {
        let sql = "DELETE FROM accounts WHERE server = ?1 AND holder = ?2";
        self.db.write(async |db| Ok(db.write(sql, values![&key.server, key.holder.as_str()]).await? == 1))
    }

    fn registration(&self, issuer: &str) -> Result<Option<String>, StoreError> {
        let sql = "SELECT sealed FROM registrations WHERE issuer = ?1";
        self.db
            .read(REQUEST_TIMEOUT, async |db| db.first(sql, values![issuer]).await?.map(|row| row.get(0)).transpose())
    }

    fn put_registration(&self, issuer: &str, sealed: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO registrations (issuer, sealed) VALUES (?1, ?2)
                   ON CONFLICT (issuer) DO UPDATE SET sealed = excluded.sealed";
        self.db.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            db.execute(sql, values![issuer, sealed]).await.map(drop)
        })
    }
}

/// Returns the first version of an account. It is random, so that no version from before a removal matches the account after a
/// new connection, although nothing remains of a removed account.
fn random_version() -> i64 {
    let bytes = nanoid::rngs::default(size_of::<u64>());
    // The two upper bits leave room for increments.
    let number = bytes.into_iter().fold(0_u64, |number, byte| number << 8 | u64::from(byte)) >> 2;
    number.cast_signed()
}

/// Removes all accounts of a person within the caller's transaction, also those that were stored under another spelling of
/// the name. Returns their servers in order.
pub(super) async fn remove_accounts_of<S: Sql>(db: &S, person: &str) -> Result<Vec<String>, StoreError> {
    let holders = db.rows("SELECT DISTINCT holder FROM accounts", &[]).await?;
    let mut servers: Vec<String> = Vec::new();
    for row in &holders {
        let holder: &str = row.get(0)?;
        if names_match(holder, person) {
            let removed = db.rows("DELETE FROM accounts WHERE holder = ?1 RETURNING server", values![holder]).await?;
            for row in &removed {
                servers.push(row.get(0)?);
            }
        }
    }
    servers.sort_unstable();
    servers.dedup();
    Ok(servers)
}
