//! How callers name things: UUIDs and keys such as `CORE-12`. Pure.

use serde_json::Value;

use countersign_protocol::{ErrorKind, McpError};

/// See [`countersign_provider::text::invalid_argument`].
pub(super) fn invalid(pointer: &str, rule: &str, message: impl Into<String>) -> McpError {
    countersign_provider::text::invalid_argument(pointer, rule, message)
}

/// Something that was named does not exist.
pub(super) fn not_found(entity: &str, given: &str) -> McpError {
    let shown: String = given.chars().take(100).collect();
    McpError::new(ErrorKind::NotFound, format!("There is no {entity} `{shown}`."))
        .with("entityType", entity)
        .with("id", shown)
}

/// A UUID in its usual form with hyphens, in lower case.
pub(super) fn uuid(text: &str) -> Option<String> {
    (text.len() == 36).then(|| uuid::Uuid::try_parse(text).ok()).flatten().map(|id| id.hyphenated().to_string())
}

/// A project's key: 2 to 10 capital letters. Small ones are taken for capitals.
pub(super) fn project_key(text: &str) -> Option<String> {
    let fits = (2..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphabetic());
    fits.then(|| text.to_ascii_uppercase())
}

/// An issue's key, such as `CORE-12`.
pub(super) fn issue_key(text: &str) -> Option<String> {
    let (project, number) = text.split_once('-')?;
    let project = project_key(project)?;
    let fits =
        (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    fits.then(|| format!("{project}-{number}"))
}

/// An id or a key that is well formed; whether it exists is another question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum EntityRef {
    Id(String),
    Key(String),
}

impl EntityRef {
    pub fn issue(text: &str) -> Option<Self> {
        uuid(text).map(Self::Id).or_else(|| issue_key(text).map(Self::Key))
    }

    pub fn project(text: &str) -> Option<Self> {
        uuid(text).map(Self::Id).or_else(|| project_key(text).map(Self::Key))
    }

    pub fn text(&self) -> &str {
        match self {
            Self::Id(text) | Self::Key(text) => text,
        }
    }
}

/// The argument as a UUID.
pub(super) fn uuid_argument(pointer: &str, text: &str) -> Result<String, McpError> {
    uuid(text).ok_or_else(|| invalid(pointer, "format", format!("{} must be a UUID.", name(pointer))))
}

/// The argument as an issue's UUID or key.
pub(super) fn issue_argument(pointer: &str, text: &str) -> Result<EntityRef, McpError> {
    EntityRef::issue(text).ok_or_else(|| {
        invalid(pointer, "anyOf", format!("{} must be an issue's UUID or its key, such as CORE-12.", name(pointer)))
    })
}

/// The argument as a project's UUID or key.
pub(super) fn project_argument(pointer: &str, text: &str) -> Result<EntityRef, McpError> {
    EntityRef::project(text).ok_or_else(|| {
        invalid(pointer, "anyOf", format!("{} must be a project's UUID or its key, such as CORE.", name(pointer)))
    })
}

fn name(pointer: &str) -> &str {
    pointer.trim_start_matches('/')
}

/// Length in characters, and not blank if it must hold something.
pub(super) fn bounded(pointer: &str, text: &str, min: usize, max: usize) -> Result<(), McpError> {
    // Bytes bound characters from above, so most texts need no count.
    let over = text.len() > max && text.chars().count() > max;
    if over {
        let message = format!("{} may have at most {max} characters.", name(pointer));
        return Err(invalid(pointer, "maxLength", message).with("limit", Value::from(max)));
    }
    if text.contains('\0') {
        return Err(invalid(pointer, "pattern", format!("{} may not hold the character U+0000.", name(pointer))));
    }
    if min > 0 && text.trim().is_empty() {
        return Err(invalid(pointer, "minLength", format!("{} must not be empty.", name(pointer))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_and_ids_are_told_apart() {
        assert_eq!(issue_key("core-12").as_deref(), Some("CORE-12"));
        for bad in [
            "",
            "CORE",
            "CORE-",
            "CORE-0",
            "CORE-01",
            "C-1",
            "CORE-1 ",
            "COREXXXXXXX-1",
            "CORE-1234567890",
            "CÖRE-1",
            "CORE--1",
            "CORE-1-2",
            "CORE-٣",
            "CO1E-1",
        ] {
            assert_eq!(issue_key(bad), None, "{bad}");
        }
        assert_eq!(
            uuid("67E55044-10B1-426F-9247-BB680E5FE0C8").as_deref(),
            Some("67e55044-10b1-426f-9247-bb680e5fe0c8")
        );
        for bad in [
            "67e5504410b1426f9247bb680e5fe0c8",
            "{67e55044-10b1-426f-9247-bb680e5fe0c8}",
            "",
            "CORE-1",
            "urn:uuid:67e55044-10b1-426f-9247-bb680e5fe0c8",
        ] {
            assert_eq!(uuid(bad), None, "{bad}");
        }
    }

    #[test]
    fn lengths_count_characters() {
        assert!(bounded("/title", &"ä".repeat(200), 1, 200).is_ok());
        assert_eq!(
            bounded("/title", &"ä".repeat(201), 1, 200).unwrap_err().data["details"]["errors"][0]["rule"],
            "maxLength"
        );
        assert_eq!(bounded("/title", " \n", 1, 200).unwrap_err().data["details"]["errors"][0]["rule"], "minLength");
        assert!(bounded("/description", "", 0, 10).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_taken_for_a_key_is_canonical(text in "\\PC{0,40}|[a-zA-Z]{1,11}-[0-9]{0,10}") {
            if let Some(key) = issue_key(&text) {
                prop_assert_eq!(issue_key(&key), Some(key.clone()));
                prop_assert_eq!(key, text.to_ascii_uppercase());
            }
            if let Some(id) = uuid(&text) {
                prop_assert_eq!(id.len(), 36);
            }
        }
    }
}
