//! What a person looks for: pages of changes, and entries of the audit trail with what the changes are called that they are
//! about.

use jiff::Timestamp;

use countersign_domain::changes::{Change, audit::AuditEntry};

/// Narrows a listing of changes; what is empty or none says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narrow {
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

impl Narrow {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a change is searched by.
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

/// Entries that one page looks through at most: a long trail is searched in steps, none of which holds a reader long.
pub(crate) const SPAN: u64 = 50_000;

/// Entries read at a time, where all are read.
pub(crate) const PAGE: u32 = 500;

/// Which entries are looked for; what is empty or none says nothing.
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

/// An entry that was found.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    pub entry: AuditEntry,
    /// What its change is called now; none where it is of none, or of one that is kept no longer.
    pub title: Option<String>,
}

/// One page of a search.
#[derive(Clone, Debug, Default)]
pub struct FoundEntries {
    /// Newest first.
    pub entries: Vec<FoundEntry>,
    /// Where to look on: below this number. None where everything has been looked through.
    pub next: Option<u64>,
}

impl AuditSearch {
    /// Whether every entry that the conditions of the statement let through has to be looked at.
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
