//! Defines the commands and flags, with their help texts. Contains no behaviour.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};
use clap_complete::Shell;
use jiff::Timestamp;
use serde::Serialize;

use super::moment::{self, Since};
use countersign_config::Flags;
use countersign_domain::{changes::ChangeState, principal::Role};

const LONG_ABOUT: &str = "\
Countersign is an MCP gateway: AI agents read through it freely, and every write becomes a pending change \
that a person sees as a diff and approves or rejects, in the browser or in the terminal.

Without a command it serves MCP over HTTP and WebSocket, and the dashboard, on one port.";

const EXAMPLES: &str = "\
Examples:
  countersign                     Serve on 127.0.0.1:8080 with the dashboard
  countersign open                Sign in to the dashboard in the browser
  countersign stdio               Run as an agent's MCP server, on stdin and stdout
  countersign keys create --role reviewer --name alice
                                  Create a key that may decide on changes
  COUNTERSIGN_KEY=csk_… countersign changes watch
                                  Watch changes as agents propose them
  countersign config show         Show the configuration, and where it comes from

Environment:
  COUNTERSIGN_CONFIG     The configuration file, like --config
  COUNTERSIGN_KEY        A person's key, for `changes`, `servers` and other
                         commands that talk to a gateway
  COUNTERSIGN_AGENT_KEY  An agent's key, for `stdio`
  COUNTERSIGN_URL        The gateway that these commands talk to, like --url
  COUNTERSIGN_…          Any configuration key, such as
                         COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY=1MiB
  NO_COLOR               No colours

Exit codes:
   0  done
   1  refused or failed
   2  wrong usage
   3  no such change or key
   4  the change has been updated in the meantime
   5  no key, or a key without the right
  69  no gateway answers, or a port or file cannot be used
  70  an internal error
  75  another gateway serves the data directory
  78  the configuration cannot be used, or the data directory belongs to another
      store";

#[derive(Debug, Parser)]
#[command(
    name = "countersign",
    version,
    about = "An MCP gateway that puts a person between an AI agent and every write",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
    after_help = "`--help` says more, with examples and exit codes.",
    args_conflicts_with_subcommands = true,
    max_term_width = 110
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve MCP and the dashboard (the default without a command)
    Serve(ServeArgs),
    /// Speak MCP on stdin and stdout, for agents that start their servers
    ///
    /// Attaches to the gateway of the data directory, or starts one in the background if none runs, so that all agents
    /// and the dashboard share one set of changes. A background gateway exits some time after its last client has
    /// disconnected. stdout carries one JSON message per line and nothing else; logs go to stderr, those of the
    /// background gateway to gateway.log in the data directory. Exits with 0 at the end of stdin and on SIGTERM.
    ///
    /// The agent's key is read from COUNTERSIGN_AGENT_KEY, or else from COUNTERSIGN_KEY; `auth.mode: keys` requires one. A
    /// key that may decide on changes is refused with exit code 5: an agent needs its own key with the role agent.
    Stdio(StdioArgs),
    /// Sign in to the dashboard: print a link with a one-time code, and open it
    ///
    /// The link is opened with xdg-open on a desktop. It works once, within ten minutes.
    Open(OpenArgs),
    /// List, show and decide on changes in the terminal
    #[command(after_long_help = CHANGES_HELP)]
    Changes(ChangesArgs),
    /// List servers and their tools, accept tool definitions, let tools run without review
    #[command(after_long_help = SERVERS_HELP)]
    Servers(ServersArgs),
    /// List and revoke standing rules, which allow or deny calls without review
    #[command(after_long_help = RULES_HELP)]
    Rules(RulesArgs),
    /// Ask how the policy decides on a call
    Policy(PolicyArgs),
    /// List, retry and test webhooks and their deliveries
    Webhooks(WebhooksArgs),
    /// List the gateways that serve one store side by side
    Nodes(ConnectArgs),
    /// Create, list and revoke API keys
    Keys(KeysArgs),
    /// Back up the store to a file, even while its gateway runs
    ///
    /// The copy is a consistent snapshot of everything: changes, audit trail, feed and keys. Its pages and its audit
    /// trail are verified before the file gets its name. The built-in tracker's data goes into a second file,
    /// FILE.tracker.
    ///
    /// To restore: `install -d -m 700 DIR`, `install -m 600 FILE DIR/countersign.db` (and FILE.tracker as DIR/tracker.db),
    /// `countersign --data DIR`. Changes that were approved at the time of the backup may have run since, so they do not
    /// run again by themselves: a reviewer has to look at them again.
    Backup(BackupArgs),
    /// Move the store: from a data directory to PostgreSQL, or back
    #[command(subcommand)]
    Store(StoreCommand),
    /// Verify or export the audit trail
    Audit(AuditArgs),
    /// Validate or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check whether an MCP server complies with the protocol
    ///
    /// Sends raw bytes to a server over stdio, HTTP or WebSocket, in any revision, and reports for each rule of the
    /// specification whether the server follows it, what was sent and received, and how to fix it. Only tools that
    /// declare themselves read-only are called.
    #[command(after_long_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Print a completion script for a shell
    ///
    /// For bash: `countersign completions bash > ~/.local/share/bash-completion/completions/countersign`
    Completions { shell: Shell },
}

