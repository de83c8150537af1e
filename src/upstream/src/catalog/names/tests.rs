use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use countersign_config::{UpstreamConfig, UpstreamTarget};

fn names(name: &str, prefix: &str) -> Names {
    let target = UpstreamTarget::Command {
        command: "true".into(),
        args: vec![],
        env: std::collections::BTreeMap::new(),
        cwd: None,
    };
    Names::new(&UpstreamConfig { prefix: prefix.to_owned(), ..UpstreamConfig::new(name, target) })
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

#[test]
fn empty_prefix_changes_nothing() {
    let names = names("fs", "");
    assert!(names.is_identity());
    assert_eq!(names.expose("read"), "read");
    assert_eq!(names.upstream_name("read"), Some("read"));
    assert_eq!(names.expose_uri("file:///a"), "file:///a");
    assert_eq!(names.upstream_uri("file:///a"), Some("file:///a"));
    let result = raw(r#"{"contents":[{"uri":"file:///a","text":""}]}"#);
    assert!(matches!(names.expose_result(&result), Cow::Borrowed(_)));
}

#[test]
fn slug_is_a_valid_scheme() {
    for (name, slug) in [
        ("fs", "fs"),
        ("My Server_2", "my-server-2"),
        ("7zip", "x7zip"),
        ("-a", "x-a"),
        ("Grüße", "gr--e"),
        ("", "x"),
        ("a+b", "a-b"),
    ] {
        assert_eq!(names(name, "p__").uri_prefix(), format!("{slug}+"));
        assert!(url::Url::parse(&format!("{slug}+file:///a")).is_ok(), "{slug}");
    }
}

#[test]
fn foreign_names_have_no_own_name() {
    let names = names("fs", "fs__");
    assert_eq!(names.upstream_name("gs__read"), None);
    assert_eq!(names.upstream_name("fs_"), None);
    assert_eq!(names.upstream_uri("gs+file:///a"), None);
    assert_eq!(names.upstream_uri("file:///a"), None);
    assert_eq!(names.upstream_uri(""), None);
    assert_eq!(names.upstream_uri("fé+"), None, "the scheme is not cut within a character");
    assert_eq!(names.upstream_uri("FS+file:///A"), Some("file:///A"), "the case of schemes is ignored");
}

#[test]
fn expose_result_rewrites_only_uris() {
    let names = names("fs", "fs__");
    // Members may follow the URI, and a block that is no link may have a `uri` with another meaning.
    let tool = raw(concat!(
        r#"{ "content":[ {"uri":"file:///a","name":"a","type":"resource_link","x":{"uri":"file:///no"}}, "#,
        r#"{"type":"text","text":"{\"uri\":\"file:///no\"}","uri":"file:///no"},"#,
        r#"{"type":"resource","resource":{ "uri" : "file:///b\u0021" ,"text":"t","n":12345678901234567890123}}],"#,
        r#""structuredContent":{"content":[{"type":"resource_link","uri":"file:///no"}],"n":1.50},"uri":"file:///no"}"#
    ));
    assert_eq!(
        names.expose_result(&tool).get(),
        concat!(
            r#"{ "content":[ {"uri":"fs+file:///a","name":"a","type":"resource_link","x":{"uri":"file:///no"}}, "#,
            r#"{"type":"text","text":"{\"uri\":\"file:///no\"}","uri":"file:///no"},"#,
            r#"{"type":"resource","resource":{ "uri" : "fs+file:///b!" ,"text":"t","n":12345678901234567890123}}],"#,
            r#""structuredContent":{"content":[{"type":"resource_link","uri":"file:///no"}],"n":1.50},"uri":"file:///no"}"#
        )
    );
    let read = raw(r#"{"contents":[{"uri":"file:///a","blob":"AA=="},{"\u0075ri":"file:///b"}],"ttlMs":1e3}"#);
    assert_eq!(
        names.expose_result(&read).get(),
        r#"{"contents":[{"uri":"fs+file:///a","blob":"AA=="},{"\u0075ri":"fs+file:///b"}],"ttlMs":1e3}"#
    );
    let prompt = raw(concat!(
        r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"file:///a","text":""}}},"#,
        r#"{"content":[{"type":"resource_link","uri":"file:///b","name":"b"}],"role":"user"}]}"#
    ));
    assert_eq!(
        names.expose_result(&prompt).get(),
        concat!(
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"fs+file:///a","text":""}}},"#,
            r#"{"content":[{"type":"resource_link","uri":"fs+file:///b","name":"b"}],"role":"user"}]}"#
        )
    );
}

