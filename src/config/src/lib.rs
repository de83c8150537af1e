//! Loads the configuration as one typed tree, and validates it as a whole before any port, child process or database
//! opens.
//!
//! The crate reads only the configuration file, and the certificates, keys and credentials that it names. It never shows a
//! secret: no message contains the value of a variable.
//!
//! `config/countersign.yaml` documents every key and is the source of the defaults, and `read.rs` maps keys to fields.
//! [`load`] merges file, environment and flags, [`upstreams`] and `servers` hold `mcpServers`, `rules.rs` reads the
//! rules of the policy, and [`show`] prints the effective configuration. [`edit`] changes servers and rules in the text of a file.

mod auth;
mod authorities;
mod check;
mod docs;
pub mod edit;
pub mod environment;
pub mod error;
mod groups;
pub mod load;
mod loopback;
mod named_files;
mod own_files;
mod read;
pub mod reader;
mod rules;
mod secrets;
mod servers;
pub mod show;
mod terms;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod units;
pub mod upstreams;
mod values;
pub mod variables;
mod webhooks;
mod yaml;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

pub use auth::{AuthConfig, AuthMode, IntrospectionClient, OidcConfig, TokenIssuer};
use countersign_domain::policy::PolicyConfig;
use countersign_telemetry::logs::LogConfig;
use strum::{EnumString, IntoStaticStr, VariantArray};

pub use docs::{DocsConfig, DocsProject, ModelEndpoint};
pub use environment::Environment;
pub use error::ConfigError;
pub use load::{Flags, LoadedConfig, load};
pub use loopback::{is_loopback, is_loopback_host};
pub use named_files::TlsFilesError;
pub use upstreams::{
    AccountKind, Authorities, BreakerConfig, Isolation, ListsConfig, OAuthGrant, Secret, Serialization, UpstreamConfig,
    UpstreamOAuth, UpstreamTarget, UrlTransport,
};
pub use webhooks::{WebhookConfig, WebhookUrl, WebhooksConfig};

/// All keys, documented for users in `config/countersign.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    /// The database server for changes, keys and the trail. `None` keeps them in the data directory.
    pub store: Option<StoreServer>,
    pub auth: AuthConfig,
    /// The file with the key that encrypts stored tokens. `None` uses a key of the data directory or of the cluster.
    pub key_file: Option<PathBuf>,
    /// The key itself as base64, in place of a file.
    pub token_key: Option<Secret>,
    /// Certificate and key as PEM files. `None` serves plain HTTP.
    pub tls: Option<TlsConfig>,
    pub behind_tls_proxy: bool,
    /// Values of the `Host` header that are served in addition to the listen address and loopback names.
    pub allowed_hosts: Vec<String>,
    /// The URL at which people reach the dashboard. Links to the dashboard begin with it.
    pub public_url: Option<String>,
    pub strict_versions: bool,
    pub transports: TransportsConfig,
    pub modules: ModulesConfig,
    /// `mcpServers`, in the order of the file.
    pub upstreams: Vec<UpstreamConfig>,
    /// The permission to edit servers on the dashboard.
    pub dashboard_edit: DashboardEdit,
    /// The longest time between two proposals that form one bundle. Zero forms none.
    pub bundle_window: Duration,
    pub routes: RoutesConfig,
    pub policy: PolicyConfig,
    pub changes: ChangesConfig,
    pub webhooks: WebhooksConfig,
    pub limits: LimitsConfig,
    pub log: LogConfig,
}

impl Config {
    /// Returns the URL at which other gateways on the same store reach this one, if it is configured.
    pub fn node_url(&self) -> Option<&str> {
        self.store.as_ref()?.node_url.as_deref()
    }

    /// Returns the identifier of this gateway as a protected resource (RFC 9728): `PUBLIC_URL/mcp`.
    pub fn resource(&self) -> Option<String> {
        self.public_url.as_ref().map(|url| format!("{}/mcp", url.trim_end_matches('/')))
    }

    /// Returns `true` if servers may be edited on the dashboard. A store on a server may have several gateways, each with a
    /// file of its own, which must not drift apart.
    pub fn may_edit_on_dashboard(&self) -> bool {
        let is_on = match self.dashboard_edit {
            DashboardEdit::Auto => self.auth.mode == AuthMode::Local,
            DashboardEdit::Off => false,
            DashboardEdit::On => true,
        };
        is_on && self.store.is_none()
    }

    /// Returns the URL and the certificate authorities of the store's server, if the store is on one.
    pub fn store_server(&self) -> Option<(&str, Option<&Path>)> {
        self.store.as_ref().map(StoreServer::address)
    }

    /// Returns the URL at which this machine reaches a bound address of the gateway ([`local_url`]).
    pub fn local_url(&self, address: SocketAddr) -> String {
        local_url(self.tls.is_some(), address)
    }
}

/// The permission to edit servers on the dashboard (`dashboard.edit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DashboardEdit {
    /// Only with `auth.mode: local`.
    #[default]
    Auto,
    Off,
    On,
}

/// A database of a PostgreSQL server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreServer {
    /// The connection URL, which may contain a password.
    pub url: Secret,
    /// PEM file of the authorities that the server's certificate is verified against.
    pub ca: Option<PathBuf>,
    /// The URL at which other gateways on the same database reach this one. `None` uses the listen address
    /// (docs/cluster.md).
    pub node_url: Option<String>,
    /// The time that a starting gateway waits for the server.
    pub start_timeout: Duration,
}

