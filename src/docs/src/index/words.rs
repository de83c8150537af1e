//! Splits text and queries into terms. Identifiers are found as a whole and by their parts, and scripts without spaces
//! by pairs of characters.

use std::collections::HashSet;

/// The maximum number of terms of one query.
pub(super) const MAX_QUERY_TERMS: usize = 24;
/// The maximum number of bytes of a query that are read.
const MAX_QUERY_BYTES: usize = 16 << 10;

/// Words that say nothing about the topic of a question. Most documents are in English, so the words are, too.
const STOP_WORDS: [&str; 72] = [
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by",
    "can", "could", "did", "do", "does", "for", "from", "had", "has", "have", "how", "i", "if", "in", "into", "is",
    "it", "its", "me", "my", "no", "not", "of", "on", "or", "our", "should", "so", "some", "such", "than", "that",
    "the", "their", "them", "then", "there", "these", "they", "this", "to", "was", "we", "were", "what", "when",
    "where", "which", "who", "why", "will", "with", "would", "you", "your", "s",
];

/// Returns `true` for a character of a script without spaces, which is indexed in pairs of characters.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x2E80..=0x30FF | 0x3130..=0x318F
        | 0x31F0..=0x9FFF | 0xA960..=0xA97F | 0xAC00..=0xD7FF | 0xF900..=0xFAFF | 0x20000..=0x3FFFF)
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() && !is_unspaced(c)
}

/// Splits a text into its terms: words, parts of compound words, and pairs.
fn split_into_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut word: Option<usize> = None;
    let mut unspaced: Option<(usize, usize)> = None;
    for (offset, c) in text.char_indices().chain(std::iter::once((text.len(), ' '))) {
        if is_word_char(c) {
            word.get_or_insert(offset);
        } else if let Some(start) = word.take() {
            let whole = text.get(start..offset).unwrap_or_default();
            terms.push(whole);
            push_parts(whole, &mut terms);
        }
        if is_unspaced(c) && c.is_alphanumeric() {
            let end = offset + c.len_utf8();
            if let Some((before, _)) = unspaced {
                terms.push(text.get(before..end).unwrap_or_default());
            }
            unspaced = Some((offset, end));
        } else if let Some((start, end)) = unspaced.take() {
            // A character that stands alone forms no pair.
            let is_alone = text.get(..start).is_none_or(|before| !before.ends_with(is_unspaced));
            if is_alone {
                terms.push(text.get(start..end).unwrap_or_default());
            }
        }
    }
    terms
}

/// Adds the parts of compounds like `maxInFlight`, `HTTPServer` and `utf8`, unless there is only one part.
fn push_parts<'a>(word: &'a str, terms: &mut Vec<&'a str>) {
    if word.len() < 3 || word.bytes().skip(1).all(|byte| byte.is_ascii_lowercase()) {
        return;
    }
    let mut cuts = vec![0];
    let characters: Vec<(usize, char)> = word.char_indices().collect();
    for (index, pair) in characters.windows(2).enumerate() {
        let [(_, before), (offset, here)] = pair else { continue };
        let next = characters.get(index + 2).map(|(_, c)| *c);
        let starts_capitalized = before.is_lowercase() && here.is_uppercase();
        let ends_acronym = before.is_uppercase() && here.is_uppercase() && next.is_some_and(char::is_lowercase);
        let starts_or_ends_number = before.is_numeric() != here.is_numeric();
        if starts_capitalized || ends_acronym || starts_or_ends_number {
            cuts.push(*offset);
        }
    }
    if cuts.len() < 2 {
        return;
    }
    cuts.push(word.len());
    for pair in cuts.windows(2) {
        if let [start, end] = pair {
            terms.push(word.get(*start..*end).unwrap_or_default());
        }
    }
}

/// Returns the text for the index: its terms, separated by spaces.
pub(super) fn index_text(text: &str) -> String {
    split_into_terms(text).join(" ")
}

/// Returns the terms of a query: each once, in lower case, and without stop words unless there are no others.
pub(super) fn query_terms(query: &str) -> Vec<String> {
    let query = query.get(..query.floor_char_boundary(MAX_QUERY_BYTES)).unwrap_or_default();
    let mut seen = HashSet::new();
    let mut all: Vec<String> = Vec::new();
    for term in split_into_terms(query) {
        let term: String = term.chars().flat_map(char::to_lowercase).collect();
        if seen.insert(term.clone()) {
            all.push(term);
        }
    }
    let meaningful: Vec<String> = all.iter().filter(|term| !STOP_WORDS.contains(&term.as_str())).cloned().collect();
    let mut terms = if meaningful.is_empty() { all } else { meaningful };
    terms.truncate(MAX_QUERY_TERMS);
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_indexed_whole_and_in_parts() {
        assert_eq!(index_text("maxInFlight"), "maxInFlight max In Flight");
        assert_eq!(index_text("foo_bar --dry-run a.b.c"), "foo bar dry run a b c");
        assert_eq!(index_text("HTTPServer2"), "HTTPServer2 HTTP Server 2");
        assert_eq!(index_text("Plain words, Only."), "Plain words Only");
        assert_eq!(index_text("E_CONN"), "E CONN");
    }

    #[test]
    fn scripts_without_spaces_are_indexed_in_pairs() {
        assert_eq!(index_text("数据库连接"), "数据 据库 库连 连接");
        assert_eq!(index_text("池 pool"), "池 pool");
        assert_eq!(index_text("データ"), "デー ータ");
        assert_eq!(index_text("соединение закрыто"), "соединение закрыто");
    }

    #[test]
    fn long_word_is_the_same_term_in_index_and_query() {
        let word = "x".repeat(100);
        assert_eq!((index_text(&word), query_terms(&word)), (word.clone(), vec![word]));
    }

    #[test]
    fn query_drops_stop_words() {
        assert_eq!(query_terms("How do I close the pool?"), ["close", "pool"]);
        assert_eq!(query_terms("the who"), ["the", "who"]);
        assert_eq!(query_terms("\" OR NEAR( * : ^ \0"), ["or", "near"].map(str::to_owned)[1..]);
        assert_eq!(query_terms("pool Pool POOL"), ["pool"]);
        assert!(query_terms("").is_empty() && query_terms("?!").is_empty());
        assert_eq!(query_terms(&"word".repeat(100_000)).len(), 1);
        let many: String = (0..5000).map(|offset| format!("w{offset}x ")).collect();
        assert_eq!(query_terms(&many).len(), MAX_QUERY_TERMS);
        query_terms(&"é".repeat(20_000));
    }
}