#[test]
fn malformed_results_pass_unchanged() {
    let names = names("fs", "fs__");
    for text in [
        r#"[{"uri":"a"}]"#,
        r#""uri""#,
        r#"{"content":{"uri":"a"}}"#,
        r#"{"content":[["uri"],"uri",{"type":"resource_link","uri":5},{"type":"resource","resource":"uri"}]}"#,
        r#"{"contents":"uri","messages":[{"content":"uri"},5]}"#,
    ] {
        assert_eq!(names.expose_result(&raw(text)).get(), text);
    }
}

#[test]
fn params_are_translated_in_both_directions() {
    let names = names("fs", "fs__");
    for (exposed, own) in [
        (
            r#"{"name":"fs__read","arguments":{"name":"fs__x"},"n":1.0}"#,
            r#"{"name":"read","arguments":{"name":"fs__x"},"n":1.0}"#,
        ),
        (r#"{"uri":"fs+file:///a"}"#, r#"{"uri":"file:///a"}"#),
        (
            r#"{"ref":{"type":"ref/prompt","name":"fs__p"},"argument":{"name":"fs__a","value":""}}"#,
            r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"fs__a","value":""}}"#,
        ),
        (r#"{"ref":{"uri":"fs+file:///{p}"}}"#, r#"{"ref":{"uri":"file:///{p}"}}"#),
        (r#"{"uri":"other:///a"}"#, r#"{"uri":"other:///a"}"#),
    ] {
        assert_eq!(names.upstream_params(&raw(exposed)).get(), own);
    }
    assert_eq!(names.upstream_params_for(&raw(r#"{"name":"fs.read"}"#), "fs__read").get(), r#"{"name":"read"}"#);
    assert_eq!(
        names.expose_params(&raw(r#"{"_meta":{"uri":"x"},"uri":"file:///a"}"#)).get(),
        r#"{"_meta":{"uri":"x"},"uri":"fs+file:///a"}"#
    );
}

#[test]
fn client_rejection_reason_covers_known_limits() {
    for name in ["a", "getUser", "DATA_EXPORT_v2", "admin.tools.list", &"a".repeat(64)] {
        assert_eq!(client_rejection_reason(name), None, "{name}");
    }
    for name in ["", "a b", "a,b", "é", "a/b", &"a".repeat(65), &"a".repeat(129)] {
        assert!(client_rejection_reason(name).is_some(), "{name}");
    }
    assert_ne!(client_rejection_reason(&"a".repeat(65)), client_rejection_reason(&"a".repeat(129)));
}

fn block() -> impl Strategy<Value = Value> {
    ("[a-z]{1,6}", ".{0,12}", any::<u64>(), 0..4_u8).prop_map(|(scheme, rest, number, kind)| {
        let uri = format!("{scheme}:{rest}");
        match kind {
            0 => json!({ "type": "text", "text": uri, "n": number }),
            1 => json!({ "uri": uri, "name": "n", "type": "resource_link", "n": number }),
            2 => json!({ "type": "resource", "resource": { "uri": uri, "text": rest, "_meta": { "uri": uri } } }),
            _ => json!({ "type": "image", "data": "", "uri": uri }),
        }
    })
}

proptest! {
    #[test]
    fn names_and_uris_round_trip(name in ".{0,12}", prefix in ".{0,8}", own in ".{0,20}") {
        let names = names(&name, &prefix);
        let (name, uri) = (names.expose(&own), names.expose_uri(&own));
        prop_assert_eq!(names.upstream_name(&name), Some(own.as_str()));
        prop_assert_eq!(names.upstream_uri(&uri), Some(own.as_str()));
    }

    /// Compares with a rewrite of the parsed tree, and then translates back.
    #[test]
    fn expose_result_equals_tree_rewrite(blocks in prop::collection::vec(block(), 0..5), pretty: bool) {
        let names = names("fs", "fs__");
        let tree = json!({ "content": blocks, "structuredContent": { "content": blocks }, "isError": false });
        let text = if pretty { serde_json::to_string_pretty(&tree) } else { serde_json::to_string(&tree) }.unwrap();
        let text = raw(&text);
        let out = names.expose_result(&text);
        let mut expected = tree.clone();
        for block in expected["content"].as_array_mut().unwrap() {
            let pointer = if block["type"] == "resource_link" { "/uri" } else { "/resource/uri" };
            if let Some(uri) = block.pointer_mut(pointer) {
                *uri = format!("fs+{}", uri.as_str().unwrap()).into();
            }
        }
        prop_assert_eq!(serde_json::from_str::<Value>(out.get()).unwrap(), expected);
        // Apart from the replaced values, the text is the same.
        prop_assert!(out.get().len() >= text.get().len());
    }
}
