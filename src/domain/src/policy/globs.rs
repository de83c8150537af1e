//! Name patterns: `file_*`, `{read,list}_*`, `fs__?`.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// A list of patterns. A name matches if one pattern matches it as a whole; matching is case-sensitive.
#[derive(Clone, Default)]
pub struct Globs {
    patterns: Vec<String>,
    set: GlobSet,
}

impl fmt::Debug for Globs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.patterns.fmt(f)
    }
}

impl PartialEq for Globs {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Globs {}

impl Globs {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// The invalid pattern and the reason.
    pub fn new(patterns: Vec<String>) -> Result<Self, (String, String)> {
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            let invalid = |reason: String| (pattern.clone(), reason);
            if pattern.is_empty() || pattern.len() > 256 {
                return Err(invalid("a pattern has 1 to 256 characters".to_owned()));
            }
            let glob = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
            set.add(glob.map_err(|error| invalid(error.kind().to_string()))?);
        }
        let set = set.build().map_err(|error| (patterns.join(", "), error.kind().to_string()))?;
        Ok(Self { patterns, set })
    }

    /// Returns `true` if there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    pub fn matches(&self, name: &str) -> bool {
        self.set.is_match(name)
    }

    /// Returns `true` if a pattern that contains `/` matches the name. Other patterns do not count: a `*` matches a `/` as well,
    /// although its author may have thought only of tools and not of their operations.
    pub fn matches_with_slash(&self, name: &str) -> bool {
        self.set.matches(name).into_iter().any(|index| self.patterns.get(index).is_some_and(|p| p.contains('/')))
    }

    /// Returns `true` if a pattern may match a name that begins with `prefix`.
    pub fn may_match_below(&self, prefix: &str) -> bool {
        self.patterns.iter().any(|pattern| match pattern.find(['*', '?', '[', '{', '\\']) {
            Some(end) => pattern[..end].starts_with(prefix) || prefix.starts_with(&pattern[..end]),
            None => pattern.starts_with(prefix),
        })
    }

    /// Returns `true` if a rule with these patterns covers the name. An empty list covers every name.
    pub fn admits(&self, name: &str) -> bool {
        self.is_empty() || self.matches(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_may_match_an_operation_are_found() {
        let may_match = |pattern: &str| Globs::new(vec![pattern.to_owned()]).unwrap().may_match_below("s__run/");
        for pattern in
            ["s__run/Get", "s__run/*", "s__run*", "*Delete*", "s__r[u]n/Get", "{s__run/Get,x}", "s__run\\/Get"]
        {
            assert!(may_match(pattern), "{pattern}");
        }
        for pattern in ["s__run", "s__ru", "s__walk*", "s__running/*", "t__run/Get"] {
            assert!(!may_match(pattern), "{pattern}");
        }
    }

    #[test]
    fn pattern_that_matches_must_contain_the_slash() {
        let globs = |patterns: &[&str]| Globs::new(patterns.iter().map(|&p| p.to_owned()).collect()).unwrap();
        assert!(globs(&["*Comment*", "run/*"]).matches_with_slash("run/Get"));
        assert!(!globs(&["*Comment*", "other/*"]).matches_with_slash("run/deleteComment"));
    }
}
