//! The full-text search on PostgreSQL: splits texts into words as `unicode61` of SQLite does, ignoring case and diacritics.

use std::{cmp::Reverse, fmt::Write as _, ops::Range};

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// The maximum number of characters of a word. The rest of a longer word is ignored.
const MAX_WORD_CHARS: usize = 200;
/// The largest position of a word that PostgreSQL stores.
const MAX_POSITION: usize = 16_383;
/// The positions that are left free between two texts of an entry, so that their words are not adjacent.
const TEXT_GAP: usize = 2;
/// The number of words in a snippet.
const SNIPPET_WORDS: usize = 16;
/// The number of these words that precede the first match.
const WORDS_BEFORE_MATCH: usize = 4;

/// Returns the words of a text with their ranges in it.
fn words(text: &str) -> impl Iterator<Item = (Range<usize>, String)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let is_word_char = |c: char| c.is_alphanumeric() || is_combining_mark(c);
        let start = offset + text.get(offset..)?.find(char::is_alphanumeric)?;
        let end = text[start..].find(|c| !is_word_char(c)).map_or(text.len(), |length| start + length);
        offset = end;
        Some((start..end, fold(&text[start..end])))
    })
}

/// Removes case and diacritics, so that `Ärger` and `arger` are the same word.
fn fold(word: &str) -> String {
    let plain = word.nfd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase);
    // Lower-casing may add marks again, and characters such as quotes would be syntax in a query.
    plain.filter(|c| c.is_alphanumeric()).take(MAX_WORD_CHARS).collect()
}

/// Returns a `tsvector` of PostgreSQL for texts with weights from A to D.
pub(super) fn tsvector(weighted_texts: &[(char, &str)]) -> String {
    let (mut vector, mut position) = (String::new(), 0);
    for (weight, text) in weighted_texts {
        for (_, word) in words(text) {
            position += 1;
            if !word.is_empty() {
                let _ = write!(vector, "'{word}':{}{weight} ", position.min(MAX_POSITION));
            }
        }
        position += TEXT_GAP;
    }
    vector
}

/// The terms of a query. A term such as `core-12` consists of adjacent words.
#[derive(Debug)]
pub(super) struct Terms {
    terms: Vec<Vec<String>>,
    /// Set if the last word may be the beginning of a longer word.
    ends_with_prefix: bool,
}

impl Terms {
    /// Parses the terms of a query that was split at white space. Returns `None` if they have no word.
    pub fn parse(query_terms: &[&str]) -> Option<Self> {
        let fold_words = |term: &&str| words(term).map(|(_, word)| word).filter(|word| !word.is_empty()).collect();
        let terms: Vec<Vec<String>> =
            query_terms.iter().map(fold_words).filter(|words: &Vec<String>| !words.is_empty()).collect();
        // The search for a prefix of a single letter would match too many texts.
        let ends_with_prefix = query_terms.last()?.chars().count() > 1;
        (!terms.is_empty()).then_some(Self { terms, ends_with_prefix })
    }

    /// Returns the query in the syntax of PostgreSQL. All terms must occur if `match_all` is set, otherwise any of
    /// them.
    pub fn expression(&self, match_all: bool) -> String {
        let expressions = self.terms.iter().enumerate().map(|(index, term)| {
            let words = term.iter().enumerate().map(|(position, word)| {
                let suffix = if self.is_prefix(index, position) { ":*" } else { "" };
                format!("'{word}'{suffix}")
            });
            format!("({})", words.collect::<Vec<_>>().join(" <-> "))
        });
        expressions.collect::<Vec<_>>().join(if match_all { " & " } else { " | " })
    }

    /// Returns `true` if the word at this position of a term may be the beginning of a longer word.
    fn is_prefix(&self, term: usize, position: usize) -> bool {
        self.ends_with_prefix && term + 1 == self.terms.len() && position + 1 == self.terms[term].len()
    }

