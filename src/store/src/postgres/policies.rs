//! The recorded policies in PostgreSQL: the policy of each node in the node's row, and the newest policy as a fact.

use deadpool_postgres::ClientWrapper;

use super::{
    rows::{query_opt, transaction},
    trail,
};
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    coverage::{POLICY_RECORDED, policy_details},
    policy_snapshots::{NEWEST_POLICY_FACT, to_stored},
};
use countersign_domain::changes::machine::SYSTEM;

pub(super) async fn load(client: &ClientWrapper, node: &str) -> Result<PolicySnapshots, StoreError> {
    let sql = "SELECT (SELECT policy FROM nodes WHERE id = $1), (SELECT value FROM facts WHERE name = $2)";
    let row = query_opt(client, sql, &[&node, &NEWEST_POLICY_FACT]).await?;
    let text = |column| row.as_ref().and_then(|row| row.get::<_, Option<&str>>(column));
    Ok(PolicySnapshots::read(text(0), text(1)))
}

/// Saves the policy of this node. `initial_digest` is the digest of the newest policy that a node without its own
/// policy began with. A single statement compares and replaces the newest policy, so that no concurrent save is lost.
pub(super) async fn save(
    client: &ClientWrapper,
    node: &str,
    snapshot: &PolicySnapshot,
    by_consent: bool,
    initial_digest: Option<&str>,
) -> Result<(), StoreError> {
    let sql = "WITH newest AS (
                 INSERT INTO facts AS known (name, value) VALUES ($2, $3)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value
                 WHERE $4 OR known.value::json ->> 'digest'
                             = coalesce((SELECT policy::json ->> 'digest' FROM nodes WHERE id = $1 AND policy <> ''), $5::text)
                 RETURNING 1),
               own AS (UPDATE nodes SET policy = $3 WHERE id = $1 RETURNING 1)
               SELECT EXISTS (SELECT FROM newest), EXISTS (SELECT FROM own)";
    let text = to_stored(snapshot)?;
    let saving = async {
        let row = query_opt(client, sql, &[&node, &NEWEST_POLICY_FACT, &text, &by_consent, &initial_digest]).await?;
        let (newest, own) = row.map_or((false, false), |row| (row.get(0), row.get(1)));
        let details = policy_details(&text, Some(node).filter(|_| own), newest);
        trail::append_entry(client, POLICY_RECORDED, SYSTEM, &details).await
    };
    transaction(client, saving).await
}
