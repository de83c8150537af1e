//! Tests of what packages and service managers use: the version, the health probe, the manual pages, notifications and
//! credentials of systemd.

use std::{
    collections::BTreeSet,
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use regex::Regex;
use rustix::{
    process::Signal,
    time::{ClockId, clock_gettime},
};
use serde_json::Value;
use support::{
    DeadPort, Gateway, Options, Process,
    cli::{Home, Lines},
    eventually,
    fake::{FakeGateway, json},
    mcp,
    tls::TlsGateway,
};

use crate::docs::ROOT;

#[test]
fn version_names_commit_features_and_schemas() {
    let home = Home::new();
    let text = home.run(&["--version"]).ends(0).stdout();
    // An archive of the sources has no commit.
    let form = Regex::new(r"^countersign (\d+\.\d+\.\d+)(?: \(([0-9a-f]{12}) (\d{4}-\d\d-\d\d)\))?\n$").unwrap();
    let parts = form.captures(&text).unwrap_or_else(|| panic!("{text:?}"));
    let part = |number: usize| parts.get(number).map_or(Value::Null, |part| part.as_str().into());
    let json = home.run(&["version", "--json"]).ends(0).stdout();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["version"], &json["commit"], &json["date"]), (&part(1), &part(2), &part(3)));
    for feature in ["hosted-servers", "oidc", "postgresql"] {
        assert!(json["features"].as_array().unwrap().contains(&feature.into()), "{json}");
    }
    assert!(json["protocolVersions"].as_array().unwrap().contains(&"2025-11-25".into()), "{json}");
    home.run(&["version"]).ends(0).says(&[&text, "features: access-tokens, docs, ", "schema versions of the store: "]);

    // The schema versions are those of a new store.
    home.run(&["keys", "create", "--role", "agent", "--name", "a"]).ends(0);
    let store = rusqlite::Connection::open(home.data().join("countersign.db")).unwrap();
    let version: i64 = store.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(json["schemaVersions"]["sqlite"], version, "{json}");
    let migrations = fs::read_dir(Path::new(ROOT).join("src/store/src/postgres/migrations")).unwrap().count();
    assert_eq!(json["schemaVersions"]["postgresql"], migrations, "{json}");
}

/// The build script of the command line, compiled, and a folder that looks like a copy of the repository.
struct BuildScript {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl BuildScript {
    fn compile() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("copy/src/cli")).unwrap();
        let program = folder.path().join("script");
        let source = Path::new(ROOT).join("src/cli/build.rs");
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
        let compiled = Command::new(rustc).arg("--edition=2024").arg("-o").arg(&program).arg(source).status().unwrap();
        assert!(compiled.success());
        Self { folder, program }
    }

    fn copy(&self) -> PathBuf {
        self.folder.path().join("copy").canonicalize().unwrap()
    }

    /// Runs the script in the copy; returns what it tells Cargo, or its error.
    fn run(&self, vars: &[(&str, &str)]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("CARGO_PKG_VERSION", "1.2.3");
        command.env("CARGO_MANIFEST_DIR", self.copy().join("src/cli")).envs(vars.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn git(&self, folder: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(["-c", "user.name=a", "-c", "user.email=a@b.example"]).args(arguments);
        // One in the morning in this zone is the day before in UTC.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("GIT_COMMITTER_DATE", "2026-03-02T01:00:00+02:00");
        assert!(command.env("HOME", self.folder.path()).output().unwrap().status.success(), "git {arguments:?}");
    }
}

#[test]
fn build_takes_the_commit_from_git_or_the_environment() {
    let script = BuildScript::compile();
    let copy = script.copy();
    let version = |told: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix("cargo::rustc-env=BUILD_VERSION="));
        line.unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    // An archive that was unpacked inside of another repository has no commit of its own.
    script.git(script.folder.path(), &["init", "--quiet"]);
    script.git(script.folder.path(), &["commit", "--quiet", "--allow-empty", "-m", "x"]);
    assert_eq!(version(&script.run(&[]).unwrap()), "1.2.3");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let vars = [("COUNTERSIGN_COMMIT", commit), ("COUNTERSIGN_COMMIT_DATE", "2026-11-26")];
    assert_eq!(version(&script.run(&vars).unwrap()), "1.2.3 (0123456789ab 2026-11-26)");
    for wrong in [("COUNTERSIGN_COMMIT", "main"), ("COUNTERSIGN_COMMIT_DATE", "today")] {
        let error = script.run(&[wrong]).unwrap_err();
        assert!(error.contains(wrong.0), "{error}");
    }

    script.git(&copy, &["init", "--quiet"]);
    script.git(&copy, &["commit", "--quiet", "--allow-empty", "-m", "x"]);
    let told = script.run(&[]).unwrap();
    let form = Regex::new(r"^1\.2\.3 \([0-9a-f]{12} 2026-03-01\)$").unwrap();
    assert!(form.is_match(&version(&told)), "{told}");
    assert_eq!(script.run(&[]).unwrap(), told, "the same commit gives the same output");
    let watched: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("cargo::rerun-if-changed=")).collect();
    let log = copy.join(".git/logs/HEAD");
    assert_eq!(watched, ["build.rs", log.to_str().unwrap()], "only another commit runs it again");
    // Without a log of HEAD, its branch is watched.
    fs::remove_file(log).unwrap();
    let told = script.run(&[]).unwrap();
    assert!(told.contains("/.git/HEAD\n") && told.contains("/.git/refs/heads/"), "{told}");
    assert_eq!(version(&script.run(&vars).unwrap()), "1.2.3 (0123456789ab 2026-11-26)");
}

