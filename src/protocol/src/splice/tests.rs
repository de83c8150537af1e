use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

#[test]
fn members_go_to_the_end() {
    assert_eq!(add_members("{}", &[("a", "1")]), r#"{"a":1}"#);
    assert_eq!(add_members("{ }", &[("a", "1"), ("b", "{}")]), r#"{ "a":1,"b":{}}"#);
    assert_eq!(add_members("{\"x\" : [1.0] }\n", &[("a", "1")]), "{\"x\" : [1.0] ,\"a\":1}\n");
    assert_eq!(add_members(r#"{"x":"}"}"#, &[("a\"b", "null")]), r#"{"x":"}","a\"b":null}"#);
    assert_eq!(add_members(r#"{"x":1}"#, &[]), r#"{"x":1}"#);
    assert_eq!(add_members(r#"{"x":{}}"#, &[("y", "2")]), r#"{"x":{},"y":2}"#);
}

#[test]
fn what_is_no_object_stays_as_it_is() {
    for text in ["", "[]", "1", "\"{}\"", "null", "}", "[{}"] {
        assert_eq!(add_members(text, &[("a", "1")]), text);
        assert_eq!(set_members(text, &[("a", "1")]), text);
        assert_eq!(merge_meta(text, &[("a", "1")]), text);
    }
}

#[test]
fn members_that_are_there_get_the_new_value() {
    assert_eq!(set_members(r#"{"a": 1 ,"b":2}"#, &[("a", "9")]), r#"{"a": 9 ,"b":2}"#);
    assert_eq!(set_members(r#"{"a":1}"#, &[("b", "2"), ("a", "9")]), r#"{"a":9,"b":2}"#);
    assert_eq!(set_members(r#"{"a":1,"\u0061":{"a":3}}"#, &[("a", "9")]), r#"{"a":9,"\u0061":9}"#);
    assert_eq!(set_members(r#"{"x":{"a":1}}"#, &[("a", "9")]), r#"{"x":{"a":1},"a":9}"#);
    assert_eq!(set_members("{}", &[]), "{}");
}

#[test]
fn meta_is_made_or_joined() {
    assert_eq!(merge_meta("{}", &[("k", "1")]), r#"{"_meta":{"k":1}}"#);
    assert_eq!(merge_meta(r#"{"a":1}"#, &[("k", "1")]), r#"{"a":1,"_meta":{"k":1}}"#);
    assert_eq!(merge_meta(r#"{"_meta":{},"a":1}"#, &[("k", "1")]), r#"{"_meta":{"k":1},"a":1}"#);
    assert_eq!(
        merge_meta(r#"{"_meta": { "x" : 1.0 } , "a":1}"#, &[("k", "1"), ("l", "2")]),
        r#"{"_meta": { "x" : 1.0 ,"k":1,"l":2} , "a":1}"#
    );
    assert_eq!(merge_meta(r#"{"_meta":{"k":0,"x":5}}"#, &[("k", "1")]), r#"{"_meta":{"k":1,"x":5}}"#);
    assert_eq!(merge_meta(r#"{"_meta":null}"#, &[("k", "1")]), r#"{"_meta":{"k":1}}"#);
    assert_eq!(merge_meta(r#"{"a":{"_meta":{}}}"#, &[("k", "1")]), r#"{"a":{"_meta":{}},"_meta":{"k":1}}"#);
    assert_eq!(merge_meta(r#"{"a":1}"#, &[]), r#"{"a":1}"#);
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    let key = prop_oneof![Just("_meta".to_owned()), Just("a".to_owned()), ".{0,6}"];
    prop::collection::vec((key, json_value()), 0..6).prop_map(|members| members.into_iter().collect())
}

proptest! {
    #[test]
    fn adding_keeps_every_other_byte(object in object(), key in "[a-z\"\\\\]{3,8}", value in json_value(), pretty: bool) {
        let text = if pretty { format!("{:#}", json!(object)) } else { json!(object).to_string() };
        let out = add_members(&text, &[(&key, &value.to_string())]);
        let body = text.strip_suffix('}').expect("an object");
        let kept = out.starts_with(body) && out.ends_with('}');
        prop_assert!(kept);
        let mut expected = object.clone();
        expected.insert(key, value);
        prop_assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), Value::Object(expected));
    }

    #[test]
    fn setting_changes_those_members_alone(object in object(), value in json_value(), pretty: bool) {
        let text = if pretty { format!("{:#}", json!(object)) } else { json!(object).to_string() };
        let raw = value.to_string();
        let out = set_members(&text, &[("a", &raw), ("zz", "0")]);
        let mut expected = object.clone();
        expected.insert("a".into(), value);
        expected.insert("zz".into(), 0.into());
        prop_assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), Value::Object(expected));
        // Taking out what was put in gives the text back.
        if let Some(old) = object.get("a") && !pretty {
            let put_back = set_members(&out, &[("a", &old.to_string())]);
            prop_assert_eq!(put_back.replacen(",\"zz\":0", "", 1).len(), if object.contains_key("zz") { put_back.len() } else { text.len() });
        }
    }

    #[test]
    fn merging_touches_nothing_but_meta(object in object(), value in json_value(), pretty: bool) {
        let text = if pretty { format!("{:#}", json!(object)) } else { json!(object).to_string() };
        let out: Value = serde_json::from_str(&merge_meta(&text, &[("k", &value.to_string())])).expect("JSON");
        let mut expected = object.clone();
        let meta = expected.entry("_meta").or_insert_with(|| json!({}));
        if !meta.is_object() {
            *meta = json!({});
        }
        meta["k"] = value;
        prop_assert_eq!(out, Value::Object(expected));
    }

    #[test]
    fn any_text_is_answered(text in ".{0,40}") {
        let _ = (add_members(&text, &[("a", "1")]), set_members(&text, &[("a", "1")]), merge_meta(&text, &[("a", "1")]));
    }
}
