//! Reads `tls: { ca: … }` of a server: certificate authorities that are trusted in addition to the public ones.

use std::{fs, path::Path};

use rustls::pki_types::CertificateDer;

use super::target;
use crate::reader::fields::Fields;
use crate::{Authorities, UpstreamTarget, error::quoted};
use countersign_net::tls::read_authorities;

/// The keys of the section.
pub(super) const TLS_KEYS: [&str; 1] = ["ca"];
/// Four times the size of a bundle of all public authorities.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the authorities. Returns `None` if there are none, or after reporting a problem.
pub(super) fn read(f: &mut Fields<'_>, target: &UpstreamTarget) -> Option<Authorities> {
    // `target` has already reported the key if the server has a command.
    let UpstreamTarget::Url { urls, .. } = target else { return None };
    let mut tls = f.section("tls", &TLS_KEYS)?;
    let text = tls.expanded_text("ca")?;
    if !urls.iter().any(|url| matches!(url.scheme(), "https" | "wss")) {
        tls.report("ca", "the server has no https or wss address", "Give it one, or take `tls` out.");
        return None;
    }
    let file = target::resolve_path(&tls, &text, &tls.layer_value().base);
    let file = tls.accept("ca", file)?;
    let certificates = read_certificates(&file).map_err(|why| {
        // Quoted as written in the file, without the values of variables.
        let message = format!("the file {} cannot be used: {why}", quoted(&text.source));
        (message, "Name a PEM file with the certificates of the authorities.".to_owned())
    });
    Some(Authorities { certificates: tls.accept("ca", certificates)?, file })
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let meta = fs::metadata(file).map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is not a file".to_owned());
    }
    if meta.len() > MAX_FILE_BYTES {
        return Err(format!("it is longer than {MAX_FILE_BYTES} bytes"));
    }
    read_authorities(file)
}
