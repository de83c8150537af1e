//! Defines the types of the inbox, such as a listed change, a view, a prompt and an action of the loop.

use jiff::Timestamp;
use ratatui::text::Line;
use serde::Deserialize;
use serde_json::Value;

use super::diff::DiffLayout;
use crate::{
    client::{AbsentColleague, CurrentUser},
    moment::format_local_time,
};
use countersign_domain::{
    changes::{
        Change, ChangeState, Operation, PreviewNote, Proposer, ReviewDecision, ReviewNote, ReviewVerdict, Target,
        Terms, Verification, person::Person,
    },
    principal::{Role, is_subject_name},
};

impl CurrentUser {
    fn person(&self) -> Person<'_> {
        Person {
            name: &self.name,
            owner: Some(&self.owner),
            key: self.key_id.as_deref(),
            other_names: &self.other_names,
        }
    }

    /// Returns `true` if this person has one of the roles or groups `reviewers`, or is the deputy of one who has it and did not
    /// propose the change. An empty list means every reviewer.
    fn is_reviewer(&self, reviewers: &[&str], proposer: Person<'_>) -> bool {
        let is_deputy = |absent: &AbsentColleague| {
            absent.groups.iter().any(|group| reviewers.contains(&group.as_str())) && !proposer.is_named(&absent.name)
        };
        let includes_user = |name: &&str| match Role::parse(name) {
            Some(Role::Admin) => self.role == Role::Admin.as_str(),
            Some(_) => true,
            None => self.groups.iter().any(|group| group == name),
        };
        reviewers.is_empty() || reviewers.iter().any(includes_user) || self.deputy_for.iter().any(is_deputy)
    }

    /// Returns why the current user cannot approve a change that still needs approvals.
    pub fn current_approval_barrier(&self, change: &Change, now: Timestamp) -> Option<String> {
        let waits = self.may_decide && change.state == ChangeState::Pending;
        waits.then(|| self.approval_barrier(&ListedChange::from_change(change), now)).flatten()
    }

    /// Returns why the current user cannot approve a pending change, in the words of the dashboard; `None` if they can.
    /// The gateway checks the same.
    pub fn approval_barrier(&self, entry: &ListedChange, now: Timestamp) -> Option<String> {
        let terms = &entry.terms;
        let reviewers = terms.reviewers_at(entry.created_at, now);
        if !self.is_reviewer(&reviewers, Person::from_proposer(&entry.proposer)) {
            let reviewers = reviewers.join(", ");
            return Some(format!("Under this rule only {reviewers} can decide, and you are not one of them."));
        }
        if Person::from_proposer(&entry.proposer).may_be_same_as(self.person()) {
            let reason = if entry.proposer.principal == self.name {
                "You proposed this change"
            } else if entry.proposer.claims.is_some() {
                "An agent proposed this change in your name"
            } else {
                "This change was proposed with a key of the same owner as yours"
            };
            return Some(format!("{reason}, so somebody else has to approve it."));
        }
        let mut votes = entry.decisions.iter().filter(|decision| decision.verdict == ReviewVerdict::Approve);
        if let Some(vote) = votes.find(|vote| vote.voters().any(|voter| voter.may_be_same_as(self.person()))) {
            let is_own = Person::from_decision(vote).may_be_same_as(self.person());
            let reason = if is_own { "You have approved this" } else { "Your deputy has approved this for you" };
            let quorum = usize::try_from(terms.quorum).unwrap_or(usize::MAX);
            let missing = match quorum.saturating_sub(entry.approvals()) {
                1 => "One more approval is".to_owned(),
                missing => format!("{missing} more approvals are"),
            };
            return Some(format!("{reason}. {missing} needed."));
        }
        // A key has no sign-in; the gateway checks that of a token.
        if terms.sign_in.is_some() && !is_subject_name(&self.name) {
            return Some(
                "The rule requires another sign-in, so this can only be approved in the dashboard.".to_owned(),
            );
        }
        (terms.preview_required && !entry.preview.permits_approval()).then(|| {
            "The rule requires a preview and there is none, so this can only be rejected or edited.".to_owned()
        })
    }
}

/// A change as the list shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedChange {
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
    pub review: Option<ReviewNote>,
    #[serde(default)]
    pub terms: Terms,
    #[serde(default)]
    pub preview: PreviewNote,
    pub duplicate_of: Option<String>,
    pub verification: Option<Verification>,
    #[serde(default)]
    pub decisions: Vec<ReviewDecision>,
    pub created_at: Timestamp,
}

impl ListedChange {
    pub fn from_change(change: &Change) -> Self {
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
            verification: change.verification.as_ref().map(Verification::without_details),
            decisions: change.decisions.clone(),
            created_at: change.created_at,
        }
    }

    /// Returns the number of approvals so far.
    pub fn approvals(&self) -> usize {
        self.decisions.iter().filter(|d| d.verdict == ReviewVerdict::Approve).count()
    }
}

/// A view of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub name: &'static str,
    /// The states that are listed, as in the parameter `status`; `None` for all states.
    pub states: Option<&'static str>,
}

