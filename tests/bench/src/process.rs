//! The servers as child processes, and their CPU and memory according to the system.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{echo::Era, http::Http};

/// Settings of the whole run.
#[derive(Clone)]
pub struct RunSettings {
    pub gateway: PathBuf,
    /// A program with arguments under which the gateway runs, such as valgrind.
    pub wrapper_command: Vec<String>,
    pub workers: usize,
    pub quick: bool,
    pub case: String,
}

/// A server process, killed on drop.
pub struct Server {
    child: Child,
    pub port: u16,
    data: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // With SIGTERM, since nginx would leave its workers behind.
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl Server {
    /// Starts the gateway with fresh data and with limits that do not affect the measurement.
    pub async fn gateway(setting: &RunSettings, env: &[(&str, &str)]) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let port = free_port()?;
        let workers = setting.workers.to_string();
        let log = std::fs::File::create(data.path().join("log"))?;
        let mut command = match setting.wrapper_command.split_first() {
            None => Command::new(&setting.gateway),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&setting.gateway);
                command
            }
        };
        let child = command
            .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data"])
            .arg(data.path().join("data"))
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env("COUNTERSIGN_TRANSPORTS__HTTP__WORKERS", &workers)
            .env("COUNTERSIGN_LIMITS__RATE_PER_SECOND", "10000000")
            .env("COUNTERSIGN_LIMITS__RATE_BURST", "10000000")
            .env("COUNTERSIGN_CHANGES__MAX_PROPOSALS_PER_MINUTE", "0")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", setting.gateway.display()))?;
        let server = Self { child, port, data: Some(data) };
        server.wait("/health").await?;
        Ok(server)
    }

    /// Starts the bare actix-web server.
    pub async fn bare(setting: &RunSettings) -> Result<Self> {
        let port = free_port()?;
        let child = Command::new(std::env::current_exe()?)
            .args(["--bare", &port.to_string(), "--workers", &setting.workers.to_string()])
            .stdin(Stdio::null())
            .spawn()?;
        let server = Self { child, port, data: None };
        server.wait("/").await?;
        Ok(server)
    }

    /// Starts the echo upstream, always with two workers, because it is not measured.
    pub async fn echo(era: Era, tools: usize) -> Result<Self> {
        let port = free_port()?;
        let era = if era == Era::Legacy { "legacy" } else { "modern" };
        let child = Command::new(std::env::current_exe()?)
            .args(["--echo", &port.to_string(), "--workers", "2"])
            .args(["--era", era, "--tools", &tools.to_string()])
            .stdin(Stdio::null())
            .spawn()?;
        let server = Self { child, port, data: None };
        server.wait("/").await?;
        Ok(server)
    }

    /// Starts nginx in front of an upstream, tuned for speed: keep-alive on both sides, no logs, as many workers.
    pub async fn nginx(setting: &RunSettings, upstream: u16) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let port = free_port()?;
        let folder = data.path().display();
        let workers = setting.workers;
        let config = format!(
            "worker_processes {workers};\npid {folder}/pid;\nerror_log {folder}/log error;\ndaemon off;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n  access_log off;\n  keepalive_requests 100000000;\n  client_body_temp_path {folder};\n  \
             proxy_temp_path {folder};\n  fastcgi_temp_path {folder};\n  uwsgi_temp_path {folder};\n  scgi_temp_path {folder};\n  \
             upstream echo {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 100000000; }}\n  \
             server {{\n    listen 127.0.0.1:{port} reuseport;\n    location / {{\n      proxy_pass http://echo;\n      \
             proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
        );
        let file = data.path().join("nginx.conf");
        std::fs::write(&file, config)?;
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&file)
            .arg("-p")
            .arg(data.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nginx (Debian: nginx-light)")?;
        let server = Self { child, port, data: Some(data) };
        server.wait("/").await?;
        Ok(server)
    }

    /// Starts the gateway with that upstream, whose calls are allowed; the store is in PostgreSQL if there is a URL.
    pub async fn gateway_with_upstream(setting: &RunSettings, upstream: u16, store: Option<&str>) -> Result<Self> {
        let store = store.map(|url| ("COUNTERSIGN_STORE__URL", url));
        Self::gateway_with_config(setting, upstream, "", store).await
    }

    /// Starts the gateway with that upstream, whose calls are allowed, and with further lines of configuration.
    pub async fn gateway_with_config(
        setting: &RunSettings,
        upstream: u16,
        lines: &str,
        variable: Option<(&str, &str)>,
    ) -> Result<Self> {
        let config = tempfile::Builder::new().suffix(".yaml").tempfile()?;
        let text = format!(
            "policy: {{ default: allow }}\nmodules: {{ tracker: {{ enabled: false }} }}\nmcpServers:\n  echo:\n    \
             url: http://127.0.0.1:{upstream}/mcp\n    prefix: \"\"\n    required: true\n    max_in_flight: 1024\n    lists: {{ entries: 20000 }}\n{lines}"
        );
        std::fs::write(config.path(), text)?;
        let path = config.path().to_string_lossy().into_owned();
        let env: Vec<_> = std::iter::once(("COUNTERSIGN_CONFIG", path.as_str())).chain(variable).collect();
        Self::gateway(setting, &env).await
    }

    async fn wait(&self, path: &str) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Ok(mut http) = Http::connect(self.port).await
                // Ready with everything that it needs, and not only listening.
                && http.get(path).await.is_ok_and(|status| status != 503)
            {
                return Ok(());
            }
            if Instant::now() > end {
                let log = self.data.as_ref().and_then(|data| std::fs::read_to_string(data.path().join("log")).ok());
                bail!("the server does not answer\n{}", log.unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn stop(mut self) -> Result<()> {
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).context("no process")?;
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }

    pub fn data(&self) -> PathBuf {
        self.data.as_ref().map(|data| data.path().join("data")).unwrap_or_default()
    }

    /// Creates a reviewer's key.
    pub fn reviewer(&self, setting: &RunSettings) -> Result<String> {
        self.create_key(setting, "reviewer", &[])
    }

    /// Creates a key of that role in the gateway's store, which `env` names.
    pub fn create_key(&self, setting: &RunSettings, role: &str, env: &[(&str, &str)]) -> Result<String> {
        let output = Command::new(&setting.gateway)
            .args(["keys", "create", "--role", role, "--name", "bench", "--data"])
            .arg(self.data())
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .envs(env.iter().copied())
            .output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Returns the CPU time so far, user and system, of all threads and of the processes that it started.
    pub fn cpu(&self) -> Result<Duration> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let mut all = Self::cpu_of(id)?;
        for child in children.split_whitespace() {
            all += Self::cpu_of(child.parse()?)?;
        }
        Ok(all)
    }

    fn cpu_of(id: u32) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // The name in parentheses may contain spaces; the later fields do not.
        let (_, rest) = stat.rsplit_once(')').context("no name in stat")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// Returns the resident memory in KiB.
    pub fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        Ok(line.split_whitespace().nth(1).context("no figure")?.parse()?)
    }
}

/// Raises the limit of open files to the system's maximum; children inherit it.
pub fn raise_limits() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

/// Returns the limit of open files.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the name of the processor, for the report.
pub fn processor() -> String {
    let info = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{cores} cores{}",
        model.split_once(':').map(|(_, name)| format!(" of {}", name.trim())).unwrap_or_default()
    )
}
