//! The one table of metrics, the recorder, and handles for metrics that are not counted per request.
//!
//! Label values come from closed sets: client input never becomes a label.

mod names;
pub mod requests;

pub use names::ConfiguredName;

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Unit, counter, gauge};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};

pub const REQUESTS: &str = "countersign_requests_total";
pub const REQUEST_DURATION: &str = "countersign_request_duration_seconds";
pub const ERRORS: &str = "countersign_errors_total";
pub const ERROR_RATIO: &str = "countersign_error_ratio";
pub const CONNECTIONS: &str = "countersign_connections_active";
pub const SESSIONS: &str = "countersign_sessions_active";
pub const QUEUE_LENGTH: &str = "countersign_queue_length";
pub const BODY_BYTES: &str = "countersign_body_bytes";
pub const CACHE_HITS: &str = "countersign_cache_hits_total";
pub const CACHE_MISSES: &str = "countersign_cache_misses_total";
pub const CACHE_HIT_RATIO: &str = "countersign_cache_hit_ratio";
pub const BREAKER_STATE: &str = "countersign_circuit_breaker_state";
pub const CHANGES: &str = "countersign_changes";
pub const CHANGES_PROPOSED: &str = "countersign_changes_proposed_total";
pub const CHANGES_REFUSED: &str = "countersign_changes_refused_total";
pub const CHANGE_TRANSITIONS: &str = "countersign_change_transitions_total";
pub const STORE_COMMITS: &str = "countersign_store_commits_total";
pub const STORE_COMMIT_CHANGES: &str = "countersign_store_commit_changes";
pub const STORE_COMMIT_DURATION: &str = "countersign_store_commit_seconds";
pub const FEED_SUBSCRIBERS: &str = "countersign_feed_subscribers";
pub const UPSTREAM_UP: &str = "countersign_upstream_up";
pub const UPSTREAM_IN_FLIGHT: &str = "countersign_upstream_in_flight";
pub const UPSTREAM_CALLS: &str = "countersign_upstream_calls_total";
pub const UPSTREAM_LINKS: &str = "countersign_upstream_links";
pub const UPSTREAM_RESTARTS: &str = "countersign_upstream_restarts_total";
pub const UPSTREAM_UNATTRIBUTED: &str = "countersign_upstream_unattributed_total";
pub const POLICY_SIMULATED: &str = "countersign_policy_simulated_total";
pub const WEBHOOK_ATTEMPTS: &str = "countersign_webhook_attempts_total";
pub const WEBHOOK_WAITING: &str = "countersign_webhook_waiting";
pub const NODES: &str = "countersign_nodes";
pub const NODE_LEADS: &str = "countersign_node_leads";
pub const INFO: &str = "countersign_info";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Name, kind, unit and HELP text of each metric.
const METRICS: [(&str, Kind, Unit, &str); 32] = [
    (REQUESTS, Kind::Counter, Unit::Count, "Requests answered, by transport, method and outcome."),
    (REQUEST_DURATION, Kind::Histogram, Unit::Seconds, "Time from a request's arrival to its answer."),
    (ERRORS, Kind::Counter, Unit::Count, "Errors answered, by their stable code."),
    (ERROR_RATIO, Kind::Gauge, Unit::Count, "Share of the last minute's requests that ended in an error."),
    (CONNECTIONS, Kind::Gauge, Unit::Count, "Open connections, by transport."),
    (SESSIONS, Kind::Gauge, Unit::Count, "Live sessions, by transport."),
    (QUEUE_LENGTH, Kind::Gauge, Unit::Count, "Entries waiting in a queue."),
    (BODY_BYTES, Kind::Gauge, Unit::Count, "Bytes of bodies held, of transports.http.max_body_bytes."),
    (CACHE_HITS, Kind::Counter, Unit::Count, "Look-ups that a cache answered."),
    (CACHE_MISSES, Kind::Counter, Unit::Count, "Look-ups that a cache could not answer."),
    (CACHE_HIT_RATIO, Kind::Gauge, Unit::Count, "Share of a cache's look-ups since the start that it answered."),
    (BREAKER_STATE, Kind::Gauge, Unit::Count, "Circuit breaker of a provider: 0 closed, 1 half open, 2 open."),
    (CHANGES, Kind::Gauge, Unit::Count, "Changes in the store, by state."),
    (CHANGES_PROPOSED, Kind::Counter, Unit::Count, "Writes that became pending changes."),
    (CHANGES_REFUSED, Kind::Counter, Unit::Count, "Proposals that were refused: limits, conflicts, the store."),
    (CHANGE_TRANSITIONS, Kind::Counter, Unit::Count, "Steps in the lives of changes, by event."),
    (STORE_COMMITS, Kind::Counter, Unit::Count, "Transactions committed by the store."),
    (STORE_COMMIT_CHANGES, Kind::Histogram, Unit::Count, "Transitions that shared one commit."),
    (STORE_COMMIT_DURATION, Kind::Histogram, Unit::Seconds, "Time of one commit, its sync to disk included."),
    (FEED_SUBSCRIBERS, Kind::Gauge, Unit::Count, "Subscribers of the feed."),
    (UPSTREAM_UP, Kind::Gauge, Unit::Count, "1 while the upstream is connected and its lists are read, else 0."),
    (UPSTREAM_IN_FLIGHT, Kind::Gauge, Unit::Count, "Calls under way at an upstream."),
    (UPSTREAM_CALLS, Kind::Counter, Unit::Count, "Calls to an upstream, by outcome."),
    (UPSTREAM_LINKS, Kind::Gauge, Unit::Count, "Connections of an upstream in addition to the shared one."),
    (
        UPSTREAM_RESTARTS,
        Kind::Counter,
        Unit::Count,
        "Times that an upstream was connected to again, or its program started again after it had failed.",
    ),
    (UPSTREAM_UNATTRIBUTED, Kind::Counter, Unit::Count, "Messages of an upstream that belong to no one call."),
    (
        POLICY_SIMULATED,
        Kind::Counter,
        Unit::Count,
        "Calls that policy.mode: simulate let through, by the verdict that was not enforced.",
    ),
    (WEBHOOK_ATTEMPTS, Kind::Counter, Unit::Count, "Attempts to deliver to a webhook, by outcome."),
    (WEBHOOK_WAITING, Kind::Gauge, Unit::Count, "Deliveries that wait for a webhook."),
    (NODES, Kind::Gauge, Unit::Count, "Live gateways of this store, including this gateway."),
    (NODE_LEADS, Kind::Gauge, Unit::Count, "1 if this gateway leads, else 0."),
    (INFO, Kind::Gauge, Unit::Count, "1, with the version as a label."),
];

