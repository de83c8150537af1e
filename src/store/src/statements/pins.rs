//! Statements on pins of tool definitions.

use std::sync::Arc;

use crate::{StoreError, pins::PinWrite, sql::Sql, values};
use countersign_domain::policy::pins::{Acceptance, Pins, ToolPin};

/// Writes pins, within the writer's transaction. If `is_first` is set, pins are written only for a server that has
/// none. Returns `true` if the pins were written.
pub async fn store<S: Sql>(db: &S, server: &str, writes: &[PinWrite], is_first: bool) -> Result<bool, StoreError> {
    let sql = "INSERT INTO pinned_servers (server) VALUES (?1) ON CONFLICT DO NOTHING";
    if db.execute(sql, values![server]).await? == 0 && is_first {
        return Ok(false);
    }
    let sql = "INSERT INTO tool_pins
                   (server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
               ON CONFLICT (server, tool) DO UPDATE SET seen = excluded.seen, accepted = excluded.accepted,
                   accepted_by = excluded.accepted_by, accepted_at = excluded.accepted_at,
                   definition = excluded.definition, accepted_target = excluded.accepted_target";
    for write in writes {
        let columns = write.columns();
        let [seen, accepted, accepted_by, accepted_at, text, fingerprint] = columns.each_ref().map(Option::as_deref);
        let values = values![server, &write.tool, seen, accepted, accepted_by, accepted_at, text, fingerprint];
        db.execute(sql, values).await?;
    }
    Ok(true)
}

pub async fn load<S: Sql>(db: &S) -> Result<Pins, StoreError> {
    let mut pins = Pins::default();
    for row in db.rows("SELECT server FROM pinned_servers", &[]).await? {
        pins.servers.insert(row.get(0)?, Default::default());
    }
    let sql =
        "SELECT server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target FROM tool_pins";
    for row in db.rows(sql, &[]).await? {
        let accepted = match (row.get(3)?, row.get(5)?) {
            (Some(hash), Some(at)) => {
                let by = row.get::<Option<String>>(4)?.unwrap_or_default();
                let (hash, reads) = Acceptance::parse_stored_hash(hash);
                Some(Acceptance { hash, by, at, server_fingerprint: row.get(7)?, reads })
            }
            _ => None,
        };
        let text = row.get::<Option<&str>>(6)?.map(Arc::from);
        let pin = ToolPin { seen: row.get(2)?, accepted, text };
        pins.servers.entry(row.get(0)?).or_default().insert(row.get(1)?, pin);
    }
    Ok(pins)
}
