//! Reads an upstream's lists, all pages within limits, and announces lists that have changed.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::value::RawValue;

use crate::{
    catalog::{Catalog, ListKinds, usable_definitions::UsableDefinitions},
    link::LinkError,
    server::{
        Phase, Upstream, accounts::PersonalUpstreams, connection::UpstreamConnection,
        gateway_requests::GatewayRequestError,
    },
};
use countersign_config::ListsConfig;
use countersign_protocol::{Era, ErrorKind, json::string};
use countersign_provider::{List, ProviderEvent};

/// The minimum time to live of lists, even if the server declares less.
const MIN_TTL: Duration = Duration::from_secs(5);
/// The minimum time to live of the lists of a server that announces changes.
const MIN_TTL_WITH_NOTIFICATIONS: Duration = Duration::from_secs(60);
/// The delay before lists that could not be read are requested again.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// The maximum number of bytes of a page's cursor, which is sent back unchanged.
const MAX_CURSOR_BYTES: usize = 64 << 10;

/// The maximum number of omitted definitions that are logged each time.
const MAX_LOGGED_OMISSIONS: usize = 20;

impl Upstream {
    /// Reads the tools again, and waits for that at most this long. Returns `false` if they could not be read in time.
    pub(crate) async fn reread_tools(&self, limit: Duration) -> bool {
        let mut reading = self.tools_reading.subscribe();
        // A reading that has begun already does not count.
        let request = self.tools_requests.fetch_add(1, Ordering::AcqRel) + 1;
        self.mark_stale(ListKinds::TOOLS);
        let mut phase = self.phase.subscribe();
        let failed_to_connect = async {
            drop(phase.wait_for(|phase| matches!(phase, Phase::Down(_) | Phase::ConsentNeeded(_))).await);
        };
        tokio::select! {
            biased;
            reading = reading.wait_for(|(requests, _)| *requests >= request) => reading.is_ok_and(|reading| reading.1),
            () = failed_to_connect => false,
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(limit) => false,
        }
    }

    /// Returns `true` if the tools were requested and not read since.
    pub(super) fn has_tools_request(&self) -> bool {
        self.tools_requests.load(Ordering::Acquire) > self.tools_reading.borrow().0
    }

    /// Waits until the tools are requested.
    pub(super) async fn wait_for_tools_request(&self) {
        while !self.has_tools_request() {
            self.lists_stale.notified().await;
        }
    }

    /// Returns `true` if the tools are still those of this version. With `reread_limit`, they are read again first, within that
    /// time, because the server may have been replaced by one that defines them in another way.
    pub(crate) async fn has_same_tools(&self, version: u64, reread_limit: Option<Duration>) -> bool {
        if let Some(limit) = reread_limit {
            // The tools may be offered as another account lists them.
            let configured = self.configured_upstream();
            let personal_upstreams = configured.as_ref().and_then(|configured| configured.personal_upstreams());
            if let Some(list_source) = personal_upstreams.and_then(PersonalUpstreams::find_list_source) {
                list_source.mark_stale(ListKinds::TOOLS);
            }
            if !self.reread_tools(limit).await {
                return false;
            }
        }
        self.tools_version.load(Ordering::Acquire) == version
    }
}

/// Reads lists again and announces those that have changed.
pub(super) async fn refresh(
    upstream: &Upstream,
    connection: &UpstreamConnection,
    kinds: ListKinds,
) -> Result<(), LinkError> {
    if kinds.is_empty() {
        return Ok(());
    }
    let old = upstream.catalog();
    let tools_requests = upstream.tools_requests.load(Ordering::Acquire);
    let fresh = read(upstream, connection, kinds, &old).await.map_err(|error| match error {
        GatewayRequestError::Link(error) => error,
        error => LinkError::Protocol(error.to_string()),
    })?;
    let mut omitted: Vec<String> = Vec::new();
    for (list, error) in &fresh.failed {
        tracing::warn!(upstream = %upstream.config.name, list, %error, "a list of the upstream could not be read");
        omitted.push(format!("{list}: {error}"));
        if error.may_be_other_era(connection.era) {
            upstream.era_doubted.notify_one();
        }
    }
    publish(upstream, fresh.catalog, omitted);
    if kinds.contains(ListKinds::TOOLS) {
        let are_read = !fresh.failed.iter().any(|(method, _)| *method == TOOLS.name);
        if are_read {
            upstream.set_tools_connection(connection);
        }
        upstream.tools_reading.send_replace((tools_requests, are_read));
    }
    let ttl = match fresh.failed.is_empty() {
        false => RETRY_DELAY,
        // Lists of the handshake era have no time to live.
        true if connection.era == Era::Legacy || fresh.ttl == Duration::MAX => return Ok(()),
        true if connection.features.announced.contains(ListKinds::TOOLS) => fresh.ttl.max(MIN_TTL_WITH_NOTIFICATIONS),
        true => fresh.ttl.max(MIN_TTL),
    };
    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let stale_at = upstream.metrics.millis_since_configured().saturating_add(ttl);
    if kinds.is_all() {
        upstream.stale_at.store(stale_at, Ordering::Relaxed);
    } else {
        // The lists that were not read do not last longer.
        upstream.stale_at.fetch_min(stale_at, Ordering::Relaxed);
    }
    Ok(())
}

