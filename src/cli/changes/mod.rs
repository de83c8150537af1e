//! `changes list|show|approve|reject|settle|watch`: the REST door and the feed of a gateway, for people and scripts.

pub(super) mod client;
mod feed;
mod render;
mod screen;
mod watch;

use std::{
    io::{BufRead, IsTerminal, Write},
    rc::Rc,
};

use serde::Deserialize;
use serde_json::{Value, json};

use self::client::{Client, Refusal};
use super::{
    args::{ChangesArgs, ChangesCommand, DecideArgs, Settled},
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
            ChangesCommand::List { status, principal, limit } => {
                list(&client, status, principal.as_deref(), *limit, json, out).await
            }
            ChangesCommand::Show { id } => show(&client, id, json, out).await,
            ChangesCommand::Approve(decide) => decision(&client, Verdict::Approve, decide, json, out).await,
            ChangesCommand::Reject(decide) => decision(&client, Verdict::Reject, decide, json, out).await,
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
    principal: Option<&str>,
    limit: usize,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let states = match status {
        [] => Some("pending,stale,outcome_unknown".to_owned()),
        all if all.iter().any(|s| s == "all") => None,
        some => Some(some.join(",")),
    };
    let mut whole = List { changes: Vec::new(), next_cursor: None, counts: serde_json::Map::new() };
    loop {
        let wanted = (limit - whole.changes.len()).min(PAGE).to_string();
        let mut query = vec![("limit", wanted.as_str())];
        query.extend(states.as_deref().map(|s| ("status", s)));
        query.extend(principal.map(|p| ("principal", p)));
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
        remark(if status.is_empty() { "Nothing waits for a decision." } else { "No such changes." });
    } else {
        render::table(&changes, jiff::Timestamp::now(), out)?;
        if whole.next_cursor.is_some() {
            remark("There are more; --limit shows them.");
        }
    }
    Ok(Exit::Ok)
}

async fn show(client: &Client, id: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["changes", id], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        render::change(&answer.read()?, jiff::Timestamp::now(), out)?;
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
        render::change(&change, jiff::Timestamp::now(), out)?;
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
            (Style::Green, format!("Approved; the change is {} now.", render::state_name(state)))
        }
    };
    out.styled(style, &text)?;
    out.line("")?;
    Ok(Exit::Ok)
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
