//! Scans JSON text. No other module of this crate reads it byte by byte.
//!
//! The scanner must never recurse or allocate, because it reads hostile text before anything else has checked it.

use wide::u8x16;

/// A position in JSON text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    /// Creates a scanner that stands after the opening bracket, or at the end of a text that does not begin with it.
    pub(super) fn inside_container(text: &'a str, bracket: u8) -> Self {
        let mut scanner = Self::new(text);
        scanner.skip_space();
        if scanner.consume(bracket).is_none() {
            scanner.position = text.len();
        }
        scanner
    }

    /// Returns the number of bytes before this position.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Returns the text from `start` to this position.
    #[inline]
    pub(crate) fn text_since(&self, start: usize) -> Option<&'a str> {
        self.text.get(start..self.position)
    }

    #[inline]
    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Returns the next byte, or 0 at the end. The byte 0 does not occur in valid JSON.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.bytes().get(self.position).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.position += 1;
        }
    }

    #[inline]
    pub(crate) fn consume(&mut self, byte: u8) -> Option<()> {
        (self.peek() == byte).then(|| self.position += 1)
    }
}

/// Reads text that is known to be JSON, and follows only its structure.
impl<'a> Scanner<'a> {
    /// Skips whitespace and a value. Returns the value with its offset, or `None` at the end of a container.
    pub(super) fn next_value(&mut self) -> Option<(usize, &'a str)> {
        self.skip_space();
        let start = self.position;
        self.skip_value()?;
        self.text_since(start).map(|value| (start, value))
    }

    pub(super) fn skip_comma(&mut self) {
        self.skip_space();
        self.consume(b',');
    }

    /// Skips the value at this position.
    fn skip_value(&mut self) -> Option<()> {
        let bytes = self.bytes();
        self.position = match bytes.get(self.position)? {
            b'"' => string_end(bytes, self.position)?,
            b'{' | b'[' => {
                let (mut depth, mut index) = (0_usize, self.position);
                loop {
                    match bytes.get(index)? {
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => {
                            depth -= 1;
                            if depth == 0 {
                                break index + 1;
                            }
                        }
                        b'"' => index = string_end(bytes, index)? - 1,
                        _ => {}
                    }
                    index += 1;
                }
            }
            b'}' | b']' | b',' | b':' => return None,
            _ => {
                let rest = bytes.get(self.position..)?;
                let ends = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b':');
                self.position + rest.iter().position(ends).unwrap_or(rest.len())
            }
        };
        Some(())
    }

    fn next_token(&mut self) -> Option<Token<'a>> {
        self.skip_space();
        let (start, first) = (self.position, self.peek());
        let token = match first {
            b'{' | b'[' => Token::Open(first.into()),
            b'}' | b']' => Token::Close(first.into()),
            b',' => Token::Comma,
            _ => {
                self.skip_value()?;
                let text = self.text_since(start)?;
                if first != b'"' {
                    return Some(Token::Scalar(text));
                }
                self.skip_space();
                return Some(if self.consume(b':').is_some() { Token::Key(text) } else { Token::String(text) });
            }
        };
        self.position += 1;
        Some(token)
    }
}

