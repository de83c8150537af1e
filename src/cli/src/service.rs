//! `service`: runs the gateway as a unit of the user's systemd, for people who installed the program for themselves.
//!
//! The unit records in comments what `install` has created, so that `uninstall` removes that and nothing else. A unit of
//! this name without these comments belongs to somebody else and is never touched.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    args::{DataArgs, DataCommands, service::ServiceCommand},
    client::local_gateway,
    configuration,
    exit::{Exit, Failure},
    output::{Output, print_note},
};
use countersign_attach::{socket, start};
use countersign_config::Environment;
use countersign_domain::changes::digest::hex;
use countersign_runtime::{
    data_dir::is_locked,
    files::{none_if_missing, replace_file},
    installation::{Installation, program_path},
    secret,
};

const UNIT: &str = "countersign.service";
/// The first line of a unit that `install` has written.
const MARK: &str = "# Written by `countersign service install`. `countersign service uninstall` removes it.";
const FOLDER_COMMENT: &str = "# Created folder: ";
const COPY_COMMENT: &str = "# Copied program: ";
/// The time that a detached gateway may take to end.
const MAX_END_WAIT: Duration = Duration::from_secs(60);
/// The time that the service may take to listen.
const MAX_START_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &DataCommands<ServiceCommand>, out: &mut Output) -> Result<Exit, Failure> {
    let env = Environment::from_process();
    let (Some(home), Some(config)) = (env.home(), env.config_home()) else {
        return Err(Failure::new(Exit::Unavailable, "HOME is not set, so the folder of the user's units is not known"));
    };
    let service = Service { home, unit: config.join("systemd/user").join(UNIT) };
    match args.command {
        ServiceCommand::Install => service.install(&args.data, out),
        ServiceCommand::Uninstall => service.uninstall(out),
        ServiceCommand::Status => service.status(out),
    }
}

struct Service {
    home: PathBuf,
    /// The path of the unit.
    unit: PathBuf,
}

/// Lists the files and folders that `install` has created besides the unit.
#[derive(Clone, Default)]
struct InstalledFiles {
    /// The outermost folder comes first.
    folders: Vec<PathBuf>,
    /// The copy of the program, with the SHA-256 of its content.
    copy: Option<(PathBuf, String)>,
}

impl InstalledFiles {
    fn from_unit(unit: &str) -> Self {
        let mut created = Self::default();
        for line in unit.lines() {
            if let Some(folder) = line.strip_prefix(FOLDER_COMMENT) {
                created.folders.push(folder.into());
            } else if let Some(copy) = line.strip_prefix(COPY_COMMENT) {
                created.copy = copy.split_once(' ').map(|(hash, path)| (path.into(), hash.to_owned()));
            }
        }
        created
    }
}