/// Offers new lists and announces those that have changed. `omitted` names the lists that could not be read.
pub(super) fn publish(upstream: &Upstream, new: Catalog, mut omitted: Vec<String>) {
    let old = upstream.catalog();
    omitted.extend(new.truncated.iter().map(|(list, reason)| format!("{list}: {reason}; the rest is left out")));
    let mut changed_lists = old.changed_lists(&new);
    if !changed_lists.is_empty() || new.truncated != old.truncated || new.private_lists != old.private_lists {
        let definitions = UsableDefinitions::build(&upstream.config, &upstream.names, &new);
        for omission in definitions.omitted.iter().take(MAX_LOGGED_OMISSIONS) {
            tracing::warn!(upstream = %upstream.config.name, "{omission}");
        }
        if definitions.omitted.len() > MAX_LOGGED_OMISSIONS {
            tracing::warn!(upstream = %upstream.config.name, more = definitions.omitted.len() - MAX_LOGGED_OMISSIONS, "further definitions are left out");
        }
        upstream.invalidate_cache();
        upstream.catalog.store(Arc::new(new));
        upstream.definitions.store(Arc::new(definitions));
        if changed_lists.contains(ListKinds::TOOLS) {
            upstream.tools_version.fetch_add(1, Ordering::Release);
        }
    }
    omitted.extend(upstream.definitions.load().omitted.iter().take(100).cloned());
    upstream.metrics.set_omitted(omitted);
    // The first lists are announced even if they are empty, because requests that wait for the first lists need the
    // next route table.
    if upstream.mark_reached() && changed_lists.is_empty() {
        changed_lists = ListKinds::TOOLS;
    }
    for list in List::ALL.into_iter().filter(|list| changed_lists.contains((*list).into())) {
        upstream.emit(ProviderEvent::ListChanged(list));
    }
}

/// The lists that were read, and their time to live (2026-07-28/server/utilities/caching).
pub(super) struct ReadLists {
    pub catalog: Catalog,
    pub ttl: Duration,
    /// Lists that could not be read and are unchanged.
    pub failed: Vec<(&'static str, GatewayRequestError)>,
}

/// A method that returns the pages of a list.
pub(crate) struct ListMethod {
    kind: ListKinds,
    name: &'static str,
    /// The member of a page that holds the entries.
    member: &'static str,
    entries: fn(&mut Catalog) -> &mut Vec<Arc<RawValue>>,
}

pub(crate) const TOOLS: ListMethod =
    ListMethod { kind: ListKinds::TOOLS, name: "tools/list", member: "tools", entries: |all| &mut all.tools };

const LIST_METHODS: [ListMethod; 4] = [
    TOOLS,
    ListMethod { kind: ListKinds::PROMPTS, name: "prompts/list", member: "prompts", entries: |all| &mut all.prompts },
    ListMethod {
        kind: ListKinds::RESOURCES,
        name: "resources/list",
        member: "resources",
        entries: |all| &mut all.resources,
    },
    ListMethod {
        kind: ListKinds::RESOURCES,
        name: "resources/templates/list",
        member: "resourceTemplates",
        entries: |all| &mut all.templates,
    },
];

/// Reads the given lists; the others are copied from `old`.
///
/// # Errors
/// Fails if the connection does not work. A list that the server refuses is in [`ReadLists::failed`] and does not
/// affect the others.
pub(super) async fn read(
    upstream: &Upstream,
    connection: &UpstreamConnection,
    kinds: ListKinds,
    old: &Catalog,
) -> Result<ReadLists, GatewayRequestError> {
    let features = connection.features;
    let mut fresh = ReadLists { catalog: old.clone(), ttl: Duration::MAX, failed: Vec::new() };
    fresh.catalog.private_lists.remove(kinds);
    for list in LIST_METHODS.iter().filter(|list| kinds.contains(list.kind)) {
        let is_offered = features.lists.is_empty() || features.lists.contains(list.kind);
        let before = std::mem::take((list.entries)(&mut fresh.catalog));
        let used_bytes = fresh.catalog.bytes();
        let outcome =
            if is_offered { read_list(upstream, connection, list, used_bytes).await } else { Ok(ListEntries::empty()) };
        let ListEntries { all: entries, ttl, is_public, truncation } = match outcome {
            Ok(entries) => entries,
            // The server has no such list, even if it was declared: many have resources but no templates.
            Err(GatewayRequestError::Rpc(error)) if error.code == ErrorKind::MethodNotFound.number() => {
                ListEntries::empty()
            }
            Err(
                error @ GatewayRequestError::Link(
                    LinkError::Unreachable(_) | LinkError::Lost(_) | LinkError::SessionGone,
                ),
            ) => {
                return Err(error);
            }
            // Other lists may need rights that the account lacks.
            Err(error @ GatewayRequestError::Link(LinkError::Unauthorized(_))) if list.kind == ListKinds::TOOLS => {
                return Err(error);
            }
            Err(error) => {
                fresh.failed.push((list.name, error));
                fresh.catalog.private_lists |= old.private_lists & list.kind;
                *(list.entries)(&mut fresh.catalog) = before;
                continue;
            }
        };
        fresh.ttl = fresh.ttl.min(ttl);
        if connection.era == Era::Modern && !is_public {
            fresh.catalog.private_lists |= list.kind;
        }
        fresh.catalog.truncated.retain(|(method, _)| *method != list.name);
        fresh.catalog.truncated.extend(truncation.map(|reason| (list.name, reason)));
        *(list.entries)(&mut fresh.catalog) = entries;
    }
    Ok(fresh)
}

/// The entries of one list.
pub(crate) struct ListEntries {
    pub all: Vec<Arc<RawValue>>,
    ttl: Duration,
    /// `true` if the server declares all pages public. Lists of the handshake era do not say.
    is_public: bool,
    /// The reason why the list is incomplete.
    pub truncation: Option<String>,
}

impl ListEntries {
    pub(crate) const fn empty() -> Self {
        Self { all: Vec::new(), ttl: Duration::MAX, is_public: true, truncation: None }
    }

