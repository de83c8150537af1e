//! Reads every key with its type and bounds. This is the only file that maps key names to fields of [`Config`].
//!
//! To add a key:
//! 1. Add the field to its struct in `lib.rs`; the compiler asks for step 2.
//! 2. Read it here, with its type and bounds. The check for unknown keys, the environment variable and `config show`
//!    follow from this call. `every_key_can_be_set_by_its_variable` needs a valid value for it if 7 is not one.
//! 3. Add the line with its default and a comment to `config/countersign.yaml`:
//!    `every_key_is_documented_in_the_default_file`.
//! 4. For a key below `policy`, decide in `src/reload/src/diff.rs` (or in `src/domain/src/policy/terms.rs` for terms of a
//!    review) whether a new value loosens the policy; the compiler asks for it. Any other key takes effect at the next
//!    start, and a reload reports that, unless `needs_restart` and `compare` there allow it to change at run time.
//!
//! A key of a server goes into `UpstreamConfig` (`upstreams.rs`) and is read in `servers/mod.rs`, where `KEYS` lists it.
//! `documented_server_block_loads_and_names_every_key` and the compiler (in `src/reload/src/server_versions.rs`) report
//! missing steps. Keys of webhooks are read in `webhooks.rs`, those of rules in `rules.rs`.

use std::{sync::Arc, time::Duration};

use super::{
    AuthConfig, AuthMode, ChangesConfig, Config, HttpConfig, LimitsConfig, ModulesConfig, RetentionConfig,
    RoutesConfig, StdioConfig, StoreServer, TlsConfig, TrackerConfig, TransportsConfig, WebSocketConfig, check, docs,
    reader::Reader, servers, terms, webhooks,
};
use countersign_domain::{
    changes::{Editing, OnExpiry, OnReview, Terms},
    policy::{Groups, PolicyConfig, PolicyDefault, PolicyMode},
};
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
        listen: r.address("listen"),
        data: r.path("data"),
        store: store(r),
        auth: AuthConfig {
            mode: r.choice("auth.mode", &[("local", AuthMode::Local), ("keys", AuthMode::Keys)], AuthMode::Keys),
        },
        tls: tls(r),
        behind_tls_proxy: r.boolean("behind_tls_proxy"),
        allowed_hosts: r.list("allowed_hosts", check::host),
        public_url: r.optional_text("public_url", check::public_url),
        strict_versions: r.boolean("strict_versions"),
        transports: TransportsConfig { http: http(r), websocket: websocket(r), stdio: stdio(r) },
        modules: ModulesConfig { tracker: tracker(r), docs: docs::read(r) },
        upstreams: servers::read(r),
        routes: routes(r),
        policy: policy(r),
        changes: changes(r),
        webhooks: webhooks::read(r),
        limits: limits(r),
        log: log(r),
    }
}

pub(super) fn store(r: &mut Reader) -> Option<StoreServer> {
    let url = r.optional_secret("store.url", check::postgres);
    let ca = r.optional_path("store.ca");
    let node_url = r.optional_text("store.node_url", check::public_url);
    let start_timeout = r.duration("store.start_timeout", Duration::ZERO..=HOUR);
    Some(StoreServer { url: url?, ca, node_url, start_timeout })
}

fn tls(r: &mut Reader) -> Option<TlsConfig> {
    let cert = r.optional_path("tls.cert");
    let key = r.optional_path("tls.key");
    // `check::combinations` reports one without the other.
    Some(TlsConfig { cert: cert?, key: key? })
}

