//! The certificate authorities of TLS connections to one server: the public authorities, and those of its
//! configuration.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rustls::{ClientConfig, RootCertStore};

use countersign_config::Authorities;
use countersign_net::tls::{self, HTTP_1_1, HTTP_2};

/// The TLS trust of one server.
pub struct TlsTrust {
    /// Identifies the trusted authorities for the connections and clients of a thread.
    pub key: u64,
    /// The TLS configuration and its cache of TLS sessions, which all threads share.
    pub config: Arc<ClientConfig>,
    /// The same configuration without HTTP/2, for requests that are upgraded.
    pub http1_config: Arc<ClientConfig>,
    /// `true` if the server chose HTTP/2 for the last connection.
    pub is_http2: AtomicBool,
}

impl TlsTrust {
    /// Trusts the public authorities, and those of the configuration if it names some.
    pub fn new(authorities: Option<&Authorities>) -> Arc<Self> {
        static PUBLIC: LazyLock<TlsTrust> = LazyLock::new(|| TlsTrust::from_roots(tls::public_roots()));
        Arc::new(match authorities {
            Some(authorities) => {
                Self::from_roots(tls::roots_with_authorities(authorities.certificates.iter().cloned()))
            }
            None => Self {
                key: PUBLIC.key,
                config: Arc::clone(&PUBLIC.config),
                http1_config: Arc::clone(&PUBLIC.http1_config),
                is_http2: AtomicBool::new(false),
            },
        })
    }

    fn from_roots(roots: RootCertStore) -> Self {
        static NEXT_KEY: AtomicU64 = AtomicU64::new(0);
        let http1_config = tls::client_config(roots.clone(), &[HTTP_1_1]);
        let config = tls::client_config(roots, &[HTTP_2, HTTP_1_1]);
        Self { key: NEXT_KEY.fetch_add(1, Ordering::Relaxed), config, http1_config, is_http2: AtomicBool::new(false) }
    }
}
