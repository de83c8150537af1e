//! One upstream server, as the rest of the gateway sees it.

pub(crate) mod breaker;
pub mod cache;
pub mod caller;
pub(crate) mod endpoint;
pub(crate) mod held;
pub(crate) mod own_requests;
pub(crate) mod pinned;
pub(crate) mod places;
pub(crate) mod pool;
pub(crate) mod silence;
pub mod status;
pub(crate) mod timeouts;
pub(crate) mod watched;

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::Addr;
use arc_swap::{ArcSwap, ArcSwapOption};
use serde::Deserialize;
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

use self::{
    cache::Cache,
    endpoint::Endpoint,
    places::Places,
    status::Meters,
    timeouts::Timeouts,
    watched::{Elsewhere, TOGETHER, Watched},
};
use crate::{
    catalog::{Catalog, ListKinds, names::Names, offered::Offered},
    link::{Connector, LinkError, LinkKind, Negotiated, UpstreamNotification},
};
use countersign_config::UpstreamConfig;
use countersign_provider::ProviderEvent;

pub use caller::Caller;
pub use pinned::Pinned;
pub use status::UpstreamStatus;

/// Events held for a receiver that is slow; beyond that it re-reads.
const EVENTS: usize = 256;

/// Whether the server is there.
#[derive(Clone, Debug)]
pub enum Phase {
    /// On the way, for the first time or again.
    Connecting,
    Up,
    /// The last try failed; there will be others.
    Down(LinkError),
}

/// Does what takes time of an upstream, on the upstreams' thread. What it does is in `calls` and `upkeep`.
pub struct UpstreamActor(pub Arc<Upstream>);

/// See the module's page. Cheap to read from any thread; what takes time happens in its actor.
pub struct Upstream {
    pub config: Arc<UpstreamConfig>,
    /// The fingerprint of its command or addresses.
    pub target: String,
    pub names: Names,
    pub(super) me: Weak<Self>,
    pub(super) last: AtomicU64,
    pub(super) negotiated: ArcSwapOption<Negotiated>,
    pub(super) catalog: ArcSwap<Catalog>,
    pub(super) offered: ArcSwap<Offered>,
    pub(super) endpoints: Box<[Endpoint]>,
    pub(super) places: Places,
    pub(super) timeouts: Timeouts,
    pub(super) phase: watch::Sender<Phase>,
    /// It was reached, or a try has failed, for the first time.
    pub(super) settled: AtomicBool,
    /// It was reached and its lists were read; never undone.
    reached: AtomicBool,
    /// The lists that must be read again, and who does it.
    pub(super) dirty: AtomicU8,
    pub(super) wake: Notify,
    /// A call came while it is away.
    pub(super) nudge: Notify,
    /// It says that it is not of the era that it was found to be.
    pub(super) doubt: Notify,
    /// The endpoint whose lists are shown.
    pub(super) home: AtomicUsize,
    /// Milliseconds since the actor's start when the lists go stale; `u64::MAX` while nothing is known.
    pub(super) stale_at: AtomicU64,
    pub(super) watched: Watched,
    /// Where the configuration wants answers kept.
    cache: Option<Cache>,
    pub(super) events: broadcast::Sender<ProviderEvent>,
    pub(super) actor: OnceLock<Addr<UpstreamActor>>,
    pub(super) meters: Meters,
    pub(super) stop: CancellationToken,
}

impl Upstream {
    /// An upstream that nobody has tried to reach yet. A connector for each of its URLs, or for its command.
    #[must_use]
    pub fn new(config: Arc<UpstreamConfig>, connectors: Vec<Arc<dyn Connector>>) -> Arc<Self> {
        let breaker = config.breaker;
        Arc::new_cyclic(|me| Self {
            target: config.target.fingerprint(),
            names: Names::new(&config),
            me: Weak::clone(me),
            last: AtomicU64::new(0),
            negotiated: ArcSwapOption::empty(),
            catalog: ArcSwap::default(),
            offered: ArcSwap::default(),
            endpoints: connectors.into_iter().map(|connector| Endpoint::new(connector, breaker)).collect(),
            places: Places::new(config.max_in_flight, config.max_queue),
            timeouts: Timeouts::new(&config),
            phase: watch::Sender::new(Phase::Connecting),
            settled: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            dirty: AtomicU8::new(0),
            wake: Notify::new(),
            nudge: Notify::new(),
            doubt: Notify::new(),
            home: AtomicUsize::new(0),
            stale_at: AtomicU64::new(u64::MAX),
            watched: Watched::default(),
            cache: config.cache.then(Cache::default),
            events: broadcast::channel(EVENTS).0,
            actor: OnceLock::new(),
            meters: Meters::new(&config.name),
            stop: CancellationToken::new(),
            config,
        })
    }

