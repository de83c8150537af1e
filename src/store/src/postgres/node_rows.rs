//! What is read and written of nodes beside the lease of this one: all of them, and what they tell each other.

use deadpool_postgres::ClientWrapper;

use super::rows::{execute, query, write};
use crate::{
    StoreError,
    nodes::{Introduction, Node, Reach},
    rows::{parse_moment, unsigned},
};

/// What is notified on: the number of the last event and of the last record, after the node that wrote them.
pub(super) const CHANNEL: &str = "countersign";
/// Puts what one node has to tell where the other takes it out.
pub(super) async fn tell(
    client: &ClientWrapper,
    own: &str,
    node: &str,
    change: &str,
    body: &str,
) -> Result<(), StoreError> {
    let sql = "WITH told AS (INSERT INTO words (node, change_id, body) VALUES ($1, $2, $3))
               SELECT pg_notify($4, $5)";
    let hint = format!("{own} to {node}");
    let values: [super::rows::Value<'_>; 5] = [&node, &change, &body, &CHANNEL, &hint];
    write(client, sql, &values).await.map(drop)
}

/// What other nodes have told this one, with the numbers by which it is taken out.
pub(super) async fn heard(client: &ClientWrapper, own: &str) -> Result<Vec<(i64, (String, String))>, StoreError> {
    let sql = "SELECT id, change_id, body FROM words WHERE node = $1 ORDER BY id";
    let rows = query(client, sql, &[&own]).await?;
    Ok(rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect())
}

/// Takes out what was heard.
pub(super) async fn forget(client: &ClientWrapper, ids: Vec<i64>) -> Result<(), StoreError> {
    execute(client, "DELETE FROM words WHERE id = ANY($1)", &[&ids]).await.map(drop)
}

/// As a node of whatever version wrote it.
pub(super) fn read_reach(text: &str) -> Reach {
    serde_json::from_str(text).unwrap_or_default()
}

/// All nodes, oldest first.
pub(super) async fn list(client: &ClientWrapper, here: &str) -> Result<Vec<Node>, StoreError> {
    let sql = "SELECT id, epoch, url, version, configuration, started_ms,
                      (extract(epoch FROM lease_until) * 1000)::bigint, lease_until > clock_timestamp(),
                      (SELECT count(*) FROM claims WHERE node = nodes.id AND lapsed_until IS NULL AND taken_ms IS NULL),
                      servers, resigned,
                      certificate
               FROM nodes ORDER BY joined";
    let mut led = false;
    let mut nodes = Vec::new();
    for row in query(client, sql, &[]).await? {
        let (live, resigned): (bool, bool) = (row.get(7), row.get(10));
        let leads = live && !resigned && !led;
        led |= leads;
        let id: String = row.get(0);
        nodes.push(Node {
            here: id == here,
            id,
            epoch: unsigned(row.get(1))?,
            says: Introduction {
                url: row.get(2),
                version: row.get(3),
                configuration: row.get(4),
                certificate: row.get(11),
            },
            reach: read_reach(row.get(9)),
            started_at: parse_moment(row.get(5))?,
            lease_until: Some(parse_moment(row.get(6))?),
            live,
            leads,
            running: unsigned(row.get(8))?,
        });
    }
    Ok(nodes)
}
