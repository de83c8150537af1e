//! The capabilities of a client, which determine the requests that a server may send to it.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Revision;

/// The capabilities that an upstream may use through the gateway. They are normalized, so that clients with equal
/// capabilities share a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientCapabilities {
    pub elicitation_form: bool,
    pub elicitation_url: bool,
    pub sampling: bool,
    pub sampling_tools: bool,
    pub sampling_context: bool,
    pub roots: bool,
    /// `extensions` and `experimental` as JSON objects. They are forwarded without being interpreted.
    pub extensions: Option<Arc<str>>,
    pub experimental: Option<Arc<str>>,
}

impl ClientCapabilities {
    /// Reads the capabilities that a client declared.
    ///
    /// An empty `elicitation` means form mode (2025-11-25/client/elicitation#capabilities).
    #[must_use]
    pub fn from_declaration(capabilities: &str) -> Self {
        // A fast path: most clients of tools declare nothing, and every call passes here.
        if capabilities == "{}" {
            return Self::default();
        }
        let declared: DeclaredCapabilities = serde_json::from_str(capabilities).unwrap_or_default();
        let has = |member: &Option<Map<String, Value>>, key: &str| member.as_ref().is_some_and(|m| m.contains_key(key));
        let raw = |member: &Option<Map<String, Value>>| {
            member.as_ref().filter(|m| !m.is_empty()).map(|m| Arc::from(Value::Object(m.clone()).to_string()))
        };
        Self {
            elicitation_form: has(&declared.elicitation, "form")
                || (declared.elicitation.is_some() && !has(&declared.elicitation, "url")),
            elicitation_url: has(&declared.elicitation, "url"),
            sampling: declared.sampling.is_some(),
            sampling_tools: has(&declared.sampling, "tools"),
            sampling_context: has(&declared.sampling, "context"),
            roots: declared.roots.is_some(),
            extensions: raw(&declared.extensions),
            experimental: raw(&declared.experimental),
        }
    }

    /// Returns `true` if a server can send this client no request. All such clients share connections.
    #[must_use]
    pub fn accepts_no_requests(&self) -> bool {
        !(self.elicitation_form || self.elicitation_url || self.sampling || self.roots)
    }

    /// Formats the capabilities for an upstream of `revision`, without those that the revision does not know.
    #[must_use]
    pub fn to_json(&self, revision: Revision) -> Value {
        // Modes are newer than elicitation itself (2025-11-25/changelog).
        let has_modes = revision >= Revision::V2025_11_25;
        let modes = |modes: [(&str, bool); 2]| -> Value {
            let declared = modes.into_iter().filter(|(_, has)| has_modes && *has);
            declared.map(|(mode, _)| (mode.to_owned(), json!({}))).collect()
        };
        let mut out = json!({});
        if (self.elicitation_form && revision >= Revision::V2025_06_18) || (self.elicitation_url && has_modes) {
            out["elicitation"] = modes([("form", self.elicitation_form), ("url", self.elicitation_url)]);
        }
        if self.sampling {
            out["sampling"] = modes([("tools", self.sampling_tools), ("context", self.sampling_context)]);
        }
        if self.roots {
            out["roots"] = json!({});
        }
        for (key, raw) in [("extensions", &self.extensions), ("experimental", &self.experimental)] {
            if let Some(value) = raw.as_deref().and_then(|raw| serde_json::from_str(raw).ok()) {
                out[key] = value;
            }
        }
        out
    }
}

#[derive(Default, Deserialize)]
struct DeclaredCapabilities {
    elicitation: Option<Map<String, Value>>,
    sampling: Option<Map<String, Value>>,
    roots: Option<Map<String, Value>>,
    extensions: Option<Map<String, Value>>,
    experimental: Option<Map<String, Value>>,
}
