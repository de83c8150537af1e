//! Known reads: tools of a widely used server that only read, as was established by reading its code and trying it.
//!
//! A list decides nothing by itself. It tells which definitions a reviewer can accept as reads in one step, including
//! those of servers whose tools have no annotations.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// The statement of a server's list of known reads about a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KnownTool {
    /// The tool with this definition only reads.
    Read,
    /// The tool writes, and the dry run with which its recipe makes previews only reads.
    DryRun,
    /// The tool runs SQL, and its recipe tells which statements only read.
    SqlRead,
    /// The list names the tool, but with other definitions, so it says nothing about this one.
    OtherDefinition,
}

/// The known reads of one server, by the hashes of their definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownReads {
    /// The name of the recipe set for the same server.
    pub recipe_set: &'static str,
    /// The packages whose definitions are listed, with their versions.
    pub packages: Vec<String>,
    /// Hashes of definitions, and what they stand for, by the server's own name of the tool.
    definitions: BTreeMap<String, Vec<(String, KnownTool)>>,
}

impl KnownReads {
    pub fn new(recipe_set: &'static str) -> Self {
        Self { recipe_set, ..Self::default() }
    }

    /// Adds a definition with this hash. The hash is that of the server's own definition, without the prefix of names.
    pub fn add(&mut self, tool: String, hash: String, effect: KnownTool) {
        self.definitions.entry(tool).or_default().push((hash, effect));
    }

    /// Returns what the list says about a tool, or `None` if it does not name the tool. `hash` returns the hash of the
    /// server's own definition.
    pub fn find(&self, own_name: &str, hash: impl FnOnce() -> String) -> Option<KnownTool> {
        let listed = self.definitions.get(own_name)?;
        let hash = hash();
        let found = listed.iter().find(|(listed_hash, _)| *listed_hash == hash);
        Some(found.map_or(KnownTool::OtherDefinition, |(_, effect)| *effect))
    }

    /// Returns the listed tools with the hashes of their definitions.
    pub fn definitions(&self) -> impl Iterator<Item = (&str, &[(String, KnownTool)])> {
        self.definitions.iter().map(|(tool, listed)| (tool.as_str(), listed.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listed_definition_is_known() {
        let mut known = KnownReads::new("files");
        known.add("read".into(), "h1".into(), KnownTool::Read);
        known.add("read".into(), "h2".into(), KnownTool::Read);
        known.add("edit".into(), "h3".into(), KnownTool::DryRun);
        let find = |tool: &str, hash: &str| known.find(tool, || hash.to_owned());
        assert_eq!((find("read", "h1"), find("read", "h2")), (Some(KnownTool::Read), Some(KnownTool::Read)));
        assert_eq!(find("edit", "h3"), Some(KnownTool::DryRun));
        assert_eq!(find("edit", "h1"), Some(KnownTool::OtherDefinition), "the hash of another tool");
        assert_eq!(find("write", "h1"), None);
    }
}
