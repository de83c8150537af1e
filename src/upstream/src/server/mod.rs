//! One upstream server as seen by the rest of the gateway.

pub mod accounts;
pub mod cache;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod gateway_requests;
pub(crate) mod limits;
mod metrics;
pub(crate) mod pool;
pub(crate) mod resource_watches;
pub mod status;
mod thread;

use std::{
    borrow::Cow,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::ArbiterHandle;
use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

use self::{
    accounts::{PersonalUpstreams, UpstreamAccounts},
    cache::Cache,
    connection::UpstreamConnection,
    endpoint::Endpoint,
    limits::{CallSlots, CallTimeouts},
    resource_watches::{DUPLICATE_WINDOW, ResourceWatches, UpdateAction},
};
use crate::{
    catalog::{Catalog, ListKinds, names::Names, usable_definitions::UsableDefinitions},
    link::{Connector, LinkError, LinkKind, NegotiatedSession, UpstreamNotification},
};
use countersign_config::UpstreamConfig;
use countersign_domain::text::truncate;
use countersign_protocol::{Era, ErrorKind, McpError};
use countersign_provider::{List, ProviderEvent};

pub use connection::{Caller, LinkChoice};
pub use metrics::{CallOutcome, UpstreamMetrics};
pub use resource_watches::containing_uris;
pub use status::UpstreamStatus;

/// The number of events that are buffered for a slow receiver. A receiver that misses events reads the lists again.
const EVENT_BUFFER: usize = 256;

/// The time limit for calls in flight to an upstream that is replaced or removed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit for reading the tools again, before an approved change runs or a link to another version of the server is
/// used. Some servers answer nothing while they run a call.
const REREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of the connection.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Connecting for the first time or again.
    Connecting,
    Up,
    /// The last attempt failed. Further attempts follow.
    Down(LinkError),
    /// A person must connect an account first. There are no attempts until then. The text continues a sentence that
    /// begins with the server's name.
    ConsentNeeded(String),
}

/// The name of the only tool of a server whose account nobody has connected.
pub const CONNECT_TOOL: &str = "connect";

/// An upstream server. Reading it is cheap on any thread; long-running work happens on the thread of all upstreams.
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
    /// The number of times that the list of tools has changed.
    pub(super) tools_version: AtomicU64,
    /// The number of requests to read the tools again ([`Upstream::reread_tools`]).
    pub(super) tools_requests: AtomicU64,
    /// The last reading of the tools: the number of requests when it began, and `true` if the tools were read.
    pub(super) tools_reading: watch::Sender<(u64, bool)>,
    /// Cancelled once the connection has ended on which the tools were read. `None` if they were never read.
    tools_connection_end: Mutex<Option<CancellationToken>>,
    /// Notified when a call needs the disconnected upstream, so that the next attempt comes sooner.
    pub(super) reconnect: Notify,
    /// Notified when an account was connected or disconnected, or personal accounts have become necessary.
    pub(super) account_changed: Notify,
    /// `None` if the server is used without an account.
    pub(super) accounts: Option<UpstreamAccounts>,
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
    /// The thread of all upstreams. It is set when this upstream is started.
    pub(super) thread: OnceLock<ArbiterHandle>,
    pub(super) metrics: UpstreamMetrics,
    pub(super) stop: CancellationToken,
    /// Cancelled at the end of the gateway, to end the calls that still run.
    pub(super) gateway_ended: CancellationToken,
}

impl Upstream {
    /// Creates an upstream that was never connected. There is one connector for each of its URLs, or one for its
    /// command.
    #[must_use]
    pub fn new(config: Arc<UpstreamConfig>, connectors: Vec<Arc<dyn Connector>>) -> Arc<Self> {
        Self::with_accounts(config, connectors, None)
    }

