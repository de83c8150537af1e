//! Search criteria for changes and audit entries.

use jiff::Timestamp;
use serde_json::Value;

use super::Store;
use countersign_domain::changes::{Change, audit::AuditEntry};

/// Criteria for a list of changes. An empty criterion matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeCriteria {
    /// Only changes of these servers and modules.
    pub providers: Vec<String>,
    pub tools: Vec<String>,
    /// A text in the summary, the target's label, the id, the tool, the server or the proposer's name, regardless of
    /// case.
    pub text: Option<String>,
    /// Only changes that were proposed at this time or later, to the millisecond.
    pub since: Option<Timestamp>,
    /// Only changes that were proposed before this time.
    pub until: Option<Timestamp>,
}

impl ChangeCriteria {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the lower-case text that a search for changes looks through.
pub(crate) fn search_text(change: &Change) -> String {
    let parts = [
        change.id.as_str(),
        &change.provider,
        &change.tool,
        &change.proposer.principal,
        &change.target.label,
        &change.summary,
    ];
    parts.join("\n").to_lowercase()
}

/// The maximum entries that a search reads for one page, so that a long trail is searched in short steps.
pub(crate) const MAX_SEARCHED_ENTRIES: u64 = 50_000;

/// The number of entries read at a time.
pub(crate) const ENTRIES_PER_PAGE: u32 = 500;

/// Criteria for audit entries. An empty criterion matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditSearch {
    /// Only entries of this change.
    pub change: Option<String>,
    /// Only entries of these events, such as `approved` or `definitions_accepted`.
    pub events: Vec<String>,
    /// Only entries by these people or agents, or by `system`.
    pub actors: Vec<String>,
    /// A text in the event, the actor, the details (comments, servers, tools) or the search text of the change,
    /// regardless of case.
    pub text: Option<String>,
    /// Only entries at this time or later.
    pub since: Option<Timestamp>,
    /// Only entries before this time.
    pub until: Option<Timestamp>,
}

/// A matching entry.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    pub entry: AuditEntry,
    /// The current title of the entry's change, if any.
    pub title: Option<String>,
}

/// One page of a search.
#[derive(Clone, Debug, Default)]
pub struct FoundEntries {
    /// Newest first.
    pub entries: Vec<FoundEntry>,
    /// The number below which the search continues; `None` if everything was searched.
    pub next: Option<u64>,
}

/// The number of the newest entries of an event that [`find_newest_entry`] reads.
const NEWEST_ENTRIES: usize = 50;

/// Returns the newest entry of an event whose details match, with its details. Returns `None` also if it is not among the
/// last ones of the event, or if the trail cannot be read.
pub async fn find_newest_entry(
    store: &dyn Store,
    event: &str,
    matches: impl Fn(&Value) -> bool,
) -> Option<(AuditEntry, Value)> {
    let search = AuditSearch { events: vec![event.to_owned()], ..AuditSearch::default() };
    let page = store.search_audit(search, None, NEWEST_ENTRIES).await.ok()?;
    page.entries.into_iter().find_map(|FoundEntry { entry, .. }| {
        let details: Value = entry.details.get().parse().ok()?;
        matches(&details).then_some((entry, details))
    })
}

impl AuditSearch {
    /// Returns `true` if the search may read many entries that do not match, so that the pages must be bounded.
    pub(crate) fn is_scan(&self) -> bool {
        self.change.is_none() && *self != Self::default()
    }

    pub(crate) fn matches(&self, entry: &AuditEntry, change_text: Option<&str>, needle: Option<&str>) -> bool {
        if self.since.is_some_and(|since| entry.at < since) || self.until.is_some_and(|until| entry.at >= until) {
            return false;
        }
        let Some(needle) = needle else { return true };
        change_text.is_some_and(|text| text.contains(needle))
            || [&entry.event, &entry.actor, &entry.change_id].iter().any(|text| text.to_lowercase().contains(needle))
            || entry.details.get().to_lowercase().contains(needle)
    }
}
