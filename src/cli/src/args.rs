//! The commands and flags, with their help texts. No behaviour.

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
that a person sees as a diff and approves or rejects, in the browser or here in the terminal.

Without a command it serves: MCP over HTTP and WebSocket, and the dashboard, on one port.";

const EXAMPLES: &str = "\
Examples:
  countersign                     Serve on 127.0.0.1:8080 with the dashboard
  countersign open                Sign in to the dashboard in the browser
  countersign stdio               What an agent runs, to talk on stdin and stdout
  countersign keys create --role reviewer --name alice
                                  Make a key that may decide on changes
  COUNTERSIGN_KEY=csk_… countersign changes watch
                                  See changes as agents propose them
  countersign config show         What is configured, and where it comes from

Environment:
  COUNTERSIGN_CONFIG     The configuration file, as --config
  COUNTERSIGN_KEY        The key of a person, for `changes`, `servers` and
                         other commands that talk to a gateway
  COUNTERSIGN_AGENT_KEY  The key of an agent, for `stdio`
  COUNTERSIGN_URL        The gateway that such commands talk to, as --url
  COUNTERSIGN_…          Every configuration key, such as
                         COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY=1MiB
  NO_COLOR               No colours

Exit codes:
   0  done
   1  refused or failed
   2  wrong usage
   3  no such change or key
   4  the change has moved on
   5  no key, or one that may not do this
  69  no gateway answers, or a port or file cannot be used
  70  a mistake in the program
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
    /// Serve MCP and the dashboard (what happens without a command, too)
    Serve(ServeArgs),
    /// Speak MCP on stdin and stdout, for an agent that starts its servers
    ///
    /// Attaches to the gateway of the data directory and starts one in the background if none runs, so that all agents
    /// and the dashboard share one set of changes. That gateway ends some time after its last user. stdout carries one
    /// JSON message per line and nothing else; logs go to stderr, those of the background gateway to gateway.log in
    /// the data directory. Ends with 0 when stdin ends and on SIGTERM.
    ///
    /// The agent's key is read from COUNTERSIGN_AGENT_KEY, or else from COUNTERSIGN_KEY; with `auth.mode: keys` one is needed.
    /// A key that may decide on changes is refused with exit code 5: an agent needs a key of its own, of the role agent.
    Stdio(StdioArgs),
    /// Sign in to the dashboard: print a link with a one-time code, and open it
    ///
    /// The link is opened where there is a desktop (xdg-open). It works once, within ten minutes.
    Open(OpenArgs),
    /// List, show and decide on changes in the terminal
    #[command(after_long_help = CHANGES_HELP)]
    Changes(ChangesArgs),
    /// List servers and their tools, accept the definitions of tools, let tools run without review
    #[command(after_long_help = SERVERS_HELP)]
    Servers(ServersArgs),
    /// List and revoke standing rules, which let calls through or deny them until they end
    #[command(after_long_help = RULES_HELP)]
    Rules(RulesArgs),
    /// Ask how the policy decides on a call
    Policy(PolicyArgs),
    /// List, retry and test webhooks and their deliveries
    Webhooks(WebhooksArgs),
    /// List the gateways that serve one store side by side
    Nodes(ConnectArgs),
    /// Make, list and revoke API keys
    Keys(KeysArgs),
    /// Copy the store to a file, also while its gateway runs
    ///
    /// The copy is one moment of everything: changes, audit trail, feed, keys. Its pages and its trail are checked before
    /// it is put in its place. The built-in tracker's data goes into a second file, FILE.tracker.
    ///
    /// To restore: `install -d -m 700 DIR`, `install -m 600 FILE DIR/countersign.db` (and FILE.tracker as DIR/tracker.db),
    /// `countersign --data DIR`. What was approved when the backup was taken may have run since, so it does not run by
    /// itself: a reviewer looks at it again.
    Backup(BackupArgs),
    /// Move the store: from a data directory to PostgreSQL, or back
    #[command(subcommand)]
    Store(StoreCommand),
    /// Check or export the audit trail
    Audit(AuditArgs),
    /// Validate or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check whether an MCP server complies with the protocol
    ///
    /// Speaks raw bytes to any server, over stdio, HTTP or WebSocket, in any revision, and reports for each rule of the
    /// specification whether it is kept, what was sent, what came back, and how to fix it. Only tools that declare
    /// themselves read-only are called.
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
  69  the server cannot be reached, or is none";

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The server's address: http, https, ws or wss
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// A server of mcpServers, by its name
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    /// The revision to speak [default: the newest that the server has]
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub revision: Option<String>,
    /// Only this group of checks; may be repeated
    #[arg(long, value_name = "GROUP")]
    pub only: Vec<String>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Also write a JUnit report
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Also call tools that do not declare themselves read-only
    #[arg(long)]
    pub allow_writes: bool,
    /// Sent with each request, as 'Name: value'; may be repeated
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// Seconds that one answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    /// Seconds that the whole run may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub max_time: u64,
    /// A variable of this environment to pass to the command; may be repeated
    #[arg(long, value_name = "NAME")]
    pub env: Vec<String>,
    #[command(flatten)]
    pub data: DataArgs,
    /// A command that starts the server on its stdin and stdout
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The configuration file, and the flags that override it.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// The configuration file [default: $XDG_CONFIG_HOME/countersign/countersign.yaml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen: PORT (on this machine), IP:PORT or localhost:PORT; port 0 takes a free one [default: 8080]
    #[arg(long, value_name = "[HOST:]PORT")]
    pub listen: Option<String>,
    /// The data directory [default: $XDG_STATE_HOME/countersign]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Put the policy of the configuration into force as it is: what loosens the one that was in force when the gateway
    /// ended waits for no reviewer's consent
    #[arg(long)]
    pub accept_policy: bool,
    /// Started by `countersign stdio`: leave its session, take any port, end after the last user.
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
    /// Where a gateway that has to be started listens [default: 8080, or any port if that is taken]
    #[arg(long, value_name = "[HOST:]PORT")]
    pub listen: Option<String>,
    /// The data directory, and so which gateway [default: $XDG_STATE_HOME/countersign]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Run the whole gateway in this process, dashboard included, for containers and tests
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
    /// The data directory [default: that of the configuration]
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
    /// Only print the link
    #[arg(long)]
    pub print: bool,
}

