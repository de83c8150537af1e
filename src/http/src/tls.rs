//! The TLS configuration of the server, whose certificate can be renewed while it serves.

use std::{path::Path, sync::Arc};

use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::CertificateDer,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use countersign_config::TlsConfig;
use countersign_domain::changes::digest::PartHasher;

/// Returns the fingerprint by which other nodes identify a certificate.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let mut hasher = PartHasher::new("countersign.certificate.1");
    hasher.add_part(certificate);
    hasher.finish()
}

/// The certificate of the server and its key, as last read. New connections use them.
#[derive(Debug)]
pub struct ServerCertificate {
    files: TlsConfig,
    current: RwLock<Arc<CertifiedKey>>,
}

impl ServerCertificate {
    /// Reads the certificate and its key from PEM files.
    ///
    /// # Errors
    /// Returns the path of each unusable file, and the reason.
    pub fn read(files: &TlsConfig) -> Result<Self, String> {
        let current = files.read_certified_key().map_err(|error| error.to_string())?;
        Ok(Self { files: files.clone(), current: RwLock::new(Arc::new(current)) })
    }

    /// Reads the files again. If they cannot be used, logs the reason and keeps the certificate in use. Blocks the thread.
    pub fn renew(&self) {
        // A pipe or the like cannot be read again.
        if self.files().iter().any(|file| file.exists() && !file.is_file()) {
            return;
        }
        let renewed = match self.files.read_certified_key() {
            Ok(renewed) => renewed,
            Err(error) => {
                tracing::error!(%error, "the TLS certificate cannot be renewed; the old one stays in use");
                return;
            }
        };
        if self.current.read().cert != renewed.cert {
            *self.current.write() = Arc::new(renewed);
            tracing::info!(file = %self.files.cert.display(), "the TLS certificate is renewed; new connections use it");
        }
    }

    /// Returns the paths of the certificate and its key.
    pub fn files(&self) -> [&Path; 2] {
        [&self.files.cert, &self.files.key]
    }

    /// Returns the [`fingerprint`] of the certificate in use.
    pub fn fingerprint(&self) -> String {
        self.current.read().cert.first().map(fingerprint).unwrap_or_default()
    }

    /// Creates the TLS configuration of a server that uses the certificate.
    ///
    /// # Errors
    /// Returns the reason why it cannot be created.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, String> {
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(builder.with_no_client_auth().with_cert_resolver(Arc::clone(self) as _))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}