    /// The id of the next request; never the same twice, whatever the link.
    pub fn mint(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Its era, revision and capabilities, since it was reached for the first time; kept while it is away.
    #[must_use]
    pub fn negotiated(&self) -> Option<Arc<Negotiated>> {
        self.negotiated.load_full()
    }

    /// One ordered stream carries everything on its links, so that a call that is to be asked back has one to itself.
    #[must_use]
    pub fn has_narrow_links(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.kind() == LinkKind::Shared)
    }

    /// What it offers. Empty until it was reached; kept while it is away.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Answers that are still fresh, where the configuration wants them kept.
    #[must_use]
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// No answer from before holds any more.
    pub(super) fn forget_answers(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_all();
        }
    }

    pub(super) fn home(&self) -> usize {
        self.home.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Resolves when it was reached, or a try to has failed, for the first time.
    pub async fn settled(&self) {
        let mut phase = self.phase.subscribe();
        while !self.settled.load(Ordering::Acquire) {
            if phase.changed().await.is_err() {
                return;
            }
        }
    }

    /// Has it reached at its first turn, if it is waiting for one.
    pub(super) fn set_phase(&self, phase: Phase) {
        if !matches!(phase, Phase::Connecting) {
            self.settled.store(true, Ordering::Release);
        }
        self.meters.up.set(f64::from(u8::from(matches!(phase, Phase::Up))));
        self.meters.moved(&phase);
        self.phase.send_replace(phase);
    }

    /// Its lists were read. Whether that was for the first time.
    pub(super) fn was_read(&self) -> bool {
        !self.reached.swap(true, Ordering::AcqRel)
    }

    /// Whether it was ever reached, and its lists read.
    #[must_use]
    pub fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    /// How long ago it was configured.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.meters.millis())
    }

    /// The lists are to be read again: soon, and once however often this is said meanwhile.
    pub(super) fn stain(&self, what: ListKinds) {
        self.dirty.fetch_or(what.bits(), Ordering::AcqRel);
        self.wake.notify_one();
    }

    /// Somebody uses what this server offers: lists whose time has run out are read again in the background
    /// (2026-07-28/server/utilities/caching). Costs an atomic read where they are fresh.
    pub fn refresh_if_stale(&self) {
        let stale_at = self.stale_at.load(Ordering::Relaxed);
        if stale_at != u64::MAX
            && self.meters.millis() >= stale_at
            && self.stale_at.compare_exchange(stale_at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.stain(ListKinds::all());
        }
    }

    pub(super) fn emit(&self, event: ProviderEvent) {
        // Nobody listening is no failure.
        let _ = self.events.send(event);
    }

    /// Takes a notification that is for the gateway itself, wherever it arrived; `false` for all others. `subscribed`: it
    /// came by the gateway's own subscription.
    pub(super) fn heard(&self, notification: &UpstreamNotification, subscribed: bool) -> bool {
        if let Some(what) = ListKinds::of_notification(&notification.method) {
            self.forget_answers();
            self.stain(what);
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
                    cache.forget(&uri);
                }
                self.resource_moved(uri, subscribed);
            }
            None => tracing::debug!(upstream = %self.config.name, "an update of a resource without its URI"),
        }
        true
    }

    fn resource_moved(&self, uri: String, subscribed: bool) {
        if subscribed {
            self.watched.told(&uri);
            return self.emit_moved(&uri);
        }
        match self.watched.told_elsewhere(&uri) {
            Elsewhere::News => self.emit_moved(&uri),
            Elsewhere::Known => {}
            Elsewhere::Wait => {
                let me = Weak::clone(&self.me);
                tokio::spawn(async move {
                    tokio::time::sleep(TOGETHER).await;
                    if let Some(upstream) = me.upgrade()
                        && upstream.watched.still_news(&uri)
                    {
                        upstream.emit_moved(&uri);
                    }
                });
            }
        }
    }

    fn emit_moved(&self, uri: &str) {
        self.emit(ProviderEvent::ResourcesUpdated(vec![self.names.expose_uri(uri).into_owned()]));
    }

    /// Something arrived that belongs to no call, or to nobody knows which.
    pub(super) fn unattributed(&self, method: &str) {
        self.meters.unattributed.increment(1);
        let method: String = method.chars().take(64).collect();
        tracing::debug!(upstream = %self.config.name, method, "a message that belongs to no one call is dropped");
    }

    /// A client's session has ended: the links that were its own are closed.
    pub fn session_ended(&self, session: &str) {
        for endpoint in &self.endpoints {
            endpoint.pool.session_ended(session);
        }
    }

    /// Begins with what another one knew of the same server.
    pub(super) fn inherit(&self, before: &Self) {
        self.reached.store(before.was_reached(), Ordering::Release);
        self.negotiated.store(before.negotiated());
        let catalog = before.catalog();
        let offered = Offered::build(&self.config, &self.names, &catalog);
        self.offered.store(Arc::new(offered));
        self.catalog.store(catalog);
    }

    /// No more calls: connections are closed.
    pub(super) fn close(&self) {
        self.stop.cancel();
        for endpoint in &self.endpoints {
            endpoint.close();
        }
    }
}
