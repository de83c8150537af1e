//! The state machine of a change: which events are allowed in which state, and their results.
//!
//! The functions are pure: no I/O, and the clock is passed in. Every transition increments the version. Roles, shown
//! versions and expiry are checked by the caller; rules that hold for everyone are checked here.

mod edits;
mod effects;
mod event_kind;

pub use event_kind::EventKind;

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde_json::value::RawValue;

use super::{
    Change, ChangeFault, ChangeState, Claimant, Diff, FieldDiff, OnExpiry, Preview, Proposer, ReviewDecision,
    ReviewVerdict, ServerIdentity, Terms, Verification,
    dialogue::{ClosedQuestion, Question},
    person::Person,
};
use crate::principal::Principal;
use countersign_protocol::ErrorKind;

/// The events of an existing change.
#[derive(Clone, Debug)]
pub enum ChangeEvent {
    /// An approval or a rejection. An approval below the quorum counts as a vote.
    Decide(ReviewDecision),
    /// New arguments with their preview, under terms that are at least as strict. Earlier votes become void.
    Edit { editor: Principal, comment: Option<String>, call: RevisedCall },
    /// Withdraws an approval before the change runs. With `all`, an admin withdraws every approval.
    Unapprove { reviewer: Principal, all: bool },
    /// Voids the approvals of reviewers who may no longer decide; those in `valid` stay.
    Void { valid: Vec<ReviewDecision>, reason: String },
    /// The proposer withdraws the change and may say why.
    Withdraw { proposer: Principal, reason: Option<String> },
    /// The change expired.
    Expire { reason: String },
    /// The target or the tool differs from what was shown or cannot be checked, policy now denies the call, or the change may
    /// have run after the backup that the store was restored from. A stale change gets a new reason.
    MarkStale { fault: ChangeFault },
    /// A new preview of a stale change. Earlier votes become void.
    Refresh { preview: Preview, served_by: ServerIdentity },
    /// The executor claims the change before anything is sent. `claimant` names the node if there may be
    /// several, and `call_timeout` bounds the call once it is sent. A step of a plan whose target an earlier step has written
    /// shows what was approved, and gets the `fingerprint` of the present state.
    Claim { claimant: Option<Claimant>, call_timeout: Duration, fingerprint: Option<String> },
    /// The gateway fills in the references of a step to results of earlier steps, or policy now asks for a review of it. Somebody
    /// looks at the step again in either case, until `expires_at`.
    Fill {
        comment: String,
        call: RevisedCall,
        /// Policy allows the call with these arguments.
        is_allowed: bool,
        expires_at: Timestamp,
    },
    /// The plan of the step stopped before the step ran, or a reviewer stops it.
    StopPlan { reason: String, reviewer: Option<Principal> },
    /// The tool asks the proposer's client.
    Ask { question: Question },
    /// Questions ended, either with an answer or because the client cancelled its task.
    Answer { answered_by: Option<String>, closed: Vec<ClosedQuestion>, is_cancelled: bool },
    /// The provider returned a result. With `reads_back`, a [`ChangeEvent::Verify`] follows.
    Succeed { result: Arc<RawValue>, reads_back: bool },
    /// The target was read again after the run.
    Verify { verification: Verification },
    /// The change was certainly not applied.
    Fail { fault: ChangeFault, result: Option<Arc<RawValue>> },
    /// It is unknown whether the change was applied. The call was sent no later than `last_sent_at` and may still be
    /// running.
    LoseTrack { fault: ChangeFault, last_sent_at: Timestamp },
    /// A person checked the outcome and reports it.
    Settle { reviewer: Principal, applied: bool, comment: Option<String> },
}

/// The call of a change with other arguments.
#[derive(Clone, Debug)]
pub struct RevisedCall {
    pub arguments: Arc<RawValue>,
    pub preview: Preview,
    pub served_by: ServerIdentity,
    /// The terms under which it is reviewed.
    pub terms: Box<Terms>,
}

/// A transition that was made.
#[derive(Clone, Debug)]
pub struct Transition {
    pub kind: EventKind,
    /// `None` for a new change.
    pub from: Option<ChangeState>,
    /// The principal who caused it, or `system`.
    pub actor: String,
    /// The key that authenticated the actor, if any.
    pub key_id: Option<String>,
    /// The comment of a person, or the reason of the gateway.
    pub comment: Option<String>,
    pub after: Change,
}

