//! Name patterns: `file_*`, `{read,list}_*`, `fs__?`.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// A list of patterns. A name matches if one pattern matches it as a whole; matching is case-sensitive.
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

    /// Returns `true` if a rule with these patterns covers the name. An empty list covers every name.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        self.is_empty() || self.matches(name)
    }
}
