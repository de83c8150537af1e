//! Translates an upstream's names and URIs to those that clients use, and back.
//!
//! Names of tools and prompts get the configured prefix. URIs and URI templates get the server's name as an additional
//! scheme: `file:///a` of the server `fs` becomes `fs+file:///a`. An empty prefix leaves both unchanged. The way back
//! only removes the prefix, so no mapping is stored, and messages are rewritten in their text, in which all other bytes
//! stay the same.

use std::borrow::Cow;

use serde_json::value::RawValue;

use countersign_config::UpstreamConfig;
use countersign_protocol::json::{MemberAction, edit_members, map_elements, member, quoted, replace_strings, string};

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
    #[must_use]
    pub fn new(config: &UpstreamConfig) -> Self {
        let uri_prefix = if config.prefix.is_empty() { String::new() } else { format!("{}+", config.uri_slug()) };
        Self { prefix: config.prefix.clone(), uri_prefix }
    }

    /// Returns a translation that changes nothing, for text that already has the names that clients use.
    #[must_use]
    pub const fn identity() -> Self {
        Self { prefix: String::new(), uri_prefix: String::new() }
    }

    /// Returns `true` if names and URIs are not changed.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Returns the prefix of names, which may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the prefix of URIs (`fs+`), which may be empty.
    #[must_use]
    pub fn uri_prefix(&self) -> &str {
        &self.uri_prefix
    }

    /// Returns the name of a tool or prompt that clients use.
    #[must_use]
    pub fn expose<'a>(&self, original: &'a str) -> Cow<'a, str> {
        add_prefix(&self.prefix, original)
    }

    /// Returns the upstream's name of a tool or prompt; `None` if the name does not belong to the upstream.
    #[must_use]
    pub fn upstream_name<'a>(&self, exposed: &'a str) -> Option<&'a str> {
        exposed.strip_prefix(self.prefix.as_str())
    }

    /// Returns the URI or URI template that clients use.
    #[must_use]
    pub fn expose_uri<'a>(&self, original: &'a str) -> Cow<'a, str> {
        add_prefix(&self.uri_prefix, original)
    }

    /// Returns the upstream's URI or template; `None` if it does not belong to the upstream. The case of the scheme
    /// is ignored, because clients may normalize schemes (RFC 3986 section 3.1).
    #[must_use]
    pub fn upstream_uri<'a>(&self, exposed: &'a str) -> Option<&'a str> {
        let (prefix, original) = exposed.split_at_checked(self.uri_prefix.len())?;
        prefix.eq_ignore_ascii_case(&self.uri_prefix).then_some(original)
    }

    /// Returns a result with the URIs that clients use: links and embedded resources in `content` of `tools/call` and
    /// in messages of `prompts/get`, and `contents` of `resources/read`.
    #[must_use]
    pub fn expose_result<'a>(&self, result: &'a RawValue) -> Cow<'a, RawValue> {
        if self.is_identity() || !may_have_uri(result.get()) {
            return Cow::Borrowed(result);
        }
        let text = edit_members(result.get(), |key, value| match key {
            "content" => self.expose_blocks(value).into(),
            "contents" => map_elements(value, |contents| self.expose_contents(contents)).into(),
            "messages" => map_elements(value, |message| {
                edit_members(message, |key, value| match key {
                    "content" if value.starts_with('[') => self.expose_blocks(value).into(),
                    "content" => self.expose_block(value).into(),
                    _ => MemberAction::Keep,
                })
            })
            .into(),
            _ => MemberAction::Keep,
        });
        to_raw_value(result, text)
    }

    /// Returns the `params` of a notification about a resource with the `uri` that clients use.
    #[must_use]
    pub fn expose_params<'a>(&self, params: &'a RawValue) -> Cow<'a, RawValue> {
        if self.is_identity() {
            return Cow::Borrowed(params);
        }
        to_raw_value(params, replace_strings(params.get(), &["uri"], |_, uri| Some(self.expose_uri(uri).into_owned())))
    }

    /// Returns the `params` of a client's request with the upstream's `name` (`tools/call`, `prompts/get`), `uri`
    /// (`resources/*`) and `ref` (`completion/complete`). Values that do not belong to the upstream are unchanged.
    ///
    /// For a tool or prompt that was called by an alias, use [`Names::upstream_params_for`].
    #[must_use]
    pub fn upstream_params<'a>(&self, params: &'a RawValue) -> Cow<'a, RawValue> {
        if self.is_identity() {
            return Cow::Borrowed(params);
        }
        let text = edit_members(params.get(), |key, value| match key {
            "name" | "uri" => self.upstream_member(key, value).into(),
            "ref" => edit_members(value, |key, value| self.upstream_member(key, value).into()).into(),
            _ => MemberAction::Keep,
        });
        to_raw_value(params, text)
    }

    /// Returns the `params` of `tools/call` or `prompts/get` for the tool or prompt with this exposed name, regardless
    /// of the alias that was used.
    #[must_use]
    pub fn upstream_params_for<'a>(&self, params: &'a RawValue, exposed: &str) -> Cow<'a, RawValue> {
        let upstream_name = self.upstream_name(exposed).unwrap_or(exposed);
        to_raw_value(
            params,
            replace_strings(params.get(), &["name"], |_, name| {
                (name != upstream_name).then(|| upstream_name.to_owned())
            }),
        )
    }

    /// Returns a member with the upstream's name or URI, or `None` if it stays as it is.
    fn upstream_member(&self, key: &str, value: &str) -> Option<String> {
        let text = string(value)?;
        let translated = match key {
            "name" => self.upstream_name(&text),
            "uri" => self.upstream_uri(&text),
            _ => None,
        };
        translated.map(quoted)
    }

    /// Rewrites a list of content blocks.
    fn expose_blocks(&self, content: &str) -> Option<String> {
        map_elements(content, |block| self.expose_block(block))
    }

    /// Rewrites a content block. A link has its URI in the block, and an embedded resource one level deeper.
    fn expose_block(&self, block: &str) -> Option<String> {
        let is_link = member(block, "type").and_then(string).is_some_and(|kind| kind == "resource_link");
        edit_members(block, |key, value| match key {
            "uri" if is_link => self.expose_quoted_uri(value).into(),
            "resource" => self.expose_contents(value).into(),
            _ => MemberAction::Keep,
        })
    }

    /// Rewrites the URI of a resource that was read or is embedded.
    fn expose_contents(&self, contents: &str) -> Option<String> {
        edit_members(
            contents,
            |key, value| if key == "uri" { self.expose_quoted_uri(value).into() } else { MemberAction::Keep },
        )
    }

    fn expose_quoted_uri(&self, value: &str) -> Option<String> {
        string(value).map(|uri| quoted(&self.expose_uri(&uri)))
    }
}

/// Returns the reason why some clients reject a tool of that name, or the whole list that contains it.
#[must_use]
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

/// Returns `false` if a result certainly has no URI, as is usual. An escaped key counts as a URI.
fn may_have_uri(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), br#""uri""#).is_some()
        || memchr::memmem::find(text.as_bytes(), br"\u00").is_some()
}

/// Returns the edited text, or `raw` if nothing was edited.
fn to_raw_value(raw: &RawValue, text: Option<String>) -> Cow<'_, RawValue> {
    // Only strings were replaced by strings, so the text is still JSON.
    text.and_then(|text| RawValue::from_string(text).ok()).map_or(Cow::Borrowed(raw), Cow::Owned)
}

#[cfg(test)]
mod tests;
