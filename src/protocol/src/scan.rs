//! Cheap single passes over JSON text for what `serde_json` does not check in text it only skips.
//!
//! They must never recurse and never allocate: they see hostile text before anything else does.

/// Whether arrays and objects are nested deeper than `max` (the outermost counts as 1).
///
/// For text that is not JSON the answer means nothing, but it is still given in linear time.
pub(super) fn deeper_than(text: &str, max: usize) -> bool {
    let bytes = text.as_bytes();
    // Most messages have fewer brackets in all than the limit allows levels; counting them vectorizes.
    if bytes.len() <= max || opening(bytes) <= max {
        return false;
    }
    let (mut depth, mut i) = (0_usize, 0_usize);
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => i = string_end(bytes, i + 1),
            _ => {}
        }
        i += 1;
    }
    false
}

/// How many brackets and braces open, those in strings too.
fn opening(bytes: &[u8]) -> usize {
    // Counters of one byte, which cannot overflow in so short a piece, are counted sixteen and more at a time.
    let of = |piece: &[u8]| piece.iter().map(|&b| u8::from(b == b'{' || b == b'[')).sum::<u8>();
    bytes.chunks(usize::from(u8::MAX)).map(|piece| usize::from(of(piece))).sum()
}

/// The index of the quote that ends the string whose first character is at `from`, or the length of the text.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut i = from;
    while let Some(found) = bytes.get(i..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        i += found;
        if bytes[i] == b'"' {
            return i;
        }
        i += 2;
    }
    bytes.len()
}

/// Whether an escape names half of a surrogate pair without the other half (`\ud800`): no Unicode text.
///
/// `serde_json` refuses these only in the strings that it decodes, so they could travel on in a payload.
pub(super) fn lone_surrogate(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut i = 0;
    while let Some(found) = bytes.get(i..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        i += found;
        match escape_unit(bytes, i) {
            Some(0xD800..=0xDBFF) => match escape_unit(bytes, i + 6) {
                Some(0xDC00..=0xDFFF) => i += 12,
                _ => return true,
            },
            Some(0xDC00..=0xDFFF) => return true,
            // Whatever is escaped, the next character is no backslash of its own.
            _ => i += 2,
        }
    }
    false
}

/// The UTF-16 unit of a `\uXXXX` escape that starts at `at`.
fn escape_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at.checked_add(6)?)?;
    if escape[0] != b'\\' || escape[1] != b'u' {
        return None;
    }
    escape[2..].iter().try_fold(0_u16, |unit, &digit| {
        let value = (digit as char).to_digit(16)?;
        Some(unit << 4 | u16::try_from(value).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_strings_only() {
        for (text, depth) in [
            ("{}", 1),
            ("[[]]", 2),
            (r#"{"a":[{"b":"[[[[{{{{"}]}"#, 3),
            (r#"["\"[[[[\\",[1]]"#, 2),
            (r#"[[],[],[],[],[],[]]"#, 2),
            (r#""[[[[""#, 0),
        ] {
            assert!(!deeper_than(text, depth), "{text} is at most {depth} deep");
            if depth > 0 {
                assert!(deeper_than(text, depth - 1), "{text} is {depth} deep");
            }
        }
    }

    #[test]
    fn depth_of_broken_text_is_still_answered() {
        for text in ["", "\"", "\"\\", "]]]]", "[\"", "{\"a\\"] {
            let _ = deeper_than(text, 0);
        }
        assert!(deeper_than(&"[".repeat(1 << 20), 128));
    }

    #[test]
    fn surrogates_must_come_in_pairs() {
        for lone in [
            r#""\ud800""#,
            r#""\udbff x""#,
            r#""\udc00""#,
            r#""\ud800\ud800""#,
            r#""\uD83D\\ude00""#,
            r#""\ud83d\n""#,
            r#""\\\ud800""#,
            r#""\ud83d\ude00\ude00""#,
        ] {
            assert!(lone_surrogate(lone), "{lone}");
        }
        for fine in
            [r#""\ud83d\ude00""#, r#""\uD83D\uDE00\uD83D\uDE00""#, r#""\\ud800""#, r#""\u0041\n""#, r#""😀""#, "", "\\"]
        {
            assert!(!lone_surrogate(fine), "{fine}");
        }
    }
}
