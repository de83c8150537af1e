//! The facts that a client states about itself, in its handshake or in the `_meta` of a modern request. They are
//! shortened, because they are kept as long as the session and shown in every list of sessions.

use std::sync::Arc;

use serde_json::{Map, Value};

use countersign_domain::{
    policy::{OwnedRequester, Requester},
    principal::Principal,
};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    json::{members, string},
    params::Implementation,
};
use countersign_telemetry::Transport;

/// The maximum number of bytes of a `websiteUrl`. A longer URL is dropped, because a shortened one is useless.
const MAX_WEBSITE_URL_BYTES: usize = 2048;
/// The maximum number of bytes of all members of `clientInfo` that no revision defines.
const MAX_UNKNOWN_BYTES: usize = 1024;

/// The facts that a client states about itself.
#[derive(Clone, Debug)]
pub struct ClientFacts {
    pub revision: Revision,
    /// The name and version of the client, which are optional in the modern era. They must not be trusted.
    pub client: Option<Implementation>,
    /// The client's `clientInfo` as JSON text, without parts that are too long to keep.
    pub client_info: Option<Arc<str>>,
    /// The declared capabilities, as JSON text.
    pub capabilities: Arc<str>,
}

impl ClientFacts {
    /// Returns the bytes that the facts take.
    pub fn size(&self) -> usize {
        let name_bytes = self.client.as_ref().map_or(0, |client| {
            client.name.len() + client.version.len() + client.title.as_ref().map_or(0, String::len)
        });
        name_bytes + self.client_info.as_ref().map_or(0, |info| info.len()) + self.capabilities.len()
    }

    /// Returns the revision that rules and reviewers see. Plain calls use none.
    pub fn revision_over(&self, transport: Transport) -> Option<&'static str> {
        (transport != Transport::Rest).then(|| self.revision.as_str())
    }

    /// Returns a principal with these facts in the form that policy rules use.
    pub fn requester<'a>(&'a self, principal: &'a Principal, transport: Transport) -> Requester<'a> {
        Requester {
            principal,
            transport: transport.as_str(),
            revision: self.revision_over(transport).unwrap_or_default(),
            client: self.client.as_ref().map(|client| client.name.as_str()),
        }
    }

    /// Returns a principal like [`Self::requester`], for rules that are applied after the request.
    pub fn to_requester(&self, principal: Arc<Principal>, transport: Transport) -> OwnedRequester {
        OwnedRequester {
            principal,
            transport: transport.as_str(),
            revision: self.revision_over(transport).unwrap_or_default(),
            client: self.client.as_ref().map(|client| client.name.clone()),
        }
    }
}

/// The limits on the facts that are kept.
#[derive(Clone, Copy, Debug)]
pub struct FactLimits {
    /// The maximum number of characters of a name, a title, a version or a description.
    pub max_text_chars: usize,
    /// The maximum number of bytes of the capabilities.
    pub max_capability_bytes: usize,
}

impl FactLimits {
    /// Checks that a declaration of capabilities is not too long. `member` is its path in `params`.
    ///
    /// # Errors
    /// `-32602` for a declaration that is too long.
    pub fn check_capabilities(&self, member: &str, capabilities: &str) -> Result<(), McpError> {
        check_length(member, "the capabilities are too long", capabilities.len(), self.max_capability_bytes)
    }

    /// Shortens the name, version and title of a client.
    pub fn shorten_names(&self, client: Implementation) -> Implementation {
        let Implementation { name, version, title } = client;
        Implementation {
            name: self.shorten_text(name),
            version: self.shorten_text(version),
            title: title.map(|t| self.shorten_text(t)),
        }
    }

    /// Shortens the texts of `clientInfo`, given as JSON text, and drops its icons.
    pub fn shorten_info(&self, text: &str) -> String {
        let mut shortened = Map::new();
        let mut unknown_bytes = 0;
        for member in members(text) {
            let value = match &*member.key {
                "icons" => None,
                "name" | "title" | "version" | "description" => {
                    string(member.value).map(|text| self.shorten_text(text.into_owned()).into())
                }
                "websiteUrl" => {
                    string(member.value).filter(|url| url.len() <= MAX_WEBSITE_URL_BYTES).map(|url| url.into())
                }
                other => {
                    unknown_bytes += other.len() + member.value.len();
                    (unknown_bytes <= MAX_UNKNOWN_BYTES).then(|| member.value.parse::<Value>().ok()).flatten()
                }
            };
            if let Some(value) = value {
                shortened.insert(member.key.into_owned(), value);
            }
        }
        Value::Object(shortened).to_string()
    }

    fn shorten_text(&self, mut text: String) -> String {
        if text.len() > self.max_text_chars
            && let Some((end, _)) = text.char_indices().nth(self.max_text_chars)
        {
            text.truncate(end);
            // The memory of the rest is released.
            text.shrink_to_fit();
        }
        text
    }
}

/// Checks that a URI in `params` is not too long.
///
/// # Errors
/// `-32602` for a URI of more than `max` bytes.
pub fn check_uri(max: usize, member: &str, uri: &str) -> Result<(), McpError> {
    check_length(member, "the URI is too long", uri.len(), max)
}

fn check_length(member: &str, message: &'static str, bytes: usize, limit: usize) -> Result<(), McpError> {
    if bytes <= limit {
        return Ok(());
    }
    let details = serde_json::json!({ "bytes": bytes, "limit": limit });
    Err(McpError::new(ErrorKind::InvalidParams, message).with("member", member).with("details", details))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FactLimits = FactLimits { max_text_chars: 4, max_capability_bytes: 10 };

    #[test]
    fn texts_are_shortened_by_characters_and_icons_dropped() {
        let info = r#"{"name":"äöüßx","version":"1","title":"abcd","icons":[{"src":"data:x"}],"websiteUrl":"https://a.example"}"#;
        let shortened: Value = serde_json::from_str(&LIMITS.shorten_info(info)).unwrap();
        let expected =
            serde_json::json!({ "name": "äöüß", "version": "1", "title": "abcd", "websiteUrl": "https://a.example" });
        assert_eq!(shortened, expected);
        let client =
            Implementation { name: "x".repeat(1 << 20), version: "12345".into(), title: Some("öööööö".into()) };
        let client = LIMITS.shorten_names(client);
        assert_eq!(
            (client.name.as_str(), client.version.as_str(), client.title.as_deref()),
            ("xxxx", "1234", Some("öööö"))
        );
        assert!(client.name.capacity() < 64);
    }

    #[test]
    fn unknown_members_are_kept_within_limit() {
        let info = format!(r#"{{"name":"a","x":1,"y":"{}","z":2,"websiteUrl":"{0}"}}"#, "u".repeat(3000));
        assert_eq!(LIMITS.shorten_info(&info), r#"{"name":"a","x":1}"#);
    }

    #[test]
    fn length_error_names_member_and_limit() {
        assert!(LIMITS.check_capabilities("capabilities", "0123456789").is_ok());
        let error = LIMITS.check_capabilities("capabilities", "0123456789a").unwrap_err();
        assert_eq!(error.kind.number(), -32602);
        assert_eq!(error.data["member"], "capabilities");
        assert_eq!(error.data["details"], serde_json::json!({ "bytes": 11, "limit": 10 }));
    }
}
