//! Tests of `countersign service` with a `systemctl` that records its calls and starts the unit's command.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use rustix::process::Signal;
use support::{
    binary,
    cli::{Home, Lines, RunResult, alive, signal, wait_until},
};

use crate::attach::home;

/// Answers like the user manager of systemd. `enable --now` starts the gateway.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$HOME/systemctl.log"
case "$*" in
  '--user enable --now countersign.service' | '--user restart countersign.service')
    command=$(sed -n 's/^ExecStart=//p' "$HOME/.config/systemd/user/countersign.service")
    (exec > "$HOME/service.log" 2>&1; eval "exec $command") &
    echo $! >> "$HOME/service.pids"
    ;;
  '--user is-active countersign.service') echo inactive; exit 3 ;;
  '--user is-enabled countersign.service') echo enabled ;;
esac
"#;

/// A home with that systemctl, or with one that reaches no manager.
struct Machine {
    home: Home,
    path: String,
}

impl Machine {
    fn new(systemctl: &str) -> Self {
        let home = home();
        let folder = home.path().join("fakes");
        fs::create_dir(&folder).unwrap();
        let program = folder.join("systemctl");
        fs::write(&program, systemctl).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", folder.display());
        Self { home, path }
    }

    fn run(&self, arguments: &[&str]) -> RunResult {
        self.home.run_with(&[("PATH", &self.path)], arguments)
    }

    fn unit(&self) -> PathBuf {
        self.home.path().join(".config/systemd/user/countersign.service")
    }

    /// Returns the calls of systemctl since the last time.
    fn calls(&self) -> Vec<String> {
        let log = self.home.path().join("systemctl.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        text.lines().map(|line| line.strip_prefix("--user ").unwrap().to_owned()).collect()
    }

    /// Returns everything in the home but the data and the files of the test.
    fn files(&self) -> Vec<PathBuf> {
        fn list(folder: &std::path::Path, out: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let is_own = ["state", "fakes", "systemctl.log", "service.log", "service.pids", "_npx"]
                    .iter()
                    .any(|name| path.file_name().is_some_and(|file| file == *name));
                if !is_own {
                    if path.is_dir() {
                        list(&path, out);
                    }
                    out.push(path);
                }
            }
        }
        let mut out = Vec::new();
        list(self.home.path(), &mut out);
        out.sort();
        out
    }

    fn stop_gateway(&self) {
        wait_until("the gateway listens", || self.home.gateway_pid().is_some());
        let pid = self.home.gateway_pid().unwrap();
        signal(pid, Signal::TERM);
        wait_until("the gateway ends", || !alive(pid));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A gateway that waited for the data directory of another one may have started meanwhile.
        let pids = fs::read_to_string(self.home.path().join("service.pids")).unwrap_or_default();
        for pid in pids.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| alive(*pid)) {
            signal(pid, Signal::KILL);
        }
    }
}

#[test]
fn service_is_installed_once_and_removed_completely() {
    let machine = Machine::new(SYSTEMCTL);
    let home = machine.home.path();
    fs::create_dir_all(home.join(".local")).unwrap();
    let before = machine.files();
    machine.run(&["service", "status"]).ends(3).says(&["not installed"]);
    machine.run(&["service", "uninstall"]).ends(0).complains(&["nothing to remove"]);
    assert!(machine.calls().is_empty());

    let data = machine.home.data();
    fs::write(home.join("odd $1 %n \"q\".yaml"), "listen: 127.0.0.1:0\n").unwrap();
    let before = [before, vec![home.join("odd $1 %n \"q\".yaml")]].concat();
    let arguments = ["service", "install", "--data", data.to_str().unwrap(), "--config", "odd $1 %n \"q\".yaml"];
    machine.run(&arguments).ends(0).says(&[machine.unit().to_str().unwrap()]).complains(&["countersign open"]);
    assert_eq!(machine.calls(), ["daemon-reload", "enable --now countersign.service"]);
    let unit = fs::read_to_string(machine.unit()).unwrap();
    let command = format!(
        "ExecStart=\"{}\" serve --config \"{}/odd $$1 %%n \\\"q\\\".yaml\" --data \"{}\"\n",
        fs::canonicalize(binary()).unwrap().display(),
        home.display(),
        data.display()
    );
    for part in [&*command, "RestartPreventExitStatus=75 78\n", "WantedBy=default.target\n", &machine.path] {
        assert!(unit.contains(part), "{part} is not in {unit}");
    }

    // A repeated installation changes nothing.
    machine.run(&arguments).ends(0);
    assert_eq!(fs::read_to_string(machine.unit()).unwrap(), unit);
    assert_eq!(machine.calls(), ["daemon-reload", "enable --now countersign.service"]);
    // Other arguments restart the service.
    let restart = ["daemon-reload", "enable countersign.service", "restart countersign.service"];
    machine.run(&["service", "install"]).ends(0);
    assert_eq!(machine.calls(), restart);
    // So does an update of the program.
    wait_until("the gateway listens", || machine.home.gateway_pid().is_some());
    let mut file = machine.home.gateway_file().unwrap();
    file["version"] = "0.0.0-old".into();
    fs::write(data.join("gateway.json"), file.to_string()).unwrap();
    machine.run(&["service", "install"]).ends(0);
    assert_eq!(machine.calls(), restart);
    machine.stop_gateway();
    machine.run(&["service", "status"]).ends(1).says(&[
        "enabled: enabled",
        "state:   inactive",
        binary().to_str().unwrap(),
    ]);

    machine.calls();
    machine.run(&["service", "uninstall"]).ends(0).says(&["removed", "countersign.service"]);
    assert_eq!(machine.calls(), ["disable --now countersign.service", "daemon-reload"]);
    let mut before = before;
    before.sort();
    assert_eq!(machine.files(), before);
}

