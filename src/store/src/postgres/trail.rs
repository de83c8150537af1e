//! The audit trail in PostgreSQL: its next entries, and the rows that its entries tell of.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use tokio_postgres::Row;

use super::rows::{execute, one, query, stored, take_heads};
use crate::{
    Heads, StoreError,
    covered::{KeyRow, NEWEST_POLICY, PinRow, Rows, of_key, policy_hash, rule_hash},
    policy_snapshots::NEWEST,
    rows::signed,
};
use countersign_domain::changes::{
    audit::{AuditHead, EntryContent, Hash},
    machine::TERMINAL,
};

/// Entries that are written together, column by column.
#[derive(Default)]
pub(super) struct Appended {
    seq: Vec<i64>,
    at: Vec<String>,
    change: Vec<String>,
    event: Vec<String>,
    from: Vec<Option<String>>,
    to: Vec<String>,
    actor: Vec<String>,
    details: Vec<String>,
    prev_hash: Vec<Vec<u8>>,
    hash: Vec<Vec<u8>>,
}

impl Appended {
    /// The next entry after `head`; answers the new head. Its own number is not looked at.
    pub fn push(&mut self, head: AuditHead, content: &EntryContent<'_>) -> AuditHead {
        let seq = head.seq + 1;
        let (change, actor, details) = (stored(content.change_id), stored(content.actor), stored(content.details));
        // The hash is that of what is stored.
        let content = EntryContent { seq, change_id: &change, actor: &actor, details: &details, ..*content };
        let hash: Hash = content.hash(&head.hash);
        self.seq.push(signed(seq));
        self.at.push(content.at.to_owned());
        self.event.push(content.event.to_owned());
        self.from.push(content.from.map(str::to_owned));
        self.to.push(content.to.to_owned());
        self.prev_hash.push(head.hash.to_vec());
        self.hash.push(hash.to_vec());
        self.change.push(change.into_owned());
        self.actor.push(actor.into_owned());
        self.details.push(details.into_owned());
        AuditHead { seq, hash }
    }

    /// Within the caller's transaction.
    pub async fn write(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        execute(
            client,
            "INSERT INTO audit (seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash)
             SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                                  $8::text[], $9::bytea[], $10::bytea[])",
            &[
                &self.seq,
                &self.at,
                &self.change,
                &self.event,
                &self.from,
                &self.to,
                &self.actor,
                &self.details,
                &self.prev_hash,
                &self.hash,
            ],
        )
        .await?;
        Ok(())
    }
}

/// Says where the logs end, as the last of the caller's transaction.
pub(super) async fn set_heads(client: &ClientWrapper, heads: Heads) -> Result<(), StoreError> {
    let sql = "UPDATE heads SET event = $1, audit = $2, hash = $3";
    let Heads { event, audit } = heads;
    execute(client, sql, &[&signed(event), &signed(audit.seq), &audit.hash.as_slice()]).await?;
    Ok(())
}

const KEYS: &str = "SELECT id, name, role, owner, hash, created_at, revoked_at FROM api_keys";

fn key_row(row: &Row) -> KeyRow<'_> {
    KeyRow {
        id: row.get(0),
        name: row.get(1),
        role: row.get(2),
        owner: row.get(3),
        secret: row.get(4),
        created_at: row.get(5),
        revoked_at: row.get(6),
    }
}

pub(super) async fn rows(client: &ClientWrapper) -> Result<Rows, StoreError> {
    let mut found = Rows::default();
    for row in &query(client, KEYS, &[]).await? {
        let key = key_row(row);
        found.keys.insert(key.id.to_owned(), key.hash());
    }
    let sql =
        "SELECT server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target FROM tool_pins";
    for row in &query(client, sql, &[]).await? {
        let pin = PinRow {
            server: row.get(0),
            tool: row.get(1),
            seen: row.get(2),
            accepted: row.get(3),
            by: row.get(4),
            at: row.get(5),
            definition: row.get(6),
            target: row.get(7),
        };
        found.pins.insert((pin.server.to_owned(), pin.tool.to_owned()), pin.hash());
    }
    for row in query(client, "SELECT server FROM pinned_servers", &[]).await? {
        found.servers.insert(row.get(0));
    }
    for row in query(client, "SELECT id, body, allows, \"over\" FROM standing_rules", &[]).await? {
        found.rules.insert(row.get(0), (rule_hash(row.get(1)), row.get(2), row.get(3)));
    }
    let sql = "SELECT $2, value FROM facts WHERE name = $1 UNION ALL SELECT id, policy FROM nodes WHERE policy <> ''";
    for row in query(client, sql, &[&NEWEST, &NEWEST_POLICY]).await? {
        found.policies.insert(row.get(0), policy_hash(row.get(1)));
    }
    Ok(found)
}

/// What became of a key, by its row as it is now, as the last of the transaction that altered it.
pub(super) async fn key(client: &ClientWrapper, event: &'static str, id: &str) -> Result<(), StoreError> {
    let row = one(client, &format!("{KEYS} WHERE id = $1"), &[&id]).await?;
    let row = row.ok_or_else(|| StoreError::BadRecord(format!("there is no key {id:?}")))?;
    tell(client, event, TERMINAL, &of_key(&key_row(&row))).await
}

/// The next entry, about no change, as the last of the caller's transaction.
pub(super) async fn tell(
    client: &ClientWrapper,
    event: &'static str,
    actor: &str,
    details: &str,
) -> Result<(), StoreError> {
    let at = Timestamp::now().to_string();
    let heads = take_heads(client).await?;
    let mut appended = Appended::default();
    let content = EntryContent { seq: 0, at: &at, change_id: "", event, from: None, to: "", actor, details };
    let audit = appended.push(heads.audit, &content);
    appended.write(client).await?;
    set_heads(client, Heads { audit, ..heads }).await
}
