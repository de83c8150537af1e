//! Pins record which definitions of upstream tools were first seen, and which a reviewer accepted.
//!
//! An acceptance is bound to a definition and to the server that offered it. Another server with the same definition
//! inherits nothing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;

use super::DefinitionStatus;

/// A pinned definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The tool's name as clients see it.
    pub name: String,
    /// `sha256:…` of the whole definition.
    pub hash: String,
    /// The definition as JSON, to compare a later one with.
    pub text: Arc<str>,
}

/// The calls of a tool that a reviewer accepted as reads, whatever the definition says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptedReads {
    #[default]
    None,
    All,
    /// Calls whose SQL statements only read (`countersign_sql`).
    Sql,
}

/// The acceptance of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    pub hash: String,
    pub by: String,
    pub at: Timestamp,
    /// The fingerprint of the server (`countersign_config::UpstreamTarget::fingerprint`). `None` for older acceptances,
    /// which hold for any server.
    pub server_fingerprint: Option<String>,
    pub reads: AcceptedReads,
}

/// The suffixes of the stored hash in an acceptance of reads. A version of the program that does not know a suffix takes the
/// text for the hash of another definition, and reviews the tool.
const READ_MARKS: [(AcceptedReads, &str); 2] = [(AcceptedReads::All, " read"), (AcceptedReads::Sql, " sql-read")];

impl Acceptance {
    /// Returns the hash as it is stored, including `reads`.
    pub fn stored_hash(&self) -> String {
        let mark = READ_MARKS.iter().find(|(reads, _)| *reads == self.reads).map_or("", |(_, mark)| mark);
        format!("{}{mark}", self.hash)
    }

    /// Returns `hash` and `reads` of a stored hash.
    pub fn parse_stored_hash(stored: String) -> (String, AcceptedReads) {
        let found = READ_MARKS.iter().find_map(|(reads, mark)| Some((stored.strip_suffix(mark)?.to_owned(), *reads)));
        found.unwrap_or((stored, AcceptedReads::None))
    }

    /// Returns `true` if the acceptance holds for this definition of that server.
    fn covers(&self, server_fingerprint: &str, hash: &str) -> bool {
        self.hash == hash && self.server_fingerprint.as_ref().is_none_or(|accepted| accepted == server_fingerprint)
    }
}

/// The recorded state of a tool's definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolPin {
    /// Hash of the definition when the server was first connected; `None` for a tool that was added later.
    pub seen: Option<String>,
    pub accepted: Option<Acceptance>,
    /// The accepted definition, else the one first seen. `None` if the acceptance of a tool that was added later was
    /// revoked.
    pub text: Option<Arc<str>>,
}

impl ToolPin {
    /// Returns the status of a definition with this hash, offered by the server with this fingerprint.
    pub fn status(&self, server_fingerprint: &str, hash: &str) -> DefinitionStatus {
        match (&self.accepted, &self.seen) {
            (Some(accepted), _) if accepted.covers(server_fingerprint, hash) => DefinitionStatus::Accepted,
            (Some(_), _) => DefinitionStatus::Changed,
            (None, Some(seen)) if seen == hash => DefinitionStatus::FirstSeen,
            (None, Some(_)) => DefinitionStatus::Changed,
            (None, None) => DefinitionStatus::New,
        }
    }

    /// Returns the calls that a reviewer accepted as reads, for the tool with this definition.
    pub fn accepted_reads(&self, server_fingerprint: &str, hash: &str) -> AcceptedReads {
        let accepted = self.accepted.as_ref().filter(|accepted| accepted.covers(server_fingerprint, hash));
        accepted.map_or(AcceptedReads::None, |accepted| accepted.reads)
    }
}

/// All pins by server and tool. The value is immutable; every change creates a new value.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    pub servers: HashMap<String, BTreeMap<String, ToolPin>>,
}

impl Pins {
    /// Returns `true` if the tools of this server were recorded before.
    pub fn has_server(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    pub fn pin(&self, server: &str, tool: &str) -> Option<&ToolPin> {
        self.servers.get(server)?.get(tool)
    }

    /// Returns the status of a definition. All definitions of a server that was never recorded count as first seen.
    pub fn status(&self, (server, server_fingerprint): (&str, &str), tool: &str, hash: &str) -> DefinitionStatus {
        match self.servers.get(server) {
            None => DefinitionStatus::FirstSeen,
            Some(tools) => tools.get(tool).map_or(DefinitionStatus::New, |pin| pin.status(server_fingerprint, hash)),
        }
    }
}

/// Stores pins.
pub trait PinSource: Send + Sync + 'static {
    /// Returns all current pins.
    fn pins(&self) -> Arc<Pins>;
    /// Records the definitions of a server that was never seen before; does nothing for a known server.
    fn observe(&self, server: &str, tools: &[Definition]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acceptance(reads: AcceptedReads) -> Acceptance {
        let at = Timestamp::UNIX_EPOCH;
        Acceptance { hash: "sha256:1".into(), by: "alice".into(), at, server_fingerprint: Some("t".into()), reads }
    }

    #[test]
    fn stored_hash_keeps_what_was_vouched_for() {
        for reads in [AcceptedReads::None, AcceptedReads::All, AcceptedReads::Sql] {
            let stored = acceptance(reads).stored_hash();
            assert_eq!(Acceptance::parse_stored_hash(stored), ("sha256:1".to_owned(), reads));
        }
        // To an older version, the definition has changed.
        for reads in [AcceptedReads::All, AcceptedReads::Sql] {
            let older = Acceptance { hash: acceptance(reads).stored_hash(), ..acceptance(AcceptedReads::None) };
            let pin = ToolPin { accepted: Some(older), ..ToolPin::default() };
            assert_eq!(pin.status("t", "sha256:1"), DefinitionStatus::Changed);
        }
    }

    #[test]
    fn accepted_read_covers_one_definition_of_one_server() {
        let accepted = |reads, server: &str, hash: &str| {
            ToolPin { accepted: Some(acceptance(reads)), ..ToolPin::default() }.accepted_reads(server, hash)
        };
        for reads in [AcceptedReads::None, AcceptedReads::All, AcceptedReads::Sql] {
            assert_eq!(accepted(reads, "t", "sha256:1"), reads);
            assert_eq!(accepted(reads, "t", "sha256:2"), AcceptedReads::None);
            assert_eq!(accepted(reads, "u", "sha256:1"), AcceptedReads::None);
        }
        assert_eq!(ToolPin::default().accepted_reads("t", ""), AcceptedReads::None);
    }
}