const CHANGES_HELP: &str = "\
Examples:
  countersign keys create --role reviewer --name alice
                                       A key for COUNTERSIGN_KEY
  countersign changes list             What waits for a decision
  countersign changes show chg_…       One change with its diff
  countersign changes approve chg_… --comment 'looks right'
  countersign changes reject chg_… --comment 'wrong project'
  countersign changes edit chg_…       Correct its arguments in $EDITOR
  countersign changes undo chg_…       Take back an approval that has not run
  countersign changes list --search invoice --since 2h
  countersign changes watch --json     Every event, as it comes
  countersign changes list --status all --json

The gateway is the one that --url or COUNTERSIGN_URL names, else the one that serves the data directory.

A decision is made on the version that was shown: if the change has moved on, it is refused with exit code 4. \
`approve` waits up to 5 seconds and says what came of it: it exits with 1 if the change failed or its outcome is unknown, \
with 4 if the change did not run because it has moved on, and with 0 if it was applied or is still to run.

Without a terminal, decisions on several changes and an approval without a preview need --yes.";

/// The gateway to talk to, and the form of the output.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// The gateway [default: COUNTERSIGN_URL, or the one that serves the data directory]
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Trust this certificate authority too (a PEM file), for a gateway with a certificate of its own
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
    /// List webhooks with their targets, pending deliveries and last errors (also without a command)
    List,
    /// List sent and pending deliveries, newest first
    Deliveries {
        name: String,
        /// The number of deliveries
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=200))]
        limit: u8,
    },
    /// Send pending deliveries at once, and retry those that were given up
    Retry { name: String },
    /// Send a test event
    Test { name: String },
}

const SERVERS_HELP: &str = "\
Examples:
  countersign servers                        How each server is
  countersign servers show github            What the policy says of its tools
  countersign servers accept github --all-reads
  countersign servers accept github 'github__get_*' github__search
  countersign servers allow github 'github__list_*' --reason 'only reads'

`accept`, `allow` and `revoke` take names of tools and patterns (* ? [ab] {one,two}) in quotes. What a pattern matches is \
listed before you are asked. `show`, `accept` and `allow` wait with --wait for a server that is still connecting.

The key comes from COUNTERSIGN_KEY, as for `countersign changes`; accepting and allowing need a reviewer's.

