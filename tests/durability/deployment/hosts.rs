//! Simulated machines: each has a network namespace with its own address and names for the others, and private
//! directories. Everything is in namespaces of the test's process and ends with it.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use support::{Process, binary};

/// The variable that marks the process inside the namespaces.
const INSIDE_VARIABLE: &str = "COUNTERSIGN_TEST_INSIDE";

/// The address of the test itself.
const OUTSIDE_ADDRESS: &str = "10.0.0.1/24";

/// Prepares a machine: hides others' files, provides the installed program, and leaves `/mnt` empty.
const MACHINE_SCRIPT: &str = r#"
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs tmpfs /usr/local/bin
cp "$3" /usr/local/bin/countersign
mount --bind "$4" /mnt
shift 4
exec "$@"
"#;

/// Runs the rest of a test in new namespaces. Only root can create those; without root, the test is skipped with a
/// message.
pub fn run_in_namespaces(test: &str, rest: impl FnOnce()) {
    if std::env::var_os(INSIDE_VARIABLE).is_some() {
        return rest();
    }
    // When the first process ends, so does everything that it started.
    let apart = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !Command::new("unshare").args(apart).arg("true").status().is_ok_and(|status| status.success()) {
        println!("skipped: only root can give machines a network");
        return;
    }
    let mut again = Command::new("unshare");
    again.args(apart).arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture", test]);
    let output = again.env(INSIDE_VARIABLE, "1").stdin(Stdio::null()).output().unwrap();
    // Printed here, so that it appears with the failure of this test.
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} fails, see above");
}

pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

/// The network, and the files of all machines.
pub struct Lan {
    home: tempfile::TempDir,
    names: String,
}

impl Lan {
    /// Creates a network whose machines know these names.
    pub fn new(names: &[(&str, &str)]) -> Self {
        std::fs::create_dir_all("/run/netns").unwrap();
        run("mount -t tmpfs tmpfs /run/netns");
        run("ip link add lan type bridge");
        run(&format!("ip address add {OUTSIDE_ADDRESS} dev lan"));
        run("ip link set lan up");
        run("ip link set lo up");
        let names = names.iter().map(|(address, name)| format!("{address} {name}\n")).collect();
        Self { home: tempfile::tempdir().unwrap(), names }
    }

    /// Adds an empty machine at that address.
    pub fn host(&self, name: &str, address: &str) -> Host {
        run(&format!("ip netns add {name}"));
        run(&format!("ip link add {name} type veth peer name eth0 netns {name}"));
        run(&format!("ip link set {name} master lan up"));
        run(&format!("ip -n {name} address add {address}/24 dev eth0"));
        run(&format!("ip -n {name} link set eth0 up"));
        run(&format!("ip -n {name} link set lo up"));
        let home = self.home.path().join(name);
        std::fs::create_dir_all(home.join("mnt")).unwrap();
        let hosts = format!("127.0.0.1 localhost\n{address} {name}\n{}", self.names);
        std::fs::write(home.join("hosts"), hosts).unwrap();
        Host { name: name.to_owned(), home }
    }
}

pub struct Host {
    name: String,
    home: PathBuf,
}

impl Host {
    /// Returns the command prefix that runs in the machine's network only.
    pub fn network(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Returns a command on this machine with exactly this environment.
    pub fn command(&self, words: &[&str], env: &[(String, String)]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "unshare", "--uts", "sh", "-c", MACHINE_SCRIPT, "sh", &self.name]);
        command.arg(self.home.join("hosts")).arg(binary()).arg(self.home.join("mnt")).args(words);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/mnt/home");
        command.envs(env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    /// Starts a command on this machine that ends with the test.
    pub fn spawn(&self, words: &[&str], env: &[(String, String)]) -> Process {
        let log = File::options().create(true).append(true).open(self.home.join("log")).unwrap();
        let mut command = self.command(words, env);
        Process(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    /// Returns the directory that the machine sees as `/mnt`.
    pub fn mnt(&self) -> PathBuf {
        self.home.join("mnt")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: {}", self.name, std::fs::read_to_string(self.home.join("log")).unwrap_or_default());
        }
    }
}

/// Returns the block of the page in that language that contains these words.
pub fn snippet(language: &str, words: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cluster.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let mut blocks = blocks.filter_map(|block| block.strip_prefix(&format!("{language}\n")));
    blocks.find(|block| block.contains(words)).unwrap().to_owned()
}
