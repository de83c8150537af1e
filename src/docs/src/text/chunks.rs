//! Cuts a document into chunks, and chunks into passages. Every non-blank line of the body is in exactly one chunk and
//! in one passage of this chunk, in order.

use super::{
    budget::{Budget, TooSlow},
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
pub(super) fn chunks(
    lines: &[&str],
    line_offset: usize,
    markdown: &Markdown,
    budget: &mut Budget,
) -> Result<Vec<Chunk>, TooSlow> {
    let mut sections = if line_offset + lines.len() <= MAX_UNCUT_LINES {
        vec![Section { path: String::new(), from: 0, to: lines.len() }]
    } else {
        sections(lines.len(), &markdown.headings)
    };
    if sections.iter().any(|section| section.to - section.from > MAX_SECTION_LINES) {
        let mut cut = Vec::new();
        for section in sections {
            cut.extend(section.cut(lines, &markdown.boundaries, budget)?);
        }
        sections = cut;
    }
    let mut all = Vec::new();
    for section in &sections {
        all.extend(section.chunk(lines, line_offset, markdown, budget)?);
    }
    Ok(all)
}

/// A range of lines of the body, counted from 0 and without `to`.
struct Section {
    path: String,
    from: usize,
    to: usize,
}

fn sections(lines: usize, headings: &[Heading]) -> Vec<Section> {
    let mut all = Vec::new();
    let (mut parent, mut path, mut from) = (String::new(), String::new(), 0);
    for heading in headings.iter().filter(|heading| matches!(heading.level, 2 | 3)) {
        all.push(Section { path: std::mem::take(&mut path), from, to: heading.line });
        from = heading.line;
        if heading.level == 2 {
            parent = format!("## {}", heading.text.trim());
            path.clone_from(&parent);
        } else {
            let own = format!("### {}", heading.text.trim());
            path = if parent.is_empty() { own } else { format!("{parent} > {own}") };
        }
    }
    all.push(Section { path, from, to: lines });
    all
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

impl Section {
    /// Cuts a long section where a block begins: at the last such line up to the limit, or else at the first one after it.
    fn cut(self, lines: &[&str], boundaries: &[bool], budget: &mut Budget) -> Result<Vec<Self>, TooSlow> {
        let mut all = Vec::new();
        let mut from = self.from;
        while self.to - from > MAX_SECTION_LINES {
            let end = from + MAX_SECTION_LINES;
            let mut found = None;
            for line in (from + 1..=end).rev().chain(end + 1..self.to) {
                budget.step()?;
                let is_boundary = boundaries.get(line).copied().unwrap_or(true);
                if is_boundary && lines.get(line - 1).is_some_and(|line| is_blank(line)) {
                    found = Some(line);
                    break;
                }
            }
            let Some(line_index) = found else { break };
            all.push(Self { path: self.path.clone(), from, to: line_index });
            from = line_index;
        }
        all.push(Self { path: self.path, from, to: self.to });
        Ok(all)
    }

    fn chunk(
        &self,
        lines: &[&str],
        line_offset: usize,
        markdown: &Markdown,
        budget: &mut Budget,
    ) -> Result<Option<Chunk>, TooSlow> {
        let passages = self.passages(lines, line_offset, markdown, budget)?;
        let (Some(first), Some(last)) = (passages.first(), passages.last()) else { return Ok(None) };
        // A heading with nothing below it is dropped.
        let has_content = (self.from..self.to).any(|line_index| {
            !markdown.is_heading(line_index) && lines.get(line_index).is_some_and(|line| !is_blank(line))
        });
        let (first_line, last_line) = (first.first_line, last.last_line);
        let header_path = self.path.clone();
        Ok((has_content || self.path.is_empty()).then_some(Chunk { header_path, first_line, last_line, passages }))
    }

    fn passages(
        &self,
        lines: &[&str],
        line_offset: usize,
        markdown: &Markdown,
        budget: &mut Budget,
    ) -> Result<Vec<Passage>, TooSlow> {
        let mut all = Vec::new();
        let mut from = self.from;
        let mut size = 0;
        for line_index in self.from..self.to {
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
                line_index > from && markdown.is_heading(line_index - 1) && size < MIN_FULL_PASSAGE_BYTES;
            if is_full && !follows_heading && line_index > from {
                all.extend(passage(lines, from, line_index, line_offset));
                from = line_index;
                size = 0;
            }
            size += line.len() + 1;
        }
        all.extend(passage(lines, from, self.to, line_offset));
        Ok(all)
    }
}

/// Returns the lines without blank lines at both ends, or `None` if all are blank.
fn passage(lines: &[&str], from: usize, to: usize, line_offset: usize) -> Option<Passage> {
    let has_text = |line_index: &usize| lines.get(*line_index).is_some_and(|line| !is_blank(line));
    let first = (from..to).find(has_text)?;
    let last = (from..to).rev().find(has_text)?;
    let text = lines.get(first..=last)?.join("\n");
    let number = |line_index: usize| u32::try_from(line_offset + line_index + 1).unwrap_or(u32::MAX);
    Some(Passage { first_line: number(first), last_line: number(last), text })
}
