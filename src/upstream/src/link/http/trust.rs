//! Whom TLS connections trust: the public authorities, and for one server those that its configuration names too.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use rustls::{ClientConfig, RootCertStore};

use countersign_config::Authorities;

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
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut roots = public();
        for certificate in &authorities.certificates {
            if let Err(error) = roots.add(certificate.clone()) {
                // The configuration was checked for that.
                tracing::error!(file = %authorities.file.display(), %error, "an authority cannot be used");
            }
        }
        let [without, with_http2] = both(roots);
        Arc::new(Self { key: NEXT.fetch_add(1, Ordering::Relaxed), with_http2, without })
    }
}

fn public() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

fn both(roots: RootCertStore) -> [Arc<ClientConfig>; 2] {
    [configured(roots.clone(), false), configured(roots, true)].map(Arc::new)
}

/// One configuration for all threads: they share the cache of TLS sessions.
pub fn config(trust: Option<&Trust>, http2: bool) -> Arc<ClientConfig> {
    static PUBLIC: OnceLock<[Arc<ClientConfig>; 2]> = OnceLock::new();
    let [without, with_http2] = match trust {
        Some(trust) => [&trust.without, &trust.with_http2],
        None => PUBLIC.get_or_init(|| both(public())).each_ref(),
    };
    Arc::clone(if http2 { with_http2 } else { without })
}

pub(super) fn configured(roots: RootCertStore, http2: bool) -> ClientConfig {
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if http2 {
        config.alpn_protocols.insert(0, b"h2".to_vec());
    }
    config
}
