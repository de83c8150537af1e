//! Reads every key with its type and bounds. This is the only file that maps key names to fields of [`Config`].
//!
//! To add a key:
//! 1. Add the field to its struct in `lib.rs`; the compiler asks for step 2.
//! 2. Read it here, with its type and bounds. The test `every_key_can_be_set_by_its_variable` sets each key to 7: name
//!    another value there if the key does not accept that.
//! 3. Add the line with its default and a comment to `config/countersign.yaml`, which is the list of all keys: the check
//!    for unknown keys and the environment variable follow from it. `every_key_is_documented_in_the_default_file` fails
//!    otherwise.
//! 4. For a key below `policy`, decide in `src/reload/src/diff.rs` (or in `src/domain/src/policy/terms.rs` for terms of a
//!    review) whether a new value loosens the policy; the compiler asks for it. Any other key takes effect at the next
//!    start, and a reload reports that, unless `needs_restart` and `compare` there allow it to change at run time.
//!
//! A key of a server goes into `UpstreamConfig` (`upstreams.rs`) and is read in `servers/mod.rs`, where `KEYS` lists it.
//! `documented_server_block_loads_and_names_every_key` and the compiler (in `src/reload/src/server_diff.rs`) report
//! missing steps. Keys of webhooks are read in `webhooks.rs`, those of rules in `rules.rs`, and the terms of a review in
//! `terms.rs`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::{
    ChangesConfig, Config, HttpConfig, LimitsConfig, ModulesConfig, RetentionConfig, RoutesConfig, StdioConfig,
    StoreServer, TlsConfig, TrackerConfig, TransportsConfig, WebSocketConfig, auth, check, docs, groups,
    reader::Reader,
    rules, servers, terms,
    values::{
        address, boolean, check_visible_name, choice, count, duration, list, lists_by_name, pairs, path, secret, size,
        text, text_lists_by_name, variant,
    },
    webhooks,
};
use countersign_domain::policy::{Groups, PolicyConfig, PolicyDefault};
use countersign_telemetry::logs::{LogConfig, LogFormat};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(366 * 86_400);
const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

pub(super) fn config(r: &mut Reader) -> Config {
    Config {
        listen: r.read_or("listen", address(), SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)),
        data: r.read("data", path()),
        store: store(r),
        auth: auth::read(r),
        key_file: r.read("secrets.key_file", path().or_null()),
        token_key: r.read("secrets.key", secret(check::check_token_key).or_null()).map(|(_, key)| key),
        tls: tls(r),
        behind_tls_proxy: r.read("behind_tls_proxy", boolean()),
        allowed_hosts: r.read("allowed_hosts", list(check::check_host)),
        public_url: r.read("public_url", text(check::check_public_url).or_null()),
        strict_versions: r.read("strict_versions", boolean()),
        transports: TransportsConfig { http: http(r), websocket: websocket(r), stdio: stdio(r) },
        modules: ModulesConfig { tracker: tracker(r), docs: docs::read(r) },
        upstreams: servers::read(r),
        dashboard_edit: r.read("dashboard.edit", variant()),
        bundle_window: r.read("dashboard.bundle_window", duration(Duration::ZERO..=DAY)),
        routes: routes(r),
        policy: policy(r),
        changes: changes(r),
        webhooks: webhooks::read(r),
        limits: limits(r),
        log: log(r),
    }
}

pub(super) fn store(r: &mut Reader) -> Option<StoreServer> {
    let url = r.read("store.url", secret(check::check_postgres_url).or_null()).map(|(_, url)| url);
    let ca = r.read("store.ca", path().or_null());
    let node_url = r.read("store.node_url", text(check::check_public_url).or_null());
    let start_timeout = r.read("store.start_timeout", duration(Duration::ZERO..=HOUR));
    Some(StoreServer { url: url?, ca, node_url, start_timeout })
}

fn tls(r: &mut Reader) -> Option<TlsConfig> {
    let cert = r.read("tls.cert", path().or_null());
    let key = r.read("tls.key", path().or_null());
    // `check::report_conflicts` reports one without the other.
    Some(TlsConfig { cert: cert?, key: key? })
}

fn http(r: &mut Reader) -> HttpConfig {
    HttpConfig {
        max_connections: r.read("transports.http.max_connections", count(1..=1_000_000)),
        request_timeout: r.read("transports.http.request_timeout", duration(10 * MS..=HOUR)),
        cors_origins: r.read("transports.http.cors_origins", list(check::check_origin)),
        max_body: r.read("transports.http.max_body", size(KIB..=GIB)),
        reserved_connections: r.read("transports.http.reserved_connections", count(0..=1_000_000)),
        max_concurrent_streams: r.read("transports.http.max_concurrent_streams", count(1..=1_000_000)),
        max_connection_body_bytes: r.read("transports.http.max_connection_body_bytes", size(KIB..=16 * GIB)),
        max_body_bytes: r.read("transports.http.max_body_bytes", size(KIB..=16 * GIB)),
        body_wait: r.read("transports.http.body_wait", duration(Duration::ZERO..=HOUR)),
        header_timeout: r.read("transports.http.header_timeout", duration(10 * MS..=HOUR)),
        keep_alive: r.read("transports.http.keep_alive", duration(10 * MS..=HOUR)),
        workers: r.read("transports.http.workers", count(0..=1024)),
        sse_keep_alive: r.read("transports.http.sse_keep_alive", duration(10 * MS..=HOUR)),
    }
}

