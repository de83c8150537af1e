//! The next entries of the audit trail in PostgreSQL.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::rows::{execute, take_heads};
use crate::{
    Heads, StoreError,
    rows::{signed, stored},
};
use countersign_domain::changes::audit::{AuditHead, EntryContent, EntryHash};

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
        let hash: EntryHash = content.hash(&head.hash);
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
