//! Defines the nine tools: names, descriptions for models, schemas and annotations.
//!
//! To add a tool:
//! 1. Define it here, put it into [`tools`], and call it in `tool_answers_match_their_output_schemas`, which misses each
//!    tool that it does not call.
//! 2. Parse its arguments in `args.rs`. A read is answered in `reads.rs`; its name leads there in `Provider::call`.
//! 3. A write is a variant of `WriteCall`, checked and shown in `plan.rs` and done in `run.rs`: the compiler asks for both.
//!    `read_only_when` says of its tool which of its calls only read.

use serde_json::{Value, json, value::RawValue};

use countersign_protocol::{annotations::ToolAnnotations, json::member};
use countersign_provider::ToolDef;

use super::{
    args::{CONTENT_MAX, LIMIT_MAX, PATH_MAX, PATHS_MAX, SOURCES_MAX},
    schemas::{
        answer_schema, branch_name, count, doc_types, error_schema, level, merge, min_score, nullable_text, object,
        path, project_name, query, results_schema,
    },
};

const READ_ONLY: ToolAnnotations =
    ToolAnnotations { read_only_hint: true, destructive_hint: false, idempotent_hint: true, open_world_hint: false };
/// Replaces a file; repeating the call changes nothing more.
const IDEMPOTENT_WRITE: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: true, idempotent_hint: true, open_world_hint: false };

/// Returns all tools in the order of the list.
pub(crate) fn tools() -> Vec<ToolDef> {
    vec![
        activate_project(),
        list_doc_types(),
        semantic_search(),
        rag_query(),
        search_external_docs(),
        rag_query_external(),
        index_document(),
        update_promotion_level(),
        delete_documents(),
    ]
}

struct ToolSpec {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    properties: Value,
    required: &'static [&'static str],
    answer: Value,
    annotations: ToolAnnotations,
    long_running: bool,
    reads_when: Option<fn(&RawValue) -> bool>,
}

impl ToolSpec {
    fn into_tool(self) -> ToolDef {
        let mut properties = self.properties;
        if let Some(properties) = properties.as_object_mut() {
            for (name, schema) in [("project_name", project_name()), ("branch_name", branch_name())] {
                properties.entry(name).or_insert(schema);
            }
        }
        ToolDef {
            name: self.name.to_owned(),
            title: self.title.to_owned(),
            description: self.description.to_owned(),
            input_schema: json!({
                "type": "object", "properties": properties, "required": self.required, "additionalProperties": false,
            }),
            output_schema: Some(json!({ "type": "object", "anyOf": [self.answer, error_schema()] })),
            annotations: self.annotations,
            self_service: false,
            long_running: self.long_running,
            read_only_when: self.reads_when,
            raw: None,
        }
    }
}

fn activate_project() -> ToolDef {
    let counted = json!({
        "name": { "type": "string" }, "doc_count": { "type": "integer" }, "custom": { "type": "boolean" },
    });
    ToolSpec {
        name: "activate_project",
        title: "Activate project",
        description: "Makes a project of the knowledge base the one that this session's calls are about, and waits until \
                      its documents are indexed. Call it first; a stateless client names project_name in each call instead.",
        properties: json!({
            "config_path": path("The path of a file below the project's root on the gateway's machine, in place of \
                                 project_name."),
        }),
        required: &[],
        answer: object(
            &json!({
                "status": { "const": "activated" },
                "project_name": { "type": "string" },
                "branch_name": { "type": "string", "description": "`-` where branches are not told apart." },
                "branches": {
                    "enum": ["git", "none"],
                    "description": "Whether each git branch has documents of its own, or none is told apart from another.",
                },
                "path_hash": { "type": "string", "description": "Of the project's root." },
                "doc_types": { "type": "array", "items": object(&counted, &["name", "doc_count"]) },
                "total_docs": { "type": "integer" },
                "warnings": {
                    "type": "array", "items": { "type": "string" },
                    "description": "What of the documents is not as it should be.",
                },
                "note": { "type": "string" },
            }),
            &["status", "project_name", "branch_name", "branches", "path_hash", "doc_types", "total_docs"],
        ),
        annotations: READ_ONLY,
        long_running: true,
        reads_when: None,
    }
    .into_tool()
}

