//! The recorded policy in SQLite: one for the only gateway, which is also the newest.

use std::{path::Path, sync::Arc};

use rusqlite::{Connection, TransactionBehavior};

use super::{open::open_writer, sql::run, trail};
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    coverage::{POLICY_RECORDED, policy_details},
    policy_snapshots::{NEWEST, written},
    statements::facts,
};
use countersign_domain::changes::machine::SYSTEM;

pub(super) fn load(conn: &Connection) -> Result<PolicySnapshots, StoreError> {
    let found = run(facts::get(conn, NEWEST))?;
    Ok(PolicySnapshots::read(found.as_deref(), found.as_deref()))
}

/// Saves the policy on its own connection; this is rare, and may wait for the disk.
pub(super) fn save(dir: &Path, snapshot: &PolicySnapshot) -> Result<(), StoreError> {
    let text = written(snapshot)?;
    let mut conn = open_writer(dir)?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    run(facts::set(&*tx, NEWEST, Some(&text)))?;
    trail::tell(&tx, POLICY_RECORDED, SYSTEM, &policy_details(&text, None, true))?;
    Ok(tx.commit()?)
}

/// Saves the policy on a thread of its own.
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
