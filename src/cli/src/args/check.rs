//! Defines `countersign check`.

use std::path::PathBuf;

use clap::Args;

use super::DataArgs;

pub const HELP: &str = "\
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
