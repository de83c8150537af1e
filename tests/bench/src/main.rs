//! Measures the gateway beside its building blocks in one run, and prints ratios.
//!
//! `calls`: CPU per call and latency of a ping and of a read tool over HTTP in both eras and over WebSocket, beside a
//! bare actix-web endpoint that parses and answers JSON of the same size. `proxied`: a call through the gateway to an
//! upstream, beside the same call through nginx. `proposals`: durable proposals per second beside raw SQLite group
//! commits. `fanout`: change events to 1,000 dashboards. `idle`: memory of 10,000 idle WebSocket sessions. `latency`: a
//! reviewer's latency during large calls. `tokens`: a call with an access token beside the same call with a key. `instructions` (only when named): instructions of calls, proposals
//! and decisions, by valgrind, beside another build of the gateway. `store` (only when named): proposals and decisions on SQLite and on
//! PostgreSQL. `cluster` (only when named): SQLite, and one and three gateways on one PostgreSQL. CPU is read from
//! `/proc/PID/stat` of the server, so the load generator's own does not count.

mod bare;
mod calls;
mod cluster;
mod echo;
mod fanout;
mod http;
mod idle;
mod instructions;
mod latency;
mod process;
mod proposals;
mod proxied;
mod report;
mod store;
mod tokens;
mod ws;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

// The gateway's allocator: the two must not differ in it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    Calls,
    Proxied,
    Proposals,
    Fanout,
    Idle,
    Latency,
    Tokens,
    Store,
    Cluster,
    Instructions,
}

#[derive(Parser, Debug)]
struct Args {
    /// The sections to measure; all if none is named.
    sections: Vec<Section>,
    /// A short run: less precise, with the same shape.
    #[arg(long)]
    quick: bool,
    /// Runs only the cases of `calls` and `instructions` whose name contains this text.
    #[arg(long, default_value = "")]
    case: String,
    /// The gateway's program.
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// Another build of the gateway, such as an older one, whose `instructions` are counted in turn.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Worker threads of both servers; by default as many as the gateway starts itself.
    #[arg(long, default_value_t = workers())]
    workers: usize,
    /// Runs as the bare server on this port (used by the program itself).
    #[arg(long, hide = true)]
    bare: Option<u16>,
    /// Runs as the echo upstream on this port (used by the program itself).
    #[arg(long, hide = true)]
    echo: Option<u16>,
    #[arg(long, hide = true, default_value = "modern")]
    era: echo::Era,
    #[arg(long, hide = true, default_value_t = 10)]
    tools: usize,
}

/// Returns one worker for every two cores.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(port) = args.bare {
        return bare::serve(port, args.workers);
    }
    if let Some(port) = args.echo {
        return echo::serve(port, args.workers, args.era, args.tools);
    }
    let gateway = args.gateway.clone().ok_or_else(|| anyhow::anyhow!("--gateway PROGRAM is needed"))?;
    let all = [
        Section::Calls,
        Section::Proxied,
        Section::Tokens,
        Section::Proposals,
        Section::Fanout,
        Section::Idle,
        Section::Latency,
    ];
    let chosen = if args.sections.is_empty() { all.to_vec() } else { args.sections.clone() };
    let setting = process::RunSettings {
        gateway,
        wrapper_command: Vec::new(),
        workers: args.workers,
        quick: args.quick,
        case: args.case.clone(),
    };
    process::raise_limits()?;
    report::head(&setting);
    // One thread for the load; the machine's other cores belong to the servers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for section in chosen {
            match section {
                Section::Calls => calls::run(&setting).await?,
                Section::Proxied => proxied::run(&setting).await?,
                Section::Proposals => proposals::run(&setting).await?,
                Section::Fanout => fanout::run(&setting).await?,
                Section::Idle => idle::run(&setting).await?,
                Section::Latency => latency::run(&setting).await?,
                Section::Tokens => tokens::run(&setting).await?,
                Section::Store => store::run(&setting).await?,
                Section::Cluster => cluster::run(&setting).await?,
                Section::Instructions => instructions::run(&setting, args.beside.as_deref()).await?,
            }
        }
        anyhow::Ok(())
    })?;
    report::tail();
    Ok(())
}
