//! The recorded policy in SQLite. There is a single gateway, so its policy is also the newest one.

use std::{path::Path, sync::Arc};

use rusqlite::{Connection, TransactionBehavior};

use super::{open::open_writer, sql::run, trail};
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    coverage::{POLICY_RECORDED, policy_details},
    policy_snapshots::{NEWEST_POLICY_FACT, to_stored},
    statements::facts,
};
use countersign_domain::changes::machine::SYSTEM;

pub(super) fn load(conn: &Connection) -> Result<PolicySnapshots, StoreError> {
    let newest_policy = run(facts::get(conn, NEWEST_POLICY_FACT))?;
    Ok(PolicySnapshots::read(newest_policy.as_deref(), newest_policy.as_deref()))
}

/// Saves the policy on a separate connection. Blocks until the write is durable.
pub(super) fn save(dir: &Path, snapshot: &PolicySnapshot) -> Result<(), StoreError> {
    let text = to_stored(snapshot)?;
    let mut conn = open_writer(dir)?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    run(facts::set(&*tx, NEWEST_POLICY_FACT, Some(&text)))?;
    trail::append_entry(&tx, POLICY_RECORDED, SYSTEM, &policy_details(&text, None, true))?;
    Ok(tx.commit()?)
}

/// Saves the policy on a separate thread.
pub(super) fn save_in_background(dir: &Arc<Path>, snapshot: PolicySnapshot) -> crate::StoreFuture<()> {
    let dir = Arc::clone(dir);
    let (reply, answer) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("store-policy".into()).spawn({
        let dir = Arc::clone(&dir);
        move || drop(reply.send(save(&dir, &snapshot)))
    });
    Box::pin(async move {
        if let Err(error) = spawned {
            return Err(StoreError::data_dir(&dir, error));
        }
        answer.await.unwrap_or(Err(StoreError::Closed))
    })
}