const CHECK_HELP: &str = "\
Examples:
  countersign check -- npx -y @modelcontextprotocol/server-everything
  countersign check --url http://127.0.0.1:8080/mcp --revision 2025-11-25
  countersign check --url wss://mcp.example.com/ws --header 'Authorization: Bearer …' --junit report.xml
  countersign check --server files --only tools --json

Exit codes:
   0  it complies
   1  a required check failed
  64  wrong usage
  69  the server cannot be reached, or is not an MCP server";

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The server's address: http, https, ws or wss
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The name of a server in mcpServers
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    /// The revision to speak [default: the newest that the server supports]
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub revision: Option<String>,
    /// Run only this group of checks; may be repeated
    #[arg(long, value_name = "GROUP")]
    pub only: Vec<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write a JUnit report to this file, too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Also call tools that do not declare themselves read-only
    #[arg(long)]
    pub allow_writes: bool,
    /// A header to send with each request, as 'Name: value'; may be repeated
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// The time limit for one answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    /// The time limit for the whole run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub max_time: u64,
    /// An environment variable to pass on to the command; may be repeated
    #[arg(long, value_name = "NAME")]
    pub env: Vec<String>,
    #[command(flatten)]
    pub data: DataArgs,
    /// The command of a server that speaks on stdin and stdout
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The configuration file, and the flags that override it.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// The configuration file [default: $XDG_CONFIG_HOME/countersign/countersign.yaml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address to listen on: PORT (on this machine only), IP:PORT or localhost:PORT; 0 selects a free port
    /// [default: 8080]
    #[arg(long, value_name = "[HOST:]PORT")]
    pub listen: Option<String>,
    /// The data directory [default: $XDG_STATE_HOME/countersign]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Put the configured policy into force as it is: changes that loosen the policy in force when the gateway last ran
    /// do not wait for a reviewer's consent
    #[arg(long)]
    pub accept_policy: bool,
    /// Started by `countersign stdio`: leave its session, use any port, exit after the last client.
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl ServeArgs {
    pub fn flags(&self) -> Flags {
        Flags { config: self.config.clone(), listen: self.listen.clone(), data: self.data.clone() }
    }
}

#[derive(Clone, Debug, Args)]
pub struct StdioArgs {
    /// The configuration file [default: $XDG_CONFIG_HOME/countersign/countersign.yaml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address on which a gateway listens if it has to be started [default: 8080, or any port if that is in use]
    #[arg(long, value_name = "[HOST:]PORT")]
    pub listen: Option<String>,
    /// The data directory, which also selects the gateway [default: $XDG_STATE_HOME/countersign]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Run the whole gateway in this process, including the dashboard, for containers and tests
    #[arg(long)]
    pub standalone: bool,
}

impl StdioArgs {
    pub fn flags(&self) -> Flags {
        Flags { config: self.config.clone(), listen: self.listen.clone(), data: self.data.clone() }
    }
}

/// The data directory, given directly or by its configuration.
#[derive(Clone, Debug, Default, Args)]
pub struct DataArgs {
    /// The data directory [default: the configured one]
    #[arg(long, value_name = "DIR", global = true)]
    pub data: Option<PathBuf>,
    /// The configuration file
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

impl DataArgs {
    pub fn flags(&self) -> Flags {
        Flags { config: self.config.clone(), listen: None, data: self.data.clone() }
    }
}

#[derive(Debug, Args)]
pub struct OpenArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// Print the link without opening it
    #[arg(long)]
    pub print: bool,
}

