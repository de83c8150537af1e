//! Which revision a client gets (2025-11-25/basic/lifecycle, "Version Negotiation"; 2026-07-28/basic/versioning).

use super::{Era, ErrorKind, McpError, Revision};

/// The revision that answers an `handshake_revision` for `requested`.
///
/// A handshake revision that the gateway serves is echoed. Anything else, a stateless one included, is
/// offered the newest handshake revision: there is no handshake in the stateless era.
///
/// # Errors
/// With `strict`, `-32602` with `data: {supported, requested}` instead of the offer.
pub fn handshake_revision(requested: &str, strict: bool) -> Result<Revision, McpError> {
    match Revision::parse(requested) {
        Some(revision) if revision.era() == Era::Legacy => Ok(revision),
        _ if strict => Err(unsupported_version(ErrorKind::InvalidParams, requested, Some(Era::Legacy))),
        _ => Ok(Revision::NEWEST_LEGACY),
    }
}

/// The revision that a stateless request names in `_meta`.
///
/// # Errors
/// `-32022` with `data: {supported, requested}` for any but a stateless one that the gateway serves; a
/// handshake revision inside a stateless envelope too, because its rules do not fit such a request.
pub fn stateless_revision(version: &str) -> Result<Revision, McpError> {
    match Revision::parse(version) {
        Some(revision) if revision.era() == Era::Modern => Ok(revision),
        // Only what such a request may name: the same list that `server/discover` gives.
        _ => Err(unsupported_version(ErrorKind::UnsupportedVersion, version, Some(Era::Modern))),
    }
}

/// The versions that the gateway serves, newest first: all of them, or those of one era.
#[must_use]
pub fn supported_versions(era: Option<Era>) -> Vec<&'static str> {
    Revision::ALL.iter().rev().filter(|r| era.is_none_or(|era| r.era() == era)).map(|r| r.as_str()).collect()
}

/// `-32021`: the request needs what its client did not declare. `required` is a `ClientCapabilities` object
/// of what is missing (2026-07-28/basic/index, "`_meta`"). Of the stateless era only.
#[must_use]
pub fn missing_capability(required: serde_json::Value) -> McpError {
    McpError::new(ErrorKind::MissingCapability, "The client lacks a capability that this request needs")
        .with("requiredCapabilities", required)
}

/// A refusal with `data: {supported, requested}`, where `supported_versions` are the versions of that era or all.
pub(super) fn unsupported_version(kind: ErrorKind, requested: &str, era: Option<Era>) -> McpError {
    // What a client sends is echoed only as far as any version is long.
    let requested: String = requested.chars().take(64).collect();
    McpError::new(kind, "Unsupported protocol version")
        .with("supported", supported_versions(era))
        .with("requested", requested)
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
