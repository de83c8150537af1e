//! Runs the user's own editor for the arguments of a change.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
};

use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::read_input;

/// The size limit of edited arguments, in bytes: more than any gateway accepts.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file that only this user can read, removed on drop unless it is kept.
pub struct EditorFile(NamedTempFile);

impl EditorFile {
    /// Writes the text to a new file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn new(text: &str) -> io::Result<Self> {
        let mut file = tempfile::Builder::new().prefix("countersign-").suffix(".json").tempfile()?;
        writeln!(file, "{text}")?;
        Ok(Self(file))
    }

    /// Runs the user's editor, which may have arguments of its own, as git does, and returns the new content.
    ///
    /// # Errors
    /// Fails if the editor cannot be run or fails, or if the file then is missing, too large or not UTF-8.
    pub async fn edit(&self) -> io::Result<String> {
        let mut script = chosen_editor().unwrap_or_else(|| OsString::from("vi"));
        script.push(" \"$1\"");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg("sh").arg(self.0.path());
        // The editor does not need the gateway's key.
        let command = command.env_remove("COUNTERSIGN_KEY").env_remove("COUNTERSIGN_AGENT_KEY").kill_on_drop(true);
        let status = command.spawn()?.wait().await?;
        if !status.success() {
            return Err(io::Error::other(format!("it ended with {status}")));
        }
        let text = read_input(self.0.path(), MAX_FILE_BYTES + 1)?;
        if text.len() as u64 > MAX_FILE_BYTES { Err(io::Error::other("the text is too large")) } else { Ok(text) }
    }

    /// Keeps the file, and returns its path.
    pub fn keep(mut self) -> PathBuf {
        self.0.disable_cleanup(true);
        self.0.path().to_owned()
    }
}

/// Returns the command in `$VISUAL` or `$EDITOR`.
pub fn chosen_editor() -> Option<OsString> {
    ["VISUAL", "EDITOR"]
        .into_iter()
        .find_map(|name| std::env::var_os(name).filter(|value| !value.to_string_lossy().trim().is_empty()))
}
