//! One place where an upstream can be reached: its only one, or one of its replicas.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::{breaker::Breaker, held::Held, pool::Pool};
use crate::link::{Connector, LinkKind};
use countersign_config::BreakerConfig;

/// See the module's page.
pub struct Endpoint {
    /// Era detection may find that another transport is spoken here.
    connector: ArcSwap<Arc<dyn Connector>>,
    pub breaker: Breaker,
    pub pool: Pool,
    /// The link without capabilities that everybody shares who needs none of its own.
    pub plain: ArcSwapOption<Held>,
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

    /// The plain link, if it can be used.
    #[must_use]
    pub fn plain(&self) -> Option<Arc<Held>> {
        self.plain.load_full().filter(|held| held.usable())
    }

    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a call until the guard is dropped.
    pub fn enter(&self) -> InFlight<'_> {
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

/// See [`Endpoint::enter`].
pub struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The endpoint for the next call: of two chosen by chance, the one with fewer calls in flight. `ready` says which can
/// be called at all.
#[must_use]
pub fn choose(endpoints: &[Endpoint], ready: impl Fn(usize) -> bool) -> Option<usize> {
    if endpoints.len() == 1 {
        return ready(0).then_some(0);
    }
    let all: Vec<usize> = (0..endpoints.len()).filter(|at| ready(*at)).collect();
    let [one, two] = match all.len() {
        0 => return None,
        1 => return all.first().copied(),
        count => {
            let first = random_below(count);
            // Another one, each as likely.
            let second = (first + 1 + random_below(count - 1)) % count;
            [first, second].map(|at| all.get(at).copied().unwrap_or_default())
        }
    };
    let load = |at: usize| endpoints.get(at).map_or(usize::MAX, Endpoint::in_flight);
    Some(if load(two) < load(one) { two } else { one })
}

/// Evenly enough for a choice among few.
pub fn random_below(bound: usize) -> usize {
    let random = getrandom::u32().map_or(0, |r| r as usize);
    random.checked_rem(bound).unwrap_or(0)
}
