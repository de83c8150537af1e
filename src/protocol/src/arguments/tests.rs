use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[track_caller]
fn checked(text: &str, max_depth: usize) -> Result<(), McpError> {
    let raw = RawValue::from_string(text.to_owned()).unwrap_or_else(|e| panic!("{text}: {e}"));
    check(&raw, max_depth)
}

#[test]
fn keys_are_unique_in_each_object() {
    for fine in [
        "{}",
        "[]",
        "1",
        "\"a\"",
        r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#,
        r#"[{"a":1},{"a":1}]"#,
        r#"{"a":"a","b":"a","c":["a","a"]}"#,
        r#"{"a":"{\"b\":1,\"b\":2}"}"#,
        r#"{"a":"\\","b":"\\\"","c":1}"#,
        r#"{"A":1,"a":2}"#,
        r#"{"":1," ":2}"#,
    ] {
        assert_eq!(checked(fine, 16), Ok(()), "{fine}");
    }
    for (repeated, key) in [
        (r#"{"a":1,"a":2}"#, "a"),
        (r#"{"a":1,"b":{"c":1,"c":1}}"#, "c"),
        (r#"[[{"x":[{"k":null , "k" :null}]}]]"#, "k"),
        (r#"{"a":1,"\u0061":2}"#, "a"),
        (r#"{"\u0061":1,"a":2}"#, "a"),
        (r#"{"😀":1,"\ud83d\ude00":2}"#, "😀"),
        (r#"{"a\/b":1,"a/b":2}"#, "a/b"),
        (r#"{"":1,"":2}"#, ""),
        (r#"{"a":{"b":1},"c":[{}],"a":1}"#, "a"),
    ] {
        let error = checked(repeated, 16).expect_err(repeated);
        assert_eq!(error.kind, ErrorKind::InvalidParams);
        assert_eq!(error.data["key"], key, "{repeated}");
    }
}

#[test]
fn key_that_is_read_as_json_is_refused() {
    for text in [
        r#"{"$serde_json::private::RawValue":"{\"path\":\"/tmp\"}"}"#,
        r#"{"a":[{"\u0024serde_json::private::RawValue":"1"}]}"#,
    ] {
        let error = checked(text, 16).expect_err(text);
        assert_eq!(error.data["key"], RAW_VALUE_KEY, "{text}");
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(!value.to_string().contains("RawValue"), "the key no longer needs to be refused: {value}");
    }
    assert_eq!(checked(r#"{"a":"$serde_json::private::RawValue"}"#, 16), Ok(()));
}

#[test]
fn duplicates_among_many_keys_are_found() {
    let object = |extra: &str| {
        let members: Vec<_> = (0..5000).map(|i| format!("\"k{i}\":{i}")).collect();
        format!("{{{}{extra}}}", members.join(","))
    };
    assert_eq!(checked(&object(""), 4), Ok(()));
    assert!(checked(&object(r#","k0":0"#), 4).is_err());
    assert!(checked(&object(r#","k\u0034999":0"#), 4).is_err());
}

#[test]
fn nesting_is_limited_without_recursion() {
    assert_eq!(checked("[[[1]]]", 3), Ok(()));
    let error = checked("[[[[1]]]]", 3).expect_err("four levels");
    assert_eq!((error.kind, &error.data["maxDepth"]), (ErrorKind::InvalidParams, &json!(3)));
    assert!(checked("1", 0).is_ok() && checked("{}", 0).is_err());
    // `RawValue` itself accepts any depth, so such text can arrive here.
    let deep = format!("{}{}", "[".repeat(1 << 19), "]".repeat(1 << 19));
    let small = std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
        assert!(checked(&deep, 128).is_err());
        assert!(checked(&deep, usize::MAX).is_ok());
    });
    assert!(small.map(|thread| thread.join().is_ok()).unwrap_or(false));
}

#[test]
fn canonical_hash_is_stable() {
    let value = json!({ "b": { "y": true, "x": "é" }, "a": [1, 2.5, null] });
    assert_eq!(hash(&value), text_hash(r#"{"a":[1,2.5,null],"b":{"x":"é","y":true}}"#));
    assert_eq!(canonical_text_hash(""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_ne!(hash(&json!([1, 2])), hash(&json!([2, 1])));
    assert_ne!(hash(&json!("1")), hash(&json!(1)));
    assert_ne!(hash(&json!([])), hash(&json!({})));
    assert_ne!(hash(&json!(["a", "b"])), hash(&json!(["a,b"])));
}

fn hash(value: &Value) -> String {
    canonical_text_hash(&value.to_string())
}

#[test]
fn text_hash_ignores_only_order_and_spelling() {
    let hash = canonical_text_hash;
    let original = r#"{"name":"a","n":[1,{"x":null,"y":"é"}],"e":{}}"#;
    assert_eq!(hash(original), hash(" { \"e\": {}, \"n\" : [1, {\"y\":\"\\u00e9\", \"x\":null}], \"name\":\"a\" }\n"));
    for other in [
        r#"{"name":"a","n":[1,{"x":null,"y":"é"}]}"#,
        r#"{"name":"a","n":[1.0,{"x":null,"y":"é"}],"e":{}}"#,
        r#"{"name":"a","n":[1,{"x":null,"y":"e"}],"e":{}}"#,
        r#"{"name":"a","name":"a","n":[1,{"x":null,"y":"é"}],"e":{}}"#,
        r#"{"name":"a","n":[{"x":null,"y":"é"},1],"e":{}}"#,
    ] {
        assert_ne!(hash(original), hash(other), "{other}");
    }
    assert_ne!(hash(r#"{"m":12345678901234567890123}"#), hash(r#"{"m":12345678901234567890124}"#));
    assert_ne!(hash(r#"{"a":1,"a":2}"#), hash(r#"{"a":2,"a":1}"#));
    assert_ne!(hash("not json"), hash("not json "));
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    assert_eq!(hash(&deep), hash(&deep));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), ".{0,8}".prop_map(Value::from)];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Returns the same value with the keys of every object in reverse.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(members) => Value::Object(members.iter().rev().map(|(k, v)| (k.clone(), reversed(v))).collect()),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn canonical_hash_ignores_key_order(value in value()) {
        let other = reversed(&value);
        prop_assert_eq!(hash(&value), hash(&other));
        prop_assert_eq!(hash(&value), canonical_text_hash(&format!("{other:#}")));
    }

    #[test]
    fn serialized_values_have_unique_keys(value in value()) {
        prop_assert_eq!(checked(&format!("{value:#}"), 64), Ok(()));
    }

    /// A reader that uses the first of several duplicates and one that uses the last never see different arguments.
    #[test]
    fn repeated_member_is_found_at_any_depth(value in value(), key in "[a-z\"\\\\é]{1,4}", depth in 0_usize..6) {
        let quoted = Value::from(key).to_string();
        let mut text = format!("{{{quoted}:{value},{quoted}:{value}}}");
        for _ in 0..depth {
            text = format!(r#"{{"x":[{text}]}}"#);
        }
        prop_assert!(checked(&text, 64).is_err());
    }
}
