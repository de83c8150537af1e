//! Defines the commands and flags, with their help texts. Contains no behaviour. Each group of commands has a file.

pub mod changes;
pub mod check;
pub mod config;
pub mod policy;
pub mod previews;
pub mod servers;
pub mod service;
pub mod storage;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use self::{
    changes::ChangesCommand,
    check::CheckArgs,
    config::ConfigCommand,
    policy::{PolicyCommand, RulesCommand},
    previews::PreviewsCommand,
    servers::ServersCommand,
    service::ServiceCommand,
    storage::{AuditCommand, BackupArgs, KeysCommand, PeopleCommand, StoreCommand},
};
use crate::version::VERSION;
use countersign_config::Flags;

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
  countersign login --url https://gateway.example.com
                                  Sign in with the identity provider of a gateway
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
   5  no key and no sign-in, or not the required permission
  69  no gateway answers, or a port or file cannot be used
  70  an internal error
  75  another gateway serves the data directory
  78  the configuration cannot be used, or the data directory belongs to another
      store";

#[derive(Debug, Parser)]
#[command(
    name = "countersign",
    version = VERSION,
    about = "An MCP gateway that puts a person between an AI agent and every write",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
    after_help = "Run with `--help` for details, examples and exit codes.",
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
    /// Speak MCP on stdin and stdout, for agents that start their own MCP servers
    ///
    /// Attaches to the gateway of the data directory, or starts one in the background if none runs, so that all agents
    /// and the dashboard share one set of changes. A background gateway exits some time after its last client has
    /// disconnected. stdout carries one JSON message per line and nothing else; logs go to stderr, those of the
    /// background gateway to gateway.log in the data directory. Exits with 0 at the end of stdin and on SIGTERM.
    ///
    /// Replaces a background gateway of an older version, and continues with the next gateway if its own ends.
    ///
    /// The agent's key is read from COUNTERSIGN_AGENT_KEY, or else from COUNTERSIGN_KEY; `auth.mode: keys` requires one. A
    /// key that may decide on changes is refused with exit code 5: an agent needs its own key with the role agent.
    Stdio(StdioArgs),
    /// Sign in to the dashboard: print a link with a one-time code, and open it
    ///
    /// The link is opened with xdg-open on a desktop. It works once, within ten minutes.
    Open(OpenArgs),
    /// Sign in to a gateway with its identity provider, for the commands that talk to it
    ///
    /// Opens the provider's page in the browser of this machine. Without a browser, or with --device, prints a code to enter
    /// on another device. The tokens are stored in $XDG_CONFIG_HOME/countersign/credentials.json with mode 0600, and renewed
    /// when they are about to expire. COUNTERSIGN_KEY takes precedence over them.
    Login(LoginArgs),
    /// Sign out of a gateway: revoke and remove the tokens that `login` stored
    Logout(ConnectArgs),
    /// Show who you are at a gateway: name, role, groups, and the credential
    Whoami(ConnectArgs),
    /// Run the gateway as a systemd service of this user
    #[command(after_long_help = service::HELP)]
    Service(DataCommands<ServiceCommand>),
    /// List, show and decide on changes in the terminal
    #[command(after_long_help = changes::HELP)]
    Changes(GatewayCommands<ChangesCommand>),
    /// List, add, test and remove servers, accept tool definitions, let tools run without review, connect accounts
    #[command(after_long_help = servers::HELP)]
    Servers(DefaultedGatewayCommands<ServersCommand>),
    /// List and revoke standing rules, which allow or deny calls without review
    #[command(after_long_help = policy::HELP)]
    Rules(DefaultedGatewayCommands<RulesCommand>),
    /// Show how the policy decides on a call, and list its rules
    Policy(GatewayCommands<PolicyCommand>),
    /// Show the preview of a call, to try out preview recipes
    #[command(after_long_help = previews::HELP)]
    Previews(GatewayCommands<PreviewsCommand>),
    /// List, retry and test webhooks and their deliveries
    Webhooks(DefaultedGatewayCommands<WebhooksCommand>),
    /// List the gateways that serve one store side by side
    Nodes(ConnectArgs),
    /// Ask whether the gateway can take work, for containers and probes
    ///
    /// Prints one line. Exits with 0 if the gateway of the data directory, or the one at --url, is ready, and with 1
    /// otherwise. Needs no key.
    Health(ConnectArgs),
    /// Create, list and revoke API keys
    Keys(DataCommands<KeysCommand>),
    /// List and revoke people who sign in with an identity provider, and name a deputy while you are away
    People(DataCommands<PeopleCommand>),
    /// Back up the store to a file, even while its gateway runs
    ///
    /// The copy is a consistent snapshot of everything: changes, audit trail, feed and keys. Its pages and its audit
    /// trail are verified before the file gets its name. The built-in tracker's data goes into a second file,
    /// FILE.tracker.
    ///
    /// To restore: `install -d -m 700 DIR`, `install -m 600 FILE DIR/countersign.db` (and FILE.tracker as DIR/tracker.db),
    /// `countersign --data DIR`. Changes that had not run at the time of the backup may have run since, so none of them runs
    /// by itself: a reviewer has to check them again. Keys, people, sign-ins and acceptances of tools that were revoked or
    /// ended after the time of the backup are valid again: revoke them again.
    Backup(BackupArgs),
    /// Move the store: from a data directory to PostgreSQL, or back
    #[command(subcommand)]
    Store(StoreCommand),
    /// Verify or export the audit trail
    Audit(DataCommands<AuditCommand>),
    /// Validate or show the configuration, and consent to changes of it
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check whether an MCP server complies with the protocol
    ///
    /// Sends raw bytes to a server over stdio, HTTP or WebSocket, in any revision, and reports for each rule of the
    /// specification whether the server follows it, what was sent and received, and how to fix it. Only tools that
    /// declare themselves read-only are called.
    #[command(after_long_help = check::HELP)]
    Check(CheckArgs),
    /// Print the version, the commit, and what the program supports
    ///
    /// With --json: version, commit, date of the commit, features, revisions of the protocol, and the highest schema
    /// versions of a store that this program can read and migrate.
    Version {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script for a shell
    ///
    /// For bash: `countersign completions bash > ~/.local/share/bash-completion/completions/countersign`
    Completions { shell: Shell },
    /// Write the manual pages into a folder, for packages
    #[command(hide = true)]
    Man {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
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
    /// Accept the configured policy as it is, so that changes that loosen the policy of the last run do not wait for a
    /// reviewer's consent, and a file that has lost all its keys is not refused
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

/// The gateway to talk to, and the form of the output.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// The gateway [default: COUNTERSIGN_URL, or the one that serves the data directory]
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Also trust this certificate authority (a PEM file), for a gateway or an identity provider with a private certificate
    #[arg(long, value_name = "FILE", global = true)]
    pub ca: Option<PathBuf>,
    #[command(flatten)]
    pub data: DataArgs,
}

/// A group of commands that talk to a gateway.
#[derive(Debug, Args)]
pub struct GatewayCommands<C: Subcommand> {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: C,
}

/// A group of commands that talk to a gateway. Without a command, the group does what its help calls the default.
#[derive(Debug, Args)]
pub struct DefaultedGatewayCommands<C: Subcommand> {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(subcommand)]
    pub command: Option<C>,
}

/// A group of commands that work on a data directory.
#[derive(Debug, Args)]
pub struct DataCommands<C: Subcommand> {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(subcommand)]
    pub command: C,
}

#[derive(Debug, Args)]
pub struct LoginArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Enter a code on another device, instead of using a browser on this machine
    #[arg(long)]
    pub device: bool,
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
    /// Send pending deliveries now, and retry deliveries that were given up
    Retry { name: String },
    /// Send a test event
    Test { name: String },
}
