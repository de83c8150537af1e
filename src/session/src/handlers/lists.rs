//! Pages of lists with opaque cursors (2025-11-25/server/utilities/pagination), and the time for which clients may reuse
//! lists.

use std::{
    cell::LazyCell,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use countersign_exchange::reply::CacheHint;
use countersign_protocol::{
    McpError,
    cursor::{self, Cursor},
};
use countersign_routing::RouteTable;
use countersign_upstream::ListKinds;

/// The maximum number of entries on a page. Many clients never ask for a second page.
pub const MAX_PAGE_ENTRIES: usize = 1000;
/// The maximum number of bytes on a page, unless its first entry alone is longer. A slow client's outbox and a small
/// model can take that many.
pub const MAX_PAGE_BYTES: usize = 1 << 20;

/// Returns the list under `key` from the position of `cursor`, with `nextCursor` if more entries follow. Only the
/// entries of the page are serialized. `id` returns the name or URI of an entry, and a cursor is refused if the list now
/// has other entries.
///
/// # Errors
/// `-32602` for a cursor that was not issued for this list.
pub fn render_page<'a, T>(
    key: &'static str,
    items: &'a [T],
    id: impl Fn(&'a T) -> &'a str,
    text: impl Fn(&'a T) -> &'a str,
    cursor: Option<&str>,
) -> Result<String, McpError> {
    // Computed only if it is needed: a list that fits on one page has no cursor, and so no generation.
    let generation = LazyCell::new(|| hash_ids(items.iter().map(id)));
    let start = match cursor {
        Some(cursor) => cursor::start_offset(key, cursor, *generation)?,
        None => 0,
    };
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    let mut out = format!(r#"{{"{key}":["#);
    let mut next = start;
    for item in items.iter().skip(start).take(MAX_PAGE_ENTRIES) {
        let item = text(item);
        if next > start {
            if out.len() + item.len() > MAX_PAGE_BYTES {
                break;
            }
            out.push(',');
        }
        out.push_str(item);
        next += 1;
    }
    out.push(']');
    if next < items.len() {
        let next = Cursor { offset: next as u64, generation: *generation };
        out.push_str(&format!(r#","nextCursor":"{}""#, cursor::encode(key, next)));
    }
    out.push('}');
    Ok(out)
}

/// Returns the generation of a list with these entries. It covers what the route table does not know: resources of
/// modules, personal accounts, and what the policy hides.
fn hash_ids<'a>(ids: impl Iterator<Item = &'a str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    ids.for_each(|id| id.hash(&mut hasher));
    hasher.finish()
}

/// Returns the cache hint for an unfiltered list. Upstreams may change their lists at any time, and the list lacks the
/// entries of an upstream that was never reached. It is private if it contains a private list of an upstream.
fn hint_for_list(table: &RouteTable, list: ListKinds) -> CacheHint {
    let is_public = !table.has_personal_lists() && !table.has_private_lists(list);
    match (table.has_upstreams(), table.is_complete()) {
        (false, _) => CacheHint::STATIC,
        (true, true) => CacheHint { ttl_ms: 5_000, is_public },
        (true, false) => CacheHint { ttl_ms: 0, is_public },
    }
}

/// Returns the hint for a list without the resources or prompts that the principal may not use or does not have.
pub fn hint_for_filtered_list(table: &RouteTable, list: ListKinds) -> CacheHint {
    let hint = hint_for_list(table, list);
    CacheHint { is_public: hint.is_public && table.refusing_policy().is_none(), ..hint }
}

/// Returns the hint for `tools/list`, which leaves out tools that the principal may not call.
pub fn hint_for_tools(table: &RouteTable) -> CacheHint {
    let hint = hint_for_list(table, ListKinds::TOOLS);
    CacheHint { is_public: hint.is_public && !table.varies_by_principal, ..hint }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Gateway;
    use countersign_config::{UpstreamConfig, UpstreamTarget};
    use countersign_protocol::Revision;
    use countersign_provider::testing::{FakeProvider, tool};
    use countersign_routing::RouteTarget;
    use countersign_upstream::{
        Catalog,
        testing::{disconnected_upstream, negotiated},
    };

    fn pages(all: &[String]) -> Vec<Vec<String>> {
        let mut pages = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = render_page("tools", all, String::as_str, String::as_str, cursor.as_deref()).unwrap();
            let page: serde_json::Value = serde_json::from_str(&page).unwrap();
            pages.push(page["tools"].as_array().unwrap().iter().map(ToString::to_string).collect());
            match page.get("nextCursor") {
                Some(next) => cursor = Some(next.as_str().unwrap().to_owned()),
                None => return pages,
            }
        }
    }

    #[test]
    fn pages_contain_each_entry_once() {
        let all: Vec<String> = (0..2500).map(|n| n.to_string()).collect();
        let pages = pages(&all);
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert_eq!(pages.concat(), all);
    }

    #[test]
    fn page_is_bounded_in_bytes_and_never_empty() {
        let long = |n: usize| format!("\"{}\"", "a".repeat(n));
        let all =
            [long(2 * MAX_PAGE_BYTES), long(MAX_PAGE_BYTES / 2), long(MAX_PAGE_BYTES / 3), long(MAX_PAGE_BYTES / 3)];
        let pages = pages(&all);
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(pages.concat(), all);
    }

    #[test]
    fn only_entries_of_page_are_serialized() {
        let written = std::cell::Cell::new(0);
        let all: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
        let generation = hash_ids(all.iter().map(String::as_str));
        let last = cursor::encode("tools", Cursor { offset: 9_990, generation });
        let text = |item| {
            written.set(written.get() + 1);
            String::as_str(item)
        };
        render_page("tools", &all, String::as_str, text, Some(&last)).unwrap();
        assert_eq!(written.get(), 10);
    }

    #[test]
    fn cursor_of_another_list_is_refused() {
        let all: Vec<String> = (0..1001).map(|n| n.to_string()).collect();
        let page =
            |key, all: &[String], cursor: Option<&str>| render_page(key, all, String::as_str, String::as_str, cursor);
        let first = page("tools", &all, None).unwrap();
        let first: serde_json::Value = serde_json::from_str(&first).unwrap();
        let cursor = first["nextCursor"].as_str().unwrap();
        assert!(page("prompts", &all, Some(cursor)).is_err());
        assert!(page("tools", &all[1..], Some(cursor)).is_err());
        assert!(page("tools", &all, Some("garbage")).is_err());
        assert!(page("tools", &all, Some("")).is_err());
    }

    #[actix::test]
    async fn list_that_varies_by_principal_is_cached_privately() {
        let admins = "policy: { default: allow, rules: [{ tools: b, roles: [agent], then: deny }] }";
        let nobody = "policy: { default: allow, rules: [{ tools: b, then: deny }] }";
        for (policy, public) in [("policy: { default: allow }", true), (nobody, true), (admins, false)] {
            let gateway = Gateway::new(policy).await;
            let fake = FakeProvider::new("f");
            fake.tools.lock().unwrap().extend([tool("a", &json!({})), tool("b", &json!({}))]);
            gateway.offer_module(fake).await;
            let table = gateway.server.routing.routes.load();
            assert_eq!(hint_for_tools(&table), CacheHint { is_public: public, ..CacheHint::STATIC }, "{policy}");
        }
    }

    #[actix::test]
    async fn list_with_private_part_is_cached_privately() {
        let gateway = Gateway::new("policy: { default: allow }").await;
        for (private_lists, tools, prompts) in
            [(ListKinds::empty(), true, true), (ListKinds::TOOLS, false, true), (ListKinds::PROMPTS, true, false)]
        {
            let target =
                UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
            let (config, negotiated) = (UpstreamConfig::new("s", target), negotiated(Revision::MODERN));
            let catalog = Catalog { private_lists, ..Catalog::default() };
            gateway.offer(vec![RouteTarget::Upstream(disconnected_upstream(config, negotiated, catalog))]).await;
            let table = gateway.server.routing.routes.load();
            assert_eq!(hint_for_tools(&table).is_public, tools);
            assert_eq!(hint_for_filtered_list(&table, ListKinds::PROMPTS).is_public, prompts);
        }
    }
}
