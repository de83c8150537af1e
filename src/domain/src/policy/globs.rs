//! Names by pattern: `file_*`, `{read,list}_*`, `fs__?`.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// A list of patterns; a name matches where one of them fits the whole of it. Upper and lower case differ.
#[derive(Clone)]
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

impl Default for Globs {
    fn default() -> Self {
        Self { patterns: Vec::new(), set: GlobSet::empty() }
    }
}

impl Globs {
    /// # Errors
    /// The pattern that is none, with why.
    pub fn new(patterns: Vec<String>) -> Result<Self, (String, String)> {
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            let wrong = |reason: String| (pattern.clone(), reason);
            if pattern.is_empty() || pattern.len() > 256 {
                return Err(wrong("a pattern has 1 to 256 characters".to_owned()));
            }
            let glob = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
            set.add(glob.map_err(|error| wrong(error.kind().to_string()))?);
        }
        let set = set.build().map_err(|error| (patterns.join(", "), error.kind().to_string()))?;
        Ok(Self { patterns, set })
    }

    /// Whether there is no pattern.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.set.is_match(name)
    }

    /// Whether a rule with these patterns speaks of the name: no pattern is no restriction.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        self.is_empty() || self.matches(name)
    }
}
