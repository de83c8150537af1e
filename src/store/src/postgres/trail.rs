//! Appends entries to the audit trail in PostgreSQL, and finds them.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::{
    PgConnector,
    rows::{execute, query_opt, take_heads},
};
use crate::{
    Heads, StoreError,
    rows::{signed, to_postgres_text},
    sql::{Cell, Value},
    values,
};
use countersign_domain::changes::audit::{AuditHead, EntryContent, EntryHash};

/// Rows that one statement inserts, column by column.
pub(super) struct InsertBatch {
    sql: &'static str,
    columns: Vec<Vec<Cell>>,
}

impl InsertBatch {
    /// `sql` takes one array for each column.
    pub fn new(sql: &'static str) -> Self {
        Self { sql, columns: Vec::new() }
    }

    /// Starts a batch of audit entries.
    pub fn for_entries() -> Self {
        Self::new(
            "INSERT INTO audit (seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash)
             SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                                  $8::text[], $9::bytea[], $10::bytea[])",
        )
    }

    pub fn push(&mut self, row: &[Value<'_>]) {
        self.columns.resize_with(row.len(), Vec::new);
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value.clone().into_cell());
        }
    }

    /// Adds `content` as the next audit entry after `head`, ignoring `content.seq`, and returns the new head.
    pub fn push_entry(&mut self, head: AuditHead, content: &EntryContent<'_>) -> AuditHead {
        let seq = head.seq + 1;
        let (change_id, actor, details) =
            (to_postgres_text(content.change_id), to_postgres_text(content.actor), to_postgres_text(content.details));
        // The hash must cover the texts as they are stored.
        let content = EntryContent { seq, change_id: &change_id, actor: &actor, details: &details, ..*content };
        let hash: EntryHash = content.hash(&head.hash);
        let EntryContent { at, change_id, event, from, to, actor, details, .. } = content;
        self.push(values![seq, at, change_id, event, from, to, actor, details, &head.hash, &hash]);
        AuditHead { seq, hash }
    }

    /// Writes the rows, within the caller's transaction.
    pub async fn write(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        if self.columns.is_empty() {
            return Ok(());
        }
        let columns: Vec<super::rows::Value<'_>> = self.columns.iter().map(|column| column as _).collect();
        execute(client, self.sql, &columns).await.map(drop)
    }
}

/// Stores the heads, as the last step of the caller's transaction.
pub(super) async fn set_heads(client: &ClientWrapper, heads: Heads) -> Result<(), StoreError> {
    let sql = "UPDATE heads SET event = $1, audit = $2, hash = $3";
    let Heads { event, audit } = heads;
    execute(client, sql, &[&signed(event), &signed(audit.seq), &audit.hash.as_slice()]).await?;
    Ok(())
}

/// Appends an entry about no change, as the last step of the caller's transaction.
pub(super) async fn append_entry(
    client: &ClientWrapper,
    event: &'static str,
    actor: &str,
    details: &str,
) -> Result<(), StoreError> {
    let at = Timestamp::now().to_string();
    let heads = take_heads(client).await?;
    let mut entries = InsertBatch::for_entries();
    let content = EntryContent { seq: 0, at: &at, change_id: "", event, from: None, to: "", actor, details };
    let audit = entries.push_entry(heads.audit, &content);
    entries.write(client).await?;
    set_heads(client, Heads { audit, ..heads }).await
}

/// Returns `true` if the trail contains the entry. Waits until no other transaction holds the heads.
pub(super) async fn contains(connector: &PgConnector, entry: AuditHead) -> Result<bool, StoreError> {
    let client = connector.connect().await?;
    client.batch_execute("BEGIN").await?;
    take_heads(&client).await?;
    let row = query_opt(&client, "SELECT hash FROM audit WHERE seq = $1", &[&signed(entry.seq)]).await?;
    Ok(row.is_some_and(|row| row.get::<_, &[u8]>(0) == entry.hash))
}
