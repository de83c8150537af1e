//! Splits texts into words for PostgreSQL as SQLite's `unicode61` does: letters and digits without case and marks.

use std::{fmt::Write as _, ops::Range};

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// The maximum number of characters of a word; the rest is ignored.
const MAX_WORD_CHARS: usize = 200;
/// The largest position of a word in PostgreSQL.
const MAX_POSITION: usize = 16_383;
/// The distance between two parts of an entry, so that their words are not adjacent.
const PART_GAP: usize = 2;
/// The number of words in a snippet, and of those before the first match.
const SNIPPET_WORDS: usize = 16;
const WORDS_BEFORE_MATCH: usize = 4;

/// Returns the words of a text with their ranges.
fn words(text: &str) -> impl Iterator<Item = (Range<usize>, String)> {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let part = |c: char| c.is_alphanumeric() || is_combining_mark(c);
        let start = rest + text.get(rest..)?.find(char::is_alphanumeric)?;
        let end = text[start..].find(|c| !part(c)).map_or(text.len(), |length| start + length);
        rest = end;
        Some((start..end, fold(&text[start..end])))
    })
}

fn fold(word: &str) -> String {
    let plain = word.nfd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase);
    // Lower-casing may add marks, and any other character would be syntax in a query.
    plain.filter(|c| c.is_alphanumeric()).take(MAX_WORD_CHARS).collect()
}

/// Returns a `tsvector` of PostgreSQL for parts with weights from A to D.
pub(super) fn vector(parts: &[(char, &str)]) -> String {
    let (mut out, mut position) = (String::new(), 0);
    for (weight, text) in parts {
        for (_, word) in words(text) {
            position += 1;
            if !word.is_empty() {
                let _ = write!(out, "'{word}':{}{weight} ", position.min(MAX_POSITION));
            }
        }
        position += PART_GAP;
    }
    out
}

/// The terms of a query. A term consists of adjacent words.
#[derive(Debug)]
pub(super) struct Terms {
    terms: Vec<Vec<String>>,
    /// Set if the last word may be the beginning of a longer word.
    ends_with_prefix: bool,
}

impl Terms {
    /// Parses the terms as they were typed; `None` if they have no word.
    pub fn parse(typed: &[&str]) -> Option<Self> {
        let fold_words = |term: &&str| words(term).map(|(_, word)| word).filter(|word| !word.is_empty()).collect();
        let terms: Vec<Vec<String>> =
            typed.iter().map(fold_words).filter(|words: &Vec<String>| !words.is_empty()).collect();
        // The prefix search of a single letter would match too many texts.
        let ends_with_prefix = typed.last()?.chars().count() > 1;
        (!terms.is_empty()).then_some(Self { terms, ends_with_prefix })
    }

    /// Returns the query in the syntax of PostgreSQL. All terms must occur if `match_all` is set, otherwise any of
    /// them.
    pub fn expression(&self, match_all: bool) -> String {
        let mut out = String::new();
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                out.push_str(if match_all { " & " } else { " | " });
            }
            out.push('(');
            for (position, word) in term.iter().enumerate() {
                out.push_str(if position > 0 { " <-> '" } else { "'" });
                out.push_str(word);
                out.push_str(if self.is_prefix(index, position) { "':*" } else { "'" });
            }
            out.push(')');
        }
        out
    }

    fn is_prefix(&self, term: usize, position: usize) -> bool {
        self.ends_with_prefix && term + 1 == self.terms.len() && position + 1 == self.terms[term].len()
    }

    /// Returns the number of words at the start that match a term.
    fn matched_words(&self, words: &[(Range<usize>, String)]) -> usize {
        let fits = |index: usize, term: &[String]| {
            term.iter().enumerate().all(|(position, term_word)| {
                words.get(position).is_some_and(|(_, word)| {
                    word == term_word || (self.is_prefix(index, position) && word.starts_with(term_word.as_str()))
                })
            })
        };
        let lengths =
            self.terms.iter().enumerate().filter(|(index, term)| fits(*index, term)).map(|(_, term)| term.len());
        lengths.max().unwrap_or(0)
    }

    /// Returns an excerpt of the part with the most matches, with the matches in brackets.
    pub fn snippet(&self, parts: &[&str]) -> String {
        let mut best: (usize, String) = (0, String::new());
        for text in parts {
            let all: Vec<(Range<usize>, String)> = words(text).collect();
            // For each word, the number of words of the match that begins there.
            let mut found = vec![0; all.len()];
            let mut index = 0;
            while index < all.len() {
                found[index] = self.matched_words(&all[index..]);
                index += found[index].max(1);
            }
            let hits =
                |from: usize| found[from..all.len().min(from + SNIPPET_WORDS)].iter().filter(|n| **n > 0).count();
            let from =
                (0..all.len()).filter(|index| found[*index] > 0).max_by_key(|index| (hits(*index), usize::MAX - index));
            if let Some(from) = from
                && hits(from) > best.0
            {
                best = (hits(from), excerpt(text, &all, &found, from.saturating_sub(WORDS_BEFORE_MATCH)));
            }
        }
        best.1
    }
}

