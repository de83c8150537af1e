//! Changes members of JSON objects that stay text: every byte that is not meant stays as it was, separators included.
//!
//! For text that is known to be JSON (a [`serde_json::value::RawValue`], or what was parsed before): it is walked over
//! once, by structure alone. Whatever else comes in, nothing panics and nothing recurses.

use std::borrow::Cow;

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    pub key: Cow<'a, str>,
    /// Its value as it is written.
    pub value: &'a str,
    /// Where its key begins in the object's text, in bytes.
    pub start: usize,
    /// Where its value ends.
    pub end: usize,
}

/// The members of an object, in order, repeated ones too; none of what is no object.
#[must_use]
pub fn members(object: &str) -> Members<'_> {
    Members { walk: Walk::new(object, b'{') }
}

/// The value of a member; of the last one, where there are several, as most readers see it.
#[must_use]
pub fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    members(object).filter(|member| member.key == key).last().map(|member| member.value)
}

/// The elements of an array with where each begins; none of what is no array.
#[must_use]
pub fn elements(array: &str) -> Elements<'_> {
    Elements { walk: Walk::new(array, b'[') }
}

/// The string that JSON text is, borrowed where nothing in it is escaped.
#[must_use]
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(value).ok().map(Cow::Owned)
}

/// What becomes of a member. Values are JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// It gets this value, at the end of the object if it is not there.
    Set(&'a str),
    /// It gets this value if it is there.
    Replace(&'a str),
    /// It is added with this value if it is not there.
    Default(&'a str),
    Drop,
}

/// Writes an object with those members changed. Keys are plain ASCII without characters that JSON escapes; there may be
/// 64 of them. What is no object is written as it is.
pub fn edit_into(out: &mut String, object: &str, edits: &[(&str, Op<'_>)]) {
    edit_members_into(out, object, members(object), edits);
}

/// As [`edit_into`], for an object whose members were found before.
pub(super) fn edit_members_into<'a>(
    out: &mut String,
    object: &str,
    members: impl Iterator<Item = Member<'a>>,
    edits: &[(&str, Op<'_>)],
) {
    // What lies before `copied` is written, as far as it stays; the last member that was seen ends at `end`.
    let (mut seen, mut kept, mut end, mut copied) = (0_u64, false, 0, 0);
    for member in members {
        if !kept && end > 0 {
            // What separates it from those that are dropped goes with them.
            copied = member.start;
        }
        let goes_from = if kept { end } else { member.start };
        end = member.end;
        let edit = edits.iter().position(|(key, _)| *key == member.key);
        seen |= edit.map_or(0, |at| 1 << at.min(63));
        match edit.and_then(|at| edits.get(at)).map(|(_, op)| *op) {
            Some(Op::Drop) => {
                out.push_str(&object[copied..goes_from]);
                copied = end;
                continue;
            }
            Some(Op::Set(value) | Op::Replace(value)) if value != member.value => {
                out.push_str(&object[copied..end - member.value.len()]);
                out.push_str(value);
                copied = end;
            }
            _ => {}
        }
        kept = true;
    }
    if end == 0 {
        if !object.trim_start().starts_with('{') {
            out.push_str(object);
            return;
        }
        // Behind the brace of an empty object.
        end = object.find('{').map_or(0, |brace| brace + 1);
    }
    out.push_str(&object[copied..end]);
    for (at, (key, op)) in edits.iter().enumerate() {
        let (Op::Set(value) | Op::Default(value)) = op else { continue };
        if seen & (1 << at.min(63)) != 0 {
            continue;
        }
        out.push_str(if kept { ",\"" } else { "\"" });
        kept = true;
        out.push_str(key);
        out.push_str("\":");
        out.push_str(value);
    }
    out.push_str(&object[end..]);
}

/// As [`edit_into`], into a text of its own.
#[must_use]
pub fn edit(object: &str, edits: &[(&str, Op<'_>)]) -> String {
    let mut out = String::with_capacity(object.len() + growth(edits));
    edit_into(&mut out, object, edits);
    out
}

/// How many bytes longer the edits can make an object.
pub(super) fn growth(edits: &[(&str, Op<'_>)]) -> usize {
    let of = |(key, op): &(&str, Op<'_>)| match op {
        Op::Set(value) | Op::Replace(value) | Op::Default(value) => key.len() + value.len() + 4,
        Op::Drop => 0,
    };
    edits.iter().map(of).sum()
}

/// Writes an array with those of its elements in another form that `change` gives one for; `None` if it gives none.
#[must_use]
pub fn map_elements<'a>(array: &'a str, mut change: impl FnMut(&'a str) -> Option<String>) -> Option<String> {
    let mut out = String::new();
    let mut copied = 0;
    for (start, element) in elements(array) {
        if let Some(changed) = change(element) {
            out.push_str(&array[copied..start]);
            out.push_str(&changed);
            copied = start + element.len();
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(&array[copied..]);
    Some(out)
}

/// See [`members`].
pub struct Members<'a> {
    walk: Walk<'a>,
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let (start, key) = self.walk.value()?;
        let key = string(key)?;
        self.walk.colon()?;
        let (at, value) = self.walk.value()?;
        self.walk.comma();
        Some(Member { key, value, start, end: at + value.len() })
    }
}

/// See [`elements`].
pub struct Elements<'a> {
    walk: Walk<'a>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<(usize, &'a str)> {
        let element = self.walk.value()?;
        self.walk.comma();
        Some(element)
    }
}

/// A position in a container.
struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn new(text: &'a str, open: u8) -> Self {
        let mut walk = Self { text, at: 0 };
        walk.space();
        // Past the end there is nothing to find.
        walk.at = if walk.peek() == Some(open) { walk.at + 1 } else { text.len() };
        walk
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Steps over a value and gives it with its place; `None` at the end of the container.
    fn value(&mut self) -> Option<(usize, &'a str)> {
        self.space();
        let start = self.at;
        self.at = value_end(self.text.as_bytes(), start)?;
        self.text.get(start..self.at).map(|value| (start, value))
    }

    fn colon(&mut self) -> Option<()> {
        self.space();
        (self.peek() == Some(b':')).then(|| self.at += 1)
    }

    fn comma(&mut self) {
        self.space();
        if self.peek() == Some(b',') {
            self.at += 1;
        }
    }
}

/// Where the value that begins at `start` ends.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start)? {
        b'"' => string_end(bytes, start),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0_usize, start);
            loop {
                match bytes.get(at)? {
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    b'"' => at = string_end(bytes, at)? - 1,
                    _ => {}
                }
                at += 1;
            }
        }
        b'}' | b']' | b',' | b':' => None,
        _ => {
            let rest = bytes.get(start..)?;
            let end = rest.iter().position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b':'));
            Some(start + end.unwrap_or(rest.len()))
        }
    }
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

/// Most strings are so short that beginning a vectorized search takes longer than looking at them eight bytes at a time.
fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    const SHORT: usize = 4;
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    // The highest bit of bytes that are `byte`; what stands above the lowest such bit means nothing.
    let marks = |word: u64, byte: u8| {
        let zero = word ^ u64::from_ne_bytes([byte; 8]);
        zero.wrapping_sub(LOW) & !zero & HIGH
    };
    let (words, _) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().take(SHORT).enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = marks(word, b'"') | marks(word, b'\\');
        if found != 0 {
            return Some(at * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let looked_at = words.len().min(SHORT) * 8;
    memchr::memchr2(b'"', b'\\', bytes.get(looked_at..)?).map(|found| looked_at + found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const ODD: &str =
        " { \"a\" : 12345678901234567890123 ,\"b\":{ \"}\":[\"]\\\"\"] } , \"n\\u0061me\":\"x\", \"e\":1e400 }\n";

    #[test]
    fn ends_of_strings_are_found_wherever_they_are() {
        for length in 0..80 {
            for end in ['"', '\\'] {
                let text =
                    format!("{}{end}\"\\{}", "#!]é\u{22}".replace('"', "x").repeat(length), "y".repeat(length % 9));
                let expected = text.find(['"', '\\']);
                assert_eq!(quote_or_backslash(text.as_bytes()), expected, "{text}");
                for cut in 0..text.len() {
                    let bytes = &text.as_bytes()[cut..];
                    let expected = bytes.iter().position(|b| matches!(b, b'"' | b'\\'));
                    assert_eq!(quote_or_backslash(bytes), expected, "{text} from {cut}");
                }
            }
        }
        assert_eq!(quote_or_backslash(b""), None);
    }

    #[test]
    fn members_are_found_where_they_stand() {
        let found: Vec<_> = members(ODD).map(|m| (m.key.into_owned(), m.value)).collect();
        let expected =
            [("a", "12345678901234567890123"), ("b", "{ \"}\":[\"]\\\"\"] }"), ("name", "\"x\""), ("e", "1e400")];
        assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), v)));
        for member in members(ODD) {
            assert!(ODD[member.start..member.end].starts_with('"') && ODD[..member.end].ends_with(member.value));
        }
        assert_eq!(members("{ }").count() + members("[1]").count() + members("").count(), 0);
        assert_eq!(elements("[1, [2,3] ,{\"a\":[]}]").map(|e| e.1).collect::<Vec<_>>(), ["1", "[2,3]", "{\"a\":[]}"]);
        assert_eq!(member(ODD, "name"), Some("\"x\""));
    }

    #[test]
    fn what_is_not_meant_keeps_every_byte() {
        for (edits, expected) in [
            (&[][..], ODD.to_owned()),
            (&[("name", Op::Set("1"))][..], ODD.replace("\"x\"", "1")),
            (&[("name", Op::Drop)][..], ODD.replace(" , \"n\\u0061me\":\"x\"", "")),
            (&[("a", Op::Drop)][..], ODD.replace("\"a\" : 12345678901234567890123 ,", "")),
            (&[("e", Op::Drop)][..], ODD.replace(", \"e\":1e400", "")),
            (&[("z", Op::Set("null"))][..], ODD.replace("1e400", "1e400,\"z\":null")),
            (&[("z", Op::Replace("null")), ("a", Op::Default("2"))][..], ODD.to_owned()),
            (
                &[("a", Op::Drop), ("b", Op::Drop), ("name", Op::Drop), ("e", Op::Drop), ("y", Op::Set("0"))][..],
                " { \"y\":0 }\n".to_owned(),
            ),
            (&[("a", Op::Drop), ("b", Op::Drop), ("name", Op::Drop)][..], " { \"e\":1e400 }\n".to_owned()),
        ] {
            assert_eq!(edit(ODD, edits), expected, "{edits:?}");
        }
        assert_eq!(edit("{}", &[("a", Op::Set("1")), ("b", Op::Default("2"))]), r#"{"a":1,"b":2}"#);
        assert_eq!(edit("{ }", &[("a", Op::Drop)]), "{ }");
        assert_eq!(edit("[1]", &[("a", Op::Set("1"))]), "[1]");
    }

    #[test]
    fn elements_change_one_by_one() {
        let change = |element: &str| (element == "2").then(|| "two".to_owned());
        assert_eq!(map_elements("[1, 2 ,3]", change).as_deref(), Some("[1, two ,3]"));
        assert_eq!(map_elements("[1]", change), None);
    }

    proptest! {
        #[test]
        fn nothing_panics_on_what_is_no_json(text in "[\\[\\]{}:,\"\\\\a1 ]{0,40}") {
            let _ = edit(&text, &[("a", Op::Set("1")), ("b", Op::Drop)]);
            let _ = elements(&text).count();
            let _ = map_elements(&text, |_| Some("1".into()));
        }

        #[test]
        fn an_edited_object_is_json_and_says_what_it_should(
            keys in proptest::collection::vec(0..5_usize, 0..6), ops in proptest::collection::vec(0..4_u8, 5),
        ) {
            let names = ["a", "b", "c", "d", "e"];
            let parts: Vec<String> = keys.iter().map(|k| format!(" \"{}\" : {{\"n\":[{k}]}} ", names[*k])).collect();
            let text = format!("{{{}}}", parts.join(","));
            let edits: Vec<_> = names.iter().zip(&ops).map(|(name, op)| (*name, match op {
                0 => Op::Set("0"),
                1 => Op::Replace("1"),
                2 => Op::Default("2"),
                _ => Op::Drop,
            })).collect();
            let edited: Value = serde_json::from_str(&edit(&text, &edits)).unwrap();
            for (at, (name, op)) in edits.iter().enumerate() {
                let there = keys.contains(&at);
                let expected = match op {
                    Op::Set(_) => Some(serde_json::json!(0)),
                    Op::Replace(_) => there.then(|| serde_json::json!(1)),
                    Op::Default(_) if !there => Some(serde_json::json!(2)),
                    Op::Default(_) => Some(serde_json::json!({"n": [at]})),
                    Op::Drop => None,
                };
                prop_assert_eq!(edited.get(*name), expected.as_ref(), "{}", name);
            }
        }
    }
}