const CHANGES_HELP: &str = "\
Examples:
  countersign keys create --role reviewer --name alice
                                       Create a key for COUNTERSIGN_KEY
  countersign changes list             List what waits for a decision
  countersign changes show chg_…       Show one change with its diff
  countersign changes approve chg_… --comment 'looks right'
  countersign changes reject chg_… --comment 'wrong project'
  countersign changes edit chg_…       Correct its arguments in $EDITOR
  countersign changes undo chg_…       Take back an approval that has not run yet
  countersign changes list --search invoice --since 2h
  countersign changes watch --json     Print every event as it occurs
  countersign changes list --status all --json

The gateway is the one named by --url or COUNTERSIGN_URL, or else the one that serves the data directory.

A decision applies to the version that was shown: if the change has been updated in the meantime, it is refused with \
exit code 4. `approve` waits up to 5 seconds for the outcome: it exits with 1 if the change failed or its outcome is \
unknown, with 4 if the change became stale or was decided otherwise, and with 0 if it was applied or is about to run.

Without a terminal, decisions on several changes and approvals without a preview need --yes.";

/// The gateway to talk to, and the form of the output.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// The gateway [default: COUNTERSIGN_URL, or the one that serves the data directory]
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Also trust this certificate authority (a PEM file), for a gateway with a private certificate
    #[arg(long, value_name = "FILE", global = true)]
    pub ca: Option<PathBuf>,
    #[command(flatten)]
    pub data: DataArgs,
}

#[derive(Debug, Args)]
pub struct ChangesArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: ChangesCommand,
}

#[derive(Debug, Args)]
pub struct WebhooksArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: Option<WebhooksCommand>,
}

#[derive(Debug, Subcommand)]
pub enum WebhooksCommand {
    /// List webhooks with their targets, pending deliveries and last errors (the default)
    List,
    /// List sent and pending deliveries, newest first
    Deliveries {
        name: String,
        /// The maximum number of deliveries
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=200))]
        limit: u8,
    },
    /// Send pending deliveries now, and retry those that were given up
    Retry { name: String },
    /// Send a test event
    Test { name: String },
}

const SERVERS_HELP: &str = "\
Examples:
  countersign servers                        Show the state of each server
  countersign servers show github            Show the policy's verdict on its tools
  countersign servers accept github --all-reads
  countersign servers accept github 'github__get_*' github__search
  countersign servers allow github 'github__list_*' --reason 'only reads'

`accept`, `allow` and `revoke` take tool names, and patterns (* ? [ab] {one,two}) in quotes. The tools that a pattern \
matches are listed before you are asked. With --wait, `show`, `accept` and `allow` wait for a server that is still connecting.

The key comes from COUNTERSIGN_KEY, as for `countersign changes`; `accept` and `allow` need a reviewer's key.

`accept` confirms that a definition is known. If an upstream tool declares itself read-only, it then runs without review \
(as with trust_annotations); other tools are reviewed as before. When the definition changes, calls are reviewed until \
somebody accepts the new definition.

`allow` lets a tool run without review, whatever it declares: it creates a standing rule for exactly this definition, which \
lasts until it is revoked (`countersign rules`). Configured rules take precedence, and it does not apply to your own calls. \
Without a terminal, --all-reads, patterns and allowing several tools need --yes.";

#[derive(Debug, Args)]
pub struct ServersArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: Option<ServersCommand>,
}

#[derive(Debug, Subcommand)]
pub enum ServersCommand {
    /// List servers with their state, their problems and the tools that wait for a reviewer (the default)
    List,
    /// Show a server's tools with the policy's verdict on each, and which definitions are new or changed
    Show {
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Accept tool definitions, which are shown first; a terminal asks for confirmation
    Accept(AcceptArgs),
    /// Let tools run without review until the rule is revoked; their definitions are shown first, and a terminal asks
    /// for confirmation
    Allow(AllowArgs),
    /// Revoke acceptances
    Revoke {
        name: String,
        /// A tool, or a pattern that matches tools; may be repeated
        #[arg(long = "tool", value_name = "TOOL", required = true)]
        tools: Vec<String>,
    },
}

/// The time to wait for a server that is still connecting.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Wait until the server is connected, at most this many seconds [default with --wait: 120]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "120",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub wait: Option<u64>,
}