    /// Returns the number of words of the longest term that matches at the start of `words`, or 0.
    fn match_length(&self, words: &[(Range<usize>, String)]) -> usize {
        let is_match = |index: usize, term: &[String]| {
            term.iter().enumerate().all(|(position, term_word)| {
                words.get(position).is_some_and(|(_, word)| {
                    word == term_word || (self.is_prefix(index, position) && word.starts_with(term_word.as_str()))
                })
            })
        };
        let lengths =
            self.terms.iter().enumerate().filter(|(index, term)| is_match(*index, term)).map(|(_, term)| term.len());
        lengths.max().unwrap_or(0)
    }

    /// Returns an excerpt of the text with the most matches near each other. The matches are in brackets.
    pub fn snippet(&self, texts: &[&str]) -> String {
        let (mut most_matches, mut best_excerpt) = (0, String::new());
        for text in texts {
            let words: Vec<(Range<usize>, String)> = words(text).collect();
            let lengths = self.match_lengths(&words);
            let matches_from =
                |first: usize| lengths[first..].iter().take(SNIPPET_WORDS).filter(|length| **length > 0).count();
            let first_words = (0..words.len()).filter(|index| lengths[*index] > 0);
            // Among equal numbers of matches, the first one in the text is chosen.
            let first_match = first_words.max_by_key(|index| (matches_from(*index), Reverse(*index)));
            if let Some(first_match) = first_match
                && matches_from(first_match) > most_matches
            {
                most_matches = matches_from(first_match);
                best_excerpt = excerpt(text, &words, &lengths, first_match.saturating_sub(WORDS_BEFORE_MATCH));
            }
        }
        best_excerpt
    }

    /// Returns for each word the number of words of the match that begins there, or 0.
    fn match_lengths(&self, words: &[(Range<usize>, String)]) -> Vec<usize> {
        let mut lengths = vec![0; words.len()];
        let mut index = 0;
        while index < words.len() {
            lengths[index] = self.match_length(&words[index..]);
            index += lengths[index].max(1);
        }
        lengths
    }
}

/// Returns the part of a text that begins with the word `first`, with its matches in brackets.
fn excerpt(text: &str, words: &[(Range<usize>, String)], match_lengths: &[usize], first: usize) -> String {
    let mut excerpt = String::from(if first > 0 { "…" } else { "" });
    let mut index = first;
    // The end of the text that is already in the excerpt.
    let mut copied_to = if first > 0 { words[first].0.start } else { 0 };
    while index < words.len().min(first + SNIPPET_WORDS) {
        if match_lengths[index] > 0 {
            let last = words.len().min(index + match_lengths[index]) - 1;
            let matched = words[index].0.start..words[last].0.end;
            excerpt.push_str(&text[copied_to..matched.start]);
            copied_to = matched.end;
            let _ = write!(excerpt, "[{}]", &text[matched]);
        }
        index += match_lengths[index].max(1);
    }
    if index < words.len() {
        let excerpt_end = words[index - 1].0.end;
        excerpt.push_str(text.get(copied_to..excerpt_end).unwrap_or_default());
        excerpt.push('…');
    } else {
        excerpt.push_str(&text[copied_to..]);
    }
    excerpt
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
        assert_eq!(tsvector(&[('A', "C-1"), ('D', "a a")]), "'c':1A '1':2A 'a':5D 'a':6D ");
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
            let query_terms: Vec<&str> = query.split_whitespace().collect();
            if let Some(terms) = Terms::parse(&query_terms) {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let snippet = terms.snippet(&texts);
                prop_assert!(snippet.len() <= 2_000);
                prop_assert_eq!(terms.expression(true).matches('\'').count() % 2, 0);
            }
            let weighted_texts: Vec<(char, &str)> = texts.iter().map(|text| ('D', text.as_str())).collect();
            prop_assert!(!tsvector(&weighted_texts).contains('\\'));
        }
    }
}
