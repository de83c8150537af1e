//! Pins of tool definitions. The audit trail has an entry for each change of a pin.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::Mutex;

use super::{AuditRecord, Store, StoreError, WriteError, WriteRequest, coverage::pin_hash, write};
use countersign_domain::{
    changes::machine::GATEWAY,
    policy::pins::{Acceptance, AcceptedReads, Definition, PinSource, Pins, ToolPin},
};

/// The event of recording the definitions of a server that was connected for the first time.
pub(crate) const FIRST_SEEN: &str = "definitions_seen";
/// The event of accepting definitions of tools that a reviewer vouches for as reads, which loosens the policy.
const READS_ACCEPTED: &str = "definitions_accepted_as_reads";

/// The new state of a pin.
#[derive(Clone, Debug)]
pub struct PinWrite {
    pub tool: String,
    pub pin: ToolPin,
}

impl PinWrite {
    /// Returns the columns of the pin's row after `server` and `tool`, in their order.
    pub(crate) fn columns(&self) -> [Option<Cow<'_, str>>; 6] {
        let accepted = self.pin.accepted.as_ref();
        [
            self.pin.seen.as_deref().map(Cow::from),
            accepted.map(|accepted| accepted.stored_hash().into()),
            accepted.map(|accepted| accepted.by.as_str().into()),
            accepted.map(|accepted| accepted.at.to_string().into()),
            self.pin.text.as_deref().map(Cow::from),
            accepted.and_then(|accepted| accepted.server_fingerprint.as_deref()).map(Cow::from),
        ]
    }
}

/// The pins of a running gateway. Reads get a snapshot, and changes are made one at a time.
pub struct PinStore {
    store: Arc<dyn Store>,
    pins: ArcSwap<Pins>,
    changing: Mutex<()>,
    /// See [`PinStore::is_behind`].
    behind: Arc<AtomicBool>,
}

impl PinStore {
    /// Reads all pins.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let pins = store.pins().await?;
        Ok(Self { store, pins: ArcSwap::from_pointee(pins), changing: Mutex::new(()), behind: Arc::default() })
    }

    /// Reads the pins that other nodes have written. Returns the pins before and after.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn reload(&self) -> Result<(Arc<Pins>, Arc<Pins>), StoreError> {
        let _one_at_a_time = self.changing.lock().await;
        self.behind.store(false, Ordering::Release);
        let read_result = self.store.pins().await.inspect_err(|_| self.behind.store(true, Ordering::Release));
        let after = Arc::new(read_result?);
        Ok((self.pins.swap(Arc::clone(&after)), after))
    }

    /// Returns `true` if the pins must be reloaded, because another node has pinned the definitions of a server first.
    pub fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Acquire)
    }

    /// Accepts the given definitions of a server. `server` is its name, with the fingerprint of the server that has this name
    /// now. If a reviewer vouches for `reads` by the names of tools, these calls count as read-only from now on, whatever the
    /// tools declare, so the audit trail gets an event of its own.
    ///
    /// # Errors
    /// Those of the store. No definition is accepted then, unless the outcome is unknown.
    pub async fn accept(
        &self,
        (server, server_fingerprint): (&str, &str),
        tools: &[Definition],
        reads: Option<&HashMap<String, AcceptedReads>>,
        by: &str,
    ) -> Result<(), WriteError> {
        let event = if reads.is_some() { READS_ACCEPTED } else { "definitions_accepted" };
        let _one_at_a_time = self.changing.lock().await;
        let at = Timestamp::now();
        let current = self.pins.load_full();
        let writes = tools.iter().map(|tool| PinWrite {
            tool: tool.name.clone(),
            pin: ToolPin {
                seen: current.pin(server, &tool.name).and_then(|pin| pin.seen.clone()),
                accepted: Some(Acceptance {
                    hash: tool.hash.clone(),
                    by: by.to_owned(),
                    at,
                    server_fingerprint: Some(server_fingerprint.to_owned()),
                    reads: reads.and_then(|reads| reads.get(&tool.name).copied()).unwrap_or_default(),
                }),
                text: Some(Arc::clone(&tool.text)),
            },
        });
        self.write(AuditRecord { at, ..pin_record(server, writes.collect(), event, by) }).await
    }

    /// Revokes acceptances, which restores the status that each definition had before.
    ///
    /// # Errors
    /// Those of the store. No acceptance is revoked then, unless the outcome is unknown.
    pub async fn revoke(&self, server: &str, tools: &[Definition], by: &str) -> Result<(), WriteError> {
        let _one_at_a_time = self.changing.lock().await;
        let current = self.pins.load_full();
        let writes = tools.iter().filter_map(|tool| {
            let pin = current.pin(server, &tool.name)?;
            pin.accepted.as_ref()?;
            // The stored text is that of the accepted definition, which may differ from the first seen one.
            let text = pin.text.clone().filter(|_| pin.seen.is_some());
            Some(PinWrite { tool: tool.name.clone(), pin: ToolPin { seen: pin.seen.clone(), accepted: None, text } })
        });
        self.write(pin_record(server, writes.collect(), "definitions_revoked", by)).await
    }

    /// Binds older acceptances without a fingerprint to the current fingerprint of the server. Returns the number of
    /// tools whose acceptance belongs to another fingerprint. Call this method before the server offers any tools.
    pub async fn bind_to_server(&self, server: &str, server_fingerprint: &str) -> usize {
        let _one_at_a_time = self.changing.lock().await;
        let current = self.pins.load_full();
        let Some(tools) = current.servers.get(server) else { return 0 };
        let accepted = |pin: &ToolPin| pin.accepted.as_ref().map(|accepted| accepted.server_fingerprint.clone());
        let accepted_for_other_target =
            tools.values().filter_map(accepted).flatten().filter(|other| other != server_fingerprint).count();
        let writes: Vec<PinWrite> = tools
            .iter()
            .filter(|(_, pin)| accepted(pin) == Some(None))
            .map(|(tool, pin)| {
                let mut pin = pin.clone();
                if let Some(accepted) = &mut pin.accepted {
                    accepted.server_fingerprint = Some(server_fingerprint.to_owned());
                }
                PinWrite { tool: tool.clone(), pin }
            })
            .collect();
        // The binding applies even if it cannot be stored, because it only restricts acceptances.
        self.apply(server, &writes);
        if let Err(error) = self.write(pin_record(server, writes, "definitions_bound", GATEWAY)).await {
            tracing::warn!(server, %error, "acceptances could not be bound to the current target of their server; the next start tries again");
        }
        accepted_for_other_target
    }

    /// Writes a record, if it has pins, and then applies them.
    async fn write(&self, record: AuditRecord) -> Result<(), WriteError> {
        if record.pins.is_empty() {
            return Ok(());
        }
        let (server, writes) = (record.server.clone(), record.pins.clone());
        // The store completes the write even if the client of the endpoint disconnects.
        write(&*self.store, WriteRequest::Record(record)).await?;
        self.apply(&server, &writes);
        Ok(())
    }

    fn apply(&self, server: &str, writes: &[PinWrite]) {
        self.pins.rcu(|pins| {
            let mut pins = Pins::clone(pins);
            let tools = pins.servers.entry(server.to_owned()).or_default();
            for write in writes {
                tools.insert(write.tool.clone(), write.pin.clone());
            }
            pins
        });
    }
}

