//! A hash of JSON text that loses nothing of it: numbers beyond any machine's and members that stand twice count too.

use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{Sink, finish, write_scalar};

/// `sha256:<hex>` of JSON text whose objects are put in order by key. Equal for texts that differ in spacing, escapes
/// and the order of members only; a member that stands twice counts twice, and numbers count as they are written.
/// Text that is no JSON is hashed as it is.
#[must_use]
pub fn canonical_text_hash(text: &str) -> String {
    if serde_json::from_str::<&RawValue>(text).is_err() {
        return super::text_hash(text.as_bytes());
    }
    let mut sink = Sink(Sha256::new());
    match write(&mut sink, text) {
        Some(()) => finish(sink.0),
        None => super::text_hash(text.as_bytes()),
    }
}

enum Step<'a> {
    Text(&'static [u8]),
    Key(Cow<'a, str>),
    Value(&'a str),
}

/// A stack of its own instead of recursion: the text comes from anywhere.
fn write(sink: &mut Sink, text: &str) -> Option<()> {
    let mut steps = vec![Step::Value(text)];
    while let Some(step) = steps.pop() {
        match step {
            Step::Text(text) => sink.0.update(text),
            Step::Key(key) => {
                write_scalar(sink, key.as_ref());
                sink.0.update(b":");
            }
            Step::Value(text) => match text.trim_start().as_bytes().first()? {
                b'{' => {
                    let Members(mut members) = serde_json::from_str(text).ok()?;
                    // Stable, so that what stands twice keeps its order.
                    members.sort_by(|(a, _), (b, _)| a.cmp(b));
                    sink.0.update(b"{");
                    steps.push(Step::Text(b"}"));
                    for (i, (key, value)) in members.into_iter().enumerate().rev() {
                        steps.push(Step::Value(value.get()));
                        steps.push(Step::Key(key));
                        if i > 0 {
                            steps.push(Step::Text(b","));
                        }
                    }
                }
                b'[' => {
                    let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                    sink.0.update(b"[");
                    steps.push(Step::Text(b"]"));
                    for (i, item) in items.into_iter().enumerate().rev() {
                        steps.push(Step::Value(item.get()));
                        if i > 0 {
                            steps.push(Step::Text(b","));
                        }
                    }
                }
                b'"' => write_scalar(sink, serde_json::from_str::<String>(text).ok()?.as_str()),
                _ => sink.0.update(text.trim().as_bytes()),
            },
        }
    }
    Some(())
}

struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    members.push((Cow::Owned(key), value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use super::canonical_text_hash as hash;

    #[test]
    fn order_and_spelling_do_not_count_and_everything_else_does() {
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