impl WaitArgs {
    pub fn limit(&self) -> Option<Duration> {
        self.wait.map(Duration::from_secs)
    }
}

#[derive(Debug, Args)]
pub struct AcceptArgs {
    /// The server
    pub name: String,
    /// Its tools, whatever they declare: names as in `countersign servers show`, or patterns
    #[arg(value_name = "TOOL", required_unless_present_any = ["all_reads", "tools"])]
    pub names: Vec<String>,
    /// The same as a positional name
    #[arg(long = "tool", value_name = "TOOL", hide = true)]
    pub tools: Vec<String>,
    /// All tools that declare themselves read-only
    #[arg(long, conflicts_with_all = ["names", "tools"])]
    pub all_reads: bool,
    /// Do not ask for confirmation; required without a terminal for --all-reads and patterns
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct AllowArgs {
    /// The server
    pub name: String,
    /// Its tools: names as in `countersign servers show`, or patterns
    #[arg(value_name = "TOOL", required = true)]
    pub tools: Vec<String>,
    /// The reason why they need no review, for the rule and the audit trail
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask for confirmation; required without a terminal for several tools
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

const RULES_HELP: &str = "\
Examples:
  countersign changes rule chg_… --allow-for 1h
                                   Allow the same call by the same agent for an hour
  countersign changes rule chg_… --deny --any-arguments --comment 'never'
  countersign rules                List the rules in force
  countersign rules revoke srl_…

A rule that allows calls replaces the approval that you alone could have given: it never applies if the policy denies the \
call or requires more people, a comment or a preview, if the tool's definition is new or has changed, or to your own calls. \
A rule that denies calls always applies. The key comes from COUNTERSIGN_KEY, as for `countersign changes`.

`countersign servers allow` creates a rule for a whole tool.";

#[derive(Debug, Args)]
pub struct RulesArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: Option<RulesCommand>,
}

#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// List rules, newest first (the default)
    List {
        /// Also list rules that were revoked or have expired
        #[arg(long)]
        all: bool,
    },
    /// Revoke a rule
    Revoke {
        id: String,
        /// The reason, for the audit trail
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct CreateRuleArgs {
    pub id: String,
    /// Allow such calls for this time, like 1h or 2 days (at most 30 days)
    #[arg(long, value_name = "TIME", required_unless_present = "deny", conflicts_with = "deny")]
    pub allow_for: Option<String>,
    /// Deny such calls until the rule is revoked
    #[arg(long)]
    pub deny: bool,
    /// Deny them for this time only
    #[arg(long, value_name = "TIME", requires = "deny")]
    pub deny_for: Option<String>,
    /// Match calls with any arguments, instead of exactly those of the change
    #[arg(long)]
    pub any_arguments: bool,
    /// Match calls by any principal, instead of the one that proposed the change
    #[arg(long)]
    pub any_principal: bool,
    /// The reason, for denied callers and the audit trail
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the verdict on a call, the rule that decides, and the terms of a review
    ///
    /// Asks the running gateway, which knows the current tools of its servers. If none runs, answers from the
    /// configuration and the store, without a key, and names what it could not find out. Nothing is called or proposed.
    Test(PolicyTestArgs),
}

#[derive(Debug, Args, Serialize)]
pub struct PolicyTestArgs {
    /// The tool's name, as agents see it
    #[arg(required_unless_present_any = ["resource", "prompt", "method"])]
    pub tool: Option<String>,
    /// The URI of a resource, instead of a tool
    #[arg(long, value_name = "URI", conflicts_with = "tool")]
    pub resource: Option<String>,
    /// The name of a prompt, instead of a tool
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tool", "resource"])]
    pub prompt: Option<String>,
    /// A method of an extension, instead of a tool; needs --server
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tool", "resource", "prompt"], requires = "server")]
    pub method: Option<String>,
    /// The server that the method would go to
    #[arg(long, value_name = "NAME", requires = "method")]
    pub server: Option<String>,
    /// The arguments as JSON; - reads them from stdin
    #[arg(long, value_name = "JSON")]
    #[serde(skip)]
    pub arguments: Option<String>,
    /// The name of the calling key
    #[arg(long, value_name = "NAME", default_value = "local-agent")]
    #[serde(skip)]
    pub principal: String,
    /// The role of that key
    #[arg(long, value_name = "ROLE", default_value = "agent")]
    #[serde(skip)]
    pub role: RoleArg,
    /// The owner of the key
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    pub owner: Option<String>,
    /// The transport: http, websocket, stdio or sse
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// The revision of the protocol, like 2025-11-25
    #[arg(long, value_name = "DATE")]
    pub revision: Option<String>,
    /// The name that the client gives itself
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
}

fn state_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(ChangeState::ALL.iter().map(|state| state.as_str()).chain(["all"]))
}

#[derive(Debug, Subcommand)]
pub enum ChangesCommand {
    /// List changes, newest first; without --status only those that wait for a decision
    List {
        /// Only these states, separated by commas; `all` for every state
        #[arg(long, value_name = "STATES", value_delimiter = ',', value_parser = state_parser())]
        status: Vec<String>,
        #[command(flatten)]
        filters: FilterArgs,
        /// The maximum number of changes
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show one change: its proposer, diff, arguments and decisions
    Show { id: String },
    /// Approve changes, which are shown first, and report their outcome; a terminal asks for confirmation
    ///
    /// Waits up to 5 seconds for the outcome. Exits with 1 if a change failed or its outcome is unknown, with 4 if one
    /// became stale or was decided otherwise, and with 0 if all were applied or are about to run.
    Approve(ApproveArgs),
    /// Reject changes
    Reject(DecideArgs),
    /// Create a standing rule from a change, to decide on similar calls from now on
    Rule(CreateRuleArgs),
    /// Edit the arguments of a change, in $VISUAL or $EDITOR by default; it is previewed again and needs a new decision
    Edit(EditArgs),
    /// Take back your approval of a change that has not run yet
    Undo { id: String },
    /// Preview a change again, and show what has changed
    Refresh { id: String },
    /// Record the outcome of a change whose outcome is unknown
    Settle {
        id: String,
        /// The outcome that you found
        #[arg(long, value_name = "OUTCOME", value_parser = ["applied", "failed"])]
        outcome: String,
        /// Your evidence
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
    },
    /// Review and decide on proposals in a full-screen inbox
    ///
    /// Press ? for its keys. If stdout is not a terminal, or with --json, --plain, --since or --after, prints a line for
    /// each event of the feed until interrupted, and reconnects by itself.
    Watch {
        /// Print a line for each event, even on a terminal
        #[arg(long)]
        plain: bool,
        /// Start with past events since then: a time, or how long ago (2h, 3d)
        // The number of an event is accepted too, as before --after existed.
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_since)]
        since: Option<Since>,
        /// Start after the event with this number (`seq`); 0 is the beginning
        #[arg(long, value_name = "SEQ", conflicts_with = "since")]
        after: Option<u64>,
    },
}

