//! Parses JSON and YAML documents that an agent or a server passes as text, and writes YAML.

use serde_json::{Value as Json, value::RawValue};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

use super::{condition::ConditionFault, values};
use countersign_protocol::arguments::RAW_VALUE_KEY;

/// The maximum size of a document, in bytes.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of values in a document.
const MAX_VALUES: usize = 100_000;
/// The maximum number of documents in one text.
const MAX_DOCUMENTS: usize = 100;

/// The number of digits of an integer that a float always represents exactly.
const MAX_FLOAT_DIGITS: usize = 15;

/// Parses a JSON text.
///
/// # Errors
/// [`ConditionFault::Document`]; [`ConditionFault::Arguments`] for numbers that are not exact, duplicate and reserved keys, and
/// texts that are too large or too deeply nested.
pub fn parse_json(text: &str) -> Result<Json, ConditionFault> {
    let invalid = |_| ConditionFault::Document("JSON");
    values::check_size(text, MAX_BYTES)?;
    let json = serde_json::from_str::<&RawValue>(text).map_err(invalid)?;
    values::check_json(json, MAX_VALUES)?;
    text.parse().map_err(invalid)
}

/// Parses a YAML text that holds one document.
///
/// # Errors
/// [`ConditionFault::Document`] also for several documents, duplicate keys and excessive aliases;
/// [`ConditionFault::Arguments`] for numbers that are not exact and a reserved key.
pub fn parse_yaml(text: &str) -> Result<Json, ConditionFault> {
    let mut documents = parse_yaml_documents(text)?;
    match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => Ok(document),
        _ => Err(ConditionFault::Document("one YAML document")),
    }
}

/// Parses a YAML text that holds any number of documents. Empty ones are left out.
///
/// # Errors
/// The errors of [`parse_yaml`].
pub fn parse_yaml_documents(text: &str) -> Result<Vec<Json>, ConditionFault> {
    if text.len() > MAX_BYTES {
        return Err(ConditionFault::Document("YAML of at most 4 MiB"));
    }
    let options = serde_saphyr::options! {
        // Other booleans of YAML 1.1, such as `yes`, stay texts.
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: 2 * MAX_VALUES,
            max_depth: 100,
            max_aliases: 100,
            max_documents: MAX_DOCUMENTS,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_VALUES },
    };
    let documents: Vec<Json> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|_| ConditionFault::Document("YAML"))?;
    check_yaml(text)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// Checks a text that was parsed as YAML for what its parsed values do not show: rounded numbers, also in keys, and the key that
/// is read as other JSON.
fn check_yaml(text: &str) -> Result<(), ConditionFault> {
    for event in Parser::new_from_str(text) {
        let (Event::Scalar(value, style, _, tag), _) = event.map_err(|_| ConditionFault::Document("YAML"))? else {
            continue;
        };
        let is_text = match tag {
            Some(tag) => tag.is_yaml_core_schema_tag("str"),
            None => style != ScalarStyle::Plain,
        };
        if *value == *RAW_VALUE_KEY {
            return Err(values::AMBIGUOUS);
        }
        if !is_text && !is_exact_in_yaml(value.trim_ascii()) {
            return Err(values::INEXACT_NUMBER);
        }
    }
    Ok(())
}

/// Returns `true` unless the scalar is a number that is rounded. Integers that begin with zeros are read as floats.
fn is_exact_in_yaml(scalar: &str) -> bool {
    let digits = scalar.trim_start_matches(['+', '-']);
    if digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return digits.trim_start_matches('0').len() <= MAX_FLOAT_DIGITS;
    }
    !scalar.parse::<f64>().is_ok_and(f64::is_finite) || values::is_exact(scalar)
}

/// Writes a value as YAML.
pub fn to_yaml(json: &Json) -> String {
    serde_saphyr::to_string(json).unwrap_or_else(|_| json.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_is_parsed_and_written() {
        let text =
            "kind: Pod\nmetadata:\n  name: a\n  labels: {on: yes}\nspec:\n  containers:\n  - name: c\n    n: 1\n";
        let value = json!({ "kind": "Pod", "metadata": { "name": "a", "labels": { "on": "yes" } },
            "spec": { "containers": [{ "name": "c", "n": 1 }] } });
        assert_eq!(parse_yaml(text), Ok(value.clone()));
        assert_eq!(parse_yaml(&to_yaml(&value)), Ok(value.clone()));
        let script = json!({ "data": { "run.sh": "#!/bin/sh\necho: 'x'\n", "n": "1", "t": "true", "e": "" } });
        assert_eq!(parse_yaml(&to_yaml(&script)), Ok(script));
        assert_eq!(parse_yaml_documents("---\na: 1\n---\n---\nb: 2\n"), Ok(vec![json!({ "a": 1 }), json!({ "b": 2 })]));
        assert_eq!(parse_yaml("{\"a\": [1, null]}"), Ok(json!({ "a": [1, null] })));
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        let is_refused = |text: &str| matches!(parse_yaml(text), Err(ConditionFault::Document(_)));
        assert!(is_refused("a: 1\na: 2") && is_refused("a: 1\n---\nb: 2") && is_refused("a: [") && is_refused(""));
        let bomb: String = (0..9).map(|n| format!("a{}: &a{} [*a{n}, *a{n}, *a{n}, *a{n}]\n", n + 1, n + 1)).collect();
        assert!(is_refused(&format!("a0: &a0 [x, x, x, x]\n{bomb}")), "aliases that grow without end");
        assert_eq!(parse_json("{"), Err(ConditionFault::Document("JSON")));
        for text in ["[12345678901234567890123]", r#"{"a":1,"a":1}"#, r#"[{"x":{"b":1,"\u0062":2}}]"#] {
            assert!(matches!(parse_json(text), Err(ConditionFault::Arguments(_))), "{text}");
        }
    }

    #[test]
    fn inexact_numbers_in_yaml_are_refused() {
        for text in [
            "0o644",
            "0644",
            "-007",
            "1.50",
            "1e20",
            "18446744073709551615",
            "'12345678901234567890123'",
            "inf",
            "!!str 0.1234567890123456789",
        ] {
            assert!(parse_yaml(&format!("a: [{text}]")).is_ok(), "{text}");
        }
        for text in [
            "12345678901234567890123",
            "-9223372036854775809",
            "0.1234567890123456789",
            "!!float '9007199254740993.00000001'",
            "09007199254740993",
            "-09007199254740993",
        ] {
            assert_eq!(parse_yaml(&format!("a: [{text}]")), Err(values::INEXACT_NUMBER), "{text}");
        }
    }

    #[test]
    fn yaml_key_that_is_read_as_json_is_refused() {
        let text = format!("a: {{'{RAW_VALUE_KEY}': '{{\"b\":1}}'}}");
        assert_eq!(parse_yaml(&text), Err(values::AMBIGUOUS));
    }

    #[test]
    fn json_values_are_counted_before_any_is_built() {
        // The last value is valid syntax, but no text can be built from it.
        let text = |numbers: usize| format!(r#"[{}"\ud800"]"#, "1,".repeat(numbers));
        assert_eq!(parse_json(&text(1)), Err(ConditionFault::Document("JSON")));
        let fault = ConditionFault::Arguments("the arguments hold too many values for its condition");
        assert_eq!(parse_json(&text(MAX_VALUES)), Err(fault));
    }
}
