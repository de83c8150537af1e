//! Searches for changes and audit entries by people.

use jiff::Timestamp;

use countersign_domain::changes::{Change, audit::AuditEntry};

/// Criteria for a list of changes. An empty criterion matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeCriteria {
    /// Only of these servers and modules.
    pub providers: Vec<String>,
    pub tools: Vec<String>,
    /// Somewhere in the summary, the label of the target, the id, the tool, the server or the proposer's name, whatever
    /// the case.
    pub text: Option<String>,
    /// Only those proposed at this time or later, to the millisecond.
    pub since: Option<Timestamp>,
    /// Only those proposed before this time.
    pub until: Option<Timestamp>,
}

impl ChangeCriteria {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the text in which a change is searched.
pub(crate) fn needle(change: &Change) -> String {
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

/// The maximum entries that one page searches, so that a long trail is searched in short steps.
pub(crate) const MAX_SEARCHED_ENTRIES: u64 = 50_000;

/// The number of entries read at a time.
pub(crate) const PAGE: u32 = 500;

/// Criteria for audit entries. An empty criterion matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditSearch {
    /// Only of this change.
    pub change: Option<String>,
    /// Only of these kinds: `approved`, `definitions_accepted`.
    pub events: Vec<String>,
    /// Only by these people, agents or `system`.
    pub actors: Vec<String>,
    /// Somewhere in the event, the actor, the details (comments, servers, tools) or what the change is searched by,
    /// whatever the case.
    pub text: Option<String>,
    /// Only at this time or later.
    pub since: Option<Timestamp>,
    /// Only before this time.
    pub until: Option<Timestamp>,
}

/// A matching entry.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    pub entry: AuditEntry,
    /// The present title of its change, if there is one.
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

impl AuditSearch {
    /// Returns `true` if the statement's conditions do not suffice, so that every entry it returns must be checked.
    pub(crate) const fn is_scan(&self) -> bool {
        self.change.is_none()
            && (self.text.is_some()
                || self.since.is_some()
                || self.until.is_some()
                || !self.events.is_empty()
                || !self.actors.is_empty())
    }

    pub(crate) fn holds(&self, entry: &AuditEntry, needle: Option<&str>, wanted: Option<&str>) -> bool {
        if self.since.is_some_and(|since| entry.at < since) || self.until.is_some_and(|until| entry.at >= until) {
            return false;
        }
        let Some(wanted) = wanted else { return true };
        needle.is_some_and(|needle| needle.contains(wanted))
            || [&entry.event, &entry.actor, &entry.change_id].iter().any(|text| text.to_lowercase().contains(wanted))
            || entry.details.get().to_lowercase().contains(wanted)
    }
}
