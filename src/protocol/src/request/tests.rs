use std::collections::HashSet;

use super::*;

/// Every method, with `true` for each revision that has it (oldest first) and `true` if a handshake-era client needs a session.
#[rustfmt::skip]
const EXPECTED_METHODS: &[(&str, [bool; 5], bool)] = &[
    ("initialize",                               [true,  true,  true,  true,  false], false),
    ("server/discover",                          [false, false, false, false, true],  false),
    ("ping",                                     [true,  true,  true,  true,  false], false),
    ("tools/list",                               [true,  true,  true,  true,  true],  false),
    ("tools/call",                               [true,  true,  true,  true,  true],  true),
    ("resources/list",                           [true,  true,  true,  true,  true],  true),
    ("resources/templates/list",                 [true,  true,  true,  true,  true],  true),
    ("resources/read",                           [true,  true,  true,  true,  true],  true),
    ("resources/subscribe",                      [true,  true,  true,  true,  false], true),
    ("resources/unsubscribe",                    [true,  true,  true,  true,  false], true),
    ("prompts/list",                             [true,  true,  true,  true,  true],  true),
    ("prompts/get",                              [true,  true,  true,  true,  true],  true),
    ("completion/complete",                      [true,  true,  true,  true,  true],  true),
    ("logging/setLevel",                         [true,  true,  true,  true,  false], true),
    ("subscriptions/listen",                     [false, false, false, false, true],  false),
    ("tasks/get",                                [false, false, false, true,  true],  true),
    ("tasks/update",                             [false, false, false, false, true],  true),
    ("tasks/cancel",                             [false, false, false, true,  true],  true),
    ("tasks/result",                             [false, false, false, true,  false], true),
    ("tasks/list",                               [false, false, false, true,  false], true),
    ("health/check",                             [true,  true,  true,  true,  true],  false),
    ("info/server",                              [true,  true,  true,  true,  true],  false),
    ("metrics/get",                              [true,  true,  true,  true,  true],  false),
    ("notifications/initialized",                [true,  true,  true,  true,  false], false),
    ("notifications/roots/list_changed",         [true,  true,  true,  true,  false], true),
    ("notifications/cancelled",                  [true,  true,  true,  true,  true],  false),
    ("notifications/progress",                   [true,  true,  true,  true,  true],  true),
    ("notifications/message",                    [true,  true,  true,  true,  true],  true),
    ("notifications/tools/list_changed",         [true,  true,  true,  true,  true],  true),
    ("notifications/prompts/list_changed",       [true,  true,  true,  true,  true],  true),
    ("notifications/resources/list_changed",     [true,  true,  true,  true,  true],  true),
    ("notifications/resources/updated",          [true,  true,  true,  true,  true],  true),
    ("notifications/tasks/status",               [false, false, false, true,  false], true),
    ("notifications/tasks",                      [false, false, false, false, true],  false),
    ("notifications/subscriptions/acknowledged", [false, false, false, false, true],  false),
];

#[test]
fn every_method_in_every_revision() {
    assert_eq!(EXPECTED_METHODS.len(), Method::ALL.len());
    for (name, exists, session) in EXPECTED_METHODS {
        let method = Method::parse(name).unwrap_or_else(|| panic!("{name} is known"));
        assert_eq!(method.as_str(), *name);
        assert_eq!(Revision::ALL.map(|revision| method.exists_in(revision)), *exists, "{name}");
        assert_eq!(method.needs_session(), *session, "{name}");
        let is_notification = name.starts_with("notifications/");
        assert_eq!(method.is_request(), !is_notification, "{name}");
        for (revision, exists) in Revision::ALL.into_iter().zip(exists) {
            let accepted = Method::parse_request(name, revision);
            assert_eq!(accepted.is_ok(), *exists && !is_notification, "{name} in {revision:?}");
            if let Err(error) = accepted {
                assert_eq!((error.number(revision), &error.data["method"]), (-32601, &(*name).into()));
            }
        }
    }
}

#[test]
fn unknown_methods_are_echoed_truncated() {
    for name in ["", "Ping", "ping ", "tools", "tools/call/x", "rpc.discover", "sampling/createMessage"] {
        assert_eq!(Method::parse(name), None, "{name}");
        assert!(Method::parse_request(name, Revision::MODERN).is_err());
    }
    let error = Method::parse_request(&"x".repeat(1 << 20), Revision::MODERN).expect_err("unknown");
    assert_eq!(error.data["method"].as_str().map(str::len), Some(128));
}

#[test]
fn refused_handshake_lists_served_versions() {
    let error = Method::parse_request("initialize", Revision::MODERN).expect_err("stateless");
    assert_eq!((error.kind, &error.data["supported"][0]), (ErrorKind::MethodNotFound, &"2026-07-28".into()));
}

fn id(raw: &str) -> RequestId {
    RequestId::from_json(raw).unwrap_or_else(|| panic!("{raw} is an id"))
}

#[test]
fn strings_and_integers_of_any_length_are_ids() {
    for raw in ["0", "-1", "123456789012345678901234567890", "\"\"", "\"a b\"", r#""\u0061""#] {
        assert_eq!(id(raw).as_json(), raw);
    }
    for raw in ["null", "true", "1.0", "1e3", "-1E2", "{}", "[1]", ""] {
        assert!(RequestId::from_json(raw).is_none(), "{raw}");
    }
}

#[test]
fn ids_are_equal_regardless_of_escapes() {
    assert_eq!(id(r#""a""#), id(r#""\u0061""#));
    assert_eq!(id(r#""\u0061""#), id("\"a\""));
    assert_eq!(id(r#""\/""#), id(r#""/""#));
    assert_eq!(id(r#""😀""#), id(r#""\ud83d\uDE00""#));
    assert_ne!(id(r#""\\u0061""#), id(r#""a""#));
    assert_ne!(id("1"), id("\"1\""));
    assert_ne!(id(r#""a\"b""#), id(r#""a""#));
}

#[test]
fn hash_agrees_with_equality() {
    let set: HashSet<_> = [id(r#""a""#), id(r#""\u0061""#), id("1"), id("\"1\"")].into_iter().collect();
    assert_eq!(set.len(), 3);
}
