//! Defines the commands that work on the stored data: `keys`, `people` (which also sets an absence), `backup`, `store` and `audit`.

use std::path::PathBuf;

use clap::{
    Args, Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use jiff::Timestamp;

use super::{ConnectArgs, DataArgs};
use crate::moment;
use countersign_domain::{changes::export::ExportFormat, principal::Role};

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Create a key and print it on stdout; only its hash is stored, so it cannot be shown again
    Create {
        /// The role, which determines what the key may do
        #[arg(long, value_name = "ROLE", value_parser = role_parser())]
        role: Role,
        /// The name that is recorded in changes and decisions
        #[arg(long, value_name = "NAME")]
        name: String,
        /// The owner, if it differs from the name: a person with several keys decides once, and never on their own
        /// proposals
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
        /// The owner, as a person at an identity provider: what they propose with an access token cannot be approved with
        /// this key
        #[arg(long, num_args = 2, value_names = ["ISSUER", "SUBJECT"], conflicts_with = "owner")]
        subject: Option<Vec<String>>,
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

#[derive(Debug, Subcommand)]
pub enum PeopleCommand {
    /// List the people of the identity provider who have signed in or were revoked
    List {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// End all access of a person within a second: sign-ins, access tokens, keys, and approvals of open changes
    ///
    /// NAME is that of `countersign people list`: ISSUER#SUBJECT. That of a client which acts for the person
    /// (ISSUER#SUBJECT#CLIENT) revokes the person, too. The person cannot sign in again.
    Revoke { name: String },
    /// Let a deputy decide for your groups while you are away
    ///
    /// Until then, the deputy counts as a member of the groups of `policy.groups` that list you by name. They have one vote, in place
    /// of yours, and none on changes that you or they proposed.
    Away(AwayArgs),
    /// End your absence; approvals by your deputy stay valid
    Back(ConnectArgs),
}

#[derive(Debug, Args)]
pub struct AwayArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// When you are back, at most 60 days from now: a time (2026-07-28T12:00:00Z), a date (the start of that day), or a
    /// duration from now (3d)
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_end)]
    pub until: Timestamp,
    /// Somebody else who may decide on changes: an owner or a name of `countersign keys list`, or ISSUER#SUBJECT
    #[arg(long, value_name = "NAME")]
    pub deputy: String,
}

/// Parses the role of a key.
pub fn role_parser() -> impl TypedValueParser<Value = Role> {
    let roles = [
        (Role::Agent, "Speaks MCP: reads, and proposes changes"),
        (Role::Reviewer, "Sees all changes and decides on them"),
        (Role::Viewer, "Sees all changes and cannot act"),
        (Role::Admin, "May do all of the above"),
    ];
    PossibleValuesParser::new(roles.map(|(role, help)| PossibleValue::new(role.as_str()).help(help)))
        .try_map(|name| Role::parse(&name).ok_or("there is no such role"))
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
        #[arg(long, default_value = "jsonl", value_parser = format_parser())]
        format: ExportFormat,
        /// Only entries at this time or later: 2026-07-28T12:00:00Z, or how long ago (2h, 3d)
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
        since: Option<Timestamp>,
        /// Only entries before this time
        #[arg(long, value_name = "WHEN", value_parser = moment::parse_moment)]
        until: Option<Timestamp>,
    },
}

fn format_parser() -> impl TypedValueParser<Value = ExportFormat> {
    PossibleValuesParser::new(["jsonl", "csv"])
        .try_map(|name| ExportFormat::parse(&name).ok_or("there is no such format"))
}