impl PinSource for PinStore {
    fn pins(&self) -> Arc<Pins> {
        self.pins.load_full()
    }

    fn observe(&self, server: &str, tools: &[Definition]) {
        if self.pins.load().has_server(server) {
            return;
        }
        let writes: Vec<PinWrite> = tools
            .iter()
            .map(|tool| PinWrite {
                tool: tool.name.clone(),
                pin: ToolPin { seen: Some(tool.hash.clone()), accepted: None, text: Some(Arc::clone(&tool.text)) },
            })
            .collect();
        // The pins apply before they are durable, because they only restrict tools. After a crash, the server counts
        // as new again.
        self.apply(server, &writes);
        let (name, behind) = (server.to_owned(), Arc::clone(&self.behind));
        let record = pin_record(server, writes, FIRST_SEEN, GATEWAY);
        self.store.submit(
            WriteRequest::Record(record),
            Box::new(move |written, _| match written {
                Ok(_) => {}
                Err(WriteError::Conflict) => behind.store(true, Ordering::Release),
                Err(error) => {
                    tracing::warn!(server = %name, %error, "the tool definitions of a new server could not be stored; the next start records them again");
                }
            }),
        );
    }
}

/// Returns the record of pins that change now.
fn pin_record(server: &str, pins: Vec<PinWrite>, event: &'static str, actor: &str) -> AuditRecord {
    let tools: Vec<_> = pins
        .iter()
        .map(|write| {
            let pin = &write.pin;
            let hash = pin.accepted.as_ref().map(|accepted| &accepted.hash).or(pin.seen.as_ref());
            let mut tool = json!({ "name": write.tool, "hash": hash, "row": row_hash(server, write) });
            match pin.accepted.as_ref().map(|accepted| accepted.reads) {
                Some(AcceptedReads::All) => tool["as"] = "read".into(),
                Some(AcceptedReads::Sql) => tool["as"] = "sql_read".into(),
                Some(AcceptedReads::None) | None => {}
            }
            tool
        })
        .collect();
    let details = json!({ "server": server, "tools": tools }).to_string();
    AuditRecord { server: server.to_owned(), pins, ..AuditRecord::new(event, Timestamp::now(), actor, details) }
}

