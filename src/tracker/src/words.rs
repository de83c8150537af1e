//! Words of texts, where the database does not take them apart itself: as SQLite's `unicode61` does, letters and digits
//! without case and marks.

use std::{fmt::Write as _, ops::Range};

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// Characters of a word that count.
const WORD_MAX: usize = 200;
/// PostgreSQL tells places of words up to here.
const PLACES: usize = 16_383;
/// Words between two parts of an entry: no two that stand side by side.
const GAP: usize = 2;
/// Words in a snippet, and of those before the first that was found.
const SNIPPET: usize = 16;
const BEFORE: usize = 4;

/// The words of a text, in order, each with where it stands.
fn words(text: &str) -> impl Iterator<Item = (Range<usize>, String)> {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let part = |c: char| c.is_alphanumeric() || is_combining_mark(c);
        let start = rest + text.get(rest..)?.find(char::is_alphanumeric)?;
        let end = text[start..].find(|c| !part(c)).map_or(text.len(), |length| start + length);
        rest = end;
        Some((start..end, folded(&text[start..end])))
    })
}

fn folded(word: &str) -> String {
    let plain = word.nfd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase);
    // Lower case may come with marks of its own; what is not a letter would be syntax.
    plain.filter(|c| c.is_alphanumeric()).take(WORD_MAX).collect()
}

/// A text vector of PostgreSQL: the parts with their weights, from A to D.
pub(super) fn vector(parts: &[(char, &str)]) -> String {
    let (mut out, mut place) = (String::new(), 0);
    for (weight, text) in parts {
        for (_, word) in words(text) {
            place += 1;
            if !word.is_empty() {
                let _ = write!(out, "'{word}':{}{weight} ", place.min(PLACES));
            }
        }
        place += GAP;
    }
    out
}

/// What is searched for: terms, each of words that stand side by side.
#[derive(Debug)]
pub(super) struct Wanted {
    terms: Vec<Vec<String>>,
    /// The last word may be a beginning.
    beginning: bool,
}

impl Wanted {
    /// Of terms as they were typed. `None` if none has a word.
    pub fn of(typed: &[&str]) -> Option<Self> {
        let of_term = |term: &&str| words(term).map(|(_, word)| word).filter(|word| !word.is_empty()).collect();
        let terms: Vec<Vec<String>> =
            typed.iter().map(of_term).filter(|words: &Vec<String>| !words.is_empty()).collect();
        // A single letter would match half of everything.
        let beginning = typed.last()?.chars().count() > 1;
        (!terms.is_empty()).then_some(Self { terms, beginning })
    }

    /// As PostgreSQL's text query: all terms, or any of them.
    pub fn expression(&self, all: bool) -> String {
        let mut out = String::new();
        for (at, term) in self.terms.iter().enumerate() {
            if at > 0 {
                out.push_str(if all { " & " } else { " | " });
            }
            out.push('(');
            for (place, word) in term.iter().enumerate() {
                let beginning = self.is_beginning(at, place);
                let _ = write!(
                    out,
                    "{}'{word}'{}",
                    if place > 0 { " <-> " } else { "" },
                    if beginning { ":*" } else { "" }
                );
            }
            out.push(')');
        }
        out
    }

    fn is_beginning(&self, term: usize, place: usize) -> bool {
        self.beginning && term + 1 == self.terms.len() && place + 1 == self.terms[term].len()
    }

    /// How many words from this one on are one of the terms.
    fn found(&self, words: &[(Range<usize>, String)]) -> usize {
        let fits = |at: usize, term: &[String]| {
            term.iter().enumerate().all(|(place, wanted)| {
                words.get(place).is_some_and(|(_, word)| {
                    word == wanted || (self.is_beginning(at, place) && word.starts_with(wanted.as_str()))
                })
            })
        };
        let lengths = self.terms.iter().enumerate().filter(|(at, term)| fits(*at, term)).map(|(_, term)| term.len());
        lengths.max().unwrap_or(0)
    }

