//! Counts with singular and plural, and the beginnings of texts.

use std::{borrow::Cow, fmt::Display};

/// Formats a count with a regular plural: `1 chunk`, `2 chunks`.
pub fn plural(n: impl Display + From<u8> + PartialEq, singular: &str) -> String {
    irregular_plural(n, singular, &format!("{singular}s"))
}

/// Formats a count with an irregular plural: `1 entry`, `2 entries`.
pub fn irregular_plural<N: Display + From<u8> + PartialEq>(n: N, singular: &str, plural: &str) -> String {
    let word = if n == N::from(1) { singular } else { plural };
    format!("{n} {word}")
}

/// Returns the beginning of a text, with at most this number of characters.
pub fn truncate(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// Cuts a text after this number of characters, and marks the cut with an ellipsis.
pub fn shorten(text: &str, max_chars: usize) -> Cow<'_, str> {
    let beginning = truncate(text, max_chars);
    if beginning.len() < text.len() { format!("{beginning}…").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plural_counts_one_and_many() {
        assert_eq!([0, 1, 2].map(|n| plural(n, "chunk")), ["0 chunks", "1 chunk", "2 chunks"]);
        assert_eq!([1_u64, 2].map(|n| irregular_plural(n, "entry", "entries")), ["1 entry", "2 entries"]);
    }

    #[test]
    fn shortened_text_ends_with_ellipsis_if_it_was_cut() {
        assert_eq!([2, 3].map(|max_chars| shorten("añb", max_chars)), ["añ…", "añb"]);
    }
}
