//! Translates an upstream's names and URIs to those that clients use, and back.
//!
//! Names of tools and prompts get the configured prefix. URIs and URI templates get the server's name as an additional
//! scheme: `file:///a` of the server `fs` becomes `fs+file:///a`. An empty prefix leaves both unchanged. The way back
//! only removes the prefix, so no mapping is stored.

use std::borrow::Cow;

use countersign_config::UpstreamConfig;
use countersign_protocol::json::replace_strings;

/// The maximum length of names that desktop clients accept.
const MAX_CLIENT_NAME_LEN: usize = 64;
/// The maximum length of names that the specification recommends (2025-11-25/server/tools#tool-names).
const MAX_ADVISED_NAME_LEN: usize = 128;

/// Translates the names and URIs of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
    /// The additional scheme with its `+`, such as `fs+`; empty if URIs are unchanged.
    uri_prefix: String,
}

impl Names {
    pub fn new(config: &UpstreamConfig) -> Self {
        let uri_prefix = if config.prefix.is_empty() { String::new() } else { format!("{}+", config.uri_slug()) };
        Self { prefix: config.prefix.clone(), uri_prefix }
    }

    /// Returns a translation that changes nothing, for text that already has the names that clients use.
    pub const fn identity() -> Self {
        Self { prefix: String::new(), uri_prefix: String::new() }
    }

    /// Returns `true` if names and URIs are not changed.
    pub fn is_identity(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Returns the prefix of names, which may be empty.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the prefix of URIs (`fs+`), which may be empty.
    pub fn uri_prefix(&self) -> &str {
        &self.uri_prefix
    }

    /// Returns the name of a tool or prompt that clients use.
    pub fn expose<'a>(&self, original: &'a str) -> Cow<'a, str> {
        add_prefix(&self.prefix, original)
    }

    /// Returns the upstream's name of a tool or prompt; `None` if the name does not belong to the upstream.
    pub fn upstream_name<'a>(&self, exposed: &'a str) -> Option<&'a str> {
        exposed.strip_prefix(self.prefix.as_str())
    }

    /// Returns the URI or URI template that clients use.
    pub fn expose_uri<'a>(&self, original: &'a str) -> Cow<'a, str> {
        add_prefix(&self.uri_prefix, original)
    }

    /// Returns the upstream's URI or template; `None` if it does not belong to the upstream. The case of the scheme
    /// is ignored, because clients may normalize schemes (RFC 3986 section 3.1).
    pub fn upstream_uri<'a>(&self, exposed: &'a str) -> Option<&'a str> {
        let (prefix, original) = exposed.split_at_checked(self.uri_prefix.len())?;
        prefix.eq_ignore_ascii_case(&self.uri_prefix).then_some(original)
    }

    /// Returns the `ref` of `completion/complete` with the upstream's `name` or `uri`. Values that do not belong to the
    /// upstream are unchanged, as is all other text.
    pub fn upstream_reference<'a>(&self, reference: &'a str) -> Cow<'a, str> {
        if self.is_identity() {
            return Cow::Borrowed(reference);
        }
        let translated = replace_strings(reference, &["name", "uri"], |key, text| {
            let own = if key == "name" { self.upstream_name(text) } else { self.upstream_uri(text) };
            own.map(str::to_owned)
        });
        translated.map_or(Cow::Borrowed(reference), Cow::Owned)
    }
}

/// Returns the reason why some clients reject a tool of that name, or the whole list that contains it.
pub fn client_rejection_reason(exposed: &str) -> Option<&'static str> {
    if exposed.is_empty() {
        return Some("it is empty");
    }
    if !exposed.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) {
        return Some("it has characters other than letters, digits, `_`, `-` and `.`");
    }
    if exposed.len() > MAX_ADVISED_NAME_LEN {
        return Some("it is longer than 128 characters");
    }
    (exposed.len() > MAX_CLIENT_NAME_LEN).then_some("it is longer than 64 characters, which desktop clients reject")
}

fn add_prefix<'a>(prefix: &str, original: &'a str) -> Cow<'a, str> {
    if prefix.is_empty() { Cow::Borrowed(original) } else { Cow::Owned(format!("{prefix}{original}")) }
}

#[cfg(test)]
mod tests;
