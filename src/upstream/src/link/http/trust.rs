//! Whom TLS connections trust: the public authorities, and for one server those that its configuration names too.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use rustls::{ClientConfig, RootCertStore};

use countersign_config::Authorities;
use countersign_net::tls::{self, HTTP_1_1, HTTP_2};

/// What one server's connections trust beside the public authorities.
pub struct Trust {
    /// Unique, for the threads' own clients.
    pub key: u64,
    with_http2: Arc<ClientConfig>,
    without: Arc<ClientConfig>,
}

impl Trust {
    #[must_use]
    pub fn new(authorities: &Authorities) -> Arc<Self> {
        Arc::new(Self::of(tls::roots_with(authorities.certificates.iter().cloned())))
    }

    fn of(roots: RootCertStore) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let without = tls::client_config(roots.clone(), &[HTTP_1_1]);
        let with_http2 = tls::client_config(roots, &[HTTP_2, HTTP_1_1]);
        Self { key: NEXT.fetch_add(1, Ordering::Relaxed), with_http2, without }
    }
}

/// One configuration for all threads: they share the cache of TLS sessions.
pub fn config(trust: Option<&Trust>, http2: bool) -> Arc<ClientConfig> {
    static PUBLIC: OnceLock<Trust> = OnceLock::new();
    let trust = trust.unwrap_or_else(|| PUBLIC.get_or_init(|| Trust::of(tls::public_roots())));
    Arc::clone(if http2 { &trust.with_http2 } else { &trust.without })
}
