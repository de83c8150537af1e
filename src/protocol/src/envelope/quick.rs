//! The members of an envelope, their depth and the outline of its `params` in one pass over the text.
//!
//! Reads what nearly every message is. Whatever it does not understand (text that is no JSON, escaped names, nesting
//! beyond [`DEEPEST`]) is no error: the caller then asks `serde_json`, which also says what is wrong with it. So all that
//! counts is that nothing is read here that `serde_json` refuses or sees otherwise.

use super::members::Members;
use crate::{
    outline::{Builder, Outline},
    raw,
};

/// Levels of arrays and objects that are followed here: as many as one word has bits.
const DEEPEST: u32 = u64::BITS;

/// The members of the object that `text` is; nothing if it is no such object, nested deeper than `max_depth`, or
/// anything else but plain.
pub(super) fn members(text: &str, max_depth: usize) -> Option<Members<'_>> {
    let mut reader = Reader {
        text,
        bytes: text.as_bytes(),
        at: 0,
        depth: 0,
        deepest: DEEPEST.min(u32::try_from(max_depth).unwrap_or(DEEPEST)),
    };
    let mut members = Members { is_shallow: true, ..Members::default() };
    reader.space();
    reader.object(|reader, key, _| {
        let slot = match key {
            "jsonrpc" => &mut members.jsonrpc,
            "id" => &mut members.id,
            "method" => &mut members.method,
            "params" => &mut members.params,
            "result" => &mut members.result,
            "error" => &mut members.error,
            _ => return reader.value(),
        };
        let start = reader.at;
        if key == "params" && reader.peek() == b'{' {
            members.outline = Some(params(reader)?);
        } else {
            reader.value()?;
        }
        // What is there more than once is refused, in words that are found elsewhere.
        slot.replace(raw::known(reader.text.get(start..reader.at)?)?).is_none().then_some(())
    })?;
    reader.space();
    (reader.at == text.len()).then_some(members)
}

/// Passes `params`, an object, and outlines it.
fn params(reader: &mut Reader<'_>) -> Option<Outline> {
    let begin = reader.at;
    let mut outline = Builder::new();
    reader.object(|reader, key, name| {
        let value = reader.at;
        if key == "_meta" {
            outline.begin_meta();
            if reader.peek() == b'{' {
                reader.object(|reader, key, name| {
                    let start = reader.at;
                    reader.value()?;
                    outline.member_of_meta(name - value, key.len(), start - value..reader.at - value);
                    Some(())
                })?;
            } else {
                reader.value()?;
            }
        } else {
            reader.value()?;
        }
        outline.member(key, name - begin, value - begin..reader.at - begin);
        Some(())
    })?;
    Some(outline.finish())
}

/// A position in text that may be anything. Every step is nothing at the first byte that is not as it should be.
struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    deepest: u32,
}

impl<'a> Reader<'a> {
    /// 0 at the end, which is no character of JSON either.
    #[inline]
    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    #[inline]
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == byte).then(|| self.at += 1)
    }

    /// Calls `each` at the value of each member, with its key and where that begins, its quote included; it must pass
    /// the value. Keys with escapes are not read.
    #[inline]
    fn object(&mut self, mut each: impl FnMut(&mut Self, &'a str, usize) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        self.depth += 1;
        if self.depth > self.deepest {
            return None;
        }
        self.space();
        if self.peek() != b'}' {
            loop {
                let name = self.at;
                if self.string()? {
                    return None;
                }
                let key = self.text.get(name + 1..self.at - 1)?;
                self.space();
                self.take(b':')?;
                self.space();
                each(self, key, name)?;
                self.space();
                if self.peek() != b',' {
                    break;
                }
                self.at += 1;
                self.space();
            }
        }
        self.depth -= 1;
        self.take(b'}')
    }

    /// Passes a value, however deep.
    fn value(&mut self) -> Option<()> {
        // A bit for each container that is open, the innermost the lowest: whether it is an object.
        let (mut open, mut depth) = (0_u64, 0);
        loop {
            // At a value.
            match self.peek() {
                b'"' => _ = self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                brace @ (b'{' | b'[') => {
                    let is_object = brace == b'{';
                    self.at += 1;
                    depth += 1;
                    if self.depth + depth > self.deepest {
                        return None;
                    }
                    open = open << 1 | u64::from(is_object);
                    self.space();
                    if self.peek() == if is_object { b'}' } else { b']' } {
                        // Closed below, as any other.
                    } else {
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => return None,
            }
            // Behind a value, or in an empty container.
            loop {
                if depth == 0 {
                    return Some(());
                }
                let is_object = open & 1 == 1;
                self.space();
                match self.peek() {
                    b',' => {
                        self.at += 1;
                        self.space();
                        if is_object {
                            self.key()?;
                        }
                        break;
                    }
                    b'}' if is_object => {}
                    b']' if !is_object => {}
                    _ => return None,
                }
                self.at += 1;
                open >>= 1;
                depth -= 1;
            }
        }
    }

    /// Passes a key and its colon, up to the value.
    #[inline]
    fn key(&mut self) -> Option<()> {
        self.string()?;
        self.space();
        self.take(b':')?;
        self.space();
        Some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    fn number(&mut self) -> Option<()> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        match self.peek() {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    #[inline]
    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        (self.at > from).then_some(())
    }

    /// Passes a string and says whether it has escapes.
    #[inline]
    fn string(&mut self) -> Option<bool> {
        self.take(b'"')?;
        let mut escapes = false;
        loop {
            self.at += special(self.bytes.get(self.at..)?)?;
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Some(escapes);
                }
                b'\\' => {
                    escapes = true;
                    self.escape()?;
                }
                // A control character.
                _ => return None,
            }
        }
    }

    #[cold]
    fn escape(&mut self) -> Option<()> {
        match self.bytes.get(self.at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
            b'u' => match self.unit()? {
                0xD800..=0xDBFF if self.peek() == b'\\' && self.bytes.get(self.at + 1) == Some(&b'u') => {
                    // Half of a pair that has no other half is no text.
                    (0xDC00..=0xDFFF).contains(&self.unit()?).then_some(())?;
                }
                0xD800..=0xDFFF => return None,
                _ => {}
            },
            _ => return None,
        }
        Some(())
    }

    /// Passes `\uXXXX`.
    fn unit(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at + 2..self.at + 6)?;
        self.at += 6;
        digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
    }
}

