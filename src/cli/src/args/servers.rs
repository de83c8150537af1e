//! Defines `countersign servers`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

pub const HELP: &str = "\
Examples:
  countersign servers                        Show the state of each server
  countersign servers show github            Show the policy's verdict on its tools
  countersign servers accept github --all-reads
  countersign servers accept files --known-reads
  countersign servers accept github 'github__get_*' github__search
  countersign servers allow github 'github__list_*' --reason 'only reads'
  countersign servers connect notion         Connect your account at a server that requires one
  countersign servers add files --package npm:@modelcontextprotocol/server-filesystem -- /srv/documents
  countersign servers add search --url https://mcp.example.com/mcp
  countersign servers add --from-json -      Add the servers of an mcpServers block or a server.json
  countersign servers test files             Start the server, and list its tools
  countersign servers import                 Choose from the servers of desktop clients on this machine

`accept`, `allow` and `revoke` take tool names, and patterns (* ? [ab] {one,two}) in quotes. The tools that a pattern \
matches are listed before you are asked. With --wait, `show`, `accept` and `allow` wait for a server that is still connecting.

The key comes from COUNTERSIGN_KEY, as for `countersign changes`; `accept` and `allow` need a reviewer's key. `connect` \
and `disconnect` concern the account of the key's owner, or that of the gateway, which needs an admin's key.

`accept` confirms that a definition is known. If an upstream tool declares itself read-only, it then runs without review \
(as with trust_annotations); other tools are reviewed as before. When the definition changes, calls are reviewed until \
somebody accepts the new definition.

With --known-reads, `accept` accepts the tools that are known to only read, including those that declare nothing. The program \
has lists of them for widely used servers, by the hashes of their definitions; `show` tells whether it has one.

`allow` lets a tool run without review, whatever it declares: it creates a standing rule for exactly this definition, which \
lasts until it is revoked (`countersign rules`). Configured rules take precedence, and it does not apply to your own calls. \
Without a terminal, --all-reads, --known-reads, patterns and allowing several tools need --yes.

`add`, `edit`, `remove` and `import` change mcpServers in the configuration file and need no key. Comments and order stay, and \
the previous file is kept as FILE.bak. Values that look like secrets are replaced by references such as ${NAME}; a server \
whose variables are not set here is added as disabled. A running gateway reads the file at once, and what loosens the policy \
waits for consent. `test` starts a server in a process of its own, shows its tools, or the last lines that it wrote to stderr, \
and changes nothing.";

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
    /// Connect your account at a server that requires one: print a link to the dashboard, open it, and wait
    Connect(ConnectAccountArgs),
    /// Disconnect your account at a server, and forget its tokens
    Disconnect { name: String },
    /// Add a server to the configuration file
    Add(AddArgs),
    /// Change a server in the configuration file
    Edit(EditArgs),
    /// Remove a server from the configuration file
    Remove(RemoveArgs),
    /// Start a configured server, or one that is not configured yet, and list its tools; nothing changes
    Test(TestArgs),
    /// Add servers that are configured in desktop clients on this machine
    ///
    /// Reads the files of Claude Desktop, Claude Code, Cursor, VS Code, Codex, Gemini CLI and Goose, and changes none of them. Lists
    /// the servers that the configuration file lacks, asks which to add, and shows the changes first. Without a terminal, name
    /// them and give --yes.
    Import(ImportArgs),
}

/// The description of a server: a package, an address, a command, or a text.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// A package: npm:NAME, pypi:NAME or docker:IMAGE, run by npx, uvx or docker; arguments follow --
    #[arg(long, value_name = "PACKAGE", conflicts_with_all = ["url", "from_json"])]
    pub package: Option<String>,
    /// The address of a remote server
    #[arg(long, value_name = "URL", conflicts_with_all = ["from_json", "command"])]
    pub url: Option<String>,
    /// A file with an mcpServers block, one server or a server.json; - reads stdin
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub from_json: Option<PathBuf>,
    /// A variable of the server: KEY=${NAME} refers to a variable of the gateway
    #[arg(long, value_name = "KEY=VALUE")]
    pub env: Vec<String>,
    /// A header for a remote server; refer to secrets as ${NAME}
    #[arg(long, value_name = "NAME: VALUE")]
    pub header: Vec<String>,
    /// The command with its arguments, or the arguments of the package
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl TargetArgs {
    /// Returns `true` if the arguments describe a server.
    pub fn is_given(&self) -> bool {
        self.package.is_some() || self.url.is_some() || self.from_json.is_some() || !self.command.is_empty()
    }
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// The name of the server; optional with --from-json
    #[arg(required_unless_present = "from_json")]
    pub name: Option<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Do not ask for confirmation; required without a terminal for --from-json
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct EditArgs {
    /// The server
    pub name: String,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Remove a variable of the server
    #[arg(long, value_name = "KEY")]
    pub remove_env: Vec<String>,
    /// Use a server that was disabled
    #[arg(long, conflicts_with = "disable")]
    pub enable: bool,
    /// Keep the server in the file without using it
    #[arg(long)]
    pub disable: bool,
    /// Do not ask for confirmation; required without a terminal for --from-json
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The server
    pub name: String,
    /// Do not ask for confirmation; required without a terminal
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct TestArgs {
    /// The server
    #[arg(required_unless_present = "from_json")]
    pub name: Option<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    /// The seconds to wait for the server, which may have to be downloaded first
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The servers to add: names as they are listed
    pub names: Vec<String>,
    /// Only from this client
    #[arg(long, value_enum, value_name = "CLIENT")]
    pub from: Option<ClientName>,
    /// Do not ask; required without a terminal
    #[arg(long, short)]
    pub yes: bool,
}

/// A client whose servers can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClientName {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
    Codex,
    Gemini,
    Goose,
}

#[derive(Debug, Args)]
pub struct ConnectAccountArgs {
    /// The server
    pub name: String,
    /// Print the link without opening it
    #[arg(long)]
    pub print: bool,
    /// The seconds to wait for the connection
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub wait: u64,
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
    #[arg(value_name = "TOOL", required_unless_present_any = ["all_reads", "known_reads", "tools"])]
    pub names: Vec<String>,
    /// The same as a positional name
    #[arg(long = "tool", value_name = "TOOL", hide = true)]
    pub tools: Vec<String>,
    /// All tools that declare themselves read-only
    #[arg(long, conflicts_with_all = ["names", "tools"])]
    pub all_reads: bool,
    /// All tools that the program's list for this server names as read-only, whatever they declare
    #[arg(long, conflicts_with_all = ["names", "tools", "all_reads"])]
    pub known_reads: bool,
    /// Do not ask for confirmation; required without a terminal for --all-reads, --known-reads and patterns
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
