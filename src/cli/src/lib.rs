//! The command line, for people and scripts.
//!
//! Results go to stdout and everything else to stderr, except for `stdio`, whose stdout belongs to the protocol. Each
//! failure is one clear paragraph and one exit code ([`exit`]). No command decides on a change by itself: commands ask
//! a running gateway over REST, or work directly on the store or the configuration file. `policy test` also answers
//! while no gateway runs (`offline.rs`).
//!
//! `args` defines the commands, `gateway.rs` runs the gateway, `client` talks to a running one, `changes` is the
//! inbox in the terminal, and each other command has a file of its name.

mod args;
mod audit;
mod backup;
mod browser;
mod changes;
mod check;
mod client;
mod config;
pub mod exit;
mod gateway;
mod health;
mod keys;
mod login;
mod logout;
mod man;
mod moment;
mod nodes;
mod offline;
mod open;
mod output;
mod people;
mod policy;
mod previews;
mod recipes;
mod rules;
mod servers;
mod service;
mod store;
mod version;
mod webhooks;
mod whoami;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue},
};

use self::{
    args::{Cli, Command, DataArgs, config::ConfigCommand},
    exit::{Exit, Failure},
    output::Output,
};
use countersign_child::guard;
use countersign_config::{
    Environment, Flags, LoadedConfig, StoreServer,
    load::{self, StoreSettings, load},
};
use countersign_protocol::suggest;
use countersign_store::{StoreIdentity, StoreLocation};

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    // The guard comes first, because a guard process runs beside every stdio server and must stay small.
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == guard::SUBCOMMAND) {
        return guard::main(args).unwrap_or_else(|error| {
            output::print_error(&error);
            Exit::Usage.into()
        });
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            keep_near_suggestions(&mut error);
            let is_check = std::env::args_os().nth(1).is_some_and(|first| first == "check");
            // clap itself prints --help, --version and usage errors (exit code 2).
            let exit = if is_check && error.use_stderr() {
                Exit::CheckUsage.into()
            } else {
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            };
            let _ = error.print();
            return exit;
        }
    };
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::print_error(&failure.message);
            failure.exit.into()
        }
    }
}

/// Removes the suggested subcommands that are not near the given one. clap also suggests `logout` for `bogus`.
fn keep_near_suggestions(error: &mut clap::Error) {
    let Some(ContextValue::Strings(mut suggested)) = error.remove(ContextKind::SuggestedSubcommand) else { return };
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return };
    suggested.retain(|name| suggest::nearest(given, [name.as_str()]).is_some());
    if !suggested.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(suggested));
    }
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    let command = cli.command.unwrap_or(Command::Serve(cli.serve));
    let mut out = Output::stdout();
    let result = match command {
        Command::Serve(args) => return gateway::serve(&args),
        Command::Stdio(args) => return gateway::stdio(&args),
        Command::Open(args) => open::run(&args, &mut out),
        Command::Login(args) => login::run(&args, &mut out),
        Command::Logout(args) => logout::run(&args, &mut out),
        Command::Whoami(args) => whoami::run(&args, &mut out),
        Command::Service(args) => service::run(&args, &mut out),
        Command::Changes(args) => changes::run(&args, &mut out),
        Command::Servers(args) => servers::run(&args, &mut out),
        Command::Rules(args) => rules::run(&args, &mut out),
        Command::Policy(args) => policy::run(&args, &mut out),
        Command::Previews(args) => previews::run(&args, &mut out),
        Command::Webhooks(args) => webhooks::run(&args, &mut out),
        Command::Nodes(args) => nodes::run(&args, &mut out),
        Command::Keys(args) => keys::run(&args, &mut out),
        Command::People(args) => people::run(&args, &mut out),
        Command::Backup(args) => backup::run(&args, &mut out),
        Command::Store(args) => store::run(&args, &mut out),
        Command::Audit(args) => audit::run(&args, &mut out),
        Command::Config(ConfigCommand::Check(args)) => config::check(&args, &mut out),
        Command::Config(ConfigCommand::Show(args)) => config::show(&args, &mut out),
        Command::Config(ConfigCommand::Pending(args)) => config::pending(&args, &mut out),
        Command::Config(ConfigCommand::Consent(args)) => config::consent(&args, &mut out),
        Command::Check(args) => check::run(&args, &mut out),
        Command::Health(args) => health::run(&args, &mut out),
        Command::Man { folder } => man::run(&folder),
        Command::Version { json } => version::run(json, &mut out),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "countersign", &mut text);
            out.write_raw(&String::from_utf8_lossy(&text)).map(|()| Exit::Ok).map_err(Failure::from)
        }
    };
    match result.and_then(|exit| out.finish().map(|()| exit).map_err(Failure::from)) {
        // The reader has closed stdout because it has read enough, like `head -1`.
        Err(failure) if failure.output_closed => Ok(Exit::Ok),
        result => result,
    }
}

/// Loads and validates the whole configuration.
fn configuration(flags: &Flags) -> Result<LoadedConfig, Failure> {
    Ok(load(flags, &Environment::from_process())?)
}

/// Returns the data directory, which leads to the gateway that serves it.
fn data_dir(args: &DataArgs) -> Result<PathBuf, Failure> {
    Ok(load::data_dir(&args.flags(), &Environment::from_process())?)
}

/// Reads at most this number of bytes of a text from a file, or from stdin for `-`.
fn read_input(source: &Path, max_bytes: u64) -> io::Result<String> {
    let reader: Box<dyn Read> =
        if source == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(source)?) };
    io::read_to_string(reader.take(max_bytes))
}

/// Returns the settings of the store from the configuration that a flag or a variable names, else from that of the
/// gateway that last served the data directory, else the defaults.
fn store_settings(args: &DataArgs) -> Result<StoreSettings, Failure> {
    let env = Environment::from_process();
    let settings = load::store_settings(&args.flags(), &env)?;
    if load::is_store_named(&args.flags(), &env) {
        return Ok(settings);
    }
    let Some(config) = StoreIdentity::read(&settings.data)?.and_then(|known| known.config) else { return Ok(settings) };
    match File::open(&config) {
        Ok(_) => {
            let flags = Flags { config: Some(config), listen: None, data: Some(settings.data) };
            Ok(load::store_settings(&flags, &env)?)
        }
        Err(_) if settings.server.is_some() => Ok(settings),
        Err(error) => {
            let (data, config) = (settings.data.display(), config.display());
            let message = format!(
                "the data directory {data} names {config} as the configuration with the address of its store, which cannot \
                 be read: {error}. Name the configuration with --config FILE, or the database with COUNTERSIGN_STORE__URL"
            );
            Err(Failure::new(Exit::Config, message))
        }
    }
}

/// Returns the location of the store with the settings that [`store_settings`] finds.
fn store_location(args: &DataArgs) -> Result<StoreLocation, Failure> {
    location_from_settings(&store_settings(args)?)
}

/// Returns the location of the store with these settings.
fn location_from_settings(settings: &StoreSettings) -> Result<StoreLocation, Failure> {
    Ok(StoreLocation::configured(&settings.data, settings.server.as_ref().map(StoreServer::address))?)
}
