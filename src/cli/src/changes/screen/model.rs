//! What the full-screen inbox knows and does: a state machine without a terminal and without a network. Keys and news
//! from the gateway go in, requests come out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub use super::types::*;
use super::{detail, diff::Look, paint::Paint, search};
use countersign_domain::changes::{Change, ChangeState, Verdict};

/// Changes that are kept; a search finds the others.
pub const MAX_LISTED: usize = 1000;
/// Columns from which a diff is shown side by side by itself.
const WIDE: u16 = 120;

/// All of it.
#[derive(Debug)]
pub struct App {
    pub paint: Paint,
    pub me: Me,
    pub now: Timestamp,
    pub size: (u16, u16),
    pub changes: Vec<Brief>,
    pub counts: BTreeMap<ChangeState, u64>,
    pub more: bool,
    pub loading: bool,
    pub live: bool,
    pub view: View,
    pub grouping: Grouping,
    pub search: String,
    pub rows: Vec<Row>,
    /// The row with the cursor, and the first one on the screen.
    pub cursor: usize,
    pub top: usize,
    pub selected: BTreeSet<String>,
    /// What was on the screen down to the end of its diff: id, version, digest.
    pub opened: HashMap<String, (u64, String)>,
    pub detail: Option<Detail>,
    pub split: Option<bool>,
    pub unfolded: bool,
    pub prompt: Option<Prompt>,
    pub help: bool,
    /// Results of many decisions: what, how, whether it worked.
    pub results: Vec<(String, String, bool)>,
    pub status: (String, Tone),
    pub busy: usize,
    /// What `u` undoes where the cursor is on nothing that can be undone.
    pub approved_last: Option<String>,
    /// A request about it was just refused, which was said: that it is another now is no surprise.
    pub expected: Option<String>,
    /// New arguments that were refused, to go on with.
    pub drafts: HashMap<String, String>,
}

impl App {
    pub fn new(me: Me, paint: Paint, now: Timestamp) -> Self {
        Self {
            paint,
            me,
            now,
            size: (80, 24),
            changes: Vec::new(),
            counts: BTreeMap::new(),
            more: false,
            loading: true,
            live: false,
            view: View::Inbox,
            grouping: Grouping::None,
            search: String::new(),
            rows: Vec::new(),
            cursor: 0,
            top: 0,
            selected: BTreeSet::new(),
            opened: HashMap::new(),
            detail: None,
            split: None,
            unfolded: false,
            prompt: None,
            help: false,
            results: Vec::new(),
            status: (String::new(), Tone::Plain),
            busy: 0,
            approved_last: None,
            expected: None,
            drafts: HashMap::new(),
        }
    }

