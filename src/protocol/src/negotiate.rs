//! Negotiates the revision and the capabilities of a client (2025-11-25/basic/lifecycle, "Version Negotiation" and "Capability
//! Negotiation"; 2026-07-28/basic/versioning). The capabilities determine the requests that a server may send to the client.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Era, ErrorKind, McpError, Revision};

/// Returns the revision that answers an `initialize` for `requested`.
///
/// A handshake revision that the gateway serves is accepted. For anything else, including a stateless revision, the
/// newest handshake revision is offered.
///
/// # Errors
/// With `strict`, `-32602` with `data: {supported, requested}` instead of the offer.
pub fn handshake_revision(requested: &str, strict: bool) -> Result<Revision, McpError> {
    match Revision::parse(requested) {
        Some(revision) if revision.era() == Era::Legacy => Ok(revision),
        _ if strict => Err(unsupported_version(ErrorKind::InvalidParams, requested, Era::Legacy)),
        _ => Ok(Revision::NEWEST_LEGACY),
    }
}

/// Returns the revision that a stateless request names in `_meta`.
///
/// # Errors
/// `-32022` with `data: {supported, requested}` for anything but a stateless revision that the gateway serves. A
/// handshake revision in a stateless envelope is rejected too, because its rules do not fit such a request.
pub fn stateless_revision(version: &str) -> Result<Revision, McpError> {
    match Revision::parse(version) {
        Some(revision) if revision.era() == Era::Modern => Ok(revision),
        // Lists only the stateless revisions, like `server/discover`.
        _ => Err(unsupported_version(ErrorKind::UnsupportedVersion, version, Era::Modern)),
    }
}

/// Returns the versions that the gateway serves, newest first, optionally of one era.
pub fn supported_versions(era: Option<Era>) -> Vec<&'static str> {
    Revision::ALL.iter().rev().filter(|r| era.is_none_or(|era| r.era() == era)).map(|r| r.as_str()).collect()
}

/// Creates an error with `data: {supported, requested}`, where `supported` lists the versions of `era`.
fn unsupported_version(kind: ErrorKind, requested: &str, era: Era) -> McpError {
    // A hostile client could send a huge version. No real version is longer than this.
    let requested: String = requested.chars().take(64).collect();
    McpError::new(kind, "Unsupported protocol version")
        .with("supported", supported_versions(Some(era)))
        .with("requested", requested)
}

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
    /// A JSON object, which is forwarded without being interpreted.
    pub extensions: Option<Arc<str>>,
    /// A JSON object, which is forwarded without being interpreted.
    pub experimental: Option<Arc<str>>,
}

impl ClientCapabilities {
    /// Reads the capabilities that a client declared.
    ///
    /// An empty `elicitation` means form mode (2025-11-25/client/elicitation#capabilities).
    pub fn from_declaration(capabilities: &str) -> Self {
        // A fast path: most clients declare nothing, and every call passes here.
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
    pub fn accepts_no_requests(&self) -> bool {
        !(self.elicitation_form || self.elicitation_url || self.sampling || self.roots)
    }

    /// Formats the capabilities for an upstream of `revision`, without those that the revision does not know.
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
            if let Some(value) = raw.as_deref().and_then(|raw| raw.parse::<Value>().ok()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_revisions_are_echoed() {
        for revision in Revision::ALL.into_iter().filter(|r| r.era() == Era::Legacy) {
            for strict in [false, true] {
                assert_eq!(handshake_revision(revision.as_str(), strict), Ok(revision));
            }
        }
    }

    #[test]
    fn unknown_versions_are_offered_newest_handshake_revision() {
        for requested in ["2026-07-28", "2099-01-01", "1.0.0", "", "2025-11-25 ", "DRAFT-2026-v1"] {
            assert_eq!(handshake_revision(requested, false), Ok(Revision::V2025_11_25), "{requested}");
            let refused = handshake_revision(requested, true).expect_err("strict refuses");
            assert_eq!(refused.kind, ErrorKind::InvalidParams);
            assert_eq!(refused.data["requested"], requested);
            assert_eq!(
                refused.data["supported"],
                serde_json::json!(["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
            );
        }
    }

    #[test]
    fn stateless_envelope_requires_stateless_revision() {
        assert_eq!(stateless_revision("2026-07-28"), Ok(Revision::V2026_07_28));
        for version in ["2025-11-25", "2024-11-05", "1900-01-01", "", "2026-07-28\n"] {
            let refused = stateless_revision(version).expect_err("refused");
            assert_eq!(refused.number(Revision::MODERN), -32022);
            assert_eq!(refused.data["requested"], version);
            assert_eq!(refused.data["supported"][0], "2026-07-28");
        }
    }

    #[test]
    fn long_version_is_echoed_truncated() {
        let refused = stateless_revision(&"9".repeat(1 << 20)).expect_err("refused");
        assert_eq!(refused.data["requested"].as_str().map(str::len), Some(64));
    }
}