impl Service {
    /// Returns the unit that `install` has written, or `None` if there is no unit.
    fn read_unit(&self) -> Result<Option<String>, Failure> {
        match fs::read_to_string(&self.unit) {
            Ok(unit) if unit.starts_with(MARK) => Ok(Some(unit)),
            Ok(_) => {
                let message = format!(
                    "{} was not written by `countersign service install`, so it stays as it is; move it away first",
                    self.unit.display()
                );
                Err(Failure::new(Exit::Failed, message))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(path_failure("read", &self.unit, &error)),
        }
    }

    fn install(&self, args: &DataArgs, out: &mut Output) -> Result<Exit, Failure> {
        // A service with an invalid configuration would not start.
        let data = configuration(&args.flags())?.config.data;
        let before = self.read_unit()?;
        let mut created = before.as_deref().map(InstalledFiles::from_unit).unwrap_or_default();
        let program = self.stable_program(&mut created)?;
        if let Some(folder) = self.unit.parent() {
            create_folders(folder, &mut created)?;
        }
        let unit = unit_text(&program, args, &created)?;
        let is_changed = before.as_deref() != Some(unit.as_str());
        // After an update, the unit may be the same, and the program of the running gateway is not.
        let is_outdated =
            local_gateway::read_file(&data)?.is_some_and(|file| file.version != env!("CARGO_PKG_VERSION"));
        if is_changed {
            replace_file(&self.unit, unit.as_bytes(), 0o644)
                .map_err(|error| path_failure("write", &self.unit, &error))?;
        }
        out.write_path(&self.unit)?;
        out.finish()?;
        if let Err(error) = systemctl(&["daemon-reload"]) {
            print_note(&format!(
                "The user manager of systemd cannot be reached ({error}). Run these commands where it can:\n  \
                 systemctl --user daemon-reload\n  systemctl --user enable --now {UNIT}"
            ));
            return Ok(Exit::Ok);
        }
        // Agents that lose the detached gateway must not start another one before the service runs.
        let lock = end_detached_gateway(&data)?;
        let enable = match (is_changed || is_outdated, before.is_some()) {
            (true, true) => systemctl(&["enable", UNIT]).and_then(|_| systemctl(&["restart", UNIT])),
            _ => systemctl(&["enable", "--now", UNIT]),
        };
        enable.map_err(|error| Failure::new(Exit::Failed, format!("{UNIT} could not be started: {error}")))?;
        if lock.is_some() {
            wait_for_gateway(&data);
        }
        print_note(&format!(
            "The gateway runs as {UNIT} and starts at each login. `{}` signs you in to its dashboard, `journalctl --user \
             -u {UNIT}` shows its log, and `loginctl enable-linger` keeps it running while you are logged out.",
            Installation::Stable.command("open")
        ));
        Ok(Exit::Ok)
    }

    /// Returns the path of the program for the unit. A program in a cache is copied, because the cache may go at any time.
    fn stable_program(&self, created: &mut InstalledFiles) -> Result<PathBuf, Failure> {
        let program = program_path().map_err(|error| {
            Failure::new(Exit::Unavailable, format!("this program's own path is not known: {error}"))
        })?;
        if Installation::from_path(&program) == Installation::Stable {
            return Ok(program);
        }
        let folder = self.home.join(".local/bin");
        let copy = folder.join("countersign");
        let bytes = fs::read(&program).map_err(|error| path_failure("read", &program, &error))?;
        let digest = hex(&secret::hash(&bytes));
        let present = hash_file(&copy)?;
        let is_ours = created.copy.as_ref().is_some_and(|(path, hash)| *path == copy && present.as_ref() == Some(hash));
        match present {
            Some(present) if present == digest => return Ok(copy),
            Some(_) if !is_ours => {
                let message = format!(
                    "this program runs from a cache ({}), and {1} is another program; use that one for the service \
                     (`{1} service install`), or move it away",
                    program.display(),
                    copy.display()
                );
                return Err(Failure::new(Exit::Failed, message));
            }
            _ => {}
        }
        create_folders(&folder, created)?;
        // The file is replaced, because a program that runs cannot be written to.
        replace_file(&copy, &bytes, 0o755).map_err(|error| path_failure("write", &copy, &error))?;
        created.copy = Some((copy.clone(), digest));
        Ok(copy)
    }

    fn uninstall(&self, out: &mut Output) -> Result<Exit, Failure> {
        let Some(unit) = self.read_unit()? else {
            print_note(&format!("{} does not exist, so there is nothing to remove.", self.unit.display()));
            return Ok(Exit::Ok);
        };
        let created = InstalledFiles::from_unit(&unit);
        if let Err(error) = systemctl(&["disable", "--now", UNIT]) {
            print_note(&format!(
                "The user manager of systemd cannot be reached ({error}). If the gateway still runs there, stop it with \
                 `systemctl --user stop {UNIT}`."
            ));
            if let Some(folder) = self.unit.parent() {
                let link = folder.join("default.target.wants").join(UNIT);
                if fs::read_link(&link).is_ok_and(|target| target == self.unit) {
                    remove(&link, fs::remove_file, out)?;
                }
            }
        }
        remove(&self.unit, fs::remove_file, out)?;
        // The manager cannot be reached, or forgets the unit.
        let _ = systemctl(&["daemon-reload"]);
        if let Some((copy, hash)) = &created.copy {
            match hash_file(copy)? {
                Some(present) if present == *hash => remove(copy, fs::remove_file, out)?,
                Some(_) => print_note(&format!("{} has been changed since, so it stays.", copy.display())),
                None => {}
            }
        }
        for folder in created.folders.iter().rev() {
            if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none()) {
                remove(folder, fs::remove_dir, out)?;
            }
        }
        Ok(Exit::Ok)
    }

    fn status(&self, out: &mut Output) -> Result<Exit, Failure> {
        let Some(unit) = self.read_unit()? else {
            out.write_line(&format!("not installed ({} does not exist)", self.unit.display()))?;
            return Ok(Exit::NotFound);
        };
        let state = |command| match systemctl(&[command, UNIT]) {
            Ok(state) => state,
            Err(state) if state.is_empty() => "unknown".to_owned(),
            Err(state) => state,
        };
        let active = state("is-active");
        let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap_or_default();
        out.write_line(&format!("unit:    {}", self.unit.display()))?;
        out.write_line(&format!("command: {program}"))?;
        out.write_line(&format!("enabled: {}", state("is-enabled")))?;
        out.write_line(&format!("state:   {active}"))?;
        Ok(if active == "active" { Exit::Ok } else { Exit::Failed })
    }
}

