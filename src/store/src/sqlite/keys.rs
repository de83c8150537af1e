//! Keys and codes in SQLite.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::{open::open_writer, retention, trail};
use crate::{
    StoreError, covered,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, is_worth_noting, role_of},
    rows::{parse_moment, parse_time},
};
use countersign_domain::{
    changes::machine::TERMINAL,
    principal::{Principal, Role, SecretHash},
};

/// Keys and codes of one data directory. Calls block for one read (microseconds) or one durable write (milliseconds).
pub(crate) struct Keys {
    conn: Mutex<Connection>,
}

const COLUMNS: &str = "id, name, role, created_at, last_used_at, revoked_at, owner";

impl Keys {
    /// Opens the database of the data directory; creates it where there is none.
    ///
    /// # Errors
    /// See [`open_writer`].
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let conn = open_writer(data_dir)?;
        retention::check_moved(&conn)?;
        Ok(Self { conn: Mutex::new(conn) })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // A panic under the lock cannot leave a transaction open: dropping one rolls it back.
        f(&mut self.conn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Credentials for Keys {
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
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

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.with(|conn| {
            let mut statement =
                conn.prepare_cached(&format!("SELECT {COLUMNS} FROM api_keys ORDER BY created_at, id"))?;
            let rows = statement.query_map([], |row| Ok(read_key(row)))?;
            rows.map(|row| row?).collect()
        })
    }

    fn held(&self) -> Result<HashMap<String, Role>, StoreError> {
        self.with(|conn| held(conn))
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
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

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
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

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_worth_noting(key, now) {
            return Ok(());
        }
        self.with(|conn| {
            conn.prepare_cached("UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1")?
                .execute(params![key.id, now.to_string()])?;
            Ok(())
        })
    }

    fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
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

    fn put_sign_in(&self, sign_in: &SignIn, gone: &[SecretHash]) -> Result<(), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            forget(&tx, gone)?;
            let SignIn { id, cookie, principal, key, last_used } = sign_in;
            tx.prepare_cached(
                "INSERT OR REPLACE INTO sign_ins (id, cookie, key, name, role, key_id, owner, last_used_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                id,
                cookie,
                key,
                principal.name,
                principal.role.as_str(),
                principal.key_id,
                principal.owner,
                last_used.as_millisecond(),
            ])?;
            Ok(tx.commit()?)
        })
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        self.with(|conn| {
            let mut statement = conn.prepare_cached(&format!("{SIGN_INS} WHERE id = ?1"))?;
            statement.query_row(params![id], |row| Ok(read_sign_in(row))).optional()?.transpose()
        })
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.with(|conn| {
            let mut statement = conn.prepare_cached(SIGN_INS)?;
            let rows = statement.query_map([], |row| Ok(read_sign_in(row)))?;
            rows.map(|row| row?).collect()
        })
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        self.with(|conn| {
            conn.prepare_cached("UPDATE sign_ins SET last_used_ms = ?2 WHERE id = ?1")?
                .execute(params![id, at.as_millisecond()])?;
            Ok(())
        })
    }

    fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            forget(&tx, gone)?;
            Ok(tx.commit()?)
        })
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        self.with(|conn| {
            let mut statement = conn.prepare_cached("SELECT 1 FROM sign_in_codes WHERE hash = ?1")?;
            Ok(statement.exists(params![hash])?)
        })
    }

    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
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
            if parse_time(&expires_at)? <= now {
                return Ok(CodeOutcome::Expired);
            }
            tx.prepare_cached("UPDATE sign_in_codes SET used_at = ?2 WHERE hash = ?1")?
                .execute(params![hash, now.to_string()])?;
            tx.commit()?;
            Ok(CodeOutcome::Taken)
        })
    }
}

const SIGN_INS: &str = "SELECT id, cookie, key, name, role, key_id, owner, last_used_ms FROM sign_ins";

fn forget(conn: &Connection, gone: &[SecretHash]) -> Result<(), StoreError> {
    let mut statement = conn.prepare_cached("DELETE FROM sign_ins WHERE id = ?1")?;
    for id in gone {
        statement.execute(params![id])?;
    }
    Ok(())
}

fn read_sign_in(row: &Row<'_>) -> Result<SignIn, StoreError> {
    let role: String = row.get(4)?;
    Ok(SignIn {
        id: row.get(0)?,
        cookie: row.get(1)?,
        key: row.get(2)?,
        principal: Arc::new(Principal {
            name: row.get(3)?,
            role: role_of(&role)?,
            key_id: row.get(5)?,
            owner: row.get(6)?,
        }),
        last_used: parse_moment(row.get(7)?)?,
    })
}

/// What became of a key, into the audit trail, by its row as it is now.
fn tell(conn: &Connection, event: &'static str, id: &str) -> Result<(), StoreError> {
    let mut statement = conn.prepare_cached(&format!("SELECT {} FROM api_keys WHERE id = ?1", trail::KEY_COLUMNS))?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else { return Err(StoreError::BadRecord(format!("there is no key {id:?}"))) };
    trail::key(conn, event, TERMINAL, &trail::key_row(row)?)
}

/// See [`Credentials::held`].
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
        row.get::<_, Option<String>>(i)?.as_deref().map(parse_time).transpose()
    };
    Ok(ApiKey {
        id: row.get(0)?,
        name: row.get(1)?,
        role: role_of(&role)?,
        created_at: parse_time(&row.get::<_, String>(3)?)?,
        last_used_at: optional(4)?,
        revoked_at: optional(5)?,
        owner: row.get(6)?,
    })
}
