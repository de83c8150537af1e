//! `changes list|show|approve|reject|edit|undo|refresh|settle|watch`: a gateway's changes, for people and scripts.

mod arguments;
mod decide;
mod edit;
mod feed;
mod render;
mod screen;
mod watch;

use std::rc::Rc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    args::{ChangesArgs, ChangesCommand, FilterArgs, SettledOutcome},
    client::{self, Client, Refusal},
    exit::{Exit, Failure},
    moment::Since,
    output::{Output, one_line, remark},
};
use countersign_domain::changes::{Change, ChangeState, Verdict};

pub fn run(args: &ChangesArgs, out: &mut Output) -> Result<Exit, Failure> {
    let target = client::target(&args.connect)?;
    actix_web::rt::System::new().block_on(async {
        let client = Rc::new(Client::new(target)?);
        let json = args.connect.json;
        match &args.command {
            ChangesCommand::List { status, narrow, limit } => list(&client, status, narrow, *limit, json, out).await,
            ChangesCommand::Show { id } => show(&client, id, json, out).await,
            ChangesCommand::Approve(args) => {
                decide::run(&client, Verdict::Approve, &args.decide, args.without_preview, json, out).await
            }
            ChangesCommand::Reject(args) => decide::run(&client, Verdict::Reject, args, false, json, out).await,
            ChangesCommand::Rule(rule) => super::rules::create(&client, rule, json, out).await,
            ChangesCommand::Edit(args) => edit::run(&client, args, json, out).await,
            ChangesCommand::Undo { id } => post_action(&client, "undo", id, json, out).await,
            ChangesCommand::Refresh { id } => post_action(&client, "refresh", id, json, out).await,
            ChangesCommand::Settle { id, outcome, comment } => {
                settle(&client, id, *outcome, comment.as_deref(), json, out).await
            }
            // An inbox on a terminal; otherwise, or from a given event on, one line per event.
            ChangesCommand::Watch { since: None, after: None, plain: false } if !json && screen::is_possible() => {
                screen::run(&client).await
            }
            ChangesCommand::Watch { since, after, .. } => {
                watch::run(&client, after.map(Since::Event).or(*since), json, out).await
            }
        }
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangePage {
    changes: Vec<Box<serde_json::value::RawValue>>,
    next_cursor: Option<String>,
    #[serde(default)]
    counts: serde_json::Map<String, Value>,
}

/// The maximum number of changes in one request.
const PAGE_SIZE: usize = 100;

async fn list(
    client: &Client,
    status: &[String],
    narrow: &FilterArgs,
    limit: usize,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let states = match status {
        [] => Some("pending,stale,outcome_unknown".to_owned()),
        all if all.iter().any(|s| s == "all") => None,
        some => Some(some.join(",")),
    };
    let (since, until) = (narrow.since.map(|at| at.to_string()), narrow.until.map(|at| at.to_string()));
    let filters = [
        ("status", states.as_deref()),
        ("principal", narrow.principal.as_deref()),
        ("tool", narrow.tool.as_deref()),
        ("server", narrow.server.as_deref()),
        ("q", narrow.search.as_deref()),
        ("since", since.as_deref()),
        ("until", until.as_deref()),
    ];
    let mut whole = ChangePage { changes: Vec::new(), next_cursor: None, counts: serde_json::Map::new() };
    loop {
        let wanted = (limit - whole.changes.len()).min(PAGE_SIZE).to_string();
        let mut query = vec![("limit", wanted.as_str())];
        query.extend(filters.iter().filter_map(|(name, value)| value.map(|value| (*name, value))));
        query.extend(whole.next_cursor.as_deref().map(|c| ("cursor", c)));
        let page: ChangePage = client.get(&["changes"], &query).await?.read()?;
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
        .map(|raw| serde_json::from_str(raw.get()).map_err(client::unexpected_response))
        .collect::<Result<_, _>>()?;
    if changes.is_empty() {
        let all = status.is_empty() && filters.iter().skip(1).all(|(_, value)| value.is_none());
        remark(if all { "You're all caught up: nothing waits for a decision." } else { "No such changes." });
    } else {
        render::print_table(&changes, Timestamp::now(), out)?;
        if whole.next_cursor.is_some() {
            remark("There are more; --limit shows them.");
        }
    }
    Ok(Exit::Ok)
}

/// Posts `undo` or `refresh` for the current version of the change.
async fn post_action(client: &Client, endpoint: &str, id: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let change: Change = client.get(&["changes", id], &[]).await?.read()?;
    let body = json!({ "version": change.version });
    let answer =
        client.post(&["changes", &change.id, endpoint], &body).await.map_err(|r| conflict_failure(r, &change.id))?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let after: Change = answer.read()?;
    if endpoint == "undo" {
        out.line(&format!("Taken back; the change is {} again.", render::state_name(after.state)))?;
        return Ok(Exit::Ok);
    }
    render::print_change(&after, Timestamp::now(), out)?;
    out.line("")?;
    let text = match after.state {
        _ if after.version == change.version => "Nothing has changed.",
        ChangeState::Stale => "It cannot be done as it was shown; the reason is above.",
        _ => "The target has changed; what would be done now is shown above.",
    };
    out.line(text)?;
    Ok(Exit::Ok)
}

async fn show(client: &Client, id: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["changes", id], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        render::print_change(&answer.read()?, Timestamp::now(), out)?;
    }
    Ok(Exit::Ok)
}

async fn settle(
    client: &Client,
    id: &str,
    outcome: SettledOutcome,
    comment: Option<&str>,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let change: Change = client.get(&["changes", id], &[]).await?.read()?;
    let outcome = if outcome == SettledOutcome::Applied { "applied" } else { "failed" };
    let body = json!({ "outcome": outcome, "comment": comment, "version": change.version });
    let answer =
        client.post(&["changes", &change.id, "settle"], &body).await.map_err(|r| conflict_failure(r, &change.id))?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        out.line(&format!("Settled as {outcome}."))?;
    }
    Ok(Exit::Ok)
}

fn show_hint(id: &str) -> String {
    format!("look at it again with `countersign changes show {}`", one_line(id))
}

/// Explains what to do about a conflict.
fn conflict_failure(refusal: Refusal, id: &str) -> Failure {
    let mut failure = Failure::from(refusal);
    if failure.exit == Exit::Conflict {
        failure.message = format!("{}; {}", failure.message.trim_end_matches('.'), show_hint(id));
    }
    failure
}