fn http(r: &mut Reader) -> HttpConfig {
    HttpConfig {
        max_connections: r.count("transports.http.max_connections", 1..=1_000_000),
        request_timeout: r.duration("transports.http.request_timeout", 10 * MS..=HOUR),
        cors_origins: r.list("transports.http.cors_origins", check::origin),
        max_body: r.size("transports.http.max_body", KIB..=GIB),
        reserved_connections: r.count("transports.http.reserved_connections", 0..=1_000_000),
        max_concurrent_streams: r.count("transports.http.max_concurrent_streams", 1..=1_000_000),
        max_connection_body_bytes: r.size("transports.http.max_connection_body_bytes", KIB..=16 * GIB),
        max_body_bytes: r.size("transports.http.max_body_bytes", KIB..=16 * GIB),
        body_wait: r.duration("transports.http.body_wait", Duration::ZERO..=HOUR),
        header_timeout: r.duration("transports.http.header_timeout", 10 * MS..=HOUR),
        keep_alive: r.duration("transports.http.keep_alive", 10 * MS..=HOUR),
        workers: r.count("transports.http.workers", 0..=1024),
        sse_keep_alive: r.duration("transports.http.sse_keep_alive", 10 * MS..=HOUR),
    }
}

fn websocket(r: &mut Reader) -> WebSocketConfig {
    WebSocketConfig {
        max_connections: r.count("transports.websocket.max_connections", 1..=1_000_000),
        ping_interval: r.duration("transports.websocket.ping_interval", 10 * MS..=HOUR),
        max_message_size: r.size("transports.websocket.max_message_size", KIB..=GIB),
        replay_frames: r.count("transports.websocket.replay_frames", 0..=1_000_000),
        replay_bytes: r.size("transports.websocket.replay_bytes", 0..=GIB),
    }
}

fn stdio(r: &mut Reader) -> StdioConfig {
    StdioConfig {
        max_message_size: r.size("transports.stdio.max_message_size", KIB..=GIB),
        linger: r.duration("transports.stdio.linger", Duration::ZERO..=YEAR),
    }
}

fn tracker(r: &mut Reader) -> TrackerConfig {
    TrackerConfig {
        enabled: r.boolean("modules.tracker.enabled"),
        workflow: r.lists("modules.tracker.workflow", check::status),
        sample_project: r.boolean("modules.tracker.sample_project"),
        people: r.list("modules.tracker.people", check::person),
    }
}

fn routes(r: &mut Reader) -> RoutesConfig {
    RoutesConfig {
        prefixes: r.pairs("routes.prefixes", check::prefix),
        patterns: r.pairs("routes.patterns", check::pattern),
        categories: r.pairs("routes.categories", check::category),
        priority: r.list("routes.priority", check::provider),
        fallback: r.optional_text("routes.fallback", check::provider),
    }
}

pub(super) fn groups(r: &mut Reader) -> Groups {
    r.lists("policy.groups", check::member)
}

pub(super) fn policy(r: &mut Reader) -> PolicyConfig {
    let modes = [("enforce", PolicyMode::Enforce), ("simulate", PolicyMode::Simulate)];
    let mode = r.choice("policy.mode", &modes, PolicyMode::Enforce);
    let default = policy_default(r);
    let groups = groups(r);
    let review = Arc::new(review(r));
    let rules = r.rules("policy.rules", &review, &groups);
    PolicyConfig { mode, default, rules, review, groups }
}

fn review(r: &mut Reader) -> Terms {
    Terms {
        reviewers: r.list("policy.review.reviewers", check::member),
        quorum: r.count("policy.review.quorum", terms::QUORUM_RANGE),
        expire_after: r.optional_seconds("policy.review.expire_after", terms::EXPIRE_AFTER_RANGE),
        on_expiry: r.choice("policy.review.on_expiry", &terms::ON_EXPIRY_CHOICES, OnExpiry::Expire),
        require_comment: r.boolean("policy.review.require_comment"),
        edit: r.choice("policy.review.edit", &terms::EDIT_CHOICES, Editing::Allowed),
        preview_required: r.choice("policy.review.preview", &terms::PREVIEW_CHOICES, false),
        on_review: r.choice("policy.review.on_review", &terms::ON_REVIEW_CHOICES, OnReview::Return),
        hold_for: r.seconds("policy.review.hold_for", terms::HOLD_FOR_RANGE),
        undo_for: r.seconds("policy.review.undo_for", terms::UNDO_FOR_RANGE),
        open_page: r.boolean("policy.review.open_page"),
        questions: r.choice("policy.review.questions", &terms::QUESTIONS_CHOICES, false),
    }
}

