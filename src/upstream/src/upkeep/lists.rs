//! Reads what an upstream offers: all pages of each list, within bounds. Tells of the lists that have changed.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::value::RawValue;

use crate::{
    catalog::{self, Catalog, ListKinds, offered::Offered},
    link::LinkError,
    server::{Upstream, held::Held, own_requests::AskError},
};
use countersign_protocol::Era;
use countersign_provider::ProviderEvent;

/// Lists are not read more often than this because their time has run out.
const LEAST_TTL: Duration = Duration::from_secs(5);
/// As [`LEAST_TTL`], while the server tells of every change.
const LEAST_TTL_TOLD: Duration = Duration::from_secs(60);
/// Lists that were not answered are asked for again after this.
const AGAIN: Duration = Duration::from_secs(30);
/// Bytes of a page's cursor: it is sent back as it is.
const MAX_CURSOR: usize = 64 << 10;

/// Definitions that the log names each time that they are left out.
const LOGGED: usize = 20;

/// Reads lists again and tells of those that are others now.
pub(super) async fn refresh(upstream: &Upstream, held: &Held, what: ListKinds) -> Result<(), LinkError> {
    if what.is_empty() {
        return Ok(());
    }
    let old = upstream.catalog();
    let fresh = match read(upstream, held, what, &old).await {
        Ok(fresh) => fresh,
        Err(AskError::Link(error)) => return Err(error),
        Err(error) => return Err(LinkError::Protocol(error.to_string())),
    };
    let mut faults: Vec<String> = Vec::new();
    for (list, error) in &fresh.failed {
        tracing::warn!(upstream = %upstream.config.name, list, %error, "its list could not be read");
        faults.push(format!("{list}: {error}"));
    }
    faults.extend(fresh.catalog.cut.iter().map(|(list, why)| format!("{list}: {why}; the rest is left out")));
    let new = fresh.catalog;
    let tools = !catalog::same(&old.tools, &new.tools);
    let prompts = !catalog::same(&old.prompts, &new.prompts);
    let resources = !catalog::same(&old.resources, &new.resources) || !catalog::same(&old.templates, &new.templates);
    if tools || prompts || resources || new.cut != old.cut {
        let offered = Offered::build(&upstream.config, &upstream.names, &new);
        for fault in offered.left_out.iter().take(LOGGED) {
            tracing::warn!(upstream = %upstream.config.name, "{fault}");
        }
        if offered.left_out.len() > LOGGED {
            tracing::warn!(upstream = %upstream.config.name, more = offered.left_out.len() - LOGGED, "and others are left out");
        }
        upstream.forget_answers();
        upstream.catalog.store(Arc::new(new));
        upstream.offered.store(Arc::new(offered));
    }
    faults.extend(upstream.offered.load().left_out.iter().take(100).cloned());
    upstream.meters.faults(faults);
    // Also where it offers nothing: who waits for its first lists learns that from the next route table.
    let nothing = upstream.was_read() && !(tools || prompts || resources);
    for (changed, event) in [
        (tools || nothing, ProviderEvent::ToolListChanged),
        (prompts, ProviderEvent::PromptListChanged),
        (resources, ProviderEvent::ResourceListChanged),
    ] {
        if changed {
            upstream.emit(event);
        }
    }
    let ttl = match fresh.failed.is_empty() {
        false => AGAIN,
        // Lists of the handshake era have no time.
        true if held.era == Era::Legacy || fresh.ttl == Duration::MAX => return Ok(()),
        true if held.offers.tools_changed => fresh.ttl.max(LEAST_TTL_TOLD),
        true => fresh.ttl.max(LEAST_TTL),
    };
    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    upstream.stale_at.store(upstream.meters.millis().saturating_add(ttl), Ordering::Relaxed);
    Ok(())
}

/// What was read, and for how long it is fresh (2026-07-28/server/utilities/caching).
pub(super) struct Fresh {
    pub catalog: Catalog,
    pub ttl: Duration,
    /// Lists that were not answered; they are as they were.
    pub failed: Vec<(&'static str, AskError)>,
}

/// One list of the protocol.
struct List {
    what: ListKinds,
    method: &'static str,
    member: &'static str,
}

const LISTS: [List; 4] = [
    List { what: ListKinds::TOOLS, method: "tools/list", member: "tools" },
    List { what: ListKinds::PROMPTS, method: "prompts/list", member: "prompts" },
    List { what: ListKinds::RESOURCES, method: "resources/list", member: "resources" },
    List { what: ListKinds::RESOURCES, method: "resources/templates/list", member: "resourceTemplates" },
];

/// Reads the lists anew that are named; the others stay as they are in `old`.
///
/// # Errors
/// The connection does not work. A list that the server refuses is in [`Fresh::failed`] and spoils no other.
pub(super) async fn read(upstream: &Upstream, held: &Held, what: ListKinds, old: &Catalog) -> Result<Fresh, AskError> {
    let offers = held.offers;
    let mut fresh = Fresh { catalog: old.clone(), ttl: Duration::MAX, failed: Vec::new() };
    for list in &LISTS {
        if !what.contains(list.what) {
            continue;
        }
        let offered = offers.says_nothing()
            || match list.what {
                ListKinds::TOOLS => offers.tools,
                ListKinds::PROMPTS => offers.prompts,
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
        let garbage = || AskError::Garbage(format!("its answer to {} is not a list", list.method));
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
            Some("its pages form a loop: it gave the same cursor twice".to_owned())
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
}
