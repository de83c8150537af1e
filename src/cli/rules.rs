//! `rules [list]|revoke`, `changes rule` and `policy test`: standing rules and what the policy says of a call, through a
//! gateway's REST door.

use std::io::Read;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{
    args::{GiveRuleArgs, PolicyArgs, PolicyCommand, PolicyTestArgs, RulesArgs, RulesCommand},
    changes::client::{self, Client},
    exit::{Exit, Failure},
    output::{Output, Style, one_line, remark},
};
use crate::{
    auth::Role,
    config::units::{parse_duration, show_duration},
    policy::{Says, StandingRule},
};

pub fn run(args: &RulesArgs, out: &mut Output) -> Result<Exit, Failure> {
    let target = client::target(&args.connect)?;
    actix_web::rt::System::new().block_on(async {
        let client = Client::new(target)?;
        let json = args.connect.json;
        match &args.command {
            None => list(&client, false, json, out).await,
            Some(RulesCommand::List { all }) => list(&client, *all, json, out).await,
            Some(RulesCommand::Revoke { id, comment }) => revoke(&client, id, comment.as_deref(), json, out).await,
        }
    })
}

#[derive(Deserialize)]
struct Rules {
    rules: Vec<StandingRule>,
}

async fn list(client: &Client, all: bool, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["rules"], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let Rules { rules } = answer.read()?;
    let mut shown = 0;
    for rule in rules.iter().filter(|rule| all || !rule.is_over()) {
        shown += 1;
        one(rule, out)?;
    }
    if shown == 0 {
        remark(if all { "There are no standing rules." } else { "No standing rule is in force." });
    }
    Ok(Exit::Ok)
}

/// Two or three lines about a rule.
fn one(rule: &StandingRule, out: &mut Output) -> Result<(), Failure> {
    out.styled(Style::Bold, &one_line(&rule.id))?;
    let (style, word) = match rule.verdict {
        _ if rule.is_over() => (Style::Dim, if rule.revoked_at.is_some() { "revoked" } else { "expired" }),
        Says::Allow => (Style::Green, "allow"),
        Says::Deny => (Style::Red, "deny"),
    };
    out.styled(style, &format!("  {word}"))?;
    let whose = rule.principal.as_deref().map_or("by anybody".to_owned(), |name| format!("by {}", one_line(name)));
    out.line(&format!("  {} of {}, {whose}", one_line(&rule.tool), one_line(&rule.provider)))?;
    let arguments = match (&rule.arguments_hash, &rule.arguments) {
        (None, _) => "any arguments".to_owned(),
        (Some(_), Some(arguments)) => format!("exactly {}", one_line(arguments.get())),
        (Some(hash), None) => format!("exactly the arguments {}", one_line(hash)),
    };
    out.line(&format!("    {arguments}"))?;
    let end = match (&rule.revoked_at, &rule.expires_at) {
        (Some(at), _) => format!("revoked {at} by {}", one_line(rule.revoked_by.as_deref().unwrap_or("?"))),
        (None, Some(at)) => format!("until {at}"),
        (None, None) => "until it is revoked".to_owned(),
    };
    let times = if rule.uses.get() == 1 { "once".to_owned() } else { format!("{} times", rule.uses.get()) };
    let by = format!("    {end}; given by {} on {}", one_line(&rule.created_by), one_line(&rule.from_change));
    out.styled(Style::Dim, &format!("{by}; used {times}"))?;
    out.line("")?;
    if let Some(comment) = &rule.comment {
        out.line(&format!("    {}", one_line(comment)))?;
    }
    Ok(())
}

async fn revoke(
    client: &Client,
    id: &str,
    comment: Option<&str>,
    json: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let answer = client.post(&["rules", id, "revoke"], &json!({ "comment": comment })).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        out.line("Revoked.")?;
    }
    Ok(Exit::Ok)
}

/// `changes rule`
pub(super) async fn give(client: &Client, args: &GiveRuleArgs, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let lasts = args.allow_for.as_ref().or(args.deny_for.as_ref()).map(|text| {
        let wrong = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", one_line(text)));
        parse_duration(text).map(|duration| duration.as_secs()).map_err(wrong)
    });
    let body = json!({
        "verdict": if args.allow_for.is_some() { "allow" } else { "deny" },
        "arguments": if args.any_arguments { "any" } else { "exact" },
        "principal": if args.any_principal { "any" } else { "same" },
        "for": lasts.transpose()?,
        "comment": args.comment,
    });
    let answer = client.post(&["changes", &args.id, "rule"], &body).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        one(&answer.read()?, out)?;
    }
    Ok(Exit::Ok)
}

