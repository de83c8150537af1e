//! Derives the key of a project from its name if the caller gives none.

use super::{arguments::EntityRef, db::Db, model::ProjectKey, rows::find_project};
use countersign_protocol::{ErrorKind, McpError};

/// Returns a key that no project has: the initials or the first letters of the name, with up to two letters added if it
/// is taken. The same state always gives the same key.
///
/// # Errors
/// Fails if all candidates are taken.
pub(super) fn derive(db: Db<'_>, name: &str) -> Result<ProjectKey, McpError> {
    for key in candidates(name) {
        if find_project(db, &EntityRef::Key(key.clone()))?.is_none() {
            return Ok(ProjectKey(key));
        }
    }
    Err(McpError::new(ErrorKind::ToolExecution, "No key could be derived from the name; give one.")
        .with("pointer", "/key"))
}

/// Returns the keys that may be derived from a name, the preferred one first.
fn candidates(name: &str) -> impl Iterator<Item = String> {
    let base = base_key(name);
    let stem = base.chars().take(8).collect::<String>();
    let letters = || ('A'..='Z').map(String::from);
    let pairs = letters().flat_map(|a| ('A'..='Z').map(move |b| format!("{a}{b}")));
    let suffixes: Vec<String> = letters().chain(pairs).collect();
    std::iter::once(base).chain(suffixes.into_iter().map(move |suffix| format!("{stem}{suffix}")))
}

/// Returns the initials of a name with several words, or the first letters of a single word.
fn base_key(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_alphanumeric())
        .map(|w| w.chars().filter(char::is_ascii_alphabetic).map(|c| c.to_ascii_uppercase()).collect::<String>())
        .filter(|w| !w.is_empty())
        .collect();
    let key: String = if words.len() >= 2 {
        words.iter().filter_map(|w| w.chars().next()).take(6).collect()
    } else {
        words.first().map(|w| w.chars().take(4).collect()).unwrap_or_default()
    };
    if key.len() < 2 { "PROJ".to_owned() } else { key }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base_key_has_initials_or_first_letters() {
        for (name, key) in [
            ("Core", "CORE"),
            ("Mobile app", "MA"),
            ("Customer-facing web shop", "CFWS"),
            ("x", "PROJ"),
            ("日本語", "PROJ"),
            ("Übersicht", "BERS"),
            ("42", "PROJ"),
        ] {
            assert_eq!(base_key(name), key, "{name}");
        }
        let mut core_candidates = candidates("Core");
        assert_eq!(core_candidates.next().as_deref(), Some("CORE"));
        assert_eq!(core_candidates.next().as_deref(), Some("COREA"));
    }

    proptest! {
        #[test]
        fn every_candidate_is_a_key(name in "\\PC{0,60}") {
            for key in candidates(&name) {
                prop_assert!((2..=10).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_uppercase()), "{}", key);
            }
        }
    }
}