/// Upper bounds of the duration histogram, in seconds.
const DURATION_BUCKETS: [f64; 15] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

/// The interval at which samples are folded into histograms, so that they do not accumulate between scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Returns the label value.
            #[must_use]
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $label,)* } }
        }
    };
}
use labels;

labels! {
    /// The endpoint of a request, with the same names as in a change's proposer.
    Transport {
        Http = "http",
        WebSocket = "websocket",
        Stdio = "stdio",
        Sse = "sse",
        Rest = "rest",
    }
}

labels! {
    /// Queues whose length is measured.
    Queue {
        /// Messages for slow clients, over all connections.
        Outbox = "outbox",
        /// Writes waiting for the store's next commit.
        Store = "store",
    }
}

labels! {
    /// Caches whose hit rate is measured.
    Cache {
        /// Batched reads that were answered by one call.
        Reads = "reads",
        /// Verified keys.
        Keys = "keys",
        /// Responses of upstream servers.
        Upstreams = "upstreams",
    }
}

/// The state of a provider's circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

/// The installed recorder. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    prometheus: PrometheusHandle,
}

impl Metrics {
    /// Installs the recorder of the process and describes every metric. Later calls return the same recorder.
    ///
    /// # Errors
    /// Another recorder was installed before, or the upkeep thread could not be started.
    pub fn install() -> Result<Self, MetricsError> {
        static INSTALLED_METRICS: OnceLock<Result<Metrics, String>> = OnceLock::new();
        INSTALLED_METRICS.get_or_init(|| Self::build().map_err(|e| e.to_string())).clone().map_err(MetricsError)
    }

    fn build() -> Result<Self, Box<dyn std::error::Error>> {
        let prometheus = PrometheusBuilder::new()
            .set_buckets(&DURATION_BUCKETS)
            .map_err(|e: BuildError| e.to_string())?
            .install_recorder()
            .map_err(|e| e.to_string())?;
        describe_metrics();
        let metrics = Self { prometheus };
        metrics.register();
        let upkeep = metrics.clone();
        std::thread::Builder::new().name("metrics-upkeep".into()).spawn(move || {
            loop {
                std::thread::sleep(UPKEEP_INTERVAL);
                upkeep.refresh();
            }
        })?;
        Ok(metrics)
    }

