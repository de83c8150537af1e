//! Child servers for tests: what they sent, and which of their processes are alive.

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use countersign_config::{Secret, UpstreamConfig, UpstreamTarget};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::{
    Connector, Link, LinkError, Listener, OutgoingRequest, Response, UpstreamNotification, child::ChildConnector,
};
use parking_lot::Mutex;
use serde_json::Value;

/// The time after which a broken test fails. It does not measure speed.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

pub const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/upstreams/upstream_child/server.py");

/// The guard's program; it must be built from the same sources as the library under test.
pub use super::built_binary as gateway;

/// Returns a unique text that is in the arguments of every process of one test.
pub fn new_marker() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("marker-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// Returns the processes with this marker in their arguments.
pub fn processes_with(marker: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.split(|&b| b == 0).any(|argument| argument == marker.as_bytes()) {
            found.push(pid);
        }
    }
    found
}

/// Returns the guard of a child without other processes: the process whose program is the gateway's.
pub fn guard_of(marker: &str) -> i32 {
    let program = std::fs::canonicalize(gateway()).unwrap();
    let guards: Vec<i32> = processes_with(marker)
        .into_iter()
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program))
        .collect();
    assert_eq!(guards.len(), 1);
    guards[0]
}

/// Returns how many dead guards this process has not reaped.
pub fn zombie_guards() -> usize {
    let me = format!(" Z {} ", std::process::id());
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    stats
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        // The kernel cuts the name at 15 bytes.
        .filter(|stat| stat.contains("(countersign-und)") && stat.contains(&me))
        .count()
}

pub async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < MAX_WAIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub async fn within_max_wait<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(MAX_WAIT, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Records notifications and requests.
#[derive(Default)]
pub struct RecordingListener {
    pub notifications: Mutex<Vec<(String, String)>>,
    pub requests: Mutex<Vec<UpstreamRequest>>,
}

impl RecordingListener {
    pub fn methods(&self) -> Vec<String> {
        self.notifications.lock().iter().map(|(method, _)| method.clone()).collect()
    }
}

impl Listener for RecordingListener {
    fn handle_notification(&self, notification: UpstreamNotification) {
        let params = notification.params.map_or_else(String::new, |params| params.get().to_owned());
        self.notifications.lock().push((notification.method, params));
    }

    fn handle_request(&self, request: UpstreamRequest) {
        self.requests.lock().push(request);
    }
}

/// A running child.
pub struct Child {
    pub link: Arc<dyn Link>,
    pub marker: String,
    pub unsolicited: Arc<RecordingListener>,
    last: AtomicU64,
    data: tempfile::TempDir,
}

pub fn config(marker: &str, flags: &[&str]) -> UpstreamConfig {
    let args = [SERVER, marker].iter().chain(flags).map(|&arg| arg.to_owned()).collect();
    let target = UpstreamTarget::Command { command: "python3".to_owned(), args, env: BTreeMap::new(), cwd: None };
    UpstreamConfig::new("test", target)
}

pub fn set_env(config: &mut UpstreamConfig, name: &str, value: &str) {
    let UpstreamTarget::Command { env, .. } = &mut config.target else { panic!("no command") };
    env.insert(name.to_owned(), Secret(value.to_owned()));
}

pub fn connector(config: UpstreamConfig, data: &Path) -> ChildConnector {
    limited_connector(config, data, 8 << 20)
}

/// Creates a connector that accepts messages of at most `max_message` bytes.
pub fn limited_connector(config: UpstreamConfig, data: &Path, max_message: usize) -> ChildConnector {
    ChildConnector::new(&Arc::new(config), data, max_message).with_guard_program(&gateway())
}

impl Child {
    pub async fn start(flags: &[&str]) -> Self {
        let marker = new_marker();
        let config = config(&marker, flags);
        Self::start_with(&marker, |data| connector(config, data)).await
    }

    pub async fn start_with(marker: &str, connector: impl FnOnce(&Path) -> ChildConnector) -> Self {
        let data = tempfile::tempdir().unwrap();
        let unsolicited = Arc::new(RecordingListener::default());
        let link = within_max_wait("a start", connector(data.path()).connect(unsolicited.clone())).await.unwrap();
        Self { link, marker: marker.to_owned(), unsolicited, last: AtomicU64::new(0), data }
    }

    pub fn data(&self) -> PathBuf {
        self.data.path().canonicalize().unwrap()
    }

    pub fn new_outgoing(&self, method: &str, params: &str) -> OutgoingRequest {
        OutgoingRequest::new(self.last.fetch_add(1, Ordering::Relaxed) + 1, method, Some(params))
    }

    pub async fn call(&self, method: &str, params: &str) -> Result<Response, LinkError> {
        let outgoing = self.new_outgoing(method, params);
        let request = self.link.request(&outgoing, Arc::new(RecordingListener::default()));
        within_max_wait(method, request).await
    }

    /// Returns the result exactly as the server wrote it.
    pub async fn result(&self, method: &str, params: &str) -> String {
        match self.call(method, params).await {
            Ok(Response::Result(result)) => result.get().to_owned(),
            other => panic!("{method}: {other:?}"),
        }
    }

    pub async fn value(&self, method: &str, params: &str) -> Value {
        serde_json::from_str(&self.result(method, params).await).unwrap()
    }

    pub async fn wait_for_end(&self) {
        within_max_wait("its end", self.link.closed().cancelled()).await;
    }

    /// Waits until no process of the child is left.
    pub async fn wait_until_gone(&self) {
        wait_until("all processes gone", || processes_with(&self.marker).is_empty()).await;
    }
}

/// A buffer for log output.
#[derive(Clone, Default)]
pub struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogBuffer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl std::io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for LogBuffer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
