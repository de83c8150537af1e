//! `changes approve` and `changes reject`: show each change, ask on a terminal, decide on the version that was shown,
//! and report the outcome of an approval.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    arguments::{missing_approvals_message, shows_arguments_only},
    decision_body, ensure_version, render, show_hint, with_conflict_hint,
};
use crate::{
    args::changes::DecideArgs,
    client::{Client, ResponseBody},
    exit::{Exit, Failure},
    output::{Output, Style, confirm, one_line, print_note, should_ask},
};
use countersign_domain::{
    changes::{Change, ChangeState, ReviewVerdict},
    text::plural,
};

/// Maximum time to wait for the outcome of an approval.
const MAX_OUTCOME_WAIT: Duration = Duration::from_secs(5);
/// The pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub async fn run(
    client: &Client,
    verdict: ReviewVerdict,
    args: &DecideArgs,
    without_preview: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let several = args.ids.len() > 1;
    if several && args.version.is_some() {
        let message = "--version applies to one change; name only one change, or omit --version";
        return Err(Failure::new(Exit::Usage, message));
    }
    let operation = if several {
        Some("a decision on several changes")
    } else {
        without_preview.then_some("an approval without a preview")
    };
    let should_confirm = should_ask(client.json, args.yes, operation)?;
    let decider = Decider { client, verdict, args, without_preview, should_confirm };
    let mut exit = Exit::Ok;
    for id in &args.ids {
        match decider.decide(id, out).await {
            Ok(Exit::Ok) => {}
            Ok(other) => exit = other,
            // The failure of one change does not stop the others.
            Err(failure) if several => {
                out.finish()?;
                print_note(&format!("{}: {}", one_line(id), failure.message));
                exit = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
        if several && !client.json {
            out.write_line("")?;
        }
    }
    Ok(exit)
}

struct Decider<'a> {
    client: &'a Client,
    verdict: ReviewVerdict,
    args: &'a DecideArgs,
    without_preview: bool,
    should_confirm: bool,
}

impl Decider<'_> {
    async fn decide(&self, id: &str, out: &mut Output) -> Result<Exit, Failure> {
        let change = self.client.get_change(id).await?;
        self.ensure_open(&change)?;
        if !self.client.json {
            // The decision carries the digest of what is shown here.
            render::print_change(&change, Timestamp::now(), out)?;
            print_quorum(&change, out)?;
            out.finish()?;
        }
        if self.verdict == ReviewVerdict::Approve
            && let Some(failure) = &change.preview.failed
            && !self.without_preview
        {
            let message = format!(
                "the preview of this change failed, so nobody sees what it would do ({}); `countersign changes refresh {}` \
                 tries again, and --without-preview approves it by its arguments alone",
                one_line(failure),
                one_line(&change.id)
            );
            return Err(Failure::new(Exit::Failed, message));
        }
        if self.should_confirm && !confirm_decision(self.verdict, &change, self.without_preview)? {
            return Ok(Exit::Failed);
        }
        let body = decision_body(&change, self.verdict, self.args.comment.as_deref());
        let path = ["changes", &change.id, "decision"];
        let answer = self.client.post(&path, &body).await.map_err(|failure| with_conflict_hint(failure, &change.id))?;
        let after = answer.read_change()?;
        let (answer, after) = self.wait_for_outcome(answer, after).await;
        if self.client.json {
            out.write_json(&answer.json_line()?)?;
        } else {
            out.write_line("")?;
            print_outcome(self.verdict, &after, out)?;
        }
        Ok(exit_code_for(self.verdict, after.state))
    }

    /// Fails unless the change is in a state in which the decision is possible.
    fn ensure_open(&self, change: &Change) -> Result<(), Failure> {
        ensure_version(change, self.args.version)?;
        let is_open = match self.verdict {
            ReviewVerdict::Approve => change.state == ChangeState::Pending,
            ReviewVerdict::Reject => change.state.awaits_decision() || change.is_approved_step(),
        };
        if is_open {
            return Ok(());
        }
        let state = change.state.as_str();
        let message = if change.state.awaits_decision() {
            format!(
                "the change is {state}; `countersign changes refresh {}` computes a new preview to decide on",
                change.id
            )
        } else {
            let verb = if self.verdict == ReviewVerdict::Approve { "approve" } else { "reject" };
            format!("the change is {state}: there is nothing to {verb}")
        };
        Err(Failure::new(Exit::Conflict, message))
    }

    /// Polls until the approved change has run, or until the time is over. Read errors are ignored here, because the
    /// decision is already made.
    async fn wait_for_outcome(&self, mut answer: ResponseBody, mut change: Change) -> (ResponseBody, Change) {
        let deadline = Instant::now() + MAX_OUTCOME_WAIT;
        while ends_soon(&change) && Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Ok(response) = self.client.get(&["changes", &change.id], &[]).await else { break };
            let Ok(now) = response.read_change() else { break };
            if now.version > change.version {
                (answer, change) = (response, now);
            }
        }
        (answer, change)
    }
}

