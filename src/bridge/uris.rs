//! Names and URIs, as clients know them and as the upstream does.

use std::borrow::Cow;

use crate::config::UpstreamConfig;

/// The upstream's own name of a tool or prompt.
#[must_use]
pub fn own_name<'a>(config: &UpstreamConfig, exposed: &'a str) -> &'a str {
    exposed.strip_prefix(config.prefix.as_str()).unwrap_or(exposed)
}

/// What exposed URIs of this upstream begin with; `None` where URIs are left alone.
#[must_use]
pub fn scheme(config: &UpstreamConfig) -> Option<String> {
    if config.prefix.is_empty() {
        return None;
    }
    Some(crate::upstream::names::slug(&config.name) + "+")
}

/// The upstream's own form of a URI that a client sent.
#[must_use]
pub fn own_uri<'a>(config: &UpstreamConfig, exposed: &'a str) -> &'a str {
    scheme(config).and_then(|scheme| exposed.strip_prefix(scheme.as_str())).unwrap_or(exposed)
}

/// The form of an upstream's URI that clients use.
#[must_use]
pub fn exposed_uri<'a>(config: &UpstreamConfig, own: &'a str) -> Cow<'a, str> {
    match scheme(config) {
        Some(scheme) => Cow::Owned(scheme + own),
        None => Cow::Borrowed(own),
    }
}
