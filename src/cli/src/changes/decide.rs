//! `changes approve` and `changes reject`: each change is shown, asked about on a terminal, and decided on as it was
//! shown; then what came of an approval is said.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    arguments::{is_call, waits_for},
    look_again, render, stale,
};
use crate::{
    args::DecideArgs,
    client::{Client, ResponseBody},
    exit::{Exit, Failure},
    output::{Output, Style, asks, one_line, remark, yes_or_no},
};
use countersign_domain::{
    changes::{Change, ChangeState, Verdict},
    text::plural,
};

/// How long an approval waits for what comes of it.
const WAIT: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

pub async fn run(
    client: &Client,
    verdict: Verdict,
    args: &DecideArgs,
    without_preview: bool,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let several = args.ids.len() > 1;
    if several && args.version.is_some() {
        return Err(Failure::new(
            Exit::Usage,
            "--version belongs to one change; name one change, or leave --version out",
        ));
    }
    let bulk = if several {
        Some("a decision on several changes")
    } else {
        without_preview.then_some("an approval without a preview")
    };
    let asks = asks(json, args.yes, bulk)?;
    let one = One { client, verdict, args, without_preview, asks, json };
    let mut exit = Exit::Ok;
    for id in &args.ids {
        match one.decide(id, out).await {
            Ok(Exit::Ok) => {}
            Ok(other) => exit = other,
            // Of several each is on its own.
            Err(failure) if several && !failure.output_closed => {
                out.finish()?;
                remark(&format!("{}: {}", one_line(id), failure.message));
                exit = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
        if several && !json {
            out.line("")?;
        }
    }
    Ok(exit)
}

struct One<'a> {
    client: &'a Client,
    verdict: Verdict,
    args: &'a DecideArgs,
    without_preview: bool,
    asks: bool,
    json: bool,
}

impl One<'_> {
    async fn decide(&self, id: &str, out: &mut Output) -> Result<Exit, Failure> {
        let change: Change = self.client.get(&["changes", id], &[]).await?.read()?;
        self.is_open(&change)?;
        if !self.json {
            // The decision carries the digest of what is shown here.
            render::change(&change, Timestamp::now(), out)?;
            quorum(&change, out)?;
            out.finish()?;
        }
        if self.verdict == Verdict::Approve
            && let Some(why) = &change.preview.failed
            && !self.without_preview
        {
            let message = format!(
                "the preview of this change failed, so nobody sees what it would do ({}); `countersign changes refresh {}` \
                 tries again, and --without-preview approves it by its arguments alone",
                one_line(why),
                one_line(&change.id)
            );
            return Err(Failure::new(Exit::Failed, message));
        }
        let word = word(self.verdict);
        if self.asks && !ask(word, &change, self.without_preview)? {
            remark("Nothing was decided.");
            return Ok(Exit::Failed);
        }
        let body = serde_json::json!({
            "decision": word,
            "comment": self.args.comment,
            "version": change.version,
            "digest": change.digest,
        });
        let path = ["changes", &change.id, "decision"];
        let answer = self.client.post(&path, &body).await.map_err(|r| stale(r, &change.id))?;
        let after: Change = answer.read()?;
        let (answer, after) = self.outcome(answer, after).await;
        if self.json {
            out.json(&answer.json_line()?)?;
        } else {
            out.line("")?;
            tell(self.verdict, &after, out)?;
        }
        Ok(exit(self.verdict, after.state))
    }

    fn is_open(&self, change: &Change) -> Result<(), Failure> {
        if let Some(version) = self.args.version.filter(|version| *version != change.version) {
            let message =
                format!("the change is at version {} and not {version}; {}", change.version, look_again(&change.id));
            return Err(Failure::new(Exit::Conflict, message));
        }
        let open = match self.verdict {
            Verdict::Approve => change.state == ChangeState::Pending,
            Verdict::Reject => matches!(change.state, ChangeState::Pending | ChangeState::Stale),
        };
        if open {
            return Ok(());
        }
        let state = render::state_name(change.state);
        let message = format!("the change is {state}: there is nothing to {}", word(self.verdict));
        Err(Failure::new(Exit::Conflict, message))
    }

    /// Looks until what was approved has run, or for a while. What cannot be read any more changes nothing: the decision
    /// was made.
    async fn outcome(&self, mut answer: ResponseBody, mut change: Change) -> (ResponseBody, Change) {
        let deadline = Instant::now() + WAIT;
        while under_way(&change) && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
            let Ok(looked) = self.client.get(&["changes", &change.id], &[]).await else { break };
            let Ok(now) = looked.read::<Change>() else { break };
            if now.version > change.version {
                (answer, change) = (looked, now);
            }
        }
        (answer, change)
    }
}

