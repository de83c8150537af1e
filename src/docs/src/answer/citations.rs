//! An answer cites nothing that was not given to who wrote it: neither passages nor addresses.
//!
//! The Markdown of the answer is parsed, since an address can be written in many ways. What is taken out may leave something
//! that is an address now, so the answer is cleaned until nothing changes any more.

use std::{borrow::Cow, collections::HashSet, ops::Range, sync::LazyLock};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};
use regex::Regex;

use super::Source;

/// How often an answer is cleaned. An honest one takes two rounds, the second of which finds nothing.
const ROUNDS: usize = 8;
/// Bytes of a list of passages that is looked at.
const CITED: usize = 200;
/// What stands in the place of an address.
const LEFT_OUT: &str = "(address left out)";
/// What may stand behind an address and is no part of it.
const BEHIND: &[char] = &['.', ',', ';', ':', '!', '?', '"', '\'', ')', ']', '}', '*', '_', '~', '|', '\\', '/'];

/// Returns the answer without numbers of passages that there are none of, without addresses that no passage names, and
/// without raw HTML; `None` for one that is not clean after some rounds.
pub(super) fn kept(answer: &str, sources: &[Source]) -> Option<String> {
    let given = Given::new(sources, PATTERNS.as_ref()?);
    let mut text = answer.trim().to_owned();
    for _ in 0..ROUNDS {
        // As the clients of chats read it, and as those read it that know no extension.
        let once = cleaned(&text, &given, gfm());
        let twice = cleaned(&once, &given, Options::empty());
        let next = numbers(&twice, sources.len());
        if next == text {
            return Some(text);
        }
        text = next;
    }
    None
}

fn gfm() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH
}

