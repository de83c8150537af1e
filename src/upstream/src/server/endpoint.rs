//! An endpoint of an upstream: its only one, or one of its replicas.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::{breaker::Breaker, connection::UpstreamConnection, pool::Pool};
use crate::link::{Connector, LinkKind};
use countersign_config::BreakerConfig;

/// One endpoint with its connections.
pub struct Endpoint {
    /// The connector, which era detection may replace if the server speaks another transport.
    connector: ArcSwap<Arc<dyn Connector>>,
    pub breaker: Breaker,
    pub pool: Pool,
    /// The link without capabilities, shared by all callers that need none.
    pub plain: ArcSwapOption<UpstreamConnection>,
    in_flight: AtomicUsize,
}

impl Endpoint {
    #[must_use]
    pub fn new(connector: Arc<dyn Connector>, breaker: BreakerConfig) -> Self {
        let pool = Pool::new(connector.kind());
        Self {
            connector: ArcSwap::from_pointee(connector),
            breaker: Breaker::new(breaker),
            pool,
            plain: ArcSwapOption::empty(),
            in_flight: AtomicUsize::new(0),
        }
    }

    #[must_use]
    pub fn connector(&self) -> Arc<dyn Connector> {
        Arc::clone(&self.connector.load())
    }

    pub fn set_connector(&self, connector: Arc<dyn Connector>) {
        self.connector.store(Arc::new(connector));
    }

    #[must_use]
    pub fn kind(&self) -> LinkKind {
        self.connector.load().kind()
    }

    /// Returns the plain link if it can be used.
    #[must_use]
    pub fn plain(&self) -> Option<Arc<UpstreamConnection>> {
        self.plain.load_full().filter(|connection| connection.is_usable())
    }

    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a call until the guard is dropped.
    pub fn count_call(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(&self.in_flight)
    }

    pub fn close(&self) {
        if let Some(plain) = self.plain.swap(None) {
            plain.close();
        }
        self.pool.close_all();
    }
}

/// Uncounts a call when dropped (see [`Endpoint::count_call`]).
pub struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Chooses the endpoint of the next call: of two random ones, that with fewer calls in flight. `ready` tells which
/// endpoints can be called.
#[must_use]
pub fn choose_endpoint(endpoints: &[Endpoint], ready: impl Fn(usize) -> bool) -> Option<usize> {
    if endpoints.len() == 1 {
        return ready(0).then_some(0);
    }
    let all: Vec<usize> = (0..endpoints.len()).filter(|at| ready(*at)).collect();
    let [one, two] = match all.len() {
        0 => return None,
        1 => return all.first().copied(),
        count => {
            let first = random_below(count);
            // Any other endpoint, all with equal probability.
            let second = (first + 1 + random_below(count - 1)) % count;
            [first, second].map(|at| all.get(at).copied().unwrap_or_default())
        }
    };
    let load = |at: usize| endpoints.get(at).map_or(usize::MAX, Endpoint::in_flight);
    Some(if load(two) < load(one) { two } else { one })
}

/// Returns a random number below `bound`, uniform enough for small bounds.
pub fn random_below(bound: usize) -> usize {
    let random = getrandom::u32().map_or(0, |r| r as usize);
    random.checked_rem(bound).unwrap_or(0)
}
