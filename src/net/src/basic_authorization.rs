//! The credentials in a URL.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use url::Url;

/// Returns the value of `Authorization` for the user and the password in a URL, if it has any.
pub fn basic_authorization(url: &Url) -> Option<String> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decode = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
    let mut credentials = decode(url.username());
    credentials.push(b':');
    credentials.extend(decode(url.password().unwrap_or_default()));
    Some(format!("Basic {}", STANDARD.encode(credentials)))
}
