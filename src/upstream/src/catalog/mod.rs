//! What an upstream offers, and how it is read: all pages of each list, within bounds.

pub mod defs;
pub mod names;
pub(crate) mod offered;

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    link::{LinkError, Negotiated},
    server::{Upstream, held::Held},
};
use countersign_protocol::rpc_error::RpcError;

pub use names::Names;
pub use offered::is_let_through;

/// Bytes of a page's cursor: it is sent back as it is.
const MAX_CURSOR: usize = 64 << 10;

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
        let used = fresh.catalog.bytes_beside(list.member);
        let read = if offered { read_list(upstream, held, list, used).await } else { Ok(Entries::none()) };
        let Entries { all: entries, ttl, cut } = match read {
            Ok(read) => read,
            // Declared or not, it has no such list: many have resources and no templates.
            Err(AskError::Rpc(error)) if error.code == -32601 => Entries::none(),
            Err(error @ AskError::Link(LinkError::Unreachable(_) | LinkError::Lost(_) | LinkError::SessionGone)) => {
                return Err(error);
            }
            Err(error) => {
                fresh.failed.push((list.method, error));
                continue;
            }
        };
        fresh.ttl = fresh.ttl.min(ttl);
        fresh.catalog.cut.retain(|(method, _)| *method != list.method);
        fresh.catalog.cut.extend(cut.map(|why| (list.method, why)));
        match list.member {
            "tools" => fresh.catalog.tools = entries,
            "prompts" => fresh.catalog.prompts = entries,
            "resources" => fresh.catalog.resources = entries,
            _ => fresh.catalog.templates = entries,
        }
    }
    Ok(fresh)
}

