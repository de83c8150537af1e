//! Cuts a document into chunks, and chunks into passages. Every non-blank line of the body, except a heading with
//! nothing below it, is in exactly one chunk and in one passage of this chunk, in order.

use std::ops::Range;

use pulldown_cmark::HeadingLevel;

use super::{
    budget::{Budget, TooSlowError},
    markdown::{Heading, Markdown},
};
use crate::model::{Chunk, Passage};

/// The maximum number of lines of a document that stays one chunk.
const MAX_UNCUT_LINES: usize = 500;
/// The maximum number of lines of a section. A longer section is cut at paragraphs.
const MAX_SECTION_LINES: usize = 1000;
/// The number of bytes at which a passage is full, so that the next block begins a new passage.
const MIN_FULL_PASSAGE_BYTES: usize = 1500;
/// The number of bytes at which a passage ends even within a block. A longer block is cut between its lines.
const MAX_PASSAGE_BYTES: usize = 6000;

/// The part of a document after its front matter.
pub(super) struct Body<'a> {
    pub lines: &'a [&'a str],
    /// The number of lines of the file before the body.
    pub line_offset: usize,
    pub markdown: &'a Markdown,
}

/// Cuts the body into chunks.
///
/// # Errors
/// Fails if the budget is used up.
pub(super) fn cut_into_chunks(body: &Body<'_>, budget: &mut Budget) -> Result<Vec<Chunk>, TooSlowError> {
    let line_count = body.lines.len();
    let sections = if body.line_offset + line_count <= MAX_UNCUT_LINES {
        vec![Section { header_path: String::new(), start: 0, end: line_count }]
    } else {
        split_at_headings(line_count, &body.markdown.headings)
    };
    let mut all = Vec::new();
    for section in sections {
        for part in section.cut_if_long(body, budget)? {
            all.extend(part.into_chunk(body, budget)?);
        }
    }
    Ok(all)
}

/// A range of lines of the body, counted from 0 and without `end`.
struct Section {
    /// See [`Chunk::header_path`].
    header_path: String,
    start: usize,
    end: usize,
}

/// Splits the lines of the body at the headings of the second and third level.
fn split_at_headings(line_count: usize, headings: &[Heading]) -> Vec<Section> {
    let mut all = Vec::new();
    let (mut parent, mut header_path, mut start) = (String::new(), String::new(), 0);
    for heading in headings.iter().filter(|heading| matches!(heading.level, HeadingLevel::H2 | HeadingLevel::H3)) {
        all.push(Section { header_path: std::mem::take(&mut header_path), start, end: heading.line });
        start = heading.line;
        if heading.level == HeadingLevel::H2 {
            parent = format!("## {}", heading.text.trim());
            header_path.clone_from(&parent);
        } else {
            let own_heading = format!("### {}", heading.text.trim());
            header_path = if parent.is_empty() { own_heading } else { format!("{parent} > {own_heading}") };
        }
    }
    all.push(Section { header_path, start, end: line_count });
    all
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

impl Section {
    /// Cuts a long section where a block begins: at the last such line up to the limit, or else at the first one after
    /// it.
    fn cut_if_long(self, body: &Body<'_>, budget: &mut Budget) -> Result<Vec<Self>, TooSlowError> {
        let mut all = Vec::new();
        let mut start = self.start;
        while self.end - start > MAX_SECTION_LINES {
            let limit = start + MAX_SECTION_LINES;
            let mut boundary = None;
            for line in (start + 1..=limit).rev().chain(limit + 1..self.end) {
                budget.step()?;
                let is_boundary = body.markdown.boundaries.get(line).copied().unwrap_or(true);
                if is_boundary && body.lines.get(line - 1).is_some_and(|line| is_blank(line)) {
                    boundary = Some(line);
                    break;
                }
            }
            let Some(cut_line) = boundary else { break };
            all.push(Self { header_path: self.header_path.clone(), start, end: cut_line });
            start = cut_line;
        }
        all.push(Self { start, ..self });
        Ok(all)
    }

    /// Converts the section into a chunk. Returns `None` if it is only a heading or blank.
    fn into_chunk(self, body: &Body<'_>, budget: &mut Budget) -> Result<Option<Chunk>, TooSlowError> {
        let passages = self.cut_into_passages(body, budget)?;
        let (Some(first), Some(last)) = (passages.first(), passages.last()) else { return Ok(None) };
        // A heading with nothing below it is dropped.
        let has_content = (self.start..self.end).any(|line_index| {
            !body.markdown.is_heading(line_index) && body.lines.get(line_index).is_some_and(|line| !is_blank(line))
        });
        let (first_line, last_line, header_path) = (first.first_line, last.last_line, self.header_path);
        Ok((has_content || header_path.is_empty()).then_some(Chunk { header_path, first_line, last_line, passages }))
    }

    fn cut_into_passages(&self, body: &Body<'_>, budget: &mut Budget) -> Result<Vec<Passage>, TooSlowError> {
        let markdown = body.markdown;
        let mut all = Vec::new();
        let mut start = self.start;
        let mut size = 0;
        for line_index in self.start..self.end {
            budget.step()?;
            let line = body.lines.get(line_index).copied().unwrap_or_default();
            let is_boundary = markdown.boundaries.get(line_index).copied().unwrap_or(true);
            let is_heading = markdown.is_heading(line_index);
            // A heading begins a new passage if enough text precedes it.
            let is_full = (is_boundary && size >= MIN_FULL_PASSAGE_BYTES)
                || (is_heading && size >= MIN_FULL_PASSAGE_BYTES / 3)
                || size >= MAX_PASSAGE_BYTES;
            // Text after a heading stays with it.
            let follows_heading =
                line_index > start && markdown.is_heading(line_index - 1) && size < MIN_FULL_PASSAGE_BYTES;
            if is_full && !follows_heading && line_index > start {
                all.extend(trimmed_passage(body, start..line_index));
                start = line_index;
                size = 0;
            }
            size += line.len() + 1;
        }
        all.extend(trimmed_passage(body, start..self.end));
        Ok(all)
    }
}

/// Returns the lines without blank lines at both ends, or `None` if all are blank.
fn trimmed_passage(body: &Body<'_>, mut lines: Range<usize>) -> Option<Passage> {
    let has_text = |line_index: &usize| body.lines.get(*line_index).is_some_and(|line| !is_blank(line));
    let first = lines.find(has_text)?;
    let last = lines.rfind(has_text).unwrap_or(first);
    let text = body.lines.get(first..=last)?.join("\n");
    let line_number = |line_index: usize| u32::try_from(body.line_offset + line_index + 1).unwrap_or(u32::MAX);
    Some(Passage { first_line: line_number(first), last_line: line_number(last), text })
}
