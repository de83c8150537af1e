//! A PostgreSQL for tests: Debian's, started by `scripts/postgres`, gone when the test program ends.
//!
//! With `COUNTERSIGN_TEST_STORE=postgres` every gateway of the black-box tests keeps its store there: each data directory has
//! a database of its own.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::eventually;

/// A server of its own.
pub struct Server {
    /// Of its folder, with the name of a database behind it.
    base: String,
    /// In the name of its socket.
    port: u16,
    /// It ends with the pipe to it.
    child: Child,
    said: Mutex<BufReader<ChildStdout>>,
    /// Whether the second place is that of the one that takes writes.
    second: AtomicBool,
}

impl Server {
    /// `settings` are the server's, as `-c fsync=off`.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        Self::start_by(&[], 5432, settings)
    }

    /// As [`Self::start`], where it listens to TCP too (`-c listen_addresses=localhost`).
    #[must_use]
    pub fn on_port(port: u16, settings: &[&str]) -> Self {
        Self::start_by(&[], port, settings)
    }

    /// As [`Self::on_port`], with a command before that of the script.
    #[must_use]
    pub fn start_by(before: &[&str], port: u16, settings: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres");
        let words: Vec<&str> = before.iter().chain(&[script]).chain(settings).copied().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("PGPORT", port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut url, mut said) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
        said.read_line(&mut url).unwrap();
        let base = url.trim_end().strip_suffix("postgres").expect("scripts/postgres says what is missing").to_owned();
        Self { base, port, child, said: Mutex::new(said), second: AtomicBool::new(false) }
    }

    /// The folder of its socket; of two servers, of the one that takes writes.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let [first, second] = self.folders();
        if self.second.load(Ordering::SeqCst) { second } else { first }
    }

    /// Where the sockets of two servers are.
    #[must_use]
    pub fn folders(&self) -> [PathBuf; 2] {
        let (_, host) = self.base.split_once('@').unwrap();
        let first = PathBuf::from(host.trim_end_matches('/').replace("%2F", "/"));
        let second = first.join("second");
        [first, second]
    }

    /// The address of that database.
    #[must_use]
    pub fn database(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    /// It ends at once, as in a crash.
    pub fn halt(&self) {
        self.order("halt");
    }

    /// It begins again, on what it left.
    pub fn launch(&self) {
        self.order("launch");
    }

    /// Another one replicates it from now on, and what is committed is committed at both.
    pub fn follow(&self) {
        self.order("follow");
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        eventually("commits wait for the other one", || {
            (self.sql("postgres", "SELECT sync_state FROM pg_stat_replication") == "sync").then_some(())
        });
        // Whoever says to the others that commits are to wait has heard of it before it does this.
        self.sql("postgres", "CHECKPOINT");
        self.in_step();
    }

    /// Waits until the other one has all that has been committed.
    pub fn in_step(&self) {
        let end = self.sql("postgres", "SELECT pg_current_wal_lsn()");
        let there = format!("SELECT bool_or(flush_lsn >= '{end}') FROM pg_stat_replication");
        eventually("the other one has it all", || (self.sql("postgres", &there) == "t").then_some(()));
    }

    /// The other one takes writes from now on; this one has crashed.
    pub fn promote(&self) {
        self.order("promote");
        self.second.fetch_not(Ordering::SeqCst);
        for statement in ["ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"] {
            self.sql("postgres", statement);
        }
    }

    /// As [`Self::database`], of whichever of the two takes writes.
    #[must_use]
    pub fn database_of_both(&self, name: &str) -> String {
        let (user, host) = self.base.trim_end_matches('/').split_once('@').unwrap();
        format!("{user}@{host},{host}%2Fsecond/{name}")
    }

    #[track_caller]
    fn order(&self, order: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(self.child.stdin.as_ref().unwrap(), "{order}").unwrap();
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), format!("{order}: done"));
    }

    /// Runs SQL in that database and answers what it prints.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        Self::run(&self.folder(), self.port, database, sql)
    }

    /// As [`Self::sql`], of the server with its socket in that folder.
    #[track_caller]
    pub fn sql_at(folder: &Path, database: &str, sql: &str) -> String {
        Self::run(folder, 5432, database, sql)
    }

    #[track_caller]
    fn run(folder: &Path, port: u16, database: &str, sql: &str) -> String {
        let mut psql = Command::new("psql");
        psql.env("PGPORT", port.to_string());
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--username=countersign", "--host"]);
        let output = psql.arg(folder).args(["--dbname", database, "--command", sql]).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A database as `pg_dump` has it, while it is in use.
    #[track_caller]
    #[must_use]
    pub fn dump(&self, database: &str) -> Vec<u8> {
        let mut dump = Command::new("pg_dump");
        dump.args(["--username=countersign", "--host"]).arg(self.folder()).arg(database);
        let output = dump.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    #[track_caller]
    pub fn restore(&self, database: &str, dump: &[u8]) {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--username=countersign", "--host"]);
        psql.arg(self.folder()).args(["--dbname", database]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = psql.spawn().unwrap();
        child.stdin.take().unwrap().write_all(dump).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The server of this test program.
pub fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&["-c", "fsync=off", "-c", "max_connections=500"]))
}

/// Whether the gateways of the tests are to keep their stores in PostgreSQL.
#[must_use]
pub fn is_asked_for() -> bool {
    std::env::var("COUNTERSIGN_TEST_STORE").is_ok_and(|store| store == "postgres")
}

/// The name of the database of this data directory; it is made where there is none.
#[must_use]
pub fn database_of(data: &Path) -> String {
    static MADE: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    let next = made.len();
    let name = made.entry(data.to_owned()).or_insert_with(|| {
        let name = format!("test_{next}");
        shared().sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    });
    name.clone()
}

/// Lets a command that is about this data directory use the database that belongs to it, where the tests ask for that and
/// the command has no other.
pub fn set(command: &mut Command, data: &Path) {
    let variable = "COUNTERSIGN_STORE__URL";
    if is_asked_for() && command.get_envs().all(|(name, _)| name != variable) {
        command.env(variable, shared().database(&database_of(data)));
    }
}
