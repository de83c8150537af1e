//! `changes list|show|approve|reject|edit|undo|refresh|settle|watch`: the REST door and the feed of a gateway, for people and scripts.

pub(super) mod client;
mod edit;
mod feed;
mod render;
mod screen;
mod watch;

use std::{
    io::{BufRead, IsTerminal, Write},
    rc::Rc,
};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use self::client::{Client, Refusal};
use super::{
    args::{ChangesArgs, ChangesCommand, DecideArgs, NarrowArgs, Settled},
    exit::{Exit, Failure},
    output::{Output, Style, one_line, remark},
};
use crate::changes::{Change, ChangeState, Verdict};

pub fn run(args: &ChangesArgs, out: &mut Output) -> Result<Exit, Failure> {
    let target = client::target(&args.connect)?;
    actix_web::rt::System::new().block_on(async {
        let client = Rc::new(Client::new(target)?);
        let json = args.connect.json;
        match &args.command {
            ChangesCommand::List { status, narrow, limit } => list(&client, status, narrow, *limit, json, out).await,
            ChangesCommand::Show { id } => show(&client, id, json, out).await,
            ChangesCommand::Approve(decide) => decision(&client, Verdict::Approve, decide, json, out).await,
            ChangesCommand::Reject(decide) => decision(&client, Verdict::Reject, decide, json, out).await,
            ChangesCommand::Rule(rule) => super::rules::give(&client, rule, json, out).await,
            ChangesCommand::Edit(args) => edit::run(&client, args, json, out).await,
            ChangesCommand::Undo { id } => again(&client, "undo", id, json, out).await,
            ChangesCommand::Refresh { id } => again(&client, "refresh", id, json, out).await,
            ChangesCommand::Settle { id, outcome, comment } => {
                settle(&client, id, *outcome, comment.as_deref(), json, out).await
            }
            // In a terminal an inbox to decide in; elsewhere, and from a given event on, a line an event.
            ChangesCommand::Watch { since: None, plain: false } if !json && screen::possible() => {
                screen::run(&client).await
            }
            ChangesCommand::Watch { since, .. } => watch::run(&client, *since, json, out).await,
        }
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List {
    changes: Vec<Box<serde_json::value::RawValue>>,
    next_cursor: Option<String>,
    #[serde(default)]
    counts: serde_json::Map<String, Value>,
}

/// The most that one request asks for.
const PAGE: usize = 100;

async fn list(
    client: &Client,
    status: &[String],
    narrow: &NarrowArgs,
    limit: usize,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let states = match status {
        [] => Some("pending,stale,outcome_unknown".to_owned()),
        all if all.iter().any(|s| s == "all") => None,
        some => Some(some.join(",")),
    };
    let (since, until) = (when("--since", narrow.since.as_deref())?, when("--until", narrow.until.as_deref())?);
    let named = [
        ("status", states.as_deref()),
        ("principal", narrow.principal.as_deref()),
        ("tool", narrow.tool.as_deref()),
        ("server", narrow.server.as_deref()),
        ("q", narrow.search.as_deref()),
        ("since", since.as_deref()),
        ("until", until.as_deref()),
    ];
    let mut whole = List { changes: Vec::new(), next_cursor: None, counts: serde_json::Map::new() };
    loop {
        let wanted = (limit - whole.changes.len()).min(PAGE).to_string();
        let mut query = vec![("limit", wanted.as_str())];
        query.extend(named.iter().filter_map(|(name, value)| value.map(|value| (*name, value))));
        query.extend(whole.next_cursor.as_deref().map(|c| ("cursor", c)));
        let page: List = client.get(&["changes"], &query).await?.read()?;
        let empty = page.changes.is_empty();
        whole.changes.extend(page.changes);
        (whole.next_cursor, whole.counts) = (page.next_cursor, page.counts);
        if whole.changes.len() >= limit || whole.next_cursor.is_none() || empty {
            break;
        }
    }
    whole.changes.truncate(limit);
    if json {
        let page = json!({ "changes": whole.changes, "nextCursor": whole.next_cursor, "counts": whole.counts });
        out.json(&page.to_string())?;
        return Ok(Exit::Ok);
    }
    let changes: Vec<Change> = whole
        .changes
        .iter()
        .map(|raw| serde_json::from_str(raw.get()).map_err(client::not_ours))
        .collect::<Result<_, _>>()?;
    if changes.is_empty() {
        let all = status.is_empty() && named.iter().skip(1).all(|(_, value)| value.is_none());
        remark(if all { "Nothing waits for a decision." } else { "No such changes." });
    } else {
        render::table(&changes, Timestamp::now(), out)?;
        if whole.next_cursor.is_some() {
            remark("There are more; --limit shows them.");
        }
    }
    Ok(Exit::Ok)
}

/// A time as REST wants it, from one that was written or from how long ago it was.
fn when(option: &str, text: Option<&str>) -> Result<Option<String>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let ago = || -> Option<Timestamp> {
        let span: jiff::SignedDuration = text.parse().ok()?;
        // A day has 24 hours here, whatever clocks do.
        Timestamp::now().checked_sub(span.abs()).ok()
    };
    let days = || -> Option<Timestamp> {
        let days: i64 = text.strip_suffix('d')?.trim().parse().ok()?;
        Timestamp::now().checked_sub(jiff::SignedDuration::from_hours(days.checked_mul(24)?.checked_abs()?)).ok()
    };
    match text.parse().ok().or_else(ago).or_else(days) {
        Some(time) => Ok(Some(time.to_string())),
        None => {
            let message = format!(
                "{option} {}: write a time, like 2026-07-28T12:00:00Z, or how long ago, like 2h or 3d",
                one_line(text)
            );
            Err(Failure::new(Exit::Usage, message))
        }
    }
}

/// `undo` and `refresh`: of the change as it is now.
async fn again(client: &Client, door: &str, id: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let change: Change = client.get(&["changes", id], &[]).await?.read()?;
    let body = json!({ "version": change.version });
    let answer = client.post(&["changes", &change.id, door], &body).await.map_err(|r| stale(r, &change.id))?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let after: Change = answer.read()?;
    if door == "undo" {
        out.line(&format!("Taken back; the change is {} again.", render::state_name(after.state)))?;
        return Ok(Exit::Ok);
    }
    render::change(&after, Timestamp::now(), out)?;
    out.line("")?;
    let text = match after.state {
        _ if after.version == change.version => "Nothing has moved.",
        ChangeState::Stale => "It cannot be done as it was shown; the reason stands above.",
        _ => "The target has moved; what would be done now is shown above.",
    };
    out.line(text)?;
    Ok(Exit::Ok)
}

async fn show(client: &Client, id: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["changes", id], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        render::change(&answer.read()?, Timestamp::now(), out)?;
    }
    Ok(Exit::Ok)
}

async fn decision(
    client: &Client,
    verdict: Verdict,
    args: &DecideArgs,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let change: Change = client.get(&["changes", &args.id], &[]).await?.read()?;
    if let Some(version) = args.version.filter(|version| *version != change.version) {
        let message =
            format!("the change is at version {} and not {version}; {}", change.version, look_again(&change.id));
        return Err(Failure::new(Exit::Conflict, message));
    }
    let word = if verdict == Verdict::Approve { "approve" } else { "reject" };
    let open = match verdict {
        Verdict::Approve => change.state == ChangeState::Pending,
        Verdict::Reject => matches!(change.state, ChangeState::Pending | ChangeState::Stale),
    };
    if !open {
        let state = render::state_name(change.state);
        return Err(Failure::new(Exit::Conflict, format!("the change is {state}: there is nothing to {word}")));
    }
    if !json {
        // The decision carries the digest of what is shown here.
        render::change(&change, Timestamp::now(), out)?;
        quorum(&change, out)?;
        out.finish()?;
    }
    if !json && !args.yes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !ask(word, &change)? {
        remark("Nothing was decided.");
        return Ok(Exit::Failed);
    }
    let body = json!({
        "decision": word,
        "comment": args.comment,
        "version": change.version,
        "digest": change.digest,
    });
    let answer = client.post(&["changes", &change.id, "decision"], &body).await.map_err(|r| stale(r, &change.id))?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let after: Change = answer.read()?;
    out.line("")?;
    let (style, text) = match (verdict, after.state) {
        (Verdict::Reject, _) => (Style::Red, "Rejected.".to_owned()),
        (Verdict::Approve, ChangeState::Pending) => {
            let given = after.decisions.iter().filter(|d| d.verdict == Verdict::Approve).count();
            (Style::Yellow, format!("Approved; that is {given} of {} approvals that it needs.", after.terms.quorum))
        }
        (Verdict::Approve, state) => {
            let text = match after.run_after {
                Some(at) => {
                    let undo = format!("countersign changes undo {}", one_line(&after.id));
                    format!("Approved; it runs at {at}. Until then `{undo}` takes it back.")
                }
                None => format!("Approved; the change is {} now.", render::state_name(state)),
            };
            (Style::Green, text)
        }
    };
    out.styled(style, &text)?;
    out.line("")?;
    Ok(Exit::Ok)
}

/// How far the approvals are that a rule asks for, and whom it asks.
fn quorum(change: &Change, out: &mut Output) -> Result<(), Failure> {
    let terms = &change.terms;
    if terms.quorum <= 1 && terms.reviewers.is_empty() {
        return Ok(());
    }
    let of = if terms.reviewers.is_empty() { String::new() } else { format!(" of {}", terms.reviewers.join(", ")) };
    let line = format!("It has {} of the {} approvals{of} that it needs.", change.approvals(), terms.quorum.max(1));
    out.line("")?;
    out.styled(Style::Yellow, &one_line(&line))?;
    Ok(out.line("")?)
}

async fn settle(
    client: &Client,
    id: &str,
    outcome: Settled,
    comment: Option<&str>,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let change: Change = client.get(&["changes", id], &[]).await?.read()?;
    let outcome = if outcome == Settled::Applied { "applied" } else { "failed" };
    let body = json!({ "outcome": outcome, "comment": comment, "version": change.version });
    let answer = client.post(&["changes", &change.id, "settle"], &body).await.map_err(|r| stale(r, &change.id))?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        out.line(&format!("Settled as {outcome}."))?;
    }
    Ok(Exit::Ok)
}

/// Asks on the terminal; anything but yes is no.
fn ask(word: &str, change: &Change) -> Result<bool, Failure> {
    let mut stderr = std::io::stderr().lock();
    if change.diff.truncated {
        let _ = writeln!(stderr, "\nNot all of this change is shown above: the diff was cut because of its size.");
    }
    let _ = write!(stderr, "\n{} version {} of this change? [y/N] ", capital(word), change.version);
    let _ = stderr.flush();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("your answer cannot be read: {error}; use --yes to decide without being asked"),
        )
    })?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn look_again(id: &str) -> String {
    format!("look at it again with `countersign changes show {}`", one_line(id))
}

/// What to do about a conflict.
fn stale(refusal: Refusal, id: &str) -> Failure {
    let mut failure = Failure::from(refusal);
    if failure.exit == Exit::Conflict {
        failure.message = format!("{}; {}", failure.message.trim_end_matches('.'), look_again(id));
    }
    failure
}
