//! The recorded policy in SQLite. There is a single gateway, so its policy is also the newest one.

use std::path::Path;

use rusqlite::Connection;

use super::{
    open::open_writer,
    sql::{SharedConnection, run},
};
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    coverage::{POLICY_RECORDED, policy_details},
    policy_snapshots::{NEWEST_POLICY_FACT, to_stored},
    sql::{Database as _, Sql as _},
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
    SharedConnection::new(open_writer(dir)?).transaction(async |db| {
        facts::set(db, NEWEST_POLICY_FACT, Some(&text)).await?;
        db.append_entry(POLICY_RECORDED, SYSTEM, &policy_details(&text, None, true)).await
    })
}
