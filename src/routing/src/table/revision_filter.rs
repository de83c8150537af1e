//! Adapts definitions that an upstream wrote to each revision: members that a revision lacks are removed from its text.
//! Members unknown to every revision are kept.

use serde_json::{Map, Value};

use countersign_protocol::{
    Revision,
    json::{MemberAction, MemberEdit, edit, edit_members, map_elements, member, quoted, string},
};

/// A member that only some revisions have: its name, and the first and last of these revisions. The tables were checked against
/// `schema/<revision>/schema.ts`.
type VersionedMember = (&'static str, Revision, Revision);

use Revision::{V2024_11_05 as V1, V2025_03_26 as V2, V2025_06_18 as V3, V2025_11_25 as V4, V2026_07_28 as V5};

const TOOL_MEMBERS: &[VersionedMember] = &[
    ("title", V3, V5),
    ("description", V1, V5),
    ("outputSchema", V3, V5),
    ("annotations", V2, V5),
    // It declares whether a call may request a task of 2025-11-25. In later revisions, the server decides.
    ("execution", V4, V4),
    ("icons", V4, V5),
    ("_meta", V3, V5),
];
const PROMPT_MEMBERS: &[VersionedMember] =
    &[("title", V3, V5), ("description", V1, V5), ("arguments", V1, V5), ("icons", V4, V5), ("_meta", V3, V5)];
const ARGUMENT_MEMBERS: &[VersionedMember] = &[("title", V3, V5), ("description", V1, V5), ("required", V1, V5)];
const RESOURCE_MEMBERS: &[VersionedMember] = &[
    ("title", V3, V5),
    ("description", V1, V5),
    ("mimeType", V1, V5),
    ("annotations", V1, V5),
    ("size", V1, V5),
    ("icons", V4, V5),
    ("_meta", V3, V5),
];
const ANNOTATION_MEMBERS: &[VersionedMember] = &[("lastModified", V3, V5)];

/// Decides whether the revision keeps a member. Optional members with the value null are dropped, because the schemas
/// want them absent and strict clients reject the list.
fn member_action(known: &[VersionedMember], key: &str, value: &str, revision: Revision) -> MemberAction {
    match known.iter().find(|(name, ..)| *name == key) {
        Some((_, first, last)) if revision < *first || revision > *last || value == "null" => MemberAction::Drop,
        _ => MemberAction::Keep,
    }
}

fn filter_members(object: &str, known: &[VersionedMember], revision: Revision) -> Option<String> {
    edit_members(object, |key, value| member_action(known, key, value, revision))
}

/// Adapts one tool of `tools/list`; `None` if the text stays unchanged. `pending` is the output schema of a pending
/// answer, if the tool may be put under review.
pub fn filter_tool(raw: &str, pending: Option<&Value>, revision: Revision) -> Option<String> {
    let edited = edit_members(raw, |key, value| match member_action(TOOL_MEMBERS, key, value, revision) {
        MemberAction::Keep if key == "outputSchema" => output_schema(value, pending, revision),
        action => action,
    });
    if pending.is_none() || revision != Revision::V2025_11_25 {
        return edited;
    }
    allow_task_execution(edited.as_deref().unwrap_or(raw)).or(edited)
}

/// Allows calls as tasks for a tool that may be put under review, even if its server has no tasks
/// (2025-11-25/basic/utilities/tasks, "Tool-Level Negotiation"). A required task stays required.
fn allow_task_execution(tool: &str) -> Option<String> {
    let execution = member(tool, "execution").filter(|execution| execution.starts_with('{')).unwrap_or("{}");
    let support = member(execution, "taskSupport").and_then(string);
    if support.is_some_and(|support| support == "optional" || support == "required") {
        return None;
    }
    let execution = edit(execution, &[("taskSupport", MemberEdit::Set(r#""optional""#))]);
    Some(edit(tool, &[("execution", MemberEdit::Set(&execution))]))
}

/// Adapts one prompt of `prompts/list`; `None` if the text stays unchanged.
pub fn filter_prompt(raw: &str, revision: Revision) -> Option<String> {
    edit_members(raw, |key, value| match member_action(PROMPT_MEMBERS, key, value, revision) {
        MemberAction::Keep if key == "arguments" => {
            map_elements(value, |argument| filter_members(argument, ARGUMENT_MEMBERS, revision)).into()
        }
        action => action,
    })
}

/// Adapts one resource of `resources/list` or template of `resources/templates/list`; `None` if the text stays
/// unchanged.
pub fn filter_resource(raw: &str, revision: Revision) -> Option<String> {
    edit_members(raw, |key, value| match member_action(RESOURCE_MEMBERS, key, value, revision) {
        MemberAction::Keep if key == "annotations" => filter_members(value, ANNOTATION_MEMBERS, revision).into(),
        action => action,
    })
}

/// Keeps the output schema, combines it with that of the pending answer, or drops it if the revision or the combination
/// does not permit it.
fn output_schema(own: &str, pending: Option<&Value>, revision: Revision) -> MemberAction {
    let Ok(schema) = own.parse::<Map<String, Value>>() else { return MemberAction::Drop };
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    if !is_object && revision.rules().structured_object_only {
        return MemberAction::Drop;
    }
    let Some(pending) = pending else { return MemberAction::Keep };
    any_of(own, is_object, pending).map_or(MemberAction::Drop, MemberAction::Set)
}

/// Returns `anyOf(own, pending)`. The own schema moves one level down, so members that apply to the whole document move to the
/// new root, where references still find them. Returns `None` if the schema has other references, which would break.
fn any_of(own: &str, is_object: bool, pending: &Value) -> Option<String> {
    let mut has_other_reference = false;
    for_each_reference(&own.parse::<Value>().ok()?, &mut |reference| {
        has_other_reference |= !reference.starts_with("#/$defs/") && !reference.starts_with("#/definitions/");
    });
    if has_other_reference {
        return None;
    }
    let mut root = String::from("{");
    let inner = edit_members(own, |key, value| match key {
        "$schema" | "$defs" | "definitions" => {
            root.push_str(&format!("{}:{value},", quoted(key)));
            MemberAction::Drop
        }
        _ => MemberAction::Keep,
    });
    if is_object {
        root.push_str(r#""type":"object","#);
    }
    root.push_str(&format!(r#""anyOf":[{},{pending}]}}"#, inner.as_deref().unwrap_or(own)));
    Some(root)
}

/// Calls `visit` with each reference of a schema, and with an empty string for members that change the base of references.
fn for_each_reference(schema: &Value, visit: &mut impl FnMut(&str)) {
    // An explicit stack, because the schema is foreign and may be deep.
    let mut pending = vec![schema];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(members) => {
                for (key, value) in members {
                    match key.as_str() {
                        "$ref" | "$dynamicRef" | "$recursiveRef" => visit(value.as_str().unwrap_or_default()),
                        // At the root, this member would change the base of every reference.
                        "$id" | "$anchor" | "$dynamicAnchor" => visit(""),
                        _ => pending.push(value),
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

    /// Contains every member that any revision has, and unknown ones, in no particular order.
    const FULL: &str = concat!(
        r#"{ "z":12345678901234567890123, "_meta":{"a":1.0}, "icons":[], "execution":{"taskSupport":"optional"},"#,
        r#" "annotations":{"readOnlyHint":true,"x":1e2}, "outputSchema":{"type":"object"}, "name":"t","title":"T","#,
        r#" "inputSchema":{"type":"object","maximum":12345678901234567890123}, "description":"d", "com.example":null }"#
    );

    #[test]
    fn revision_filter_keeps_supported_members_verbatim() {
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
            let shown = filter_tool(FULL, None, revision).unwrap_or_else(|| FULL.to_owned());
            // A member is removed together with the space before it.
            assert_eq!(shown.replace(", ", ","), expected.replace(", ", ","), "{revision:?}");
            serde_json::from_str::<Value>(&shown).unwrap();
        }
    }

    #[test]
    fn null_optional_members_are_dropped() {
        let text = r#"{"name":"t","title":null,"inputSchema":{"type":"object"},"outputSchema":null,"vendor":null}"#;
        let expected = r#"{"name":"t","inputSchema":{"type":"object"},"vendor":null}"#;
        for revision in Revision::ALL {
            let shown = filter_tool(text, Some(&json!({})), revision).unwrap();
            let task = r#","execution":{"taskSupport":"optional"}"#;
            assert_eq!(shown.contains(task), revision == V4, "{revision:?}");
            assert_eq!(shown.replace(task, ""), expected, "{revision:?}");
        }
    }

    #[test]
    fn reviewed_tool_allows_task_execution() {
        let pending = json!({ "type": "object" });
        let filtered = |execution: &str| {
            let text = format!(r#"{{"name":"t","inputSchema":{{}},"execution":{execution},"x":1}}"#);
            filter_tool(&text, Some(&pending), V4).unwrap_or(text)
        };
        for (written, shown) in [
            (r#"{"taskSupport":"forbidden"}"#, r#"{"taskSupport":"optional"}"#),
            (r#"{"taskSupport":"required"}"#, r#"{"taskSupport":"required"}"#),
            (r#"{"a":1.0}"#, r#"{"a":1.0,"taskSupport":"optional"}"#),
            ("7", r#"{"taskSupport":"optional"}"#),
        ] {
            assert_eq!(filtered(written), format!(r#"{{"name":"t","inputSchema":{{}},"execution":{shown},"x":1}}"#));
        }
        assert_eq!(filter_tool(r#"{"name":"t"}"#, Some(&pending), V5), None);
        assert_eq!(filter_tool(r#"{"name":"t"}"#, None, V4), None);
    }

    #[test]
    fn non_object_output_schema_needs_latest_revision() {
        let text = r#"{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#;
        let without = r#"{"name":"t","inputSchema":{"type":"object"}}"#;
        for revision in [V1, V2, V3, V4] {
            assert_eq!(filter_tool(text, None, revision).unwrap(), without, "{revision:?}");
        }
        assert_eq!(filter_tool(text, None, V5), None);
        let filtered_tool = filter_tool(text, Some(&json!({ "type": "object" })), V5).unwrap();
        assert!(
            filtered_tool.ends_with(r#""outputSchema":{"anyOf":[{"type":"array"},{"type":"object"}]}}"#),
            "{filtered_tool}"
        );
    }

    #[test]
    fn combined_output_schema_keeps_references_valid() {
        let own_schema = concat!(
            r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","#,
            r##""properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"],"$defs":{"a":{"const":12345678901234567890123}}}"##
        );
        let text = format!(r#"{{"name":"t","inputSchema":{{"type":"object"}},"outputSchema":{own_schema}}}"#);
        let pending = json!({ "type": "object", "required": ["changeId"] });
        let shown = filter_tool(&text, Some(&pending), V4).unwrap();
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
            assert_eq!(filter_tool(&text, Some(&pending), V5).unwrap(), r#"{"name":"t"}"#, "{unmovable}");
            assert_eq!(filter_tool(&text, None, V4), None);
        }
    }

    #[test]
    fn nested_members_are_filtered_by_revision() {
        let text =
            r#"{"name":"p","arguments":[{"name":"a","title":"A","x":1e0},{"name":"b","required":true}],"y":1.0}"#;
        let old = r#"{"name":"p","arguments":[{"name":"a","x":1e0},{"name":"b","required":true}],"y":1.0}"#;
        assert_eq!(filter_prompt(text, V2).unwrap(), old);
        assert_eq!(filter_prompt(text, V3), None);
        let text =
            r#"{"uri":"a:b","name":"r","annotations":{"priority":1.0,"lastModified":"2025"},"size":1e3,"icons":[]}"#;
        let old = r#"{"uri":"a:b","name":"r","annotations":{"priority":1.0},"size":1e3}"#;
        assert_eq!(filter_resource(text, V1).unwrap(), old);
        assert_eq!(filter_resource(text, V3).unwrap(), text.replace(r#","icons":[]"#, ""));
        assert_eq!(filter_resource(text, V5), None);
    }
}