impl StoreServer {
    /// Returns the URL and the certificate authorities.
    pub fn address(&self) -> (&str, Option<&Path>) {
        (self.url.0.as_str(), self.ca.as_deref())
    }
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
    /// Additional connections and WebSockets that only reviewers may use.
    pub reserved_connections: usize,
    /// The limit of one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Bytes of one request body.
    pub max_body: usize,
    /// Bytes of bodies and messages that one connection may hold at a time.
    pub max_connection_body_bytes: usize,
    /// The same for all connections together.
    pub max_body_bytes: usize,
    /// The time that a body waits for room within these limits.
    pub body_wait: Duration,
    /// The time that a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// The time that an idle connection is kept.
    pub keep_alive: Duration,
    /// Worker threads; 0 starts one for every two cores.
    pub workers: usize,
    /// The interval of keep-alive comments on event streams.
    pub sse_keep_alive: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketConfig {
    pub max_connections: usize,
    pub ping_interval: Duration,
    /// Bytes of one message.
    pub max_message_size: usize,
    /// Frames that a session keeps for a client that reconnects.
    pub replay_frames: usize,
    /// Bytes of these frames.
    pub replay_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdioConfig {
    /// Bytes of one message.
    pub max_message_size: usize,
    /// The time after which a gateway that `countersign stdio` started ends, once its last user has left.
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
    /// Allowed transitions by status name. An empty map selects the default workflow.
    pub workflow: BTreeMap<String, Vec<String>>,
    pub sample_project: bool,
    /// Names of people to whom issues can be assigned. They are added, never removed.
    pub people: Vec<String>,
}

/// Further names for tools. They are tried in this order after the exact names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutesConfig {
    /// Prefixes of names, each with a provider. The rest of such a name is the name of one of its tools.
    pub prefixes: Vec<(String, String)>,
    /// Regular expressions for whole names, each with the replacement name, in which `$1` stands for a group.
    pub patterns: Vec<(String, String)>,
    /// Names with at most one `*`, each with the `provider` or `provider/tool` that they select.
    pub categories: Vec<(String, String)>,
    /// Providers that may offer the same names, in order of preference.
    pub priority: Vec<String>,
    /// The provider whose own tool names are tried when nothing else matches.
    pub fallback: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesConfig {
    pub expire_after: Duration,
    /// Changes of one principal that are not final.
    pub max_pending: usize,
    /// Bytes of the arguments of these changes.
    pub max_pending_bytes: usize,
    /// Changes that one principal may propose per minute; 0 means no limit.
    pub max_proposals_per_minute: u32,
    /// Bytes of changes that one principal may propose per day; 0 means no limit.
    pub max_bytes_per_day: usize,
    pub retention: RetentionConfig,
}

/// Retention times of finished changes and old events; `None` keeps them forever. The audit trail is always kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Retention of the arguments, diffs and results of finished changes.
    pub arguments: Option<Duration>,
    /// The same for changes above `large_bytes` that were never applied.
    pub large: Option<Duration>,
    /// Bytes of JSON above which a change counts as large.
    pub large_bytes: usize,
    /// Retention of finished changes as a whole.
    pub finished: Option<Duration>,
    /// Retention of feed events.
    pub events: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// The limit on handshake-era HTTP sessions, and on all sessions of one principal.
    pub max_sessions: usize,
    pub session_idle: Duration,
    /// Requests in flight in one session.
    pub max_in_flight: usize,
    /// Members of a batch.
    pub max_batch: usize,
    /// Members of a batch that run at a time.
    pub batch_concurrency: usize,
    /// Maximum nesting of JSON.
    pub max_depth: usize,
    /// Calls of one principal per second, on average.
    pub rate_per_second: u32,
    /// Calls of one principal in a burst.
    pub rate_burst: u32,
    /// A call counts once more for every `rate_bytes` bytes of its parameters; 0 turns this off.
    pub rate_bytes: usize,
    /// Threads for large messages; 0 starts one per core, at least two.
    pub large_threads: usize,
    /// Long-lived requests (listen, waits, GET streams) of one principal.
    pub max_streams: usize,
    /// Messages that are queued for a slow reader.
    pub outbox_messages: usize,
    /// Bytes of these messages.
    pub outbox_bytes: usize,
    pub max_subscriptions: usize,
    /// Characters that are kept of each text in a client's description of itself.
    pub max_client_text: usize,
    /// Bytes of a client's declared capabilities.
    pub max_capabilities: usize,
    /// Bytes of a URI in a request.
    pub max_uri: usize,
    /// Bytes that are kept for one principal between its requests.
    pub principal_memory: usize,
    /// The same for all principals together; never less than the limit of one.
    pub total_memory: usize,
    /// The time that running calls get to finish at shutdown.
    pub drain: Duration,
    /// The longest wait of a `wait_for_change` call.
    pub max_wait: Duration,
    /// The time after the start within which a server may connect before calls to it are refused.
    pub first_connection: Duration,
}

/// Returns the built-in defaults with this process's default data directory, or an empty path without a home directory.
impl Default for Config {
    fn default() -> Self {
        load::default_config(&Environment::from_process())
    }
}

/// Returns the URL at which this machine reaches a bound address; an unspecified address becomes loopback.
pub fn local_url(has_tls: bool, address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}