    /// Creates series that would otherwise appear only after their first use, so that the first scrape shows them.
    fn register(&self) {
        for transport in Transport::ALL {
            connections(*transport).set(0.0);
            sessions(*transport).set(0.0);
        }
        for queue in Queue::ALL {
            queue_length(*queue).set(0.0);
        }
        for cache in Cache::ALL {
            let _ = CacheMetrics::for_cache(*cache);
        }
        gauge!(FEED_SUBSCRIBERS).set(0.0);
        body_bytes().set(0.0);
        gauge!(INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        requests::register();
        self.refresh();
    }

    /// Folds samples and recomputes ratios.
    fn refresh(&self) {
        self.prometheus.run_upkeep();
        gauge!(ERROR_RATIO).set(requests::error_ratio());
        for cache in Cache::ALL {
            gauge!(CACHE_HIT_RATIO, "cache" => cache.as_str()).set(CacheMetrics::for_cache(*cache).ratio());
        }
    }

    /// Renders the Prometheus text format, version 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        self.refresh();
        names::drop_removed_series(self.prometheus.render())
    }
}

/// The reason why the recorder could not be installed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("metrics cannot be collected: {0}")]
pub struct MetricsError(String);

/// Registers the HELP text and unit of every metric.
fn describe_metrics() {
    for (name, kind, unit, help) in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(name, unit, help),
            Kind::Gauge => metrics::describe_gauge!(name, unit, help),
            Kind::Histogram => metrics::describe_histogram!(name, unit, help),
        }
    }
}

fn connections(transport: Transport) -> Gauge {
    gauge!(CONNECTIONS, "transport" => transport.as_str())
}

fn sessions(transport: Transport) -> Gauge {
    gauge!(SESSIONS, "transport" => transport.as_str())
}

/// Returns the gauge of the bytes in buffered bodies.
pub fn body_bytes() -> Gauge {
    gauge!(BODY_BYTES)
}

/// Returns the gauge of a queue's length. Keep it, because the look-up costs more than setting it.
pub fn queue_length(queue: Queue) -> Gauge {
    gauge!(QUEUE_LENGTH, "queue" => queue.as_str())
}

/// Counts an open connection, session or subscriber until it is dropped.
pub struct ConnectionGuard(Gauge);

impl ConnectionGuard {
    /// Counts an open connection.
    #[must_use]
    pub fn connection(transport: Transport) -> Self {
        Self::new(connections(transport))
    }
    /// Counts a live session.
    #[must_use]
    pub fn session(transport: Transport) -> Self {
        Self::new(sessions(transport))
    }
    /// Counts a subscriber of the feed.
    #[must_use]
    pub fn subscriber() -> Self {
        Self::new(gauge!(FEED_SUBSCRIBERS))
    }
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Hits and misses of one cache, global to the process. Counting costs two atomic additions.
pub struct CacheMetrics {
    hits: Counter,
    misses: Counter,
    counts: [AtomicUsize; 2],
}

impl CacheMetrics {
    /// Returns the counters of a cache.
    #[must_use]
    pub fn for_cache(cache: Cache) -> &'static Self {
        static CACHE_METRICS: [OnceLock<CacheMetrics>; 3] = [const { OnceLock::new() }; 3];
        // `cache as usize` is below 3; `%` only proves that to the compiler.
        CACHE_METRICS[cache as usize % 3].get_or_init(|| Self {
            hits: counter!(CACHE_HITS, "cache" => cache.as_str()),
            misses: counter!(CACHE_MISSES, "cache" => cache.as_str()),
            counts: [AtomicUsize::new(0), AtomicUsize::new(0)],
        })
    }
    pub fn hit(&self) {
        self.hits.increment(1);
        self.counts[0].fetch_add(1, Ordering::Relaxed);
    }
    pub fn miss(&self) {
        self.misses.increment(1);
        self.counts[1].fetch_add(1, Ordering::Relaxed);
    }
    /// Returns hits divided by look-ups; 0 before the first look-up.
    #[allow(clippy::cast_precision_loss)]
    fn ratio(&self) -> f64 {
        let [hits, misses] = self.counts.each_ref().map(|c| c.load(Ordering::Relaxed));
        if hits + misses == 0 { 0.0 } else { hits as f64 / (hits + misses) as f64 }
    }
}

/// Sets the state of a provider's circuit breaker. Provider names come from the configuration. The first 256
/// providers have their own labels, and all further ones share the label `other`.
pub fn set_breaker_state(provider: &str, state: Breaker) {
    static LABELLED_PROVIDERS: BoundedNames = BoundedNames(Mutex::new(BTreeSet::new()));
    let label = if LABELLED_PROVIDERS.admits(provider, 256) { provider } else { "other" };
    gauge!(BREAKER_STATE, "provider" => label.to_owned()).set(f64::from(state as u8));
}

/// A bounded set of names.
struct BoundedNames(Mutex<BTreeSet<String>>);

impl BoundedNames {
    /// Returns `true` if the set contains the name, or adds it below the limit.
    fn admits(&self, name: &str, limit: usize) -> bool {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(name) || (names.len() < limit && names.insert(name.to_owned()))
    }
}
