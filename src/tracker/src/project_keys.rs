//! Derives the key of a project from its name if the caller gives none.

use serde_json::{Value, json};

use super::{
    arguments::EntityRef,
    db::{Db, DbResult, values},
    model::ProjectKey,
    rows::find_project,
};
use countersign_protocol::{ErrorKind, McpError};

/// The maximum number of keys that are tried.
const MAX_ATTEMPTS: usize = 26 * 27;

/// Returns a free key that people recognize: the initials of the name or its first letters, with letters added while it is
/// taken. The same state always gives the same key.
///
/// # Errors
/// Fails if all these keys are taken.
pub(super) fn derive(db: Db<'_>, name: &str) -> Result<ProjectKey, McpError> {
    for key in candidates(name).take(MAX_ATTEMPTS) {
        if find_project(db, &EntityRef::Key(key.clone()))?.is_none() {
            return Ok(ProjectKey(key));
        }
    }
    Err(McpError::new(ErrorKind::ToolExecution, "No key could be derived from the name; give one.")
        .with("pointer", "/key"))
}

fn candidates(name: &str) -> impl Iterator<Item = String> {
    let base = base(name);
    let stem = base.chars().take(8).collect::<String>();
    let letters = || ('A'..='Z').map(String::from);
    let two = letters().flat_map(|a| ('A'..='Z').map(move |b| format!("{a}{b}")));
    let suffixes: Vec<String> = letters().chain(two).collect();
    std::iter::once(base).chain(suffixes.into_iter().map(move |suffix| format!("{stem}{suffix}")))
}

fn base(name: &str) -> String {
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

/// Returns the first projects, for an error that lists them.
pub(super) fn known_projects(db: Db<'_>, limit: i64) -> DbResult<Vec<Value>> {
    db.query_all("SELECT uuid, key, name FROM projects ORDER BY key LIMIT ?1", values![limit], |row| {
        Ok(json!({ "id": row.get::<&str>(0)?, "key": row.get::<&str>(1)?, "name": row.get::<&str>(2)? }))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn key_is_derived_from_name() {
        for (name, key) in [
            ("Core", "CORE"),
            ("Mobile app", "MA"),
            ("Customer-facing web shop", "CFWS"),
            ("x", "PROJ"),
            ("日本語", "PROJ"),
            ("Übersicht", "BERS"),
            ("42", "PROJ"),
        ] {
            assert_eq!(base(name), key, "{name}");
        }
        let mut all = candidates("Core");
        assert_eq!(all.next().as_deref(), Some("CORE"));
        assert_eq!(all.next().as_deref(), Some("COREA"));
    }

    proptest! {
        #[test]
        fn every_candidate_is_a_key(name in "\\PC{0,60}") {
            for key in candidates(&name).take(MAX_ATTEMPTS) {
                prop_assert!((2..=10).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_uppercase()), "{}", key);
            }
        }
    }
}
