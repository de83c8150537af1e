//! What the parts of this crate speak of: tenants, documents, chunks and passages, levels, places in a ranking.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much weight a document has, from least to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    #[default]
    Standard,
    Important,
    Critical,
}

impl Level {
    pub const ALL: [Self; 3] = [Self::Standard, Self::Important, Self::Critical];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Important => "important",
            Self::Critical => "critical",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which of a project's folders: the documents that agents write, or documentation that is only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Collection {
    Docs,
    External,
}

/// Whose documents they are: nothing of one is ever found from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenant {
    pub project: String,
    /// `-` where branches are not told apart.
    pub branch: String,
    /// The first 16 hexadecimal digits of the SHA-256 of the root's canonical path.
    pub path_hash: String,
}

/// A document as it was read from its file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    /// Relative to the folder of its collection, with `/` between its parts and no `.` or `..` among them.
    pub path: String,
    /// Of its front matter, else its first heading, else the name of its file.
    pub title: String,
    /// Of its front matter, else the beginning of its first paragraph, at most 300 characters.
    pub summary: String,
    /// None where its front matter names none and its folder is no type's.
    pub doc_type: Option<String>,
    /// As its front matter has it: `2026-11-23`.
    pub date: Option<String>,
    pub level: Level,
    pub has_front_matter: bool,
    /// What of its front matter does not fit its type, for people.
    pub fault: Option<String>,
    /// Of the whole file.
    pub char_count: usize,
    /// Documents of the same folder that it links to, as their `path`, each once, in the order of the text. Whether
    /// they are there is not known here.
    pub links: Vec<String>,
    /// Never empty, unless there is no text but front matter.
    pub chunks: Vec<Chunk>,
}

/// A part of a document that is found by itself: all of it, or a section of a long one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chunk {
    /// `## Section > ### Subsection`; empty for what stands before the first heading, and for a whole document.
    pub header_path: String,
    /// Of the file, from 1.
    pub first_line: u32,
    pub last_line: u32,
    pub passages: Vec<Passage>,
}

/// What is ranked, embedded and quoted: a stretch of a chunk of some 1,500 characters, whole paragraphs where it can be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Passage {
    /// Of the file, from 1.
    pub first_line: u32,
    pub last_line: u32,
    /// The lines as they are in the file.
    pub text: String,
}

/// What ranked an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ranking {
    /// By words alone.
    Lexical,
    /// By words and by vectors.
    Fused,
}

/// Which documents are looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// None: all, also those without a type.
    pub doc_types: Option<Vec<String>>,
    /// None: all.
    pub levels: Option<Vec<Level>>,
}

/// A document that was found, and the best passage of it.
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
    pub score: f64,
    pub header_path: String,
    pub passage: Passage,
}