/// The least time between the end of the grace period and the expiry of a change. The grace period is shortened if the
/// rule leaves less.
const MIN_TIME_AFTER_GRACE: SignedDuration = SignedDuration::from_secs(5);

/// The call timeout of a change that records none, in milliseconds.
const DEFAULT_CALL_TIMEOUT_MS: u64 = 120_000;

/// The actor of transitions that no person causes.
pub const SYSTEM: &str = "system";
/// The actor of audit entries about the definitions that servers offer.
pub const GATEWAY: &str = "gateway";
/// The actor of audit entries about starting the gateway with another policy.
pub const OPERATOR: &str = "operator";
/// The actor of audit entries about keys that were created or revoked directly in the store.
pub const TERMINAL: &str = "terminal";

/// An event that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalTransition {
    #[error("a change that is {} cannot become {}", .from.as_str(), .event.as_str())]
    State { from: ChangeState, event: EventKind },
    #[error("the proposer of a change cannot approve it")]
    SelfApproval,
    #[error("this reviewer has approved it already, perhaps with another key of the same owner or by a deputy")]
    AlreadyVoted,
    #[error("the editor of its arguments cannot approve it; another reviewer must")]
    EditedByApprover,
    #[error("the rule for this change forbids editing its arguments")]
    EditForbidden,
    #[error("the change already has these arguments")]
    UnchangedArguments,
    #[error(
        "only the reviewer who approved it, the person whose deputy they were, or an admin can withdraw the approval"
    )]
    NotAnApprover,
    #[error("all its approvals are valid")]
    NothingToVoid,
    #[error("the time to withdraw the approval is over")]
    GracePeriodOver,
    #[error("the decision was made on version {decided}, and the change is at {current}")]
    Version { decided: u64, current: u64 },
    #[error("only its proposer can withdraw a change")]
    NotProposer,
    #[error("there is nobody to ask, the question was asked before, or it is no longer open")]
    NoOpenQuestion,
    #[error("the change is not waiting to be read back")]
    NotReadBack,
    #[error("the change is not a step of a plan")]
    NotInPlan,
}

impl ChangeEvent {
    /// Returns the transition, the states that it may leave and the state that it leads to. `change` distinguishes a vote
    /// from an approval.
    fn edge(&self, change: &Change) -> (EventKind, &'static [ChangeState], ChangeState) {
        use ChangeState as S;
        const OPEN: &[ChangeState] = &[S::Pending, S::Stale];
        match self {
            Self::Decide(d) if d.verdict == ReviewVerdict::Reject => (EventKind::Rejected, OPEN, S::Rejected),
            Self::Decide(_) if change.approvals() + 1 < change.terms.quorum as usize => {
                (EventKind::Voted, &[S::Pending], S::Pending)
            }
            Self::Decide(_) => (EventKind::Approved, &[S::Pending], S::Approved),
            Self::Edit { .. } => (EventKind::Edited, OPEN, S::Pending),
            Self::Unapprove { .. } => (EventKind::Unapproved, &[S::Approved], S::Pending),
            Self::Void { .. } => (EventKind::Unapproved, &[S::Pending, S::Approved], S::Pending),
            Self::Withdraw { .. } => (EventKind::Withdrawn, OPEN, S::Withdrawn),
            // The rule treats a missing decision as a rejection. A change that was approved but did not run still expires.
            Self::Expire { .. } if change.terms.on_expiry == OnExpiry::Reject && OPEN.contains(&change.state) => {
                (EventKind::Rejected, OPEN, S::Rejected)
            }
            Self::Expire { .. } => (EventKind::Expired, &[S::Pending, S::Approved, S::Stale], S::Expired),
            Self::MarkStale { .. } => (EventKind::Stale, &[S::Pending, S::Approved, S::Stale], S::Stale),
            Self::Refresh { .. } => (EventKind::Refreshed, &[S::Stale], S::Pending),
            Self::Claim { .. } => (EventKind::Executing, &[S::Approved], S::Executing),
            Self::Fill { .. } => (EventKind::Edited, &[S::Approved], S::Pending),
            Self::StopPlan { .. } => (EventKind::Withdrawn, &[S::Pending, S::Stale, S::Approved], S::Withdrawn),
            Self::Ask { .. } => (EventKind::QuestionAsked, &[S::Executing], S::Executing),
            Self::Answer { .. } => (EventKind::QuestionAnswered, &[S::Executing], S::Executing),
            Self::Succeed { .. } => (EventKind::Applied, &[S::Executing], S::Applied),
            Self::Verify { .. } => (EventKind::Verified, &[S::Applied], S::Applied),
            Self::Fail { .. } => (EventKind::Failed, &[S::Executing], S::Failed),
            Self::LoseTrack { .. } => (EventKind::OutcomeUnknown, &[S::Executing], S::OutcomeUnknown),
            Self::Settle { applied: true, .. } => (EventKind::Settled, &[S::OutcomeUnknown], S::Applied),
            Self::Settle { applied: false, .. } => (EventKind::Settled, &[S::OutcomeUnknown], S::Failed),
        }
    }
}

