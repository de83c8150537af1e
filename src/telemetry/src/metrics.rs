//! Installs the recorder for the metrics in [`table`], counts requests and errors, and has handles for metrics that
//! several crates use.
//!
//! Label values come from closed sets: client input never becomes a label.

mod call_history;
mod names;
mod table;

pub use call_history::{CallHistory, CallsInMinute};
pub use names::{ConfiguredName, label_of};
pub use table::*;

use std::{
    collections::VecDeque,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use countersign_protocol::{ErrorKind, Method};

/// Upper bounds of the buckets of all histograms: seconds, except in [`STORE_COMMIT_CHANGES`], which counts.
const HISTOGRAM_BUCKETS: [f64; 15] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

/// The interval at which recorded durations are added to the histograms, so that they do not accumulate between scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }
        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Returns the label value.
            #[must_use]
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $label,)* } }
        }
    };
}

labels! {
    /// The transport over which a request arrived, with the same names as in a change's proposer.
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
        /// Identical reads in a batch: the first is a miss, and the others share its answer and are hits.
        Reads = "reads",
        /// Verified keys.
        Keys = "keys",
        /// Responses of upstream servers.
        Upstreams = "upstreams",
    }
}

/// The state of a provider's circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
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
        let prometheus = PrometheusBuilder::new().set_buckets(&HISTOGRAM_BUCKETS)?.install_recorder()?;
        table::describe();
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
        counter!(REQUESTS, "transport" => "http", "method" => "ping", "outcome" => "ok").increment(0);
        drop(histogram!(REQUEST_DURATION, "transport" => "http", "method" => "ping"));
        counter!(ERRORS, "code" => ErrorKind::Internal.code()).increment(0);
        self.refresh();
    }

    /// Adds recorded durations to the histograms, and recomputes the ratios.
    fn refresh(&self) {
        self.prometheus.run_upkeep();
        CallHistory::global().update(SystemTime::now());
        gauge!(ERROR_RATIO).set(error_ratio());
        for cache in Cache::ALL {
            gauge!(CACHE_HIT_RATIO, "cache" => cache.as_str()).set(CacheMetrics::for_cache(*cache).ratio());
        }
    }

    /// Renders the Prometheus text format, version 0.0.4.
    pub fn render(&self) -> String {
        self.refresh();
        names::drop_removed_series(self.prometheus.render())
    }
}

/// The reason why the recorder could not be installed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("metrics cannot be collected: {0}")]
pub struct MetricsError(String);

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

/// Counts an open connection, session or subscriber in a gauge until it is dropped.
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
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

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Hits and misses of one cache, global to the process. Counting costs two atomic additions.
pub struct CacheMetrics {
    hits: Counter,
    misses: Counter,
    /// The numbers of hits and misses, because the counters cannot be read.
    counts: [AtomicUsize; 2],
}

impl CacheMetrics {
    /// Returns the counters of a cache.
    pub fn for_cache(cache: Cache) -> &'static Self {
        const COUNT: usize = Cache::ALL.len();
        static CACHE_METRICS: [OnceLock<CacheMetrics>; COUNT] = [const { OnceLock::new() }; COUNT];
        // `cache as usize` is below `COUNT`; `%` only proves that to the compiler.
        CACHE_METRICS[cache as usize % COUNT].get_or_init(|| Self {
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
    #[allow(clippy::cast_precision_loss, reason = "a ratio needs no more precision")]
    fn ratio(&self) -> f64 {
        let [hits, misses] = self.counts.each_ref().map(|c| c.load(Ordering::Relaxed));
        if hits + misses == 0 { 0.0 } else { hits as f64 / (hits + misses) as f64 }
    }
}

/// Sets the state of a provider's circuit breaker.
pub fn set_breaker_state(provider: &str, state: CircuitState) {
    gauge!(BREAKER_STATE, "provider" => label_of(provider).to_owned()).set(f64::from(state as u8));
}

labels! {
    /// The outcome of a request.
    RequestOutcome {
        /// A result was returned.
        Ok = "ok",
        /// The call became a pending change.
        Pending = "pending",
        /// A tool ran and failed (`isError`).
        ToolError = "tool_error",
        /// The client's error: unknown method, bad parameters, missing entity.
        ClientError = "client_error",
        /// Refused: authentication, role, policy, limits.
        Refused = "refused",
        /// An error of the gateway or of a provider.
        ServerError = "server_error",
        /// The client cancelled the request or disconnected.
        Cancelled = "cancelled",
        /// The request timed out.
        Timeout = "timeout",
    }
}

impl RequestOutcome {
    /// Returns the outcome of a request that failed with this error.
    pub const fn from_error_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Cancelled => Self::Cancelled,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::ToolExecution => Self::ToolError,
            ErrorKind::Unauthorized
            | ErrorKind::Forbidden
            | ErrorKind::ResourceAccessDenied
            | ErrorKind::RateLimited
            | ErrorKind::Overloaded
            | ErrorKind::PolicyDenied
            | ErrorKind::SelfApproval => Self::Refused,
            kind if kind.status() >= 500 => Self::ServerError,
            _ => Self::ClientError,
        }
    }

