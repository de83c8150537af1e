//! Makes characters visible that could hide or reorder what an agent wrote: control, bidirectional,
//! zero-width and other invisible ones. For whoever shows text of a change to a person.

use std::borrow::Cow;

/// The text with every invisible or reordering character as `\u{…}`; line breaks and tabs stay.
///
/// A carriage return is shown too: in a terminal it would overwrite the line.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Whether a person would not see this character, or would see others in another order because of it.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    if matches!(c, '\n' | '\t') {
        return false;
    }
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether the character leaves nothing to be seen: white space, what is hidden, and what only alters the character
/// before it.
#[must_use]
pub fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || is_hidden(c)
        || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{13430}'..='\u{1345f}' | '\u{16fe4}' | '\u{1d159}')
}

/// Whether a person would see anything of the text.
#[must_use]
pub fn says_something(text: &str) -> bool {
    !text.chars().all(is_blank)
}

/// A comment as it counts: one of which nothing can be seen is none.
#[must_use]
pub fn comment(text: Option<String>) -> Option<String> {
    text.filter(|text| says_something(text))
}

/// A value for a message: quoted, cut at 80 characters, with control characters escaped.
#[must_use]
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
    fn a_comment_of_which_nothing_is_seen_is_none() {
        for none in [
            "",
            " \n\t\r",
            "\u{a0}\u{2003}\u{3000}\u{1680}\u{205f}",
            "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}",
            "\u{202a}\u{202e}\u{2066}\u{2069}\u{200e}\u{61c}",
            "\u{3164}\u{115f}\u{1160}\u{ffa0}\u{2800}\u{180e}\u{17b4}\u{16fe4}\u{1d159}",
            "\u{e0041}\u{e0042}\u{e007f}\u{e0100}\u{fe0f}",
            "\u{ad}\u{34f}\u{0}\u{7f}\u{85}\u{2028}",
        ] {
            assert!(!says_something(none), "{none:?}");
            assert_eq!(comment(Some(none.into())), None);
        }
        for some in [".", "\u{200b}x", "\u{2764}\u{fe0f}", "\u{6f22}", "0"] {
            assert_eq!(comment(Some(some.into())).as_deref(), Some(some));
        }
    }

    #[test]
    fn hidden_characters_become_visible_and_others_stay() {
        assert!(matches!(visible("Größe\n\t漢字 🎉"), Cow::Borrowed(_)));
        assert_eq!(visible("a\u{202e}b\u{200b}\r\u{1b}[2J"), r"a\u{202e}b\u{200b}\u{d}\u{1b}[2J");
        assert_eq!(visible("\u{e0041}"), r"\u{e0041}");
    }
}
