//! Pins: which definitions of upstream tools were first seen and which a reviewer accepted.
//!
//! An acceptance holds for one definition of what was behind the server's name then: another program that says the
//! same of itself inherits nothing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;

use super::DefinitionStatus;

/// A definition as it is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The tool's name as clients see it.
    pub name: String,
    /// `sha256:…` of all of it.
    pub hash: String,
    /// JSON, to compare a later one with.
    pub text: Arc<str>,
}

/// Who accepted a definition, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    pub hash: String,
    pub by: String,
    pub at: Timestamp,
    /// What was behind the server's name (`countersign_config::UpstreamTarget::fingerprint`); `None` where that was not
    /// noted yet, which stands for whatever is behind it.
    pub target: Option<String>,
}

impl Acceptance {
    /// Whether it was given to this definition, coming from there.
    fn covers(&self, target: &str, hash: &str) -> bool {
        self.hash == hash && self.target.as_ref().is_none_or(|accepted| accepted == target)
    }
}

/// What is known of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolPin {
    /// The hash of what was seen when the server was first connected; `None` for a tool that came later.
    pub seen: Option<String>,
    pub accepted: Option<Acceptance>,
    /// The definition that was accepted, else the one that was seen; `None` once an acceptance of a tool that came
    /// later was revoked.
    pub text: Option<Arc<str>>,
}

impl ToolPin {
    /// What a definition of this hash is to us, where `target` is behind the server's name.
    #[must_use]
    pub fn status(&self, target: &str, hash: &str) -> DefinitionStatus {
        match (&self.accepted, &self.seen) {
            (Some(accepted), _) if accepted.covers(target, hash) => DefinitionStatus::Accepted,
            (Some(_), _) => DefinitionStatus::Changed,
            (None, Some(seen)) if seen == hash => DefinitionStatus::Seen,
            (None, Some(_)) => DefinitionStatus::Changed,
            (None, None) => DefinitionStatus::New,
        }
    }
}

/// All pins, by server and tool. Immutable; a change makes a new one.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    pub servers: HashMap<String, BTreeMap<String, ToolPin>>,
}

impl Pins {
    /// Whether this server's tools were recorded before.
    #[must_use]
    pub fn has_server(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    #[must_use]
    pub fn pin(&self, server: &str, tool: &str) -> Option<&ToolPin> {
        self.servers.get(server)?.get(tool)
    }

    /// What this definition is to us. All of a server that was never recorded are as first seen.
    #[must_use]
    pub fn status(&self, (server, target): (&str, &str), tool: &str, hash: &str) -> DefinitionStatus {
        match self.servers.get(server) {
            None => DefinitionStatus::Seen,
            Some(tools) => tools.get(tool).map_or(DefinitionStatus::New, |pin| pin.status(target, hash)),
        }
    }
}

/// Keeps pins.
pub trait PinSource: Send + Sync + 'static {
    /// All of them, as they are now.
    fn pins(&self) -> Arc<Pins>;
    /// Records what a server offers when it is seen for the first time ever; does nothing for one that is known.
    fn observe(&self, server: &str, tools: &[Definition]);
}

/// Keeps none: every definition is as first seen.
#[derive(Debug, Default)]
pub struct NoPins;

impl PinSource for NoPins {
    fn pins(&self) -> Arc<Pins> {
        Arc::default()
    }
    fn observe(&self, _: &str, _: &[Definition]) {}
}
