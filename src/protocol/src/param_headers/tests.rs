use serde_json::json;

use super::*;
use crate::{ErrorKind, headers::http_status};

fn paths(schema: &Value) -> Vec<(String, String)> {
    let found = annotated_params(schema).unwrap_or_else(|reason| panic!("{reason}"));
    found.into_iter().map(|p| (p.header, p.path.join("."))).collect()
}

#[test]
fn annotations_are_found_through_properties_alone() {
    let schema = json!({ "type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "query": { "type": "string" },
        "options": { "type": "object", "properties": {
            "dry": { "type": "boolean", "x-mcp-header": "Dry-Run" },
            "deep": { "properties": { "n": { "type": ["integer", "null"], "x-mcp-header": "N" } } }
        } },
        "properties": { "type": "string", "x-mcp-header": "Odd" },
        "x-mcp-header": { "type": "string" }
    } });
    let expected = [("Region", "region"), ("Dry-Run", "options.dry"), ("N", "options.deep.n"), ("Odd", "properties")];
    assert_eq!(paths(&schema), expected.map(|(name, path)| (format!("Mcp-Param-{name}"), path.to_owned())));
    assert_eq!(paths(&json!({})), []);
    assert_eq!(paths(&json!(true)), []);
}

#[test]
fn annotations_in_schema_data_are_ignored() {
    let schema = json!({ "properties": { "a": { "type": "object",
        "default": { "x-mcp-header": 5 }, "enum": [{ "x-mcp-header": "" }], "const": { "x-mcp-header": "a b" },
        "examples": [{ "properties": { "x-mcp-header": [] } }], "x-vendor": { "x-mcp-header": 1 } } } });
    assert_eq!(paths(&schema), []);
}

#[test]
fn invalid_annotations_make_the_tool_invalid() {
    let property = |property: Value| json!({ "type": "object", "properties": { "a": property } });
    let named = |name: Value| property(json!({ "type": "string", "x-mcp-header": name }));
    let annotated = json!({ "type": "string", "x-mcp-header": "A" });
    for schema in [
        named(json!("")),
        named(json!("a b")),
        named(json!("a:b")),
        named(json!("a\r\nb")),
        named(json!("é")),
        named(json!(5)),
        named(json!(null)),
        named(json!(["A"])),
        property(json!({ "type": "number", "x-mcp-header": "A" })),
        property(json!({ "type": "object", "x-mcp-header": "A" })),
        property(json!({ "type": "array", "x-mcp-header": "A" })),
        property(json!({ "type": ["string", "number"], "x-mcp-header": "A" })),
        property(json!({ "type": ["null"], "x-mcp-header": "A" })),
        property(json!({ "type": "null", "x-mcp-header": "A" })),
        property(json!({ "x-mcp-header": "A" })),
        property(json!({ "enum": ["x"], "x-mcp-header": "A" })),
        property(json!({ "type": "array", "items": annotated })),
        property(json!({ "type": "array", "prefixItems": [annotated] })),
        property(json!({ "type": "array", "contains": annotated })),
        property(json!({ "additionalProperties": annotated })),
        property(json!({ "patternProperties": { "^a": annotated } })),
        property(json!({ "not": { "properties": { "b": annotated } } })),
        json!({ "type": "string", "x-mcp-header": "Root" }),
        json!({ "anyOf": [{ "properties": { "a": annotated } }] }),
        json!({ "oneOf": [{}, { "properties": { "a": annotated } }] }),
        json!({ "allOf": [{ "properties": { "a": annotated } }] }),
        json!({ "if": { "properties": { "a": annotated } } }),
        json!({ "then": { "properties": { "a": annotated } } }),
        json!({ "else": { "properties": { "a": annotated } } }),
        json!({ "$defs": { "a": annotated }, "properties": { "a": { "$ref": "#/$defs/a" } } }),
        json!({ "dependentSchemas": { "a": { "properties": { "b": annotated } } } }),
        json!({ "properties": { "a": annotated, "b": { "type": "string", "x-mcp-header": "a" } } }),
        json!({ "properties": { "a": annotated, "b": { "properties": { "a": annotated } } } }),
    ] {
        assert!(annotated_params(&schema).is_err(), "{schema}");
    }
}

#[test]
fn deep_schemas_do_not_overflow_the_stack() {
    let mut schema = json!({ "type": "string", "x-mcp-header": "Deep" });
    for _ in 0..300 {
        schema = Value::Object(
            [("properties".to_owned(), Value::Object([("a".to_owned(), schema)].into_iter().collect()))]
                .into_iter()
                .collect(),
        );
    }
    let small = std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
        assert_eq!(paths(&schema).len(), 1);
        // Dropping the schema would recurse, which this test does not cover.
        std::mem::forget(schema);
    });
    assert!(small.map(|thread| thread.join().is_ok()).unwrap_or(false));
}

fn annotated() -> Vec<ParamHeader> {
    let schema = json!({ "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "count": { "type": "integer", "x-mcp-header": "Count" },
        "o": { "properties": { "dry": { "type": "boolean", "x-mcp-header": "Dry" } } }
    } });
    annotated_params(&schema).unwrap_or_else(|reason| panic!("{reason}"))
}