/// Returns `true` if the change will end soon: it runs, or is about to and cannot be undone.
fn ends_soon(change: &Change) -> bool {
    match change.state {
        ChangeState::Approved => change.run_after.is_none_or(|at| at <= Timestamp::now()),
        ChangeState::Executing => true,
        _ => false,
    }
}

/// Returns the exit code of a decision that was made, according to the change's outcome as far as it is known.
const fn exit_code_for(verdict: ReviewVerdict, state: ChangeState) -> Exit {
    match (verdict, state) {
        (ReviewVerdict::Approve, ChangeState::Failed | ChangeState::OutcomeUnknown) => Exit::Failed,
        (
            ReviewVerdict::Approve,
            ChangeState::Stale | ChangeState::Expired | ChangeState::Withdrawn | ChangeState::Rejected,
        ) => Exit::Conflict,
        _ => Exit::Ok,
    }
}

/// Prints the outcome of a decision.
fn print_outcome(verdict: ReviewVerdict, change: &Change, out: &mut Output) -> Result<(), Failure> {
    if verdict == ReviewVerdict::Reject {
        let text = match change.state {
            ChangeState::Withdrawn => "The plan was stopped. Its steps that have not begun are withdrawn.",
            _ => "Rejected.",
        };
        return Ok(out.write_styled_line(Style::Red, text)?);
    }
    let (style, text) = match (change.state, change.run_after) {
        (ChangeState::Pending, _) => (Style::Yellow, missing_approvals_message(change)),
        (ChangeState::Approved, Some(at)) => {
            let undo = format!("countersign changes undo {}", change.id);
            (Style::Green, format!("Approved; it runs at {at}. Until then `{undo}` takes it back."))
        }
        (ChangeState::Approved | ChangeState::Executing, _) => {
            let show = format!("countersign changes show {}", change.id);
            (Style::Yellow, format!("Approved; it is still running. `{show}` shows its outcome."))
        }
        (ChangeState::Applied, _) => (Style::Green, "Approved and applied.".to_owned()),
        (ChangeState::Failed, _) => (Style::Red, "Approved, but it failed.".to_owned()),
        (ChangeState::OutcomeUnknown, _) => {
            let settle = format!("countersign changes settle {} --outcome applied|failed", change.id);
            (Style::Red, format!("Approved, but nobody knows whether it ran. Find out, then `{settle}`."))
        }
        (ChangeState::Stale, _) => {
            (Style::Yellow, format!("Approved, but what was shown no longer holds: {}.", show_hint(&change.id)))
        }
        (state, _) => (Style::Yellow, format!("Approved; the change is {} now.", state.as_str())),
    };
    out.write_styled_line(style, &text)?;
    if let Some(fault) = change.fault.as_ref().filter(|_| change.state != ChangeState::Applied) {
        out.write_styled_line(Style::Yellow, &format!("{}: {}", fault.code, fault.message))?;
    }
    render::print_result(change, out)
}

/// Prints how many approvals the rule requires and has, and by whom.
fn print_quorum(change: &Change, out: &mut Output) -> Result<(), Failure> {
    let terms = &change.terms;
    if terms.quorum <= 1 && terms.reviewers.is_empty() {
        return Ok(());
    }
    let reviewers = terms.reviewers_at(change.created_at, Timestamp::now());
    let reviewers = if reviewers.is_empty() { String::new() } else { format!(" of {}", reviewers.join(", ")) };
    let needed = plural(terms.quorum.max(1), "approval");
    let line = format!("It has {} of the {needed}{reviewers} that it needs.", change.approvals());
    out.write_line("")?;
    Ok(out.write_styled_line(Style::Yellow, &line)?)
}

/// Asks on the terminal; anything but yes means no.
fn confirm_decision(verdict: ReviewVerdict, change: &Change, without_preview: bool) -> Result<bool, Failure> {
    if change.diff.truncated && !shows_arguments_only(change) {
        print_note("\nThe diff above is incomplete: it was truncated because of its size.");
    }
    let is_blind = without_preview && change.preview.failed.is_some();
    let qualifier = if is_blind { ", without a preview" } else { "" };
    let action = match verdict {
        ReviewVerdict::Approve => "Approve",
        ReviewVerdict::Reject => "Reject",
    };
    let question = format!("\n{action} version {} of this change{qualifier}?", change.version);
    confirm(&question, "decide", "Nothing was decided.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_of_approval_follows_the_outcome() {
        use ChangeState::*;
        let approved = |state| exit_code_for(ReviewVerdict::Approve, state);
        assert!([Pending, Approved, Executing, Applied].map(approved).iter().all(|exit| *exit == Exit::Ok));
        assert_eq!([Failed, OutcomeUnknown].map(approved), [Exit::Failed; 2]);
        assert_eq!([Stale, Expired, Withdrawn, Rejected].map(approved), [Exit::Conflict; 4]);
        assert_eq!(exit_code_for(ReviewVerdict::Reject, Rejected), Exit::Ok);
    }
}