    /// Appends the entries of a page, as long as the budget lasts, and returns the cursor of the next page.
    ///
    /// # Errors
    /// [`GatewayRequestError::Malformed`]
    fn add_page(
        &mut self,
        list: &ListMethod,
        page: &RawValue,
        budget: &mut ListBudget,
    ) -> Result<Option<String>, GatewayRequestError> {
        let malformed = || GatewayRequestError::Malformed(format!("its answer to {} is not a list", list.name));
        let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(page.get()).map_err(|_| malformed())?;
        let entries: Vec<&RawValue> = members
            .get(list.member)
            .and_then(|entries| serde_json::from_str(entries.get()).ok())
            .ok_or_else(malformed)?;
        let next_cursor = match members.get("nextCursor") {
            Some(cursor) => serde_json::from_str(cursor.get()).map_err(|_| malformed())?,
            None => None,
        };
        // A list without hints must not be considered fresh for long, or the same for everybody
        // (2026-07-28/server/utilities/caching).
        let ttl = members.get("ttlMs").and_then(|ttl| serde_json::from_str::<f64>(ttl.get()).ok());
        let ttl = ttl.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok()).unwrap_or_default();
        self.ttl = self.ttl.min(ttl);
        self.is_public &=
            members.get("cacheScope").and_then(|scope| string(scope.get())).is_some_and(|scope| scope == "public");
        for entry in entries {
            if let Err(reason) = budget.take_entry(entry.get().len()) {
                self.truncation = Some(reason);
                break;
            }
            self.all.push(Arc::from(entry.to_owned()));
        }
        Ok(next_cursor)
    }
}

/// Reads one list within the configured limits (`lists`), where other lists have taken `used_bytes` bytes of the limit.
async fn read_list(
    upstream: &Upstream,
    connection: &UpstreamConnection,
    list: &ListMethod,
    used_bytes: usize,
) -> Result<ListEntries, GatewayRequestError> {
    let entries = read_pages(list, upstream.config.lists, used_bytes, async |params: &str| {
        upstream.send_gateway_request(connection, list.name, params, upstream.config.timeout).await
    })
    .await?;
    if let Some(reason) = &entries.truncation {
        tracing::warn!(
            upstream = %upstream.config.name, list = list.name, entries = entries.all.len(),
            "only a part of a list of the upstream is read: {reason}"
        );
    }
    Ok(entries)
}

