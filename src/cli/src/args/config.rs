//! Defines `countersign config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ConnectArgs, ServeArgs};

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Validate the configuration without starting anything; exits with 78 if it cannot be used
    Check(ServeArgs),
    /// Print the configuration in force as YAML, with the source of each value
    ///
    /// Asks the gateway that serves the data directory (with the key in COUNTERSIGN_KEY, or else as `countersign login` signed
    /// you in), and marks values in the file that wait for a reviewer's consent. If the gateway cannot be asked, reads the file
    /// instead, and says so.
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