fn excerpt(text: &str, words: &[(Range<usize>, String)], found: &[usize], from: usize) -> String {
    let to = words.len().min(from + SNIPPET_WORDS);
    let mut out = String::from(if from > 0 { "…" } else { "" });
    let mut index = from;
    let mut end = if from > 0 { words[from].0.start } else { 0 };
    while index < to {
        if found[index] > 0 {
            let last = words.len().min(index + found[index]) - 1;
            out.push_str(&text[end..words[index].0.start]);
            let _ = write!(out, "[{}]", &text[words[index].0.start..words[last].0.end]);
            end = words[last].0.end;
        }
        index += found[index].max(1);
    }
    if index < words.len() {
        let upto = words[index - 1].0.end;
        out.push_str(text.get(end..upto).unwrap_or_default());
        out.push('…');
    } else {
        out.push_str(&text[end..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn terms(query: &str) -> Terms {
        Terms::parse(&query.split_whitespace().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn text_is_split_into_words() {
        let all: Vec<String> = words("CORE-12: Ärger, naïve\u{301} x²!").map(|(_, word)| word).collect();
        assert_eq!(all, ["core", "12", "arger", "naive", "x²"]);
        assert_eq!(vector(&[('A', "C-1"), ('D', "a a")]), "'c':1A '1':2A 'a':5D 'a':6D ");
    }

    #[test]
    fn query_words_are_quoted() {
        assert_eq!(terms("log in").expression(true), "('log') & ('in':*)");
        assert_eq!(terms("core-12 x").expression(false), "('core' <-> '12') | ('x')");
        assert_eq!(terms("it's & (x | !y):*").expression(true), "('it' <-> 's') & ('x') & ('y':*)");
        assert!(Terms::parse(&["&|!"]).is_none());
    }

    #[test]
    fn snippet_brackets_matches() {
        assert_eq!(terms("core-1").snippet(&["CORE-12", "a title", ""]), "[CORE-12]");
        assert_eq!(terms("title").snippet(&["A-1", "The Title, twice: title."]), "The [Title], twice: [title].");
        let long: String = (0..40).map(|n| format!("w{n} ")).collect();
        assert_eq!(
            terms("w20").snippet(&[&long]),
            "…w16 w17 w18 w19 [w20] w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31…"
        );
        assert_eq!(terms("nothing").snippet(&["else"]), "");
    }

    proptest! {
        #[test]
        fn no_text_panics(texts in proptest::collection::vec("\\PC{0,60}", 1..4), query in "\\PC{1,20}") {
            let typed: Vec<&str> = query.split_whitespace().collect();
            if let Some(terms) = Terms::parse(&typed) {
                let parts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let snippet = terms.snippet(&parts);
                prop_assert!(snippet.len() <= 2_000);
                prop_assert_eq!(terms.expression(true).matches('\'').count() % 2, 0);
            }
            let parts: Vec<(char, &str)> = texts.iter().map(|text| ('D', text.as_str())).collect();
            prop_assert!(!vector(&parts).contains('\\'));
        }
    }
}