/// Reads the pages of a list, which `request` requests with the given parameters. Entries beyond the limits are omitted.
///
/// # Errors
/// The errors of `request`, and [`GatewayRequestError::Malformed`].
pub(crate) async fn read_pages(
    list: &ListMethod,
    limits: ListsConfig,
    used_bytes: usize,
    mut request: impl AsyncFnMut(&str) -> Result<Box<RawValue>, GatewayRequestError>,
) -> Result<ListEntries, GatewayRequestError> {
    let mut budget = ListBudget { limits, entries: limits.entries, bytes: limits.bytes.saturating_sub(used_bytes) };
    let mut collected = ListEntries::empty();
    let mut cursor: Option<String> = None;
    // Only the hashes of the followed cursors are kept, because a server decides how long its cursors are.
    let (mut followed, hasher) = (HashSet::new(), RandomState::new());
    for page in 1.. {
        let params = cursor.as_ref().map_or_else(
            || "{}".to_owned(),
            |cursor| format!(r#"{{"cursor":{}}}"#, serde_json::Value::from(cursor.as_str())),
        );
        let page_read = request(&params).await?;
        let next_cursor = collected.add_page(list, &page_read, &mut budget)?;
        let Some(next) = next_cursor.filter(|_| collected.truncation.is_none()) else { break };
        collected.truncation = if page >= limits.pages {
            Some(format!("it has more than {} pages (lists.pages)", limits.pages))
        } else if next.len() > MAX_CURSOR_BYTES {
            Some(format!("the cursor of a page is longer than {MAX_CURSOR_BYTES} bytes"))
        } else if !followed.insert(hasher.hash_one(&next)) {
            Some("its pages form a loop: it gave the same cursor twice".to_owned())
        } else {
            None
        };
        if collected.truncation.is_some() {
            break;
        }
        cursor = Some(next);
    }
    Ok(collected)
}

/// The remaining budget for a list.
struct ListBudget {
    limits: ListsConfig,
    entries: usize,
    bytes: usize,
}

impl ListBudget {
    /// Takes an entry of this many bytes.
    ///
    /// # Errors
    /// Returns the limit that has no room for the entry.
    fn take_entry(&mut self, bytes: usize) -> Result<(), String> {
        if self.entries == 0 {
            return Err(format!("it has more than {} entries (lists.entries)", self.limits.entries));
        }
        if bytes > self.bytes {
            return Err(format!("all lists together have more than {} bytes (lists.bytes)", self.limits.bytes));
        }
        self.entries -= 1;
        self.bytes -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(entries: usize, bytes: usize) -> ListBudget {
        ListBudget { limits: ListsConfig { pages: 1, entries, bytes }, entries, bytes }
    }

    fn read_within(text: &str, mut budget: ListBudget) -> Option<(ListEntries, Option<String>)> {
        let mut entries = ListEntries::empty();
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        let next_cursor = entries.add_page(&TOOLS, &raw, &mut budget).ok()?;
        Some((entries, next_cursor))
    }

    fn page(text: &str) -> Option<(ListEntries, Option<String>)> {
        read_within(text, budget(100, 1000))
    }

    #[test]
    fn page_entries_keep_their_text() {
        let read = page(r#"{"tools":[{ "name":"a", "x":12345678901234567890123 },7],"nextCursor":"","ttlMs":1500}"#);
        let (read, next_cursor) = read.unwrap();
        assert_eq!(read.all[0].get(), r#"{ "name":"a", "x":12345678901234567890123 }"#);
        assert_eq!((read.all.len(), read.truncation), (2, None));
        assert_eq!(next_cursor.as_deref(), Some(""), "an empty cursor is valid");
        assert_eq!(read.ttl, Duration::from_millis(1500));
        let (last, next_cursor) = page(r#"{"tools":[],"nextCursor":null,"ttlMs":-5,"cacheScope":"private"}"#).unwrap();
        assert_eq!((next_cursor, last.ttl), (None, Duration::ZERO));
        let (public, _) = page(r#"{"tools":[],"cacheScope":"public"}"#).unwrap();
        assert_eq!([public.is_public, last.is_public, read.is_public], [true, false, false]);
        for malformed in ["{}", "[]", r#"{"tools":{}}"#, r#"{"tools":[],"nextCursor":7}"#, "null"] {
            assert!(page(malformed).is_none(), "{malformed}");
        }
    }

    #[test]
    fn page_is_truncated_at_budget() {
        for (entries, bytes, read, limit) in [
            (3, 6, 3, None),
            (2, 6, 2, Some("2 entries (lists.entries)")),
            (3, 5, 2, Some("5 bytes (lists.bytes)")),
            (0, 0, 0, Some("0 entries (lists.entries)")),
        ] {
            let (page, _) = read_within(r#"{"tools":[12, 34 ,56]}"#, budget(entries, bytes)).unwrap();
            assert_eq!(page.all.len(), read, "{entries} {bytes}");
            let truncation = page.truncation.as_deref().map(|reason| reason.rsplit("more than ").next().unwrap());
            assert_eq!(truncation, limit, "{entries} {bytes}");
        }
    }
}
