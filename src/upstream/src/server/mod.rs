//! One upstream server as seen by the rest of the gateway, and its metrics.

pub mod cache;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod limits;
pub(crate) mod own_requests;
pub(crate) mod pool;
pub(crate) mod resource_watches;
pub mod status;

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::Addr;
use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use metrics::{Counter, Gauge, counter, gauge};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::{Notify, broadcast, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::{
    cache::Cache,
    endpoint::Endpoint,
    limits::{CallSlots, CallTimeouts},
    resource_watches::{DUPLICATE_WINDOW, ResourceWatches, UpdateAction},
};
use crate::{
    catalog::{Catalog, ListKinds, names::Names, usable_definitions::UsableDefinitions},
    link::{Connector, LinkError, LinkKind, NegotiatedSession, UpstreamNotification},
};
use countersign_config::UpstreamConfig;
use countersign_protocol::redact::redact;
use countersign_provider::ProviderEvent;
use countersign_telemetry::metrics::{
    ConfiguredName, UPSTREAM_CALLS, UPSTREAM_IN_FLIGHT, UPSTREAM_LINKS, UPSTREAM_RESTARTS, UPSTREAM_UNATTRIBUTED,
    UPSTREAM_UP,
};

pub use connection::{Caller, LinkChoice};
pub use status::UpstreamStatus;

/// Number of events that are buffered for a slow receiver. A receiver that misses events reads the lists again.
const EVENT_BUFFER: usize = 256;

/// Maximum number of upstreams with their own metrics; the others share the label `other`.
const MAX_LABELED_UPSTREAMS: usize = 256;

/// The state of the connection.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Connecting for the first time or again.
    Connecting,
    Up,
    /// The last attempt failed. Further attempts follow.
    Down(LinkError),
}

/// Performs an upstream's long-running work on the upstreams' thread. Its messages are in `calls` and `upkeep`.
pub struct UpstreamActor(pub Arc<Upstream>);

/// An upstream server. Reading it is cheap on any thread; long-running work happens in its actor.
pub struct Upstream {
    pub config: Arc<UpstreamConfig>,
    /// The fingerprint of the command or addresses.
    pub target: String,
    pub names: Names,
    pub(super) weak_self: Weak<Self>,
    pub(super) last_request_id: AtomicU64,
    pub(super) negotiated: ArcSwapOption<NegotiatedSession>,
    pub(super) catalog: ArcSwap<Catalog>,
    pub(super) definitions: ArcSwap<UsableDefinitions>,
    pub(super) endpoints: Box<[Arc<Endpoint>]>,
    pub(super) call_slots: CallSlots,
    pub(super) timeouts: CallTimeouts,
    pub(super) phase: watch::Sender<Phase>,
    /// `true` once the first attempt to connect has succeeded or failed.
    pub(super) first_attempt_done: AtomicBool,
    /// `true` once the upstream was reached and its lists were read. It is never reset.
    reached: AtomicBool,
    /// The lists that must be read again, as bits of [`ListKinds`].
    pub(super) stale_lists: AtomicU8,
    /// Notified when lists have become stale.
    pub(super) lists_stale: Notify,
    /// Notified when a call needs the disconnected upstream, so that the next attempt comes sooner.
    pub(super) reconnect: Notify,
    /// Notified when the server's answers contradict the detected era.
    pub(super) era_doubted: Notify,
    /// The index of the endpoint whose lists are offered.
    pub(super) current_endpoint: AtomicUsize,
    /// The time at which the lists become stale, in milliseconds since the upstream was configured; `u64::MAX` if
    /// unknown.
    pub(super) stale_at: AtomicU64,
    pub(super) resource_watches: ResourceWatches,
    /// `None` unless the configuration enables the cache.
    cache: Option<Cache>,
    pub(super) events: broadcast::Sender<ProviderEvent>,
    pub(super) actor: OnceLock<Addr<UpstreamActor>>,
    pub(super) metrics: UpstreamMetrics,
    pub(super) stop: CancellationToken,
}

impl Upstream {
    /// Creates an upstream that was never connected. There is one connector for each of its URLs, or one for its
    /// command.
    #[must_use]
    pub fn new(config: Arc<UpstreamConfig>, connectors: Vec<Arc<dyn Connector>>) -> Arc<Self> {
        let breaker = config.breaker;
        Arc::new_cyclic(|weak_self| Self {
            target: config.target.fingerprint(),
            names: Names::new(&config),
            weak_self: Weak::clone(weak_self),
            last_request_id: AtomicU64::new(0),
            negotiated: ArcSwapOption::empty(),
            catalog: ArcSwap::default(),
            definitions: ArcSwap::default(),
            endpoints: connectors
                .into_iter()
                .enumerate()
                .map(|(index, connector)| Arc::new(Endpoint::new(index, connector, breaker)))
                .collect(),
            call_slots: CallSlots::new(config.max_in_flight, config.max_queue),
            timeouts: CallTimeouts::new(&config),
            phase: watch::Sender::new(Phase::Connecting),
            first_attempt_done: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            stale_lists: AtomicU8::new(0),
            lists_stale: Notify::new(),
            reconnect: Notify::new(),
            era_doubted: Notify::new(),
            current_endpoint: AtomicUsize::new(0),
            stale_at: AtomicU64::new(u64::MAX),
            resource_watches: ResourceWatches::default(),
            cache: config.cache.then(Cache::default),
            events: broadcast::channel(EVENT_BUFFER).0,
            actor: OnceLock::new(),
            metrics: UpstreamMetrics::new(&config.name),
            stop: CancellationToken::new(),
            config,
        })
    }

