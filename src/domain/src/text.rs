//! Counts with singular and plural, and texts that are cut.

use std::fmt::Display;

/// Formats a count with a regular plural: `1 chunk`, `2 chunks`.
pub fn plural(n: impl Display + From<u8> + PartialEq, singular: &str) -> String {
    irregular_plural(n, singular, &format!("{singular}s"))
}

/// Formats a count with an irregular plural: `1 entry`, `2 entries`.
pub fn irregular_plural<N: Display + From<u8> + PartialEq>(n: N, singular: &str, plural: &str) -> String {
    let word = if n == N::from(1) { singular } else { plural };
    format!("{n} {word}")
}

/// Returns the text, cut after this number of characters and marked with an ellipsis if it is longer.
pub fn shorten(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_text_is_cut_and_marked() {
        assert_eq!([2, 3].map(|max_chars| shorten("äöü", max_chars)), ["äö…", "äöü"]);
    }

    #[test]
    fn plural_counts_one_and_many() {
        assert_eq!([0, 1, 2].map(|n| plural(n, "chunk")), ["0 chunks", "1 chunk", "2 chunks"]);
        assert_eq!([1_u64, 2].map(|n| irregular_plural(n, "entry", "entries")), ["1 entry", "2 entries"]);
    }
}