    /// Creates an upstream whose connectors use the account of `accounts`.
    pub(super) fn with_accounts(
        config: Arc<UpstreamConfig>,
        connectors: Vec<Arc<dyn Connector>>,
        accounts: Option<UpstreamAccounts>,
    ) -> Arc<Self> {
        let breaker = config.breaker;
        let is_personal = accounts.as_ref().is_some_and(|accounts| accounts.configured_upstream.strong_count() > 0);
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
            tools_version: AtomicU64::new(0),
            tools_requests: AtomicU64::new(0),
            tools_reading: watch::Sender::default(),
            tools_connection_end: Mutex::default(),
            reconnect: Notify::new(),
            account_changed: Notify::new(),
            accounts,
            era_doubted: Notify::new(),
            current_endpoint: AtomicUsize::new(0),
            stale_at: AtomicU64::new(u64::MAX),
            resource_watches: ResourceWatches::default(),
            cache: config.cache.then(Cache::default),
            events: broadcast::channel(EVENT_BUFFER).0,
            thread: OnceLock::new(),
            metrics: if is_personal {
                UpstreamMetrics::for_person(&config.name)
            } else {
                UpstreamMetrics::new(&config.name)
            },
            stop: CancellationToken::new(),
            gateway_ended: CancellationToken::new(),
            config,
        })
    }

    /// Returns the id of the next request, which is unique across all links.
    pub fn next_request_id(&self) -> u64 {
        self.last_request_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the era, revision and capabilities, which stay available while the upstream is disconnected.
    pub fn negotiated(&self) -> Option<Arc<NegotiatedSession>> {
        self.negotiated.load_full()
    }

    /// Returns the era of the server. A server that was never reached counts as one of the handshake era.
    pub fn era(&self) -> Era {
        self.negotiated.load().as_ref().map_or(Era::Legacy, |negotiated| negotiated.revision.era())
    }

    /// Returns `true` if links have one ordered stream for everything, so that a call with questions needs a link of
    /// its own.
    pub fn needs_exclusive_links(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.kind() == LinkKind::SingleStream)
    }

    /// Returns the lists, which are empty until the upstream was reached and stay available while it is disconnected.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Returns the cache of results, if the configuration enables it.
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

    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Up)
    }

    /// Waits until the first attempt to connect has succeeded or failed.
    pub async fn wait_until_settled(&self) {
        let mut phase = self.phase.subscribe();
        drop(phase.wait_for(|_| self.first_attempt_done.load(Ordering::Acquire)).await);
    }

    /// Publishes the state of the connection.
    pub(super) fn set_phase(&self, phase: Phase) {
        let is_up = matches!(phase, Phase::Up);
        self.metrics.up.set(f64::from(u8::from(is_up)));
        self.metrics.record_phase(&phase);
        self.phase.send_modify(|current| {
            // Within the lock, so that a caller who waited for the first attempt finds its phase.
            if !matches!(phase, Phase::Connecting) {
                self.first_attempt_done.store(true, Ordering::Release);
            }
            *current = phase;
        });
        // The lists may be read with this account from now on.
        if is_up && let Some(configured) = self.configured_upstream().filter(|configured| !configured.was_reached()) {
            configured.account_changed.notify_one();
        }
    }

    /// Publishes the state of the connection, unless it is of the same kind as before. Returns `true` if it was
    /// published.
    pub(super) fn change_phase(&self, phase: Phase) -> bool {
        let is_new = std::mem::discriminant(&phase) != std::mem::discriminant(&*self.phase.borrow());
        if is_new {
            self.set_phase(phase);
        }
        is_new
    }

    /// Publishes that a person must connect an account.
    pub(super) fn set_consent_needed(&self, reason: String) {
        if self.change_phase(Phase::ConsentNeeded(reason)) && !self.was_reached() {
            // The only tool of the server is listed now.
            self.emit(ProviderEvent::ListChanged(List::Tools));
        }
    }

    /// Returns the configured upstream that this personal upstream belongs to.
    pub(super) fn configured_upstream(&self) -> Option<Arc<Self>> {
        self.accounts.as_ref()?.configured_upstream.upgrade()
    }

    /// Records that the lists were read. Returns `true` the first time.
    pub(super) fn mark_reached(&self) -> bool {
        !self.reached.swap(true, Ordering::AcqRel)
    }

    /// Returns `true` if the upstream was ever reached and its lists were read.
    pub fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    /// Returns `true` if calls are refused, because the circuit is open at every endpoint.
    pub fn is_refusing(&self) -> bool {
        !self.endpoints.is_empty() && self.endpoints.iter().all(|endpoint| endpoint.breaker.is_refusing())
    }

    /// Returns the time since the upstream was configured.
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.metrics.millis_since_configured())
    }

    /// Returns the time limit for reading the tools again before something that a person waits for.
    pub(crate) fn reread_limit(&self) -> Duration {
        self.config.timeout.min(REREAD_TIMEOUT)
    }

    /// Records that the tools are those that the server lists on this connection.
    pub(super) fn set_tools_connection(&self, connection: &UpstreamConnection) {
        *self.tools_connection_end.lock() = Some(connection.end_token());
    }

    /// Returns `false` if the session or process that listed the tools has ended. Another server may have replaced it.
    pub(crate) fn has_current_tools(&self) -> bool {
        self.tools_connection_end.lock().as_ref().is_some_and(|end| !end.is_cancelled())
    }

    /// Marks lists to be read again soon. Repeated calls until then cause only one reading.
    pub(super) fn mark_stale(&self, lists: ListKinds) {
        self.stale_lists.fetch_or(lists.bits(), Ordering::AcqRel);
        self.lists_stale.notify_one();
    }

    /// Starts to read lists again in the background if their time to live is over
    /// (2026-07-28/server/utilities/caching). Costs one atomic read if they are fresh, and two
    /// locks where persons use accounts of their own.
    pub fn refresh_if_stale(&self) {
        if let Some(list_source) = self.personal_upstreams().and_then(PersonalUpstreams::find_list_source) {
            return list_source.refresh_if_stale();
        }
        let stale_at = self.stale_at.load(Ordering::Relaxed);
        if stale_at != u64::MAX
            && self.metrics.millis_since_configured() >= stale_at
            && self.stale_at.compare_exchange(stale_at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.mark_stale(ListKinds::all());
        }
    }

    pub(super) fn emit(&self, event: ProviderEvent) {
        if let ProviderEvent::ListChanged(list) = event
            && let Some(accounts) = &self.accounts
            && let Some(configured) = accounts.configured_upstream.upgrade()
        {
            // This includes the account whose lists are offered to everybody, because its resources are its holder's only.
            let holder = accounts.account.holder.as_str().into();
            configured.emit(ProviderEvent::AccountListChanged { list, holder });
        }
        // An event without receivers is not an error.
        let _ = self.events.send(event);
    }

    /// Handles a notification for the gateway itself, and returns `false` for any other one.
    /// `is_gateway_subscription` is `true` if the notification arrived on the subscription of the gateway.
    pub(super) fn handle_notification(
        &self,
        notification: &UpstreamNotification,
        is_gateway_subscription: bool,
    ) -> bool {
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
                self.forward_resource_update(uri, is_gateway_subscription);
            }
            None => {
                tracing::debug!(upstream = %self.config.name, "`notifications/resources/updated` without a `uri` is ignored")
            }
        }
        true
    }

    fn forward_resource_update(&self, uri: String, is_gateway_subscription: bool) {
        if is_gateway_subscription {
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

    /// Creates the error of a call to this server. `outcome` says whether the server may have executed the call.
    pub(crate) fn call_error(
        &self,
        kind: ErrorKind,
        message: impl Into<Cow<'static, str>>,
        outcome: &'static str,
    ) -> McpError {
        McpError::new(kind, message).with("upstream", self.config.name.as_str()).with("outcome", outcome)
    }

    /// Counts a message that cannot be attributed to a call.
    pub(super) fn count_unattributed(&self, method: &str) {
        self.metrics.unattributed.increment(1);
        let method = truncate(method, 64);
        tracing::debug!(upstream = %self.config.name, method, "a message is dropped, because it cannot be attributed to one call");
    }

    /// Closes the links of a client session that has ended.
    pub fn close_session(&self, session: &str) {
        for endpoint in &self.endpoints {
            endpoint.pool.close_session(session);
        }
        for personal in self.open_personal_upstreams() {
            personal.close_session(session);
        }
    }

    /// Takes over the lists of a previous upstream for the same server.
    pub(super) fn inherit_lists(&self, previous: &Self) {
        if previous.personal_upstreams().is_some() {
            self.require_personal_accounts();
        }
        self.reached.store(previous.was_reached(), Ordering::Release);
        self.negotiated.store(previous.negotiated());
        let catalog = previous.catalog();
        let definitions = UsableDefinitions::build(&self.config, &self.names, &catalog);
        self.definitions.store(Arc::new(definitions));
        self.catalog.store(catalog);
    }

    /// Closes an upstream that new calls no longer find, after its calls have finished.
    pub(super) async fn drain(self: Arc<Self>) {
        let calls_finished = async {
            // Calls that found the upstream before may still arrive.
            tokio::time::sleep(Duration::from_secs(1)).await;
            while self.calls_in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, calls_finished).await.is_err() {
            tracing::warn!(upstream = %self.config.name, "the upstream was closed while calls to it were still running");
        }
        self.close();
    }

    /// Closes all connections and accepts no more calls.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.close_links();
        for personal in self.open_personal_upstreams() {
            personal.close();
        }
    }

    /// Fails the calls that still run after [`Self::close`]: those over HTTP run on the threads of their callers, and each
    /// has a connection of its own.
    pub(super) fn end_calls(&self) {
        self.gateway_ended.cancel();
        for personal in self.open_personal_upstreams() {
            personal.end_calls();
        }
    }

    /// Closes all connections of this upstream. Later calls open others.
    pub(super) fn close_links(&self) {
        self.endpoints.iter().for_each(|endpoint| endpoint.close());
    }
}
