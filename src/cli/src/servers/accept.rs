//! `servers accept`, `servers allow` and `servers revoke`: a person's decisions on tool definitions, which are shown
//! first.

use std::time::Duration;

use serde::de::IgnoredAny;

use super::{
    NOT_CONNECTED_HINT, find_server,
    tools::{KnownReads, Tool, Tools, decision_request, is_pattern, print_definition, print_summary, select},
};
use crate::{
    args::servers::{AcceptArgs, AllowArgs},
    client::Client,
    exit::{Exit, Failure},
    output::{Output, Style, confirm, one_line, print_note, should_ask},
};
use countersign_domain::text::plural;

pub(super) async fn accept(client: &Client, args: &AcceptArgs, out: &mut Output) -> Result<Exit, Failure> {
    if args.known_reads {
        return accept_known_reads(client, args, out).await;
    }
    let selectors = [args.names.as_slice(), args.tools.as_slice()].concat();
    let bulk = if args.all_reads {
        Some("--all-reads")
    } else {
        selectors.iter().any(|name| is_pattern(name)).then_some("accepting what a pattern matches")
    };
    let asks = should_ask(client.json, args.yes, bulk)?;
    let Tools { tools, .. } = fetch_tools(client, &args.name, args.wait.limit()).await?;
    let selected_tools = if args.all_reads {
        tools.into_iter().filter(|tool| tool.needs_acceptance() && tool.claims_to_only_read()).collect()
    } else {
        select(tools, &selectors, |tool| !matches!(tool.definition_status.as_str(), "accepted" | "module"))?.tools
    };
    if selected_tools.is_empty() {
        print_note(if args.all_reads {
            "No tool of this server that says that it only reads needs to be accepted."
        } else {
            "All matching tools are already accepted."
        });
        return Ok(Exit::Ok);
    }
    if !client.json {
        print_definitions(&selected_tools, bulk.is_some().then_some(Tool::claimed_effect), out)?;
    }
    let phrase = count_phrase(selected_tools.len(), "definition");
    if asks && !confirm(&format!("Accept {phrase}?"), "accept", "Nothing was accepted.")? {
        return Ok(Exit::Failed);
    }
    let answer = client.post(&["servers", &args.name, "accept"], &decision_request(&selected_tools)).await?;
    client.print(&answer, out, |after: Tools, out| print_accepted(&args.name, &selected_tools, &after, out))
}

/// Accepts the tools that the program's list for the server knows to only read.
async fn accept_known_reads(client: &Client, args: &AcceptArgs, out: &mut Output) -> Result<Exit, Failure> {
    let asks = should_ask(client.json, args.yes, Some("--known-reads"))?;
    let Tools { tools, known_reads } = fetch_tools(client, &args.name, args.wait.limit()).await?;
    let Some(known_reads) = known_reads else {
        let server = find_server(client, &args.name).await?;
        let hint = server.and_then(|server| server.recipe_hint()).map_or(String::new(), |hint| format!(". {hint}"));
        let message = "there is no list of known reads for this server: its command or address identifies none";
        return Err(Failure::new(Exit::NotFound, format!("{message}{hint}")));
    };
    let uncovered: Vec<&Tool> = tools.iter().filter(|tool| tool.is_uncovered()).collect();
    if !uncovered.is_empty() {
        print_note(&uncovered_note(&uncovered, &known_reads));
    }
    let is_all_covered = uncovered.is_empty();
    let offered_tools: Vec<Tool> = tools.into_iter().filter(|tool| tool.offered).collect();
    if offered_tools.is_empty() {
        print_note(if is_all_covered {
            "All known reads of this server are accepted already."
        } else {
            "Nothing was accepted."
        });
        return Ok(if is_all_covered { Exit::Ok } else { Exit::Failed });
    }
    if !client.json {
        print_definitions(&offered_tools, Some(Tool::known_effect), out)?;
    }
    let phrase = count_phrase(offered_tools.len(), "definition");
    let question =
        format!("Accept {phrase} of {}, so that reads run without review?", one_line(&known_reads.recipe_set));
    if asks && !confirm(&question, "accept", "Nothing was accepted.")? {
        return Ok(Exit::Failed);
    }
    let answer = client.post(&["servers", &args.name, "accept-known-reads"], &decision_request(&offered_tools)).await?;
    client.print(&answer, out, |after: Tools, out| print_accepted(&args.name, &offered_tools, &after, out))
}

