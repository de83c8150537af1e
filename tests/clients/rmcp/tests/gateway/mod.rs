//! Starts `countersign serve` with fresh data, decides over REST, and ends it by pid on drop.
//!
//! With `COUNTERSIGN_TEST_NODES=3`, every gateway is three on one PostgreSQL behind nginx
//! (`tests/clients/cluster.mjs`).

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

/// Returns the program under test: `COUNTERSIGN_BIN`, relative to the repository, or its debug build.
pub(crate) fn binary() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    repository.join(std::env::var_os("COUNTERSIGN_BIN").unwrap_or_else(|| "target/debug/countersign".into()))
}

/// Returns an environment without the developer's own configuration.
pub(crate) fn environment() -> Vec<(String, String)> {
    let kept = ["PATH", "HOME", "TMPDIR"].into_iter();
    let mut all: Vec<_> = kept.filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect();
    all.push(("XDG_CONFIG_HOME".into(), "/nonexistent".into()));
    all
}

pub(crate) struct Gateway {
    data: PathBuf,
    port: u16,
    key: String,
    /// Killed on drop; several end with the stdin of the process that started them.
    _child: Child,
    /// Removed on drop.
    _folder: tempfile::TempDir,
}

impl Gateway {
    pub(crate) async fn start() -> Result<Self> {
        match std::env::var("COUNTERSIGN_TEST_NODES") {
            Ok(nodes) if nodes != "1" => Self::start_several(&nodes).await,
            _ => Self::start_one().await,
        }
    }

    async fn start_several(nodes: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = write_config(folder.path())?;
        let mut child = Command::new(std::env::var("COUNTERSIGN_NODE").unwrap_or_else(|_| "node".into()))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster.mjs"))
            .arg(nodes)
            .arg(&config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().context("piped")?).read_line(&mut line).await?;
        let cluster: Value = serde_json::from_str(&line).context("no cluster")?;
        let text = |name: &str| cluster[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
        let port = text("url")?.rsplit(':').next().context("no port")?.parse()?;
        Ok(Self { data: text("data")?.into(), port, key: text("key")?, _child: child, _folder: folder })
    }

    async fn start_one() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let child = Command::new(binary())
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(write_config(folder.path())?)
            .arg("--data")
            .arg(&data)
            .env_clear()
            .envs(environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let end = Instant::now() + Duration::from_secs(60);
        let port = loop {
            if let Some(port) = published(&data, child.id()) {
                break port;
            }
            ensure!(Instant::now() < end, "it does not say where it listens");
            tokio::time::sleep(Duration::from_millis(25)).await;
        };
        let mut gateway = Self { data, port, key: String::new(), _child: child, _folder: folder };
        while !matches!(gateway.request("GET", "/health", None).await, Ok((200, _))) {
            ensure!(Instant::now() < end, "no answer from /health");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        let output = Command::new(binary())
            .args(["keys", "create", "--role", "reviewer", "--name", "alice", "--data"])
            .arg(gateway.data())
            .env_clear()
            .envs(environment())
            .output()
            .await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        gateway.key = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(gateway)
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Approves or rejects the current version of the change.
    pub(crate) async fn decide(&self, change: &str, decision: &str, comment: &str) -> Result<()> {
        let (_, current) = self.request("GET", &format!("/api/changes/{change}"), None).await?;
        let body = json!({
            "decision": decision, "comment": comment, "version": current["version"], "digest": current["digest"],
        });
        let (status, answer) = self.request("POST", &format!("/api/changes/{change}/decision"), Some(body)).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(())
    }

    /// Sends one request on a separate connection.
    async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Result<(u16, Value)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.port,
            self.key,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8(answer)?;
        let (head, rest) = answer.split_once("\r\n\r\n").context("no head")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(rest)? } else { rest.to_owned() };
        Ok((status, serde_json::from_str(&body).unwrap_or(Value::Null)))
    }
}

/// Writes a configuration with the docs module, which has a prompt.
fn write_config(folder: &Path) -> Result<PathBuf> {
    let file = folder.join("countersign.yaml");
    let project = json!({"root": folder, "folder": "knowledge"});
    let config = json!({"modules": {"docs": {"enabled": true, "projects": {"handbook": project}}}});
    std::fs::write(&file, config.to_string())?;
    Ok(file)
}

/// Returns the port that this process has published in its data directory.
fn published(data: &Path, pid: Option<u32>) -> Option<u16> {
    let file: Value = serde_json::from_slice(&std::fs::read(data.join("gateway.json")).ok()?).ok()?;
    let is_own = file["pid"].as_u64()? == u64::from(pid?);
    file["url"].as_str()?.rsplit(':').next()?.parse().ok().filter(|_| is_own)
}

/// Joins the chunks of a body.
fn unchunk(mut rest: &str) -> Result<String> {
    let mut body = String::new();
    loop {
        let (size, tail) = rest.split_once("\r\n").context("no chunk size")?;
        let size = usize::from_str_radix(size, 16)?;
        if size == 0 {
            return Ok(body);
        }
        let Some(chunk) = tail.get(..size) else { bail!("a short chunk") };
        body.push_str(chunk);
        rest = tail.get(size + 2..).context("no chunk end")?;
    }
}
