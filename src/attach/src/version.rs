//! Compares versions of programs: a newer program replaces an older detached gateway, never the reverse.

use semver::Version;

/// The version of this program.
pub const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns `true` if `version` has a higher precedence than `other` (semver.org, section 11). A text that is not a version
/// is neither newer nor older.
pub fn is_newer(version: &str, other: &str) -> bool {
    match (Version::parse(version), Version::parse(other)) {
        (Ok(version), Ok(other)) => version.cmp_precedence(&other).is_gt(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_version_has_higher_precedence() {
        for (newer, older) in
            [("0.2.0", "0.1.9"), ("0.10.0", "0.9.0"), ("1.0.0", "1.0.0-rc.1"), ("1.0.0-rc.2", "1.0.0-rc.1")]
        {
            assert!(is_newer(newer, older) && !is_newer(older, newer), "{newer} {older}");
        }
        for (one, other) in [("0.1.0", "0.1.0"), ("0.1.0+a", "0.1.0+b"), ("0.1.0", "?"), ("?", "0.1.0"), ("1", "0.1.0")]
        {
            assert!(!is_newer(one, other) && !is_newer(other, one), "{one} {other}");
        }
    }
}
