//! What an upstream's names and URIs are called outside, and back again.
//!
//! Names of tools and prompts get the configured prefix. URIs and URI templates get the server's name as a further
//! scheme: `file:///a` of the server `fs` is `fs+file:///a`. An empty prefix leaves both alone. Either way back is a
//! plain removal, so nothing has to be remembered; and what is rewritten in a message is rewritten in its text, where
//! every other byte stays.

use std::borrow::Cow;

use serde_json::value::RawValue;

use countersign_config::UpstreamConfig;
use countersign_protocol::json::{Fate, edit_members, map_elements, member, quoted, replace_strings, string};

/// The longest name that desktop clients take.
const CLIENTS_TAKE: usize = 64;
/// The longest name that the specification advises (2025-11-25/server/tools#tool-names).
const ADVISED: usize = 128;

/// See the module's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
    /// `fs+`; empty where URIs stay as they are.
    scheme: String,
}

impl Names {
    #[must_use]
    pub fn new(config: &UpstreamConfig) -> Self {
        let scheme = if config.prefix.is_empty() { String::new() } else { format!("{}+", slug(&config.name)) };
        Self { prefix: config.prefix.clone(), scheme }
    }

    /// Leaves everything as it is: what it reads has the names that clients use already.
    #[must_use]
    pub const fn identity() -> Self {
        Self { prefix: String::new(), scheme: String::new() }
    }

    /// Names and URIs are the same inside and outside.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.prefix.is_empty()
    }

    /// What names begin with; may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What URIs begin with (`fs+`); may be empty.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What clients call the tool or prompt.
    #[must_use]
    pub fn expose<'a>(&self, own: &'a str) -> Cow<'a, str> {
        joined(&self.prefix, own)
    }

    /// What the upstream calls the tool or prompt; `None` for a name that is none of its.
    #[must_use]
    pub fn own<'a>(&self, exposed: &'a str) -> Option<&'a str> {
        exposed.strip_prefix(self.prefix.as_str())
    }

    /// The URI, or URI template, that clients see.
    #[must_use]
    pub fn expose_uri<'a>(&self, own: &'a str) -> Cow<'a, str> {
        joined(&self.scheme, own)
    }

    /// The upstream's own URI or template; `None` for one that is none of its. Schemes are compared without regard to
    /// case, since clients may normalize them (RFC 3986 section 3.1).
    #[must_use]
    pub fn own_uri<'a>(&self, exposed: &'a str) -> Option<&'a str> {
        let (scheme, rest) = exposed.split_at_checked(self.scheme.len())?;
        scheme.eq_ignore_ascii_case(&self.scheme).then_some(rest)
    }

    /// A result of the upstream with its URIs as clients see them: links and embedded resources in `content` of
    /// `tools/call` and in the messages of `prompts/get`, and `contents` of `resources/read`.
    #[must_use]
    pub fn expose_result<'a>(&self, result: &'a RawValue) -> Cow<'a, RawValue> {
        if self.is_identity() || !may_have_uri(result.get()) {
            return Cow::Borrowed(result);
        }
        let text = edit_members(result.get(), |key, value| match key {
            "content" => self.blocks(value).into(),
            "contents" => map_elements(value, |contents| self.contents(contents)).into(),
            "messages" => map_elements(value, |message| {
                edit_members(message, |key, value| match key {
                    "content" if value.starts_with('[') => self.blocks(value).into(),
                    "content" => self.block(value).into(),
                    _ => Fate::Keep,
                })
            })
            .into(),
            _ => Fate::Keep,
        });
        owned(result, text)
    }

    /// The `params` of a notification about a resource, with the `uri` that clients know.
    #[must_use]
    pub fn expose_params<'a>(&self, params: &'a RawValue) -> Cow<'a, RawValue> {
        if self.is_identity() {
            return Cow::Borrowed(params);
        }
        owned(params, replace_strings(params.get(), &["uri"], |_, uri| Some(self.expose_uri(uri).into_owned())))
    }

    /// The `params` of a client's request with the upstream's own `name` (`tools/call`, `prompts/get`), `uri`
    /// (`resources/*`) and `ref` (`completion/complete`). What is none of the upstream's stays as it is.
    ///
    /// For a tool or prompt that was called by an alias, use [`Names::own_params_as`].
    #[must_use]
    pub fn own_params<'a>(&self, params: &'a RawValue) -> Cow<'a, RawValue> {
        if self.is_identity() {
            return Cow::Borrowed(params);
        }
        let text = edit_members(params.get(), |key, value| match key {
            "name" | "uri" => self.own_member(key, value).into(),
            "ref" => edit_members(value, |key, value| self.own_member(key, value).into()).into(),
            _ => Fate::Keep,
        });
        owned(params, text)
    }

    /// The `params` of `tools/call` or `prompts/get` for the tool or prompt of that exposed name, whatever alias it was
    /// called by.
    #[must_use]
    pub fn own_params_as<'a>(&self, params: &'a RawValue, exposed: &str) -> Cow<'a, RawValue> {
        let own = self.own(exposed).unwrap_or(exposed);
        owned(params, replace_strings(params.get(), &["name"], |_, name| (name != own).then(|| own.to_owned())))
    }

    fn own_member(&self, key: &str, value: &str) -> Option<String> {
        let text = string(value)?;
        let own = match key {
            "name" => self.own(&text),
            "uri" => self.own_uri(&text),
            _ => None,
        };
        own.map(quoted)
    }

    fn blocks(&self, content: &str) -> Option<String> {
        map_elements(content, |block| self.block(block))
    }

    /// A content block: a link has a URI of its own, an embedded resource one level further down.
    fn block(&self, block: &str) -> Option<String> {
        let is_link = member(block, "type").and_then(string).is_some_and(|kind| kind == "resource_link");
        edit_members(block, |key, value| match key {
            "uri" if is_link => self.exposed_uri(value).into(),
            "resource" => self.contents(value).into(),
            _ => Fate::Keep,
        })
    }

    /// Contents of a resource, read or embedded.
    fn contents(&self, contents: &str) -> Option<String> {
        edit_members(contents, |key, value| if key == "uri" { self.exposed_uri(value).into() } else { Fate::Keep })
    }

    fn exposed_uri(&self, value: &str) -> Option<String> {
        string(value).map(|uri| quoted(&self.expose_uri(&uri)))
    }
}

