//! Schemas that several tools share: arguments, and common parts of answers.

use serde_json::{Value, json};

use super::args::{PATH_MAX, QUERY_MAX};

/// Returns the schema of `structuredContent` in a failed call.
pub(super) fn error_schema() -> Value {
    json!({
        "title": "Error",
        "type": "object",
        "properties": {
            "error": { "const": true },
            "code": { "type": "string" },
            "message": { "type": "string" },
            "details": { "type": "object" },
        },
        "required": ["error", "code", "message", "details"],
    })
}

pub(super) fn object(properties: &Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

pub(super) fn project_name() -> Value {
    json!({
        "type": "string", "title": "Project", "minLength": 1, "maxLength": 64,
        "description": "The project, by its name. May be left out once activate_project was called in this session; \
                        stateless clients name it in each call.",
    })
}

pub(super) fn branch_name() -> Value {
    json!({
        "type": "string", "title": "Branch", "minLength": 1, "maxLength": 250,
        "description": "A git branch, where the project tells branches apart. Left out: the one that is checked out.",
    })
}

pub(super) fn query(what: &str) -> Value {
    json!({ "type": "string", "title": "Query", "minLength": 1, "maxLength": QUERY_MAX, "description": what })
}

pub(super) fn count(title: &str, default: usize, max: usize) -> Value {
    json!({
        "type": "integer", "title": title, "minimum": 1, "maximum": max, "default": default,
        "description": "How many at most.",
    })
}

pub(super) fn min_score(default: f64) -> Value {
    json!({
        "type": "number", "title": "Least relevance", "minimum": 0, "maximum": 1, "default": default,
        "description": "Leaves out what is less relevant, from 0 to 1.",
    })
}

pub(super) fn level() -> Value {
    json!({ "type": "string", "enum": ["standard", "important", "critical"] })
}

pub(super) fn path(what: &str) -> Value {
    json!({ "type": "string", "title": "Path", "minLength": 1, "maxLength": PATH_MAX, "description": what })
}

pub(super) fn doc_types() -> Value {
    json!({
        "type": "array", "title": "Types", "maxItems": 64,
        "items": { "type": "string", "minLength": 1, "maxLength": 64 },
        "description": "Only documents of these types (list_doc_types names them). Left out: all.",
    })
}

fn ranking() -> Value {
    json!({
        "enum": ["lexical", "fused"],
        "description": "What ranked them: words alone, or words and meaning.",
    })
}

pub(super) fn nullable_text() -> Value {
    json!({ "type": ["string", "null"] })
}

/// Returns the properties that locate a passage.
fn location_schema() -> Value {
    json!({
        "path": { "type": "string", "description": "Relative to the folder of the documents." },
        "title": { "type": "string" },
        "char_count": { "type": "integer", "description": "Characters of the whole document." },
        "relevance_score": { "type": "number", "description": "From 0 to 1." },
        "promotion_level": level(),
        "header_path": { "type": "string" },
        "first_line": { "type": "integer" },
        "last_line": { "type": "integer" },
    })
}

pub(super) fn merge(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}

pub(super) fn results_schema(external: bool) -> Value {
    let result = merge(
        location_schema(),
        json!({
            "summary": { "type": "string" },
            "doc_type": nullable_text(),
            "date": nullable_text(),
            "passage": { "type": "string", "description": "The lines of the document that fit best." },
        }),
    );
    let required = ["path", "title", "summary", "char_count", "relevance_score", "passage", "first_line", "last_line"];
    let mut properties = json!({
        "results": { "type": "array", "items": object(&result, &required) },
        "total_matches": { "type": "integer", "description": "Documents that are relevant enough, shown or not." },
        "ranking": ranking(),
        "note": { "type": "string" },
    });
    let mut required = vec!["results", "total_matches", "ranking"];
    if external {
        properties = merge(properties, json!({ "external_docs_path": { "type": "string" } }));
        required.push("external_docs_path");
    }
    object(&properties, &required)
}

pub(super) fn answer_schema(external: bool) -> Value {
    let required = ["path", "title", "char_count", "relevance_score", "first_line", "last_line"];
    let linked = json!({
        "path": { "type": "string" },
        "title": { "type": "string" },
        "char_count": { "type": "integer" },
        "linked_from": { "type": "string" },
    });
    let mut properties = json!({
        "answer": { "type": "string", "description": "Cites its sources as [1], [2], in their order." },
        "answer_mode": {
            "enum": ["generated", "sampled", "extractive", "none"],
            "description": "Who wrote the answer: the gateway's model, the client's own model, or the documents \
                            themselves, which are quoted. `none`: nothing relevant was found.",
        },
        "sources": { "type": "array", "items": object(&location_schema(), &required) },
        "ranking": ranking(),
        "note": { "type": "string" },
    });
    let mut all = vec!["answer", "answer_mode", "sources", "ranking"];
    if external {
        properties = merge(properties, json!({ "external_docs_path": { "type": "string" } }));
        all.push("external_docs_path");
    } else {
        let linked = object(&linked, &["path", "title", "char_count", "linked_from"]);
        properties = merge(properties, json!({ "linked_docs": { "type": "array", "items": linked } }));
        all.push("linked_docs");
    }
    object(&properties, &all)
}
