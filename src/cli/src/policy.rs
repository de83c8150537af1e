//! `policy rules` lists the rules in force with the number of their decisions. `policy test` asks for the verdict on a call. If no
//! gateway runs, the answer comes from the configuration and the store, and names the facts that could not be known.

use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    args::{
        ConnectArgs, GatewayCommands,
        policy::{PolicyCommand, PolicyTestArgs},
    },
    client::{self, Client},
    configuration, data_dir,
    exit::{Exit, Failure},
    offline,
    output::{Output, Style, print_note, verdict_style},
    read_input,
};
use countersign_config::{Config, units::show_duration};
use countersign_domain::{
    changes::{Editing, OnExpiry, OnReview, Terms},
    policy::StandingRule,
};
use countersign_rest::policy::{PolicyTestRequest, TestedPrincipal};

pub fn run(args: &GatewayCommands<PolicyCommand>, out: &mut Output) -> Result<Exit, Failure> {
    let test = match &args.command {
        PolicyCommand::Test(test) => test,
        PolicyCommand::Rules => return client::run(&args.connect, async |client| list_rules(&client, out).await),
    };
    let request = test_request(test)?;
    let answer = match offline_config(&args.connect)? {
        None => {
            let body = serde_json::to_string(&request).map_err(|error| Failure::new(Exit::Usage, error))?;
            client::run(&args.connect, async |client| client.post_text(&["policy", "test"], body).await?.json_line())?
        }
        Some(config) => {
            print_note(&format!(
                "No gateway runs on {}: this answer comes from the configuration and the store.",
                config.data.display()
            ));
            offline::test_policy(&config, request)?
        }
    };
    if args.connect.json {
        out.write_json(&answer)?;
    } else {
        let decision = serde_json::from_str(&answer);
        print_decision(&decision.map_err(|error| Failure::new(Exit::Internal, error))?, out)?;
    }
    Ok(Exit::Ok)
}

/// The policy in force, as `GET /api/policy` describes it.
#[derive(Deserialize)]
struct PolicyInForce {
    mode: String,
    default: String,
    decided: DecisionCounts,
    rules: Vec<PolicyRule>,
}

#[derive(Deserialize)]
struct PolicyRule {
    label: String,
    then: String,
    settings: Vec<RuleSetting>,
    decided: DecisionCounts,
}

#[derive(Deserialize)]
struct RuleSetting {
    key: String,
    value: String,
}

#[derive(Clone, Copy, Deserialize)]
struct DecisionCounts {
    allowed: u64,
    reviewed: u64,
    denied: u64,
}

impl DecisionCounts {
    /// Describes the numbers that are not zero.
    fn describe(self) -> String {
        let numbers = [(self.allowed, "allowed"), (self.reviewed, "reviewed"), (self.denied, "denied")];
        let parts: Vec<String> =
            numbers.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
        if parts.is_empty() { "decided no call in 30 days".to_owned() } else { parts.join(", ") }
    }
}

async fn list_rules(client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["policy"], &[]).await?;
    client.print(&answer, out, |PolicyInForce { mode, default, decided, rules }, out| {
        if mode == "simulate" {
            out.write_styled_line(Style::Yellow, "policy.mode is simulate: every call goes through")?;
        }
        for (rule, number) in rules.iter().zip(1..) {
            out.write_line(&format!("{number:>3}  {:<6}  {}", rule.then, rule.label))?;
            for RuleSetting { key, value } in &rule.settings {
                out.write_line(&format!("       {key}: {value}"))?;
            }
            out.write_styled_line(Style::Dim, &format!("       {}", rule.decided.describe()))?;
        }
        out.write_line(&format!("     policy.default: {default}"))?;
        Ok(out.write_styled_line(Style::Dim, &format!("       {}", decided.describe()))?)
    })
}

/// Returns the configuration if no gateway is named and none runs on its data directory.
fn offline_config(connect: &ConnectArgs) -> Result<Option<Box<Config>>, Failure> {
    if client::explicit_url(connect)?.is_some() {
        return Ok(None);
    }
    let data = data_dir(&connect.data)?;
    // The file of a gateway that was killed remains, so its process is checked.
    let is_running = |pid: u32| {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
    };
    if client::local_gateway::read_file(&data)?.is_some_and(|gateway| is_running(gateway.pid)) {
        return Ok(None);
    }
    Ok(Some(Box::new(configuration(&connect.data.flags())?.config)))
}

/// Builds the request from the arguments.
fn test_request(test: &PolicyTestArgs) -> Result<PolicyTestRequest, Failure> {
    Ok(PolicyTestRequest {
        tool: test.tool.clone(),
        resource: test.resource.clone(),
        prompt: test.prompt.clone(),
        method: test.method.clone(),
        server: test.server.clone(),
        // Exactly as written, because a rule may depend on them. `null` stands for none.
        arguments: Some(read_arguments(test.arguments.as_deref())?).filter(|arguments| arguments.get() != "null"),
        principal: Some(TestedPrincipal { name: test.principal.clone(), role: test.role, owner: test.owner.clone() }),
        transport: test.transport.clone(),
        revision: test.revision.clone(),
        client: test.client.clone(),
    })
}

