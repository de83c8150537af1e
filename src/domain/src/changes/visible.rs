//! Escapes characters that could hide or reorder an agent's text: control, bidirectional, zero-width, private-use and
//! other invisible characters. All code that shows text of a change to a person uses this module.

use std::{borrow::Cow, ops::RangeInclusive, sync::LazyLock};

use regex::Regex;

/// Characters that are invisible, reorder others or have no standard glyph, in ascending order: the Unicode categories
/// Cc, Cf, Co, Zl and Zp, default ignorable code points, noncharacters and the blank Braille pattern.
///
/// The dashboard has the same table (`assets/js/core/text.js` of the rest crate), and a test there compares the two.
#[rustfmt::skip]
pub const HIDDEN_RANGES: [RangeInclusive<char>; 44] = [
    '\u{0}'..='\u{1f}', '\u{7f}'..='\u{9f}', '\u{ad}'..='\u{ad}', '\u{34f}'..='\u{34f}', '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}', '\u{6dd}'..='\u{6dd}', '\u{70f}'..='\u{70f}', '\u{890}'..='\u{891}', '\u{8e2}'..='\u{8e2}',
    '\u{115f}'..='\u{1160}', '\u{17b4}'..='\u{17b5}', '\u{180b}'..='\u{180f}', '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}', '\u{2800}'..='\u{2800}', '\u{3164}'..='\u{3164}',
    '\u{e000}'..='\u{f8ff}', '\u{fdd0}'..='\u{fdef}', '\u{fe00}'..='\u{fe0f}', '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}', '\u{fff0}'..='\u{fffb}', '\u{fffe}'..='\u{ffff}', '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}', '\u{13430}'..='\u{1343f}', '\u{1bca0}'..='\u{1bca3}', '\u{1d173}'..='\u{1d17a}',
    '\u{1fffe}'..='\u{1ffff}', '\u{2fffe}'..='\u{2ffff}', '\u{3fffe}'..='\u{3ffff}', '\u{4fffe}'..='\u{4ffff}',
    '\u{5fffe}'..='\u{5ffff}', '\u{6fffe}'..='\u{6ffff}', '\u{7fffe}'..='\u{7ffff}', '\u{8fffe}'..='\u{8ffff}',
    '\u{9fffe}'..='\u{9ffff}', '\u{afffe}'..='\u{affff}', '\u{bfffe}'..='\u{bffff}', '\u{cfffe}'..='\u{cffff}',
    '\u{dfffe}'..='\u{e0fff}', '\u{efffe}'..='\u{10ffff}',
];

/// Escapes every hidden character as `\u{…}`; line breaks and tabs stay.
///
/// A carriage return is escaped too, because in a terminal it would overwrite the line.
pub fn escape_hidden(text: &str) -> Cow<'_, str> {
    if !has_hidden(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (c, is_hidden) in chars_with_hidden(text) {
        if is_hidden {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Returns `true` if a person would not see all of the text, or would see it in another order.
pub fn has_hidden(text: &str) -> bool {
    chars_with_hidden(text).any(|(_, is_hidden)| is_hidden)
}

/// Iterates over the characters of the text and whether each is hidden. Variation selectors and joiners within an emoji
/// are not hidden.
pub fn chars_with_hidden(text: &str) -> impl Iterator<Item = (char, bool)> {
    text.char_indices().map(|(offset, c)| (c, is_hidden(c) && !joins_emoji(text, offset, c)))
}

/// Returns `true` if the character is invisible or reorders others, regardless of its context; see [`has_hidden`] for
/// whole texts.
pub fn is_hidden(c: char) -> bool {
    if matches!(c, '\n' | '\t') {
        return false;
    }
    let index = HIDDEN_RANGES.partition_point(|range| *range.end() < c);
    HIDDEN_RANGES.get(index).is_some_and(|range| range.contains(&c))
}

fn joins_emoji(text: &str, offset: usize, c: char) -> bool {
    static BEFORE: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"[\p{Extended_Pictographic}\p{Emoji_Modifier}]\u{fe0f}?$").ok());
    static AFTER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Extended_Pictographic}").ok());
    if !matches!(c, '\u{fe0f}' | '\u{200d}') {
        return false;
    }
    let matches = |regex: &Option<Regex>, text: &str| regex.as_ref().is_some_and(|regex| regex.is_match(text));
    let (before, after) = (&text[..offset], &text[offset + c.len_utf8()..]);
    let start = before.char_indices().rev().nth(1).map_or(0, |(start, _)| start);
    let follows_picture = matches(&BEFORE, &before[start..]);
    if c == '\u{fe0f}' {
        let is_keycap = before.ends_with(|c: char| matches!(c, '0'..='9' | '#' | '*')) && after.starts_with('\u{20e3}');
        return follows_picture || is_keycap;
    }
    let end = after.chars().next().map_or(0, char::len_utf8);
    follows_picture && matches(&AFTER, &after[..end])
}

