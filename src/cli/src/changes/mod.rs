//! `changes list|show|approve|reject|edit|undo|refresh|settle|watch`: a gateway's changes, for people and scripts. `rules.rs`
//! has `changes rule`.

mod arguments;
mod decide;
mod edit;
mod editor;
mod feed;
mod forms;
pub mod render;
mod rows;
mod screen;
mod watch;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    args::{
        GatewayCommands,
        changes::{ChangesCommand, FilterArgs},
    },
    client::{self, Client, ResponseBody},
    exit::{Exit, Failure},
    moment::Since,
    output::{Output, one_line, print_note},
};
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict};

pub fn run(args: &GatewayCommands<ChangesCommand>, out: &mut Output) -> Result<Exit, Failure> {
    client::run(&args.connect, async |client| match &args.command {
        ChangesCommand::List { status, filters, limit } => list(&client, status, filters, *limit, out).await,
        ChangesCommand::Show { id } => {
            let answer = client.get(&["changes", id], &[]).await?;
            client.print_change(&answer, out, |change, out| render::print_change(&change, Timestamp::now(), out))
        }
        ChangesCommand::Approve(args) => {
            decide::run(&client, ReviewVerdict::Approve, &args.decide, args.without_preview, out).await
        }
        ChangesCommand::Reject(args) => decide::run(&client, ReviewVerdict::Reject, args, false, out).await,
        ChangesCommand::Rule(rule) => super::rules::create(&client, rule, out).await,
        ChangesCommand::Edit(args) => edit::run(&client, args, out).await,
        ChangesCommand::Undo { id } => {
            let (_, answer) = post_action(&client, id, "undo", json!({})).await?;
            client.print_change(&answer, out, |after, out| {
                Ok(out.write_line(&format!("Taken back; the change is {} again.", after.state.as_str()))?)
            })
        }
        ChangesCommand::Refresh { id } => refresh(&client, id, out).await,
        ChangesCommand::Settle { id, outcome, comment } => {
            let body = json!({ "outcome": outcome, "comment": comment });
            let (_, answer) = post_action(&client, id, "settle", body).await?;
            client.print_line(&answer, out, &format!("Settled as {outcome}."))
        }
        // A terminal shows the inbox. Otherwise, or with a start position, each event is printed on a line.
        ChangesCommand::Watch { since: None, after: None, plain: false } if !client.json && screen::is_possible() => {
            screen::run(client).await
        }
        ChangesCommand::Watch { since, after, .. } => {
            watch::run(&client, after.map(Since::Event).or(*since), out).await
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
    filters: &FilterArgs,
    limit: usize,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let states = match status {
        [] => Some("pending,stale,outcome_unknown".to_owned()),
        all if all.iter().any(|s| s == "all") => None,
        some => Some(some.join(",")),
    };
    let (since, until) = (filters.since.map(|at| at.to_string()), filters.until.map(|at| at.to_string()));
    let parameters = [
        ("status", states.as_deref()),
        ("principal", filters.principal.as_deref()),
        ("tool", filters.tool.as_deref()),
        ("server", filters.server.as_deref()),
        ("q", filters.search.as_deref()),
        ("since", since.as_deref()),
        ("until", until.as_deref()),
    ];
    let mut result = ChangePage { changes: Vec::new(), next_cursor: None, counts: serde_json::Map::new() };
    loop {
        let page_size = (limit - result.changes.len()).min(PAGE_SIZE).to_string();
        let mut query = vec![("limit", page_size.as_str())];
        query.extend(parameters.iter().filter_map(|(name, value)| value.map(|value| (*name, value))));
        query.extend(result.next_cursor.as_deref().map(|c| ("cursor", c)));
        let page: ChangePage = client.get(&["changes"], &query).await?.read()?;
        let is_empty = page.changes.is_empty();
        result.changes.extend(page.changes);
        (result.next_cursor, result.counts) = (page.next_cursor, page.counts);
        if result.changes.len() >= limit || result.next_cursor.is_none() || is_empty {
            break;
        }
    }
    result.changes.truncate(limit);
    if client.json {
        let page = json!({ "changes": result.changes, "nextCursor": result.next_cursor, "counts": result.counts });
        out.write_json(&page.to_string())?;
        return Ok(Exit::Ok);
    }
    let changes: Vec<Change> = result
        .changes
        .iter()
        .map(|raw| Change::from_json(raw.get()).map_err(client::unexpected_response))
        .collect::<Result<_, _>>()?;
    if changes.is_empty() {
        let is_inbox = status.is_empty() && parameters.iter().skip(1).all(|(_, value)| value.is_none());
        print_note(if is_inbox { "You're all caught up: nothing waits for a decision." } else { "No such changes." });
    } else {
        render::print_list(&changes, Timestamp::now(), out)?;
        if result.next_cursor.is_some() {
            print_note("There are more; --limit shows them.");
        }
    }
    Ok(Exit::Ok)
}

/// Posts an action on the current version of a change, and returns that version with the answer.
async fn post_action(
    client: &Client,
    id: &str,
    action: &str,
    mut body: Value,
) -> Result<(Change, ResponseBody), Failure> {
    let change = client.get_change(id).await?;
    body["version"] = change.version.into();
    let answer = client.post(&["changes", &change.id, action], &body).await;
    let answer = answer.map_err(|failure| with_conflict_hint(failure, &change.id))?;
    Ok((change, answer))
}

async fn refresh(client: &Client, id: &str, out: &mut Output) -> Result<Exit, Failure> {
    let (before, answer) = post_action(client, id, "refresh", json!({})).await?;
    client.print_change(&answer, out, |after, out| {
        render::print_change(&after, Timestamp::now(), out)?;
        out.write_line("")?;
        let text = match after.state {
            _ if after.version == before.version => "Nothing has changed.",
            ChangeState::Stale => "It cannot be done as it was shown; the reason is above.",
            _ => "What would be done now is shown above.",
        };
        Ok(out.write_line(text)?)
    })
}

/// Builds the body of a decision on a change as it was shown.
fn decision_body(change: &Change, verdict: ReviewVerdict, comment: Option<&str>) -> Value {
    json!({ "decision": verdict, "comment": comment, "version": change.version, "digest": change.digest })
}

/// Builds the body of an edit. The arguments stay raw text, so that numbers keep all their digits.
fn edit_body(arguments: &str, version: u64, comment: Option<&str>) -> String {
    format!(r#"{{"arguments":{arguments},"version":{version},"comment":{}}}"#, json!(comment))
}

/// Fails if the change is not at the version that the user named.
fn ensure_version(change: &Change, expected: Option<u64>) -> Result<(), Failure> {
    let Some(expected) = expected.filter(|version| *version != change.version) else { return Ok(()) };
    let message = format!("the change is at version {} and not {expected}; {}", change.version, show_hint(&change.id));
    Err(Failure::new(Exit::Conflict, message))
}

/// Returns the advice to look at the change again.
fn show_hint(id: &str) -> String {
    format!("look at it again with `countersign changes show {}`", one_line(id))
}

/// Adds advice to a failure if it is a conflict.
fn with_conflict_hint(mut failure: Failure, id: &str) -> Failure {
    if failure.exit == Exit::Conflict {
        failure.message = format!("{}; {}", failure.message.trim_end_matches('.'), show_hint(id));
    }
    failure
}