fn list_doc_types() -> ToolDef {
    let entry = json!({
        "name": { "type": "string" },
        "description": { "type": "string" },
        "folder": { "type": "string", "description": "Where documents of this type lie." },
        "schema": { "type": "string", "description": "`built-in`, or the path of its schema." },
        "doc_count": { "type": "integer" },
        "custom": { "type": "boolean" },
        "front_matter": { "type": "object", "description": "JSON Schema of the front matter." },
    });
    ToolSpec {
        name: "list_doc_types",
        title: "List document types",
        description: "Lists the types of documents of the active project: what each is for, the folder that its documents \
                      lie in, and the front matter that they need.",
        properties: json!({}),
        required: &[],
        answer: object(
            &json!({ "doc_types": { "type": "array", "items": object(
                &entry, &["name", "description", "folder", "schema", "doc_count", "custom", "front_matter"]) } }),
            &["doc_types"],
        ),
        annotations: READ_ONLY,
        long_running: false,
        reads_when: None,
    }
    .into_tool()
}

fn semantic_search() -> ToolDef {
    ToolSpec {
        name: "semantic_search",
        title: "Search documents",
        description: "Finds documents of the active project by what they say, best first, each with its best passage. Use it \
                      before you solve a problem that the team may have solved before.",
        properties: json!({
            "query": query("What is looked for: a question, key words, an identifier or an error message."),
            "doc_types": doc_types(),
            "limit": count("Limit", 10, LIMIT_MAX),
            "min_relevance_score": min_score(0.5),
            "promotion_levels": {
                "type": "array", "title": "Levels", "items": level(), "maxItems": 3,
                "description": "Only documents of these levels. Left out: all.",
            },
        }),
        required: &["query"],
        answer: results_schema(false),
        annotations: READ_ONLY,
        long_running: false,
        reads_when: None,
    }
    .into_tool()
}

fn rag_query() -> ToolDef {
    ToolSpec {
        name: "rag_query",
        title: "Ask the documents",
        description: "Answers a question from the documents of the active project and says which ones, with their lines. \
                      Critical documents are always among the sources unless include_critical is false.",
        properties: json!({
            "query": query("The question."),
            "doc_types": doc_types(),
            "max_sources": count("Sources", 3, SOURCES_MAX),
            "min_relevance_score": min_score(0.7),
            "min_promotion_level": merge(level(), json!({
                "title": "Least level", "description": "Only documents of this level or a higher one.",
            })),
            "include_critical": {
                "type": "boolean", "title": "Include critical documents", "default": true,
                "description": "Puts critical documents first, whatever their relevance.",
            },
        }),
        required: &["query"],
        answer: answer_schema(false),
        annotations: READ_ONLY,
        long_running: true,
        reads_when: None,
    }
    .into_tool()
}

fn search_external_docs() -> ToolDef {
    ToolSpec {
        name: "search_external_docs",
        title: "Search reference documentation",
        description: "Finds pages of the project's reference documentation, which is only read, best first, each with its \
                      best passage.",
        properties: json!({
            "query": query("What is looked for."),
            "limit": count("Limit", 10, LIMIT_MAX),
            "min_relevance_score": min_score(0.5),
        }),
        required: &["query"],
        answer: results_schema(true),
        annotations: READ_ONLY,
        long_running: false,
        reads_when: None,
    }
    .into_tool()
}

fn rag_query_external() -> ToolDef {
    ToolSpec {
        name: "rag_query_external",
        title: "Ask the reference documentation",
        description: "Answers a question from the project's reference documentation and says from which pages, with their \
                      lines.",
        properties: json!({
            "query": query("The question."),
            "max_sources": count("Sources", 3, SOURCES_MAX),
            "min_relevance_score": min_score(0.7),
        }),
        required: &["query"],
        answer: answer_schema(true),
        annotations: READ_ONLY,
        long_running: true,
        reads_when: None,
    }
    .into_tool()
}