/// Returns the hash of a pin's row, which the audit entry contains.
pub(crate) fn row_hash(server: &str, write: &PinWrite) -> String {
    pin_hash(server, &write.tool, write.columns().each_ref().map(|column| column.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreLocation;
    use countersign_domain::policy::DefinitionStatus;

    fn tool(name: &str, hash: &str) -> Definition {
        Definition { name: name.into(), hash: hash.into(), text: format!("{{\"{hash}\":1}}").into() }
    }

    async fn open_pins(dir: &std::path::Path) -> PinStore {
        PinStore::open(StoreLocation::directory(dir).open().unwrap()).await.unwrap()
    }

    #[actix::test]
    async fn pins_are_kept_after_reopening_with_entries() {
        let dir = tempfile::tempdir().unwrap();
        let pins = open_pins(dir.path()).await;
        assert_eq!(
            pins.pins().status(("fs", "t"), "read", "h1"),
            DefinitionStatus::FirstSeen,
            "a server without pins counts as seen"
        );
        pins.observe("fs", &[tool("read", "h1"), tool("write", "h2")]);
        // Later observations of the same server are ignored.
        pins.observe("fs", &[tool("read", "h9"), tool("new", "h3")]);
        let status = |pins: &PinStore, tool, hash| pins.pins().status(("fs", "t"), tool, hash);
        assert_eq!(status(&pins, "read", "h1"), DefinitionStatus::FirstSeen);
        assert_eq!(status(&pins, "read", "h9"), DefinitionStatus::Changed);
        assert_eq!(status(&pins, "new", "h3"), DefinitionStatus::New);
        pins.accept(("fs", "t"), &[tool("read", "h1"), tool("new", "h3")], None, "alice").await.unwrap();
        assert_eq!(status(&pins, "read", "h1"), DefinitionStatus::Accepted);
        assert_eq!(status(&pins, "read", "h9"), DefinitionStatus::Changed);
        assert_eq!(status(&pins, "new", "h3"), DefinitionStatus::Accepted);
        pins.store.close();
        let before = Pins::clone(&pins.pins());
        drop(pins);

        let pins = open_pins(dir.path()).await;
        assert_eq!(pins.pins().servers, before.servers);
        assert!(pins.pins().has_server("fs") && !pins.pins().has_server("git"));
        let text = pins.pins().pin("fs", "new").unwrap().text.clone();
        assert_eq!(text.as_deref(), Some("{\"h3\":1}"), "the text is kept for comparison with later definitions");
        pins.revoke("fs", &[tool("read", "h1"), tool("new", "h3"), tool("write", "h2")], "bob").await.unwrap();
        assert_eq!(status(&pins, "read", "h1"), DefinitionStatus::FirstSeen);
        assert_eq!(status(&pins, "new", "h3"), DefinitionStatus::New);
        let trail = pins.store.audit_after(0, 10).await.unwrap();
        let entries: Vec<(&str, &str)> = trail.iter().map(|e| (e.event.as_str(), e.actor.as_str())).collect();
        assert_eq!(
            entries,
            [("definitions_seen", "gateway"), ("definitions_accepted", "alice"), ("definitions_revoked", "bob")]
        );
        let mut details: serde_json::Value = serde_json::from_str(trail[1].details.get()).unwrap();
        for tool in details["tools"].as_array_mut().unwrap() {
            let row = tool.as_object_mut().unwrap().remove("row").unwrap();
            assert!(row.as_str().unwrap().starts_with("sha256:"), "{row}");
        }
        assert_eq!(
            details,
            json!({ "server": "fs", "tools": [
            { "name": "read", "hash": "h1" }, { "name": "new", "hash": "h3" }] })
        );
        pins.store.close();
        let verified = StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
        assert_eq!((verified.entries, verified.changes), (3, 0));
    }

    #[actix::test]
    async fn accepted_reads_are_kept_and_recorded_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let pins = open_pins(dir.path()).await;
        let tools = [tool("read", "h1"), tool("edit", "h2"), tool("execute_sql", "h3")];
        pins.observe("fs", &tools);
        let reads = [("read", AcceptedReads::All), ("execute_sql", AcceptedReads::Sql)];
        let reads = reads.map(|(tool, reads)| (tool.to_owned(), reads)).into();
        pins.accept(("fs", "t"), &tools, Some(&reads), "alice").await.unwrap();
        pins.store.close();
        drop(pins);

        let pins = open_pins(dir.path()).await;
        let accepted = |tool: &str, hash: &str| pins.pins().pin("fs", tool).unwrap().accepted_reads("t", hash);
        assert_eq!(accepted("read", "h1"), AcceptedReads::All);
        assert_eq!(accepted("edit", "h2"), AcceptedReads::None);
        assert_eq!(accepted("execute_sql", "h3"), AcceptedReads::Sql);
        assert_eq!(pins.pins().status(("fs", "t"), "edit", "h2"), DefinitionStatus::Accepted);
        let trail = pins.store.audit_after(0, 10).await.unwrap();
        let entry = trail.last().unwrap();
        assert_eq!((entry.event.as_str(), entry.actor.as_str()), ("definitions_accepted_as_reads", "alice"));
        let details: serde_json::Value = serde_json::from_str(entry.details.get()).unwrap();
        let recorded = |index: usize| (&details["tools"][index]["hash"], &details["tools"][index]["as"]);
        assert_eq!(recorded(0), (&json!("h1"), &json!("read")));
        assert_eq!(recorded(1), (&json!("h2"), &json!(null)));
        assert_eq!(recorded(2), (&json!("h3"), &json!("sql_read")));
        // An acceptance of the definition alone no longer vouches for the tool.
        pins.accept(("fs", "t"), &tools[..1], None, "bob").await.unwrap();
        assert_eq!(pins.pins().pin("fs", "read").unwrap().accepted_reads("t", "h1"), AcceptedReads::None);
        pins.store.close();
        StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
    }

    #[actix::test]
    async fn acceptance_does_not_apply_to_another_target() {
        let dir = tempfile::tempdir().unwrap();
        let pins = open_pins(dir.path()).await;
        pins.observe("fs", &[tool("read", "h1"), tool("write", "h2")]);
        pins.accept(("fs", "a"), &[tool("read", "h1")], None, "alice").await.unwrap();
        let status = |pins: &PinStore, server_fingerprint, tool, hash| {
            pins.pins().status(("fs", server_fingerprint), tool, hash)
        };
        assert_eq!(
            (
                pins.bind_to_server("fs", "a").await,
                pins.bind_to_server("fs", "b").await,
                pins.bind_to_server("git", "b").await
            ),
            (0, 1, 0)
        );
        assert_eq!(status(&pins, "a", "read", "h1"), DefinitionStatus::Accepted);
        assert_eq!(status(&pins, "b", "read", "h1"), DefinitionStatus::Changed);
        assert_eq!(status(&pins, "b", "write", "h2"), DefinitionStatus::FirstSeen, "this tool had no acceptance");
        pins.accept(("fs", "b"), &[tool("read", "h1")], None, "alice").await.unwrap();
        assert_eq!(status(&pins, "b", "read", "h1"), DefinitionStatus::Accepted);
        assert_eq!(status(&pins, "a", "read", "h1"), DefinitionStatus::Changed);
        pins.revoke("fs", &[tool("read", "h1")], "alice").await.unwrap();
        assert_eq!(status(&pins, "a", "read", "h1"), DefinitionStatus::FirstSeen);
    }

    #[actix::test]
    async fn old_acceptances_are_bound_to_target_at_upgrade() {
        let dir = tempfile::tempdir().unwrap();
        let conn = crate::sqlite::open::create_with_migrations(dir.path(), 2);
        conn.execute_batch(
            "INSERT INTO pinned_servers VALUES ('fs');
             INSERT INTO tool_pins (server, tool, seen, accepted, accepted_by, accepted_at, definition)
             VALUES ('fs', 'read', 'h1', 'h1', 'alice', '2026-07-28T12:00:00Z', '{}')",
        )
        .unwrap();
        drop(conn);
        let pins = open_pins(dir.path()).await;
        assert_eq!(pins.bind_to_server("fs", "now").await, 0);
        let status = |pins: &PinStore, server_fingerprint| pins.pins().status(("fs", server_fingerprint), "read", "h1");
        assert_eq!(
            (status(&pins, "now"), status(&pins, "later")),
            (DefinitionStatus::Accepted, DefinitionStatus::Changed)
        );
        pins.store.close();
        drop(pins);
        let pins = open_pins(dir.path()).await;
        assert_eq!(
            (status(&pins, "now"), status(&pins, "later")),
            (DefinitionStatus::Accepted, DefinitionStatus::Changed)
        );
        let trail = pins.store.audit_after(0, 10).await.unwrap();
        assert_eq!(trail.last().unwrap().event, "definitions_bound");
        pins.store.close();
        // One entry anchors the existing rows, and one records the binding.
        assert_eq!(StoreLocation::directory(dir.path()).verify_audit(None).unwrap().entries, 2);
    }

    #[actix::test]
    async fn acceptance_fails_if_store_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let pins = open_pins(dir.path()).await;
        pins.observe("fs", &[tool("read", "h1")]);
        pins.store.close();
        assert!(pins.accept(("fs", "t"), &[tool("read", "h1")], None, "alice").await.is_err());
        assert_eq!(pins.pins().status(("fs", "t"), "read", "h1"), DefinitionStatus::FirstSeen);
    }
}