fn websocket(r: &mut Reader) -> WebSocketConfig {
    WebSocketConfig {
        max_connections: r.read("transports.websocket.max_connections", count(1..=1_000_000)),
        ping_interval: r.read("transports.websocket.ping_interval", duration(10 * MS..=HOUR)),
        max_message_size: r.read("transports.websocket.max_message_size", size(KIB..=GIB)),
        replay_frames: r.read("transports.websocket.replay_frames", count(0..=1_000_000)),
        replay_bytes: r.read("transports.websocket.replay_bytes", size(0..=GIB)),
    }
}

fn stdio(r: &mut Reader) -> StdioConfig {
    StdioConfig {
        max_message_size: r.read("transports.stdio.max_message_size", size(KIB..=GIB)),
        linger: r.read("transports.stdio.linger", duration(Duration::ZERO..=YEAR)),
    }
}

fn tracker(r: &mut Reader) -> TrackerConfig {
    TrackerConfig {
        enabled: r.read("modules.tracker.enabled", boolean()),
        workflow: r.read("modules.tracker.workflow", text_lists_by_name(check::check_status)),
        sample_project: r.read("modules.tracker.sample_project", boolean()),
        people: r.read("modules.tracker.people", list(|name| check_visible_name(name, "a person's name"))),
    }
}

fn routes(r: &mut Reader) -> RoutesConfig {
    RoutesConfig {
        prefixes: r.read("routes.prefixes", pairs(check::check_prefix)),
        patterns: r.read("routes.patterns", pairs(check::check_pattern)),
        categories: r.read("routes.categories", pairs(check::check_category)),
        priority: r.read("routes.priority", list(check::check_provider)),
        fallback: r.read("routes.fallback", text(check::check_provider).or_null()),
    }
}

pub(super) fn groups(r: &mut Reader) -> Groups {
    r.read("policy.groups", lists_by_name(groups::check_member, groups::read_member, groups::show_member))
}

pub(super) fn policy(r: &mut Reader) -> PolicyConfig {
    let mode = r.read("policy.mode", variant());
    let default = r.read_or("policy.default", variant(), PolicyDefault::Deny);
    let groups = groups(r);
    let review = Arc::new(terms::read_review(r));
    let rules = rules::read(r, &review, &groups);
    PolicyConfig { mode, default, rules, review, groups }
}

fn changes(r: &mut Reader) -> ChangesConfig {
    ChangesConfig {
        expire_after: r.read("changes.expire_after", duration(S..=YEAR)),
        max_pending: r.read("changes.max_pending", count(1..=1_000_000)),
        max_pending_bytes: r.read("changes.max_pending_bytes", size(KIB..=16 * GIB)),
        retention: RetentionConfig {
            arguments: r.read("changes.retention.arguments", duration(Duration::ZERO..=100 * YEAR).or_never()),
            large: r.read("changes.retention.large", duration(Duration::ZERO..=100 * YEAR).or_never()),
            large_bytes: r.read(
                "changes.retention.large_bytes",
                size(countersign_domain::changes::retention::LARGE_CHANGE_MIN_BYTES..=GIB),
            ),
            finished: r.read("changes.retention.finished", duration(Duration::ZERO..=100 * YEAR).or_never()),
            events: r.read("changes.retention.events", duration(HOUR..=100 * YEAR).or_never()),
        },
        max_proposals_per_minute: r.read("changes.max_proposals_per_minute", count(0..=1_000_000)),
        max_bytes_per_day: r.read("changes.max_bytes_per_day", size(0..=1024 * GIB)),
    }
}

fn limits(r: &mut Reader) -> LimitsConfig {
    LimitsConfig {
        max_sessions: r.read("limits.max_sessions", count(1..=10_000_000)),
        session_idle: r.read("limits.session_idle", duration(10 * MS..=30 * DAY)),
        max_in_flight: r.read("limits.max_in_flight", count(1..=100_000)),
        max_batch: r.read("limits.max_batch", count(1..=100_000)),
        batch_concurrency: r.read("limits.batch_concurrency", count(1..=10_000)),
        // serde_json stops at 128 by default; deeper trees are refused before they are parsed.
        max_depth: r.read("limits.max_depth", count(8..=128)),
        rate_per_second: r.read("limits.rate_per_second", count(0..=10_000_000)),
        rate_burst: r.read("limits.rate_burst", count(1..=10_000_000)),
        rate_bytes: r.read("limits.rate_bytes", size(0..=GIB)),
        large_threads: r.read("limits.large_threads", count(0..=1024)),
        max_streams: r.read("limits.max_streams", count(1..=1_000_000)),
        outbox_messages: r.read("limits.outbox_messages", count(1..=10_000_000)),
        outbox_bytes: r.read("limits.outbox_bytes", size(KIB..=GIB)),
        max_subscriptions: r.read("limits.max_subscriptions", count(0..=1_000_000)),
        max_client_text: r.read("limits.max_client_text", count(1..=65_536)),
        max_capabilities: r.read("limits.max_capabilities", size(KIB..=GIB)),
        max_uri: r.read("limits.max_uri", size(256..=GIB)),
        principal_memory: r.read("limits.principal_memory", size(64 * KIB..=16 * GIB)),
        total_memory: r.read("limits.total_memory", size(64 * KIB..=1024 * GIB)),
        drain: r.read("limits.drain", duration(Duration::ZERO..=HOUR)),
        max_wait: r.read("limits.max_wait", duration(10 * MS..=HOUR)),
        first_connection: r.read("limits.first_connection", duration(Duration::ZERO..=HOUR)),
    }
}

pub(super) fn log(r: &mut Reader) -> LogConfig {
    LogConfig {
        filter: r.read("log.filter", text(check::check_log_filter)),
        format: r.read_or(
            "log.format",
            choice([("text", LogFormat::Text), ("json", LogFormat::Json)]),
            LogFormat::Text,
        ),
    }
}
