//! Extracts headings, links and block boundaries from a document's Markdown, with their lines.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::budget::{Budget, TooSlowError};

/// A heading of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heading {
    pub level: HeadingLevel,
    pub text: String,
    /// The line of the body, from 0.
    pub line: usize,
}

/// A parsed body.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    pub headings: Vec<Heading>,
    /// The text of the first paragraph outside of lists, quotes and tables.
    pub first_paragraph: Option<String>,
    /// Targets of links, as written.
    pub links: Vec<String>,
    /// Set for each line of the body at which a chunk may begin without cutting a block in two.
    pub boundaries: Vec<bool>,
    /// Set for each line of the body at which a heading begins.
    heading_lines: Vec<bool>,
}

impl Markdown {
    /// Returns `true` if a heading begins on this line of the body.
    pub fn is_heading(&self, line: usize) -> bool {
        self.heading_lines.get(line).copied().unwrap_or(false)
    }
}

/// The number of bytes of a heading or paragraph after which no more text is added.
const MAX_TEXT_BYTES: usize = 2000;
/// The maximum number of links.
const MAX_LINKS: usize = 500;
/// The maximum of [`total_nesting`]. The parser takes about a nanosecond for each unit.
const MAX_NESTING: usize = 50_000_000;

/// Parses a body.
///
/// # Errors
/// Fails if the budget is used up, or if the nesting is so deep that the parser would use it up.
pub(super) fn parse(body: &str, budget: &mut Budget) -> Result<Markdown, TooSlowError> {
    // The parser parses all blocks before its first event, so counting events does not limit it.
    if total_nesting(body, budget)? > MAX_NESTING {
        return Err(TooSlowError);
    }
    let starts: Vec<usize> =
        std::iter::once(0).chain(body.match_indices('\n').map(|(position, _)| position + 1)).collect();
    let line_of = |offset: usize| starts.partition_point(|start| *start <= offset).saturating_sub(1);
    let mut out = Markdown {
        boundaries: vec![true; starts.len()],
        heading_lines: vec![false; starts.len()],
        ..Markdown::default()
    };
    let mut depth = 0_usize;
    let mut heading: Option<Heading> = None;
    let mut paragraph: Option<String> = None;
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    for (event, range) in Parser::new_ext(body, options).into_offset_iter() {
        budget.step()?;
        match &event {
            Event::Start(tag) => {
                // At this depth there are only blocks, whose lines must stay together.
                if depth == 0 {
                    let last = line_of(range.end.saturating_sub(1).max(range.start));
                    for is_boundary in out.boundaries.iter_mut().take(last + 1).skip(line_of(range.start) + 1) {
                        budget.step()?;
                        *is_boundary = false;
                    }
                }
                match tag {
                    Tag::Heading { level, .. } if depth == 0 => {
                        let line = line_of(range.start);
                        if let Some(is_heading) = out.heading_lines.get_mut(line) {
                            *is_heading = true;
                        }
                        heading = Some(Heading { level: *level, text: String::new(), line });
                    }
                    Tag::Paragraph if depth == 0 && out.first_paragraph.is_none() => paragraph = Some(String::new()),
                    Tag::Link { dest_url, .. } if out.links.len() < MAX_LINKS => out.links.push(dest_url.to_string()),
                    _ => {}
                }
                depth += 1;
            }
            Event::End(tag) => {
                depth = depth.saturating_sub(1);
                match tag {
                    TagEnd::Heading(_) => out.headings.extend(heading.take()),
                    TagEnd::Paragraph if depth == 0 => {
                        let text = paragraph.take().filter(|text| !text.trim().is_empty());
                        out.first_paragraph = out.first_paragraph.take().or(text);
                    }
                    _ => {}
                }
            }
            Event::Text(text) | Event::Code(text) => {
                let target_text = heading.as_mut().map(|heading| &mut heading.text).or(paragraph.as_mut());
                if let Some(target_text) = target_text.filter(|target_text| target_text.len() < MAX_TEXT_BYTES) {
                    target_text.push_str(text);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some(target_text) = heading.as_mut().map(|heading| &mut heading.text).or(paragraph.as_mut()) {
                    target_text.push(' ');
                }
            }
            _ => {}
        }
    }
    Ok(out)
}

/// Returns the sum over all lines of the lists, quotes and footnotes that may be open there, because the parser
/// examines all of them on each line.
fn total_nesting(body: &str, budget: &mut Budget) -> Result<usize, TooSlowError> {
    let (mut deepest, mut sum) = (0_usize, 0_usize);
    for line in body.lines() {
        budget.step()?;
        let (indent, markers) = count_containers(line);
        // Indentation keeps containers open, and only markers open more. Each list needs two columns.
        deepest = deepest.max(deepest.min(indent / 2) + markers);
        sum = sum.saturating_add(deepest);
    }
    Ok(sum)
}

/// Returns the columns of white space before and between the markers of containers that a line begins with, and the
/// number of these markers.
fn count_containers(line: &str) -> (usize, usize) {
    let (mut indent, mut markers, mut rest) = (0, 0, line);
    loop {
        let trimmed = rest.trim_start_matches([' ', '\t']);
        let (blanks, _) = rest.split_at(rest.len() - trimmed.len());
        indent += blanks.len() + 3 * blanks.matches('\t').count();
        let Some(len) = marker_length(trimmed) else { return (indent, markers) };
        markers += 1;
        rest = trimmed.get(len..).unwrap_or_default();
    }
}

/// Returns the length of the marker of a quote, a list item or a footnote at the beginning of a text.
fn marker_length(text: &str) -> Option<usize> {
    let ends = |len: usize| text.get(len..).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
    match text.bytes().next()? {
        b'>' => Some(1),
        b'-' | b'+' | b'*' => ends(1).then_some(1),
        b'0'..=b'9' => {
            let digits = text.bytes().take(10).take_while(u8::is_ascii_digit).count();
            (text.get(digits..)?.starts_with(['.', ')']) && ends(digits + 1)).then_some(digits + 1)
        }
        b'[' => {
            let mut escaped = false;
            let (position, _) = text.strip_prefix("[^")?.char_indices().find(|(_, c)| {
                let ends = !escaped && matches!(c, '[' | ']');
                escaped = !escaped && *c == '\\';
                ends
            })?;
            text.get(position + 2..)?.starts_with("]:").then_some(position + 4)
        }
        _ => None,
    }
}
