//! The lists of an upstream, in its own words and as the gateway offers them.

pub mod defs;
pub mod names;
pub(crate) mod usable_definitions;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::link::Negotiated;

pub use names::Names;
pub use usable_definitions::is_tool_allowed;

/// The complete lists of an upstream in its own words and order.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub tools: Vec<Arc<RawValue>>,
    pub prompts: Vec<Arc<RawValue>>,
    pub resources: Vec<Arc<RawValue>>,
    pub templates: Vec<Arc<RawValue>>,
    /// Lists that were read only in part, and the reason.
    pub truncated: Vec<(&'static str, String)>,
}

bitflags::bitflags! {
    /// A set of an upstream's lists. Resource templates count as resources.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct ListKinds: u8 {
        const TOOLS = 1;
        const PROMPTS = 2;
        const RESOURCES = 4;
    }
}

impl ListKinds {
    /// Returns the list that a notification says has changed.
    #[must_use]
    pub fn from_notification(method: &str) -> Option<Self> {
        match method {
            "notifications/tools/list_changed" => Some(Self::TOOLS),
            "notifications/prompts/list_changed" => Some(Self::PROMPTS),
            "notifications/resources/list_changed" => Some(Self::RESOURCES),
            _ => None,
        }
    }
}

/// The features that a server declares in its capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerFeatures {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub subscribe: bool,
    pub logging: bool,
    pub tools_changed: bool,
    pub prompts_changed: bool,
    pub resources_changed: bool,
}

impl ServerFeatures {
    #[must_use]
    pub fn from_negotiated(negotiated: &Negotiated) -> Self {
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
        let changed = |of: &Option<Flags>| of.as_ref().and_then(|f| f.list_changed).unwrap_or(false);
        Self {
            tools: declared.tools.is_some(),
            prompts: declared.prompts.is_some(),
            resources: declared.resources.is_some(),
            subscribe: declared.resources.as_ref().and_then(|r| r.subscribe).unwrap_or(false),
            logging: declared.logging.is_some(),
            tools_changed: changed(&declared.tools),
            prompts_changed: changed(&declared.prompts),
            resources_changed: changed(&declared.resources),
        }
    }

    /// Returns `true` if no list is declared. Some servers forget to declare their lists, so all of them are requested
    /// then.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        !(self.tools || self.prompts || self.resources)
    }
}

impl Catalog {
    /// Returns the size of all lists except this one, in bytes.
    pub(crate) fn bytes_of_other_lists(&self, member: &str) -> usize {
        let lists = [
            ("tools", &self.tools),
            ("prompts", &self.prompts),
            ("resources", &self.resources),
            ("resourceTemplates", &self.templates),
        ];
        let others = lists.into_iter().filter(|(name, _)| *name != member).flat_map(|(_, list)| list);
        others.map(|entry| entry.get().len()).sum()
    }
}

/// Returns `true` if both lists consist of the same text.
#[must_use]
pub fn is_same_text(a: &[Arc<RawValue>], b: &[Arc<RawValue>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.get() == b.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_capabilities_declare_nothing() {
        let features = |text: &str| {
            ServerFeatures::from_negotiated(&Negotiated {
                revision: countersign_protocol::Revision::V2025_11_25,
                capabilities: Arc::from(RawValue::from_string(text.to_owned()).unwrap()),
                server_info: None,
                instructions: None,
                ttl_ms: None,
            })
        };
        let all = features(r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"x":1}"#);
        assert!(all.tools && all.tools_changed && all.resources && all.subscribe && all.logging);
        assert!(!all.prompts && !all.resources_changed);
        assert!(features("{}").is_empty());
        assert!(features("7").is_empty());
        assert!(features(r#"{"tools":7}"#).is_empty());
    }
}