/// Takes out `[7]` where there are fewer passages, and the numbers of `[1, 7]` that are none.
fn numbers(answer: &str, count: usize) -> String {
    let mut out = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some(start) = rest.find('[') {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let end = from.bytes().take(CITED).position(|byte| byte == b']');
        let inner = end.and_then(|end| from.get(1..end));
        let parsed = inner.and_then(|inner| {
            let numbers: Option<Vec<u64>> = inner.split([',', ';']).map(|number| number.trim().parse().ok()).collect();
            numbers
        });
        match (inner, parsed) {
            (Some(inner), Some(cited)) => {
                let valid: Vec<String> =
                    cited.iter().filter(|number| (1..=count as u64).contains(number)).map(u64::to_string).collect();
                if valid.is_empty() {
                    // Nor the space before it.
                    out.truncate(out.trim_end_matches(' ').len());
                } else {
                    out.push_str(&format!("[{}]", valid.join(", ")));
                }
                rest = from.get(inner.len() + 2..).unwrap_or_default();
            }
            _ => {
                out.push('[');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

/// The addresses that the passages name, as [`key`] writes them.
struct Given<'a> {
    keys: HashSet<String>,
    patterns: &'a Patterns,
}

impl<'a> Given<'a> {
    fn new(sources: &[Source], patterns: &'a Patterns) -> Self {
        let mut all = HashSet::new();
        for source in sources {
            all.insert(key(&source.hit.path));
            let text = source.given();
            all.extend(patterns.addresses(&text, true).map(|range| key(text.get(range).unwrap_or_default())));
            for event in Parser::new_ext(&text, gfm()) {
                if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
                    all.insert(key(&dest_url));
                }
            }
        }
        all.remove(&key(""));
        Self { keys: all, patterns }
    }

    fn has(&self, address: &str) -> bool {
        self.keys.contains(&key(address))
    }

    /// Where addresses stand in a plain text that no passage names.
    fn others(&self, text: &str, prose: bool) -> Vec<Range<usize>> {
        let is_other = |range: &Range<usize>| text.get(range.clone()).is_some_and(|address| !self.has(address));
        self.patterns.addresses(text, prose).filter(is_other).collect()
    }
}

/// An address as it is compared: without the scheme where that is one of the web or of mail, and with scheme and host in
/// lower case.
fn key(address: &str) -> String {
    let address = address.trim().trim_end_matches(BEHIND);
    let is_scheme = |scheme: &str| scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let (scheme, rest) = address.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", address));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let scheme = scheme.to_ascii_lowercase();
    let scheme = if matches!(scheme.as_str(), "http" | "https" | "mailto") { "" } else { scheme.as_str() };
    format!("{scheme}|{}|{path}", host.to_lowercase())
}

/// What is an address in plain text. The group that fits is the address.
struct Patterns {
    anywhere: Regex,
    /// What is one in prose and something else in code: a host behind two slashes, or one with a path.
    prose: Regex,
}

static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
    let anywhere = r#"(?xi)
        # A scheme with two slashes, however they lean.
        ( [a-z][a-z0-9+.-]* : [/\\]{2} [^\s<>"`]+ )
        # One that needs none.
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
    /// Where addresses stand in a plain text.
    fn addresses<'a>(&'a self, text: &'a str, prose: bool) -> impl Iterator<Item = Range<usize>> + 'a {
        let in_prose = prose.then(|| self.prose.captures_iter(text)).into_iter().flatten();
        self.anywhere.captures_iter(text).chain(in_prose).filter_map(|captures| {
            let found = captures.iter().skip(1).flatten().next()?;
            let address = found.as_str().trim_end_matches(BEHIND);
            (!address.is_empty()).then(|| found.start()..found.start() + address.len())
        })
    }
}

/// What is put in the place of a part of the answer.
struct Edit {
    range: Range<usize>,
    text: &'static str,
}

/// A link or an image that is open, and where what stands within it begins and ends.
struct Open {
    range: Range<usize>,
    inner: Option<Range<usize>>,
    is_given: bool,
}

/// A piece of text as it is read, which may be written otherwise.
struct Piece<'a> {
    text: Cow<'a, str>,
    range: Range<usize>,
}

/// One round over the answer.
fn cleaned(answer: &str, given: &Given<'_>, options: Options) -> String {
    let mut edits: Vec<Edit> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut run: Vec<Piece<'_>> = Vec::new();
    let mut code: Vec<Range<usize>> = Vec::new();
    let parser = Parser::new_ext(answer, options);
    for (_, definition) in parser.reference_definitions().iter() {
        let title = definition.title.as_deref().unwrap_or_default();
        if !given.has(&definition.dest) || !given.others(title, true).is_empty() {
            edits.push(Edit { range: definition.span.clone(), text: "" });
        }
    }
    for (event, range) in parser.into_offset_iter() {
        if !matches!(event, Event::End(_))
            && let Some(open) = open.last_mut()
        {
            let inner = open.inner.get_or_insert(range.clone());
            *inner = inner.start.min(range.start)..inner.end.max(range.end);
        }
        if !matches!(event, Event::Text(_)) {
            flush(&mut run, given, !matches!(event, Event::End(TagEnd::CodeBlock)), &mut edits);
        }
        match event {
            Event::Text(text) => run.push(Piece { text: text.into_string().into(), range }),
            Event::Code(_) | Event::Start(Tag::CodeBlock(_)) => code.push(range),
            Event::Html(_) | Event::InlineHtml(_) => edits.push(Edit { range, text: "" }),
            Event::Start(
                Tag::Link { link_type, dest_url, title, .. } | Tag::Image { link_type, dest_url, title, .. },
            ) => {
                let is_given = given.has(&dest_url) && given.others(&title, true).is_empty();
                if !is_given && matches!(link_type, LinkType::Autolink | LinkType::Email) {
                    edits.push(Edit { range: range.clone(), text: LEFT_OUT });
                }
                open.push(Open { range, inner: None, is_given });
            }
            Event::End(TagEnd::Link | TagEnd::Image) => {
                if let Some(Open { range, inner, is_given: false }) = open.pop() {
                    // Its text stays.
                    let inner = inner.unwrap_or(range.end..range.end);
                    edits.push(Edit { range: range.start..inner.start, text: "" });
                    edits.push(Edit { range: inner.end..range.end, text: "" });
                }
            }
            _ => {}
        }
    }
    flush(&mut run, given, true, &mut edits);
    // Also where nothing is read, such as behind the beginning of a block of code.
    let is_code = |at: usize| {
        let before = code.partition_point(|code| code.start <= at);
        before.checked_sub(1).and_then(|last| code.get(last)).is_some_and(|code| code.contains(&at))
    };
    let prose = given.others(answer, true).into_iter().filter(|range| !is_code(range.start));
    for range in given.others(answer, false).into_iter().chain(prose) {
        edits.push(Edit { range, text: LEFT_OUT });
    }
    edited(answer, edits)
}

/// Looks for addresses in text as it is read: entities and escapes are resolved, and pieces belong together.
fn flush(run: &mut Vec<Piece<'_>>, given: &Given<'_>, prose: bool, edits: &mut Vec<Edit>) {
    let pieces = std::mem::take(run);
    let whole: String = pieces.iter().map(|piece| &*piece.text).collect();
    for found in given.others(&whole, prose) {
        // The pieces that it stands in, from the first to the last.
        let mut at = 0;
        let mut range: Option<Range<usize>> = None;
        for piece in &pieces {
            let here = at..at + piece.text.len();
            at = here.end;
            if here.end <= found.start || here.start >= found.end {
                continue;
            }
            // A piece that is written as it is read has the same places.
            let is_verbatim = piece.range.len() == piece.text.len();
            let start = if is_verbatim { found.start.saturating_sub(here.start) } else { 0 };
            let end = if is_verbatim { found.end.min(here.end) - here.start } else { piece.range.len() };
            let part = piece.range.start + start..piece.range.start + end;
            range = Some(range.map_or(part.clone(), |range| range.start..part.end));
        }
        edits.extend(range.map(|range| Edit { range, text: LEFT_OUT }));
    }
}

/// The text with what was edited; of edits that overlap, the first is made.
fn edited(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for Edit { range, text: instead } in edits {
        if range.start < at {
            continue;
        }
        out.push_str(text.get(at..range.start).unwrap_or_default());
        out.push_str(instead);
        at = range.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out.trim().to_owned()
}
