//! Identifies the state that a preview shows by the call that reads it, so that steps of a plan that change the same state can be
//! told from others that only share a lock key, such as those for two files of one branch.

use serde_json::value::RawValue;

use countersign_domain::{changes::digest::PartHasher, recipes::PreviewRead};
use countersign_protocol::arguments::canonical_text_hash;

/// Returns the key of what a read shows, or `None` if the selection of its parts depends on more than the call.
pub(super) fn key_of_read(read: &PreviewRead, tool: &str, call: &RawValue) -> Option<String> {
    let mut selectors = read.pick.keep.iter().chain(&read.pick.paths);
    if selectors.any(|expression| expression.uses("arguments") || expression.uses("element")) {
        return None;
    }
    Some(hash(tool, call, &format!("{:?} {:?}", read.pick, read.display_format)))
}

/// Returns the key of the rows that a query finds.
pub(super) fn key_of_query(tool: &str, call: &RawValue) -> String {
    hash(tool, call, "")
}

/// Hashes a call and the selection of its result. The order of the arguments does not matter.
fn hash(tool: &str, call: &RawValue, selection: &str) -> String {
    let arguments = canonical_text_hash(call.get());
    let mut hasher = PartHasher::new("countersign.state.1");
    hasher.add_part(tool.as_bytes()).add_part(arguments.as_bytes()).add_part(selection.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use countersign_domain::{
        policy::Condition,
        recipes::{DisplayFormat, ResultSelector, SELECTOR_VARIABLES, TextTemplate},
    };

    fn key(tool: &str, call: &str, keep: Option<&str>) -> Option<String> {
        let keep = keep.map(|text| Condition::compile_for(text, SELECTOR_VARIABLES).unwrap());
        let read = PreviewRead {
            label: TextTemplate::Literal(Value::Null),
            tool: tool.into(),
            for_each: None,
            arguments: Vec::new(),
            pick: ResultSelector { keep, ..ResultSelector::default() },
            display_format: DisplayFormat::Json,
            missing: None,
            must_fail: None,
        };
        key_of_read(&read, tool, &RawValue::from_string(call.into()).unwrap())
    }

    #[test]
    fn state_is_identified_by_its_read() {
        let state = key("get", r#"{"a":1,"b":2}"#, Some("found.x"));
        assert!(state.is_some());
        assert_eq!(
            key("get", r#"{ "b": 2, "a": 1 }"#, Some("found.x")),
            state,
            "the order of arguments does not matter"
        );
        for other in [
            key("get_all", r#"{"a":1,"b":2}"#, Some("found.x")),
            key("get", r#"{"a":1,"b":3}"#, Some("found.x")),
            key("get", r#"{"a":1,"b":2}"#, Some("found.y")),
            key("get", r#"{"a":1,"b":2}"#, None),
        ] {
            assert!(other.is_some() && other != state);
        }
        assert_eq!(key("get", "{}", Some("found[arguments.x]")), None, "the arguments choose a part");
    }
}
