//! The policy in force in SQLite: one for the only gateway, which is the newest as well.

use std::{path::Path, sync::Arc};

use rusqlite::{Connection, OptionalExtension};

use super::open::open_writer;
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    policy_snapshots::{NEWEST, parsed, written},
};

pub(super) fn load(conn: &Connection) -> Result<PolicySnapshots, StoreError> {
    let sql = "SELECT value FROM facts WHERE name = ?1";
    let found: Option<String> = conn.prepare_cached(sql)?.query_row([NEWEST], |row| row.get(0)).optional()?;
    let here = parsed(found.as_deref());
    Ok(PolicySnapshots { newest: here.clone(), here })
}

/// With a connection of its own, on a thread that may wait for the disk: this is rare.
pub(super) fn save(dir: &Path, snapshot: &PolicySnapshot) -> Result<(), StoreError> {
    let sql = "INSERT OR REPLACE INTO facts (name, value) VALUES (?1, ?2)";
    open_writer(dir)?.execute(sql, [NEWEST, written(snapshot)?.as_str()])?;
    Ok(())
}

/// The same from wherever it is asked for.
pub(super) fn save_aside(dir: &Arc<Path>, snapshot: PolicySnapshot) -> crate::StoreFuture<()> {
    let dir = Arc::clone(dir);
    let (reply, answer) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("store-policy".into()).spawn({
        let dir = Arc::clone(&dir);
        move || drop(reply.send(save(&dir, &snapshot)))
    });
    Box::pin(async move {
        if let Err(error) = spawned {
            return Err(StoreError::DataDir { path: dir.to_path_buf(), source: Arc::new(error) });
        }
        answer.await.unwrap_or(Err(StoreError::Closed))
    })
}
