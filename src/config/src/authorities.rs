//! Reads `tls: { ca: … }` of a server or an issuer: certificate authorities that are trusted in addition to the public ones.

use std::{fs, path::Path};

use rustls::pki_types::CertificateDer;

use super::{
    Authorities,
    error::{invalid, quoted},
    reader::fields::Fields,
    yaml::{yaml_map, yaml_text},
};
use countersign_net::tls::read_authorities;

/// The keys of the section.
pub(super) const TLS_KEYS: [&str; 1] = ["ca"];
/// Four times the size of a bundle of all public authorities.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the authorities. Returns `None` if there are none, or after reporting a problem. `uses_tls` is `false` if no
/// connection would need them.
pub(super) fn read(f: &mut Fields<'_>, uses_tls: bool) -> Option<Authorities> {
    let mut tls = f.section("tls", &TLS_KEYS)?;
    let text = tls.expanded_text("ca")?;
    if !uses_tls {
        tls.report("ca", "there is no https or wss address to use it for", "Write one, or take `tls` out.");
        return None;
    }
    let file = tls.resolve_path(&text, tls.base());
    let file = tls.accept("ca", file)?;
    let certificates = read_certificates(&file).map_err(|error| {
        // Quoted as written in the file, without the values of variables.
        let message = format!("the file {} cannot be used: {error}", quoted(&text.source));
        invalid(message, "Name a PEM file with the certificates of the authorities.")
    });
    Some(Authorities { certificates: tls.accept("ca", certificates)?, file })
}

/// Formats the section as in the file.
pub(super) fn show(authorities: &Authorities) -> (&'static str, String) {
    ("tls", yaml_map([("ca", yaml_text(&authorities.file.display().to_string()))]))
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