    /// Where it stands, in the part that has most of it, with what was found in brackets.
    pub fn snippet(&self, parts: &[&str]) -> String {
        let mut best: (usize, String) = (0, String::new());
        for text in parts {
            let all: Vec<(Range<usize>, String)> = words(text).collect();
            // For each word, how many that were found begin there.
            let mut found = vec![0; all.len()];
            let mut at = 0;
            while at < all.len() {
                found[at] = self.found(&all[at..]);
                at += found[at].max(1);
            }
            let hits = |from: usize| found[from..all.len().min(from + SNIPPET)].iter().filter(|n| **n > 0).count();
            let from = (0..all.len()).filter(|at| found[*at] > 0).max_by_key(|at| (hits(*at), usize::MAX - at));
            if let Some(from) = from
                && hits(from) > best.0
            {
                best = (hits(from), cut(text, &all, &found, from.saturating_sub(BEFORE)));
            }
        }
        best.1
    }
}

fn cut(text: &str, words: &[(Range<usize>, String)], found: &[usize], from: usize) -> String {
    let to = words.len().min(from + SNIPPET);
    let mut out = String::from(if from > 0 { "…" } else { "" });
    let mut at = from;
    let mut end = if from > 0 { words[from].0.start } else { 0 };
    while at < to {
        if found[at] > 0 {
            let last = words.len().min(at + found[at]) - 1;
            out.push_str(&text[end..words[at].0.start]);
            let _ = write!(out, "[{}]", &text[words[at].0.start..words[last].0.end]);
            end = words[last].0.end;
        }
        at += found[at].max(1);
    }
    if at < words.len() {
        let upto = words[at - 1].0.end;
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

    fn wanted(query: &str) -> Wanted {
        Wanted::of(&query.split_whitespace().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn texts_are_taken_apart() {
        let all: Vec<String> = words("CORE-12: Ärger, naïve\u{301} x²!").map(|(_, word)| word).collect();
        assert_eq!(all, ["core", "12", "arger", "naive", "x²"]);
        assert_eq!(vector(&[('A', "C-1"), ('D', "a a")]), "'c':1A '1':2A 'a':5D 'a':6D ");
    }

    #[test]
    fn a_query_is_words_and_never_syntax() {
        assert_eq!(wanted("log in").expression(true), "('log') & ('in':*)");
        assert_eq!(wanted("core-12 x").expression(false), "('core' <-> '12') | ('x')");
        assert_eq!(wanted("it's & (x | !y):*").expression(true), "('it' <-> 's') & ('x') & ('y':*)");
        assert!(Wanted::of(&["&|!"]).is_none());
    }

    #[test]
    fn a_snippet_shows_what_was_found() {
        assert_eq!(wanted("core-1").snippet(&["CORE-12", "a title", ""]), "[CORE-12]");
        assert_eq!(wanted("title").snippet(&["A-1", "The Title, twice: title."]), "The [Title], twice: [title].");
        let long: String = (0..40).map(|n| format!("w{n} ")).collect();
        assert_eq!(
            wanted("w20").snippet(&[&long]),
            "…w16 w17 w18 w19 [w20] w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31…"
        );
        assert_eq!(wanted("nothing").snippet(&["else"]), "");
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(texts in proptest::collection::vec("\\PC{0,60}", 1..4), query in "\\PC{1,20}") {
            let typed: Vec<&str> = query.split_whitespace().collect();
            if let Some(wanted) = Wanted::of(&typed) {
                let parts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let snippet = wanted.snippet(&parts);
                prop_assert!(snippet.len() <= 2_000);
                prop_assert_eq!(wanted.expression(true).matches('\'').count() % 2, 0);
            }
            let parts: Vec<(char, &str)> = texts.iter().map(|text| ('D', text.as_str())).collect();
            prop_assert!(!vector(&parts).contains('\\'));
        }
    }
}
