//! The effects of events on a change, beyond the state that they lead to.

use std::time::Duration;

use jiff::Timestamp;

use super::{IllegalTransition, Transition};
use crate::{
    changes::{
        Change, ChangeFault, Claimant, ReviewDecision, ReviewVerdict, Verification, VerificationOutcome,
        dialogue::{ClosedQuestion, Question},
        person::Person,
    },
    principal::Principal,
};
use countersign_protocol::ErrorKind;

impl Change {
    /// Checks that the decision is about this version, and that its reviewer may approve.
    pub(super) fn check_decision(&self, decision: &ReviewDecision) -> Result<(), IllegalTransition> {
        if decision.version != self.version {
            return Err(IllegalTransition::Version { decided: decision.version, current: self.version });
        }
        if decision.verdict != ReviewVerdict::Approve {
            return Ok(());
        }
        let absent = decision.deputy_for.as_ref().map(Person::from_absent);
        if !self.may_be_approved_by(Person::from_decision(decision))
            || absent.is_some_and(|person| self.proposer_could_be(person))
        {
            return Err(IllegalTransition::SelfApproval);
        }
        if !self.terms.editors_may_approve() && decision.voters().any(|person| self.editors_could_include(person)) {
            return Err(IllegalTransition::EditedByApprover);
        }
        // The vote of a deputy is that of the absent person, who may have voted before they left.
        if decision.voters().any(|person| self.approvers_could_include(person)) {
            return Err(IllegalTransition::AlreadyVoted);
        }
        Ok(())
    }
}

impl Transition {
    pub(super) fn set_actor(&mut self, principal: Principal) {
        (self.actor, self.key_id) = (principal.name, principal.key_id);
    }

    /// Sets the fault of the change, whose message is also the comment.
    pub(super) fn set_fault(&mut self, fault: ChangeFault) {
        self.comment = Some(fault.message.clone());
        self.after.fault = Some(fault);
    }

    pub(super) fn add_decision(&mut self, decision: ReviewDecision) {
        self.actor.clone_from(&decision.reviewer);
        self.key_id.clone_from(&decision.key_id);
        self.comment.clone_from(&decision.comment);
        self.after.decisions.push(decision);
    }

    pub(super) fn unapprove(
        &mut self,
        reviewer: Principal,
        all: bool,
        now: Timestamp,
    ) -> Result<(), IllegalTransition> {
        if self.after.run_after.is_none_or(|end| now >= end) {
            return Err(IllegalTransition::GracePeriodOver);
        }
        let person = Person::from_principal(&reviewer);
        if !self.retain_decisions(|vote| !all && !vote.voters().any(|voter| voter.is_same_as(person))) {
            return Err(IllegalTransition::NotAnApprover);
        }
        self.set_actor(reviewer);
        Ok(())
    }

    pub(super) fn void_votes(&mut self, valid: &[ReviewDecision], reason: String) -> Result<(), IllegalTransition> {
        if !self.retain_decisions(|vote| valid.contains(vote)) {
            return Err(IllegalTransition::NothingToVoid);
        }
        self.comment = Some(reason);
        Ok(())
    }

    /// Removes all decisions but those to keep. Returns `true` if there were any to remove.
    fn retain_decisions(&mut self, is_kept: impl FnMut(&ReviewDecision) -> bool) -> bool {
        let before = self.after.decisions.len();
        self.after.decisions.retain(is_kept);
        self.after.decisions.len() < before
    }

    pub(super) fn withdraw(&mut self, proposer: Principal, reason: Option<String>) -> Result<(), IllegalTransition> {
        if proposer.name != self.after.proposer.principal {
            return Err(IllegalTransition::NotProposer);
        }
        self.set_actor(proposer);
        self.comment = reason;
        Ok(())
    }

    pub(super) fn claim(&mut self, claimant: Option<Claimant>, call_timeout: Duration, fingerprint: Option<String>) {
        self.after.claimed_by = claimant;
        self.after.call_timeout_ms = Some(u64::try_from(call_timeout.as_millis()).unwrap_or(u64::MAX));
        if let Some(fingerprint) = fingerprint {
            self.after.fingerprint = fingerprint;
        }
    }

    pub(super) fn stop_plan(&mut self, reason: &str, reviewer: Option<Principal>) {
        self.comment = Some(format!("plan_stopped: {reason}"));
        if let Some(reviewer) = reviewer {
            self.set_actor(reviewer);
        }
        self.after.fault = Some(ChangeFault::new(ErrorKind::PlanStopped, format!("Not run, because {reason}")));
    }

    pub(super) fn ask(&mut self, question: Question) -> Result<(), IllegalTransition> {
        let dialogue = self.after.dialogue.as_mut().filter(|dialogue| !dialogue.has_question(&question.key));
        let Some(dialogue) = dialogue else { return Err(IllegalTransition::NoOpenQuestion) };
        self.comment = Some(question.method.clone());
        dialogue.questions.push(Question { at: self.after.updated_at, ..question });
        Ok(())
    }

    pub(super) fn answer(
        &mut self,
        answered_by: Option<String>,
        closed: Vec<ClosedQuestion>,
        is_cancelled: bool,
    ) -> Result<(), IllegalTransition> {
        let Some(dialogue) = &mut self.after.dialogue else { return Err(IllegalTransition::NoOpenQuestion) };
        let unanswered_reason = closed.iter().find_map(|closed| closed.answer.as_ref().err().cloned());
        if dialogue.close(closed, self.after.updated_at) == 0 && (!is_cancelled || dialogue.is_cancelled) {
            return Err(IllegalTransition::NoOpenQuestion);
        }
        dialogue.is_cancelled |= is_cancelled;
        self.comment = unanswered_reason;
        if let Some(name) = answered_by {
            self.actor = name;
        }
        Ok(())
    }

    pub(super) fn verify(&mut self, verification: Verification) -> Result<(), IllegalTransition> {
        let earlier = self.after.verification.as_ref();
        if earlier.is_none_or(|earlier| earlier.verified != VerificationOutcome::NotRead) {
            return Err(IllegalTransition::NotReadBack);
        }
        self.comment.clone_from(&verification.reason);
        self.after.verification = Some(verification);
        Ok(())
    }

    pub(super) fn settle(&mut self, reviewer: Principal, applied: bool, comment: Option<String>) {
        // A failed change keeps its fault, with the reviewer's finding added for the agent.
        if applied {
            self.after.fault = None;
        } else if let Some(fault) = &mut self.after.fault {
            let suffix = comment.as_deref().map_or_else(String::new, |comment| format!(": “{comment}”"));
            fault.message = format!("{}. {} checked: it was not applied{suffix}", fault.message, reviewer.name);
        }
        self.after.target_taken_until = None;
        self.set_actor(reviewer);
        self.comment = comment;
    }
}
