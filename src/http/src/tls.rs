//! The TLS configuration of the server.

use rustls::{ServerConfig, pki_types::CertificateDer};

use countersign_config::TlsConfig;
use countersign_domain::changes::digest::PartHasher;

/// The TLS configuration of the server, with the fingerprint of its certificate.
pub struct ServerTls {
    pub config: ServerConfig,
    /// The [`fingerprint`] of the certificate.
    pub fingerprint: String,
}

/// Returns the fingerprint by which other nodes identify a certificate.
#[must_use]
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let mut hasher = PartHasher::new("countersign.certificate.1");
    hasher.add_part(certificate);
    hasher.finish()
}

/// Reads the TLS configuration of the server from PEM files.
///
/// # Errors
/// Returns the path of the invalid file, and the reason.
pub fn server_config(tls: &TlsConfig) -> Result<ServerTls, String> {
    let (config, certificate) = tls.server_config().map_err(|error| error.to_string())?;
    Ok(ServerTls { config, fingerprint: fingerprint(&certificate) })
}
