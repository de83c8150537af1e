//! Facts about the store as a whole.

use jiff::Timestamp;

use crate::{StoreError, sql::Sql, values};

/// The fact with the time of the backup that this store was restored from.
pub(crate) const BACKUP_FACT: &str = "backup_of";
/// The fact that marks an incomplete copy. Its value is the audit head that the complete copy will have.
pub(crate) const INCOMPLETE_FACT: &str = "moving_from";
/// The fact that marks a store that was moved. Its value is the audit head at the time of the move.
pub(crate) const MOVED_FACT: &str = "moved";
/// The fact with the fingerprint of the key that encrypts stored tokens.
pub(crate) const TOKEN_KEY_FACT: &str = "token_key";

pub const SELECT: &str = "SELECT value FROM facts WHERE name = ?1";
pub const UPSERT: &str = "INSERT INTO facts (name, value) VALUES (?1, ?2)
                          ON CONFLICT (name) DO UPDATE SET value = excluded.value";
pub const DELETE: &str = "DELETE FROM facts WHERE name = ?1";

pub async fn get<S: Sql>(db: &S, name: &str) -> Result<Option<String>, StoreError> {
    db.first(SELECT, values![name]).await?.map(|row| row.get(0)).transpose()
}

/// Sets the fact, or deletes it if `value` is `None`.
pub async fn set<S: Sql>(db: &S, name: &str, value: Option<&str>) -> Result<(), StoreError> {
    match value {
        Some(value) => db.execute(UPSERT, values![name, value]).await.map(drop),
        None => db.execute(DELETE, values![name]).await.map(drop),
    }
}

/// Returns the time of the backup that this store was restored from, until a gateway has started on it.
pub async fn backup_time<S: Sql>(db: &S) -> Result<Option<Timestamp>, StoreError> {
    let text = get(db, BACKUP_FACT).await?;
    text.map(|text| text.parse::<Timestamp>().map_err(|_| StoreError::BackupTime(text))).transpose()
}

/// Returns an error if the store was moved or is an incomplete copy.
pub async fn check_moved<S: Sql>(db: &S) -> Result<(), StoreError> {
    if get(db, INCOMPLETE_FACT).await?.is_some() {
        return Err(StoreError::IncompleteCopy);
    }
    if get(db, MOVED_FACT).await?.is_some() {
        return Err(StoreError::Moved);
    }
    Ok(())
}

/// Returns the value of a fact, after setting it to `new` if there is none.
pub async fn ensure<S: Sql>(db: &S, name: &str, new: &str) -> Result<String, StoreError> {
    let sql = "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING";
    db.write(sql, values![name, new]).await?;
    get(db, name).await?.ok_or_else(|| StoreError::BadRecord(format!("the store has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{open::open_writer, sql::run};

    #[test]
    fn mark_of_a_backup_must_be_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(dir.path()).unwrap();
        let read_mark = |text: &str| {
            run(set(&conn, "backup_of", Some(text))).unwrap();
            run(backup_time(&conn))
        };
        read_mark("2026-11-23T12:00:00Z").unwrap();
        let error = read_mark("2026-11-23").unwrap_err();
        assert!(matches!(error, StoreError::BackupTime(_)), "{error:?}");
        assert!(error.to_string().contains("such as 2026-11-23T12:00:00Z"), "{error}");
    }
}