fn index_document() -> ToolDef {
    ToolSpec {
        name: "index_document",
        title: "Write or index a document",
        description: "With content: proposes that text as the document, new or in place of what is there; a person sees the \
                      difference and decides. Its YAML front matter must fit its type (list_doc_types has the schemas). \
                      Without content: brings the index up to date with the file as it is.",
        properties: json!({
            "path": path("Where the document lies, relative to the folder of the documents, in its type's folder: \
                          problems/pool-exhaustion.md."),
            "content": {
                "type": "string", "title": "Content", "maxLength": CONTENT_MAX,
                "description": "The whole document: YAML front matter between lines of ---, then Markdown.",
            },
        }),
        required: &["path"],
        answer: object(
            &json!({
                "status": {
                    "enum": ["written", "indexed"],
                    "description": "Whether the file was written, or the index brought up to date with it.",
                },
                "path": { "type": "string" },
                "chunks": { "type": "integer" },
                "embedding_dimensions": {
                    "type": ["integer", "null"],
                    "description": "null where documents are found by words alone, or are not embedded yet.",
                },
                "faults": {
                    "type": "array", "items": { "type": "object" },
                    "description": "Where the front matter of the file breaks the schema of its type.",
                },
                "note": { "type": "string" },
            }),
            &["status", "path", "chunks", "embedding_dimensions"],
        ),
        annotations: IDEMPOTENT_WRITE,
        long_running: true,
        reads_when: Some(|arguments| member(arguments.get(), "content").is_none()),
    }
    .into_tool()
}

fn update_promotion_level() -> ToolDef {
    ToolSpec {
        name: "update_promotion_level",
        title: "Set promotion level",
        description: "Proposes another level for a document: critical ones come first in every answer. A person decides.",
        properties: json!({
            "document_path": path("The document, relative to the folder of the documents."),
            "promotion_level": merge(level(), json!({ "title": "Level" })),
        }),
        required: &["document_path", "promotion_level"],
        answer: object(
            &json!({
                "status": { "const": "updated" },
                "document_path": { "type": "string" },
                "previous_level": level(),
                "new_level": level(),
            }),
            &["status", "document_path", "previous_level", "new_level"],
        ),
        annotations: IDEMPOTENT_WRITE,
        long_running: false,
        reads_when: None,
    }
    .into_tool()
}

fn delete_documents() -> ToolDef {
    ToolSpec {
        name: "delete_documents",
        title: "Delete documents",
        description: "Proposes to delete documents of a project: their files on the branch that is checked out, and what is \
                      known of them on others. Without paths, branch and path_hash, all of them. A person sees which and \
                      decides. With dry_run, only says which it would be.",
        properties: json!({
            "project_name": {
                "type": "string", "title": "Project", "minLength": 1, "maxLength": 64, "description": "The project's name.",
            },
            "branch_name": {
                "type": "string", "title": "Branch", "minLength": 1, "maxLength": 250,
                "description": "Only documents of this branch. Left out: of all.",
            },
            "path_hash": {
                "type": "string", "title": "Root", "pattern": "^[0-9a-f]{16}$",
                "description": "Only documents of the root with this hash (activate_project tells it). Left out: of all.",
            },
            "paths": {
                "type": "array", "title": "Paths", "minItems": 1, "maxItems": PATHS_MAX,
                "items": { "type": "string", "minLength": 1, "maxLength": PATH_MAX },
                "description": "Only these documents. Left out: all.",
            },
            "dry_run": {
                "type": "boolean", "title": "Dry run", "default": false,
                "description": "Only says what would be deleted. Nobody has to approve that.",
            },
        }),
        required: &["project_name"],
        answer: object(
            &json!({
                "status": { "enum": ["deleted", "preview"] },
                "deleted_count": { "type": "integer", "description": "Documents." },
                "deleted_chunks": { "type": "integer" },
                "documents": {
                    "type": "array", "items": { "type": "string" },
                    "description": "Their paths, the first of them where there are many.",
                },
                "project_name": { "type": "string" },
                "branch_name": nullable_text(),
                "path_hash": nullable_text(),
                "dry_run": { "type": "boolean" },
            }),
            &["status", "deleted_count", "deleted_chunks", "documents", "project_name", "dry_run"],
        ),
        annotations: IDEMPOTENT_WRITE,
        long_running: false,
        reads_when: Some(|arguments| member(arguments.get(), "dry_run") == Some("true")),
    }
    .into_tool()
}