/// Whether it will be over soon: it runs, or is about to without a time in which it can be undone.
fn under_way(change: &Change) -> bool {
    match change.state {
        ChangeState::Approved => change.run_after.is_none_or(|at| at <= Timestamp::now()),
        ChangeState::Executing => true,
        _ => false,
    }
}

/// The exit code of a decision that was made: that of what came of it, as far as that is known.
const fn exit(verdict: Verdict, state: ChangeState) -> Exit {
    match (verdict, state) {
        (Verdict::Approve, ChangeState::Failed | ChangeState::OutcomeUnknown) => Exit::Failed,
        (
            Verdict::Approve,
            ChangeState::Stale | ChangeState::Expired | ChangeState::Withdrawn | ChangeState::Rejected,
        ) => Exit::Conflict,
        _ => Exit::Ok,
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "approve",
        Verdict::Reject => "reject",
    }
}

/// What came of a decision.
fn tell(verdict: Verdict, change: &Change, out: &mut Output) -> Result<(), Failure> {
    if verdict == Verdict::Reject {
        out.styled(Style::Red, "Rejected.")?;
        return Ok(out.line("")?);
    }
    let (style, text) = match change.state {
        ChangeState::Pending => (Style::Yellow, waits_for(change)),
        ChangeState::Approved if change.run_after.is_some() => {
            let at = change.run_after.map_or_else(String::new, |at| at.to_string());
            let undo = format!("countersign changes undo {}", one_line(&change.id));
            (Style::Green, format!("Approved; it runs at {at}. Until then `{undo}` takes it back."))
        }
        ChangeState::Approved | ChangeState::Executing => {
            let show = format!("countersign changes show {}", one_line(&change.id));
            (Style::Yellow, format!("Approved; it is still running. `{show}` tells how it ends."))
        }
        ChangeState::Applied => (Style::Green, "Approved and applied.".to_owned()),
        ChangeState::Failed => (Style::Red, "Approved, but it failed.".to_owned()),
        ChangeState::OutcomeUnknown => {
            let settle = format!("countersign changes settle {} --outcome applied|failed", one_line(&change.id));
            (Style::Red, format!("Approved, but nobody knows whether it ran. Find out, then `{settle}`."))
        }
        ChangeState::Stale => {
            (Style::Yellow, format!("Approved, but the target has changed: {}.", look_again(&change.id)))
        }
        state => (Style::Yellow, format!("Approved; the change is {} now.", render::state_name(state))),
    };
    out.styled(style, &text)?;
    out.line("")?;
    if let Some(fault) = change.fault.as_ref().filter(|_| !matches!(change.state, ChangeState::Applied)) {
        out.styled(Style::Yellow, &format!("{}: {}", one_line(&fault.code), one_line(&fault.message)))?;
        out.line("")?;
    }
    render::result(change, out)
}

/// How far the approvals are that a rule asks for, and whom it asks.
fn quorum(change: &Change, out: &mut Output) -> Result<(), Failure> {
    let terms = &change.terms;
    if terms.quorum <= 1 && terms.reviewers.is_empty() {
        return Ok(());
    }
    let of = if terms.reviewers.is_empty() { String::new() } else { format!(" of {}", terms.reviewers.join(", ")) };
    let needed = plural(usize::try_from(terms.quorum.max(1)).unwrap_or(usize::MAX), "approval");
    let line = format!("It has {} of the {needed}{of} that it needs.", change.approvals());
    out.line("")?;
    out.styled(Style::Yellow, &one_line(&line))?;
    Ok(out.line("")?)
}

/// Asks on the terminal; anything but yes is no.
fn ask(word: &str, change: &Change, without_preview: bool) -> Result<bool, Failure> {
    if change.diff.truncated && !is_call(change) {
        remark("\nNot all of this change is shown above: the diff was cut because of its size.");
    }
    let blind = without_preview && change.preview.failed.is_some();
    let how = if blind { ", without a preview" } else { "" };
    let mut what = word.to_owned();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    yes_or_no(&format!("\n{what} version {} of this change{how}?", change.version), "decide")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approval_exits_by_what_came_of_the_change() {
        use ChangeState::*;
        let approved = |state| exit(Verdict::Approve, state);
        assert!([Pending, Approved, Executing, Applied].map(approved).iter().all(|exit| *exit == Exit::Ok));
        assert_eq!([Failed, OutcomeUnknown].map(approved), [Exit::Failed; 2]);
        assert_eq!([Stale, Expired, Withdrawn, Rejected].map(approved), [Exit::Conflict; 4]);
        assert_eq!(exit(Verdict::Reject, Rejected), Exit::Ok);
    }
}
