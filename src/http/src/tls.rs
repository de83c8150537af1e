//! The TLS configuration of the server.

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

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
    let certificates = CertificateDer::pem_file_iter(&tls.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| format!("{}: {e}", tls.cert.display()))?;
    let Some(own) = certificates.first() else {
        return Err(format!("{} contains no certificate", tls.cert.display()));
    };
    let fingerprint = fingerprint(own);
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|e| format!("{}: {e}", tls.key.display()))?;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|e| format!("{}: {e}", tls.cert.display()))?;
    Ok(ServerTls { config, fingerprint })
}
