//! Exit codes that scripts can rely on: small numbers for the outcomes of commands, and the codes of sysexits.h for other
//! errors.

use std::{fmt, process::ExitCode};

use countersign_config::ConfigError;
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::data_dir::LockError;
use countersign_store::StoreError;

/// The exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    /// The request was refused, or it failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// There is no such change or key.
    NotFound = 3,
    /// The change has been updated since it was shown: decided, stale, expired, or at another version.
    Conflict = 4,
    /// The key is missing, invalid, or lacks the right.
    NotAuthorized = 5,
    /// The command line of `check` is wrong (`EX_USAGE`). Its codes 0 and 1 are verdicts, and 2 would be easy to
    /// mistake for one.
    CheckUsage = 64,
    /// No gateway answers, or a port or file cannot be used (`EX_UNAVAILABLE`).
    Unavailable = 69,
    /// An internal error (`EX_SOFTWARE`).
    Internal = 70,
    /// Another gateway serves the data directory (`EX_TEMPFAIL`).
    DataDirInUse = countersign_attach::start::DATA_DIR_TAKEN_EXIT_CODE as isize,
    /// The configuration cannot be used, or the data directory belongs to another store (`EX_CONFIG`).
    Config = 78,
    /// Ctrl-C (128 and the signal's number).
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // All values are far below 256.
        Self::from(u8::try_from(exit as isize).unwrap_or(70))
    }
}

/// The failure of a command: one paragraph for stderr, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    /// `true` if the same request may succeed later.
    pub is_temporary: bool,
    /// `true` if a command that only prints has stopped because the reader of stdout closed the pipe, which is not a failure.
    pub output_closed: bool,
}

impl Failure {
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string(), is_temporary: false, output_closed: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A bare I/O error comes from the terminal or from writing output. Commands convert all others where they occur.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let output_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
        Self { output_closed, ..Self::new(Exit::Failed, format!("output cannot be written: {error}")) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let exit = if matches!(error, StoreError::OtherStore { .. }) { Exit::Config } else { Exit::Unavailable };
        Self::new(exit, error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Config, error)
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held(_) => Self::new(
                Exit::DataDirInUse,
                format!("{error}; use that one, stop it, or choose another directory with --data DIR"),
            ),
            LockError::DataDir(error) => StoreError::from(error).into(),
        }
    }
}

impl From<McpError> for Failure {
    fn from(error: McpError) -> Self {
        let exit = match error.kind {
            ErrorKind::InvalidParams | ErrorKind::ValidationFailed => Exit::Usage,
            ErrorKind::StoreUnavailable => Exit::Unavailable,
            ErrorKind::Internal => Exit::Internal,
            _ => Exit::Failed,
        };
        Self::new(exit, &error.message)
    }
}
