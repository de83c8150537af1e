//! TLS configurations of clients.

use std::{
    fmt::{self, Debug},
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

/// The name of HTTP/1.1 in ALPN.
pub const HTTP_1_1: &[u8] = b"http/1.1";
/// The name of HTTP/2 in ALPN.
pub const HTTP_2: &[u8] = b"h2";

/// Returns the root certificates of the public authorities.
pub fn public_roots() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// Returns the root certificates of the public authorities and the given ones, which [`read_authorities`] has
/// validated.
fn roots_with_authorities(authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> RootCertStore {
    let mut roots = public_roots();
    roots.add_parsable_certificates(authorities);
    roots
}

/// Returns the configuration that trusts the public authorities and offers both versions of HTTP. All threads share it, and
/// with it the cache of TLS sessions.
pub fn public_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    Arc::clone(CONFIG.get_or_init(|| client_config(public_roots(), &[HTTP_2, HTTP_1_1])))
}

/// Reads the certificates of authorities from a PEM file.
///
/// # Errors
/// Returns a description of the problem. A file without certificates is an error, too.
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

/// Returns the configuration that trusts these authorities in addition to the public ones, and offers both versions of HTTP.
/// Without authorities it is [`public_config`].
pub fn config_with_authorities(authorities: Option<&[CertificateDer<'static>]>) -> Arc<ClientConfig> {
    match authorities {
        Some(authorities) => client_config(roots_with_authorities(authorities.iter().cloned()), &[HTTP_2, HTTP_1_1]),
        None => public_config(),
    }
}

/// Returns the configuration of a client that trusts these authorities and offers these protocols.
pub fn client_config(roots: RootCertStore, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    with_protocols(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth(), protocols)
}

fn with_protocols(mut config: ClientConfig, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// Returns the configuration of a client that trusts the certificates for which `is_pinned` returns `true`, regardless of the
/// host name, and those that the public authorities have signed.
///
/// # Errors
/// Fails if the program was built with public authorities that cannot be used.
pub fn pinned_config(
    is_pinned: impl Fn(&CertificateDer<'_>) -> bool + Send + Sync + 'static,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, VerifierBuilderError> {
    let verifier = PinnedVerifier::new(is_pinned)?;
    let config = ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(with_protocols(config.with_no_client_auth(), protocols))
}

struct PinnedVerifier<F> {
    is_pinned: F,
    public_verifier: Arc<WebPkiServerVerifier>,
}

impl<F> PinnedVerifier<F> {
    fn new(is_pinned: F) -> Result<Self, VerifierBuilderError> {
        Ok(Self { is_pinned, public_verifier: WebPkiServerVerifier::builder(Arc::new(public_roots())).build()? })
    }
}

impl<F> Debug for PinnedVerifier<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PinnedVerifier")
    }
}

impl<F: Fn(&CertificateDer<'_>) -> bool + Send + Sync> ServerCertVerifier for PinnedVerifier<F> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if (self.is_pinned)(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.public_verifier
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.public_verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.public_verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.public_verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_verifier_accepts_only_the_pinned_certificate() {
        let accepts = |presented: &[u8]| {
            let name = ServerName::try_from("10.0.0.5").unwrap();
            PinnedVerifier::new(|certificate: &CertificateDer<'_>| &certificate[..] == b"pinned")
                .unwrap()
                .verify_server_cert(&CertificateDer::from(presented.to_vec()), &[], &name, &[], UnixTime::now())
                .is_ok()
        };
        assert!(accepts(b"pinned"));
        assert!(!accepts(b"another"));
    }
}
