//! Defines `countersign previews`.

use clap::{Args, Subcommand};

pub const HELP: &str = "\
Examples:
  countersign previews test files write_file --arguments '{\"path\": \"/srv/a\", \"content\": \"x\"}'
                                   Show what a reviewer would see

docs/previews.md explains how to write recipes. The key comes from COUNTERSIGN_KEY, as for `countersign changes`.";

#[derive(Debug, Subcommand)]
pub enum PreviewsCommand {
    /// Show the preview of a call without proposing it; needs a reviewer's key
    ///
    /// The running gateway makes the reads of the recipe as the owner of the key, with the rights of an agent. Nothing is
    /// proposed or stored.
    Test(PreviewTestArgs),
}

#[derive(Debug, Args)]
pub struct PreviewTestArgs {
    /// The name of the server in the configuration
    pub server: String,
    /// The name of the tool, as the server or as agents see it
    pub tool: String,
    /// The arguments as JSON; - reads them from stdin
    #[arg(long, value_name = "JSON")]
    pub arguments: Option<String>,
}
