//! A PostgreSQL server for unit tests, which `scripts/postgres` starts from Debian's package, and a proxy to it. The server ends
//! with the test process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

pub mod proxy;

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use parking_lot::Mutex;

/// Starts the server once, and returns the address without a database name. The server ends when this process closes
/// the pipe.
fn server_address() -> &'static str {
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

/// Returns the address of the directory's own database, which is created on the first call.
pub fn url_of(dir: &Path) -> String {
    static DATABASE_NAMES: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
    let mut names = DATABASE_NAMES.lock();
    let names = names.get_or_insert_default();
    let next = names.len();
    let name = names.entry(dir.to_owned()).or_insert_with(|| {
        let name = format!("test_{next}");
        let address = format!("{}postgres", server_address());
        let sql = format!("CREATE DATABASE {name}");
        let created = Command::new("psql").args(["--quiet", "--dbname", &address, "--command", &sql]).status();
        assert!(created.unwrap().success());
        name
    });
    format!("{}{name}", server_address())
}
