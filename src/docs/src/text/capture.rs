//! The text of the prompt that helps to write a good document.

use serde_json::Value;

use super::DocType;

/// Returns the instructions for a model that writes a document of this type.
pub(crate) fn capture_prompt(kind: &DocType, subject: Option<&str>, project: &str) -> String {
    let subject = subject.map_or_else(
        || "what we have just found out".to_owned(),
        |subject| format!("the following:\n\n> {}\n", subject.lines().collect::<Vec<_>>().join("\n> ")),
    );
    let mut fields = Vec::new();
    describe_fields(&kind.schema, &mut fields);
    format!(
        "Write a document of the type `{name}` ({description}) for the knowledge base of the project {project}, about \
         {subject}\n\n\
         First call semantic_search: if a document already says so, propose a better version of that one instead of \
         another. Leave out what is trivial, what holds only for now, and what the official documentation says anyway; \
         but do record it if the mistake is easy to make.\n\n\
         Then call index_document with\n\
         - path: `{folder}/` and a short name in lower case with hyphens, ending in `.md`\n\
         - content: the whole document. It begins with YAML front matter between two lines of `---`, with these fields:\n\n\
         {fields}\n\n\
         Below it, in Markdown: a heading, then what somebody needs who meets this for the first time, with exact error \
         messages, commands and versions, and links to related documents by relative paths. Say what is certain and what is \
         an assumption. Put no secret and no name of a person into it. A person reads the document and approves it before it \
         is stored.",
        name = kind.name,
        description = kind.description,
        folder = kind.folder,
        fields = fields.join("\n"),
    )
}

/// Adds a line for each field, including those of combined schemas.
fn describe_fields(schema: &Value, lines: &mut Vec<String>) {
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let allowed_values = match (field.get("const"), field.get("enum"), field.get("type").and_then(Value::as_str)) {
            (Some(only), ..) => format!("always {only}"),
            (_, Some(Value::Array(values)), _) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                format!("one of {}", values.join(", "))
            }
            (.., Some("array")) => "a list".to_owned(),
            (.., Some(kind)) => kind.to_owned(),
            _ => "anything".to_owned(),
        };
        let requirement = if required.contains(&name.as_str()) { "required" } else { "optional" };
        let description = field.get("description").and_then(Value::as_str).map(|text| format!(". {text}"));
        lines.push(format!("- `{name}` ({requirement}): {allowed_values}{}", description.unwrap_or_default()));
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        describe_fields(part, lines);
    }
}
