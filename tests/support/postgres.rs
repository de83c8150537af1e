//! A PostgreSQL server for tests: Debian's, started by `scripts/postgres`, stopped with the test program.
//!
//! With `COUNTERSIGN_TEST_STORE=postgres`, every gateway of the black-box tests keeps its store there, with a separate
//! database for each data directory.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::eventually;

/// A separate server.
pub struct Server {
    /// The URL of its socket's folder, to which the name of a database is appended.
    base: String,
    /// The port in the name of its socket.
    port: u16,
    /// The server ends when the pipe to it closes.
    child: Child,
    output: Mutex<BufReader<ChildStdout>>,
    /// Set once the second server is the primary.
    is_second_primary: AtomicBool,
}

impl Server {
    /// Starts a server; `settings` are its options, as `-c fsync=off`.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        Self::start_by(&[], 5432, settings)
    }

    /// Starts a server like [`Self::start`] that may also listen on TCP (`-c listen_addresses=localhost`).
    #[must_use]
    pub fn on_port(port: u16, settings: &[&str]) -> Self {
        Self::start_by(&[], port, settings)
    }

    /// Starts a server like [`Self::on_port`], with a prefix before the script's command.
    #[must_use]
    pub fn start_by(before: &[&str], port: u16, settings: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres");
        let words: Vec<&str> = before.iter().chain(&[script]).chain(settings).copied().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("PGPORT", port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut url, mut reader) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
        reader.read_line(&mut url).unwrap();
        let base = url.trim_end().strip_suffix("postgres").expect("scripts/postgres says what is missing").to_owned();
        Self { base, port, child, output: Mutex::new(reader), is_second_primary: AtomicBool::new(false) }
    }

    /// Returns the folder of the socket; of two servers, that of the primary.
    pub fn folder(&self) -> PathBuf {
        let [first, second] = self.folders();
        if self.is_second_primary.load(Ordering::SeqCst) { second } else { first }
    }

    /// Returns the socket folders of both servers.
    pub fn folders(&self) -> [PathBuf; 2] {
        let (_, host) = self.base.split_once('@').unwrap();
        let first = PathBuf::from(host.trim_end_matches('/').replace("%2F", "/"));
        let second = first.join("second");
        [first, second]
    }

    /// Returns the URL of a database.
    pub fn database(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    /// Stops the server at once, as in a crash.
    pub fn halt(&self) {
        self.send_command("halt");
    }

    /// Starts the server again on the data that it left.
    pub fn restart(&self) {
        self.send_command("launch");
    }

    /// Adds a synchronous replica: each commit is made at both servers.
    pub fn add_replica(&self) {
        self.send_command("follow");
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        eventually("commits wait for the other one", || {
            (self.sql("postgres", "SELECT sync_state FROM pg_stat_replication") == "sync").then_some(())
        });
        // The server that makes commits synchronous has been told before this statement.
        self.sql("postgres", "CHECKPOINT");
        self.wait_for_replica();
    }

    /// Waits until the replica has everything that was committed.
    pub fn wait_for_replica(&self) {
        let end = self.sql("postgres", "SELECT pg_current_wal_lsn()");
        let there = format!("SELECT bool_or(flush_lsn >= '{end}') FROM pg_stat_replication");
        eventually("the other one has it all", || (self.sql("postgres", &there) == "t").then_some(()));
    }

    /// Crashes this server and promotes the replica.
    pub fn fail_over(&self) {
        self.send_command("promote");
        self.is_second_primary.fetch_not(Ordering::SeqCst);
        for statement in ["ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"] {
            self.sql("postgres", statement);
        }
    }

    /// Returns the URL of a database on whichever server is the primary.
    pub fn database_of_both(&self, name: &str) -> String {
        let (user, host) = self.base.trim_end_matches('/').split_once('@').unwrap();
        format!("{user}@{host},{host}%2Fsecond/{name}")
    }

    #[track_caller]
    fn send_command(&self, order: &str) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(self.child.stdin.as_ref().unwrap(), "{order}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), format!("{order}: done"));
    }

    /// Runs SQL in a database and returns its output.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        Self::run(&self.folder(), self.port, database, sql)
    }

    /// Runs SQL like [`Self::sql`], on the server with its socket in that folder.
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

    /// Dumps a database with `pg_dump` while it is in use.
    #[track_caller]
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

/// Returns the server of this test program. A test that crashes its server starts another one, because these run at once.
pub fn shared_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&["-c", "fsync=off", "-c", "max_connections=500"]))
}

/// Returns `true` if the gateways of the tests keep their stores in PostgreSQL.
pub fn is_enabled() -> bool {
    std::env::var("COUNTERSIGN_TEST_STORE").is_ok_and(|store| store == "postgres")
}

/// Returns the URL of the database that keeps this data directory's store, which is created on this server if there is none.
pub fn assign_database(data: &Path, server: &Server) -> String {
    static URLS: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let mut urls = URLS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("test_{}", urls.len());
    let url = urls.entry(data.to_owned()).or_insert_with(|| {
        server.sql("postgres", &format!("CREATE DATABASE {name}"));
        server.database(&name)
    });
    url.clone()
}

/// Makes a command use the database of this data directory, if the tests run on PostgreSQL and the command names no
/// other store.
pub fn set_store_env(command: &mut Command, data: &Path) {
    let variable = "COUNTERSIGN_STORE__URL";
    if is_enabled() && command.get_envs().all(|(name, _)| name != variable) {
        command.env(variable, assign_database(data, shared_server()));
    }
}