#[track_caller]
fn passes(headers: &[(&str, &str)], arguments: Value) -> bool {
    match check_params(headers, &annotated(), Some(&arguments)) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!((error.kind, http_status(&error)), (ErrorKind::HeaderMismatch, 400));
            false
        }
    }
}

#[test]
fn headers_mirror_arguments() {
    let all = json!({ "region": "us-west1", "count": 42, "o": { "dry": true }, "other": 1 });
    assert!(passes(
        &[("mcp-param-region", "us-west1"), ("MCP-PARAM-COUNT", "42"), ("Mcp-Param-Dry", "true")],
        all.clone()
    ));
    assert!(passes(
        &[("mcp-param-region", " us-west1 "), ("mcp-param-count", "42.0"), ("mcp-param-dry", "true")],
        all.clone()
    ));
    assert!(passes(
        &[("Mcp-Param-Region", "=?base64?dXMtd2VzdDE=?="), ("mcp-param-count", "4.2e1"), ("mcp-param-dry", "true")],
        all.clone()
    ));
    assert!(passes(&[("Mcp-Param-Other", "ignored")], json!({})));
    assert!(passes(&[], json!({ "region": null })));
    assert!(check_params(&[("a", "b")][..], &annotated(), None).is_ok());
    for headers in [
        vec![],
        vec![("mcp-param-count", "42"), ("mcp-param-dry", "true")],
        vec![("mcp-param-region", "US-west1"), ("mcp-param-count", "42"), ("mcp-param-dry", "true")],
        vec![("mcp-param-region", "us-west1"), ("mcp-param-count", "43"), ("mcp-param-dry", "true")],
        vec![("mcp-param-region", "us-west1"), ("mcp-param-count", "42"), ("mcp-param-dry", "True")],
        vec![("mcp-param-region", "us-west1"), ("mcp-param-count", "42"), ("mcp-param-dry", "1")],
        vec![
            ("mcp-param-region", "us-west1"),
            ("mcp-param-region", "us-west1"),
            ("mcp-param-count", "42"),
            ("mcp-param-dry", "true"),
        ],
        vec![("mcp-param-region", "=?base64?!?="), ("mcp-param-count", "42"), ("mcp-param-dry", "true")],
        vec![("mcp-param-region", "us-west1\u{e9}"), ("mcp-param-count", "42"), ("mcp-param-dry", "true")],
    ] {
        assert!(!passes(&headers, all.clone()), "{headers:?}");
    }
}

#[test]
fn header_without_argument_is_refused() {
    for arguments in [json!({}), json!({ "region": null }), json!({ "REGION": "x" })] {
        assert!(!passes(&[("mcp-param-region", "x")], arguments));
    }
    assert!(check_params(&[("mcp-param-dry", "true")][..], &annotated(), None).is_err());
    assert!(!passes(&[("mcp-param-dry", "true")], json!({ "o": "dry" })));
}

#[test]
fn only_integers_compare_as_numbers() {
    let count = |header: &str, argument: Value| passes(&[("mcp-param-count", header)], json!({ "count": argument }));
    for header in ["7", "7.0", "+7", "07", "7e0", "70e-1"] {
        assert!(count(header, json!(7)), "{header}");
    }
    for header in ["seven", "NaN", "inf", "infinity", "0x7", "7 7", "", "7.1", "-7"] {
        assert!(!count(header, json!(7)), "{header}");
    }
    assert!(count("-7", json!(-7)) && count("7", json!(7.0)));
    // These two numbers are equal as doubles, so their digits are compared.
    assert!(!count("9007199254740993", json!(9_007_199_254_740_992_i64)));
    assert!(count("9007199254740993", json!(9_007_199_254_740_993_i64)));
    // A string argument is compared as a string.
    assert!(!count("7.0", json!("7")) && count("7", json!("7")));
    // The input schema checks the type of such an argument.
    assert!(passes(&[], json!({ "count": [7] })) && !count("7", json!([7])));
}

#[test]
fn integers_are_sent_as_decimals() {
    let call = |count: &str| {
        let arguments = format!(r#"{{"count":{count}}}"#);
        let checked = check_integers(&annotated(), Some(&arguments));
        (for_call(&annotated(), Some(&arguments)), checked)
    };
    for (count, sent) in [
        ("42", "42"),
        ("42.0", "42"),
        ("4.2e1", "42"),
        ("420E-1", "42"),
        ("-7e+0", "-7"),
        ("-0.0", "0"),
        ("0e99999999999999999999", "0"),
        ("9007199254740991", "9007199254740991"),
        ("-9.007199254740991e15", "-9007199254740991"),
        // The input schema refuses a fraction.
        ("4.5", "4.5"),
        ("1e-99999999999999999999", "1e-99999999999999999999"),
    ] {
        let (headers, checked) = call(count);
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(headers, [("Mcp-Param-Count", sent)], "{count}");
        assert!(checked.is_ok(), "{count}");
    }
    for count in ["9007199254740992", "-9007199254740992", "12345678901234567890", "1e16", "1e99999999999999999999"] {
        let error = call(count).1.unwrap_err();
        assert_eq!(
            (error.kind, &error.data["member"]),
            (ErrorKind::InvalidParams, &json!("arguments.count")),
            "{count}"
        );
    }
    for other in ["null", "true", r#""9007199254740992""#, "[9007199254740992]"] {
        assert!(call(other).1.is_ok(), "{other}");
    }
}
