//! What a client says of itself: in its handshake, or in the `_meta` of one modern request. Cut to what is worth keeping,
//! since it is kept as long as the session is and shown in every list of sessions.

use std::sync::Arc;

use serde_json::{Map, Value};

use countersign_protocol::{
    ErrorKind, McpError, Revision,
    json::{members, string},
    params::Implementation,
};

/// Bytes of a `websiteUrl`; half of one leads nowhere, so a longer one is left out.
const MAX_WEBSITE: usize = 2048;
/// Bytes of members of `clientInfo` that no revision has.
const MAX_UNKNOWN: usize = 1024;

/// The facts that a client states about itself.
#[derive(Clone, Debug)]
pub struct ClientFacts {
    pub revision: Revision,
    /// Optional in the modern era. Self-reported: never used for a decision.
    pub client: Option<Implementation>,
    /// The same as JSON text, as the client wrote it but for what is too long to keep.
    pub client_info: Option<Arc<str>>,
    /// The declared capabilities, as JSON text.
    pub capabilities: Arc<str>,
}

impl ClientFacts {
    /// Bytes that it takes to keep them.
    #[must_use]
    pub fn size(&self) -> usize {
        let named = self.client.as_ref().map_or(0, |client| {
            client.name.len() + client.version.len() + client.title.as_ref().map_or(0, String::len)
        });
        named + self.client_info.as_ref().map_or(0, |info| info.len()) + self.capabilities.len()
    }
}

/// The limits on the facts that are kept.
#[derive(Clone, Copy, Debug)]
pub struct FactLimits {
    /// Characters of a name, a title, a version or a description.
    pub text: usize,
    /// Bytes of the capabilities.
    pub capabilities: usize,
}

impl FactLimits {
    /// Proves that a declaration of capabilities is not too long; `member` is where it stands in `params`.
    ///
    /// # Errors
    /// `-32602` for one that is.
    pub fn check(&self, member: &str, capabilities: &str) -> Result<(), McpError> {
        too_long(member, "the capabilities are too long", capabilities.len(), self.capabilities)
    }

    /// The client's name for itself, with what is too long cut off.
    #[must_use]
    pub fn cut(&self, client: Implementation) -> Implementation {
        let Implementation { name, version, title } = client;
        Implementation { name: self.text(name), version: self.text(version), title: title.map(|t| self.text(t)) }
    }

    /// The same of the JSON text: texts are cut off, icons left out.
    #[must_use]
    pub fn info(&self, text: &str) -> String {
        let mut kept = Map::new();
        let mut unknown = 0;
        for member in members(text) {
            let value = match &*member.key {
                "icons" => None,
                "name" | "title" | "version" | "description" => {
                    string(member.value).map(|text| self.text(text.into_owned()).into())
                }
                "websiteUrl" => string(member.value).filter(|url| url.len() <= MAX_WEBSITE).map(|url| url.into()),
                other => {
                    unknown += other.len() + member.value.len();
                    (unknown <= MAX_UNKNOWN).then(|| serde_json::from_str(member.value).ok()).flatten()
                }
            };
            if let Some(value) = value {
                kept.insert(member.key.into_owned(), value);
            }
        }
        Value::Object(kept).to_string()
    }

    fn text(&self, mut text: String) -> String {
        if text.len() > self.text
            && let Some((end, _)) = text.char_indices().nth(self.text)
        {
            text.truncate(end);
            // The rest is not kept with it.
            text.shrink_to_fit();
        }
        text
    }
}

/// Proves that a URI in `params` is not too long.
///
/// # Errors
/// `-32602` for one that is over `max`.
pub fn check_uri(max: usize, member: &str, uri: &str) -> Result<(), McpError> {
    too_long(member, "the URI is too long", uri.len(), max)
}

fn too_long(member: &str, what: &'static str, bytes: usize, limit: usize) -> Result<(), McpError> {
    if bytes <= limit {
        return Ok(());
    }
    let details = serde_json::json!({ "bytes": bytes, "limit": limit });
    Err(McpError::new(ErrorKind::InvalidParams, what).with("member", member).with("details", details))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FactLimits = FactLimits { text: 4, capabilities: 10 };

    #[test]
    fn texts_are_cut_by_characters_and_icons_are_left_out() {
        let info = r#"{"name":"äöüßx","version":"1","title":"abcd","icons":[{"src":"data:x"}],"websiteUrl":"https://a.example"}"#;
        let kept: Value = serde_json::from_str(&LIMITS.info(info)).unwrap();
        let wanted =
            serde_json::json!({ "name": "äöüß", "version": "1", "title": "abcd", "websiteUrl": "https://a.example" });
        assert_eq!(kept, wanted);
        let client =
            Implementation { name: "x".repeat(1 << 20), version: "12345".into(), title: Some("öööööö".into()) };
        let client = LIMITS.cut(client);
        assert_eq!(
            (client.name.as_str(), client.version.as_str(), client.title.as_deref()),
            ("xxxx", "1234", Some("öööö"))
        );
        assert!(client.name.capacity() < 64);
    }

    #[test]
    fn what_no_revision_has_is_kept_while_it_is_short() {
        let info = format!(r#"{{"name":"a","x":1,"y":"{}","z":2,"websiteUrl":"{0}"}}"#, "u".repeat(3000));
        assert_eq!(LIMITS.info(&info), r#"{"name":"a","x":1}"#);
    }

    #[test]
    fn what_is_too_long_is_named_with_its_bound() {
        assert!(LIMITS.check("capabilities", "0123456789").is_ok());
        let error = LIMITS.check("capabilities", "0123456789a").unwrap_err();
        assert_eq!(error.kind.number(), -32602);
        assert_eq!(error.data["member"], "capabilities");
        assert_eq!(error.data["details"], serde_json::json!({ "bytes": 11, "limit": 10 }));
    }
}