/// Ends the detached gateway, and returns the lock that keeps others from starting one.
fn end_detached_gateway(data: &Path) -> Result<Option<fs::File>, Failure> {
    let Some(file) = local_gateway::read_file(data)?.filter(|file| file.detached) else { return Ok(None) };
    let deadline = Instant::now() + MAX_END_WAIT;
    let is_held = || is_locked(data).map_err(|error| Failure::new(Exit::Unavailable, error));
    let lock = loop {
        if let Some(lock) = start::try_acquire_start_lock(data)? {
            break lock;
        }
        if Instant::now() > deadline {
            return Err(Failure::new(Exit::Unavailable, "another program has been starting a gateway for too long"));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let pid = i32::try_from(file.pid).ok().and_then(Pid::from_raw);
    // A file without a listening gateway is left from a crash, and its pid may belong to another program.
    if let Some(pid) = pid
        && is_held()?
        && socket::is_listening(data)
    {
        let _ = kill_process(pid, Signal::TERM);
        while is_held()? && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(Some(lock))
}

/// Waits until the service listens. If it does not start, agents may start a detached gateway again.
fn wait_for_gateway(data: &Path) {
    let deadline = Instant::now() + MAX_START_WAIT;
    while !socket::is_listening(data) && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs a command of the user manager and returns its output. The error is the first line that explains it.
fn systemctl(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("systemctl")
        .arg("--user")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("systemctl: {error}"))?;
    let first_line = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().trim().to_owned();
    let text = first_line(&output.stdout);
    match output.status.success() {
        true => Ok(text),
        false if text.is_empty() => Err(first_line(&output.stderr)),
        false => Err(text),
    }
}

/// Returns the text of the unit.
fn unit_text(program: &Path, args: &DataArgs, created: &InstalledFiles) -> Result<String, Failure> {
    let mut command = quote(program)?;
    command.push_str(" serve");
    for (flag, path) in [("--config", &args.config), ("--data", &args.data)] {
        if let Some(path) = path {
            let path = std::path::absolute(path).map_err(|error| path_failure("find", path, &error))?;
            command.push_str(&format!(" {flag} {}", quote(&path)?));
        }
    }
    // A dollar sign is special in commands only.
    let command = command.replace('$', "$$");
    let folders = created.folders.iter().map(|folder| format!("{FOLDER_COMMENT}{}\n", folder.display()));
    let copy = created.copy.iter().map(|(copy, hash)| format!("{COPY_COMMENT}{hash} {}\n", copy.display()));
    let comments: String = folders.chain(copy).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = quote(Path::new(&format!("PATH={}", path.to_string_lossy())))?;
    Ok(format!(
        "{MARK}
{comments}
[Unit]
Description=Countersign MCP gateway
Documentation=https://github.com/countersign/countersign

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/sh -c \"kill -HUP $MAINPID\"
Environment={path}
Restart=on-failure
RestartSec=2s
RestartPreventExitStatus=75 78
TimeoutStopSec=90s
UMask=0077

[Install]
WantedBy=default.target
"
    ))
}

/// Quotes a path for a unit.
fn quote(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.chars().any(char::is_control)).ok_or_else(|| {
        let message = format!("{} cannot be written in a unit; use a path of plain text", path.display());
        Failure::new(Exit::Usage, message)
    })?;
    Ok(format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%")))
}

/// Creates a folder and those above it, and records which were missing.
fn create_folders(folder: &Path, created: &mut InstalledFiles) -> Result<(), Failure> {
    let missing: Vec<_> = folder.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
    fs::create_dir_all(folder).map_err(|error| path_failure("create", folder, &error))?;
    created.folders.extend(missing.into_iter().rev());
    Ok(())
}

fn remove(path: &Path, remove: fn(PathBuf) -> io::Result<()>, out: &mut Output) -> Result<(), Failure> {
    match remove(path.to_owned()) {
        Ok(()) => Ok(out.write_line(&format!("removed {}", path.display()))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(path_failure("remove", path, &error)),
    }
}

/// Returns the SHA-256 of a file, or `None` if it does not exist.
fn hash_file(path: &Path) -> Result<Option<String>, Failure> {
    let bytes = none_if_missing(fs::read(path)).map_err(|error| path_failure("read", path, &error))?;
    Ok(bytes.map(|bytes| hex(&secret::hash(&bytes))))
}

/// Returns the failure of an action on a path, which `action` names as a verb.
fn path_failure(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Unavailable, format!("cannot {action} {}: {error}", path.display()))
}
