use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

const UNUSUAL_OBJECT: &str =
    " { \"a\" : 12345678901234567890123 ,\"b\":{ \"}\":[\"]\\\"\"] } , \"n\\u0061me\":\"x\", \"e\":1e400 }\n";

#[test]
fn members_have_correct_positions() {
    let found: Vec<_> = members(UNUSUAL_OBJECT).map(|m| (m.key.into_owned(), m.value)).collect();
    let expected =
        [("a", "12345678901234567890123"), ("b", "{ \"}\":[\"]\\\"\"] }"), ("name", "\"x\""), ("e", "1e400")];
    assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), v)));
    for member in members(UNUSUAL_OBJECT) {
        assert!(
            UNUSUAL_OBJECT[member.start..member.end].starts_with('"')
                && UNUSUAL_OBJECT[..member.end].ends_with(member.value)
        );
    }
    assert_eq!(members("{ }").count() + members("[1]").count() + members("").count(), 0);
    assert_eq!(elements("[1, [2,3] ,{\"a\":[]}]").map(|e| e.1).collect::<Vec<_>>(), ["1", "[2,3]", "{\"a\":[]}"]);
    assert_eq!(member(UNUSUAL_OBJECT, "name"), Some("\"x\""));
}

#[test]
fn unedited_members_keep_every_byte() {
    for (edits, expected) in [
        (&[][..], UNUSUAL_OBJECT.to_owned()),
        (&[("name", MemberEdit::Set("1"))][..], UNUSUAL_OBJECT.replace("\"x\"", "1")),
        (&[("name", MemberEdit::Drop)][..], UNUSUAL_OBJECT.replace(" , \"n\\u0061me\":\"x\"", "")),
        (&[("a", MemberEdit::Drop)][..], UNUSUAL_OBJECT.replace("\"a\" : 12345678901234567890123 ,", "")),
        (&[("e", MemberEdit::Drop)][..], UNUSUAL_OBJECT.replace(", \"e\":1e400", "")),
        (&[("z", MemberEdit::Set("null"))][..], UNUSUAL_OBJECT.replace("1e400", "1e400,\"z\":null")),
        (&[("z", MemberEdit::Replace("null")), ("a", MemberEdit::SetIfMissing("2"))][..], UNUSUAL_OBJECT.to_owned()),
        (
            &[
                ("a", MemberEdit::Drop),
                ("b", MemberEdit::Drop),
                ("name", MemberEdit::Drop),
                ("e", MemberEdit::Drop),
                ("y", MemberEdit::Set("0")),
            ][..],
            " { \"y\":0 }\n".to_owned(),
        ),
        (
            &[("a", MemberEdit::Drop), ("b", MemberEdit::Drop), ("name", MemberEdit::Drop)][..],
            " { \"e\":1e400 }\n".to_owned(),
        ),
    ] {
        assert_eq!(edit(UNUSUAL_OBJECT, edits), expected, "{edits:?}");
    }
    assert_eq!(edit("{}", &[("a", MemberEdit::Set("1")), ("b", MemberEdit::SetIfMissing("2"))]), r#"{"a":1,"b":2}"#);
    assert_eq!(edit("{ }", &[("a", MemberEdit::Drop)]), "{ }");
    assert_eq!(edit("[1]", &[("a", MemberEdit::Set("1"))]), "[1]");
}

#[test]
fn map_elements_replaces_single_elements() {
    let change = |element: &str| (element == "2").then(|| "two".to_owned());
    assert_eq!(map_elements("[1, 2 ,3]", change).as_deref(), Some("[1, two ,3]"));
    assert_eq!(map_elements("[1]", change), None);
}

proptest! {
    #[test]
    fn edits_of_invalid_json_do_not_panic(text in "[\\[\\]{}:,\"\\\\a1 ]{0,40}") {
        let _ = edit(&text, &[("a", MemberEdit::Set("1")), ("b", MemberEdit::Drop)]);
        let _ = elements(&text).count();
        let _ = map_elements(&text, |_| Some("1".into()));
    }

    #[test]
    fn edited_object_is_json_with_expected_members(
        keys in proptest::collection::vec(0..5_usize, 0..6), ops in proptest::collection::vec(0..4_u8, 5),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let parts: Vec<String> = keys.iter().map(|k| format!(" \"{}\" : {{\"n\":[{k}]}} ", names[*k])).collect();
        let text = format!("{{{}}}", parts.join(","));
        let edits: Vec<_> = names.iter().zip(&ops).map(|(name, op)| (*name, match op {
            0 => MemberEdit::Set("0"),
            1 => MemberEdit::Replace("1"),
            2 => MemberEdit::SetIfMissing("2"),
            _ => MemberEdit::Drop,
        })).collect();
        let edited: Value = serde_json::from_str(&edit(&text, &edits)).unwrap();
        for (index, (name, op)) in edits.iter().enumerate() {
            let exists = keys.contains(&index);
            let expected = match op {
                MemberEdit::Set(_) => Some(serde_json::json!(0)),
                MemberEdit::Replace(_) => exists.then(|| serde_json::json!(1)),
                MemberEdit::SetIfMissing(_) if !exists => Some(serde_json::json!(2)),
                MemberEdit::SetIfMissing(_) => Some(serde_json::json!({"n": [index]})),
                MemberEdit::Drop => None,
            };
            prop_assert_eq!(edited.get(*name), expected.as_ref(), "{}", name);
        }
    }
}

fn drop_members(object: &str, keys: &[&str]) -> String {
    edit_members(object, |key, _| if keys.contains(&key) { MemberAction::Drop } else { MemberAction::Keep })
        .unwrap_or_else(|| object.to_owned())
}

#[test]
fn commas_of_dropped_members_are_removed() {
    let object = r#"{ "a" : 1e2 ,  "b":[{"a":"}"}], "c" :"x,\"" }"#;
    for (keys, left) in [
        (&["a"][..], r#"{ "b":[{"a":"}"}], "c" :"x,\"" }"#),
        (&["b"], r#"{ "a" : 1e2, "c" :"x,\"" }"#),
        (&["c"], r#"{ "a" : 1e2 ,  "b":[{"a":"}"}] }"#),
        (&["a", "b"], r#"{ "c" :"x,\"" }"#),
        (&["b", "c"], r#"{ "a" : 1e2 }"#),
        (&["a", "c"], r#"{ "b":[{"a":"}"}] }"#),
        (&["a", "b", "c"], r"{  }"),
        (&["d"], object),
    ] {
        assert_eq!(drop_members(object, keys), left, "{keys:?}");
    }
    assert_eq!(drop_members(r#"{"\u0061":1,"b":2,"a":3}"#, &["a"]), r#"{"b":2}"#, "escaped and repeated names");
    assert_eq!(drop_members("{}", &["a"]), "{}");
    assert_eq!(drop_members("[1]", &["a"]), "[1]");
}

#[test]
fn only_top_level_strings_are_replaced() {
    let text = r#"{"x":{"name":"a"},"name" : "a\n","n":12345678901234567890123,"name":1}"#;
    let out = replace_strings(text, &["name"], |_, old| Some(format!("p__{old}"))).unwrap();
    assert_eq!(out, r#"{"x":{"name":"a"},"name" : "p__a\n","n":12345678901234567890123,"name":1}"#);
}

#[test]
fn invalid_json_does_not_panic() {
    for text in ["", "{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1,", "[", "[1,", "\"\\", "}", "{,}", "{\"a\":}"] {
        let _ = drop_members(text, &["a"]);
        let _ = replace_strings(text, &["a"], |_, _| Some(String::new()));
    }
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[a-c\\\\\"{}\\[\\],: \u{e9}]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Compares text edits with editing a parsed tree.
    #[test]
    fn text_edits_match_tree_edits(members in prop::collection::vec(("[a-d\\\\\"]{1,2}", tree()), 0..6), pretty: bool) {
        let tree: serde_json::Map<String, Value> = members.into_iter().collect();
        let text = if pretty { serde_json::to_string_pretty(&tree) } else { serde_json::to_string(&tree) }.unwrap();
        let dropped: Value = serde_json::from_str(&drop_members(&text, &["a", "b"])).unwrap();
        let mut expected = tree.clone();
        expected.remove("a");
        expected.remove("b");
        prop_assert_eq!(dropped, Value::Object(expected));
        let set = edit_members(&text, |key, _| if key == "c" { MemberAction::Set("[0]".into()) } else { MemberAction::Keep });
        let set: Value = serde_json::from_str(set.as_deref().unwrap_or(&text)).unwrap();
        let mut expected = tree;
        if let Some(c) = expected.get_mut("c") {
            *c = json!([0]);
        }
        prop_assert_eq!(set, Value::Object(expected));
    }
}

#[test]
fn new_members_are_appended() {
    assert_eq!(add_members("{}", &[("a", "1")]), r#"{"a":1}"#);
    assert_eq!(add_members("{ }", &[("a", "1"), ("b", "{}")]), r#"{ "a":1,"b":{}}"#);
    assert_eq!(add_members("{\"x\" : [1.0] }\n", &[("a", "1")]), "{\"x\" : [1.0] ,\"a\":1}\n");
    assert_eq!(add_members(r#"{"x":"}"}"#, &[("a\"b", "null")]), r#"{"x":"}","a\"b":null}"#);
    assert_eq!(add_members(r#"{"x":1}"#, &[]), r#"{"x":1}"#);
    assert_eq!(add_members(r#"{"x":{}}"#, &[("y", "2")]), r#"{"x":{},"y":2}"#);
}

#[test]
fn non_objects_are_unchanged() {
    for text in ["", "[]", "1", "\"{}\"", "null", "}", "[{}"] {
        assert_eq!(add_members(text, &[("a", "1")]), text);
        assert_eq!(edit(text, &[("a", MemberEdit::Set("1"))]), text);
        assert_eq!(merge_meta(text, &[("a", MemberEdit::Set("1"))]), text);
    }
}

#[test]
fn existing_members_get_new_value() {
    let set = |object, edits: &[(&str, &'static str)]| {
        edit(object, &edits.iter().map(|(key, value)| (*key, MemberEdit::Set(value))).collect::<Vec<_>>())
    };
    assert_eq!(set(r#"{"a": 1 ,"b":2}"#, &[("a", "9")]), r#"{"a": 9 ,"b":2}"#);
    assert_eq!(set(r#"{"a":1}"#, &[("b", "2"), ("a", "9")]), r#"{"a":9,"b":2}"#);
    assert_eq!(set(r#"{"a":1,"\u0061":{"a":3}}"#, &[("a", "9")]), r#"{"a":9,"\u0061":9}"#);
    assert_eq!(set(r#"{"x":{"a":1}}"#, &[("a", "9")]), r#"{"x":{"a":1},"a":9}"#);
    assert_eq!(set(r#"{"x":1}"#, &[("a\"b", "9")]), r#"{"x":1,"a\"b":9}"#);
    assert_eq!(set("{}", &[]), "{}");
}

#[test]
fn meta_is_created_or_merged() {
    let merge = |object, entries: &[(&str, &'static str)]| {
        merge_meta(object, &entries.iter().map(|(key, value)| (*key, MemberEdit::Set(value))).collect::<Vec<_>>())
    };
    assert_eq!(merge("{}", &[("k", "1")]), r#"{"_meta":{"k":1}}"#);
    assert_eq!(merge(r#"{"a":1}"#, &[("k", "1")]), r#"{"a":1,"_meta":{"k":1}}"#);
    assert_eq!(merge(r#"{"_meta":{},"a":1}"#, &[("k", "1")]), r#"{"_meta":{"k":1},"a":1}"#);
    assert_eq!(
        merge(r#"{"_meta": { "x" : 1.0 } , "a":1}"#, &[("k", "1"), ("l", "2")]),
        r#"{"_meta": { "x" : 1.0,"k":1,"l":2 } , "a":1}"#
    );
    assert_eq!(merge(r#"{"_meta":{"k":0,"x":5}}"#, &[("k", "1")]), r#"{"_meta":{"k":1,"x":5}}"#);
    assert_eq!(merge(r#"{"_meta":null}"#, &[("k", "1")]), r#"{"_meta":{"k":1}}"#);
    assert_eq!(merge(r#"{"a":{"_meta":{}}}"#, &[("k", "1")]), r#"{"a":{"_meta":{}},"_meta":{"k":1}}"#);
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    let key = prop_oneof![Just("_meta".to_owned()), Just("a".to_owned()), ".{0,6}"];
    prop::collection::vec((key, tree()), 0..6).prop_map(|members| members.into_iter().collect())
}

proptest! {
    #[test]
    fn adding_keeps_every_other_byte(object in object(), key in "[a-z\"\\\\]{3,8}", value in tree(), pretty: bool) {
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
    fn set_changes_only_named_members(object in object(), value in tree(), pretty: bool) {
        let text = if pretty { format!("{:#}", json!(object)) } else { json!(object).to_string() };
        let raw = value.to_string();
        let out = edit(&text, &[("a", MemberEdit::Set(&raw)), ("zz", MemberEdit::Set("0"))]);
        let mut expected = object.clone();
        expected.insert("a".into(), value);
        expected.insert("zz".into(), 0.into());
        prop_assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), Value::Object(expected));
        // Restoring the old value restores the text.
        if let Some(old) = object.get("a") && !pretty {
            let restored = edit(&out, &[("a", MemberEdit::Set(&old.to_string()))]);
            prop_assert_eq!(restored.replacen(",\"zz\":0", "", 1).len(), if object.contains_key("zz") { restored.len() } else { text.len() });
        }
    }

    #[test]
    fn merge_meta_changes_only_meta(object in object(), value in tree(), pretty: bool) {
        let text = if pretty { format!("{:#}", json!(object)) } else { json!(object).to_string() };
        let out: Value = serde_json::from_str(&merge_meta(&text, &[("k", MemberEdit::Set(&value.to_string()))])).expect("JSON");
        let mut expected = object.clone();
        let meta = expected.entry("_meta").or_insert_with(|| json!({}));
        if !meta.is_object() {
            *meta = json!({});
        }
        meta["k"] = value;
        prop_assert_eq!(out, Value::Object(expected));
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,40}") {
        let _ = (add_members(&text, &[("a", "1")]), merge_meta(&text, &[("a", MemberEdit::Set("1"))]), edit_members(&text, |_, _| MemberAction::Drop));
    }
}

#[test]
fn raw_value_keeps_text_unchanged() {
    for text in ["1", r#"{"a":[1]}"#, "\"é\""] {
        assert_eq!(trusted_raw_value(text).map(RawValue::get), Some(text));
    }
}
