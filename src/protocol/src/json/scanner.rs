//! A position in JSON text, and what can be passed from there: the only place that knows how JSON is written.
//!
//! It must never recurse and never allocate: it sees hostile text before anything else does.

/// A position in text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    /// Behind the brace with which the text begins; at its end, if it does not begin with that one.
    pub(super) fn inside_container(text: &'a str, brace: u8) -> Self {
        let mut scanner = Self::new(text);
        scanner.skip_space();
        if scanner.consume(brace).is_none() {
            scanner.position = text.len();
        }
        scanner
    }

    /// Bytes before this position.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// The text from there to here.
    #[inline]
    pub(crate) fn text_since(&self, start: usize) -> Option<&'a str> {
        self.text.get(start..self.position)
    }

    #[inline]
    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// 0 at the end, which is no character of JSON either.
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

/// Text that is known to be JSON, by its structure alone.
impl<'a> Scanner<'a> {
    /// Passes a value, with the space before it, and gives it with its place; `None` at the end of a container.
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

    /// Passes the value that begins here.
    fn skip_value(&mut self) -> Option<()> {
        let bytes = self.bytes();
        self.position = match bytes.get(self.position)? {
            b'"' => string_end(bytes, self.position)?,
            b'{' | b'[' => {
                let (mut depth, mut at) = (0_usize, self.position);
                loop {
                    match bytes.get(at)? {
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => {
                            depth -= 1;
                            if depth == 0 {
                                break at + 1;
                            }
                        }
                        b'"' => at = string_end(bytes, at)? - 1,
                        _ => {}
                    }
                    at += 1;
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
        let sign = match first {
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
        Some(sign)
    }
}

/// A piece of JSON text. Strings are as they are written, with their quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// `{` or `[`.
    Open(char),
    /// `}` or `]`.
    Close(char),
    /// The key of a member, and its colon.
    Key(&'a str),
    String(&'a str),
    /// A number, `true`, `false` or `null`.
    Scalar(&'a str),
    Comma,
}

/// All that stands in JSON text, in order, however deep.
pub fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut scanner = Scanner::new(text);
    std::iter::from_fn(move || scanner.next_token())
}

/// Whether arrays and objects are nested deeper than `max` (the outermost counts as 1).
///
/// For text that is not JSON the answer means nothing, but it is still given in linear time.
pub(crate) fn deeper_than(text: &str, max: usize) -> bool {
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

/// Text that may be anything, by the grammar of JSON. Every step is nothing at the first byte that is not as it should be.
impl<'a> Scanner<'a> {
    /// Passes an object, and calls `each` at the value of each member, with its key and where that begins, its quote
    /// included; it must pass the value. Keys with escapes are not read.
    #[inline]
    pub(crate) fn check_object(&mut self, mut each: impl FnMut(&mut Self, &'a str, usize) -> Option<()>) -> Option<()> {
        self.consume(b'{')?;
        self.skip_space();
        if self.peek() != b'}' {
            loop {
                let name = self.position;
                if self.string()? {
                    return None;
                }
                let key = self.text.get(name + 1..self.position - 1)?;
                self.skip_space();
                self.consume(b':')?;
                self.skip_space();
                each(self, key, name)?;
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

    /// Passes a value of at most so many levels, and of at most 64.
    pub(crate) fn value(&mut self, levels: u32) -> Option<()> {
        // A bit for each container that is open, the innermost the lowest: whether it is an object.
        let (mut open, mut depth) = (0_u64, 0);
        let levels = levels.min(u64::BITS);
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
                    self.position += 1;
                    depth += 1;
                    if depth > levels {
                        return None;
                    }
                    open = open << 1 | u64::from(is_object);
                    self.skip_space();
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
                self.skip_space();
                match self.peek() {
                    b',' => {
                        self.position += 1;
                        self.skip_space();
                        if is_object {
                            self.key()?;
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

    /// Passes a key and its colon, up to the value.
    #[inline]
    fn key(&mut self) -> Option<()> {
        self.string()?;
        self.skip_space();
        self.consume(b':')?;
        self.skip_space();
        Some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes().get(self.position..)?.starts_with(word).then(|| self.position += word.len())
    }

    fn number(&mut self) -> Option<()> {
        self.consume(b'-');
        match self.peek() {
            b'0' => self.position += 1,
            _ => self.digits()?,
        }
        if self.consume(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.position += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.position += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    #[inline]
    fn digits(&mut self) -> Option<()> {
        let from = self.position;
        while self.peek().is_ascii_digit() {
            self.position += 1;
        }
        (self.position > from).then_some(())
    }

    /// Passes a string and says whether it has escapes.
    #[inline]
    fn string(&mut self) -> Option<bool> {
        self.consume(b'"')?;
        let mut escapes = false;
        loop {
            self.position += special::<true>(self.bytes().get(self.position..)?)?;
            match self.peek() {
                b'"' => {
                    self.position += 1;
                    return Some(escapes);
                }
                b'\\' => {
                    escapes = true;
                    self.escape().ok()?;
                }
                // A control character.
                _ => return None,
            }
        }
    }

    #[cold]
    fn escape(&mut self) -> Result<(), NoEscape> {
        match self.bytes().get(self.position + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.position += 2,
            _ => match self.unit().ok_or(NoEscape::Unknown)? {
                0xD800..=0xDBFF => match self.unit() {
                    Some(0xDC00..=0xDFFF) => {}
                    _ => return Err(NoEscape::HalfOfPair),
                },
                0xDC00..=0xDFFF => return Err(NoEscape::HalfOfPair),
                _ => {}
            },
        }
        Ok(())
    }

    /// Passes `\uXXXX`, a unit of UTF-16.
    fn unit(&mut self) -> Option<u32> {
        let digits = self.bytes().get(self.position..self.position + 6)?.strip_prefix(b"\\u")?;
        let unit = digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))?;
        self.position += 6;
        Some(unit)
    }
}

/// Why what follows a backslash is no character.
#[derive(PartialEq, Eq)]
enum NoEscape {
    HalfOfPair,
    Unknown,
}

/// Whether an escape names half of a surrogate pair without the other half (`\ud800`): no Unicode text.
///
/// `serde_json` refuses these only in the strings that it decodes, so they could travel on in a payload.
pub(crate) fn lone_surrogate(text: &str) -> bool {
    let mut scanner = Scanner::new(text);
    while let Some(found) = scanner.bytes().get(scanner.position..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        scanner.position += found;
        match scanner.escape() {
            Ok(()) => {}
            Err(NoEscape::HalfOfPair) => return true,
            // Whatever is escaped, the next character is no backslash of its own.
            Err(NoEscape::Unknown) => scanner.position += 2,
        }
    }
    false
}

/// Whether text stands in a JSON string as it is.
pub(super) fn is_plain(text: &str) -> bool {
    special::<true>(text.as_bytes()).is_none()
}

/// Whether what stands between the quotes of a JSON string has escapes.
pub(super) fn has_escapes(inner: &str) -> bool {
    quote_or_backslash(inner.as_bytes()).is_some()
}

/// Just after the quote that ends the string whose first quote is at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += quote_or_backslash(bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

// As a part of its callers it costs an object's members 15 % more instructions, while [`special`] as a call of its own
// costs an envelope 7 % more (counted by valgrind).
#[inline(never)]
fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    special::<false>(bytes)
}

/// Where the first quote or backslash is, or control character, if `CONTROL`.
///
/// Most strings are so short that beginning a vectorized search takes longer than looking at them eight bytes at a time.
#[inline(always)]
fn special<const CONTROL: bool>(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    const LONG: usize = 32;
    // The highest bit of bytes that are meant; what stands above the lowest such bit means nothing.
    let marks = |word: u64| {
        let is = |byte: u8| {
            let zero = word ^ u64::from_ne_bytes([byte; 8]);
            zero.wrapping_sub(ONES) & !zero
        };
        let control = if CONTROL { word.wrapping_sub(ONES * 0x20) & !word } else { 0 };
        (is(b'"') | is(b'\\') | control) & HIGH
    };
    let is_special = |byte: u8| (byte == b'"') | (byte == b'\\') | (CONTROL && byte < 0x20);
    let (mut at, mut looked) = (0, 0);
    loop {
        if looked >= LONG {
            if !CONTROL {
                return memchr::memchr2(b'"', b'\\', bytes.get(at..)?).map(|found| at + found);
            }
            // In pieces that vectorize.
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
    fn special_bytes_are_found_at_any_offset() {
        let same = |bytes: &[u8]| {
            let is_end = |b: &u8| matches!(b, b'"' | b'\\');
            assert_eq!(special::<false>(bytes), bytes.iter().position(is_end), "{bytes:?}");
            assert_eq!(special::<true>(bytes), bytes.iter().position(|b| is_end(b) || *b < 0x20), "{bytes:?}");
        };
        for length in 0..120 {
            for end in ['"', '\\', '\u{0}', '\u{1f}', '\n'] {
                let text = format!("{}{end}\"\\{}", "#!]é\u{7f} \u{20}".repeat(length), "y".repeat(length % 9));
                for cut in 0..text.len().min(41) {
                    same(&text.as_bytes()[cut..]);
                }
            }
        }
        same(b"");
        same("é".repeat(50).as_bytes());
    }

    #[test]
    fn tokens_cover_the_whole_text() {
        use Token::{Close, Comma, Key, Open, Scalar, String};
        let text = " {\"a\\\"\" : [ -1.5e3,true , \"x:\"],\"b\":{}}\n";
        let expected = [
            Open('{'),
            Key(r#""a\"""#),
            Open('['),
            Scalar("-1.5e3"),
            Comma,
            Scalar("true"),
            Comma,
            String(r#""x:""#),
            Close(']'),
            Comma,
            Key(r#""b""#),
            Open('{'),
            Close('}'),
            Close('}'),
        ];
        assert!(tokens(text).eq(expected));
    }

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
    fn depth_of_invalid_text_is_computed() {
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
