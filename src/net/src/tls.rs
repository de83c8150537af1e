//! TLS of the client's side.

use std::{
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Names of protocols for ALPN.
pub const HTTP_1_1: &[u8] = b"http/1.1";
pub const HTTP_2: &[u8] = b"h2";

/// Returns the public authorities.
#[must_use]
pub fn public_roots() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// Returns the public authorities and these, of which [`read_authorities`] has made sure that they can be used.
#[must_use]
pub fn roots_with(authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> RootCertStore {
    let mut roots = public_roots();
    roots.add_parsable_certificates(authorities);
    roots
}

/// Returns the configuration that trusts the public authorities and offers both versions of HTTP. All threads share it, and so
/// its cache of TLS sessions.
#[must_use]
pub fn public_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    Arc::clone(CONFIG.get_or_init(|| client_config(public_roots(), &[HTTP_2, HTTP_1_1])))
}

/// Reads the certificates of authorities from a PEM file.
///
/// # Errors
/// What is wrong with it, for a person: also that it contains none.
pub fn read_authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = fs::read(file).map_err(|error| error.to_string())?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates: Vec<CertificateDer<'static>> = certificates.map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| error.to_string())?;
    }
    if certificates.is_empty() { Err("it contains no certificate".to_owned()) } else { Ok(certificates) }
}

/// Returns the configuration of a client that trusts these authorities and offers these protocols.
#[must_use]
pub fn client_config(roots: RootCertStore, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}
