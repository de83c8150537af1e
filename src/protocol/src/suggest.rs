//! Suggests the name that the user probably meant, for error messages.
//!
//! A suggestion reveals a name, so callers must pass only names that the reader may see.

/// Maximum number of characters of a name that are compared.
const MAX_NAME_CHARS: usize = 100;
/// Maximum number of names that are compared, because a hostile peer may ask for unknown names at any rate.
const MAX_CANDIDATES: usize = 2000;

/// Returns the candidate with the fewest edits between it and `name`, if they are few enough: one for a name of three to seven
/// characters, and one for every four characters of a longer name, but at most three.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = normalize(name);
    let length = name.chars().count();
    let max_edits = (length / 4).clamp(usize::from(length > 2), 3);
    candidates
        .into_iter()
        .take(MAX_CANDIDATES)
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= max_edits)
        .map(|candidate| (strsim::damerau_levenshtein(&name, &normalize(candidate)), candidate))
        .filter(|(distance, _)| *distance <= max_edits)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Like [`nearest`], for tools: also finds a name without its prefix (`read_file` for `fs__read_file`).
pub fn nearest_tool<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let has_prefix = |candidate: &&&'a str| {
        let prefix = candidate.strip_suffix(name);
        !name.is_empty() && prefix.is_some_and(|prefix| prefix.ends_with(|c: char| !c.is_alphanumeric()))
    };
    nearest(name, candidates.iter().copied()).or_else(|| candidates.iter().find(has_prefix).copied())
}

fn normalize(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).map(|c| if c == '-' { '_' } else { c }).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let names = ["create_issue", "delete_issue", "get", "fs__read_file"];
        for (name, expected) in [
            ("create_isue", Some("create_issue")),
            ("Create-Issue", Some("create_issue")),
            ("craete_issue", Some("create_issue")),
            ("gte", Some("get")),
            ("put_issue", None),
            ("gt", None),
            ("", None),
            ("read_file", None),
        ] {
            assert_eq!(nearest(name, names), expected, "{name}");
        }
        assert_eq!(nearest_tool("read_file", &names), Some("fs__read_file"));
        assert_eq!(nearest_tool("file", &names), Some("fs__read_file"));
        assert_eq!(nearest_tool("ile", &names), None);
    }
}
