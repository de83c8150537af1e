//! What the inbox speaks of: a change in the list, a view, a question, what the loop is to do.

use jiff::Timestamp;
use ratatui::text::Line;
use serde::Deserialize;
use serde_json::Value;

use super::diff::Look;
use countersign_domain::{
    changes::{
        Change, ChangeState, Decision, Operation, PreviewNote, Proposer, ReviewNote, Target, Terms, Verdict,
        people::Person,
    },
    principal::Role,
};

/// Who looks.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    pub name: String,
    pub role: String,
    #[serde(default)]
    pub owner: Option<String>,
    #[serde(default)]
    pub key_id: Option<String>,
    #[serde(default)]
    pub groups: Vec<String>,
    pub may_decide: bool,
}

impl Me {
    fn person(&self) -> Person<'_> {
        Person { name: &self.name, owner: self.owner.as_deref(), key: self.key_id.as_deref() }
    }

    /// Returns `true` if the rule asks for this person: everybody who decides, or a role or a group of theirs.
    fn is_asked(&self, terms: &Terms) -> bool {
        let is = |name: &String| match Role::parse(name) {
            Some(Role::Admin) => self.role == Role::Admin.as_str(),
            Some(_) => true,
            None => self.groups.contains(name),
        };
        terms.reviewers.is_empty() || terms.reviewers.iter().any(is)
    }

    /// Why this person cannot approve a change that waits for an approval of somebody.
    pub fn barred_now(&self, change: &Change) -> Option<String> {
        let waits = self.may_decide && change.state == ChangeState::Pending;
        waits.then(|| self.barred(&Brief::of(change))).flatten()
    }

    /// Why this person cannot approve a pending change, in the words of the browser; `None` where they can. The gateway
    /// checks the same.
    pub fn barred(&self, brief: &Brief) -> Option<String> {
        let terms = &brief.terms;
        if !self.is_asked(terms) {
            let who = terms.reviewers.join(", ");
            return Some(format!("Under this rule only {who} can decide, and you are not one of them."));
        }
        if Person::of_proposer(&brief.proposer).is(self.person()) {
            let by = if brief.proposer.principal == self.name {
                "You proposed this change"
            } else {
                "This change was proposed with a key of the same owner as yours"
            };
            return Some(format!("{by}, so somebody else has to approve it."));
        }
        let mut votes = brief.decisions.iter().filter(|decision| decision.verdict == Verdict::Approve);
        if votes.any(|vote| Person::of_decision(vote).is(self.person())) {
            let quorum = usize::try_from(terms.quorum).unwrap_or(usize::MAX);
            let missing = match quorum.saturating_sub(brief.approvals()) {
                1 => "One more approval is".to_owned(),
                missing => format!("{missing} more approvals are"),
            };
            return Some(format!("You have approved this. {missing} needed."));
        }
        (terms.preview_required && !brief.preview.is_live()).then(|| {
            "The rule requires a preview and there is none, so this can only be rejected or edited.".to_owned()
        })
    }
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
    pub preview: PreviewNote,
    #[serde(default)]
    pub duplicate_of: Option<String>,
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
            preview: change.preview.clone(),
            duplicate_of: change.duplicate_of.clone(),
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

    pub(super) const fn holds(self, state: ChangeState) -> bool {
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

    pub(super) fn of(self, brief: &Brief) -> Option<String> {
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
    /// The preview failed: whether the arguments alone are enough.
    WithoutPreview,
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
    pub(super) fn on(id: &str, endpoint: &str, body: &Value, said: &'static str) -> Self {
        Self::Post { path: vec!["changes".into(), id.to_owned(), endpoint.to_owned()], body: body.to_string(), said }
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
    pub(super) laid_out: Option<(Look, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
}
