//! Machines of a test: each has a network namespace with an address of its own and names for the others, and directories that
//! nobody else sees. All of it is in namespaces of the test's own process and ends with that.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use support::{Process, binary};

/// What says that this process is the one in the namespaces.
const INSIDE_VARIABLE: &str = "COUNTERSIGN_TEST_INSIDE";

/// Where the test itself stands in the network.
const OUTSIDE_ADDRESS: &str = "10.0.0.1/24";

/// Of a machine: what is not there for others. In it, the program lies where it is installed, and `/mnt` is empty.
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

/// Runs the rest of that test in namespaces of its own. Only root can make those; whoever cannot is told that it is skipped.
pub fn inside(test: &str, rest: impl FnOnce()) {
    if std::env::var_os(INSIDE_VARIABLE).is_some() {
        return rest();
    }
    // With the first process, all that it started ends.
    let apart = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !Command::new("unshare").args(apart).arg("true").status().is_ok_and(|status| status.success()) {
        println!("skipped: only root can give machines a network");
        return;
    }
    let mut again = Command::new("unshare");
    again.args(apart).arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture", test]);
    let output = again.env(INSIDE_VARIABLE, "1").stdin(Stdio::null()).output().unwrap();
    // Printed here, it stands with the failure of this test.
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
    /// With these names, which all machines know.
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

    /// A machine at that address, with nothing on it.
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
    /// What is before a command that runs in the machine's network, and in nothing else of it.
    pub fn network(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// A command on this machine, with this environment and no other.
    pub fn command(&self, words: &[&str], env: &[(String, String)]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "unshare", "--uts", "sh", "-c", MACHINE_SCRIPT, "sh", &self.name]);
        command.arg(self.home.join("hosts")).arg(binary()).arg(self.home.join("mnt")).args(words);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/mnt/home");
        command.envs(env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    /// As [`Self::command`], until the test ends.
    pub fn spawn(&self, words: &[&str], env: &[(String, String)]) -> Process {
        let log = File::options().create(true).append(true).open(self.home.join("log")).unwrap();
        let mut command = self.command(words, env);
        Process(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    /// What the machine sees as `/mnt`.
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

/// A block of the page in that language which holds these words.
pub fn snippet(language: &str, words: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cluster.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let mut blocks = blocks.filter_map(|block| block.strip_prefix(&format!("{language}\n")));
    blocks.find(|block| block.contains(words)).unwrap().to_owned()
}