impl Catalog {
    /// Bytes of all lists but that one.
    fn bytes_beside(&self, member: &str) -> usize {
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

/// What was read of one list.
struct Entries {
    all: Vec<Arc<RawValue>>,
    ttl: Duration,
    /// Why it is not all of it.
    cut: Option<String>,
}

impl Entries {
    const fn none() -> Self {
        Self { all: Vec::new(), ttl: Duration::MAX, cut: None }
    }
}

/// Reads one list within the server's bounds (`lists`), of whose bytes so many are `used` by other lists. What is over
/// them is left out: what there is of the list is as good as ever.
async fn read_list(upstream: &Upstream, held: &Held, list: &List, used: usize) -> Result<Entries, AskError> {
    let limits = upstream.config.lists;
    let mut room = Room { entries: limits.entries, bytes: limits.bytes.saturating_sub(used) };
    let mut read = Entries::none();
    let mut cursor: Option<String> = None;
    // Hashes of those that were followed: a server chooses how long they are.
    let (mut followed, hasher) = (HashSet::new(), RandomState::new());
    for page in 1.. {
        let params = cursor.as_ref().map_or_else(
            || "{}".to_owned(),
            |cursor| format!(r#"{{"cursor":{}}}"#, serde_json::Value::from(cursor.as_str())),
        );
        let result = upstream.ask(held, list.method, &params).await?;
        let garbage = || AskError::Garbage(format!("its answer to {} is no list", list.method));
        let of_page = Page::read(&result, list.member, &mut room, &mut read.all).ok_or_else(garbage)?;
        read.ttl = read.ttl.min(of_page.ttl);
        let Some(next) = of_page.next.filter(|_| of_page.full.is_none()) else {
            read.cut = of_page.full.map(|full| match full {
                Full::Entries => format!("it has more than {} entries (lists.entries)", limits.entries),
                Full::Bytes => format!("all lists together have more than {} bytes (lists.bytes)", limits.bytes),
            });
            break;
        };
        read.cut = if page >= limits.pages {
            Some(format!("it has more than {} pages (lists.pages)", limits.pages))
        } else if next.len() > MAX_CURSOR {
            Some(format!("the cursor of a page is longer than {MAX_CURSOR} bytes"))
        } else if !followed.insert(hasher.hash_one(&next)) {
            Some("its pages go round in a circle: a cursor came twice".to_owned())
        } else {
            None
        };
        if read.cut.is_some() {
            break;
        }
        cursor = Some(next);
    }
    if let Some(why) = &read.cut {
        tracing::warn!(
            upstream = %upstream.config.name, list = list.method, entries = read.all.len(),
            "only a part of its list is read: {why}"
        );
    }
    Ok(read)
}

/// What may still be read of a list.
struct Room {
    entries: usize,
    bytes: usize,
}

/// What there was no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    Entries,
    Bytes,
}

struct Page {
    next: Option<String>,
    ttl: Duration,
    /// Not all of its entries were taken.
    full: Option<Full>,
}

impl Page {
    /// Appends the entries of a page to `into` as long as there is room.
    fn read(result: &RawValue, member: &str, room: &mut Room, into: &mut Vec<Arc<RawValue>>) -> Option<Self> {
        let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(result.get()).ok()?;
        let entries: Vec<&RawValue> = serde_json::from_str(members.get(member)?.get()).ok()?;
        let next = match members.get("nextCursor") {
            Some(cursor) => serde_json::from_str(cursor.get()).ok()?,
            None => None,
        };
        let ttl = members.get("ttlMs").and_then(|ttl| serde_json::from_str::<f64>(ttl.get()).ok());
        let mut full = None;
        for entry in entries {
            let bytes = entry.get().len();
            if room.entries == 0 {
                full = Some(Full::Entries);
            } else if bytes > room.bytes {
                full = Some(Full::Bytes);
            }
            if full.is_some() {
                break;
            }
            room.entries -= 1;
            room.bytes -= bytes;
            into.push(Arc::from(entry.to_owned()));
        }
        Some(Self {
            next,
            // No answer of a list that has no hint is fresh for long (2026-07-28/server/utilities/caching).
            ttl: ttl.map_or(Duration::ZERO, |ms| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default()),
            full,
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

    fn within(text: &str, mut room: Room) -> Option<(Page, Vec<Arc<RawValue>>)> {
        let mut entries = Vec::new();
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        Some((Page::read(&raw, "tools", &mut room, &mut entries)?, entries))
    }

    fn page(text: &str) -> Option<(Page, Vec<Arc<RawValue>>)> {
        within(text, Room { entries: 100, bytes: 1000 })
    }

    #[test]
    fn a_page_is_read_as_it_is_written() {
        let read = page(r#"{"tools":[{ "name":"a", "x":12345678901234567890123 },7],"nextCursor":"","ttlMs":1500}"#);
        let (read, entries) = read.unwrap();
        assert_eq!(entries[0].get(), r#"{ "name":"a", "x":12345678901234567890123 }"#);
        assert_eq!((entries.len(), read.full), (2, None));
        assert_eq!(read.next.as_deref(), Some(""), "an empty cursor is one");
        assert_eq!(read.ttl, Duration::from_millis(1500));
        let (last, _) = page(r#"{"tools":[],"nextCursor":null,"ttlMs":-5}"#).unwrap();
        assert_eq!((last.next, last.ttl), (None, Duration::ZERO));
        for garbage in ["{}", "[]", r#"{"tools":{}}"#, r#"{"tools":[],"nextCursor":7}"#, "null"] {
            assert!(page(garbage).is_none(), "{garbage}");
        }
    }

    #[test]
    fn a_page_is_read_as_far_as_there_is_room() {
        for (entries, bytes, read, full) in [
            (3, 6, 3, None),
            (2, 6, 2, Some(Full::Entries)),
            (3, 5, 2, Some(Full::Bytes)),
            (0, 0, 0, Some(Full::Entries)),
        ] {
            let (page, all) = within(r#"{"tools":[12, 34 ,56]}"#, Room { entries, bytes }).unwrap();
            assert_eq!((all.len(), page.full), (read, full), "{entries} {bytes}");
        }
    }

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
