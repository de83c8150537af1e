//! `servers [list]|show|accept|revoke|allow`: servers, the definitions of their tools, and tools that run without
//! review, over REST.

mod accept;
mod tools;

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

use self::tools::{Tool, Tools};
use super::{
    args::servers::{ServersArgs, ServersCommand},
    client::{self, Client},
    exit::{Exit, Failure},
    output::{Output, Style, cell, one_line, print_note, print_table, verdict_style},
};

/// The pause between two checks of whether a server is connected.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time between the connection to a server and the offer of its tools.
const MAX_PUBLISH_DELAY: Duration = Duration::from_secs(2);

pub fn run(args: &ServersArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(&args.connect, async |client| match &args.command {
        None | Some(ServersCommand::List) => {
            let answer = client.get(&["servers"], &[]).await?;
            client.print(&answer, out, print_servers)
        }
        Some(ServersCommand::Show { name, wait }) => show(&client, name, wait.limit(), out).await,
        Some(ServersCommand::Accept(args)) => accept::accept(&client, args, out).await,
        Some(ServersCommand::Allow(args)) => accept::allow(&client, args, out).await,
        Some(ServersCommand::Revoke { name, tools }) => accept::revoke(&client, name, tools, out).await,
    })
}

#[derive(Deserialize)]
struct ServerList {
    servers: Vec<Provider>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Provider {
    name: String,
    kind: String,
    status: String,
    tools: usize,
    #[serde(default)]
    review: PendingReview,
    transport: Option<String>,
    /// The server's command with its arguments, or its address, without secrets.
    #[serde(default)]
    target: String,
    era: Option<String>,
    breaker: Option<String>,
    last_error: Option<String>,
    stderr_error: Option<String>,
    last_stderr: Option<String>,
    since: Option<Timestamp>,
    #[serde(default)]
    restarts: u64,
    #[serde(default)]
    left_out: Vec<String>,
    /// A module's description of what it holds.
    #[serde(default)]
    details: Vec<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

impl Provider {
    fn is_up(&self) -> bool {
        self.status == "up"
    }

    /// Returns the reason why the server is not connected, for a person who needs its tools.
    fn absence_message(&self) -> String {
        let name = one_line(&self.name);
        let mut text = match self.status.as_str() {
            "connecting" => format!("{name} is not connected yet"),
            _ => format!("{name} is not connected"),
        };
        for problem in self.problems() {
            text.push_str(&format!("; {problem}"));
        }
        text
    }

    /// Returns the reasons why the server is not up, including the last lines of its stderr.
    fn problems(&self) -> Vec<String> {
        if self.is_up() {
            return Vec::new();
        }
        let error = self.last_error.as_ref().map(|error| one_line(error).into_owned());
        let quote = |what: &str, line: &String| format!("{what}: {}", one_line(line));
        let why = self.stderr_error.as_ref().map(|line| quote("stderr", line));
        let last = self.last_stderr.as_ref().filter(|line| self.stderr_error.as_ref() != Some(line));
        let last = last.map(|line| quote(if why.is_some() { "last on stderr" } else { "stderr" }, line));
        error.into_iter().chain(why).chain(last).collect()
    }

    /// Returns `module`, or the transport and protocol era of an upstream.
    fn transport_label(&self) -> String {
        let parts: Vec<&str> = [self.transport.as_deref(), self.era.as_deref()].into_iter().flatten().collect();
        if parts.is_empty() { self.kind.clone() } else { parts.join(", ") }
    }

    fn status_label(&self, now: Timestamp) -> String {
        let since = self.since.filter(|_| self.status == "connecting").map(|since| now.duration_since(since));
        let status = match since {
            Some(time) => format!("{} for {} s", self.status, time.as_secs().max(0)),
            None => self.status.clone(),
        };
        match self.breaker.as_deref() {
            None | Some("closed") => status,
            Some(breaker) => format!("{status}, circuit {breaker}"),
        }
    }
}

#[derive(Default, Deserialize)]
struct PendingReview {
    new: usize,
    changed: usize,
    reads: usize,
}

impl PendingReview {
    fn summary(&self) -> String {
        let parts = [(self.reads, "claimed reads"), (self.changed, "changed"), (self.new, "new")];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        parts.join(", ")
    }
}

fn print_servers(ServerList { servers }: ServerList, out: &mut Output) -> Result<(), Failure> {
    let now = Timestamp::now();
    let row = |server: &Provider| {
        let style = if server.is_up() { Style::Green } else { Style::Red };
        let restarts = if server.restarts > 0 { server.restarts.to_string() } else { String::new() };
        [
            cell(Style::Plain, &server.name),
            cell(Style::Plain, &server.transport_label()),
            cell(style, &server.status_label(now)),
            cell(Style::Plain, &restarts),
            cell(Style::Plain, &server.tools.to_string()),
            cell(Style::Plain, &server.review.summary()),
            cell(Style::Plain, &server.target),
        ]
    };
    let heads = ["NAME", "THROUGH", "STATUS", "RESTARTS", "TOOLS", "NOT ACCEPTED", "COMMAND OR ADDRESS"];
    print_table(heads, servers.iter().map(row).collect(), out.width(), out)?;
    for server in &servers {
        for problem in server.problems() {
            out.write_styled_line(Style::Yellow, &format!("! {}: {problem}", one_line(&server.name)))?;
        }
    }
    Ok(())
}

async fn show(client: &Client, name: &str, wait: Option<Duration>, out: &mut Output) -> Result<Exit, Failure> {
    if let Some(limit) = wait {
        wait_for_tools(client, name, limit).await?;
    }
    let answer = client.get(&["servers", name], &[]).await?;
    let server = if client.json { None } else { find_server(client, name).await? };
    client.print(&answer, out, |Tools { tools }, out| print_server(name, &tools, server.as_ref(), out))
}

fn print_server(name: &str, tools: &[Tool], server: Option<&Provider>, out: &mut Output) -> Result<(), Failure> {
    if let Some(server) = server {
        let parts = [&server.transport_label(), &server.status_label(Timestamp::now()), &server.target];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).map(|part| one_line(part)).collect();
        out.write_styled_line(Style::Dim, &parts.join(" · "))?;
        for detail in &server.details {
            out.write_line(&one_line(detail))?;
        }
    }
    let row = |tool: &Tool| {
        let standing = match &tool.mark {
            Some(mark) => mark.clone(),
            None if tool.claims_read => "claims to read".to_owned(),
            None if tool.standing == "seen" => "not accepted".to_owned(),
            None => tool.standing.clone(),
        };
        let why = tool.reason.clone().unwrap_or_else(|| format!("by the rules {}", tool.rules.join(", ")));
        let [name, standing, why] = [&tool.name, &standing, &why].map(|text| cell(Style::Plain, text));
        [name, standing, cell(verdict_style(&tool.verdict), &tool.verdict), why]
    };
    match server {
        _ if !tools.is_empty() => {
            print_table(["TOOL", "STANDING", "VERDICT", "WHY"], tools.iter().map(row).collect(), None, out)?
        }
        Some(server) if !server.is_up() => {
            out.write_line(&format!("{}. {NOT_CONNECTED_HINT}.", server.absence_message()))?;
            return Ok(());
        }
        _ => out.write_line("This server has no tools.")?,
    }
    if let Some(server) = server {
        let faults = server.left_out.iter().chain(&server.warnings).map(|fault| one_line(fault).into_owned());
        for fault in server.problems().into_iter().chain(faults) {
            out.write_styled_line(Style::Yellow, &format!("! {fault}"))?;
        }
    }
    if tools.iter().any(Tool::needs_acceptance) {
        let name = one_line(name);
        print_note(&format!(
            "\nSome are not accepted yet: `countersign servers accept {name} --all-reads`, or names of tools."
        ));
    }
    if tools.iter().any(Tool::has_unknown_effect) {
        print_note(&format!("\nNot every tool says whether it only reads. {}", accept::allow_hint(name)));
    }
    Ok(())
}

/// The advice if a server is not connected.
const NOT_CONNECTED_HINT: &str = "Its tools are known once it is connected; --wait waits for that";

/// Returns the current state of the server with this name.
async fn find_server(client: &Client, name: &str) -> Result<Option<Provider>, Failure> {
    let ServerList { servers } = client.get(&["servers"], &[]).await?.read()?;
    Ok(servers.into_iter().find(|server| server.name == name))
}

/// Waits until a server is connected and its tools are offered.
///
/// # Errors
/// Fails if that takes longer than `limit`, or if there is no server with this name.
async fn wait_for_tools(client: &Client, name: &str, limit: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    let mut publishing = None;
    loop {
        let Tools { tools } = client.get(&["servers", name], &[]).await?.read()?;
        let Some(server) = find_server(client, name).await? else { return Ok(()) };
        let now = Instant::now();
        if server.is_up() {
            // A server may have no tools.
            if !tools.is_empty() || now >= *publishing.get_or_insert(now + MAX_PUBLISH_DELAY) {
                return Ok(());
            }
        } else if now >= deadline {
            return Err(Failure::new(
                Exit::Unavailable,
                format!("after {} s, {}", limit.as_secs(), server.absence_message()),
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_server_shows_duration_and_first_error() {
        let answer = serde_json::json!({
            "name": "s", "kind": "upstream", "status": "connecting", "tools": 0, "since": "2026-01-01T00:00:00Z",
            "lastError": null, "stderrError": "npm error code SELF_SIGNED_CERT_IN_CHAIN", "lastStderr": "npm error A log",
        });
        let server: Provider = serde_json::from_value(answer).unwrap();
        assert_eq!(server.status_label("2026-01-01T00:01:11Z".parse().unwrap()), "connecting for 71 s");
        let expected = ["stderr: npm error code SELF_SIGNED_CERT_IN_CHAIN", "last on stderr: npm error A log"];
        assert_eq!(server.problems(), expected);
        let server = Provider { status: "up".into(), ..server };
        assert_eq!((server.status_label(Timestamp::now()).as_str(), server.problems()), ("up", Vec::new()));
    }
}