impl Change {
    /// Estimates the size of its JSON in bytes.
    pub fn estimated_size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let diff = |diff: &Diff| -> usize {
            let lines = |f: &FieldDiff| f.lines.iter().map(|l| l.text.len() + 32).sum::<usize>();
            diff.fields.iter().map(|f| 80 + text(&f.before) + text(&f.after) + lines(f)).sum()
        };
        1536 + self.arguments.get().len()
            + self.proposed_arguments.as_ref().map_or(0, |a| a.get().len())
            + diff(&self.diff)
            + self.previous_diff.as_ref().map_or(0, diff)
            + self.result.as_ref().map_or(0, |r| r.get().len())
            + self.verification.as_ref().and_then(|v| v.diff.as_ref()).map_or(0, diff)
            + self.summary.len()
            + text(&self.stated_reason)
    }

    /// Returns the number of reviewers who approved the current version.
    pub fn approvals(&self) -> usize {
        self.decisions.iter().filter(|d| d.verdict == ReviewVerdict::Approve).count()
    }

    /// Returns the arguments that the agent proposed, regardless of edits.
    pub fn original_arguments(&self) -> &Arc<RawValue> {
        self.proposed_arguments.as_ref().unwrap_or(&self.arguments)
    }

    /// Returns `true` if this person may have proposed the change, with any of their accounts. Errs on the side of `true`, so it
    /// must only be used to forbid something.
    pub fn proposer_could_be(&self, person: Person<'_>) -> bool {
        Person::from_proposer(&self.proposer).may_be_same_as(person)
    }

    /// Returns `true` unless this person proposed the change. If its rule says `own_agents: allow`, a person may also approve
    /// what an agent proposed with an access token in their name, but only in a sign-in with the identity provider.
    pub fn may_be_approved_by(&self, person: Person<'_>) -> bool {
        let Proposer { owner, key_id, claims, .. } = &self.proposer;
        let is_own_agent = self.terms.own_agents
            && key_id.is_none()
            && claims.is_some()
            && owner.as_deref() == Some(person.name)
            && person.is_signed_in();
        is_own_agent || !self.proposer_could_be(person)
    }

    /// Returns `true` if this person may have edited its arguments. Errs on the side of `true`, so it must only be used to forbid
    /// something.
    pub fn editors_could_include(&self, person: Person<'_>) -> bool {
        self.edits.iter().any(|edit| Person::from_editor(edit).may_be_same_as(person))
    }

    /// Returns until when an approval at `now` can be undone, or `None` if the change runs at once. The grace period
    /// ends before the change expires.
    fn grace_period_end(&self, now: Timestamp) -> Option<Timestamp> {
        let seconds = i64::try_from(self.terms.undo_for).unwrap_or(i64::MAX);
        let end = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        let latest = self.expires_at.saturating_sub(MIN_TIME_AFTER_GRACE).unwrap_or(now);
        Some(end.min(latest)).filter(|end| *end > now)
    }

    /// Returns the deadline of the call, given the time at which it was sent.
    pub fn call_deadline(&self, sent: Timestamp) -> Timestamp {
        let timeout = i64::try_from(self.call_timeout_ms.unwrap_or(DEFAULT_CALL_TIMEOUT_MS)).unwrap_or(i64::MAX);
        sent.saturating_add(SignedDuration::from_millis(timeout)).unwrap_or(Timestamp::MAX)
    }

    /// Sets what reviewers see, and drops the decisions and the fault, which concerned the earlier preview.
    fn set_preview(&mut self, preview: Preview, served_by: ServerIdentity) {
        let Preview { note, operation, target, summary, diff, fingerprint, state_effect: _ } = preview;
        self.preview = note;
        self.operation = operation;
        self.target = target;
        self.summary = summary;
        let previous = std::mem::replace(&mut self.diff, diff);
        if previous != self.diff {
            self.previous_diff = Some(previous);
        }
        self.fingerprint = fingerprint;
        self.served_by = served_by;
        self.decisions.clear();
        self.fault = None;
        self.digest = self.review_digest();
    }
}

