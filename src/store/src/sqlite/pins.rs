//! Pins of tool definitions in SQLite.

use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::{StoreError, pins::PinWrite, rows::parse_time};
use countersign_domain::policy::pins::{Acceptance, Pin, Pins};

/// Within the writer's transaction.
pub(crate) fn store(conn: &Connection, server: &str, writes: &[PinWrite]) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO pinned_servers (server) VALUES (?1)")?.execute([server])?;
    let mut statement = conn.prepare_cached(
        "INSERT OR REPLACE INTO tool_pins (server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for PinWrite { tool, pin } in writes {
        let accepted = pin.accepted.as_ref();
        statement.execute(params![
            server,
            tool,
            pin.seen,
            accepted.map(|accepted| &accepted.hash),
            accepted.map(|accepted| &accepted.by),
            accepted.map(|accepted| accepted.at.to_string()),
            pin.text.as_deref(),
            accepted.and_then(|accepted| accepted.target.as_ref()),
        ])?;
    }
    Ok(())
}

pub(crate) fn load(conn: &Connection) -> Result<Pins, StoreError> {
    let mut pins = Pins::default();
    let mut statement = conn.prepare("SELECT server FROM pinned_servers")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        pins.servers.insert(row.get(0)?, Default::default());
    }
    let mut statement = conn.prepare(
        "SELECT server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target FROM tool_pins",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let accepted = match (row.get::<_, Option<String>>(3)?, row.get::<_, Option<String>>(5)?) {
            (Some(hash), Some(at)) => Some(Acceptance {
                hash,
                by: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
                at: parse_time(&at)?,
                target: row.get(7)?,
            }),
            _ => None,
        };
        let text = row.get::<_, Option<String>>(6)?.map(Arc::from);
        let pin = Pin { seen: row.get(2)?, accepted, text };
        pins.servers.entry(row.get(0)?).or_default().insert(row.get(1)?, pin);
    }
    Ok(pins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::row_hash;

    #[test]
    fn a_pin_has_one_hash_whether_it_is_written_or_read() {
        let dir = tempfile::tempdir().unwrap();
        let conn = crate::sqlite::open::open_writer(dir.path()).unwrap();
        let at = "2027-01-01T00:00:00.5Z".parse().unwrap();
        let accepted = Acceptance { hash: "h2".into(), by: "alice".into(), at, target: Some("t".into()) };
        for accepted in [None, Some(accepted)] {
            let pin = Pin { seen: Some("h1".into()), accepted, text: Some("{}".into()) };
            let write = PinWrite { tool: "read".into(), pin };
            store(&conn, "fs", std::slice::from_ref(&write)).unwrap();
            let found = crate::sqlite::trail::rows(&conn).unwrap();
            assert_eq!(found.pins.values().collect::<Vec<_>>(), [&row_hash("fs", &write)]);
        }
    }
}
