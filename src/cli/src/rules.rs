//! `rules [list]|revoke` and `changes rule`: standing rules, over REST.

use serde_json::json;

use super::{
    args::{DefaultedGatewayCommands, changes::CreateRuleArgs, policy::RulesCommand},
    client::{self, Client},
    exit::{Exit, Failure},
    output::{Output, Style, format_tool, print_note},
};
use countersign_domain::policy::{StandingRule, StandingVerdict};
use countersign_rest::rules::Rules;

pub fn run(args: &DefaultedGatewayCommands<RulesCommand>, out: &mut Output) -> Result<Exit, Failure> {
    client::run(&args.connect, async |client| match &args.command {
        None => list(&client, false, out).await,
        Some(RulesCommand::List { all }) => list(&client, *all, out).await,
        Some(RulesCommand::Revoke { id, comment }) => {
            let answer = client.post(&["rules", id, "revoke"], &json!({ "comment": comment })).await?;
            client.print_line(&answer, out, "Revoked.")
        }
    })
}

async fn list(client: &Client, all: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["rules"], &[]).await?;
    client.print(&answer, out, |Rules { rules, .. }, out| {
        let listed: Vec<_> = rules.iter().filter(|rule| all || !rule.has_ended()).collect();
        if listed.is_empty() {
            print_note(if all { "There are no standing rules." } else { "No standing rule is in force." });
        }
        listed.into_iter().try_for_each(|rule| print_rule(rule, out))
    })
}

/// Prints a rule on three lines, and more if it has a comment or has lost its reviewer.
fn print_rule(rule: &StandingRule, out: &mut Output) -> Result<(), Failure> {
    out.write_styled(Style::Bold, &rule.id)?;
    let (style, word) = match rule.verdict {
        _ if rule.has_ended() => (Style::Dim, if rule.revoked_at.is_some() { "revoked" } else { "expired" }),
        StandingVerdict::Allow => (Style::Green, "allow"),
        StandingVerdict::Deny => (Style::Red, "deny"),
    };
    out.write_styled(style, &format!("  {word}"))?;
    let caller = rule.principal.as_deref().unwrap_or("anybody");
    out.write_line(&format!("  {}, by {caller}", format_tool(&rule.provider, &rule.tool)))?;
    let arguments = match (&rule.arguments_hash, &rule.arguments) {
        (None, _) if rule.matching.is_empty() => "any arguments".to_owned(),
        (None, _) => {
            let matching: Vec<String> = rule.matching.iter().map(ToString::to_string).collect();
            format!("arguments with {}", matching.join(" and "))
        }
        (Some(_), Some(arguments)) => format!("exactly {}", arguments.get()),
        (Some(hash), None) => format!("exactly the arguments {hash}"),
    };
    out.write_line(&format!("    {arguments}"))?;
    let end = match (&rule.revoked_at, &rule.expires_at) {
        (Some(at), _) => format!("revoked {at} by {}", rule.revoked_by.as_deref().unwrap_or("?")),
        (None, Some(at)) => format!("until {at}"),
        (None, None) => "until it is revoked".to_owned(),
    };
    let times = if rule.uses.get() == 1 { "once".to_owned() } else { format!("{} times", rule.uses.get()) };
    let (creator, subject) = (&rule.created_by, rule.from_change.as_deref().unwrap_or("the tool itself"));
    out.write_styled_line(Style::Dim, &format!("    {end}; given by {creator} on {subject}; used {times}"))?;
    if rule.orphaned_at.is_some() {
        let effect = match rule.verdict {
            StandingVerdict::Allow => "so it ended",
            StandingVerdict::Deny => "it denies until a reviewer revokes it",
        };
        let note = format!("    {creator}'s key was revoked or lost the right to decide; {effect}");
        out.write_styled_line(Style::Yellow, &note)?;
    }
    if let Some(comment) = &rule.comment {
        out.write_line(&format!("    {comment}"))?;
    }
    Ok(())
}

/// Creates a standing rule from a change (`changes rule`).
pub(super) async fn create(client: &Client, args: &CreateRuleArgs, out: &mut Output) -> Result<Exit, Failure> {
    let body = json!({
        "verdict": if args.allow_for.is_some() { "allow" } else { "deny" },
        "arguments": if args.any_arguments { "any" } else { "exact" },
        "principal": if args.any_principal { "any" } else { "same" },
        "for": args.allow_for.or(args.deny_for).map(|validity| validity.as_secs()),
        "comment": args.comment,
    });
    let answer = client.post(&["changes", &args.id, "rule"], &body).await?;
    client.print(&answer, out, |rule, out| print_rule(&rule, out))
}