`accept` says that a definition is known. A tool of an upstream server that says that it only reads then runs without \
review (as with trust_annotations); a tool that does not say so is reviewed as before. When the definition changes, its \
calls are reviewed until somebody accepts the new one.

`allow` lets a tool run without review whatever it says of itself: a standing rule for exactly this definition, until it \
is revoked (`countersign rules`). Rules of the configuration stand before it, and it does not count for your own calls. \
Without a terminal, --all-reads, patterns and several tools to allow need --yes.";

#[derive(Debug, Args)]
pub struct ServersArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: Option<ServersCommand>,
}

#[derive(Debug, Subcommand)]
pub enum ServersCommand {
    /// List servers with their state, why one is down, and what of each waits for a reviewer (also without a command)
    List,
    /// Show a server's tools: what the policy says of each, and which definitions are new or changed
    Show {
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Accept definitions; they are shown first, and on a terminal you are asked
    Accept(AcceptArgs),
    /// Let tools run without review, until the rule is revoked; they are shown first, and on a terminal you are asked
    Allow(AllowArgs),
    /// Revoke acceptances
    Revoke {
        name: String,
        /// This tool, or what the pattern matches; may be given many times
        #[arg(long = "tool", value_name = "TOOL", required = true)]
        tools: Vec<String>,
    },
}

/// The time to wait for a server that is still connecting.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Wait until the server is connected, at most so many seconds [default with --wait: 120]
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
    /// Its tools, whatever they say of themselves: names as `countersign servers show` has them, and patterns
    #[arg(value_name = "TOOL", required_unless_present_any = ["all_reads", "tools"])]
    pub names: Vec<String>,
    /// The same as a positional name
    #[arg(long = "tool", value_name = "TOOL", hide = true)]
    pub tools: Vec<String>,
    /// All tools that say that they only read
    #[arg(long, conflicts_with_all = ["names", "tools"])]
    pub all_reads: bool,
    /// Do not ask; without a terminal, --all-reads and patterns need this
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct AllowArgs {
    /// The server
    pub name: String,
    /// Its tools: names as `countersign servers show` has them, and patterns
    #[arg(value_name = "TOOL", required = true)]
    pub tools: Vec<String>,
    /// Why they need no review; the rule and the audit trail keep it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask; without a terminal, several tools need this
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

const RULES_HELP: &str = "\
Examples:
  countersign changes rule chg_… --allow-for 1h
                                   The same call by the same agent, for an hour
  countersign changes rule chg_… --deny --any-arguments --comment 'never'
  countersign rules                Those that are in force
  countersign rules revoke srl_…

A rule that allows stands in for the approval that you alone could have given: it never counts where the policy denies, \
where more people, a comment or a preview are asked for, for a tool whose definition is new or has changed, or for what \
you call yourself. A rule that denies counts always. The key comes from COUNTERSIGN_KEY, as for `countersign changes`.

`countersign servers allow` makes a rule for a whole tool.";

#[derive(Debug, Args)]
pub struct RulesArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: Option<RulesCommand>,
}

#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// List rules, newest first (also without a command)
    List {
        /// Also list rules that were revoked or have expired
        #[arg(long)]
        all: bool,
    },
    /// Revoke a rule
    Revoke {
        id: String,
        /// Why; the audit trail keeps it
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct CreateRuleArgs {
    pub id: String,
    /// Let such calls through for this time (at most 30 days), as 1h or 2 days
    #[arg(long, value_name = "TIME", required_unless_present = "deny", conflicts_with = "deny")]
    pub allow_for: Option<String>,
    /// Deny such calls, until the rule is revoked
    #[arg(long)]
    pub deny: bool,
    /// Deny them only for this time
    #[arg(long, value_name = "TIME", requires = "deny")]
    pub deny_for: Option<String>,
    /// Whatever the arguments are, instead of exactly those of the change
    #[arg(long)]
    pub any_arguments: bool,
    /// Whoever calls, instead of the principal that proposed the change
    #[arg(long)]
    pub any_principal: bool,
    /// Why; whoever is denied and the audit trail see it
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
    /// Asks the gateway that runs, if one does: it knows the tools of its servers as they are now. Else the configuration
    /// and the store answer, without a key, and say what they could not know. Nothing is called or proposed.
    Test(PolicyTestArgs),
}

#[derive(Debug, Args, Serialize)]
pub struct PolicyTestArgs {
    /// The tool's name, as agents see it
    #[arg(required_unless_present_any = ["resource", "prompt", "method"])]
    pub tool: Option<String>,
    /// Instead of a tool: the URI of a resource, as agents see it
    #[arg(long, value_name = "URI", conflicts_with = "tool")]
    pub resource: Option<String>,
    /// Instead of a tool: a prompt, as agents see it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tool", "resource"])]
    pub prompt: Option<String>,
    /// Instead of a tool: a method of an extension, with --server
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tool", "resource", "prompt"], requires = "server")]
    pub method: Option<String>,
    /// The server that the method would go to
    #[arg(long, value_name = "NAME", requires = "method")]
    pub server: Option<String>,
    /// The arguments, as JSON; - reads them from stdin
    #[arg(long, value_name = "JSON")]
    #[serde(skip)]
    pub arguments: Option<String>,
    /// The caller: the name of a key
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
    /// http, websocket, stdio or sse
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// The revision of the protocol, as 2025-11-25
    #[arg(long, value_name = "DATE")]
    pub revision: Option<String>,
    /// The name that the client gives itself
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
}

fn state_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(ChangeState::ALL.map(ChangeState::as_str).into_iter().chain(["all"]))
}

#[derive(Debug, Subcommand)]
pub enum ChangesCommand {
    /// List changes, newest first; without --status those that wait for a decision
    List {
        /// Only these states, separated by commas; `all` for every state
        #[arg(long, value_name = "STATES", value_delimiter = ',', value_parser = state_parser())]
        status: Vec<String>,
        #[command(flatten)]
        narrow: FilterArgs,
        /// The maximum number of changes
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show one change: who proposed it, its diff, its arguments, the decisions so far
    Show { id: String },
    /// Approve changes; each is shown first, on a terminal you are asked, and what came of it is said
    ///
    /// Waits up to 5 seconds for that. Exits with 1 if a change failed or its outcome is unknown, with 4 if one did not run
    /// because it has moved on, and with 0 if all were applied or are still to run.
    Approve(ApproveArgs),
    /// Reject changes
    Reject(DecideArgs),
    /// Create a standing rule from a change, which decides on similar calls from now on
    Rule(CreateRuleArgs),
    /// Edit the arguments of a change, in $VISUAL or $EDITOR or as given; it is previewed again and needs a new decision
    Edit(EditArgs),
    /// Take your approval back, while the change has not run yet
    Undo { id: String },
    /// Preview a change again, and show what has changed since
    Refresh { id: String },
    /// Settle the outcome of a change whose outcome is unknown
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
    /// ? shows its keys. When stdout is no terminal, or with --json, --plain, --since or --after: a line for each event of
    /// the feed, until interrupted; reconnects by itself.
    Watch {
        /// Print a line for each event, in a terminal too
        #[arg(long)]
        plain: bool,
        /// Begin with what happened since then instead of now: a time, or how long ago (2h, 3d)
        // The number of an event is taken too, as it was before --after was there.
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_since)]
        since: Option<Since>,
        /// Begin after the event of this number (`seq`); 0 is the beginning
        #[arg(long, value_name = "SEQ", conflicts_with = "since")]
        after: Option<u64>,
    },
}

