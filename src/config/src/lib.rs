//! The configuration: one typed tree, proved as a whole before any port, child or database opens.
//!
//! Opens the configuration file and the certificates that it names, and nothing else. Never shows a secret: what a
//! variable holds is in no message.
//!
//! `config/countersign.yaml` documents every key and is the source of the defaults; `read.rs` is where keys meet
//! fields. [`load`] puts file, environment and flags together, [`upstreams`] and `servers` hold `mcpServers`,
//! `rules.rs` reads the rules of the policy, and [`show`] prints what is in force.

mod check;
mod docs;
pub mod environment;
pub mod error;
mod fields;
pub mod load;
mod own_files;
mod read;
pub mod reader;
mod rules;
mod secrets;
mod servers;
pub mod show;
mod terms;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod units;
pub mod upstreams;
mod values;
pub mod variables;
mod webhooks;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use countersign_domain::policy::PolicyConfig;
use countersign_telemetry::logs::LogConfig;
pub use docs::{DocsConfig, DocsProject, ModelEndpoint};
pub use environment::Environment;
pub use error::ConfigError;
pub use load::{Flags, Loaded, load};
pub use upstreams::{
    Authorities, BreakerConfig, Isolation, ListsConfig, Secret, Serialization, UpstreamConfig, UpstreamTarget,
    UrlTransport,
};
pub use webhooks::{WebhookConfig, WebhookUrl};

/// All keys, documented for users in `config/countersign.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    /// Where changes, keys and the trail are kept; `None` is in the data directory.
    pub store: Option<StoreServer>,
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
    /// `mcpServers`, in the order of the file.
    pub upstreams: Vec<UpstreamConfig>,
    pub routes: RoutesConfig,
    pub policy: PolicyConfig,
    pub changes: ChangesConfig,
    pub webhooks: Vec<WebhookConfig>,
    pub limits: LimitsConfig,
    pub log: LogConfig,
}

impl Config {
    /// How other gateways on the same store reach this one, where it says so.
    #[must_use]
    pub fn node_url(&self) -> Option<&str> {
        self.store.as_ref()?.node_url.as_deref()
    }

    /// Address and authorities of the server that keeps the store, where one does.
    #[must_use]
    pub fn store_server(&self) -> Option<(&str, Option<&Path>)> {
        self.store.as_ref().map(StoreServer::address)
    }
}

/// A database of a PostgreSQL server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreServer {
    /// May hold a password.
    pub url: Secret,
    /// PEM file of the authorities that its certificate is verified by.
    pub ca: Option<PathBuf>,
    /// How other gateways on the same database reach this one; `None` is where it listens, see docs/cluster.md.
    pub node_url: Option<String>,
    /// How long a gateway that starts waits for it.
    pub start_timeout: Duration,
}