/// Applies an event, if it is allowed in the state of the change.
///
/// # Errors
/// [`IllegalTransition`]; the change stays as it was.
pub fn apply(change: &Change, event: ChangeEvent, now: Timestamp) -> Result<Transition, IllegalTransition> {
    let (kind, from, to) = event.edge(change);
    if !from.contains(&change.state) {
        return Err(IllegalTransition::State { from: change.state, event: kind });
    }
    let needs_plan = matches!(
        event,
        ChangeEvent::Claim { fingerprint: Some(_), .. } | ChangeEvent::Fill { .. } | ChangeEvent::StopPlan { .. }
    );
    if needs_plan && change.plan.is_none() {
        return Err(IllegalTransition::NotInPlan);
    }
    // The wall clock may go back; the history of a change must not.
    let updated_at = now.max(change.updated_at);
    let after = Change { version: change.version + 1, state: to, updated_at, ..change.clone() };
    let mut transition =
        Transition { kind, from: Some(change.state), actor: SYSTEM.to_owned(), key_id: None, comment: None, after };
    match event {
        ChangeEvent::Decide(decision) => {
            change.check_decision(&decision)?;
            if kind == EventKind::Approved {
                transition.after.run_after = change.grace_period_end(updated_at);
            }
            transition.add_decision(decision);
        }
        ChangeEvent::Edit { editor, comment, call } => {
            change.check_edit(&editor, &call.arguments)?;
            transition.after.revise_call(call, Some(&editor), comment.clone());
            transition.set_actor(editor);
            transition.comment = comment;
        }
        ChangeEvent::Unapprove { reviewer, all } => transition.unapprove(reviewer, all, now)?,
        ChangeEvent::Void { valid, reason } => transition.void_votes(&valid, reason)?,
        ChangeEvent::Withdraw { proposer, reason } => transition.withdraw(proposer, reason)?,
        ChangeEvent::Expire { reason } => transition.set_fault(ChangeFault::new(ErrorKind::ChangeExpired, reason)),
        ChangeEvent::MarkStale { fault } => transition.set_fault(fault),
        ChangeEvent::Refresh { preview, served_by } => transition.after.set_preview(preview, served_by),
        ChangeEvent::Claim { claimant, call_timeout, fingerprint } => {
            transition.claim(claimant, call_timeout, fingerprint)
        }
        ChangeEvent::Fill { comment, call, is_allowed, expires_at } => {
            transition.after.expires_at = expires_at;
            transition.after.note_required_review(is_allowed);
            transition.after.revise_call(call, None, Some(comment.clone()));
            // Nobody has seen the call as it is now, so one person must also look at what the policy allows.
            transition.after.terms.quorum = transition.after.terms.quorum.max(1);
            transition.comment = Some(comment);
        }
        ChangeEvent::StopPlan { reason, reviewer } => transition.stop_plan(&reason, reviewer),
        ChangeEvent::Ask { question } => transition.ask(question)?,
        ChangeEvent::Answer { answered_by, closed, is_cancelled } => {
            transition.answer(answered_by, closed, is_cancelled)?
        }
        ChangeEvent::Succeed { result, reads_back } => {
            transition.after.result = Some(result);
            transition.after.verification = reads_back.then(Verification::not_read);
        }
        ChangeEvent::Verify { verification } => transition.verify(verification)?,
        ChangeEvent::Fail { fault, result } => {
            transition.set_fault(fault);
            transition.after.result = result;
        }
        ChangeEvent::LoseTrack { fault, last_sent_at } => {
            transition.set_fault(fault);
            transition.after.target_taken_until = Some(change.call_deadline(last_sent_at)).filter(|end| *end > now);
        }
        ChangeEvent::Settle { reviewer, applied, comment } => transition.settle(reviewer, applied, comment),
    }
    if to != ChangeState::Approved {
        transition.after.run_after = None;
    }
    if to != ChangeState::Executing
        && let Some(dialogue) = &mut transition.after.dialogue
    {
        dialogue.close_all("the call has ended", updated_at);
    }
    Ok(transition)
}

#[cfg(test)]
mod tests;