/// Returns the sentence about tools whose definitions are not on the list of known reads.
pub(super) fn uncovered_note(tools: &[&Tool], known: &KnownReads) -> String {
    let packages = known.packages.iter().map(|package| one_line(package)).collect::<Vec<_>>().join(", ");
    let names = name_list(
        tools,
        "is not covered, because its definition differs",
        "are not covered, because their definitions differ",
    );
    format!("{names} from the known ones ({packages}).")
}

/// Prints the tools that were accepted, and whether they run without review from now on.
fn print_accepted(server: &str, accepted_tools: &[Tool], after: &Tools, out: &mut Output) -> Result<(), Failure> {
    out.write_styled_line(Style::Green, &format!("Accepted {}.", plural(accepted_tools.len(), "definition")))?;
    let mut print = |tools: &[&Tool], (one, several), outcome: &str| match tools {
        [] => Ok(()),
        _ => out.write_line(&format!("{} {outcome}.", name_list(tools, one, several))),
    };
    let updated = |tool: &Tool| after.tools.iter().find(|updated| updated.name == tool.name);
    let updated_tools = accepted_tools.iter().filter_map(updated).filter(|tool| tool.verdict != "deny");
    let (unreviewed, reviewed): (Vec<&Tool>, Vec<&Tool>) = updated_tools.partition(|tool| tool.verdict == "allow");
    print(&unreviewed, ("now runs", "now run"), "without review")?;
    let (dry_runs, reviewed): (Vec<&Tool>, Vec<&Tool>) = reviewed.into_iter().partition(|tool| tool.is_known_dry_run());
    let outcome = "reviewed as before; the preview of a call is now the server's own dry run";
    print(&dry_runs, ("is", "are"), outcome)?;
    let (sql_tools, reviewed): (Vec<&Tool>, Vec<&Tool>) =
        reviewed.into_iter().partition(|tool| tool.accepted_sql_reads);
    let outcome = "without review if the SQL only reads, as far as parsing it tells; everything else is reviewed";
    print(&sql_tools, ("now runs", "now run"), outcome)?;
    let (reviewed_reads, reviewed): (Vec<&Tool>, Vec<&Tool>) =
        reviewed.into_iter().partition(|tool| tool.accepted_as_read || tool.claims_to_only_read());
    let outcome = format!("still reviewed: `countersign servers show {server}` says what decides on their calls");
    print(&reviewed_reads, ("is", "are"), &outcome)?;
    let outcome = "still reviewed: an accepted tool runs without review only if it declares itself read-only";
    print(&reviewed, ("is", "are"), outcome)?;
    if reviewed.iter().any(|tool| tool.has_unknown_effect()) {
        out.write_line(&allow_hint(server))?;
    }
    Ok(())
}

/// Lets tools run without review.
pub(super) async fn allow(client: &Client, args: &AllowArgs, out: &mut Output) -> Result<Exit, Failure> {
    let by_pattern = args.tools.iter().any(|name| is_pattern(name));
    let several = (by_pattern || args.tools.len() > 1).then_some("letting several tools run");
    let asks = should_ask(client.json, args.yes, several)?;
    let Tools { tools, .. } = fetch_tools(client, &args.name, args.wait.limit()).await?;
    let selection = select(tools, &args.tools, |tool| tool.may_let_run)?;
    let (already_allowed, refused): (Vec<&Tool>, Vec<&Tool>) =
        selection.left_out.iter().partition(|tool| tool.verdict == "allow");
    if !refused.is_empty() {
        let names = name_list(&refused, "is", "are");
        print_note(&format!("{names} not included: `countersign servers show` says what decides on their calls."));
    }
    let selected_tools = selection.tools;
    if selected_tools.is_empty() {
        if !already_allowed.is_empty() {
            print_note(&format!("{} without review already.", name_list(&already_allowed, "runs", "run")));
        }
        return Ok(if refused.is_empty() { Exit::Ok } else { Exit::Failed });
    }
    if !client.json {
        print_definitions(
            &selected_tools,
            (by_pattern || selected_tools.len() > 1).then_some(Tool::claimed_effect),
            out,
        )?;
    }
    let phrase = count_phrase(selected_tools.len(), "tool");
    let question = format!("Let {phrase} run without review, whoever calls?");
    if asks && !confirm(&question, "allow", "Nothing was allowed.")? {
        return Ok(Exit::Failed);
    }
    let mut body = decision_request(&selected_tools);
    body["reason"] = args.reason.as_str().into();
    let answer = client.post(&["servers", &args.name, "allow"], &body).await?;
    client.print(&answer, out, |_: IgnoredAny, out| {
        let run: Vec<&Tool> = selected_tools.iter().collect();
        let names = name_list(&run, "now runs", "now run");
        out.write_styled_line(Style::Green, &format!("{names} without review."))?;
        Ok(out.write_line(
            "Your own calls are still reviewed, and so are calls if the definition changes. `countersign rules` lists and revokes the rule.",
        )?)
    })
}