    /// Returns `true` if the outcome counts in the error ratio: every failure except cancellations by the client.
    #[must_use]
    pub const fn is_error(self) -> bool {
        !matches!(self, Self::Ok | Self::Pending | Self::Cancelled)
    }
}

/// The label of a method: its name, or `other` for a name that the protocol does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodLabel(Option<Method>);

impl MethodLabel {
    pub fn from_name(name: &str) -> Self {
        Self(Method::parse(name))
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0.map_or("other", Method::as_str)
    }

    /// The number of labels.
    const COUNT: usize = Method::ALL.len() + 1;

    fn index(self) -> usize {
        self.0.map_or(0, |method| method as usize + 1)
    }
}

/// The count of requests with one transport, method and outcome, and their durations, which have no label for the outcome.
/// Both handles are kept, because looking them up costs more than using them.
struct RequestSeries {
    count: Counter,
    duration: Histogram,
}

/// The counters of requests and errors. [`RequestMetrics::get`] returns the only instance.
#[derive(Default)]
pub struct RequestMetrics {
    /// The series by transport, method and outcome.
    series: OnceLock<Box<[OnceLock<RequestSeries>]>>,
    requests: AtomicU64,
    failed: AtomicU64,
    /// The totals of the last minute, from which the error ratio is computed.
    window: Mutex<RatioWindow>,
}

impl RequestMetrics {
    /// Returns the counters of this process. [`Metrics`] must be installed before the first request is recorded, because series
    /// that are older than the recorder are never shown.
    pub fn get() -> &'static Self {
        static REQUEST_METRICS: OnceLock<RequestMetrics> = OnceLock::new();
        REQUEST_METRICS.get_or_init(Self::default)
    }

    /// Counts a completed request.
    pub fn record(&self, transport: Transport, method: MethodLabel, outcome: RequestOutcome, duration: Duration) {
        if let Some(series) = self.series(transport, method, outcome) {
            series.count.increment(1);
            series.duration.record(duration.as_secs_f64());
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        if method == MethodLabel(Some(Method::ToolsCall)) {
            CallHistory::global().record(outcome, duration);
        }
        if outcome.is_error() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn series(&self, transport: Transport, method: MethodLabel, outcome: RequestOutcome) -> Option<&RequestSeries> {
        let all = self.series.get_or_init(|| {
            let count = Transport::ALL.len() * MethodLabel::COUNT * RequestOutcome::ALL.len();
            std::iter::repeat_with(OnceLock::new).take(count).collect()
        });
        let index =
            (transport as usize * MethodLabel::COUNT + method.index()) * RequestOutcome::ALL.len() + outcome as usize;
        let (transport, method, outcome) = (transport.as_str(), method.as_str(), outcome.as_str());
        Some(all.get(index)?.get_or_init(|| RequestSeries {
            count: counter!(REQUESTS, "transport" => transport, "method" => method, "outcome" => outcome),
            duration: histogram!(REQUEST_DURATION, "transport" => transport, "method" => method),
        }))
    }

    /// Counts an error that was returned.
    pub fn record_error(&self, kind: ErrorKind) {
        counter!(ERRORS, "code" => kind.code()).increment(1);
    }
}

/// Returns the share of the last minute's requests that failed; 0 if there was no request.
fn error_ratio() -> f64 {
    let metrics = RequestMetrics::get();
    let totals = (metrics.requests.load(Ordering::Relaxed), metrics.failed.load(Ordering::Relaxed));
    metrics.window.lock().unwrap_or_else(PoisonError::into_inner).update(Instant::now(), totals)
}

/// Samples of the totals during the last minute, at most one every two seconds.
#[derive(Debug, Default)]
struct RatioWindow {
    /// The times of the samples, with the totals of all requests and of those that failed.
    samples: VecDeque<(Instant, (u64, u64))>,
}

impl RatioWindow {
    const LENGTH: Duration = Duration::from_secs(60);
    const STEP: Duration = Duration::from_secs(2);

    /// Takes the current totals, and returns the share of the last minute's requests that failed.
    #[allow(clippy::cast_precision_loss, reason = "a ratio needs no more precision")]
    fn update(&mut self, now: Instant, totals: (u64, u64)) -> f64 {
        // The oldest sample is the last one that is at least a minute old: the start of the window.
        while self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= Self::LENGTH) {
            self.samples.pop_front();
        }
        let start = self.samples.front().map_or((0, 0), |(_, totals)| *totals);
        if self.samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= Self::STEP) {
            self.samples.push_back((now, totals));
        }
        let (requests, failed) = (totals.0.saturating_sub(start.0), totals.1.saturating_sub(start.1));
        if requests == 0 { 0.0 } else { failed as f64 / requests as f64 }
    }
}

#[cfg(test)]
mod tests;
