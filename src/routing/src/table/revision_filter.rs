//! Definitions that an upstream wrote, as they look in each revision's lists: its own text, without what a revision
//! does not have. Members that no revision knows stay.

use serde_json::{Map, Value};

use countersign_protocol::{
    Revision,
    json::{Fate, Op, edit, edit_members, map_elements, member, quoted, string},
};

/// A member that only some revisions have: its name, and the first and the last of them.
/// Checked against `schema/<revision>/schema.ts`.
type Known = (&'static str, Revision, Revision);

use Revision::{V2024_11_05 as V1, V2025_03_26 as V2, V2025_06_18 as V3, V2025_11_25 as V4, V2026_07_28 as V5};

const TOOL: &[Known] = &[
    ("title", V3, V5),
    ("description", V1, V5),
    ("outputSchema", V3, V5),
    ("annotations", V2, V5),
    // Says whether a call may ask for a task of 2025-11-25; later revisions leave that to the server.
    ("execution", V4, V4),
    ("icons", V4, V5),
    ("_meta", V3, V5),
];
const PROMPT: &[Known] =
    &[("title", V3, V5), ("description", V1, V5), ("arguments", V1, V5), ("icons", V4, V5), ("_meta", V3, V5)];
const ARGUMENT: &[Known] = &[("title", V3, V5), ("description", V1, V5), ("required", V1, V5)];
const RESOURCE: &[Known] = &[
    ("title", V3, V5),
    ("description", V1, V5),
    ("mimeType", V1, V5),
    ("annotations", V1, V5),
    ("size", V1, V5),
    ("icons", V4, V5),
    ("_meta", V3, V5),
];
const ANNOTATIONS: &[Known] = &[("lastModified", V3, V5)];

/// What the revision does with a member. An optional member that is null is left out: the schemas want it absent, and
/// strict clients refuse the list.
fn fate(known: &[Known], key: &str, value: &str, revision: Revision) -> Fate {
    match known.iter().find(|(name, ..)| *name == key) {
        Some((_, first, last)) if revision < *first || revision > *last || value == "null" => Fate::Drop,
        _ => Fate::Keep,
    }
}

fn edited(object: &str, known: &[Known], revision: Revision) -> Option<String> {
    edit_members(object, |key, value| fate(known, key, value, revision))
}

/// One tool of `tools/list`; `None` if the text stays as it is. `pending` is the schema of the answer of a tool that
/// may be put under review.
#[must_use]
pub fn tool(raw: &str, pending: Option<&Value>, revision: Revision) -> Option<String> {
    let edited = edit_members(raw, |key, value| match fate(TOOL, key, value, revision) {
        Fate::Keep if key == "outputSchema" => output_schema(value, pending, revision),
        fate => fate,
    });
    if pending.is_none() || revision != Revision::V2025_11_25 {
        return edited;
    }
    as_task(edited.as_deref().unwrap_or(raw)).or(edited)
}

/// A tool that may wait for a person may be called as a task, whatever its server can do
/// (2025-11-25/basic/utilities/tasks, "Tool-Level Negotiation"); one that must be stays so.
fn as_task(tool: &str) -> Option<String> {
    let execution = member(tool, "execution").filter(|execution| execution.starts_with('{')).unwrap_or("{}");
    let support = member(execution, "taskSupport").and_then(string);
    if support.is_some_and(|support| support == "optional" || support == "required") {
        return None;
    }
    let execution = edit(execution, &[("taskSupport", Op::Set(r#""optional""#))]);
    Some(edit(tool, &[("execution", Op::Set(&execution))]))
}

/// One prompt of `prompts/list`; `None` if the text stays as it is.
#[must_use]
pub fn prompt(raw: &str, revision: Revision) -> Option<String> {
    edit_members(raw, |key, value| match fate(PROMPT, key, value, revision) {
        Fate::Keep if key == "arguments" => map_elements(value, |one| edited(one, ARGUMENT, revision)).into(),
        fate => fate,
    })
}

/// One resource of `resources/list` or template of `resources/templates/list`; `None` if the text stays as it is.
#[must_use]
pub fn resource(raw: &str, revision: Revision) -> Option<String> {
    edit_members(raw, |key, value| match fate(RESOURCE, key, value, revision) {
        Fate::Keep if key == "annotations" => edited(value, ANNOTATIONS, revision).into(),
        fate => fate,
    })
}

/// The output schema as it is, or beside that of the pending answer, or not at all where the revision or the pending
/// answer cannot have it.
fn output_schema(own: &str, pending: Option<&Value>, revision: Revision) -> Fate {
    let Ok(schema) = serde_json::from_str::<Map<String, Value>>(own) else { return Fate::Drop };
    let object = schema.get("type").is_some_and(|kind| kind == "object");
    if !object && revision.rules().structured_object_only {
        return Fate::Drop;
    }
    let Some(pending) = pending else { return Fate::Keep };
    either(own, object, pending).map_or(Fate::Drop, Fate::Set)
}

/// `anyOf(own, pending)`. The own schema moves one level down, so the members that hold for a whole document move to
/// the new root, where references to definitions still find them. References to anything else would break: `None`.
fn either(own: &str, object: bool, pending: &Value) -> Option<String> {
    let mut foreign = false;
    references(&serde_json::from_str(own).ok()?, &mut |reference| {
        foreign |= !reference.starts_with("#/$defs/") && !reference.starts_with("#/definitions/");
    });
    if foreign {
        return None;
    }
    let mut root = String::from("{");
    let inner = edit_members(own, |key, value| match key {
        "$schema" | "$defs" | "definitions" => {
            root.push_str(&format!("{}:{value},", quoted(key)));
            Fate::Drop
        }
        _ => Fate::Keep,
    });
    if object {
        root.push_str(r#""type":"object","#);
    }
    root.push_str(&format!(r#""anyOf":[{},{pending}]}}"#, inner.as_deref().unwrap_or(own)));
    Some(root)
}

/// Calls `f` with each reference of a schema; one without a name that can be followed is passed as an empty one.
fn references(schema: &Value, f: &mut impl FnMut(&str)) {
    // A stack of its own: the schema is somebody else's.
    let mut todo = vec![schema];
    while let Some(value) = todo.pop() {
        match value {
            Value::Array(items) => todo.extend(items),
            Value::Object(members) => {
                for (key, value) in members {
                    match key.as_str() {
                        "$ref" | "$dynamicRef" | "$recursiveRef" => f(value.as_str().unwrap_or_default()),
                        // Of the root, it would give every reference another base.
                        "$id" | "$anchor" | "$dynamicAnchor" => f(""),
                        _ => todo.push(value),
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Everything that any revision has, and what none has, in no order.
    const FULL: &str = concat!(
        r#"{ "z":12345678901234567890123, "_meta":{"a":1.0}, "icons":[], "execution":{"taskSupport":"optional"},"#,
        r#" "annotations":{"readOnlyHint":true,"x":1e2}, "outputSchema":{"type":"object"}, "name":"t","title":"T","#,
        r#" "inputSchema":{"type":"object","maximum":12345678901234567890123}, "description":"d", "com.example":null }"#
    );

    #[test]
    fn each_revision_gets_what_it_has_byte_for_byte() {
        let cut = |gone: &[&str]| gone.iter().fold(FULL.to_owned(), |text, part| text.replacen(part, "", 1));
        let meta = r#" "_meta":{"a":1.0},"#;
        let icons = r#" "icons":[],"#;
        let execution = r#" "execution":{"taskSupport":"optional"},"#;
        let annotations = r#" "annotations":{"readOnlyHint":true,"x":1e2},"#;
        let output = r#" "outputSchema":{"type":"object"},"#;
        let title = r#""title":"T","#;
        let each: [(Revision, String); Revision::ALL.len()] = [
            (V1, cut(&[meta, icons, execution, annotations, output, title])),
            (V2, cut(&[meta, icons, execution, output, title])),
            (V3, cut(&[icons, execution])),
            (V4, FULL.to_owned()),
            (V5, cut(&[execution])),
        ];
        for (revision, expected) in each {
            let shown = tool(FULL, None, revision).unwrap_or_else(|| FULL.to_owned());
            // A member goes with the space before it.
            assert_eq!(shown.replace(", ", ","), expected.replace(", ", ","), "{revision:?}");
            serde_json::from_str::<Value>(&shown).unwrap();
        }
    }

    #[test]
    fn nulls_of_optional_members_are_left_out() {
        let text = r#"{"name":"t","title":null,"inputSchema":{"type":"object"},"outputSchema":null,"vendor":null}"#;
        let expected = r#"{"name":"t","inputSchema":{"type":"object"},"vendor":null}"#;
        for revision in Revision::ALL {
            let shown = tool(text, Some(&json!({})), revision).unwrap();
            let task = r#","execution":{"taskSupport":"optional"}"#;
            assert_eq!(shown.contains(task), revision == V4, "{revision:?}");
            assert_eq!(shown.replace(task, ""), expected, "{revision:?}");
        }
    }

    #[test]
    fn a_reviewed_tool_may_be_a_task_where_tools_say_so() {
        let pending = json!({ "type": "object" });
        let of = |execution: &str| {
            let text = format!(r#"{{"name":"t","inputSchema":{{}},"execution":{execution},"x":1}}"#);
            tool(&text, Some(&pending), V4).unwrap_or(text)
        };
        for (written, shown) in [
            (r#"{"taskSupport":"forbidden"}"#, r#"{"taskSupport":"optional"}"#),
            (r#"{"taskSupport":"required"}"#, r#"{"taskSupport":"required"}"#),
            (r#"{"a":1.0}"#, r#"{"a":1.0,"taskSupport":"optional"}"#),
            ("7", r#"{"taskSupport":"optional"}"#),
        ] {
            assert_eq!(of(written), format!(r#"{{"name":"t","inputSchema":{{}},"execution":{shown},"x":1}}"#));
        }
        assert_eq!(tool(r#"{"name":"t"}"#, Some(&pending), V5), None);
        assert_eq!(tool(r#"{"name":"t"}"#, None, V4), None);
    }

    #[test]
    fn an_output_schema_without_an_object_root_is_for_the_newest_only() {
        let text = r#"{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#;
        let without = r#"{"name":"t","inputSchema":{"type":"object"}}"#;
        for revision in [V1, V2, V3, V4] {
            assert_eq!(tool(text, None, revision).unwrap(), without, "{revision:?}");
        }
        assert_eq!(tool(text, None, V5), None);
        let both = tool(text, Some(&json!({ "type": "object" })), V5).unwrap();
        assert!(both.ends_with(r#""outputSchema":{"anyOf":[{"type":"array"},{"type":"object"}]}}"#), "{both}");
    }

    #[test]
    fn a_reviewed_tool_may_answer_with_either_and_references_still_lead_somewhere() {
        let own = concat!(
            r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","#,
            r##""properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"],"$defs":{"a":{"const":12345678901234567890123}}}"##
        );
        let text = format!(r#"{{"name":"t","inputSchema":{{"type":"object"}},"outputSchema":{own}}}"#);
        let pending = json!({ "type": "object", "required": ["changeId"] });
        let shown = tool(&text, Some(&pending), V4).unwrap();
        assert!(shown.contains("12345678901234567890123"));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let schema = &shown["outputSchema"];
        assert_eq!(schema["type"], "object");
        let compiled = jsonschema::options().build(schema).unwrap();
        for (value, valid) in [
            (json!({ "changeId": "c" }), true),
            (json!({ "a": 1 }), false),
            (json!({ "a": 12_345_678_901_234_567_890_123_f64 }), true),
            (json!([]), false),
        ] {
            assert_eq!(compiled.is_valid(&value), valid, "{value}");
        }
        for unmovable in [
            r##"{"type":"object","properties":{"a":{"$ref":"#"}}}"##,
            r##"{"type":"object","properties":{"a":{"$ref":"#/properties/b"}}}"##,
            r#"{"$id":"https://example.com/a","type":"object"}"#,
        ] {
            let text = format!(r#"{{"name":"t","outputSchema":{unmovable}}}"#);
            assert_eq!(tool(&text, Some(&pending), V5).unwrap(), r#"{"name":"t"}"#, "{unmovable}");
            assert_eq!(tool(&text, None, V4), None);
        }
    }

    #[test]
    fn what_stands_deeper_is_cut_too() {
        let text =
            r#"{"name":"p","arguments":[{"name":"a","title":"A","x":1e0},{"name":"b","required":true}],"y":1.0}"#;
        let old = r#"{"name":"p","arguments":[{"name":"a","x":1e0},{"name":"b","required":true}],"y":1.0}"#;
        assert_eq!(prompt(text, V2).unwrap(), old);
        assert_eq!(prompt(text, V3), None);
        let text =
            r#"{"uri":"a:b","name":"r","annotations":{"priority":1.0,"lastModified":"2025"},"size":1e3,"icons":[]}"#;
        let old = r#"{"uri":"a:b","name":"r","annotations":{"priority":1.0},"size":1e3}"#;
        assert_eq!(resource(text, V1).unwrap(), old);
        assert_eq!(resource(text, V3).unwrap(), text.replace(r#","icons":[]"#, ""));
        assert_eq!(resource(text, V5), None);
    }
}