pub(super) async fn revoke(client: &Client, name: &str, tools: &[String], out: &mut Output) -> Result<Exit, Failure> {
    let all = fetch_tools(client, name, None).await?.tools;
    let selected_tools = select(all, tools, |tool| tool.definition_status == "accepted")?.tools;
    if selected_tools.is_empty() {
        print_note("None of the matching tools is accepted.");
        return Ok(Exit::Ok);
    }
    let answer = client.post(&["servers", name, "revoke"], &decision_request(&selected_tools)).await?;
    client.print_line(&answer, out, "Revoked.")
}

/// Fetches the tools of a server that is or was connected.
///
/// # Errors
/// Fails if it has never been connected, so that its tools are unknown.
async fn fetch_tools(client: &Client, name: &str, wait: Option<Duration>) -> Result<Tools, Failure> {
    if let Some(limit) = wait {
        super::wait_for_tools(client, name, limit).await?;
    }
    let tool_list: Tools = client.get(&["servers", name], &[]).await?.read()?;
    if tool_list.tools.is_empty()
        && let Some(server) = find_server(client, name).await?.filter(|server| !server.is_up())
    {
        return Err(Failure::new(
            Exit::Unavailable,
            format!("{}. {NOT_CONNECTED_HINT}", server.not_connected_message()),
        ));
    }
    Ok(tool_list)
}

/// Prints the definitions whose hashes the request carries, and a summary with the effects of the tools if `effect` is given.
fn print_definitions(
    tools: &[Tool],
    effect: Option<fn(&Tool) -> &'static str>,
    out: &mut Output,
) -> Result<(), Failure> {
    for tool in tools {
        print_definition(tool, out)?;
    }
    if let Some(effect) = effect {
        print_summary(tools, effect, out)?;
    }
    Ok(out.finish()?)
}

/// Returns a hint on how to let a tool run. It names no tool, because only a person knows the ones that only read.
pub(super) fn allow_hint(server: &str) -> String {
    let server = one_line(server);
    format!(
        "`countersign servers allow {server} TOOL --reason '…'` lets a tool run without review, if you know that it only reads."
    )
}

/// Points to one item or to several items, as in `this tool` or `these 3 tools`.
fn count_phrase(count: usize, noun: &str) -> String {
    if count == 1 { format!("this {noun}") } else { format!("these {count} {noun}s") }
}

/// Joins names of tools and adds the verb in singular or plural.
fn name_list(tools: &[&Tool], one: &str, several: &str) -> String {
    /// Maximum number of names that are listed. Further tools are only counted.
    const MAX_NAMES: usize = 5;
    let names: Vec<String> = tools.iter().take(MAX_NAMES).map(|tool| one_line(&tool.name).into_owned()).collect();
    let mut names = names.join(", ");
    if tools.len() > MAX_NAMES {
        names.push_str(&format!(" and {} more", tools.len() - MAX_NAMES));
    }
    format!("{names} {}", if tools.len() == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reviewed_tool(is_read: bool) -> Tool {
        let definition = json!({ "annotations": { "readOnlyHint": is_read } }).to_string();
        serde_json::from_value(json!({
            "name": "t", "description": "", "verdict": "review", "rules": [], "definitionStatus": "accepted",
            "claimsRead": false, "hash": "h", "definition": definition,
        }))
        .unwrap()
    }

    #[test]
    fn reason_for_further_review_depends_on_the_claim() {
        for (is_read, expected) in [
            (true, "t is still reviewed: `countersign servers show s` says what decides on their calls.\n"),
            (
                false,
                "t is still reviewed: an accepted tool runs without review only if it declares itself read-only.\n",
            ),
        ] {
            let (mut out, tool) = (Output::memory(false), reviewed_tool(is_read));
            let after = Tools { tools: vec![reviewed_tool(is_read)], known_reads: None };
            print_accepted("s", &[tool], &after, &mut out).unwrap();
            assert!(out.contents().contains(expected), "{}", out.contents());
        }
    }

    #[test]
    fn long_list_of_tools_ends_with_their_number() {
        let tools: Vec<Tool> = (0..7).map(|_| reviewed_tool(true)).collect();
        let tools: Vec<&Tool> = tools.iter().collect();
        assert_eq!(name_list(&tools, "runs", "run"), "t, t, t, t, t and 2 more run");
    }
}
