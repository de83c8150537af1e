//! What an upstream offers, and how it is read: all pages of each list, within bounds.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{LinkError, Negotiated, RpcError, held::Held, server::Upstream};

/// Pages of one list.
const PAGES: usize = 1_000;
/// Entries of one list.
const ENTRIES: usize = 50_000;
/// Bytes of the entries of one list.
const BYTES: usize = 64 << 20;

/// What an upstream offers, as it wrote it, in its order; all pages of each list.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub tools: Vec<Arc<RawValue>>,
    pub prompts: Vec<Arc<RawValue>>,
    pub resources: Vec<Arc<RawValue>>,
    pub templates: Vec<Arc<RawValue>>,
}

/// Which lists; a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What(pub u8);

impl What {
    pub const TOOLS: Self = Self(1);
    pub const PROMPTS: Self = Self(2);
    pub const RESOURCES: Self = Self(4);
    pub const ALL: Self = Self(7);

    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// What a notification says has changed.
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

/// Why something that the gateway itself asked for was not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("answered {}: {}", .0.code, .0.message)]
    Rpc(RpcError),
    #[error("did not answer in time")]
    Timeout,
    #[error("{0}")]
    Garbage(String),
}

/// What was read, and for how long it is fresh (2026-07-28/server/utilities/caching).
pub struct Fresh {
    pub catalog: Catalog,
    pub ttl: Duration,
    /// Lists that were not answered; they are as they were.
    pub failed: Vec<(&'static str, AskError)>,
}

/// One list of the protocol.
struct List {
    what: What,
    method: &'static str,
    member: &'static str,
}

const LISTS: [List; 4] = [
    List { what: What::TOOLS, method: "tools/list", member: "tools" },
    List { what: What::PROMPTS, method: "prompts/list", member: "prompts" },
    List { what: What::RESOURCES, method: "resources/list", member: "resources" },
    List { what: What::RESOURCES, method: "resources/templates/list", member: "resourceTemplates" },
];

/// Reads the lists anew that are named; the others stay as they are in `old`.
///
/// # Errors
/// The connection does not work. A list that the server refuses is in [`Fresh::failed`] and spoils no other.
pub async fn read(upstream: &Upstream, held: &Held, what: What, old: &Catalog) -> Result<Fresh, AskError> {
    let offers = held.offers;
    let mut fresh = Fresh { catalog: old.clone(), ttl: Duration::MAX, failed: Vec::new() };
    for list in &LISTS {
        if !what.has(list.what) {
            continue;
        }
        let offered = offers.says_nothing()
            || match list.what {
                What::TOOLS => offers.tools,
                What::PROMPTS => offers.prompts,
                _ => offers.resources,
            };
        let read = if offered { read_list(upstream, held, list).await } else { Ok((Vec::new(), Duration::MAX)) };
        let (entries, ttl) = match read {
            Ok(read) => read,
            // Declared or not, it has no such list: many have resources and no templates.
            Err(AskError::Rpc(error)) if error.code == -32601 => (Vec::new(), Duration::MAX),
            Err(error @ AskError::Link(LinkError::Unreachable(_) | LinkError::Lost(_) | LinkError::SessionGone)) => {
                return Err(error);
            }
            Err(error) => {
                fresh.failed.push((list.method, error));
                continue;
            }
        };
        fresh.ttl = fresh.ttl.min(ttl);
        match list.member {
            "tools" => fresh.catalog.tools = entries,
            "prompts" => fresh.catalog.prompts = entries,
            "resources" => fresh.catalog.resources = entries,
            _ => fresh.catalog.templates = entries,
        }
    }
    Ok(fresh)
}

async fn read_list(upstream: &Upstream, held: &Held, list: &List) -> Result<(Vec<Arc<RawValue>>, Duration), AskError> {
    let (mut entries, mut ttl, mut bytes) = (Vec::new(), Duration::MAX, 0);
    let mut cursor: Option<String> = None;
    for page in 0.. {
        let params = cursor.as_ref().map_or_else(
            || "{}".to_owned(),
            |cursor| format!(r#"{{"cursor":{}}}"#, serde_json::Value::from(cursor.as_str())),
        );
        let result = upstream.ask(held, list.method, &params).await?;
        let page_of = Page::read(&result, list.member)
            .ok_or_else(|| AskError::Garbage(format!("its answer to {} is no list", list.method)))?;
        ttl = ttl.min(page_of.ttl);
        bytes += page_of.entries.iter().map(|e| e.get().len()).sum::<usize>();
        entries.extend(page_of.entries);
        let next = page_of.next;
        if next.is_none() {
            return Ok((entries, ttl));
        }
        if page + 1 >= PAGES || entries.len() >= ENTRIES || bytes >= BYTES || next == cursor {
            tracing::warn!(
                upstream = %upstream.config.name, list = list.method, pages = page + 1, entries = entries.len(),
                "its list is longer than the gateway reads; the rest is left out"
            );
            entries.truncate(ENTRIES);
            return Ok((entries, ttl));
        }
        cursor = next;
    }
    Ok((entries, ttl))
}

struct Page {
    entries: Vec<Arc<RawValue>>,
    next: Option<String>,
    ttl: Duration,
}

impl Page {
    fn read(result: &RawValue, member: &str) -> Option<Self> {
        let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(result.get()).ok()?;
        let entries: Vec<&RawValue> = serde_json::from_str(members.get(member)?.get()).ok()?;
        let next = match members.get("nextCursor") {
            Some(cursor) => serde_json::from_str(cursor.get()).ok()?,
            None => None,
        };
        let ttl = members.get("ttlMs").and_then(|ttl| serde_json::from_str::<f64>(ttl.get()).ok());
        Some(Self {
            entries: entries.into_iter().map(|entry| Arc::from(entry.to_owned())).collect(),
            next,
            // No answer of a list that has no hint is fresh for long (2026-07-28/server/utilities/caching).
            ttl: ttl.map_or(Duration::ZERO, |ms| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default()),
        })
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

    fn page(text: &str) -> Option<Page> {
        Page::read(&RawValue::from_string(text.to_owned()).unwrap(), "tools")
    }

    #[test]
    fn a_page_is_read_as_it_is_written() {
        let read = page(r#"{"tools":[{ "name":"a", "x":12345678901234567890123 },7],"nextCursor":"","ttlMs":1500}"#);
        let read = read.unwrap();
        assert_eq!(read.entries[0].get(), r#"{ "name":"a", "x":12345678901234567890123 }"#);
        assert_eq!(read.entries.len(), 2);
        assert_eq!(read.next.as_deref(), Some(""), "an empty cursor is one");
        assert_eq!(read.ttl, Duration::from_millis(1500));
        let last = page(r#"{"tools":[],"nextCursor":null,"ttlMs":-5}"#).unwrap();
        assert_eq!((last.next, last.ttl), (None, Duration::ZERO));
        for garbage in ["{}", "[]", r#"{"tools":{}}"#, r#"{"tools":[],"nextCursor":7}"#, "null"] {
            assert!(page(garbage).is_none(), "{garbage}");
        }
    }

    #[test]
    fn capabilities_are_read_leniently() {
        let offers = |text: &str| {
            Offers::of(&Negotiated {
                revision: crate::protocol::Revision::V2025_11_25,
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
