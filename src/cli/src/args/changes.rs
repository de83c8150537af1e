//! Defines `countersign changes`.

use std::{path::PathBuf, time::Duration};

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, RangedU64ValueParser},
};
use jiff::Timestamp;

use crate::moment::{self, Since};
use countersign_config::units::parse_duration;
use countersign_domain::{
    changes::ChangeState,
    policy::standing_rules::{MAX_ALLOW_SECONDS, MAX_DENY_SECONDS},
};

pub const HELP: &str = "\
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

fn state_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(ChangeState::VARIANTS.iter().map(|state| state.as_str()).chain(["all"]))
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
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
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
        /// The evidence for this outcome
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
        /// Start with past events from this time on: 2026-07-28T12:00:00Z, or how long ago (2h, 3d)
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
    /// Only changes proposed at this time or later: 2026-07-28T12:00:00Z, or how long ago (2h, 3d)
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
    pub since: Option<Timestamp>,
    /// Only changes proposed before this time
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
pub struct CreateRuleArgs {
    pub id: String,
    /// Allow such calls for this long, such as 1h or 2 days (at most 30 days)
    #[arg(
        long,
        value_name = "TIME",
        required_unless_present = "deny",
        conflicts_with = "deny",
        value_parser = |text: &str| parse_validity(text, MAX_ALLOW_SECONDS)
    )]
    pub allow_for: Option<Duration>,
    /// Deny such calls until the rule is revoked
    #[arg(long)]
    pub deny: bool,
    /// Deny them for this time only (at most 366 days)
    #[arg(
        long,
        value_name = "TIME",
        requires = "deny",
        value_parser = |text: &str| parse_validity(text, MAX_DENY_SECONDS)
    )]
    pub deny_for: Option<Duration>,
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

/// Parses the validity of a standing rule, with the limit of the gateway for its verdict.
fn parse_validity(text: &str, max_seconds: u64) -> Result<Duration, String> {
    let validity = parse_duration(text)?;
    let is_allowed = (Duration::from_secs(1)..=Duration::from_secs(max_seconds)).contains(&validity);
    if is_allowed { Ok(validity) } else { Err(format!("write a time from 1s to {} days", max_seconds / 86_400)) }
}
