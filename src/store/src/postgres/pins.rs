//! Pins of tool definitions in PostgreSQL.

use std::sync::Arc;

use deadpool_postgres::ClientWrapper;

use super::rows::{execute, query, stored};
use crate::{StoreError, pins::PinWrite, rows::parse_time};
use countersign_domain::policy::pins::{Acceptance, Pin, Pins};

/// Within the writer's transaction. With `first`, only of a server that nobody has seen before; whether it was written.
pub(super) async fn store(
    client: &ClientWrapper,
    server: &str,
    writes: &[PinWrite],
    first: bool,
) -> Result<bool, StoreError> {
    let server = stored(server);
    let sql = "INSERT INTO pinned_servers (server) VALUES ($1) ON CONFLICT DO NOTHING";
    if execute(client, sql, &[&server]).await? == 0 && first {
        return Ok(false);
    }
    for PinWrite { tool, pin } in writes {
        let accepted = pin.accepted.as_ref();
        execute(
            client,
            "INSERT INTO tool_pins (server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (server, tool) DO UPDATE SET seen = excluded.seen, accepted = excluded.accepted,
                 accepted_by = excluded.accepted_by, accepted_at = excluded.accepted_at,
                 definition = excluded.definition, accepted_target = excluded.accepted_target",
            &[
                &server,
                &stored(tool),
                &pin.seen,
                &accepted.map(|accepted| &accepted.hash),
                &accepted.map(|accepted| stored(&accepted.by)),
                &accepted.map(|accepted| accepted.at.to_string()),
                &pin.text.as_deref(),
                &accepted.and_then(|accepted| accepted.target.as_ref()),
            ],
        )
        .await?;
    }
    Ok(true)
}

pub(super) async fn load(client: &ClientWrapper) -> Result<Pins, StoreError> {
    let mut pins = Pins::default();
    for row in query(client, "SELECT server FROM pinned_servers", &[]).await? {
        pins.servers.insert(row.get(0), Default::default());
    }
    let sql =
        "SELECT server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target FROM tool_pins";
    for row in query(client, sql, &[]).await? {
        let accepted = match (row.get::<_, Option<String>>(3), row.get::<_, Option<&str>>(5)) {
            (Some(hash), Some(at)) => Some(Acceptance {
                hash,
                by: row.get::<_, Option<String>>(4).unwrap_or_default(),
                at: parse_time(at)?,
                target: row.get(7),
            }),
            _ => None,
        };
        let text = row.get::<_, Option<&str>>(6).map(Arc::from);
        let pin = Pin { seen: row.get(2), accepted, text };
        pins.servers.entry(row.get(0)).or_default().insert(row.get(1), pin);
    }
    Ok(pins)
}