/// What stands before the `+` of the URIs of a server of that name: a scheme (RFC 3986 section 3.1).
#[must_use]
pub fn slug(name: &str) -> String {
    let mut slug: String = name
        .chars()
        .map(|c| match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '.' | '-') => c,
            _ => '-',
        })
        .collect();
    // A scheme begins with a letter, or URL parsers in clients refuse the whole list.
    if !slug.starts_with(|c: char| c.is_ascii_alphabetic()) {
        slug.insert(0, 'x');
    }
    slug
}

/// Why some clients refuse a tool of that name, or the whole list with it.
#[must_use]
pub fn refused_by_clients(exposed: &str) -> Option<&'static str> {
    if exposed.is_empty() {
        return Some("it is empty");
    }
    if !exposed.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) {
        return Some("it has characters other than letters, digits, `_`, `-` and `.`");
    }
    if exposed.len() > ADVISED {
        return Some("it is longer than 128 characters");
    }
    (exposed.len() > CLIENTS_TAKE).then_some("it is longer than 64 characters, which desktop clients do not take")
}

fn joined<'a>(prefix: &str, own: &'a str) -> Cow<'a, str> {
    if prefix.is_empty() { Cow::Borrowed(own) } else { Cow::Owned(format!("{prefix}{own}")) }
}

/// Most results have no URI, and this is on the way of every call. A key may be written with escapes.
fn may_have_uri(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), br#""uri""#).is_some()
        || memchr::memmem::find(text.as_bytes(), br"\u00").is_some()
}

fn owned(raw: &RawValue, text: Option<String>) -> Cow<'_, RawValue> {
    // Strings took the place of strings: it is JSON still.
    text.and_then(|text| RawValue::from_string(text).ok()).map_or(Cow::Borrowed(raw), Cow::Owned)
}

#[cfg(test)]
mod tests;
