//! Reads the list of nodes, and sends messages between them.

use deadpool_postgres::ClientWrapper;

use super::rows::{execute, query, write};
use crate::{
    StoreError,
    nodes::{Introduction, Node, ServerStates},
    rows::{parse_time_ms, unsigned},
};

/// The channel of notifications. `Membership::handle_notification` describes their texts.
pub(super) const CHANNEL: &str = "countersign";

/// A message about a change from one node to another.
pub(super) struct NodeMessage {
    pub from: String,
    pub to: String,
    pub change: String,
    pub body: String,
}

/// Stores a message, and notifies its receiver.
pub(super) async fn send_message(client: &ClientWrapper, message: &NodeMessage) -> Result<(), StoreError> {
    let NodeMessage { from, to, change, body } = message;
    let sql = "WITH stored AS (INSERT INTO words (node, change_id, body) VALUES ($1, $2, $3))
               SELECT pg_notify($4, $5)";
    let hint = format!("{from} to {to}");
    let values: [super::rows::Value<'_>; 5] = [to, change, body, &CHANNEL, &hint];
    write(client, sql, &values).await.map(drop)
}

/// Returns the messages for this node, in order, with their ids.
pub(super) async fn read_messages(
    client: &ClientWrapper,
    own: &str,
) -> Result<Vec<(i64, (String, String))>, StoreError> {
    let sql = "SELECT id, change_id, body FROM words WHERE node = $1 ORDER BY id";
    let rows = query(client, sql, &[&own]).await?;
    Ok(rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect())
}

/// Deletes the messages with the given ids.
pub(super) async fn delete_messages(client: &ClientWrapper, ids: Vec<i64>) -> Result<(), StoreError> {
    execute(client, "DELETE FROM words WHERE id = ANY($1)", &[&ids]).await.map(drop)
}

/// Parses server states, which a node of any version may have written.
pub(super) fn parse_server_states(text: &str) -> ServerStates {
    serde_json::from_str(text).unwrap_or_default()
}

/// Returns all nodes, oldest first.
pub(super) async fn list(client: &ClientWrapper, own_id: &str) -> Result<Vec<Node>, StoreError> {
    let sql = "SELECT id, epoch, url, version, configuration, started_ms,
                      (extract(epoch FROM lease_until) * 1000)::bigint, lease_until > clock_timestamp(),
                      (SELECT count(*) FROM claims WHERE node = nodes.id AND lapsed_until IS NULL AND taken_ms IS NULL),
                      servers, resigned,
                      certificate
               FROM nodes ORDER BY joined";
    let mut leader_found = false;
    let mut nodes = Vec::new();
    for row in query(client, sql, &[]).await? {
        let (is_alive, resigned): (bool, bool) = (row.get(7), row.get(10));
        let is_leader = is_alive && !resigned && !leader_found;
        leader_found |= is_leader;
        let id: String = row.get(0);
        nodes.push(Node {
            is_self: id == own_id,
            id,
            epoch: unsigned(row.get(1))?,
            introduction: Introduction {
                url: row.get(2),
                version: row.get(3),
                configuration: row.get(4),
                certificate: row.get(11),
            },
            server_states: parse_server_states(row.get(9)),
            started_at: parse_time_ms(row.get(5))?,
            lease_until: Some(parse_time_ms(row.get(6))?),
            is_alive,
            is_leader,
            running: unsigned(row.get(8))?,
        });
    }
    Ok(nodes)
}
