//! The lists of an upstream, both as the upstream sent them and as the gateway offers them.

pub mod definitions;
pub mod names;
pub(crate) mod usable_definitions;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::link::NegotiatedSession;
use countersign_provider::List;

pub use names::Names;
pub use usable_definitions::{UsableDefinitions, is_tool_allowed};

/// The complete lists of an upstream, in its own text and order.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub tools: Vec<Arc<RawValue>>,
    pub prompts: Vec<Arc<RawValue>>,
    pub resources: Vec<Arc<RawValue>>,
    pub templates: Vec<Arc<RawValue>>,
    /// Lists that were read only in part, and the reason.
    pub truncated: Vec<(&'static str, String)>,
    /// Lists that a stateless server does not declare public (2026-07-28/server/utilities/caching).
    pub private_lists: ListKinds,
}

bitflags::bitflags! {
    /// A set of an upstream's lists. Resource templates count as resources.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ListKinds: u8 {
        const TOOLS = 1;
        const PROMPTS = 2;
        const RESOURCES = 4;
    }
}

impl ListKinds {
    /// Returns the list whose change a notification announces.
    pub fn from_notification(method: &str) -> Option<Self> {
        List::ALL.into_iter().find(|list| list.notification() == method).map(Self::from)
    }
}

impl From<List> for ListKinds {
    fn from(list: List) -> Self {
        match list {
            List::Tools => Self::TOOLS,
            List::Prompts => Self::PROMPTS,
            List::Resources => Self::RESOURCES,
        }
    }
}

/// The features that a server declares in its capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerFeatures {
    /// The lists that the server has. Some servers forget to declare their lists, so all of them are requested if this
    /// is empty.
    pub lists: ListKinds,
    /// The lists whose changes the server announces.
    pub announced: ListKinds,
    pub subscribe: bool,
    pub logging: bool,
}

impl ServerFeatures {
    /// Reads the features from the capabilities. Malformed capabilities declare nothing.
    pub fn from_negotiated(negotiated: &NegotiatedSession) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Flags {
            list_changed: Option<bool>,
            subscribe: Option<bool>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct DeclaredCapabilities {
            tools: Option<Flags>,
            prompts: Option<Flags>,
            resources: Option<Flags>,
            logging: Option<serde::de::IgnoredAny>,
        }
        let Ok(declared) = serde_json::from_str::<DeclaredCapabilities>(negotiated.capabilities.get()) else {
            return Self::default();
        };
        let subscribe = declared.resources.as_ref().and_then(|resources| resources.subscribe).unwrap_or(false);
        let mut features = Self { subscribe, logging: declared.logging.is_some(), ..Self::default() };
        for (list, flags) in [
            (ListKinds::TOOLS, declared.tools),
            (ListKinds::PROMPTS, declared.prompts),
            (ListKinds::RESOURCES, declared.resources),
        ] {
            features.lists.set(list, flags.is_some());
            features.announced.set(list, flags.is_some_and(|flags| flags.list_changed == Some(true)));
        }
        features
    }
}

impl Catalog {
    fn lists(&self) -> [(ListKinds, &[Arc<RawValue>]); 4] {
        [
            (ListKinds::TOOLS, &self.tools),
            (ListKinds::PROMPTS, &self.prompts),
            (ListKinds::RESOURCES, &self.resources),
            (ListKinds::RESOURCES, &self.templates),
        ]
    }

    /// Returns the size of all lists in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.lists().into_iter().flat_map(|(_, list)| list).map(|entry| entry.get().len()).sum()
    }

    /// Returns the lists whose text differs from that of the other catalog.
    pub(crate) fn changed_lists(&self, other: &Self) -> ListKinds {
        let list_pairs = self.lists().into_iter().zip(other.lists());
        let changed_pairs = list_pairs
            .filter(|((_, own), (_, other))| !own.iter().map(|raw| raw.get()).eq(other.iter().map(|raw| raw.get())));
        changed_pairs.map(|((list, _), _)| list).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_capabilities_declare_nothing() {
        let features = |text: &str| {
            ServerFeatures::from_negotiated(&NegotiatedSession {
                revision: countersign_protocol::Revision::V2025_11_25,
                capabilities: Arc::from(RawValue::from_string(text.to_owned()).unwrap()),
                server_info: None,
                instructions: None,
            })
        };
        let all = features(r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"x":1}"#);
        assert_eq!((all.lists, all.announced), (ListKinds::TOOLS | ListKinds::RESOURCES, ListKinds::TOOLS));
        assert!(all.subscribe && all.logging);
        for malformed in ["{}", "7", r#"{"tools":7}"#] {
            assert_eq!(features(malformed), ServerFeatures::default());
        }
    }
}
