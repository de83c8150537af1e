//! An endpoint of an upstream. An upstream has one endpoint, or one for each of its replicas.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::{breaker::Breaker, call_slots::CounterGuard, connection::UpstreamConnection, pool::Pool};
use crate::link::{Connector, LinkKind};
use countersign_config::BreakerConfig;
use countersign_net::random_byte;

/// One endpoint with its connections.
pub struct Endpoint {
    /// The position among the endpoints of the upstream.
    pub index: usize,
    /// The connector. Era detection replaces it if the server speaks another transport.
    connector: ArcSwap<Arc<dyn Connector>>,
    pub breaker: Breaker,
    pub pool: Pool,
    /// The link without capabilities, shared by all callers that need none.
    pub plain: ArcSwapOption<UpstreamConnection>,
    in_flight: AtomicUsize,
}

impl Endpoint {
    #[must_use]
    pub fn new(index: usize, connector: Arc<dyn Connector>, breaker: BreakerConfig) -> Self {
        let pool = Pool::new(connector.kind());
        Self {
            index,
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

    /// Returns the bit of this endpoint in a set of endpoints.
    #[must_use]
    pub fn bit(&self) -> u64 {
        1 << (self.index % 64)
    }

    /// Counts a call until the guard is dropped.
    pub fn count_call(&self) -> CounterGuard<'_> {
        CounterGuard::new(&self.in_flight)
    }

    pub fn close(&self) {
        if let Some(plain) = self.plain.swap(None) {
            plain.close();
        }
        self.pool.close_all();
    }
}

/// Chooses the endpoint with the fewest calls in flight for the next call, at random among equals. Endpoints in the set
/// `excluded` are not chosen.
#[must_use]
pub fn choose_endpoint(endpoints: &[Arc<Endpoint>], excluded: u64) -> Option<&Arc<Endpoint>> {
    let allowed = |endpoint: &&Arc<Endpoint>| excluded & endpoint.bit() == 0;
    if let [only] = endpoints {
        return Some(only).filter(allowed);
    }
    let first = usize::from(random_byte());
    let load = |endpoint: &&Arc<Endpoint>| {
        (endpoint.in_flight.load(Ordering::Relaxed), (endpoint.index + first) % endpoints.len())
    };
    endpoints.iter().filter(allowed).min_by_key(load)
}
