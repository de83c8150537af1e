use proptest::prelude::*;

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

#[test]
fn empty_prefix_changes_nothing() {
    let names = names("fs", "");
    assert!(names.is_identity());
    assert_eq!(names.expose("read"), "read");
    assert_eq!(names.upstream_name("read"), Some("read"));
    assert_eq!(names.expose_uri("file:///a"), "file:///a");
    assert_eq!(names.upstream_uri("file:///a"), Some("file:///a"));
    let reference = r#"{"uri":"file:\/\/\/a"}"#;
    assert_eq!(names.upstream_reference(reference), reference, "escapes stay as they are");
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
fn references_are_translated_to_upstream_names() {
    let names = names("fs", "fs__");
    for (exposed, own) in [
        (r#"{"type":"ref/prompt","name":"fs__p","n":1.0}"#, r#"{"type":"ref/prompt","name":"p","n":1.0}"#),
        (r#"{"uri":"fs+file:///{p}"}"#, r#"{"uri":"file:///{p}"}"#),
        (r#"{"uri":"other:///a"}"#, r#"{"uri":"other:///a"}"#),
        (r#"{"_meta":{"name":"fs__x"},"name":5}"#, r#"{"_meta":{"name":"fs__x"},"name":5}"#),
        ("{}", "{}"),
    ] {
        assert_eq!(names.upstream_reference(exposed), own);
    }
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

proptest! {
    #[test]
    fn names_and_uris_round_trip(name in ".{0,12}", prefix in ".{0,8}", own in ".{0,20}") {
        let names = names(&name, &prefix);
        let (name, uri) = (names.expose(&own), names.expose_uri(&own));
        prop_assert_eq!(names.upstream_name(&name), Some(own.as_str()));
        prop_assert_eq!(names.upstream_uri(&uri), Some(own.as_str()));
    }
}
