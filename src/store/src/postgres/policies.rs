//! The policy in force in PostgreSQL: of each node in its row, and the newest beside them.

use deadpool_postgres::ClientWrapper;

use super::{
    rows::{one, transaction},
    trail,
};
use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    coverage::{POLICY_RECORDED, policy_details},
    policy_snapshots::{NEWEST, written},
};
use countersign_domain::changes::machine::SYSTEM;

pub(super) async fn load(client: &ClientWrapper, node: &str) -> Result<PolicySnapshots, StoreError> {
    let sql = "SELECT (SELECT policy FROM nodes WHERE id = $1), (SELECT value FROM facts WHERE name = $2)";
    let row = one(client, sql, &[&node, &NEWEST]).await?;
    let text = |column| row.as_ref().and_then(|row| row.get::<_, Option<&str>>(column));
    Ok(PolicySnapshots::read(text(0), text(1)))
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
                             = coalesce((SELECT policy::json ->> 'digest' FROM nodes WHERE id = $1 AND policy <> ''), $5::text)
                 RETURNING 1),
               own AS (UPDATE nodes SET policy = $3 WHERE id = $1 RETURNING 1)
               SELECT EXISTS (SELECT FROM newest), EXISTS (SELECT FROM own)";
    let text = written(snapshot)?;
    let saving = async {
        let row = one(client, sql, &[&node, &NEWEST, &text, &by_consent, &began_with]).await?;
        let (newest, own) = row.map_or((false, false), |row| (row.get(0), row.get(1)));
        let details = policy_details(&text, Some(node).filter(|_| own), newest);
        trail::tell(client, POLICY_RECORDED, SYSTEM, &details).await
    };
    transaction(client, saving).await
}
