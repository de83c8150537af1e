//! Takes text apart into what is indexed and asked for. Identifiers are found as a whole and by their parts, and scripts that
//! write no spaces by pairs of their characters.

use std::collections::HashSet;

/// Terms of one query.
pub(super) const MAX_TERMS: usize = 24;
/// Bytes of a query that are looked at.
const MAX_QUERY: usize = 16 << 10;
/// Characters of a term.
const MAX_TERM: usize = 64;

/// Words of questions that say nothing about what is looked for; of English, since most documents are.
const STOP: [&str; 72] = [
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by",
    "can", "could", "did", "do", "does", "for", "from", "had", "has", "have", "how", "i", "if", "in", "into", "is",
    "it", "its", "me", "my", "no", "not", "of", "on", "or", "our", "should", "so", "some", "such", "than", "that",
    "the", "their", "them", "then", "there", "these", "they", "this", "to", "was", "we", "were", "what", "when",
    "where", "which", "who", "why", "will", "with", "would", "you", "your", "s",
];

/// Whether a script is written without spaces: its characters are indexed in pairs.
fn is_dense(c: char) -> bool {
    matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x2E80..=0x30FF | 0x3130..=0x318F
        | 0x31F0..=0x9FFF | 0xA960..=0xA97F | 0xAC00..=0xD7FF | 0xF900..=0xFAFF | 0x20000..=0x3FFFF)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() && !is_dense(c)
}

/// Calls `each` with every term of the text: words, the parts of those that are put together, and pairs.
fn terms<'a>(text: &'a str, mut each: impl FnMut(&'a str)) {
    let mut word: Option<usize> = None;
    let mut dense: Option<(usize, usize)> = None;
    for (at, c) in text.char_indices().chain(std::iter::once((text.len(), ' '))) {
        if is_word(c) {
            word.get_or_insert(at);
        } else if let Some(start) = word.take() {
            let whole = text.get(start..at).unwrap_or_default();
            each(whole);
            parts(whole, &mut each);
        }
        if is_dense(c) && c.is_alphanumeric() {
            let end = at + c.len_utf8();
            if let Some((before, _)) = dense {
                each(text.get(before..end).unwrap_or_default());
            }
            dense = Some((at, end));
        } else if let Some((start, end)) = dense.take() {
            // One that stands alone has no pair.
            let alone = text.get(..start).is_none_or(|before| !before.ends_with(is_dense));
            if alone {
                each(text.get(start..end).unwrap_or_default());
            }
        }
    }
}

/// The parts of `maxInFlight`, `HTTPServer` and `utf8`; none of a word that has one only.
fn parts<'a>(word: &'a str, each: &mut impl FnMut(&'a str)) {
    if word.len() < 3 || word.bytes().skip(1).all(|byte| byte.is_ascii_lowercase()) {
        return;
    }
    let mut cuts = vec![0];
    let characters: Vec<(usize, char)> = word.char_indices().collect();
    for (index, pair) in characters.windows(2).enumerate() {
        let [(_, before), (at, here)] = pair else { continue };
        let next = characters.get(index + 2).map(|(_, c)| *c);
        let rises = before.is_lowercase() && here.is_uppercase();
        let ends_acronym = before.is_uppercase() && here.is_uppercase() && next.is_some_and(char::is_lowercase);
        let number = before.is_numeric() != here.is_numeric();
        if rises || ends_acronym || number {
            cuts.push(*at);
        }
    }
    if cuts.len() < 2 {
        return;
    }
    cuts.push(word.len());
    for pair in cuts.windows(2) {
        if let [from, to] = pair {
            each(word.get(*from..*to).unwrap_or_default());
        }
    }
}

/// The text as it is indexed: its terms with spaces between them.
pub(super) fn indexed(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    terms(text, |term| {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(term);
    });
    out
}

/// What a query asks for: each term once, in lower case, without words that say nothing unless there are no others.
pub(super) fn asked(query: &str) -> Vec<String> {
    let end = query.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_QUERY).last().unwrap_or(0);
    let query = if query.len() > MAX_QUERY { query.get(..end).unwrap_or_default() } else { query };
    let mut seen = HashSet::new();
    let mut all: Vec<String> = Vec::new();
    terms(query, |term| {
        let term: String = term.chars().take(MAX_TERM).flat_map(char::to_lowercase).collect();
        if seen.insert(term.clone()) {
            all.push(term);
        }
    });
    let telling: Vec<String> = all.iter().filter(|term| !STOP.contains(&term.as_str())).cloned().collect();
    let mut chosen = if telling.is_empty() { all } else { telling };
    chosen.truncate(MAX_TERMS);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_whole_and_in_parts() {
        assert_eq!(indexed("maxInFlight"), "maxInFlight max In Flight");
        assert_eq!(indexed("foo_bar --dry-run a.b.c"), "foo bar dry run a b c");
        assert_eq!(indexed("HTTPServer2"), "HTTPServer2 HTTP Server 2");
        assert_eq!(indexed("Plain words, Only."), "Plain words Only");
        assert_eq!(indexed("E_CONN"), "E CONN");
    }

    #[test]
    fn scripts_without_spaces_are_in_pairs() {
        assert_eq!(indexed("数据库连接"), "数据 据库 库连 连接");
        assert_eq!(indexed("池 pool"), "池 pool");
        assert_eq!(indexed("データ"), "デー ータ");
        assert_eq!(indexed("соединение закрыто"), "соединение закрыто");
    }

    #[test]
    fn a_query_is_its_telling_words() {
        assert_eq!(asked("How do I close the pool?"), ["close", "pool"]);
        assert_eq!(asked("the who"), ["the", "who"]);
        assert_eq!(asked("\" OR NEAR( * : ^ \0"), ["or", "near"].map(str::to_owned)[1..]);
        assert_eq!(asked("pool Pool POOL"), ["pool"]);
        assert!(asked("").is_empty() && asked("?!").is_empty());
        assert_eq!(asked(&"word".repeat(100_000)).len(), 1);
        let many: String = (0..5000).map(|at| format!("w{at}x ")).collect();
        assert_eq!(asked(&many).len(), MAX_TERMS);
        asked(&"é".repeat(20_000));
    }
}