impl StoreServer {
    /// Its address and authorities.
    #[must_use]
    pub fn address(&self) -> (&str, Option<&Path>) {
        (self.url.0.as_str(), self.ca.as_deref())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    Local,
    Keys,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    pub mode: AuthMode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportsConfig {
    pub http: HttpConfig,
    pub websocket: WebSocketConfig,
    pub stdio: StdioConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    pub max_connections: usize,
    pub request_timeout: Duration,
    pub cors_origins: Vec<String>,
    /// Connections and WebSockets beyond the others' that only reviewers get.
    pub reserved_connections: usize,
    /// Of one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Bytes.
    pub max_body: usize,
    /// Bytes of bodies and messages that are held at a time: of one connection, and of all.
    pub max_connection_body_bytes: usize,
    pub max_body_bytes: usize,
    /// How long a body waits for room among them.
    pub body_wait: Duration,
    /// How long a client may take to send its request's head, and an idle connection is kept.
    pub header_timeout: Duration,
    pub keep_alive: Duration,
    /// Worker threads; 0 is one for every two cores.
    pub workers: usize,
    /// SSE comment keep-alive.
    pub sse_keep_alive: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketConfig {
    pub max_connections: usize,
    pub ping_interval: Duration,
    /// Bytes.
    pub max_message_size: usize,
    /// How many sent frames, and bytes of them, a session keeps for a client that comes back.
    pub replay_frames: usize,
    pub replay_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdioConfig {
    /// Bytes.
    pub max_message_size: usize,
    /// A gateway that `stdio` started ends this long after its last user.
    pub linger: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModulesConfig {
    pub tracker: TrackerConfig,
    pub docs: DocsConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackerConfig {
    pub enabled: bool,
    /// Allowed transitions by status name; empty is the default workflow.
    pub workflow: BTreeMap<String, Vec<String>>,
    pub sample_project: bool,
    /// Names of people whom issues can be assigned to; they are added, never removed.
    pub people: Vec<String>,
}

/// Further names for tools, tried in this order after the exact ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutesConfig {
    /// What a name begins with, and the provider that the rest of it is a tool of.
    pub prefixes: Vec<(String, String)>,
    /// A regular expression for the whole name, and the name it leads to, with `$1` for what a group matched.
    pub patterns: Vec<(String, String)>,
    /// Names with at most one `*`, and the `provider` or `provider/tool` that they lead to.
    pub categories: Vec<(String, String)>,
    /// Providers that may offer the same names, the preferred ones first.
    pub priority: Vec<String>,
    /// The provider whose tools are looked at, by their own names, when a name leads nowhere else.
    pub fallback: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesConfig {
    pub expire_after: Duration,
    /// Bounds per principal on what is not yet final: number and argument bytes.
    pub max_pending: usize,
    pub max_pending_bytes: usize,
    /// Changes that one principal may propose within a minute; 0 is no limit.
    pub max_proposals_per_minute: u32,
    /// Bytes of changes that one principal may propose within a day; 0 is no limit.
    pub max_bytes_per_day: usize,
    pub retention: RetentionConfig,
}

/// How long what is over is kept; `None` is for ever. The audit trail is always kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Arguments, diffs and results of finished changes.
    pub arguments: Option<Duration>,
    /// The same, of changes above `large_bytes` that came to nothing.
    pub large: Option<Duration>,
    /// Bytes of a change's JSON.
    pub large_bytes: usize,
    /// Finished changes.
    pub finished: Option<Duration>,
    /// Events of the feed.
    pub events: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Bytes of parameters for which a call counts as one more; 0 for none.
    pub rate_bytes: usize,
    /// Threads on which large messages are handled; 0 is one for each core, at least two.
    pub large_threads: usize,
    /// Long-lived requests (listen, waits, GET streams) of one principal.
    pub max_streams: usize,
    /// Queued messages and bytes of a connection that reads slowly.
    pub outbox_messages: usize,
    pub outbox_bytes: usize,
    pub max_subscriptions: usize,
    /// Characters kept of each text by which a client names itself.
    pub max_client_text: usize,
    /// Bytes of the capabilities that a client declares, and of a URI that it names.
    pub max_capabilities: usize,
    pub max_uri: usize,
    /// Bytes that are kept for one principal beyond its requests.
    pub principal_memory: usize,
    /// The same for all principals together; never less than what one may have.
    pub total_memory: usize,
    /// How long running calls may take to end at shutdown.
    pub drain: Duration,
    /// Longest `wait_for_change`.
    pub max_wait: Duration,
    /// How long after its start a server may take to be reached before calls for it are refused.
    pub first_connection: Duration,
}

/// The built-in defaults, with the data directory of this process's environment (empty where there is no home).
impl Default for Config {
    fn default() -> Self {
        load::defaults(&Environment::of_process())
    }
}

impl Config {
    /// Host header values that are served beside the listen address and loopback names: `allowed_hosts`, and the
    /// host (with its port) of `public_url`.
    #[must_use]
    pub fn served_hosts(&self) -> Vec<String> {
        let mut hosts = self.allowed_hosts.clone();
        let public = self.public_url.as_deref().and_then(|text| url::Url::parse(text).ok());
        if let Some(url) = public
            && let Some(host) = url.host_str()
        {
            hosts.push(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")));
        }
        hosts
    }

    /// `https` where this process speaks TLS itself.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}