#[test]
fn service_takes_over_from_background_gateway() {
    let machine = Machine::new(SYSTEMCTL);
    let mut agent = Lines::start(&machine.home, &["stdio"]);
    agent.ping("1");
    let background = machine.home.gateway_pid().unwrap();
    machine.run(&["service", "install"]).ends(0);
    assert!(!alive(background));
    agent.ping("2");
    let file = machine.home.gateway_file().unwrap();
    assert_eq!(file["detached"], false, "{file}");
    agent.close();
    assert_eq!(agent.finish().0, 0);
    machine.stop_gateway();
}

#[test]
fn commands_are_printed_without_user_manager() {
    let machine = Machine::new("#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n");
    let before = machine.files();
    machine.run(&["service", "install"]).ends(0).complains(&[
        "No medium found",
        "systemctl --user daemon-reload",
        "systemctl --user enable --now countersign.service",
    ]);
    machine.run(&["service", "status"]).ends(1).says(&["enabled: Failed to connect"]);
    // What the printed commands create goes, too.
    let wants = machine.unit().parent().unwrap().join("default.target.wants");
    fs::create_dir(&wants).unwrap();
    std::os::unix::fs::symlink(machine.unit(), wants.join("countersign.service")).unwrap();
    machine.run(&["service", "uninstall"]).ends(0).complains(&["systemctl --user stop countersign.service"]);
    assert!(!wants.join("countersign.service").exists());
    fs::remove_dir(&wants).unwrap();
    for folder in [".config/systemd/user", ".config/systemd", ".config"] {
        let _ = fs::remove_dir(machine.home.path().join(folder));
    }
    assert_eq!(machine.files(), before);
    // Without systemctl at all, too.
    machine.home.run_with(&[("PATH", "/nonexistent")], &["service", "install"]).ends(0).complains(&["daemon-reload"]);
}

#[test]
fn foreign_unit_stays() {
    let machine = Machine::new(SYSTEMCTL);
    fs::create_dir_all(machine.unit().parent().unwrap()).unwrap();
    fs::write(machine.unit(), "[Service]\nExecStart=/opt/mine\n").unwrap();
    for command in ["install", "uninstall", "status"] {
        machine.run(&["service", command]).ends(1).complains(&["was not written by", "move it away"]);
    }
    assert_eq!(fs::read_to_string(machine.unit()).unwrap(), "[Service]\nExecStart=/opt/mine\n");
    assert!(machine.calls().is_empty());
}

#[test]
fn program_in_cache_of_npx_is_copied() {
    let machine = Machine::new(SYSTEMCTL);
    let home = machine.home.path();
    let before = machine.files();
    let cache = home.join("_npx/0123/node_modules/@countersign/linux-x64/bin");
    fs::create_dir_all(&cache).unwrap();
    let program = cache.join("countersign");
    if fs::hard_link(binary(), &program).is_err() {
        fs::copy(binary(), &program).unwrap();
    }
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(arguments).env_clear().env("HOME", home).env("PATH", &machine.path).env("COUNTERSIGN_LISTEN", "0");
        RunResult(command.output().unwrap())
    };
    let copy = home.join(".local/bin/countersign");
    // Another program of this name is not replaced.
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::write(&copy, "mine").unwrap();
    run(&["service", "install"]).ends(1).complains(&["another program", copy.to_str().unwrap()]);
    assert!(!machine.unit().exists());
    fs::remove_file(&copy).unwrap();
    fs::remove_dir(copy.parent().unwrap()).unwrap();
    let _ = fs::remove_dir(home.join(".local"));

    run(&["service", "install"]).ends(0);
    machine.stop_gateway();
    let unit = fs::read_to_string(machine.unit()).unwrap();
    assert!(unit.contains(&format!("ExecStart=\"{}\" serve\n", copy.display())), "{unit}");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o755);
    // The copy itself can repeat the installation, for example after the cache is gone.
    fs::remove_file(&program).unwrap();
    let mut command = std::process::Command::new(&copy);
    command.args(["service", "install"]).env_clear().env("HOME", home).env("PATH", &machine.path);
    RunResult(command.env("COUNTERSIGN_LISTEN", "0").output().unwrap()).ends(0);
    assert_eq!(fs::read_to_string(machine.unit()).unwrap(), unit);
    machine.stop_gateway();
    machine.run(&["service", "uninstall"]).ends(0).says(&[copy.to_str().unwrap()]);
    let left: Vec<_> = machine.files().into_iter().filter(|path| !path.ends_with(".local")).collect();
    assert_eq!(left, before);
}
