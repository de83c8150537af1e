//! Runs the user's own editor for the arguments of a change.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use tokio::process::{Child, Command};

/// Bytes that are read back.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// A file that only this user can read, removed on drop.
pub struct Draft {
    path: PathBuf,
}

impl Draft {
    /// Writes the text to a new file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn new(text: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("countersign-{}.json", nanoid::nanoid!()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let draft = Self { path };
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        Ok(draft)
    }

    /// Starts `$VISUAL`, `$EDITOR` or `vi`, which may have arguments of its own, as git does.
    ///
    /// # Errors
    /// Fails if there is no shell.
    pub fn edit(&self) -> io::Result<Child> {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let mut script = var("VISUAL").or_else(|| var("EDITOR")).unwrap_or_else(|| OsString::from("vi"));
        script.push(" \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg("sh").arg(&self.path);
        // The editor does not need the gateway's key.
        command.env_remove("COUNTERSIGN_KEY").env_remove("COUNTERSIGN_AGENT_KEY").kill_on_drop(true).spawn()
    }

    /// Reads the current content of the file.
    ///
    /// # Errors
    /// Fails if it cannot be read, is too large or is not UTF-8.
    pub fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        fs::File::open(&self.path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_FILE_BYTES { Err(io::Error::other("it is too large")) } else { Ok(text) }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
