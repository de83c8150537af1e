//! `serve` and `stdio`: set up logs and metrics, then run the gateway or attach to one that runs. (`src/program` sets the
//! allocator.)

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    args::{ServeArgs, StdioArgs},
    configuration,
    exit::{Exit, Failure},
};
use countersign_app::serve::{self, Options, ServeError};
use countersign_attach::{
    AttachError, GatewayFile, ProxyOutcome,
    hello::{Hello, agent_key},
    proxy,
    start::{self, GatewayCommand},
};
use countersign_config::{
    Environment, Flags, LoadedConfig,
    load::{data_dir, find_config_file, log_config},
};
use countersign_runtime::{
    data_dir::LockError,
    installation::{Installation, program_path},
};
use countersign_store::StoreError;
use countersign_telemetry::{
    Metrics,
    logs::{self, LogConfig},
};

pub fn serve(args: &ServeArgs) -> Result<Exit, Failure> {
    if args.detached {
        start::detach();
    }
    let loaded = configuration(&args.flags())?;
    let log_file = args.detached.then(|| loaded.config.data.join(start::LOG_FILE));
    let (_logs, metrics) = set_up(&loaded, log_file)?;
    let options = Options { detached: args.detached, stdio: false, accept_policy: args.accept_policy };
    serve::run(loaded, args.flags(), options, metrics)?;
    Ok(Exit::Ok)
}

pub fn stdio(args: &StdioArgs) -> Result<Exit, Failure> {
    let (flags, env) = (args.flags(), Environment::from_process());
    if args.standalone {
        let loaded = configuration(&flags)?;
        let (_logs, metrics) = set_up(&loaded, None)?;
        serve::run(loaded, flags, Options { stdio: true, ..Options::default() }, metrics)?;
        return Ok(Exit::Ok);
    }
    let data = data_dir(&flags, &env)?;
    if !matches!(GatewayFile::read(&data), Ok(Some(_))) {
        // A detached gateway would refuse an invalid configuration, too, but would report that only in its log.
        configuration(&flags)?;
    }
    let _logs = start_logging(&log_config(&flags, &env), None)?;
    let unreadable = |name| Failure::new(Exit::Usage, format!("environment variable {name} is not Unicode"));
    let hello = Hello::from_process(agent_key(&env).map_err(unreadable)?);
    let command = gateway_command(&flags, &data, find_config_file(&flags, &env).as_deref())?;
    // One thread is enough for one agent's lines.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Unavailable, format!("the runtime could not be started: {error}")))?;
    let result = runtime.block_on(attach(&data, &hello, &command));
    // A read of stdin may still block another thread, for which the process does not wait.
    runtime.shutdown_background();
    result
}

/// Sets up logging, the panic hook and metrics of a serving process; warnings about the configuration are logged.
fn set_up(loaded: &LoadedConfig, log_file: Option<PathBuf>) -> Result<(logs::LogGuard, Metrics), Failure> {
    let guard = start_logging(&loaded.config.log, log_file)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let metrics = Metrics::install().map_err(|error| Failure::new(Exit::Internal, error))?;
    Ok((guard, metrics))
}

fn start_logging(config: &LogConfig, log_file: Option<PathBuf>) -> Result<logs::LogGuard, Failure> {
    logs::init(config, log_file)
        .map_err(|error| Failure::new(Exit::Internal, format!("logging could not be set up: {error}")))
}

/// Builds the command that starts the gateway of this data directory, with all paths made absolute.
fn gateway_command(flags: &Flags, data: &Path, file: Option<&Path>) -> Result<GatewayCommand, Failure> {
    let program = program_path()
        .map_err(|error| Failure::new(Exit::Unavailable, format!("this program's own path is not known: {error}")))?;
    let mut arguments: Vec<OsString> = vec!["serve".into(), "--detached".into()];
    let mut flag = |name: &str, value: &OsStr| arguments.extend([name.into(), value.to_owned()]);
    if let Some(file) = file {
        flag("--config", file.as_os_str());
    }
    flag("--data", data.as_os_str());
    if let Some(listen) = &flags.listen {
        flag("--listen", listen.as_ref());
    }
    Ok(GatewayCommand { program, arguments })
}

async fn attach(data: &Path, hello: &Hello, command: &GatewayCommand) -> Result<Exit, Failure> {
    let open = |kind| {
        signal(kind).map_err(|error| Failure::new(Exit::Unavailable, format!("signals cannot be received: {error}")))
    };
    let mut signals = [open(SignalKind::terminate())?, open(SignalKind::interrupt())?, open(SignalKind::hangup())?];
    let connected = tokio::select! {
        connected = start::connect_or_start(data, hello, command) => connected?,
        () = wait_for_any(&mut signals) => return Ok(Exit::Ok),
    };
    let connect = async |may_start| match may_start {
        true => start::connect_or_start(data, hello, command).await.map(Some),
        false => start::connect(data, hello).await,
    };
    match proxy::run(tokio::io::stdin(), tokio::io::stdout(), connected, connect, wait_for_any(&mut signals)).await {
        ProxyOutcome::Done | ProxyOutcome::OutputClosed => Ok(Exit::Ok),
        ProxyOutcome::GatewayGone => {
            let log_file = data.join(start::LOG_FILE);
            let message =
                format!("the gateway of {} ends again and again; look at {}", data.display(), log_file.display());
            Err(Failure::new(Exit::Unavailable, message))
        }
        ProxyOutcome::NoGateway(error) => Err(error.into()),
        ProxyOutcome::Failed(error) => Err(AttachError::Io(error).into()),
    }
}

/// Returns when one of the signals arrives.
async fn wait_for_any(signals: &mut [Signal; 3]) {
    let [terminate, interrupt, hangup] = signals;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Self {
        let exit = match error {
            AttachError::Refused(_) => Exit::NotAuthorized,
            AttachError::Io(_) => Exit::Failed,
            _ => Exit::Unavailable,
        };
        Self::new(exit, error)
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let exit = match &error {
            ServeError::Lock(LockError::Held(_)) => Exit::DataDirInUse,
            ServeError::Routes(_)
            | ServeError::Tls(_)
            | ServeError::KeyFile(_)
            | ServeError::OtherTokenKey
            | ServeError::Store(StoreError::OtherStore { .. }) => Exit::Config,
            ServeError::Stdio(_) => Exit::NotAuthorized,
            ServeError::CoreEnded => Exit::Internal,
            _ => Exit::Unavailable,
        };
        let message = error.to_string();
        if exit == Exit::DataDirInUse {
            let command = Installation::current().command("open");
            return Self::new(exit, format!("{message}; `{command}` signs you in to its dashboard"));
        }
        Self::new(exit, message)
    }
}
