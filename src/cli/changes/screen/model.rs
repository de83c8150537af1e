//! What the full-screen inbox knows and does: a state machine without a terminal and without a network. Keys and news
//! from the gateway go in, requests come out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use ratatui::text::Line;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{detail, diff::Look, paint::Paint, search};
use crate::changes::{Change, ChangeState, Decision, Operation, Proposer, ReviewNote, Target, Terms, Verdict};

/// Changes that are kept; a search finds the others.
pub const MAX_LISTED: usize = 1000;
/// Columns from which a diff is shown side by side by itself.
const WIDE: u16 = 120;

/// Who looks.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    pub name: String,
    pub role: String,
    pub may_decide: bool,
}

/// A change as the list shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Brief {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    pub proposer: Proposer,
    pub provider: String,
    pub tool: String,
    pub operation: Operation,
    pub target: Target,
    pub summary: String,
    pub digest: String,
    #[serde(default)]
    pub review: Option<ReviewNote>,
    #[serde(default)]
    pub terms: Terms,
    #[serde(default)]
    pub twin_of: Option<String>,
    #[serde(default)]
    pub decisions: Vec<Decision>,
    pub created_at: Timestamp,
}

impl Brief {
    pub fn of(change: &Change) -> Self {
        Self {
            id: change.id.clone(),
            version: change.version,
            state: change.state,
            proposer: change.proposer.clone(),
            provider: change.provider.clone(),
            tool: change.tool.clone(),
            operation: change.operation,
            target: change.target.clone(),
            summary: change.summary.clone(),
            digest: change.digest.clone(),
            review: change.review.clone(),
            terms: change.terms.clone(),
            twin_of: change.twin_of.clone(),
            decisions: change.decisions.clone(),
            created_at: change.created_at,
        }
    }

    /// Approvals that it has.
    pub fn approvals(&self) -> usize {
        self.decisions.iter().filter(|d| d.verdict == Verdict::Approve).count()
    }
}

/// Which states are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Inbox,
    Pending,
    Stale,
    Unknown,
    History,
}

impl View {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Pending => "pending",
            Self::Stale => "stale",
            Self::Unknown => "outcome unknown",
            Self::History => "all",
        }
    }

    pub const fn next(self) -> Self {
        match self {
            Self::Inbox => Self::Pending,
            Self::Pending => Self::Stale,
            Self::Stale => Self::Unknown,
            Self::Unknown => Self::History,
            Self::History => Self::Inbox,
        }
    }

    /// For `status=`; none for all.
    pub const fn states(self) -> Option<&'static str> {
        match self {
            Self::Inbox => Some("pending,stale,outcome_unknown,approved,executing"),
            Self::Pending => Some("pending"),
            Self::Stale => Some("stale"),
            Self::Unknown => Some("outcome_unknown"),
            Self::History => None,
        }
    }

    const fn holds(self, state: ChangeState) -> bool {
        match self {
            Self::Inbox => !state.is_final(),
            Self::Pending => matches!(state, ChangeState::Pending),
            Self::Stale => matches!(state, ChangeState::Stale),
            Self::Unknown => matches!(state, ChangeState::OutcomeUnknown),
            Self::History => true,
        }
    }
}

/// What belongs together in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    None,
    Target,
    Tool,
    Principal,
}

impl Grouping {
    pub const fn next(self) -> Self {
        match self {
            Self::None => Self::Target,
            Self::Target => Self::Tool,
            Self::Tool => Self::Principal,
            Self::Principal => Self::None,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Target => "by target",
            Self::Tool => "by tool",
            Self::Principal => "by who proposed",
        }
    }

    fn of(self, brief: &Brief) -> Option<String> {
        match self {
            Self::None => None,
            Self::Target => Some(format!("{}: {}", brief.provider, brief.target.label)),
            Self::Tool => Some(format!("{}.{}", brief.provider, brief.tool)),
            Self::Principal => Some(brief.proposer.principal.clone()),
        }
    }
}

/// A row of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    Group(String, usize),
    /// Index in [`App::changes`].
    Change(usize),
}

/// What is asked of the person at the bottom of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Search,
    /// A comment for a decision on what is shown, or on those that are selected.
    Comment {
        verdict: Verdict,
        many: bool,
    },
    /// The end of the diff was not on the screen.
    Unseen,
    Settle,
    SettleComment {
        applied: bool,
    },
    /// A comment for new arguments.
    EditComment {
        id: String,
        version: u64,
        arguments: String,
    },
}

#[derive(Clone, Debug)]
pub struct Prompt {
    pub ask: Ask,
    pub text: String,
}

/// What the loop is to do.
#[derive(Debug, PartialEq)]
pub enum Action {
    Quit,
    Suspend,
    Repaint,
    /// The list again, from its beginning.
    Load,
    /// One change, whole.
    Open(String),
    /// A request that changes something: path below `/api`, body, and what to say once it is done.
    Post {
        path: Vec<String>,
        body: String,
        said: &'static str,
    },
    /// The person's editor.
    Editor {
        id: String,
        version: u64,
        text: String,
    },
}

impl Action {
    /// A request about one change.
    pub(super) fn on(id: &str, door: &str, body: &Value, said: &'static str) -> Self {
        Self::Post { path: vec!["changes".into(), id.to_owned(), door.to_owned()], body: body.to_string(), said }
    }
}

/// The change on the screen.
#[derive(Debug)]
pub struct Detail {
    pub change: Change,
    pub timeline: Vec<(Timestamp, String, String)>,
    pub lines: Vec<Line<'static>>,
    /// Lines up to the end of the diff.
    pub diff_end: usize,
    pub scroll: usize,
    /// Lines that were on the screen.
    pub seen: usize,
    /// It became another while it was on the screen: the next decision is not one on this.
    pub moved: bool,
    /// How, and in which minute, its lines were made.
    laid_out: Option<(Look, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
}

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
        match &mut self.detail {
            Some(detail) if detail.change.id == change.id => {
                if detail.change.version < change.version {
                    let same = detail.change.digest == change.digest;
                    // What one did oneself is no surprise.
                    detail.moved = !same && !show;
                    if !same {
                        (detail.scroll, detail.seen) = (0, 0);
                        detail.timeline.clear();
                    }
                    detail.change = change;
                    detail.laid_out = None;
                } else if show && detail.change.version == change.version {
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
                let (lines, end) = detail::lines(&detail.change, &detail.timeline, self.now, look, self.paint);
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
                self.say(Tone::Bad, format!("These are no arguments ({error}); e goes on with your text."));
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