/// A token of JSON text. Strings are raw, including their quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// `{` or `[`.
    Open(char),
    /// `}` or `]`.
    Close(char),
    /// The key of a member. Its colon was skipped.
    Key(&'a str),
    String(&'a str),
    /// A number, `true`, `false` or `null`.
    Scalar(&'a str),
    Comma,
}

/// Iterates over the tokens of JSON text, at any depth.
pub fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut scanner = Scanner::new(text);
    std::iter::from_fn(move || scanner.next_token())
}

/// Returns `true` if arrays and objects are nested deeper than `max` (the outermost counts as 1).
///
/// For text that is not JSON the result is meaningless, but it is still computed in linear time.
pub(crate) fn is_deeper_than(text: &str, max: usize) -> bool {
    let mut depth = 0_usize;
    tokens(text).any(|token| {
        match token {
            Token::Open(_) => depth += 1,
            Token::Close(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > max
    })
}

/// Checks untrusted text against the JSON grammar. Every step returns `None` at the first byte that violates it.
impl<'a> Scanner<'a> {
    /// Checks an object. Calls `each` at the value of each member, with the key and the offset of its opening quote. `each`
    /// must check the value. Keys with escapes are rejected.
    #[inline]
    pub(crate) fn check_object(&mut self, mut each: impl FnMut(&mut Self, &'a str, usize) -> Option<()>) -> Option<()> {
        self.consume(b'{')?;
        self.skip_space();
        if self.peek() != b'}' {
            loop {
                let key_start = self.position;
                if self.check_string()? {
                    return None;
                }
                let key = self.text.get(key_start + 1..self.position - 1)?;
                self.skip_space();
                self.consume(b':')?;
                self.skip_space();
                each(self, key, key_start)?;
                self.skip_space();
                if self.peek() != b',' {
                    break;
                }
                self.position += 1;
                self.skip_space();
            }
        }
        self.consume(b'}')
    }

    /// Checks a value. Rejects nesting deeper than `levels`, and always deeper than 64.
    pub(crate) fn check_value(&mut self, levels: u32) -> Option<()> {
        // One bit for each open container, the innermost lowest; a set bit means an object.
        let (mut open, mut depth) = (0_u64, 0);
        let levels = levels.min(u64::BITS);
        loop {
            // Before a value.
            match self.peek() {
                b'"' => _ = self.check_string()?,
                b'-' | b'0'..=b'9' => self.check_number()?,
                b't' => self.check_literal(b"true")?,
                b'f' => self.check_literal(b"false")?,
                b'n' => self.check_literal(b"null")?,
                brace @ (b'{' | b'[') => {
                    let is_object = brace == b'{';
                    self.position += 1;
                    depth += 1;
                    if depth > levels {
                        return None;
                    }
                    open = open << 1 | u64::from(is_object);
                    self.skip_space();
                    if self.peek() == if is_object { b'}' } else { b']' } {
                        // The loop below closes the container.
                    } else {
                        if is_object {
                            self.check_key()?;
                        }
                        continue;
                    }
                }
                _ => return None,
            }
            // After a value, or in an empty container.
            loop {
                if depth == 0 {
                    return Some(());
                }
                let is_object = open & 1 == 1;
                self.skip_space();
                match self.peek() {
                    b',' => {
                        self.position += 1;
                        self.skip_space();
                        if is_object {
                            self.check_key()?;
                        }
                        break;
                    }
                    b'}' if is_object => {}
                    b']' if !is_object => {}
                    _ => return None,
                }
                self.position += 1;
                open >>= 1;
                depth -= 1;
            }
        }
    }

    /// Checks a key and its colon, up to the value.
    #[inline]
    fn check_key(&mut self) -> Option<()> {
        self.check_string()?;
        self.skip_space();
        self.consume(b':')?;
        self.skip_space();
        Some(())
    }

    fn check_literal(&mut self, literal: &[u8]) -> Option<()> {
        self.bytes().get(self.position..)?.starts_with(literal).then(|| self.position += literal.len())
    }

    fn check_number(&mut self) -> Option<()> {
        self.consume(b'-');
        match self.peek() {
            b'0' => self.position += 1,
            _ => self.check_digits()?,
        }
        if self.consume(b'.').is_some() {
            self.check_digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.position += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.position += 1;
            }
            self.check_digits()?;
        }
        Some(())
    }

    /// Checks one or more digits.
    #[inline]
    fn check_digits(&mut self) -> Option<()> {
        let from = self.position;
        while self.peek().is_ascii_digit() {
            self.position += 1;
        }
        (self.position > from).then_some(())
    }

    /// Checks a string. Returns `true` if the string has escapes.
    #[inline]
    fn check_string(&mut self) -> Option<bool> {
        self.consume(b'"')?;
        let mut has_escapes = false;
        loop {
            self.position += find_special::<true>(self.bytes().get(self.position..)?)?;
            match self.peek() {
                b'"' => {
                    self.position += 1;
                    return Some(has_escapes);
                }
                b'\\' => {
                    has_escapes = true;
                    self.check_escape().ok()?;
                }
                // A control character.
                _ => return None,
            }
        }
    }

    #[cold]
    fn check_escape(&mut self) -> Result<(), EscapeError> {
        match self.bytes().get(self.position + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.position += 2,
            _ => match self.utf16_unit().ok_or(EscapeError::Unrecognized)? {
                0xD800..=0xDBFF => match self.utf16_unit() {
                    Some(0xDC00..=0xDFFF) => {}
                    _ => return Err(EscapeError::LoneSurrogate),
                },
                0xDC00..=0xDFFF => return Err(EscapeError::LoneSurrogate),
                _ => {}
            },
        }
        Ok(())
    }

    /// Reads `\uXXXX`, a UTF-16 code unit.
    fn utf16_unit(&mut self) -> Option<u32> {
        let digits = self.bytes().get(self.position..self.position + 6)?.strip_prefix(b"\\u")?;
        let unit = digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))?;
        self.position += 6;
        Some(unit)
    }
}

/// The reason why an escape is invalid.
#[derive(PartialEq, Eq)]
enum EscapeError {
    LoneSurrogate,
    Unrecognized,
}

/// Returns `true` if an escape is half of a surrogate pair without the other half (`\ud800`), which is not valid
/// Unicode.
///
/// `serde_json` rejects these only in strings that it decodes, so a payload could carry them to the other side.
pub(crate) fn has_lone_surrogate(text: &str) -> bool {
    let mut scanner = Scanner::new(text);
    while let Some(found) = scanner.bytes().get(scanner.position..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        scanner.position += found;
        match scanner.check_escape() {
            Ok(()) => {}
            Err(EscapeError::LoneSurrogate) => return true,
            // The escaped character may be a backslash, so it is skipped too.
            Err(EscapeError::Unrecognized) => scanner.position += 2,
        }
    }
    false
}

/// Returns `true` if text needs no escaping in a JSON string.
pub(super) fn is_plain(text: &str) -> bool {
    find_special::<true>(text.as_bytes()).is_none()
}

/// Returns `true` if the text between the quotes of a JSON string has escapes.
pub(super) fn has_escapes(inner: &str) -> bool {
    find_special::<false>(inner.as_bytes()).is_some()
}

/// Returns the offset after the closing quote of the string that opens at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut position = start + 1;
    loop {
        position += find_special::<false>(bytes.get(position..)?)?;
        if bytes.get(position) == Some(&b'"') {
            return Some(position + 1);
        }
        position += 2;
    }
}

/// Returns the offset of the first quote or backslash, or of a control character if `CONTROL` is set.
fn find_special<const CONTROL: bool>(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    loop {
        let (block, following) = match rest.split_first_chunk::<16>() {
            Some((block, following)) => (*block, following),
            None if rest.is_empty() => return None,
            None => {
                // Spaces, which are not special, fill up the last block.
                let mut block = [b' '; 16];
                block[..rest.len()].copy_from_slice(rest);
                (block, &[][..])
            }
        };
        let block = u8x16::new(block);
        let equals = |byte: u8| block.simd_eq(u8x16::splat(byte));
        let mut special = equals(b'"') | equals(b'\\');
        if CONTROL {
            let last_control = u8x16::splat(0x1f);
            special |= block.max(last_control).simd_eq(last_control);
        }
        let mask = special.to_bitmask();
        if mask != 0 {
            return Some(bytes.len() - rest.len() + mask.trailing_zeros() as usize);
        }
        rest = following;
    }
}

#[cfg(test)]
mod tests;
