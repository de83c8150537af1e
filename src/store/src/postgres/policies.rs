//! The policy in force in PostgreSQL: of each node in its row, and the newest beside them.

use deadpool_postgres::ClientWrapper;

use super::rows::{one, write};
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    policy_snapshots::{NEWEST, parsed, written},
};

pub(super) async fn load(client: &ClientWrapper, node: &str) -> Result<PolicySnapshots, StoreError> {
    let sql = "SELECT (SELECT policy FROM nodes WHERE id = $1), (SELECT value FROM facts WHERE name = $2)";
    let row = one(client, sql, &[&node, &NEWEST]).await?;
    let text = |column| row.as_ref().and_then(|row| row.get::<_, Option<&str>>(column));
    Ok(PolicySnapshots { here: parsed(text(0)), newest: parsed(text(1)) })
}

/// `began_with` is the digest of the newest that a node without one of its own was compared with: it goes on from there. In
/// one statement: what is the newest meanwhile is compared as it is once nobody else writes it.
pub(super) async fn save(
    client: &ClientWrapper,
    node: &str,
    snapshot: &PolicySnapshot,
    by_consent: bool,
    began_with: Option<&str>,
) -> Result<(), StoreError> {
    let sql = "WITH newest AS (
                 INSERT INTO facts AS known (name, value) VALUES ($2, $3)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value
                 WHERE $4 OR known.value::json ->> 'digest'
                             = coalesce((SELECT policy::json ->> 'digest' FROM nodes WHERE id = $1 AND policy <> ''), $5::text))
               UPDATE nodes SET policy = $3 WHERE id = $1";
    write(client, sql, &[&node, &NEWEST, &written(snapshot)?, &by_consent, &began_with]).await.map(drop)
}