#[test]
fn health_is_one_line_and_zero_or_one() {
    let home = Home::new();
    let health = |arguments: &[&str], code: i32, says: &str| {
        let result = home.run(&[&["health"], arguments].concat()).ends(code);
        let (used, unused) = match code {
            0 => (result.stdout(), result.stderr()),
            _ => (result.stderr(), result.stdout()),
        };
        assert!(used.contains(says) && used.lines().count() == 1 && unused.is_empty(), "{used}{unused}");
    };
    let gateway = Gateway::start();
    let (data, url) = (gateway.data(), format!("http://127.0.0.1:{}", gateway.port));
    let data = data.to_str().unwrap();
    health(&["--data", data], 0, &format!("the gateway at {url} is ready"));
    health(&["--url", &url], 0, &url);
    home.run_with(&[("COUNTERSIGN_URL", &url)], &["health"]).ends(0).says(&[&url]);
    let body = home.run(&["health", "--data", data, "--json"]).ends(0).stdout();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["ready"], true, "{body}");

    health(&[], 1, "no gateway serves");
    let unreadable = tempfile::tempdir().unwrap();
    fs::create_dir(unreadable.path().join("gateway.json")).unwrap();
    health(&["--data", unreadable.path().to_str().unwrap()], 1, "cannot be read: Is a directory");
    health(&["--url", "nonsense"], 1, "is not the URL of a gateway");
    health(&["--config", "/none.yaml"], 1, "/none.yaml");
    health(&["--data", data, "--ca", "/none.pem"], 1, "--ca /none.pem");
    health(&["--url", &format!("http://{}", DeadPort::new().address)], 1, "does not answer");
    let other = FakeGateway::start(|_, _| json("200 OK", &serde_json::json!({"status": "ok"})));
    health(&["--url", &other.url], 1, "is not from a Countersign gateway");
    // Another program may have taken the port of the gateway of a data directory.
    let mut file: Value =
        serde_json::from_str(&fs::read_to_string(gateway.data().join("gateway.json")).unwrap()).unwrap();
    let taken = tempfile::tempdir().unwrap();
    file["url"] = other.url.as_str().into();
    fs::write(taken.path().join("gateway.json"), file.to_string()).unwrap();
    health(&["--data", taken.path().to_str().unwrap()], 1, "is not the gateway of");
}

/// Starts a gateway that may lack a required server, and returns when it listens.
fn start_unready(home: &Path, env: Vec<(&str, &str)>, config: &str) -> (Process, u16) {
    let mut process = Gateway::spawn(home, &Options { env, config: Some(config) });
    let address = support::published_address(&mut process, &home.join("data"));
    (process, address.expect("it listens").port())
}

