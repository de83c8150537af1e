//! Properties of the parser for generated messages and for arbitrary input.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Generates the JSON text of an id, as clients may write it.
fn id_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "(-)?(0|[1-9][0-9]{0,40})",
        ".{0,16}".prop_map(|text| Value::from(text).to_string()),
        // These strings have escapes that the gateway's own writer would not use.
        "([a-z]|\\\\u00[4-6][0-9a-f]|\\\\/|\\\\t|\\\\ud83d\\\\ude00){0,8}".prop_map(|text| format!("\"{text}\"")),
    ]
}

fn payload() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    });
    prop::collection::vec((".{0,6}", tree), 0..5).prop_map(|m| Value::Object(m.into_iter().collect()))
}

fn whitespace() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,3}"
}

/// Generates text that is nearly JSON: tokens of JSON in any order.
fn near_json() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\\",
            "\\u",
            "\\ud800",
            "d83d",
            "null",
            "true",
            "NaN",
            "1",
            "-",
            "0.5",
            "1e9",
            " ",
            "\n",
            "\"jsonrpc\":\"2.0\"",
            "\"id\":",
            "\"id\":1,",
            "\"method\":",
            "\"ping\"",
            "\"params\":",
            "\"result\":{}",
            "\"error\":",
            "\u{feff}",
            "\u{0}",
            "é",
            "😀",
        ])
        .prop_map(str::to_owned),
        ".{0,3}",
    ];
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), depth in 0_usize..5, batch in 0_usize..5) {
        let _ = parse(&bytes, &Limits { max_depth: depth, max_batch: batch });
    }

    /// The single-pass parser reads the same message as `serde_json`, including the outline.
    #[test]
    fn single_pass_matches_serde_json(
        near in near_json(), params in payload(), meta in payload(), pretty: bool, position in any::<prop::sample::Index>(),
        byte: u8, depth in 1_usize..70,
    ) {
        let message = json!({
            "jsonrpc": "2.0", "id": "é1", "method": "tools/call",
            "params": { "name": "\n\"x\u{1}", "arguments": params, "_meta": meta, "n": 1.5e300 },
        });
        let message = if pretty { format!("{message:#}") } else { message.to_string() };
        let position = position.index(message.len());
        let mut bytes = message.clone().into_bytes();
        bytes[position] = byte;
        let mut spliced = message.clone();
        spliced.insert_str((0..=position).rev().find(|index| message.is_char_boundary(*index)).unwrap(), &near);
        let limits = Limits { max_depth: depth, ..Limits::default() };
        for text in [Some(&message[..]), Some(&near), std::str::from_utf8(&bytes).ok(), Some(&spliced)] {
            let Some(text) = text else { continue };
            let (single_pass, with_serde) = (parse(text.as_bytes(), &limits), parse_with_serde(text, &limits));
            prop_assert_eq!(format!("{single_pass:?}"), format!("{with_serde:?}"), "{}", text);
        }
        prop_assert!(message.contains("\\") || EnvelopeMembers::scan(&message, 128).is_some());
    }

    /// The parser accepts text as JSON exactly if a full JSON parser does.
    #[test]
    fn near_json_is_accepted_only_if_json(text in near_json()) {
        let verdict = parse(text.as_bytes(), &Limits::default());
        match (serde_json::from_str::<Value>(&text), verdict) {
            // Numbers beyond the range of a double are still JSON.
            (Err(e), _) if e.to_string().contains("out of range") => {}
            (Err(_), Err(fault)) => prop_assert!(matches!(fault.error.kind, ErrorKind::Parse), "{text:?}: {fault:?}"),
            (Err(_), Ok(accepted)) => prop_assert!(false, "{text:?} was accepted as {accepted:?}"),
            (Ok(_), Err(fault)) => prop_assert!(fault.error.kind != ErrorKind::Parse, "{text:?}: {fault:?}"),
            (Ok(_), Ok(_)) => {}
        }
    }

    #[test]
    fn requests_round_trip(id in id_text(), method in ".{0,20}", params in prop::option::of(payload()), gap in whitespace(), order in 0_usize..24, pretty: bool) {
        let mut members = vec![
            "\"jsonrpc\":\"2.0\"".to_owned(),
            format!("\"id\"{gap}:{id}{gap}"),
            format!("\"method\":{gap}{}", Value::from(method.as_str())),
        ];
        let params = params.map(|params| if pretty { format!("{params:#}") } else { params.to_string() });
        if let Some(params) = &params {
            members.push(format!("\"params\":{params}{gap}"));
        }
        let turn = order % members.len();
        members.rotate_left(turn);
        let text = format!("{gap}{{{gap}{}}}{gap}", members.join(&format!("{gap},")));
        match parse(text.as_bytes(), &Limits::default()) {
            Ok(Incoming::Single(Message::Request(request))) => {
                prop_assert_eq!(request.id.as_json(), &id);
                prop_assert_eq!(request.method.as_ref(), method.as_str());
                prop_assert_eq!(request.params.map(RawValue::get), params.as_deref());
            }
            other => prop_assert!(false, "{text}: {other:?}"),
        }
    }

    #[test]
    fn batches_keep_every_member(ids in prop::collection::vec(id_text(), 1..20)) {
        let members: Vec<_> = ids.iter().map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).collect();
        let text = format!("[{}]", members.join(" ,\n"));
        match parse(text.as_bytes(), &Limits::default()) {
            Ok(Incoming::Batch(members)) => {
                let request_ids: Vec<_> = members.iter().map(|m| match m {
                    Ok(Message::Request(request)) => request.id.as_json(),
                    other => panic!("{other:?}"),
                }).collect();
                prop_assert_eq!(request_ids, ids);
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    /// A message with a byte removed, added or changed never panics, and a prefix of a message is never a message.
    #[test]
    fn broken_messages_do_not_panic(params in payload(), position in any::<prop::sample::Index>(), byte: u8) {
        let text = json!({ "jsonrpc": "2.0", "id": "é1", "method": "tools/call", "params": params }).to_string();
        let position = position.index(text.len());
        let prefix = &text.as_bytes()[..position];
        prop_assert!(parse(prefix, &Limits::default()).is_err());
        let mut bytes = text.clone().into_bytes();
        bytes[position] = byte;
        let _ = parse(&bytes, &Limits::default());
        bytes.remove(position);
        let _ = parse(&bytes, &Limits::default());
        bytes.insert(position, byte);
        bytes.insert(position, b'"');
        let _ = parse(&bytes, &Limits::default());
    }

    /// Ids are equal exactly if the values that they spell are equal.
    #[test]
    fn ids_compare_by_value(a in id_text(), b in id_text()) {
        use std::hash::{BuildHasher, RandomState};
        let (id_a, id_b) = (RequestId::from_raw(&a), RequestId::from_raw(&b));
        let strings = (serde_json::from_str::<String>(&a), serde_json::from_str::<String>(&b));
        let is_same_id = match strings {
            (Ok(a), Ok(b)) => a == b,
            (Err(_), Err(_)) => a == b,
            _ => false,
        };
        prop_assert_eq!(id_a == id_b, is_same_id);
        let state = RandomState::new();
        prop_assert!(!is_same_id || state.hash_one(&id_a) == state.hash_one(&id_b));
        let rewritten = serde_json::from_str::<String>(&a).map_or(a.clone(), |text| Value::from(text).to_string());
        prop_assert_eq!(&RequestId::from_raw(&rewritten), &id_a);
    }
}
