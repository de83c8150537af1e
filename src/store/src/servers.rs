//! A PostgreSQL server for tests: Debian's, started by `scripts/postgres` for as long as the tests run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "it is only built for tests")]

pub mod proxy;

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Returns the beginning of its addresses. The server ends with this process, which holds a pipe to it.
fn server() -> &'static str {
    static SERVER: OnceLock<(String, Child)> = OnceLock::new();
    let (base, _) = SERVER.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
        let settings = ["-c", "fsync=off", "-c", "max_connections=500"];
        let mut child =
            Command::new(script).args(settings).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let base = url.trim_end().strip_suffix("postgres").expect("scripts/postgres says what is missing");
        (base.to_owned(), child)
    });
    base
}

/// Returns the address of a database of its own for each directory.
pub fn url_of(dir: &Path) -> String {
    static MADE: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    let next = made.len();
    let name = made.entry(dir.to_owned()).or_insert_with(|| {
        let name = format!("test_{next}");
        let address = format!("{}postgres", server());
        let sql = format!("CREATE DATABASE {name}");
        let made = Command::new("psql").args(["--quiet", "--dbname", &address, "--command", &sql]).status();
        assert!(made.unwrap().success());
        name
    });
    format!("{}{name}", server())
}
