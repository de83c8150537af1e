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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_become_visible_and_others_stay() {
        assert!(matches!(visible("Größe\n\t漢字 🎉"), Cow::Borrowed(_)));
        assert_eq!(visible("a\u{202e}b\u{200b}\r\u{1b}[2J"), r"a\u{202e}b\u{200b}\u{d}\u{1b}[2J");
        assert_eq!(visible("\u{e0041}"), r"\u{e0041}");
    }
}
