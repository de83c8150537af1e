//! The state of the full-screen inbox: a state machine without terminal and network. Keys and gateway events go in,
//! requests come out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use serde_json::Value;

pub use super::types::*;
use super::{detail, diff::DiffLayout, paint::Theme, search};
use crate::{changes::decision_body, client::CurrentUser, output::Style};
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict};

/// Maximum number of changes that are kept in memory. A search finds further changes.
pub const MAX_LISTED: usize = 1000;
/// The minimum width of a terminal on which diffs are split by default.
const MIN_SPLIT_COLUMNS: u16 = 120;

/// The state of the inbox.
#[derive(Debug, Default)]
pub struct App {
    pub theme: Theme,
    pub me: CurrentUser,
    pub now: Timestamp,
    pub size: (u16, u16),
    pub changes: Vec<ListedChange>,
    pub counts: BTreeMap<ChangeState, u64>,
    pub has_more: bool,
    pub is_loading: bool,
    pub is_feed_connected: bool,
    /// The index of the view in [`VIEWS`].
    pub view_index: usize,
    pub grouping: Grouping,
    pub search: String,
    pub bundles: Vec<ListedBundle>,
    pub rows: Vec<Row>,
    /// The index of the row under the cursor.
    pub cursor: usize,
    /// The index of the first row on the screen.
    pub first_row: usize,
    pub selected: BTreeSet<String>,
    /// Changes whose required lines ([`Detail::required_lines`]) were all shown: id, version and digest.
    pub fully_seen: HashMap<String, (u64, String)>,
    pub detail: Option<Detail>,
    /// Shows diffs side by side, or not; `None` lets the width of the screen decide.
    pub prefers_split: Option<bool>,
    pub is_unfolded: bool,
    pub prompt: Option<Prompt>,
    pub shows_help: bool,
    /// Results of a bulk decision.
    pub results: Vec<DecisionResult>,
    pub status: (String, Style),
    pub requests_in_flight: usize,
    /// The change whose approval `u` withdraws if the change at the cursor cannot be undone.
    pub last_approved: Option<String>,
    /// The change whose request was just refused. The user was told so, and expects its update.
    pub expected_change: Option<String>,
    /// Edited arguments that were refused, kept for another edit.
    pub drafts: HashMap<String, String>,
}

impl App {
    pub fn new(me: CurrentUser, theme: Theme, now: Timestamp) -> Self {
        Self { theme, me, now, size: (80, 24), is_loading: true, ..Self::default() }
    }

    /// Shows a message on the status line.
    pub fn set_status(&mut self, style: Style, text: impl Into<String>) {
        self.status = (text.into(), style);
    }

    /// Returns the view of the list.
    pub fn view(&self) -> View {
        VIEWS[self.view_index % VIEWS.len()]
    }

