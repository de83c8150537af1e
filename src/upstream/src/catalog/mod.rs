//! What an upstream offers: its lists, as it wrote them and as the gateway gives them on.

pub mod defs;
pub mod names;
pub(crate) mod offered;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::link::Negotiated;

pub use names::Names;
pub use offered::is_let_through;

/// What an upstream offers, as it wrote it, in its order; all pages of each list.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub tools: Vec<Arc<RawValue>>,
    pub prompts: Vec<Arc<RawValue>>,
    pub resources: Vec<Arc<RawValue>>,
    pub templates: Vec<Arc<RawValue>>,
    /// Lists of which only a part was read, and why.
    pub cut: Vec<(&'static str, String)>,
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
    pub fn of_notification(method: &str) -> Option<Self> {
        match method {
            "notifications/tools/list_changed" => Some(Self::TOOLS),
            "notifications/prompts/list_changed" => Some(Self::PROMPTS),
            "notifications/resources/list_changed" => Some(Self::RESOURCES),
            _ => None,
        }
    }
}

/// What a server's capabilities say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub subscribe: bool,
    pub logging: bool,
    pub tools_changed: bool,
    pub prompts_changed: bool,
    pub resources_changed: bool,
}

impl Offers {
    #[must_use]
    pub fn of(negotiated: &Negotiated) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Flags {
            list_changed: Option<bool>,
            subscribe: Option<bool>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Declared {
            tools: Option<Flags>,
            prompts: Option<Flags>,
            resources: Option<Flags>,
            logging: Option<serde::de::IgnoredAny>,
        }
        let Ok(declared) = serde_json::from_str::<Declared>(negotiated.capabilities.get()) else {
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

    /// Nothing that has a list: some servers forget to declare what they have, so they are asked for all of it.
    #[must_use]
    pub const fn says_nothing(&self) -> bool {
        !(self.tools || self.prompts || self.resources)
    }
}

impl Catalog {
    /// Bytes of all lists but that one.
    pub(crate) fn bytes_beside(&self, member: &str) -> usize {
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

/// Whether two lists are the same text.
#[must_use]
pub fn same(a: &[Arc<RawValue>], b: &[Arc<RawValue>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.get() == b.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_leniently() {
        let offers = |text: &str| {
            Offers::of(&Negotiated {
                revision: countersign_protocol::Revision::V2025_11_25,
                capabilities: Arc::from(RawValue::from_string(text.to_owned()).unwrap()),
                server_info: None,
                instructions: None,
                ttl_ms: None,
            })
        };
        let all = offers(r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"x":1}"#);
        assert!(all.tools && all.tools_changed && all.resources && all.subscribe && all.logging);
        assert!(!all.prompts && !all.resources_changed);
        assert!(offers("{}").says_nothing());
        assert!(offers("7").says_nothing());
        assert!(offers(r#"{"tools":7}"#).says_nothing());
    }
}