    pub fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.status = (text.into(), tone);
    }

    /// Query parameters of the list.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = search::query(&self.search, self.now);
        if !query.iter().any(|(name, _)| *name == "status") {
            query.extend(self.view.states().map(|states| ("status", states.to_owned())));
        }
        query
    }

    /// The change with the cursor.
    pub fn at_cursor(&self) -> Option<&Brief> {
        match self.rows.get(self.cursor) {
            Some(Row::Change(at)) => self.changes.get(*at),
            _ => None,
        }
    }

    /// Orders the rows again, with the cursor on the same change if it is still there.
    pub fn arrange(&mut self, keep: Option<&str>) {
        let mut groups: Vec<(Option<String>, Vec<usize>)> = Vec::new();
        let mut places: HashMap<Option<String>, usize> = HashMap::new();
        for (at, brief) in self.changes.iter().enumerate() {
            let key = self.grouping.of(brief);
            let place = *places.entry(key.clone()).or_insert_with(|| {
                groups.push((key, Vec::new()));
                groups.len() - 1
            });
            if let Some((_, members)) = groups.get_mut(place) {
                members.push(at);
            }
        }
        self.rows.clear();
        for (key, members) in groups {
            self.rows.extend(key.map(|key| Row::Group(key, members.len())));
            self.rows.extend(members.into_iter().map(Row::Change));
        }
        let found = keep.and_then(|id| {
            self.rows
                .iter()
                .position(|row| matches!(row, Row::Change(at) if self.changes.get(*at).is_some_and(|b| b.id == id)))
        });
        self.cursor = found.unwrap_or(self.cursor).min(self.rows.len().saturating_sub(1));
        if matches!(self.rows.get(self.cursor), Some(Row::Group(..))) {
            self.step(1);
        }
    }

    /// Moves the cursor by so many changes.
    pub fn step(&mut self, by: isize) {
        let places: Vec<usize> =
            (0..self.rows.len()).filter(|at| matches!(self.rows.get(*at), Some(Row::Change(_)))).collect();
        let here = places.partition_point(|at| *at < self.cursor);
        let exact = places.get(here) == Some(&self.cursor);
        // From the head of a group, one step down is its first change.
        let to = here.saturating_add_signed(if by > 0 && !exact { by - 1 } else { by });
        if let Some(at) = places.get(to.min(places.len().saturating_sub(1))) {
            self.cursor = *at;
        }
    }

    /// A page of the list; the first one replaces what was there.
    pub fn listed(&mut self, first: bool, page: Vec<Brief>, counts: BTreeMap<ChangeState, u64>, more: bool) {
        let keep = self.at_cursor().map(|brief| brief.id.clone());
        if first {
            self.changes.clear();
        }
        let known: BTreeSet<String> = self.changes.iter().map(|b| b.id.clone()).collect();
        self.changes.extend(page.into_iter().filter(|b| !known.contains(&b.id)));
        self.changes.truncate(MAX_LISTED);
        self.counts = counts;
        self.more = more;
        self.loading = more && self.changes.len() < MAX_LISTED;
        if !self.loading {
            let all: BTreeSet<&String> = self.changes.iter().map(|b| &b.id).collect();
            self.selected.retain(|id| all.contains(id));
        }
        self.arrange(keep.as_deref());
    }

    /// A change as it is now: one that moved, or the answer to a request.
    pub fn took(&mut self, change: Change, show: bool) {
        let brief = Brief::of(&change);
        let keep = self.at_cursor().map(|b| b.id.clone());
        let known = self.changes.iter().position(|b| b.id == brief.id);
        match known {
            // An answer may be older than what the feed brought.
            Some(at) if self.changes.get(at).is_some_and(|b| b.version <= brief.version) => {
                if self.view.holds(brief.state) || !self.search.is_empty() {
                    if let Some(place) = self.changes.get_mut(at) {
                        *place = brief;
                    }
                } else {
                    self.selected.remove(&brief.id);
                    self.changes.remove(at);
                }
            }
            None if self.search.is_empty() && self.view.holds(brief.state) => {
                let at = self.changes.partition_point(|b| b.created_at > brief.created_at);
                self.changes.insert(at, brief);
                self.changes.truncate(MAX_LISTED);
            }
            _ => {}
        }
        self.arrange(keep.as_deref());
        // What one did oneself is no surprise.
        let own = show || self.expected.as_ref() == Some(&change.id);
        match &mut self.detail {
            Some(detail) if detail.change.id == change.id => {
                if detail.change.version < change.version {
                    let same = detail.change.digest == change.digest;
                    detail.moved = !same && !own;
                    if !same {
                        (detail.scroll, detail.seen) = (0, 0);
                        detail.timeline.clear();
                    }
                    detail.change = change;
                    detail.laid_out = None;
                } else if own && detail.change.version == change.version {
                    // The feed was faster than the answer to one's own request.
                    detail.moved = false;
                }
            }
            _ if show => {
                self.detail = Some(Detail {
                    change,
                    timeline: Vec::new(),
                    lines: Vec::new(),
                    diff_end: 0,
                    scroll: 0,
                    seen: 0,
                    moved: false,
                    laid_out: None,
                });
            }
            _ => {}
        }
    }

    pub fn timeline(&mut self, id: &str, entries: Vec<(Timestamp, String, String)>) {
        if let Some(detail) = self.detail.as_mut().filter(|detail| detail.change.id == id) {
            detail.timeline = entries;
            detail.laid_out = None;
        }
    }

    /// Side by side or unified.
    pub fn is_split(&self) -> bool {
        self.split.unwrap_or(self.size.0 >= WIDE)
    }

    /// Rows between the head and the foot of the screen.
    pub fn room(&self) -> usize {
        usize::from(self.size.1.saturating_sub(2)).max(1)
    }

    /// Makes the lines that are about to be drawn, and notes what the person gets to see.
    pub fn lay_out(&mut self) {
        let room = self.room();
        let look = Look { width: usize::from(self.size.0), split: self.is_split(), unfolded: self.unfolded };
        if let Some(detail) = &mut self.detail {
            let minute = self.now.as_second() / 60;
            if detail.laid_out != Some((look, minute)) {
                let barred = self.me.barred_now(&detail.change);
                let about = detail::About { change: &detail.change, timeline: &detail.timeline, barred };
                let (lines, end) = detail::lines(&about, self.now, look, self.paint);
                if detail.diff_end != 0 && detail.diff_end != end {
                    // Other lines: what was seen of the old ones says little, unless it was everything.
                    detail.seen = if detail.seen >= detail.diff_end { end } else { 0 };
                }
                (detail.lines, detail.diff_end) = (lines, end);
                detail.laid_out = Some((look, minute));
            }
            let last = detail.lines.len().saturating_sub(room);
            detail.scroll = detail.scroll.min(last);
            // Only what follows on from what was seen counts: a leap to the end shows the end only.
            if detail.scroll <= detail.seen {
                detail.seen = detail.seen.max(detail.scroll + room);
            }
            let covered = self.help || !self.results.is_empty();
            if !covered && detail.seen >= detail.diff_end {
                let change = &detail.change;
                self.opened.insert(change.id.clone(), (change.version, change.digest.clone()));
            }
        }
        self.top = self.top.min(self.cursor);
        if self.cursor >= self.top + room {
            self.top = self.cursor + 1 - room;
        }
        // The head of a group comes along with its first change.
        if self.top == self.cursor
            && self.top > 0
            && matches!(self.rows.get(self.top - 1), Some(Row::Group(..)))
            && room > 1
        {
            self.top -= 1;
        }
    }

    /// How long an approval can still be undone.
    pub fn undo_left(&self, run_after: Option<Timestamp>) -> Option<SignedDuration> {
        let left = run_after?.duration_since(self.now);
        left.is_positive().then_some(left)
    }

    /// New arguments from the editor.
    pub fn edited(&mut self, id: String, version: u64, before: &str, text: String) {
        if text.trim() == before.trim() {
            return self.say(Tone::Plain, "The arguments were not changed.");
        }
        match serde_json::from_str::<serde_json::Map<String, Value>>(&text) {
            Ok(_) => {
                self.drafts.insert(id.clone(), text.clone());
                let ask = Ask::EditComment { id, version, arguments: text };
                self.prompt = Some(Prompt { ask, text: String::new() });
            }
            Err(error) => {
                self.drafts.insert(id, text);
                self.say(Tone::Bad, format!("These are not valid arguments ({error}); e opens your text again."));
            }
        }
    }

    /// Decisions on many, as the gateway answered them.
    pub fn decided(&mut self, answer: &Value) -> Vec<String> {
        let mut ids = Vec::new();
        for result in answer.get("results").and_then(Value::as_array).into_iter().flatten() {
            let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
            let id = text(result.get("id"));
            let name = self.changes.iter().find(|b| b.id == id).map_or_else(|| id.clone(), |b| b.summary.clone());
            let problem = result.get("problem").filter(|p| !p.is_null());
            let how = match problem {
                None => text(result.pointer("/change/state")),
                Some(problem) => {
                    let detail = text(problem.get("detail"));
                    let what = if detail.is_empty() { text(problem.get("title")) } else { detail };
                    format!("{what} ({})", text(problem.get("code")))
                }
            };
            if problem.is_none() {
                self.selected.remove(&id);
            }
            self.results.push((name, how, problem.is_none()));
            ids.push(id);
        }
        ids
    }

    /// The body of a decision on the change that is shown.
    pub(super) fn decision(change: &Change, verdict: Verdict, comment: &str) -> Action {
        let said = if verdict == Verdict::Approve { "Approved" } else { "Rejected" };
        let body = json!({
            "decision": verdict,
            "comment": Some(comment.trim()).filter(|c| !c.is_empty()),
            "version": change.version,
            "digest": change.digest,
        });
        Action::on(&change.id, "decision", &body, said)
    }
}