    /// Returns the query parameters of the list.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = search::query(&self.search, self.now);
        if !query.iter().any(|(name, _)| *name == "status") {
            query.extend(self.view().states.map(|states| ("status", states.to_owned())));
        }
        query
    }

    /// Returns the change under the cursor.
    pub fn at_cursor(&self) -> Option<&ListedChange> {
        match self.rows.get(self.cursor) {
            Some(Row::Change(at)) => self.changes.get(*at),
            _ => None,
        }
    }

    /// Rebuilds the rows, with the cursor on the same change if it is still there.
    pub fn arrange(&mut self, keep: Option<&str>) {
        let bundle_labels = self.bundle_labels();
        let mut groups: Vec<(Option<String>, Vec<usize>)> = Vec::new();
        let mut group_indexes: HashMap<Option<String>, usize> = HashMap::new();
        for (at, entry) in self.changes.iter().enumerate() {
            let key = match bundle_labels.get(entry.id.as_str()) {
                Some(label) => Some(label.clone()),
                None if !bundle_labels.is_empty() => Some("Other changes".to_owned()),
                None => self.grouping.group_label(entry),
            };
            let group = *group_indexes.entry(key.clone()).or_insert_with(|| {
                groups.push((key, Vec::new()));
                groups.len() - 1
            });
            if let Some((_, members)) = groups.get_mut(group) {
                members.push(at);
            }
        }
        self.rows.clear();
        for (key, members) in groups {
            self.rows.extend(key.map(|key| Row::Group(key, members.len())));
            self.rows.extend(members.into_iter().map(Row::Change));
        }
        let kept_row = keep.and_then(|id| {
            self.rows.iter().position(
                |row| matches!(row, Row::Change(at) if self.changes.get(*at).is_some_and(|entry| entry.id == id)),
            )
        });
        self.cursor = kept_row.unwrap_or(self.cursor).min(self.rows.len().saturating_sub(1));
        if matches!(self.rows.get(self.cursor), Some(Row::Group(..))) {
            self.step(1);
        }
    }

    /// Returns the labels of the bundles by their changes, if the list is grouped by bundles.
    fn bundle_labels(&self) -> HashMap<&str, String> {
        let bundles = self.bundles.iter().filter(|_| self.grouping == Grouping::Bundle);
        bundles
            .flat_map(|bundle| {
                let label = bundle.label();
                bundle.waiting.iter().map(move |id| (id.as_str(), label.clone()))
            })
            .collect()
    }

    /// Replaces the bundles, with the cursor on the same change.
    pub fn set_bundles(&mut self, bundles: Vec<ListedBundle>) {
        self.bundles = bundles;
        let keep = self.at_cursor().map(|entry| entry.id.clone());
        self.arrange(keep.as_deref());
    }

    /// Moves the cursor by this number of changes.
    pub fn step(&mut self, delta: isize) {
        let change_rows: Vec<usize> =
            (0..self.rows.len()).filter(|at| matches!(self.rows.get(*at), Some(Row::Change(_)))).collect();
        let index = change_rows.partition_point(|at| *at < self.cursor);
        let is_exact = change_rows.get(index) == Some(&self.cursor);
        // From the heading of a group, one step down is its first change.
        let to = index.saturating_add_signed(if delta > 0 && !is_exact { delta - 1 } else { delta });
        if let Some(at) = change_rows.get(to.min(change_rows.len().saturating_sub(1))) {
            self.cursor = *at;
        }
    }

    /// Adds a page of the list. The first page replaces the current list.
    pub fn add_page(&mut self, first: bool, page: Vec<ListedChange>, counts: BTreeMap<ChangeState, u64>, more: bool) {
        let keep = self.at_cursor().map(|entry| entry.id.clone());
        if first {
            self.changes.clear();
        }
        let listed_ids: BTreeSet<String> = self.changes.iter().map(|entry| entry.id.clone()).collect();
        self.changes.extend(page.into_iter().filter(|entry| !listed_ids.contains(&entry.id)));
        self.changes.truncate(MAX_LISTED);
        self.counts = counts;
        self.has_more = more;
        self.is_loading = more && self.changes.len() < MAX_LISTED;
        if !self.is_loading {
            let listed: BTreeSet<&String> = self.changes.iter().map(|entry| &entry.id).collect();
            self.selected.retain(|id| listed.contains(id));
        }
        self.arrange(keep.as_deref());
    }

    /// Applies the current state of a change that was updated, or that a request returned.
    pub fn update_change(&mut self, change: Change, show: bool) {
        let entry = ListedChange::from_change(&change);
        let keep = self.at_cursor().map(|entry| entry.id.clone());
        let position = self.changes.iter().position(|listed| listed.id == entry.id);
        match position {
            // A response may be older than the feed.
            Some(at) if self.changes.get(at).is_some_and(|listed| listed.version <= entry.version) => {
                if self.view().includes(entry.state) || !self.search.is_empty() {
                    if let Some(listed) = self.changes.get_mut(at) {
                        *listed = entry;
                    }
                } else {
                    self.selected.remove(&entry.id);
                    self.changes.remove(at);
                }
            }
            None if self.search.is_empty() && self.view().includes(entry.state) => {
                let at = self.changes.partition_point(|listed| listed.created_at > entry.created_at);
                self.changes.insert(at, entry);
                self.changes.truncate(MAX_LISTED);
            }
            _ => {}
        }
        self.arrange(keep.as_deref());
        // The user expects the result of their own action.
        let is_expected = show || self.expected_change.as_ref() == Some(&change.id);
        match &mut self.detail {
            Some(detail) if detail.change.id == change.id => {
                if detail.change.version < change.version {
                    let is_same = detail.change.digest == change.digest;
                    detail.changed_while_shown = !is_same && !is_expected;
                    if !is_same {
                        (detail.scroll, detail.lines_seen) = (0, 0);
                        detail.timeline.clear();
                    }
                    detail.change = change;
                    detail.layout_key = None;
                } else if is_expected && detail.change.version == change.version {
                    // The feed was faster than the response to the user's own request.
                    detail.changed_while_shown = false;
                }
            }
            _ if show => {
                self.detail = Some(Detail {
                    change,
                    timeline: Vec::new(),
                    lines: Vec::new(),
                    required_lines: 0,
                    scroll: 0,
                    lines_seen: 0,
                    changed_while_shown: false,
                    layout_key: None,
                });
            }
            _ => {}
        }
    }

    /// Sets the timeline of a change, if the change is on the screen.
    pub fn set_timeline(&mut self, id: &str, entries: Vec<TrailEntry>) {
        if let Some(detail) = self.detail.as_mut().filter(|detail| detail.change.id == id) {
            detail.timeline = entries;
            detail.layout_key = None;
        }
    }

    /// Returns `true` if diffs are shown side by side.
    pub fn is_split(&self) -> bool {
        self.prefers_split.unwrap_or(self.size.0 >= MIN_SPLIT_COLUMNS)
    }

    /// Returns the number of rows between the header and the footer of the screen.
    pub fn body_rows(&self) -> usize {
        usize::from(self.size.1.saturating_sub(2)).max(1)
    }

    /// Renders the lines to be drawn, and records which of them the user gets to see.
    pub fn layout(&mut self) {
        let rows = self.body_rows();
        let layout =
            DiffLayout { width: usize::from(self.size.0), is_split: self.is_split(), is_unfolded: self.is_unfolded };
        if let Some(detail) = &mut self.detail {
            let minute = self.now.as_second() / 60;
            if detail.layout_key != Some((layout, minute)) {
                let barrier = self.me.current_approval_barrier(&detail.change, self.now);
                let (lines, required_lines) = detail::render(detail, barrier.as_deref(), self.now, layout, self.theme);
                if detail.required_lines != 0 && detail.required_lines != required_lines {
                    // The lines are new, so the reading position in the old ones does not count, unless all were read.
                    detail.lines_seen = if detail.lines_seen >= detail.required_lines { required_lines } else { 0 };
                }
                (detail.lines, detail.required_lines) = (lines, required_lines);
                detail.layout_key = Some((layout, minute));
            }
            let last = detail.lines.len().saturating_sub(rows);
            detail.scroll = detail.scroll.min(last);
            // Only contiguous reading counts: a jump to the end shows the end only.
            if detail.scroll <= detail.lines_seen {
                detail.lines_seen = detail.lines_seen.max(detail.scroll + rows);
            }
            let is_covered = self.shows_help || !self.results.is_empty();
            if !is_covered && detail.lines_seen >= detail.required_lines {
                let change = &detail.change;
                self.fully_seen.insert(change.id.clone(), (change.version, change.digest.clone()));
            }
        }
        self.first_row = self.first_row.min(self.cursor);
        if self.cursor >= self.first_row + rows {
            self.first_row = self.cursor + 1 - rows;
        }
        // The heading of a group stays visible with its first change.
        if self.first_row == self.cursor
            && self.first_row > 0
            && matches!(self.rows.get(self.first_row - 1), Some(Row::Group(..)))
            && rows > 1
        {
            self.first_row -= 1;
        }
    }

    /// Prompts for a comment on edited arguments, or keeps them as a draft if they are invalid.
    pub fn submit_edit(&mut self, id: String, version: u64, before: &str, text: String) {
        if text.trim() == before.trim() {
            return self.set_status(Style::Plain, "The arguments were not changed.");
        }
        match text.parse::<serde_json::Map<String, Value>>() {
            Ok(_) => {
                self.drafts.insert(id.clone(), text.clone());
                self.ask(Question::EditComment { id, version, arguments: text });
            }
            Err(error) => {
                self.drafts.insert(id, text);
                self.set_status(
                    Style::Red,
                    format!("These are not valid arguments ({error}); e opens your text again."),
                );
            }
        }
    }

    /// Shows the results of a bulk decision, and returns the ids of its changes.
    pub fn show_results(&mut self, answer: &Value) -> Vec<String> {
        let mut ids = Vec::new();
        for result in answer["results"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (id, problem) = (text(&result["id"]), &result["problem"]);
            let entry = self.changes.iter().find(|entry| entry.id == id);
            let summary = entry.map_or(&id, |entry| &entry.summary).clone();
            let outcome = if problem.is_null() {
                self.selected.remove(&id);
                text(&result["change"]["state"])
            } else {
                let detail = text(&problem["detail"]);
                let reason = if detail.is_empty() { text(&problem["title"]) } else { detail };
                format!("{reason} ({})", text(&problem["code"]))
            };
            self.results.push(DecisionResult { summary, outcome, has_succeeded: problem.is_null() });
            ids.push(id);
        }
        ids
    }

    /// Builds the request for a decision on the change that is shown.
    pub(super) fn decision_request(change: &Change, verdict: ReviewVerdict, comment: &str) -> Action {
        let done_message = if verdict == ReviewVerdict::Approve { "Approved" } else { "Rejected" };
        let body = decision_body(change, verdict, typed_comment(comment));
        Action::for_change(&change.id, "decision", &body, done_message)
    }
}
