//! Cuts a document into chunks, and chunks into passages. Every non-blank line of the body, except a heading with
//! nothing below it, is in exactly one chunk and in one passage of this chunk, in order.

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

/// Cuts the body into chunks; `lines` are those of the body, which begins after `line_offset` lines of the file.
///
/// # Errors
/// Fails if the budget is used up.
pub(super) fn cut_into_chunks(
    lines: &[&str],
    line_offset: usize,
    markdown: &Markdown,
    budget: &mut Budget,
) -> Result<Vec<Chunk>, TooSlowError> {
    let mut sections = if line_offset + lines.len() <= MAX_UNCUT_LINES {
        vec![Section { header_path: String::new(), start: 0, end: lines.len() }]
    } else {
        split_at_headings(lines.len(), &markdown.headings)
    };
    if sections.iter().any(|section| section.end - section.start > MAX_SECTION_LINES) {
        let mut cut = Vec::new();
        for section in sections {
            cut.extend(section.cut_if_long(lines, &markdown.boundaries, budget)?);
        }
        sections = cut;
    }
    let mut all = Vec::new();
    for section in &sections {
        all.extend(section.to_chunk(lines, line_offset, markdown, budget)?);
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
    fn cut_if_long(self, lines: &[&str], boundaries: &[bool], budget: &mut Budget) -> Result<Vec<Self>, TooSlowError> {
        let mut all = Vec::new();
        let mut start = self.start;
        while self.end - start > MAX_SECTION_LINES {
            let limit = start + MAX_SECTION_LINES;
            let mut boundary = None;
            for line in (start + 1..=limit).rev().chain(limit + 1..self.end) {
                budget.step()?;
                let is_boundary = boundaries.get(line).copied().unwrap_or(true);
                if is_boundary && lines.get(line - 1).is_some_and(|line| is_blank(line)) {
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
    fn to_chunk(
        &self,
        lines: &[&str],
        line_offset: usize,
        markdown: &Markdown,
        budget: &mut Budget,
    ) -> Result<Option<Chunk>, TooSlowError> {
        let passages = self.cut_into_passages(lines, line_offset, markdown, budget)?;
        let (Some(first), Some(last)) = (passages.first(), passages.last()) else { return Ok(None) };
        // A heading with nothing below it is dropped.
        let has_content = (self.start..self.end).any(|line_index| {
            !markdown.is_heading(line_index) && lines.get(line_index).is_some_and(|line| !is_blank(line))
        });
        let (first_line, last_line) = (first.first_line, last.last_line);
        let header_path = self.header_path.clone();
        Ok((has_content || header_path.is_empty()).then_some(Chunk { header_path, first_line, last_line, passages }))
    }

    fn cut_into_passages(
        &self,
        lines: &[&str],
        line_offset: usize,
        markdown: &Markdown,
        budget: &mut Budget,
    ) -> Result<Vec<Passage>, TooSlowError> {
        let mut all = Vec::new();
        let mut start = self.start;
        let mut size = 0;
        for line_index in self.start..self.end {
            budget.step()?;
            let line = lines.get(line_index).copied().unwrap_or_default();
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
                all.extend(trimmed_passage(lines, start, line_index, line_offset));
                start = line_index;
                size = 0;
            }
            size += line.len() + 1;
        }
        all.extend(trimmed_passage(lines, start, self.end, line_offset));
        Ok(all)
    }
}

/// Returns the lines without blank lines at both ends, or `None` if all are blank.
fn trimmed_passage(lines: &[&str], start: usize, end: usize, line_offset: usize) -> Option<Passage> {
    let has_text = |line_index: &usize| lines.get(*line_index).is_some_and(|line| !is_blank(line));
    let first = (start..end).find(has_text)?;
    let last = (start..end).rev().find(has_text)?;
    let text = lines.get(first..=last)?.join("\n");
    let line_number = |line_index: usize| u32::try_from(line_offset + line_index + 1).unwrap_or(u32::MAX);
    Some(Passage { first_line: line_number(first), last_line: line_number(last), text })
}