fn policy_default(r: &mut Reader) -> PolicyDefault {
    let choices = [
        ("allow", PolicyDefault::Allow),
        ("review_writes", PolicyDefault::ReviewWrites),
        ("review_all", PolicyDefault::ReviewAll),
        ("deny", PolicyDefault::Deny),
    ];
    r.choice("policy.default", &choices, PolicyDefault::Deny)
}

fn changes(r: &mut Reader) -> ChangesConfig {
    ChangesConfig {
        expire_after: r.duration("changes.expire_after", S..=YEAR),
        max_pending: r.count("changes.max_pending", 1..=1_000_000),
        max_pending_bytes: r.size("changes.max_pending_bytes", KIB..=16 * GIB),
        retention: RetentionConfig {
            arguments: r.duration_or_never("changes.retention.arguments", Duration::ZERO..=100 * YEAR),
            large: r.duration_or_never("changes.retention.large", Duration::ZERO..=100 * YEAR),
            large_bytes: r.size(
                "changes.retention.large_bytes",
                countersign_domain::changes::retention::LARGE_CHANGE_MIN_BYTES..=GIB,
            ),
            finished: r.duration_or_never("changes.retention.finished", Duration::ZERO..=100 * YEAR),
            events: r.duration_or_never("changes.retention.events", HOUR..=100 * YEAR),
        },
        max_proposals_per_minute: r.count("changes.max_proposals_per_minute", 0..=1_000_000),
        max_bytes_per_day: r.size("changes.max_bytes_per_day", 0..=1024 * GIB),
    }
}

fn limits(r: &mut Reader) -> LimitsConfig {
    LimitsConfig {
        max_sessions: r.count("limits.max_sessions", 1..=10_000_000),
        session_idle: r.duration("limits.session_idle", 10 * MS..=30 * DAY),
        max_in_flight: r.count("limits.max_in_flight", 1..=100_000),
        max_batch: r.count("limits.max_batch", 1..=100_000),
        batch_concurrency: r.count("limits.batch_concurrency", 1..=10_000),
        // serde_json stops at 128 by default; deeper trees are refused before they are parsed.
        max_depth: r.count("limits.max_depth", 8..=128),
        rate_per_second: r.count("limits.rate_per_second", 0..=10_000_000),
        rate_burst: r.count("limits.rate_burst", 1..=10_000_000),
        rate_bytes: r.size("limits.rate_bytes", 0..=GIB),
        large_threads: r.count("limits.large_threads", 0..=1024),
        max_streams: r.count("limits.max_streams", 1..=1_000_000),
        outbox_messages: r.count("limits.outbox_messages", 1..=10_000_000),
        outbox_bytes: r.size("limits.outbox_bytes", KIB..=GIB),
        max_subscriptions: r.count("limits.max_subscriptions", 0..=1_000_000),
        max_client_text: r.count("limits.max_client_text", 1..=65_536),
        max_capabilities: r.size("limits.max_capabilities", KIB..=GIB),
        max_uri: r.size("limits.max_uri", 256..=GIB),
        principal_memory: r.size("limits.principal_memory", 64 * KIB..=16 * GIB),
        total_memory: r.size("limits.total_memory", 64 * KIB..=1024 * GIB),
        drain: r.duration("limits.drain", Duration::ZERO..=HOUR),
        max_wait: r.duration("limits.max_wait", 10 * MS..=HOUR),
        first_connection: r.duration("limits.first_connection", Duration::ZERO..=HOUR),
    }
}

pub(super) fn log(r: &mut Reader) -> LogConfig {
    LogConfig {
        filter: r.text("log.filter", check::log_filter),
        format: r.choice("log.format", &[("text", LogFormat::Text), ("json", LogFormat::Json)], LogFormat::Text),
    }
}