pub fn policy(args: &PolicyArgs, out: &mut Output) -> Result<Exit, Failure> {
    let PolicyCommand::Test(test) = &args.command;
    let body = call(test)?;
    let target = client::target(&args.connect)?;
    actix_web::rt::System::new().block_on(async {
        let client = Client::new(target)?;
        let answer = client.post_text(&["policy", "test"], body).await?;
        if args.connect.json {
            out.json(&answer.json_line()?)?;
        } else {
            tested(&answer.read()?, out)?;
        }
        Ok(Exit::Ok)
    })
}

/// The call that is asked about.
fn call(test: &PolicyTestArgs) -> Result<String, Failure> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    let text = match test.arguments.as_deref() {
        None => "{}".to_owned(),
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(2 << 20).read_to_string(&mut text);
            read.map_err(|error| usage(format!("stdin cannot be read: {error}")))?;
            text
        }
        Some(text) => text.to_owned(),
    };
    let raw: &RawValue = serde_json::from_str(text.trim())
        .map_err(|error| usage(format!("--arguments is not JSON: {error}; write '{{\"path\": \"a.txt\"}}'")))?;
    let call = Call {
        tool: &test.tool,
        // As they were written: a rule may speak of exactly these.
        arguments: raw,
        principal: json!({ "name": test.principal, "role": Role::from(test.role), "owner": test.owner }),
        transport: test.transport.as_deref(),
        revision: test.revision.as_deref(),
        client: test.client.as_deref(),
    };
    serde_json::to_string(&call).map_err(|error| usage(error.to_string()))
}

#[derive(Serialize)]
struct Call<'a> {
    tool: &'a str,
    arguments: &'a RawValue,
    principal: Value,
    transport: Option<&'a str>,
    revision: Option<&'a str>,
    client: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tested {
    tool: String,
    server: String,
    verdict: String,
    rule: Option<String>,
    standing_rule: Option<StandingRule>,
    reason: String,
    mark: Option<String>,
    terms: Option<crate::changes::Terms>,
    simulated: bool,
    listed: bool,
}

fn tested(tested: &Tested, out: &mut Output) -> Result<(), Failure> {
    let style = match tested.verdict.as_str() {
        "allow" => Style::Green,
        "deny" => Style::Red,
        _ => Style::Yellow,
    };
    out.styled(style, &one_line(&tested.verdict))?;
    out.line(&format!("  {} of {}", one_line(&tested.tool), one_line(&tested.server)))?;
    let decided = match (&tested.standing_rule, &tested.rule) {
        (Some(rule), _) => format!("standing rule {}", rule.id),
        (None, Some(rule)) => rule.clone(),
        (None, None) if tested.mark.is_some() => "the tool's definition".to_owned(),
        (None, None) => "policy.default".to_owned(),
    };
    out.line(&format!("  decided by  {}", one_line(&decided)))?;
    out.line(&format!("  because     {}", one_line(&tested.reason)))?;
    if let Some(mark) = &tested.mark {
        out.line(&format!("  marked      {}", one_line(mark)))?;
    }
    if let Some(terms) = &tested.terms {
        for line in asked(terms) {
            out.line(&format!("  review      {}", one_line(&line)))?;
        }
    }
    if !tested.listed {
        out.line("  listed      no: every call of this principal is denied")?;
    }
    if tested.simulated {
        out.styled(Style::Yellow, "  policy.mode is simulate: the call would go through")?;
        out.line("")?;
    }
    Ok(())
}

/// What a review asks for, a line each.
fn asked(terms: &crate::changes::Terms) -> Vec<String> {
    use crate::changes::terms::{OnExpiry, OnReview};
    let time = |seconds: u64| show_duration(std::time::Duration::from_secs(seconds));
    let mut lines = Vec::new();
    let who = if terms.reviewers.is_empty() { "anybody who may decide".to_owned() } else { terms.reviewers.join(", ") };
    let approvals = if terms.quorum == 1 { "approval" } else { "approvals" };
    lines.push(format!("{} {approvals} by {who}", terms.quorum));
    if let Some(seconds) = terms.expire_after {
        lines.push(format!("expires after {}", time(seconds)));
    }
    let flags = [
        (terms.on_expiry == OnExpiry::Reject, "rejected when it expires".to_owned()),
        (terms.require_comment, "with a comment".to_owned()),
        (terms.preview_required, "with a preview of what is there now".to_owned()),
        (!terms.edit, "arguments may not be edited".to_owned()),
        (terms.on_review == OnReview::Hold, format!("the call is held for {}", time(terms.hold_for))),
        (terms.on_review == OnReview::Task, "only clients that take tasks may propose it".to_owned()),
        (terms.undo_for > 0, format!("may be undone for {}", time(terms.undo_for))),
        (terms.open_page, "the client is asked to open its page".to_owned()),
        (terms.questions, "the client is asked what the tool asks while it runs".to_owned()),
    ];
    lines.extend(flags.into_iter().filter(|(is, _)| *is).map(|(_, line)| line));
    lines
}
