//! A lossless hash of JSON text: numbers of any size and duplicate members count too.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::text_hash;
use crate::json::{Token, push_quoted, string, tokens};

/// Returns `sha256:<hex>` of JSON text whose object members are sorted by key. Texts that differ only in spacing,
/// escapes and member order have equal hashes. Duplicate members count twice, and numbers count as written. Text that
/// is not JSON is hashed unchanged.
#[must_use]
pub fn canonical_text_hash(text: &str) -> String {
    let is_json = serde_json::from_str::<&RawValue>(text).is_ok();
    let canonical = if is_json { canonicalize(text) } else { None };
    text_hash(canonical.as_deref().unwrap_or(text).as_bytes())
}

/// Returns `None` if a string is not valid Unicode.
fn canonicalize(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    // The members of each open container, as key and start offset in `out`. An array has none.
    let mut open: Vec<Vec<(Cow<'_, str>, usize)>> = Vec::new();
    for token in tokens(text) {
        match token {
            Token::Open(brace) => {
                out.push(brace);
                open.push(Vec::new());
            }
            Token::Key(key) => {
                let key = string(key)?;
                let start = out.len();
                push_quoted(&mut out, &key);
                out.push(':');
                open.last_mut()?.push((key, start));
            }
            Token::String(text) => push_quoted(&mut out, &string(text)?),
            Token::Scalar(text) => out.push_str(text),
            Token::Comma => out.push(','),
            Token::Close(brace) => {
                sort_trailing_members(&mut out, &open.pop()?);
                out.push(brace);
            }
        }
    }
    Some(out)
}

/// Sorts the members that stand at the end of `out`.
fn sort_trailing_members(out: &mut String, members: &[(Cow<'_, str>, usize)]) {
    let Some((_, first)) = members.first().filter(|_| !members.is_sorted_by_key(|(key, _)| key)) else { return };
    let first = *first;
    let end = out.split_off(first);
    // One comma separates each member from the next.
    let ends = members.iter().skip(1).map(|(_, start)| start - 1 - first).chain([end.len()]);
    let mut sorted: Vec<_> = members.iter().zip(ends).map(|((key, start), stop)| (key, start - first..stop)).collect();
    // A stable sort, so that duplicate members keep their order.
    sorted.sort_by_key(|(key, _)| *key);
    for (index, (_, range)) in sorted.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&end[range]);
    }
}

#[cfg(test)]
mod tests {
    use super::canonical_text_hash as hash;

    #[test]
    fn text_hash_ignores_only_order_and_spelling() {
        let one = r#"{"name":"a","n":[1,{"x":null,"y":"é"}],"e":{}}"#;
        assert_eq!(hash(one), hash(" { \"e\": {}, \"n\" : [1, {\"y\":\"\\u00e9\", \"x\":null}], \"name\":\"a\" }\n"));
        for other in [
            r#"{"name":"a","n":[1,{"x":null,"y":"é"}]}"#,
            r#"{"name":"a","n":[1.0,{"x":null,"y":"é"}],"e":{}}"#,
            r#"{"name":"a","n":[1,{"x":null,"y":"e"}],"e":{}}"#,
            r#"{"name":"a","name":"a","n":[1,{"x":null,"y":"é"}],"e":{}}"#,
            r#"{"name":"a","n":[{"x":null,"y":"é"},1],"e":{}}"#,
        ] {
            assert_ne!(hash(one), hash(other), "{other}");
        }
        assert_ne!(hash(r#"{"m":12345678901234567890123}"#), hash(r#"{"m":12345678901234567890124}"#));
        assert_ne!(hash(r#"{"a":1,"a":2}"#), hash(r#"{"a":2,"a":1}"#));
        assert_ne!(hash("not json"), hash("not json "));
        let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
        assert_eq!(hash(&deep), hash(&deep));
    }
}
