//! Removes false citations from an answer: numbers of passages that do not exist, and addresses that no passage names.
//! An address is a URL, a host with a path, or a mail address.
//!
//! The Markdown of the answer is parsed, because an address can be written in many ways. Removing an address may form
//! another one, so the answer is cleaned until nothing changes.

use std::{borrow::Cow, collections::HashSet, ops::Range, sync::LazyLock};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};
use regex::Regex;

use super::prompt_text;
use crate::model::Hit;

/// The maximum number of times that an answer is cleaned. An answer without false citations takes one round.
const MAX_ROUNDS: usize = 8;
/// The maximum number of bytes of a list of passage numbers.
const MAX_CITATION_LIST_BYTES: usize = 200;
/// The text that replaces an address.
const ADDRESS_PLACEHOLDER: &str = "(address left out)";
/// Characters after an address that are not part of it.
const TRAILING_PUNCTUATION: &[char] =
    &['.', ',', ';', ':', '!', '?', '"', '\'', ')', ']', '}', '*', '_', '~', '|', '\\', '/'];

/// Returns the answer without numbers of passages that do not exist, addresses that no passage names, and raw HTML;
/// `None` if it is not clean after [`MAX_ROUNDS`].
pub(super) fn sanitize(answer: &str, sources: &[Hit]) -> Option<String> {
    let known_addresses = KnownAddresses::new(sources, PATTERNS.as_ref()?);
    let mut text = answer.trim().to_owned();
    for _ in 0..MAX_ROUNDS {
        // Clients parse Markdown with or without extensions, so the answer is cleaned in both ways.
        let gfm_cleaned = clean_once(&text, &known_addresses, gfm_options());
        let cleaned = clean_once(&gfm_cleaned, &known_addresses, Options::empty());
        let next = remove_unknown_numbers(&cleaned, sources.len());
        if next == text {
            return Some(text);
        }
        text = next;
    }
    None
}

fn gfm_options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH
}