/// Returns `true` if the character leaves no visible mark: white space, hidden characters, and modifiers of the
/// preceding character.
pub fn is_blank(c: char) -> bool {
    c.is_whitespace() || is_hidden(c) || matches!(c, '\u{13440}'..='\u{1345f}' | '\u{16fe4}' | '\u{1d159}')
}

/// Returns `true` if the text has a visible character.
pub fn has_visible_text(text: &str) -> bool {
    !text.chars().all(is_blank)
}

/// Returns the comment, or `None` if it has no visible character.
pub fn visible_comment(text: Option<String>) -> Option<String> {
    text.filter(|text| has_visible_text(text))
}

/// Formats a value for a message: quoted, truncated to 80 characters, with control characters escaped.
pub fn quoted(text: &str) -> String {
    let mut out: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        out.push('…');
    }
    format!("`{out}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_comment_counts_as_none() {
        for invisible in [
            "",
            " \n\t\r",
            "\u{a0}\u{2003}\u{3000}\u{1680}\u{205f}",
            "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}",
            "\u{202a}\u{202e}\u{2066}\u{2069}\u{200e}\u{61c}",
            "\u{3164}\u{115f}\u{1160}\u{ffa0}\u{2800}\u{180e}\u{17b4}\u{16fe4}\u{1d159}",
            "\u{e0041}\u{e0042}\u{e007f}\u{e0100}\u{fe0f}",
            "\u{ad}\u{34f}\u{0}\u{7f}\u{85}\u{2028}",
        ] {
            assert!(!has_visible_text(invisible), "{invisible:?}");
            assert_eq!(visible_comment(Some(invisible.into())), None);
        }
        for visible in [".", "\u{200b}x", "\u{2764}\u{fe0f}", "\u{6f22}", "0"] {
            assert_eq!(visible_comment(Some(visible.into())).as_deref(), Some(visible));
        }
    }

    #[test]
    fn only_hidden_characters_are_escaped() {
        assert!(matches!(escape_hidden("Größe\n\t漢字 🎉"), Cow::Borrowed(_)));
        assert_eq!(escape_hidden("a\u{202e}b\u{200b}\r\u{1b}[2J"), r"a\u{202e}b\u{200b}\u{d}\u{1b}[2J");
        assert_eq!(escape_hidden("\u{e0041}"), r"\u{e0041}");
        assert_eq!(escape_hidden("\u{e000}\u{fdd0}\u{10ffff}"), r"\u{e000}\u{fdd0}\u{10ffff}");
        assert_eq!(escape_hidden("a\u{fe0f}b\u{200d}c"), r"a\u{fe0f}b\u{200d}c");
    }

    #[test]
    fn emoji_sequences_are_unchanged() {
        for picture in ["\u{2764}\u{fe0f}", "\u{1f469}\u{200d}\u{1f4bb}", "1\u{fe0f}\u{20e3}", "\u{1f44d}\u{1f3fd}"] {
            assert!(matches!(escape_hidden(picture), Cow::Borrowed(_)), "{picture:?}");
        }
    }

    #[test]
    fn hidden_ranges_are_sorted_and_disjoint() {
        assert!(HIDDEN_RANGES.iter().all(|range| range.start() <= range.end()));
        assert!(HIDDEN_RANGES.windows(2).all(|pair| pair[0].end() < pair[1].start()));
    }
}
