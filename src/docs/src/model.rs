//! The types that the parts of this crate share: tenants, documents, chunks, passages, levels and rankings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use countersign_provider::text::one_line;

/// The importance of a document, in ascending order.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[schemars(description = "")]
pub(crate) enum Level {
    #[default]
    Standard,
    Important,
    Critical,
}

/// A folder of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Collection {
    /// The documents, which agents write.
    Docs,
    /// The reference documentation, which is only read (`external_docs` in the configuration and in tools).
    External,
}

/// The name of the branch if branches are not distinguished, or if there is no repository.
pub(crate) const NO_BRANCH: &str = "-";

/// The maximum number of characters of a branch in a text.
const MAX_BRANCH_CHARS: usize = 80;

/// A project on one branch below one root. Searches never cross tenants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenant {
    pub project: String,
    /// [`NO_BRANCH`] if branches are not distinguished.
    pub branch: String,
    /// The first 16 hexadecimal digits of the SHA-256 of the root's canonical path.
    pub path_hash: String,
}

impl Tenant {
    /// Returns ` on BRANCH` for a text, or an empty text if branches are not distinguished.
    pub fn on_branch(&self) -> String {
        match self.branch.as_str() {
            NO_BRANCH => String::new(),
            branch => format!(" on {}", one_line(branch, MAX_BRANCH_CHARS)),
        }
    }
}

/// A document as read from its file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    /// The path relative to the folder of its collection, with `/` between its parts and no `.` or `..` among them.
    pub path: String,
    /// The title from its front matter, else its first heading, else the name of its file.
    pub title: String,
    /// From its front matter, else the beginning of its first paragraph, at most 300 characters.
    pub summary: String,
    /// `None` if its front matter names no type and its folder belongs to none.
    pub doc_type: Option<String>,
    /// The date as in its front matter: `2026-11-23`.
    pub date: Option<String>,
    pub level: Level,
    pub has_front_matter: bool,
    /// Mismatches between its front matter and its type, for people.
    pub fault: Option<String>,
    /// Characters of the whole file.
    pub char_count: usize,
    /// Paths of documents of the same folder that it links to, each once, in the order of the text. They may not exist.
    pub links: Vec<String>,
    /// Never empty, unless there is only front matter.
    pub chunks: Vec<Chunk>,
}

/// A part of a document that is found by itself: the whole, or a section of a long one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chunk {
    /// `## Section > ### Subsection`; empty for text before the first heading, and for a whole document.
    pub header_path: String,
    /// The first line in the file, counted from 1.
    pub first_line: u32,
    pub last_line: u32,
    pub passages: Vec<Passage>,
}

/// The unit that is ranked, embedded and quoted: about 1,500 bytes of a chunk, in whole paragraphs if possible.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Passage {
    /// The first line in the file, counted from 1.
    pub first_line: u32,
    pub last_line: u32,
    /// The lines as they are in the file.
    pub text: String,
}

impl Passage {
    /// Returns the line numbers for a reference to the passage.
    pub fn line_range(&self) -> String {
        format!("lines {}–{}", self.first_line, self.last_line)
    }
}

/// The method that ranked the hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ranking {
    // By words alone.
    Lexical,
    // By words and semantically, by vectors.
    Fused,
}

/// Restricts a search to some documents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// `None` for all, including documents without a type.
    pub doc_types: Option<Vec<String>>,
    /// `None` for all.
    pub levels: Option<Vec<Level>>,
}

/// A document that was found, with its best passage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hit {
    pub path: String,
    pub title: String,
    pub summary: String,
    pub doc_type: Option<String>,
    pub date: Option<String>,
    pub level: Level,
    pub char_count: usize,
    /// From 0 to 1 (see `index/score.rs`).
    pub relevance: f64,
    pub header_path: String,
    pub passage: Passage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branch_in_a_text_is_short_and_visible() {
        let on_branch = |branch: String| {
            Tenant { project: "handbook".to_owned(), branch, path_hash: "0123456789abcdef".to_owned() }.on_branch()
        };
        assert_eq!(on_branch(NO_BRANCH.to_owned()), "");
        assert_eq!(on_branch("release/2".to_owned()), " on release/2");
        assert_eq!(on_branch("ma\u{202e}in".to_owned()), " on ma\\u{202e}in");
        assert_eq!(on_branch("x".repeat(MAX_BRANCH_CHARS + 1)), format!(" on {}…", "x".repeat(MAX_BRANCH_CHARS)));
    }
}
