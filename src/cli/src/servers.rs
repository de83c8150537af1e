//! `servers [list]|show|accept|revoke|allow|connect|disconnect`: lists servers and decides on their tools and accounts, over REST.
//! `servers add|edit|remove|import|test` work on the configuration file.

mod accept;
mod connect;
mod edit;
mod import;
mod tools;
mod trial;

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

use self::{
    connect::Account,
    tools::{KnownReads, Tool, Tools},
};
use super::{
    args::{DefaultedGatewayCommands, servers::ServersCommand},
    client::{self, Client},
    exit::{Exit, Failure},
    output::{Output, Style, cell, one_line, print_note, print_table, verdict_style},
};
use countersign_domain::text::plural;

/// The pause between two checks of whether a server is connected.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time in which a gateway reads a file to which a server was added.
const MAX_RELOAD_DELAY: Duration = Duration::from_secs(5);
/// Maximum time between the connection to a server and the offer of its tools.
const MAX_PUBLISH_DELAY: Duration = Duration::from_secs(10);

pub fn run(args: &DefaultedGatewayCommands<ServersCommand>, out: &mut Output) -> Result<Exit, Failure> {
    match &args.command {
        Some(ServersCommand::Add(add)) => return edit::add(add, &args.connect, out),
        Some(ServersCommand::Edit(changed)) => return edit::edit(changed, &args.connect, out),
        Some(ServersCommand::Remove(remove)) => return edit::remove(remove, &args.connect, out),
        Some(ServersCommand::Test(test)) => return trial::test(test, &args.connect, out),
        Some(ServersCommand::Import(import)) => return import::import(import, &args.connect, out),
        _ => {}
    }
    client::run(&args.connect, async |client| match &args.command {
        Some(ServersCommand::Show { name, wait }) => show(&client, name, wait.limit(), out).await,
        Some(ServersCommand::Accept(args)) => accept::accept(&client, args, out).await,
        Some(ServersCommand::Allow(args)) => accept::allow(&client, args, out).await,
        Some(ServersCommand::Revoke { name, tools }) => accept::revoke(&client, name, tools, out).await,
        Some(ServersCommand::Connect(args)) => connect::connect(&client, args, out).await,
        Some(ServersCommand::Disconnect { name }) => connect::disconnect(&client, name, out).await,
        _ => {
            let answer = client.get(&["servers"], &[]).await?;
            client.print(&answer, out, print_servers)
        }
    })
}

#[derive(Deserialize)]
struct ServerList {
    servers: Vec<Server>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Server {
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
    /// The account of the key's person, if the server requires one.
    account: Option<Account>,
    #[serde(default)]
    previews: Previews,
}

#[derive(Default, Deserialize)]
struct Previews {
    /// The set of recipes for the name that the server gives itself.
    suggested: Option<String>,
}

impl Server {
    fn is_up(&self) -> bool {
        self.status == "up"
    }

    /// Returns a hint to the recipes for the name that the server gives itself.
    fn recipe_hint(&self) -> Option<String> {
        let set = one_line(self.previews.suggested.as_deref()?);
        Some(format!(
            "By its own name it is the {set} server, which anybody can claim: if you know that it is, write `previews: {set}` below mcpServers.{}",
            one_line(&self.name)
        ))
    }

    /// Returns the reason why the server is not connected, for a person who needs its tools.
    fn not_connected_message(&self) -> String {
        let advice = self.account.as_ref().and_then(|account| account.advice(&self.name));
        let state = match self.status.as_str() {
            "connecting" => "not connected yet".to_owned(),
            "needs_connection" => advice.unwrap_or_else(|| "not connected".to_owned()),
            _ => "not connected".to_owned(),
        };
        let problems: String = self.problems().iter().map(|problem| format!("; {problem}")).collect();
        format!("{} is {state}{problems}", one_line(&self.name))
    }