    /// Returns the id of the next request, which is unique across all links.
    pub fn next_request_id(&self) -> u64 {
        self.last_request_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the era, revision and capabilities, which stay available while the upstream is disconnected.
    #[must_use]
    pub fn negotiated(&self) -> Option<Arc<NegotiatedSession>> {
        self.negotiated.load_full()
    }

    /// Returns `true` if links have one ordered stream for everything, so that a call with questions needs a link of
    /// its own.
    #[must_use]
    pub fn needs_exclusive_links(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.kind() == LinkKind::Shared)
    }

    /// Returns the lists, which are empty until the upstream was reached and stay available while it is disconnected.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Returns the cache of results, if the configuration enables it.
    #[must_use]
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// Invalidates all cached results.
    pub(super) fn invalidate_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.invalidate_all();
        }
    }

    pub(super) fn current_endpoint(&self) -> usize {
        self.current_endpoint.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Waits until the first attempt to connect has succeeded or failed.
    pub async fn wait_until_settled(&self) {
        let mut phase = self.phase.subscribe();
        while !self.first_attempt_done.load(Ordering::Acquire) {
            if phase.changed().await.is_err() {
                return;
            }
        }
    }

    /// Publishes the state of the connection.
    pub(super) fn set_phase(&self, phase: Phase) {
        if !matches!(phase, Phase::Connecting) {
            self.first_attempt_done.store(true, Ordering::Release);
        }
        self.metrics.up.set(f64::from(u8::from(matches!(phase, Phase::Up))));
        self.metrics.record_phase(&phase);
        self.phase.send_replace(phase);
    }

    /// Records that the lists were read. Returns `true` the first time.
    pub(super) fn mark_reached(&self) -> bool {
        !self.reached.swap(true, Ordering::AcqRel)
    }

    /// Returns `true` if the upstream was ever reached and its lists were read.
    #[must_use]
    pub fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    /// Returns the time since the upstream was configured.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.metrics.millis())
    }

    /// Marks lists to be read again soon. Repeated calls until then cause only one reading.
    pub(super) fn mark_stale(&self, lists: ListKinds) {
        self.stale_lists.fetch_or(lists.bits(), Ordering::AcqRel);
        self.lists_stale.notify_one();
    }

    /// Starts to read lists again in the background if their time to live is over
    /// (2026-07-28/server/utilities/caching). Costs one atomic read if they are fresh.
    pub fn refresh_if_stale(&self) {
        let stale_at = self.stale_at.load(Ordering::Relaxed);
        if stale_at != u64::MAX
            && self.metrics.millis() >= stale_at
            && self.stale_at.compare_exchange(stale_at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.mark_stale(ListKinds::all());
        }
    }

    pub(super) fn emit(&self, event: ProviderEvent) {
        // An event without receivers is not an error.
        let _ = self.events.send(event);
    }

    /// Handles a notification for the gateway itself, and returns `false` for any other one. `is_own_subscription` is `true` if
    /// the notification arrived on the gateway's own subscription.
    pub(super) fn handle_notification(&self, notification: &UpstreamNotification, is_own_subscription: bool) -> bool {
        if let Some(list) = ListKinds::from_notification(&notification.method) {
            self.invalidate_cache();
            self.mark_stale(list);
            return true;
        }
        if notification.method != "notifications/resources/updated" {
            return false;
        }
        #[derive(Deserialize)]
        struct Updated {
            uri: String,
        }
        let updated = notification.params.as_ref().and_then(|p| serde_json::from_str::<Updated>(p.get()).ok());
        match updated {
            Some(Updated { uri }) => {
                if let Some(cache) = &self.cache {
                    cache.invalidate(&uri);
                }
                self.resource_updated(uri, is_own_subscription);
            }
            None => {
                tracing::debug!(upstream = %self.config.name, "`notifications/resources/updated` without a `uri` is ignored")
            }
        }
        true
    }

    fn resource_updated(&self, uri: String, is_own_subscription: bool) {
        if is_own_subscription {
            self.resource_watches.record_update(&uri);
            return self.emit_resource_updated(&uri);
        }
        match self.resource_watches.classify_update_from_other_connection(&uri) {
            UpdateAction::Forward => self.emit_resource_updated(&uri),
            UpdateAction::Ignore => {}
            UpdateAction::Delay => {
                let weak_self = Weak::clone(&self.weak_self);
                tokio::spawn(async move {
                    tokio::time::sleep(DUPLICATE_WINDOW).await;
                    if let Some(upstream) = weak_self.upgrade()
                        && upstream.resource_watches.take_delayed_update(&uri)
                    {
                        upstream.emit_resource_updated(&uri);
                    }
                });
            }
        }
    }

    fn emit_resource_updated(&self, uri: &str) {
        self.emit(ProviderEvent::ResourcesUpdated(vec![self.names.expose_uri(uri).into_owned()]));
    }

    /// Counts a message that cannot be attributed to a call.
    pub(super) fn count_unattributed(&self, method: &str) {
        self.metrics.unattributed.increment(1);
        let method: String = method.chars().take(64).collect();
        tracing::debug!(upstream = %self.config.name, method, "a message is dropped, because it cannot be attributed to one call");
    }

    /// Closes the links of a client session that has ended.
    pub fn session_ended(&self, session: &str) {
        for endpoint in &self.endpoints {
            endpoint.pool.session_ended(session);
        }
    }

    /// Takes over the lists of a previous upstream for the same server.
    pub(super) fn inherit_lists(&self, previous: &Self) {
        self.reached.store(previous.was_reached(), Ordering::Release);
        self.negotiated.store(previous.negotiated());
        let catalog = previous.catalog();
        let definitions = UsableDefinitions::build(&self.config, &self.names, &catalog);
        self.definitions.store(Arc::new(definitions));
        self.catalog.store(catalog);
    }

    /// Closes all connections and accepts no more calls.
    pub(super) fn close(&self) {
        self.stop.cancel();
        for endpoint in &self.endpoints {
            endpoint.close();
        }
    }
}

