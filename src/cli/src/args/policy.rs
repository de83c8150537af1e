//! Defines `countersign rules` and `countersign policy`.

use clap::{Args, Subcommand};

use super::storage::role_parser;
use countersign_domain::principal::Role;

pub const HELP: &str = "\
Examples:
  countersign changes rule chg_… --allow-for 1h
                                   Allow the same call by the same agent for an hour
  countersign changes rule chg_… --deny --any-arguments --comment 'never'
  countersign rules                List the rules in force
  countersign rules revoke srl_…

A rule that allows calls replaces only an approval that you could have given alone: it never applies if the policy denies \
the call or requires more people, a comment or a preview, if the tool's definition is new or has changed, or to your own calls. \
A rule that denies calls always applies. The key comes from COUNTERSIGN_KEY, as for `countersign changes`.

`countersign servers allow` creates a rule for a whole tool.";

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

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the verdict on a call, the rule that decides, and the terms of a review
    ///
    /// Asks the running gateway, which knows the current tools of its servers. If none runs, answers from the
    /// configuration and the store, without a key, and names what it could not find out. Nothing is called or proposed.
    Test(Box<PolicyTestArgs>),
    /// List the rules in force, in order, with what each decided in the last 30 days
    ///
    /// Asks the running gateway. The numbers are those of all gateways of its store.
    Rules,
}

#[derive(Debug, Args)]
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
    pub arguments: Option<String>,
    /// The name of the calling key
    #[arg(long, value_name = "NAME", default_value = "local-agent")]
    pub principal: String,
    /// The role of that key
    #[arg(long, value_name = "ROLE", default_value = "agent", value_parser = role_parser())]
    pub role: Role,
    /// The owner of the key
    #[arg(long, value_name = "NAME")]
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