    /// Returns the reasons why the server is not up, including the last lines of its stderr.
    fn problems(&self) -> Vec<String> {
        if self.is_up() || (self.status == "needs_connection" && self.account.is_some()) {
            return Vec::new();
        }
        let error = self.last_error.as_ref().map(|error| one_line(error).into_owned());
        let quote = |source: &str, line: &String| format!("{source}: {}", one_line(line));
        let stderr_error = self.stderr_error.as_ref().map(|line| quote("stderr", line));
        let last = self.last_stderr.as_ref().filter(|line| self.stderr_error.as_ref() != Some(line));
        let last = last.map(|line| quote(if stderr_error.is_some() { "last on stderr" } else { "stderr" }, line));
        error.into_iter().chain(stderr_error).chain(last).collect()
    }

    /// Returns `module`, or the transport and protocol era of an upstream.
    fn transport_label(&self) -> String {
        let parts: Vec<&str> = [self.transport.as_deref(), self.era.as_deref()].into_iter().flatten().collect();
        if parts.is_empty() { self.kind.clone() } else { parts.join(", ") }
    }

    /// Returns the status with the account and the circuit, for people.
    fn status_label(&self, now: Timestamp) -> String {
        let since = self.since.filter(|_| self.status == "connecting").map(|since| now.duration_since(since));
        let status = match since {
            Some(time) => format!("{} for {} s", self.status, time.as_secs().max(0)),
            None if self.status == "needs_connection" => "not connected".to_owned(),
            None => self.status.clone(),
        };
        let account = match &self.account {
            Some(account) if account.connected => ", account connected",
            Some(_) if self.is_up() => ", account not connected",
            _ => "",
        };
        match self.breaker.as_deref() {
            None | Some("closed") => format!("{status}{account}"),
            Some(breaker) => format!("{status}{account}, circuit {breaker}"),
        }
    }
}

#[derive(Default, Deserialize)]
struct PendingReview {
    new: usize,
    changed: usize,
    reads: usize,
    #[serde(default, rename = "known")]
    known_reads: usize,
}

impl PendingReview {
    /// Describes the numbers that are not zero.
    fn summary(&self) -> String {
        let parts = [
            (self.reads, "claimed reads"),
            (self.known_reads, "known reads"),
            (self.changed, "changed"),
            (self.new, "new"),
        ];
        let parts: Vec<String> =
            parts.iter().filter(|(n, _)| *n > 0).map(|(n, label)| format!("{n} {label}")).collect();
        parts.join(", ")
    }
}

fn print_servers(ServerList { servers }: ServerList, out: &mut Output) -> Result<(), Failure> {
    let now = Timestamp::now();
    let row = |server: &Server| {
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
    let headings = ["NAME", "THROUGH", "STATUS", "RESTARTS", "TOOLS", "NOT ACCEPTED", "COMMAND OR ADDRESS"];
    print_table(headings, servers.iter().map(row).collect(), out.width, out)?;
    for server in &servers {
        let advice = server.account.as_ref().and_then(|account| account.advice(&server.name));
        for problem in server.problems().into_iter().chain(advice) {
            out.write_styled_line(Style::Yellow, &format!("! {}: {problem}", server.name))?;
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
    client.print(&answer, out, |found: Tools, out| print_server(name, &found, server.as_ref(), out))
}

fn print_server(
    name: &str,
    Tools { tools, known_reads }: &Tools,
    server: Option<&Server>,
    out: &mut Output,
) -> Result<(), Failure> {
    if let Some(server) = server {
        let parts = [&server.transport_label(), &server.status_label(Timestamp::now()), &server.target];
        let parts: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        out.write_styled_line(Style::Dim, &parts.join(" · "))?;
        for detail in &server.details {
            out.write_line(detail)?;
        }
    }
    let row = |tool: &Tool| {
        let status = match &tool.mark {
            Some(mark) => mark.clone(),
            None if tool.claims_read => "claims to read".to_owned(),
            None if tool.accepted_as_read => "accepted read".to_owned(),
            None if tool.accepted_sql_reads => "accepted SQL reads".to_owned(),
            None if tool.definition_status == "seen" => "not accepted".to_owned(),
            None => tool.definition_status.clone(),
        };
        let reason = tool.reason.clone().unwrap_or_else(|| format!("by the rules {}", tool.rules.join(", ")));
        let [name, status, reason] = [&tool.name, &status, &reason].map(|text| cell(Style::Plain, text));
        [name, status, cell(verdict_style(&tool.verdict), &tool.verdict), reason]
    };
    if !tools.is_empty() {
        print_table(["TOOL", "STATUS", "VERDICT", "WHY"], tools.iter().map(row).collect(), None, out)?;
    } else if let Some(server) = server.filter(|server| !server.is_up()) {
        out.write_line(&format!("{}. {NOT_CONNECTED_HINT}.", server.not_connected_message()))?;
        return Ok(());
    } else {
        out.write_line("This server has no tools.")?;
    }
    if let Some(server) = server {
        for fault in server.problems().iter().chain(&server.left_out).chain(&server.warnings) {
            out.write_styled_line(Style::Yellow, &format!("! {fault}"))?;
        }
    }
    if let Some(known_reads) = known_reads {
        print_known_reads(name, tools, known_reads, out)?;
    } else if let Some(hint) = server.and_then(Server::recipe_hint) {
        print_note(&format!("\n{hint}."));
    }
    // Known reads that are offered come first.
    if tools.iter().any(Tool::needs_acceptance) && !tools.iter().any(|tool| tool.offered) {
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

/// Prints the tools whose definitions differ from those on the list of known reads, and the effect of accepting the others.
fn print_known_reads(name: &str, tools: &[Tool], known: &KnownReads, out: &mut Output) -> Result<(), Failure> {
    let uncovered: Vec<&Tool> = tools.iter().filter(|tool| tool.is_uncovered()).collect();
    if !uncovered.is_empty() {
        out.write_styled_line(Style::Yellow, &format!("! {}", accept::uncovered_note(&uncovered, known)))?;
    }
    let read_count = tools.iter().filter(|tool| tool.offered && !tool.is_known_dry_run()).count();
    if tools.iter().any(|tool| tool.offered) {
        let effect = match read_count {
            0 => "lets it make previews by dry runs".to_owned(),
            _ => format!("lets {} run without review", plural(read_count, "known read")),
        };
        let (name, set) = (one_line(name), one_line(&known.recipe_set));
        print_note(&format!("\nThis is the {set} server: `countersign servers accept {name} --known-reads` {effect}."));
    }
    Ok(())
}

/// The advice for a server that is not connected.
const NOT_CONNECTED_HINT: &str = "Its tools are known once it is connected; --wait waits for that";

/// Returns the current state of the server with this name.
async fn find_server(client: &Client, name: &str) -> Result<Option<Server>, Failure> {
    let ServerList { servers } = client.get(&["servers"], &[]).await?.read()?;
    Ok(servers.into_iter().find(|server| server.name == name))
}

/// Waits until a server is connected and its tools are offered.
///
/// # Errors
/// Fails if that takes longer than `limit`, or if there is no server with this name.
async fn wait_for_tools(client: &Client, name: &str, limit: Duration) -> Result<(), Failure> {
    let started_at = Instant::now();
    let mut publish_deadline = None;
    loop {
        let now = Instant::now();
        match find_server(client, name).await? {
            None if now >= started_at + limit.min(MAX_RELOAD_DELAY) => {
                // The answer says that there is no such server.
                client.get(&["servers", name], &[]).await?;
                return Ok(());
            }
            Some(server) if server.is_up() => {
                let Tools { tools, .. } = client.get(&["servers", name], &[]).await?.read()?;
                // A server may have no tools, so the wait for them is limited.
                if !tools.is_empty() || now >= *publish_deadline.get_or_insert(now + MAX_PUBLISH_DELAY) {
                    return Ok(());
                }
            }
            Some(server) if now >= started_at + limit => {
                return Err(Failure::new(
                    Exit::Unavailable,
                    format!("after {} s, {}", limit.as_secs(), server.not_connected_message()),
                ));
            }
            None | Some(_) => {}
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
        let server: Server = serde_json::from_value(answer).unwrap();
        assert_eq!(server.status_label("2026-01-01T00:01:11Z".parse().unwrap()), "connecting for 71 s");
        let expected = ["stderr: npm error code SELF_SIGNED_CERT_IN_CHAIN", "last on stderr: npm error A log"];
        assert_eq!(server.problems(), expected);
        let server = Server { status: "up".into(), ..server };
        assert_eq!((server.status_label(Timestamp::now()).as_str(), server.problems()), ("up", Vec::new()));
    }
}
