//! Structured logs on stderr, never on stdout, which belongs to the stdio protocol. Colors are used only on a terminal.

use std::{io::IsTerminal, path::PathBuf, sync::OnceLock, time::Duration};

use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, layer::SubscriberExt, reload::Handle, reload::Layer as Reload,
    util::SubscriberInitExt,
};

use super::writer::StderrWriter;
pub use super::writer::open_log;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// The configuration of logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A `tracing` filter, such as `info,countersign=debug`.
    pub filter: String,
    pub format: LogFormat,
}

/// Maximum time to wait for a slow reader of stderr when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(250);

static WRITER: OnceLock<StderrWriter> = OnceLock::new();
static FILTER: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

/// Writes queued log lines when it is dropped, so it must live until the process ends.
#[must_use]
pub struct LogGuard(());

impl Drop for LogGuard {
    fn drop(&mut self) {
        flush();
    }
}

/// The reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log thread could not be started: {0}")]
    Thread(std::io::Error),
    #[error("log.filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("logging was set up before")]
    AlreadyInitialized,
    #[error("logging is not set up")]
    NotInitialized,
}

/// Starts logging, and logs panics from now on. `log_file` is the file to which stderr already points (see [`open_log`]).
/// It is rotated at a few MiB.
///
/// # Errors
/// An invalid filter, a thread that cannot be started, or a second call.
pub fn init(config: &LogConfig, log_file: Option<PathBuf>) -> Result<LogGuard, LogError> {
    let filter = parse_filter(&config.filter)?;
    let writer = StderrWriter::start(log_file).map_err(LogError::Thread)?;
    let use_color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let layer = tracing_subscriber::fmt::layer().with_writer(writer.clone());
    let layer = match config.format {
        LogFormat::Text => layer.with_ansi(use_color).boxed(),
        LogFormat::Json => layer.with_ansi(false).json().flatten_event(true).boxed(),
    };
    let (filter, handle) = Reload::new(filter);
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(|_| LogError::AlreadyInitialized)?;
    let _ = WRITER.set(writer);
    let _ = FILTER.set(handle);
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("(no message)");
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(target: "countersign::panic", %thread, at = %location, %backtrace, "panic: {message}");
        // The process may be about to abort.
        flush();
    }));
    Ok(LogGuard(()))
}

/// Parses a filter. At `info`, the web server's messages about its workers are left out, unless the filter names it.
fn parse_filter(text: &str) -> Result<EnvFilter, LogError> {
    let filter = EnvFilter::builder().parse(text)?;
    if text.contains("actix") || filter.max_level_hint() != Some(LevelFilter::INFO) {
        return Ok(filter);
    }
    Ok(filter.add_directive("actix_server=warn".parse()?))
}

/// Replaces the filter that [`init`] set.
///
/// # Errors
/// An invalid filter, or logging that was never set up. The old filter stays.
pub fn set_filter(filter: &str) -> Result<(), LogError> {
    let filter = parse_filter(filter)?;
    FILTER.get().ok_or(LogError::NotInitialized)?.reload(filter).map_err(|_| LogError::NotInitialized)
}

/// Waits, for at most a quarter of a second, until all logged lines are written.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush(FLUSH_TIMEOUT);
    }
}