#[test]
fn health_names_what_is_missing() {
    let config = "mcpServers:\n  files: { command: /nonexistent, required: true }\n";
    let (dir, home) = (tempfile::tempdir().unwrap(), Home::new());
    let (_process, _) = start_unready(dir.path(), Vec::new(), config);
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    home.run(&["health", "--data", data]).ends(1).complains(&["is not ready: no connection to files"]);
    home.run(&["health", "--data", data, "--json"]).ends(1).says(&[r#""ready":false"#, r#""missing":["files"]"#]);
}

/// The certificate is not one for the local address that a probe in a container uses.
#[test]
fn health_reaches_a_gateway_with_tls_by_its_data() {
    let tls = TlsGateway::start_with("public_url: https://gateway.example\n");
    let home = Home::new();
    home.run(&["health", "--data", tls.data().to_str().unwrap()]).ends(0).says(&["https://127.0.0.1:"]);
    home.run(&["health", "--url", &tls.base]).ends(1).complains(&["does not answer"]);
    tls.stop();
}

#[test]
fn manual_has_a_page_for_each_command() {
    let home = Home::new();
    let folder = home.path().join("man");
    let write = || {
        home.run(&["man", folder.to_str().unwrap()]).ends(0);
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        files.map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect::<BTreeSet<_>>()
    };
    let pages = write();
    assert_eq!(write(), pages, "the same program writes the same pages");
    let page = |name: &str| {
        let found = pages.iter().find(|(file, _)| file.file_name().unwrap() == name);
        found.unwrap_or_else(|| panic!("there is no {name}")).1.as_str()
    };
    let main = page("countersign.1");
    for part in
        [".TH COUNTERSIGN 1", ".SH EXAMPLES", ".SH ENVIRONMENT", ".SH \"EXIT CODES\"", "countersign\\-changes(1)"]
    {
        assert!(main.contains(part), "{part} is not in {main}");
    }
    assert!(page("countersign-changes-approve.1").contains("SEE ALSO"));
    for (file, text) in &pages {
        let name = file.file_stem().unwrap().to_str().unwrap();
        assert_ne!(name, "countersign-man", "a hidden command has no page");
        assert!(!text.contains("detached"), "{name} shows a hidden option");
        let synopsis =
            text.split(".SH SYNOPSIS\n\\fB").nth(1).unwrap().split("\\fR").next().unwrap().replace("\\-", "-");
        assert_eq!(synopsis.replace(' ', "-"), name);
        home.run(&synopsis.split(' ').skip(1).chain(["--help"]).collect::<Vec<_>>()).ends(0);
    }
    let file = home.write("file", "");
    home.run(&["man", file.join("man").to_str().unwrap()]).ends(69).complains(&["cannot be written to"]);
}

/// The socket of a service manager.
struct NotifySocket {
    socket: UnixDatagram,
    /// The value of `NOTIFY_SOCKET`.
    name: String,
}

impl NotifySocket {
    fn at_path(path: &Path) -> Self {
        Self { socket: UnixDatagram::bind(path).unwrap(), name: path.to_str().unwrap().to_owned() }.with_timeout()
    }

    fn with_abstract_name() -> Self {
        let name = format!("countersign-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self { socket, name: format!("@{name}") }.with_timeout()
    }

    fn with_timeout(self) -> Self {
        self.socket.set_read_timeout(Some(support::MAX_WAIT)).unwrap();
        self
    }

    fn receive(&self) -> String {
        let mut bytes = [0; 4096];
        let size = self.socket.recv(&mut bytes).expect("a message arrives");
        String::from_utf8(bytes[..size].to_vec()).unwrap()
    }

    /// Returns the messages up to the first one that contains the text.
    fn receive_until(&self, text: &str) -> Vec<String> {
        let mut messages = Vec::new();
        while !messages.last().is_some_and(|message: &String| message.contains(text)) {
            messages.push(self.receive());
        }
        messages
    }
}

/// Writes a server that stores its environment in a file and then waits.
fn recording_server(name: &str, file: &Path, more: &str) -> String {
    let script = format!("env > {0}.new; mv {0}.new {0}; echo using $TOKEN >&2; exec cat", file.display());
    format!("  {name}: {{ command: sh, args: [-c, '{script}'], {more} }}\n")
}

#[test]
fn service_manager_learns_the_state_of_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let socket = NotifySocket::at_path(&dir.path().join("notify"));
    let environment = dir.path().join("environment");
    let recording = recording_server("recording", &environment, "");
    let config = format!("mcpServers:\n  files: {{ command: /nonexistent, required: true }}\n{recording}");
    let env = vec![("NOTIFY_SOCKET", socket.name.as_str()), ("WATCHDOG_USEC", "100000")];
    let (mut gateway, port) = start_unready(dir.path(), env, &config);
    assert_eq!(socket.receive(), "READY=1\nSTATUS=Not ready: no connection to files");
    // A restart would not bring the missing server back, so the watchdog is kept quiet.
    assert_eq!([socket.receive(), socket.receive()], ["WATCHDOG=1", "WATCHDOG=1"]);
    fs::write(dir.path().join("countersign.yaml"), format!("mcpServers:\n{recording}")).unwrap();
    let serving = format!("STATUS=Serving http://127.0.0.1:{port}/");
    let messages = socket.receive_until("STATUS=");
    assert_eq!(messages.last(), Some(&serving));

    let inherited = eventually("the server runs", || fs::read_to_string(&environment).ok());
    assert!(
        inherited.contains("PATH=") && !inherited.contains("NOTIFY_") && !inherited.contains("WATCHDOG_"),
        "{inherited}"
    );
    gateway.terminate();
    assert_eq!(gateway.wait_for_exit().code(), Some(0));
    let messages = socket.receive_until("STOPPING=1");
    assert!(messages.iter().rev().skip(1).all(|message| message == "WATCHDOG=1"), "{messages:?}");
}

#[test]
fn service_manager_learns_of_reloads_by_signal() {
    let dir = tempfile::tempdir().unwrap();
    let socket = NotifySocket::at_path(&dir.path().join("notify"));
    let env = vec![("NOTIFY_SOCKET", socket.name.as_str())];
    let gateway = Gateway::with_options(&Options { env, config: Some("") });
    let ready = format!("READY=1\nSTATUS=Serving http://127.0.0.1:{}/", gateway.port);
    assert_eq!(socket.receive(), ready);
    let monotonic_microseconds = || {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
    };
    // A file that is refused does not fail the service.
    for (config, result) in [("policy: { default: deny }\n", "applied"), ("policy: 1\n", "refused")] {
        // It gets the signal together with the file, which it would otherwise find by itself after a while.
        support::freeze(gateway.process.0.id());
        fs::write(gateway.home.path().join("countersign.yaml"), config).unwrap();
        let asked = monotonic_microseconds();
        for sent in [Signal::HUP, Signal::CONT] {
            support::signal(gateway.process.0.id(), sent);
        }
        let begun = socket.receive();
        let time = begun.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{begun:?}"));
        assert!((asked..=monotonic_microseconds()).contains(&time.parse::<i64>().unwrap()), "{time}");
        assert_eq!(socket.receive(), ready);
        let (_, status) = gateway.api("GET", "/api/reload", None);
        assert_eq!((&status["last"]["why"], &status["last"]["result"]), (&"signal".into(), &result.into()), "{status}");
    }
}

#[test]
fn watchdog_gets_no_message_while_a_core_thread_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let socket = NotifySocket::at_path(&dir.path().join("notify"));
    let mut env = vec![("NOTIFY_SOCKET", socket.name.as_str()), ("WATCHDOG_USEC", "100000")];
    env.extend([("COUNTERSIGN_CRASH_AT", "between_commit_and_announce"), ("COUNTERSIGN_CRASH_HANGS", "1")]);
    let gateway = Gateway::with_options(&Options { env, config: None });
    let arguments = serde_json::json!({"projectId": gateway.project(), "title": "a", "type": "Story"}).to_string();
    socket.receive_until("WATCHDOG=1");
    let mut proposal = gateway.connect();
    proposal.request("POST", "/tools/create_issue", &[mcp::JSON], arguments.as_bytes());
    // Ten intervals are long enough for a message that was on its way.
    socket.socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    eventually("no message comes", || socket.socket.recv(&mut [0]).is_err().then_some(()));
    assert_eq!(gateway.request("GET", "/info", &[], b"").status, 200, "other threads still work");
}

#[test]
fn watchdog_of_another_process_gets_no_message() {
    let socket = NotifySocket::with_abstract_name();
    let env = vec![("NOTIFY_SOCKET", socket.name.as_str()), ("WATCHDOG_USEC", "2000"), ("WATCHDOG_PID", "1")];
    let gateway = Gateway::with_options(&Options { env, config: None });
    for _ in 0..10 {
        assert_eq!(gateway.request("GET", "/health", &[], b"").status, 200);
    }
    gateway.process.terminate();
    let messages = socket.receive_until("STOPPING=1");
    assert!(messages.len() == 2 && messages[0].starts_with("READY=1\nSTATUS=Serving "), "{messages:?}");
}

#[test]
fn background_gateway_does_not_notify() {
    let home = Home::new();
    let socket = NotifySocket::at_path(&home.path().join("notify"));
    let mut command = home.command(&["stdio", "--listen", support::LISTEN]);
    command.env("NOTIFY_SOCKET", &socket.name).env("WATCHDOG_USEC", "2000").env("KEPT", "1");
    let mut agent = Lines::spawn(command);
    agent.ping("1");
    let environment = fs::read_to_string(format!("/proc/{}/environ", home.gateway_pid().unwrap())).unwrap();
    assert!(environment.contains("KEPT=1"), "{environment}");
    assert!(!environment.contains("NOTIFY_") && !environment.contains("WATCHDOG_"), "{environment}");
    agent.close();
    assert_eq!(agent.finish().0, 0);
    socket.socket.set_nonblocking(true).unwrap();
    assert!(socket.socket.recv(&mut [0]).is_err(), "nothing was sent");
}

#[test]
fn credentials_of_systemd_are_read_and_kept_secret() {
    let dir = tempfile::tempdir().unwrap();
    let environment = dir.path().join("environment");
    let server = recording_server("files", &environment, r#"env: { TOKEN: "${credential:files.token}" }"#);
    let config = format!("mcpServers:\n{server}");
    let file = dir.path().join("countersign.yaml");
    fs::write(&file, &config).unwrap();
    let folder = dir.path().join("credentials");
    fs::create_dir(&folder).unwrap();

    let home = Home::new();
    let check = ["config", "check", "--config", file.to_str().unwrap()];
    let folder_variable = [("CREDENTIALS_DIRECTORY", folder.to_str().unwrap())];
    let location = ["countersign.yaml:2", "mcpServers.files.env.TOKEN", "LoadCredential=files.token:FILE"];
    home.run(&check).ends(78).complains(&location).complains(&["CREDENTIALS_DIRECTORY is not set"]);
    home.run_with(&folder_variable, &check).ends(78).complains(&location).complains(&["files.token does not exist"]);
    fs::write(folder.join("files.token"), "secret-of-the-token\n").unwrap();
    home.run_with(&folder_variable, &check).ends(0);
    let shown =
        home.run_with(&folder_variable, &["config", "show", "--config", file.to_str().unwrap()]).ends(0).stdout();
    assert!(shown.contains("${credential:files.token}") && !shown.contains("secret-of-the-token"), "{shown}");

    let gateway = Gateway::with_options(&Options { env: folder_variable.to_vec(), config: Some(&config) });
    let inherited = eventually("the server runs", || fs::read_to_string(&environment).ok());
    assert!(inherited.contains("\nTOKEN=secret-of-the-token\n") || inherited.starts_with("TOKEN="), "{inherited}");
    assert!(!inherited.contains("CREDENTIALS_DIRECTORY"), "{inherited}");
    let log = eventually("the gateway has logged what the server wrote", || {
        Some(gateway.log()).filter(|log| log.contains("using "))
    });
    let (_, state) = gateway.api("GET", "/api/servers/files", None);
    assert!(!log.contains("secret-of-the-token") && !state.to_string().contains("secret-of-the-token"), "{log}{state}");
}
