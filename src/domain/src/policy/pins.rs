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

/// The acceptance of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    pub hash: String,
    pub by: String,
    pub at: Timestamp,
    /// The fingerprint of the server (`countersign_config::UpstreamTarget::fingerprint`). `None` for older acceptances,
    /// which hold for any server.
    pub server_fingerprint: Option<String>,
}

impl Acceptance {
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
    #[must_use]
    pub fn status(&self, server_fingerprint: &str, hash: &str) -> DefinitionStatus {
        match (&self.accepted, &self.seen) {
            (Some(accepted), _) if accepted.covers(server_fingerprint, hash) => DefinitionStatus::Accepted,
            (Some(_), _) => DefinitionStatus::Changed,
            (None, Some(seen)) if seen == hash => DefinitionStatus::Seen,
            (None, Some(_)) => DefinitionStatus::Changed,
            (None, None) => DefinitionStatus::New,
        }
    }
}

/// All pins by server and tool. The value is immutable; every change creates a new value.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    pub servers: HashMap<String, BTreeMap<String, ToolPin>>,
}

impl Pins {
    /// Returns `true` if the tools of this server were recorded before.
    #[must_use]
    pub fn has_server(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    #[must_use]
    pub fn pin(&self, server: &str, tool: &str) -> Option<&ToolPin> {
        self.servers.get(server)?.get(tool)
    }

    /// Returns the status of a definition. All definitions of a server that was never recorded count as first seen.
    #[must_use]
    pub fn status(&self, (server, server_fingerprint): (&str, &str), tool: &str, hash: &str) -> DefinitionStatus {
        match self.servers.get(server) {
            None => DefinitionStatus::Seen,
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

/// Stores no pins: every definition counts as first seen.
#[derive(Debug, Default)]
pub struct NoPins;

impl PinSource for NoPins {
    fn pins(&self) -> Arc<Pins> {
        Arc::default()
    }
    fn observe(&self, _: &str, _: &[Definition]) {}
}