/// Where the first quote, backslash or control character is.
#[inline]
fn special(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    const LONG: usize = 32;
    // The highest bit of bytes that are meant; what stands above the lowest such bit means nothing.
    let marks = |word: u64| {
        let is = |byte: u8| {
            let zero = word ^ u64::from_ne_bytes([byte; 8]);
            zero.wrapping_sub(ONES) & !zero
        };
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        (is(b'"') | is(b'\\') | control) & HIGH
    };
    let is_special = |byte: u8| (byte == b'"') | (byte == b'\\') | (byte < 0x20);
    let (mut at, mut looked) = (0, 0);
    loop {
        // Strings that are not short are looked at in pieces that vectorize.
        if looked >= LONG {
            while let Some(piece) = bytes.get(at..).and_then(|rest| rest.first_chunk::<LONG>()) {
                if piece.iter().fold(false, |any, &byte| any | is_special(byte)) {
                    break;
                }
                at += LONG;
            }
            looked = 0;
        }
        let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else {
            return Some(at + bytes.get(at..)?.iter().position(|&byte| is_special(byte))?);
        };
        let found = marks(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
        looked += 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_strings_are_found_wherever_they_are() {
        for length in 0..120 {
            for end in ['"', '\\', '\u{0}', '\u{1f}', '\n'] {
                let text = format!("{}{end}\"\\{}", "#!]é\u{7f} \u{20}".repeat(length), "y".repeat(length % 9));
                for cut in 0..text.len() {
                    let bytes = &text.as_bytes()[cut..];
                    let expected = bytes.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20);
                    assert_eq!(special(bytes), expected, "{text:?} from {cut}");
                    if cut > 40 {
                        break;
                    }
                }
            }
        }
        assert_eq!(special(b""), None);
        assert_eq!(special("é".repeat(50).as_bytes()), None);
    }

    #[test]
    fn plain_messages_are_read_here() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":[{},[],-0.5e+7]}}}"#,
            " {\n\t\"id\" : \"\\ud83d\\ude00\" , \"result\" : { } } ",
            r#"{"error":{"code":-1,"message":"\n\u00e9\/"},"id":null,"x":[true,false,null]}"#,
            "{}",
        ] {
            assert!(members(text, 128).is_some(), "{text}");
        }
    }

    #[test]
    fn depth_is_counted_as_everywhere() {
        for (text, depth) in [
            ("{}", 1),
            (r#"{"id":[]}"#, 2),
            (r#"{"params":{"a":{"b":[]}}}"#, 4),
            (r#"{"params":{"_meta":{"b":[1]}},"id":1}"#, 4),
            (r#"{"a":[[],[],[]],"result":{"a":[1]}}"#, 3),
        ] {
            assert!(members(text, depth).is_some(), "{text}");
            assert!(members(text, depth - 1).is_none(), "{text}");
        }
        let deep = |levels: usize| format!(r#"{{"result":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(members(&deep(63), 128).is_some());
        assert!(members(&deep(64), 128).is_none(), "deeper than is followed here");
    }
}
