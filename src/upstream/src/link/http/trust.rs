//! The certificate authorities of TLS connections to one server: the public authorities, and those of its
//! configuration.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rustls::ClientConfig;

use countersign_config::Authorities;
use countersign_net::tls::{self, HTTP_1_1};

/// The TLS trust of one server.
pub struct TlsTrust {
    /// Identifies the trusted authorities for the connections and clients of a thread.
    pub key: u64,
    /// The TLS configuration and its cache of TLS sessions, which all threads share.
    pub config: Arc<ClientConfig>,
    /// `true` if the server chose HTTP/2 for the last connection.
    pub is_http2: AtomicBool,
}

impl TlsTrust {
    /// Trusts the public authorities, and those of the configuration if it names some.
    pub fn new(authorities: Option<&Authorities>) -> Arc<Self> {
        static LAST_KEY: AtomicU64 = AtomicU64::new(0);
        // Servers without authorities of their own share the key 0.
        let key = authorities.map_or(0, |_| LAST_KEY.fetch_add(1, Ordering::Relaxed) + 1);
        let config = tls::config_with_authorities(authorities.map(|authorities| &*authorities.certificates));
        Arc::new(Self { key, config, is_http2: AtomicBool::new(false) })
    }

    /// Returns the configuration without HTTP/2, for requests that are upgraded.
    pub fn http1_config(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        Arc::new(config)
    }
}