/// The outcome of a call in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Ok = 0,
    /// The server answered with an error.
    Error = 1,
    Unreachable = 2,
    Lost = 3,
    Timeout = 4,
    /// Not tried because the circuit is open or there are too many calls.
    Refused = 5,
    Cancelled = 6,
}

const OUTCOME_LABELS: [&str; 7] = ["ok", "error", "unreachable", "lost", "timeout", "refused", "cancelled"];

/// Metric handles of one upstream, because looking them up costs more than counting.
pub struct UpstreamMetrics {
    pub up: Gauge,
    pub in_flight: Gauge,
    pub links: Gauge,
    pub restarts: Counter,
    pub unattributed: Counter,
    outcomes: [Counter; 7],
    created_at: Instant,
    history: Mutex<ConnectionHistory>,
    /// `None` if the upstream shares the label `other`.
    name: Option<ConfiguredName>,
}

/// The history of the connection.
#[derive(Debug)]
struct ConnectionHistory {
    since: Timestamp,
    restarts: u64,
    error: Option<String>,
    /// Omitted definitions, and lists that could not be read.
    omitted: Vec<String>,
}

impl UpstreamMetrics {
    #[must_use]
    pub fn new(upstream: &str) -> Self {
        static LABELED_NAMES: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
        let mut known = LABELED_NAMES.get_or_init(Mutex::default).lock();
        let has_own_label =
            known.contains(upstream) || (known.len() < MAX_LABELED_UPSTREAMS && known.insert(upstream.to_owned()));
        let label = if has_own_label { upstream } else { "other" }.to_owned();
        Self {
            up: gauge!(UPSTREAM_UP, "upstream" => label.clone()),
            in_flight: gauge!(UPSTREAM_IN_FLIGHT, "upstream" => label.clone()),
            links: gauge!(UPSTREAM_LINKS, "upstream" => label.clone()),
            restarts: counter!(UPSTREAM_RESTARTS, "upstream" => label.clone()),
            unattributed: counter!(UPSTREAM_UNATTRIBUTED, "upstream" => label.clone()),
            outcomes: OUTCOME_LABELS
                .map(|outcome| counter!(UPSTREAM_CALLS, "upstream" => label.clone(), "outcome" => outcome)),
            created_at: Instant::now(),
            history: Mutex::new(ConnectionHistory {
                since: Timestamp::now(),
                restarts: 0,
                error: None,
                omitted: Vec::new(),
            }),
            name: has_own_label.then(|| ConfiguredName::new(&["upstream", "provider"], upstream)),
        }
    }

    /// Removes the metrics of a server that is no longer configured.
    pub(crate) fn remove(&self) {
        if let Some(name) = &self.name {
            name.remove();
        }
    }

    pub fn record_outcome(&self, outcome: CallOutcome) {
        if let Some(counter) = self.outcomes.get(outcome as usize) {
            counter.increment(1);
        }
    }

    /// Returns the milliseconds since the upstream was configured.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.created_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn record_phase(&self, phase: &Phase) {
        let mut history = self.history.lock();
        history.since = Timestamp::now();
        match phase {
            Phase::Down(error) => history.error = Some(error_text(error)),
            Phase::Up => history.error = None,
            Phase::Connecting => {}
        }
    }

    pub(crate) fn record_restart(&self) {
        self.restarts.increment(1);
        self.history.lock().restarts += 1;
    }

    pub(crate) fn set_omitted(&self, omitted: Vec<String>) {
        self.history.lock().omitted = omitted;
    }
}

fn error_text(error: &LinkError) -> String {
    redact(&error.to_string()).chars().take(500).collect()
}