/// Filters of the listed changes.
#[derive(Debug, Default, Args)]
pub struct FilterArgs {
    /// Only changes proposed by these principals, separated by commas
    #[arg(long, value_name = "NAMES")]
    pub principal: Option<String>,
    /// Only calls of these tools, separated by commas
    #[arg(long, value_name = "TOOLS")]
    pub tool: Option<String>,
    /// Only calls of these servers, separated by commas
    #[arg(long, value_name = "SERVERS")]
    pub server: Option<String>,
    /// Only changes with this text in the summary, target, id, tool, server or proposer's name
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// Only changes proposed since then: a time (2026-07-28T12:00:00Z), or how long ago (2h, 3d)
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
    pub since: Option<Timestamp>,
    /// Only changes proposed before then
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
    pub until: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub struct EditArgs {
    pub id: String,
    /// The new arguments, as a JSON object
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    pub arguments: Option<String>,
    /// A file with the new arguments; - reads stdin
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The reason, for the agent and the audit trail
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Do this only if the change is still at this version
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
}

#[derive(Debug, Args)]
pub struct DecideArgs {
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// The reason, for the agent and the audit trail
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Do this only if the change is still at this version
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
    /// Do not ask for confirmation; required without a terminal for several changes
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    pub decide: DecideArgs,
    /// Approve a change whose preview failed, by its arguments alone
    #[arg(long)]
    pub without_preview: bool,
}

#[derive(Debug, Args)]
pub struct KeysArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(subcommand)]
    pub command: KeysCommand,
}

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Create a key and print it on stdout; only its hash is stored, so it cannot be shown again
    Create {
        /// The role, which determines what the key may do
        #[arg(long, value_name = "ROLE")]
        role: RoleArg,
        /// The name that is recorded in changes and decisions
        #[arg(long, value_name = "NAME")]
        name: String,
        /// The owner, if it differs from the name: a person with several keys decides once, and never on their own
        /// proposals
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
    },
    /// List keys, including revoked ones
    List {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key by its id, with effect within a second
    Revoke { id: String },
    /// Sign everybody out of the dashboard, within a second
    SignOut,
}