/// The maximum size in bytes of the arguments of a call that stdin contains.
const MAX_ARGUMENTS_BYTES: u64 = 2 << 20;

/// Returns the arguments of a call exactly as they are given, in JSON. `-` reads at most 2 MiB from stdin.
pub fn read_arguments(given: Option<&str>) -> Result<Box<RawValue>, Failure> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    let text = match given {
        None => "{}".to_owned(),
        Some("-") => {
            let text = read_input(Path::new("-"), MAX_ARGUMENTS_BYTES + 1)
                .map_err(|error| usage(format!("stdin cannot be read: {error}")))?;
            if text.len() as u64 > MAX_ARGUMENTS_BYTES {
                return Err(usage("stdin has more than 2 MiB".to_owned()));
            }
            text
        }
        Some(text) => text.to_owned(),
    };
    serde_json::from_str(text.trim())
        .map_err(|error| usage(format!("--arguments is not JSON: {error}; write '{{\"path\": \"a.txt\"}}'")))
}

/// The answer of `POST /api/policy/test`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyDecision {
    #[serde(alias = "resource", alias = "prompt", alias = "method")]
    tool: String,
    server: String,
    verdict: String,
    rule: Option<String>,
    standing_rule: Option<StandingRule>,
    reason: String,
    mark: Option<String>,
    terms: Option<Terms>,
    simulated: bool,
    listed: bool,
    /// Facts that could not be known without a gateway.
    #[serde(default)]
    unknown: Vec<String>,
}

fn print_decision(decision: &PolicyDecision, out: &mut Output) -> Result<(), Failure> {
    out.write_styled(verdict_style(&decision.verdict), &decision.verdict)?;
    out.write_line(&format!("  {} / {}", decision.server, decision.tool))?;
    let decider = match (&decision.standing_rule, &decision.rule) {
        (Some(rule), _) => format!("standing rule {}", rule.id),
        (None, Some(rule)) => rule.clone(),
        (None, None) if decision.mark.is_some() => "the tool's definition".to_owned(),
        (None, None) => "policy.default".to_owned(),
    };
    out.write_line(&format!("  decided by  {decider}"))?;
    out.write_line(&format!("  because     {}", decision.reason))?;
    if let Some(mark) = &decision.mark {
        out.write_line(&format!("  marked      {mark}"))?;
    }
    if let Some(terms) = &decision.terms {
        for line in describe_terms(terms) {
            out.write_line(&format!("  review      {line}"))?;
        }
    }
    if !decision.listed {
        out.write_line("  listed      no: every call of this principal is denied")?;
    }
    for line in &decision.unknown {
        out.write_styled_line(Style::Yellow, &format!("  not known   {line}"))?;
    }
    if decision.simulated {
        out.write_styled_line(Style::Yellow, "  policy.mode is simulate: the call would go through")?;
    }
    Ok(())
}

/// Describes the terms of a review, one line each.
fn describe_terms(terms: &Terms) -> Vec<String> {
    let time = |seconds: u64| show_duration(std::time::Duration::from_secs(seconds));
    let mut lines = Vec::new();
    let reviewers =
        if terms.reviewers.is_empty() { "anybody who may decide".to_owned() } else { terms.reviewers.join(", ") };
    let approvals = if terms.quorum == 1 { "approval" } else { "approvals" };
    lines.push(format!("{} {approvals} by {reviewers}", terms.quorum));
    if let Some(seconds) = terms.expire_after {
        lines.push(format!("expires after {}", time(seconds)));
    }
    let flags = [
        (terms.on_expiry == OnExpiry::Reject, "rejected when it expires".to_owned()),
        (terms.require_comment, "with a comment".to_owned()),
        (terms.preview_required, "with a preview".to_owned()),
        (terms.edit == Editing::Forbidden, "arguments may not be edited".to_owned()),
        (terms.edit == Editing::NeedsOtherApprover, "whoever edits the arguments may not approve them".to_owned()),
        (terms.on_review == OnReview::Hold, format!("the call is held for {}", time(terms.hold_for))),
        (terms.on_review == OnReview::Task, "only clients that support tasks may propose it".to_owned()),
        (terms.undo_for > 0, format!("may be undone for {}", time(terms.undo_for))),
        (terms.open_page, "the client is asked to open its page".to_owned()),
        (terms.own_agents, "people who signed in may approve what their own agents propose".to_owned()),
        (terms.questions, "questions of the running tool are passed on to the client".to_owned()),
    ];
    lines.extend(terms.sign_in.as_ref().map(|sign_in| format!("after {sign_in}")));
    lines.extend(terms.remind.map(|seconds| format!("announced again every {}, at most ten times", time(seconds))));
    let escalation = terms.escalate.as_ref().filter(|_| !terms.reviewers.is_empty());
    lines.extend(
        escalation.map(|escalation| format!("after {} also by {}", time(escalation.after), escalation.to.join(", "))),
    );
    lines.extend(flags.into_iter().filter(|(applies, _)| *applies).map(|(_, line)| line));
    lines
}