/// Filters of the listed changes.
#[derive(Debug, Default, Args)]
pub struct FilterArgs {
    /// Only those that these principals proposed, separated by commas
    #[arg(long, value_name = "NAMES")]
    pub principal: Option<String>,
    /// Only calls of these tools, separated by commas
    #[arg(long, value_name = "TOOLS")]
    pub tool: Option<String>,
    /// Only of these servers, separated by commas
    #[arg(long, value_name = "SERVERS")]
    pub server: Option<String>,
    /// Only those with this text in the summary, the target, the id, the tool, the server or the proposer's name
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// Only those proposed since then: a time (2026-07-28T12:00:00Z), or how long ago (2h, 3d)
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
    pub since: Option<Timestamp>,
    /// Only those proposed before then
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
    pub until: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub struct EditArgs {
    pub id: String,
    /// The new arguments, as a JSON object
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    pub arguments: Option<String>,
    /// A file with the new arguments; - is stdin
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Why; the agent and the audit trail see it
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Only if the change is still at this version
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
}

#[derive(Debug, Args)]
pub struct DecideArgs {
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Why; the agent and the audit trail see it
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Only if the change is still at this version
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
    /// Do not ask; without a terminal, several changes need this
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    pub decide: DecideArgs,
    /// Approve it although its preview failed: by its arguments alone
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
    /// Make a key and print it, alone, on stdout; only its hash is kept, so it is shown this once
    Create {
        /// The role, which determines what it may do
        #[arg(long, value_name = "ROLE")]
        role: RoleArg,
        /// The name that changes and decisions carry
        #[arg(long, value_name = "NAME")]
        name: String,
        /// The owner, if it is not the name: a person with several keys decides once, and never on a proposal of their own
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
    },
    /// List keys, including revoked ones
    List {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key by its id; it stops working within a second
    Revoke { id: String },
    /// End all sign-ins to the dashboard, within a second
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
    /// All of the above
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
    /// The file to write, outside of the data directory
    pub file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy everything into an empty store, and close the old one
    ///
    /// The old store's audit trail is checked first, and that of the copy afterwards: both end at the same head. Then no
    /// gateway starts on the old one any more, since what is approved in both would run twice. No gateway may serve either
    /// meanwhile. What was interrupted goes on where it was when the same is called again. Codes for signing in are left out.
    ///
    /// A password that is not in the address is taken from PGPASSWORD.
    Copy {
        /// A data directory, or postgres://…
        #[arg(long)]
        from: String,
        /// A data directory, or postgres://…; without a store, or what was interrupted
        #[arg(long)]
        to: String,
        /// A PEM file of the authorities that a server's certificate is verified by
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
    /// Check that nothing in the trail was altered, removed or added, and print its head
    ///
    /// Keep the head somewhere else: `--head` with it later shows whether the trail was cut off or written anew.
    Verify {
        /// A head that was printed earlier, as SEQ:HASH
        #[arg(long, value_name = "HEAD")]
        head: Option<String>,
    },
    /// Print the trail, oldest entry first, as JSON lines or CSV
    ///
    /// JSON lines hold everything that the hashes are of. In CSV, a cell that a spreadsheet would run as a formula begins
    /// with an apostrophe.
    Export {
        #[arg(long, value_enum, default_value_t = AuditFormat::Jsonl)]
        format: AuditFormat,
        /// Only what happened since then: a time (2026-07-28T12:00:00Z), or how long ago (2h, 3d)
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
        since: Option<Timestamp>,
        /// Only what happened before then
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
    /// Validate the configuration without starting anything; exit code 78 if it cannot be used
    Check(ServeArgs),
    /// Print the configuration in force as YAML, with where each value comes from
    ///
    /// Asks the gateway that serves the data directory (with the key in COUNTERSIGN_KEY), and marks what of the file waits
    /// for a reviewer's consent. Where it cannot be asked, the file is read, and that is said.
    Show(ShowArgs),
    /// Show what of the configuration waits for a reviewer's consent, value by value
    Pending(ConnectArgs),
    /// Put what waits into force, or refuse it; needs a reviewer's key, and --yes without a terminal
    Consent(ConsentArgs),
}

#[derive(Debug, Args)]
pub struct ConsentArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Refuse it: all stays as it is
    #[arg(long)]
    pub refuse: bool,
    /// Only if this is what waits: the digest that `config pending --json` names
    #[arg(long, value_name = "DIGEST")]
    pub digest: Option<String>,
    /// Decide without being asked
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
    /// Print what the file says, whether or not a gateway runs
    #[arg(long)]
    pub file: bool,
    /// Trust this certificate authority too (a PEM file), for a gateway with a certificate of its own
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_the_flags_are_those_of_serve() {
        let cli = Cli::try_parse_from(["countersign", "--listen", "127.0.0.1:1", "--data", "/d"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.serve.listen.as_deref(), Some("127.0.0.1:1"));
        assert!(Cli::try_parse_from(["countersign", "--listen", "x", "serve"]).is_err());
        assert!(Cli::try_parse_from(["countersign", "keys", "create", "--role", "king", "--name", "a"]).is_err());
        let cli =
            Cli::try_parse_from(["countersign", "keys", "create", "--role", "agent", "--name", "a", "--data", "/d"]);
        let Some(Command::Keys(keys)) = cli.unwrap().command else { panic!("not keys") };
        assert_eq!(keys.data.data, Some("/d".into()));
    }
}