/// The role of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Speaks MCP: reads, and proposes changes
    Agent,
    /// Sees all changes and decides on them
    Reviewer,
    /// Sees all changes and cannot act
    Viewer,
    /// May do all of the above
    Admin,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Agent => Self::Agent,
            RoleArg::Reviewer => Self::Reviewer,
            RoleArg::Viewer => Self::Viewer,
            RoleArg::Admin => Self::Admin,
        }
    }
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// The file to write, outside the data directory
    pub file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy everything to an empty store, and close the old one
    ///
    /// Verifies the old store's audit trail first, and that of the copy afterwards: both must end at the same head. Then
    /// the old store is closed, so that no gateway starts on it, because changes approved in both would run twice. No
    /// gateway may serve either store meanwhile. An interrupted copy continues when the same command is run again.
    /// Sign-in codes are not copied.
    ///
    /// A password that is not part of the address is read from PGPASSWORD.
    Copy {
        /// A data directory, or postgres://…
        #[arg(long)]
        from: String,
        /// A data directory, or postgres://…; it must be empty, or hold an interrupted copy
        #[arg(long)]
        to: String,
        /// A PEM file with the certificate authorities of the database server
        #[arg(long)]
        ca: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(subcommand)]
    pub command: AuditCommand,
}

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Verify that nothing in the trail was altered, removed or added, and print its head
    ///
    /// Store the head somewhere else: giving it to `--head` later shows whether the trail was truncated or rewritten.
    Verify {
        /// A head that was printed earlier, in the form SEQ:HASH
        #[arg(long, value_name = "HEAD")]
        head: Option<String>,
    },
    /// Print the trail, oldest entry first, as JSON lines or CSV
    ///
    /// JSON lines hold everything that the hashes cover. In CSV, a cell that a spreadsheet would take for a formula starts
    /// with an apostrophe.
    Export {
        #[arg(long, value_enum, default_value_t = AuditFormat::Jsonl)]
        format: AuditFormat,
        /// Only entries since then: a time (2026-07-28T12:00:00Z), or how long ago (2h, 3d)
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
        since: Option<Timestamp>,
        /// Only entries before then
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
        until: Option<Timestamp>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditFormat {
    Jsonl,
    Csv,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Validate the configuration without starting anything; exits with 78 if it cannot be used
    Check(ServeArgs),
    /// Print the configuration in force as YAML, with the source of each value
    ///
    /// Asks the gateway that serves the data directory (with the key in COUNTERSIGN_KEY), and marks values in the file that
    /// wait for a reviewer's consent. If the gateway cannot be asked, reads the file instead, and says so.
    Show(ShowArgs),
    /// Show the changes of the configuration that wait for a reviewer's consent, value by value
    Pending(ConnectArgs),
    /// Put the waiting changes into force, or refuse them; needs a reviewer's key, and --yes without a terminal
    Consent(ConsentArgs),
}

#[derive(Debug, Args)]
pub struct ConsentArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Refuse them: everything stays as it is
    #[arg(long)]
    pub refuse: bool,
    /// Decide only if the waiting changes have this digest, as printed by `config pending --json`
    #[arg(long, value_name = "DIGEST")]
    pub digest: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Print JSON instead of YAML
    #[arg(long)]
    pub json: bool,
    /// Print the contents of the file, whether or not a gateway runs
    #[arg(long)]
    pub file: bool,
    /// Also trust this certificate authority (a PEM file), for a gateway with a private certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
