//! `tls: { ca: … }` of a server: authorities that its addresses are trusted by, beside the public ones.

use std::{fs, path::Path};

use rustls::pki_types::CertificateDer;

use super::target;
use crate::fields::Fields;
use crate::{Authorities, UpstreamTarget, error::quoted};
use countersign_net::tls::read_authorities;

/// Keys of the section.
pub(super) const TLS_KEYS: [&str; 1] = ["ca"];
/// A bundle of all public authorities has a quarter of this.
const MAX_FILE: u64 = 1 << 20;

/// `None` where there are none, and after a problem.
pub(super) fn read(f: &mut Fields<'_>, target: &UpstreamTarget) -> Option<Authorities> {
    // That a command has none was said already.
    let UpstreamTarget::Url { urls, .. } = target else { return None };
    let mut tls = f.section("tls")?;
    tls.only(&TLS_KEYS);
    let text = tls.expanded("ca")?;
    if !urls.iter().any(|url| matches!(url.scheme(), "https" | "wss")) {
        let message = "the server has no https or wss address".to_owned();
        tls.wrong("ca", message, "Give it one, or take `tls` out.");
        return None;
    }
    let file = match target::path(tls.env(), &text.written, &text.value, &tls.placed().base) {
        Ok(file) => file,
        Err((message, remedy)) => {
            tls.wrong("ca", message, &remedy);
            return None;
        }
    };
    match certificates(&file) {
        Ok(certificates) => Some(Authorities { file, certificates }),
        Err(why) => {
            // As it stands in the file: what a variable holds is never repeated.
            let message = format!("the file {} cannot be used: {why}", quoted(&text.written));
            tls.wrong("ca", message, "Name a PEM file with the certificates of the authorities.");
            None
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let meta = fs::metadata(file).map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is not a file".to_owned());
    }
    if meta.len() > MAX_FILE {
        return Err(format!("it is longer than {MAX_FILE} bytes"));
    }
    read_authorities(file)
}