/// All views, in the order in which a key changes them.
pub const VIEWS: [View; 5] = [
    View { name: "inbox", states: Some("pending,stale,outcome_unknown,approved,executing") },
    View { name: "pending", states: Some("pending") },
    View { name: "stale", states: Some("stale") },
    View { name: "outcome unknown", states: Some("outcome_unknown") },
    View { name: "all", states: None },
];

impl View {
    pub(super) fn includes(self, state: ChangeState) -> bool {
        self.states.is_none_or(|states| states.split(',').any(|name| name == state.as_str()))
    }
}

/// The grouping of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// By the bundles of the gateway.
    #[default]
    Bundle,
    Target,
    Tool,
    Principal,
    None,
}

impl Grouping {
    pub const fn next(self) -> Self {
        match self {
            Self::Bundle => Self::Target,
            Self::Target => Self::Tool,
            Self::Tool => Self::Principal,
            Self::Principal => Self::None,
            Self::None => Self::Bundle,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            // The usual grouping needs no name.
            Self::Bundle => "",
            Self::None => "not grouped",
            Self::Target => "by target",
            Self::Tool => "by tool",
            Self::Principal => "by proposer",
        }
    }

    pub(super) fn group_label(self, entry: &ListedChange) -> Option<String> {
        match self {
            Self::Bundle | Self::None => None,
            Self::Target => Some(format!("{}: {}", entry.provider, entry.target.label)),
            Self::Tool => Some(format!("{}.{}", entry.provider, entry.preview.subject(&entry.tool))),
            Self::Principal => Some(entry.proposer.principal.clone()),
        }
    }
}

/// Changes that belong together, as the gateway found them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedBundle {
    pub principal: String,
    pub first_at: Timestamp,
    /// The ids of its changes that wait for a decision, in order.
    pub waiting: Vec<String>,
}

impl ListedBundle {
    pub(super) fn label(&self) -> String {
        format!("Bundle of {}, {}", self.principal, format_local_time(self.first_at, "%m-%d %H:%M:%S"))
    }
}

/// A row of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// The heading of a group: its label, and the number of its changes.
    Group(String, usize),
    /// Index in [`App::changes`].
    Change(usize),
}

/// A question to the user at the bottom of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Search,
    /// A comment for a decision on the shown change, or on the selected ones.
    Comment {
        verdict: ReviewVerdict,
        is_bulk: bool,
    },
    /// The end of the diff was not on the screen.
    UnreadDiff,
    /// The preview failed: are the arguments alone enough?
    WithoutPreview,
    Settle,
    SettleComment {
        applied: bool,
    },
    /// A comment for edited arguments.
    EditComment {
        id: String,
        version: u64,
        arguments: String,
    },
}

/// An open prompt with the text typed so far.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub question: Question,
    pub text: String,
}

/// Returns the comment in a typed line, or `None` if it is blank.
pub(super) fn typed_comment(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|comment| !comment.is_empty())
}

/// The result of a decision on one of several changes.
#[derive(Debug)]
pub struct DecisionResult {
    pub summary: String,
    /// The new state of the change, or the reason why nothing was decided.
    pub outcome: String,
    pub has_succeeded: bool,
}

/// A task for the loop.
#[derive(Debug, PartialEq)]
pub enum Action {
    Quit,
    Suspend,
    Repaint,
    /// Fetches the list again from its beginning.
    Load,
    /// Fetches and opens one change.
    Open(String),
    /// Sends a request that changes something: the path below `/api`, the body, and the message on success.
    Post {
        path: Vec<String>,
        body: String,
        done_message: &'static str,
    },
    /// Sends requests that decide on the selected changes. Contains the body of each.
    Decide(Vec<String>),
    /// Opens the user's editor.
    Editor {
        id: String,
        version: u64,
        text: String,
    },
}

impl Action {
    /// Builds a request about one change.
    pub(super) fn for_change(id: &str, endpoint: &str, body: &Value, done_message: &'static str) -> Self {
        Self::Post {
            path: vec!["changes".into(), id.to_owned(), endpoint.to_owned()],
            body: body.to_string(),
            done_message,
        }
    }
}

/// An entry of the audit trail about a change.
#[derive(Debug, Deserialize)]
pub struct TrailEntry {
    pub at: Timestamp,
    pub event: String,
    pub actor: String,
}

/// The change on the screen.
#[derive(Debug)]
pub struct Detail {
    pub change: Change,
    pub timeline: Vec<TrailEntry>,
    pub lines: Vec<Line<'static>>,
    /// The number of lines that must be seen before a decision: up to the end of the diff, or of the arguments if the diff does
    /// not show everything.
    pub required_lines: usize,
    pub scroll: usize,
    /// The number of lines, from the first, that have been on the screen.
    pub lines_seen: usize,
    /// The change was updated while it was shown, so the next key must not decide on it.
    pub changed_while_shown: bool,
    /// The layout and the minute for which the lines were rendered.
    pub(super) layout_key: Option<(DiffLayout, i64)>,
}
