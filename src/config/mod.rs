//! The configuration: one typed tree, proved as a whole before any port, child or database opens.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// All keys, documented for users in `config/countersign.yaml`.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    pub auth: AuthConfig,
    /// PEM files; `None` is plain HTTP.
    pub tls: Option<TlsConfig>,
    pub behind_tls_proxy: bool,
    /// Host header values that are served beside the listen address and loopback names.
    pub allowed_hosts: Vec<String>,
    /// How people reach the dashboard, for links.
    pub public_url: Option<String>,
    pub strict_versions: bool,
    pub transports: TransportsConfig,
    pub modules: ModulesConfig,
    pub policy: PolicyConfig,
    pub changes: ChangesConfig,
    pub limits: LimitsConfig,
    pub log: LogConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    Local,
    Keys,
}

#[derive(Clone, Debug)]
pub struct AuthConfig {
    pub mode: AuthMode,
}

#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Debug)]
pub struct TransportsConfig {
    pub http: HttpConfig,
    pub websocket: WebSocketConfig,
    pub stdio: StdioConfig,
}

#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub max_connections: usize,
    pub request_timeout: Duration,
    pub cors_origins: Vec<String>,
    /// Bytes.
    pub max_body: usize,
    /// How long a client may take to send its request's head, and an idle connection is kept.
    pub header_timeout: Duration,
    pub keep_alive: Duration,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// SSE comment keep-alive.
    pub sse_keep_alive: Duration,
}

#[derive(Clone, Debug)]
pub struct WebSocketConfig {
    pub max_connections: usize,
    pub ping_interval: Duration,
    /// Bytes.
    pub max_message_size: usize,
    /// How many sent frames, and bytes of them, a session keeps for a client that comes back.
    pub replay_frames: usize,
    pub replay_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct StdioConfig {
    /// Bytes.
    pub max_message_size: usize,
    /// A gateway that `stdio` started ends this long after its last user.
    pub linger: Duration,
}

#[derive(Clone, Debug)]
pub struct ModulesConfig {
    pub tracker: TrackerConfig,
}

#[derive(Clone, Debug)]
pub struct TrackerConfig {
    pub enabled: bool,
    /// Allowed transitions by status name; empty is the default workflow.
    pub workflow: std::collections::BTreeMap<String, Vec<String>>,
    pub sample_project: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyDefault {
    Allow,
    ReviewWrites,
    ReviewAll,
    Deny,
}

#[derive(Clone, Debug)]
pub struct PolicyConfig {
    pub default: PolicyDefault,
}

#[derive(Clone, Debug)]
pub struct ChangesConfig {
    pub expire_after: Duration,
    /// Bounds per principal on what is not yet final: number and argument bytes.
    pub max_pending: usize,
    pub max_pending_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct LimitsConfig {
    /// Handshake-era HTTP sessions, and all sessions of one principal.
    pub max_sessions: usize,
    pub session_idle: Duration,
    /// Requests in flight in one session.
    pub max_in_flight: usize,
    /// Members of a batch, and how many run at a time.
    pub max_batch: usize,
    pub batch_concurrency: usize,
    /// Nesting of JSON.
    pub max_depth: usize,
    /// Calls a second and burst of one principal.
    pub rate_per_second: u32,
    pub rate_burst: u32,
    /// Long-lived requests (listen, waits, GET streams) of one principal.
    pub max_streams: usize,
    /// Queued messages and bytes of a connection that reads slowly.
    pub outbox_messages: usize,
    pub outbox_bytes: usize,
    pub max_subscriptions: usize,
    /// How long running calls may take to end at shutdown.
    pub drain: Duration,
    /// Longest `wait_for_change`.
    pub max_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub struct LogConfig {
    /// A `tracing` filter, such as `info,countersign=debug`.
    pub filter: String,
    pub format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            data: PathBuf::from("countersign-data"),
            auth: AuthConfig { mode: AuthMode::Local },
            tls: None,
            behind_tls_proxy: false,
            allowed_hosts: Vec::new(),
            public_url: None,
            strict_versions: false,
            transports: TransportsConfig {
                http: HttpConfig {
                    max_connections: 1000,
                    request_timeout: s(30),
                    cors_origins: Vec::new(),
                    max_body: 8 << 20,
                    header_timeout: s(10),
                    keep_alive: s(75),
                    workers: 0,
                    sse_keep_alive: s(15),
                },
                websocket: WebSocketConfig {
                    max_connections: 500,
                    ping_interval: s(30),
                    max_message_size: 8 << 20,
                    replay_frames: 256,
                    replay_bytes: 1 << 20,
                },
                stdio: StdioConfig { max_message_size: 8 << 20, linger: s(15 * 60) },
            },
            modules: ModulesConfig {
                tracker: TrackerConfig {
                    enabled: true,
                    workflow: std::collections::BTreeMap::new(),
                    sample_project: true,
                },
            },
            policy: PolicyConfig { default: PolicyDefault::ReviewWrites },
            changes: ChangesConfig { expire_after: s(24 * 3600), max_pending: 1000, max_pending_bytes: 64 << 20 },
            limits: LimitsConfig {
                max_sessions: 10_000,
                session_idle: s(3600),
                max_in_flight: 64,
                max_batch: 100,
                batch_concurrency: 8,
                max_depth: 128,
                rate_per_second: 1000,
                rate_burst: 2000,
                max_streams: 64,
                outbox_messages: 1024,
                outbox_bytes: 16 << 20,
                max_subscriptions: 1000,
                drain: s(10),
                max_wait: s(300),
            },
            log: LogConfig { filter: "info".into(), format: LogFormat::Text },
        }
    }
}