/// Removes `[7]` if there are fewer passages, and the invalid numbers of `[1, 7]`.
fn remove_unknown_numbers(answer: &str, count: usize) -> String {
    let mut out = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some(start) = rest.find('[') {
        let (before, tail) = rest.split_at(start);
        out.push_str(before);
        let end = tail.bytes().take(MAX_CITATION_LIST_BYTES).position(|byte| byte == b']');
        let inner = end.and_then(|end| tail.get(1..end));
        let parse_numbers = |inner: &str| {
            inner.split([',', ';']).map(|number| number.trim().parse().ok()).collect::<Option<Vec<u64>>>()
        };
        match inner.and_then(|inner| Some((inner, parse_numbers(inner)?))) {
            Some((inner, cited)) => {
                let valid: Vec<String> =
                    cited.iter().filter(|number| (1..=count as u64).contains(number)).map(u64::to_string).collect();
                if valid.is_empty() {
                    // The space before the citation is removed, too.
                    out.truncate(out.trim_end_matches(' ').len());
                } else {
                    out.push_str(&format!("[{}]", valid.join(", ")));
                }
                rest = tail.get(inner.len() + 2..).unwrap_or_default();
            }
            None => {
                out.push('[');
                rest = tail.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

/// The addresses that the passages name, in the form of [`normalize_address`].
struct KnownAddresses<'a> {
    keys: HashSet<String>,
    patterns: &'a Patterns,
}

impl<'a> KnownAddresses<'a> {
    fn new(sources: &[Hit], patterns: &'a Patterns) -> Self {
        let mut all = HashSet::new();
        for source in sources {
            all.insert(normalize_address(&source.path));
            let text = prompt_text(source);
            all.extend(
                patterns.addresses(&text, true).map(|range| normalize_address(text.get(range).unwrap_or_default())),
            );
            for event in Parser::new_ext(&text, gfm_options()) {
                if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
                    all.insert(normalize_address(&dest_url));
                }
            }
        }
        all.remove(&normalize_address(""));
        Self { keys: all, patterns }
    }

    fn contains(&self, address: &str) -> bool {
        self.keys.contains(&normalize_address(address))
    }

    /// Returns the ranges of the addresses in a plain text that no passage names.
    fn unknown_addresses(&self, text: &str, is_prose: bool) -> Vec<Range<usize>> {
        let is_unknown = |range: &Range<usize>| text.get(range.clone()).is_some_and(|address| !self.contains(address));
        self.patterns.addresses(text, is_prose).filter(is_unknown).collect()
    }
}

/// Returns an address in the form for comparisons, with scheme and host in lower case. The schemes of the web and of
/// mail are removed.
fn normalize_address(address: &str) -> String {
    let address = address.trim().trim_end_matches(TRAILING_PUNCTUATION);
    let is_scheme = |scheme: &str| scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let (scheme, rest) = address.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", address));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let scheme = scheme.to_ascii_lowercase();
    let scheme = if matches!(scheme.as_str(), "http" | "https" | "mailto") { "" } else { scheme.as_str() };
    format!("{scheme}|{}|{path}", host.to_lowercase())
}

/// Regular expressions for addresses in plain text. The group that matches is the address.
struct Patterns {
    anywhere: Regex,
    /// Addresses in prose that mean something else in code: a host after two slashes, or one with a path.
    prose: Regex,
}

static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
    let anywhere = r#"(?xi)
        # A scheme with two slashes or backslashes.
        ( [a-z][a-z0-9+.-]* : [/\\]{2} [^\s<>"`]+ )
        # A scheme without slashes.
        | (?: ^ | [^a-z0-9] ) ( (?: mailto|xmpp|tel|sms|sips?|javascript|vbscript|data|blob|magnet|intent|https?|ftp|wss? )
            : [^\s<>"`]+ )
        | (?: ^ | [^a-z0-9] ) ( file : [/\\] [^\s<>"`]+ )
        | (?: ^ | [^a-z0-9] ) ( www \. [^\s<>"`.] [^\s<>"`]* )
        | ( [a-z0-9._%+-]+ @ [a-z0-9-]+ (?: \. [a-z0-9-]+ )+ )"#;
    let prose = r#"(?xi)
        (?: ^ | [^a-z0-9:/\\] ) ( / [/\\] [\p{Alphabetic}0-9\[] [^\s<>"`]* )
        | (?: ^ | [^a-z0-9./\\@_-] ) ( [a-z0-9-]+ (?: \. [a-z0-9-]+ )* \. [a-z]{2,24} (?: : [0-9]+ )?
            (?: / [^\s<>"`]* | \? [a-z0-9] [^\s<>"`]* ) )"#;
    Some(Patterns { anywhere: Regex::new(anywhere).ok()?, prose: Regex::new(prose).ok()? })
});

impl Patterns {
    /// Returns the ranges of all addresses in a plain text.
    fn addresses<'a>(&'a self, text: &'a str, is_prose: bool) -> impl Iterator<Item = Range<usize>> + 'a {
        let in_prose = is_prose.then(|| self.prose.captures_iter(text)).into_iter().flatten();
        self.anywhere.captures_iter(text).chain(in_prose).filter_map(|captures| {
            let found = captures.iter().skip(1).flatten().next()?;
            let address = found.as_str().trim_end_matches(TRAILING_PUNCTUATION);
            (!address.is_empty()).then(|| found.start()..found.start() + address.len())
        })
    }
}

/// The replacement of a part of the answer.
struct Edit {
    range: Range<usize>,
    text: &'static str,
}

/// An open link or image, with the range of its content.
struct OpenLink {
    range: Range<usize>,
    inner: Option<Range<usize>>,
    is_known: bool,
}

/// A piece of text as it is displayed, which may be written differently in the source.
struct DisplayedText<'a> {
    text: Cow<'a, str>,
    range: Range<usize>,
}

/// Cleans the answer once.
fn clean_once(answer: &str, known_addresses: &KnownAddresses<'_>, options: Options) -> String {
    let mut edits: Vec<Edit> = Vec::new();
    let mut open_links: Vec<OpenLink> = Vec::new();
    let mut pieces_of_text: Vec<DisplayedText<'_>> = Vec::new();
    let mut code_ranges: Vec<Range<usize>> = Vec::new();
    let parser = Parser::new_ext(answer, options);
    for (_, definition) in parser.reference_definitions().iter() {
        let title = definition.title.as_deref().unwrap_or_default();
        if !known_addresses.contains(&definition.dest) || !known_addresses.unknown_addresses(title, true).is_empty() {
            edits.push(Edit { range: definition.span.clone(), text: "" });
        }
    }
    for (event, range) in parser.into_offset_iter() {
        if !matches!(event, Event::End(_))
            && let Some(link) = open_links.last_mut()
        {
            let inner = link.inner.get_or_insert(range.clone());
            *inner = inner.start.min(range.start)..inner.end.max(range.end);
        }
        if !matches!(event, Event::Text(_)) {
            edit_out_unknown_addresses(
                &mut pieces_of_text,
                known_addresses,
                !matches!(event, Event::End(TagEnd::CodeBlock)),
                &mut edits,
            );
        }
        match event {
            Event::Text(text) => pieces_of_text.push(DisplayedText { text: text.into_string().into(), range }),
            Event::Code(_) | Event::Start(Tag::CodeBlock(_)) => code_ranges.push(range),
            Event::Html(_) | Event::InlineHtml(_) => edits.push(Edit { range, text: "" }),
            Event::Start(
                Tag::Link { link_type, dest_url, title, .. } | Tag::Image { link_type, dest_url, title, .. },
            ) => {
                let is_known =
                    known_addresses.contains(&dest_url) && known_addresses.unknown_addresses(&title, true).is_empty();
                if !is_known && matches!(link_type, LinkType::Autolink | LinkType::Email) {
                    edits.push(Edit { range: range.clone(), text: ADDRESS_PLACEHOLDER });
                }
                open_links.push(OpenLink { range, inner: None, is_known });
            }
            Event::End(TagEnd::Link | TagEnd::Image) => {
                if let Some(OpenLink { range, inner, is_known: false }) = open_links.pop() {
                    // The text of the link stays.
                    let inner = inner.unwrap_or(range.end..range.end);
                    edits.push(Edit { range: range.start..inner.start, text: "" });
                    edits.push(Edit { range: inner.end..range.end, text: "" });
                }
            }
            _ => {}
        }
    }
    edit_out_unknown_addresses(&mut pieces_of_text, known_addresses, true, &mut edits);
    // This covers parts that are not displayed, such as the info string of a code block.
    let is_code = |offset: usize| {
        let before = code_ranges.partition_point(|range| range.start <= offset);
        before.checked_sub(1).and_then(|last| code_ranges.get(last)).is_some_and(|range| range.contains(&offset))
    };
    let prose = known_addresses.unknown_addresses(answer, true).into_iter().filter(|range| !is_code(range.start));
    for range in known_addresses.unknown_addresses(answer, false).into_iter().chain(prose) {
        edits.push(Edit { range, text: ADDRESS_PLACEHOLDER });
    }
    apply_edits(answer, edits)
}

/// Adds an edit for each unknown address of the displayed text, and clears the pieces. In the displayed text, entities
/// and escapes are resolved, and adjacent pieces are joined.
fn edit_out_unknown_addresses(
    pieces_of_text: &mut Vec<DisplayedText<'_>>,
    known_addresses: &KnownAddresses<'_>,
    is_prose: bool,
    edits: &mut Vec<Edit>,
) {
    let pieces = std::mem::take(pieces_of_text);
    let whole: String = pieces.iter().map(|piece| &*piece.text).collect();
    for found in known_addresses.unknown_addresses(&whole, is_prose) {
        // The pieces that contain the address, from the first to the last.
        let mut offset = 0;
        let mut range: Option<Range<usize>> = None;
        for piece in &pieces {
            let piece_range = offset..offset + piece.text.len();
            offset = piece_range.end;
            if piece_range.end <= found.start || piece_range.start >= found.end {
                continue;
            }
            // A piece that is displayed as written has the same offsets.
            let is_verbatim = piece.range.len() == piece.text.len();
            let start = if is_verbatim { found.start.saturating_sub(piece_range.start) } else { 0 };
            let end = if is_verbatim { found.end.min(piece_range.end) - piece_range.start } else { piece.range.len() };
            let part = piece.range.start + start..piece.range.start + end;
            range = Some(range.map_or(part.clone(), |range| range.start..part.end));
        }
        edits.extend(range.map(|range| Edit { range, text: ADDRESS_PLACEHOLDER }));
    }
}

/// Applies the edits to the text. Of overlapping edits, only the first is applied.
fn apply_edits(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    let mut out = String::with_capacity(text.len());
    let mut offset = 0;
    for Edit { range, text: replacement } in edits {
        if range.start < offset {
            continue;
        }
        out.push_str(text.get(offset..range.start).unwrap_or_default());
        out.push_str(replacement);
        offset = range.end;
    }
    out.push_str(text.get(offset..).unwrap_or_default());
    out.trim().to_owned()
}
