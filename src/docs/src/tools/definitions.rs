//! Defines the nine tools: names, descriptions for models, schemas and annotations.
//!
//! To add a tool:
//! 1. Define it here, put it into [`tools`], and call it in `tool_answers_match_their_output_schemas`, which fails for
//!    each tool that it does not call.
//! 2. Define its arguments in `args.rs` and its answer in `answers.rs`. Answer a read in `reads.rs`, and route its name
//!    in `Provider::call` (`src/docs/src/lib.rs`).
//! 3. A write is a variant of `WriteCall`, checked and shown in `plan.rs` and done in `run.rs`: the compiler asks for both.
//!    `read_only_when` tells which calls of its tool only read.

use serde_json::{Value, json};

use countersign_protocol::{annotations::ToolAnnotations, json::member};
use countersign_provider::ToolDef;

use super::{
    answers::{
        ActivatedProject, AnsweredQuestion, DeletedDocuments, IndexedDocument, ListedTypes, SearchResults, UpdatedLevel,
    },
    args::{Activate, Ask, DeleteDocuments, IndexDocument, Search, TenantSelector, UpdateLevel},
};

const READ_ONLY: ToolAnnotations =
    ToolAnnotations { read_only_hint: true, destructive_hint: false, idempotent_hint: true, open_world_hint: false };
/// Replaces a file; repeating the call changes nothing more.
const IDEMPOTENT_WRITE: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: true, idempotent_hint: true, open_world_hint: false };

/// Returns all tools in the order of the list.
pub(crate) fn tools() -> Vec<ToolDef> {
    let mut tools = vec![
        ToolDef::for_types::<Activate, ActivatedProject>(
            "activate_project",
            "Activate project",
            "Makes a project of the knowledge base the one that this session's calls are about, and waits until its documents are indexed. Call it first; a stateless client names project_name in each call instead.",
            READ_ONLY,
        ),
        ToolDef::for_types::<TenantSelector, ListedTypes>(
            "list_doc_types",
            "List document types",
            "Lists the types of documents of the active project: what each is for, the folder that its documents lie in, and the front matter that they need.",
            READ_ONLY,
        ),
        ToolDef::for_types::<Search, SearchResults>(
            "semantic_search",
            "Search documents",
            "Finds documents of the active project by what they say, best first, each with its best passage. Use it before you solve a problem that the team may have solved before.",
            READ_ONLY,
        ),
        ToolDef::for_types::<Ask, AnsweredQuestion>(
            "rag_query",
            "Ask the documents",
            "Answers a question from the documents of the active project and says which ones, with their lines. Critical documents are always among the sources unless include_critical is false.",
            READ_ONLY,
        ),
        ToolDef::for_types::<Search, SearchResults>(
            "search_external_docs",
            "Search reference documentation",
            "Finds pages of the project's reference documentation, which is only read, best first, each with its best passage.",
            READ_ONLY,
        ),
        ToolDef::for_types::<Ask, AnsweredQuestion>(
            "rag_query_external",
            "Ask the reference documentation",
            "Answers a question from the project's reference documentation and says from which pages, with their lines.",
            READ_ONLY,
        ),
        ToolDef::for_types::<IndexDocument, IndexedDocument>(
            "index_document",
            "Write or index a document",
            "With content: proposes that text as the document, new or in place of what is there; a person sees the difference and decides. Its YAML front matter must fit its type (list_doc_types has the schemas). Without content: brings the index up to date with the file as it is.",
            IDEMPOTENT_WRITE,
        ),
        ToolDef::for_types::<UpdateLevel, UpdatedLevel>(
            "update_promotion_level",
            "Set promotion level",
            "Proposes another level for a document: critical ones come first in every answer. A person decides.",
            IDEMPOTENT_WRITE,
        ),
        ToolDef::for_types::<DeleteDocuments, DeletedDocuments>(
            "delete_documents",
            "Delete documents",
            "Proposes to delete documents of a project: their files on the branch that is checked out, and what is known of them on others. Without paths, branch and path_hash, all of them. A person sees which and decides. With dry_run, only says which it would be.",
            IDEMPOTENT_WRITE,
        ),
    ];
    for tool in &mut tools {
        finish(tool);
    }
    tools
}

fn finish(tool: &mut ToolDef) {
    tool.long_running =
        matches!(tool.name.as_str(), "activate_project" | "rag_query" | "rag_query_external" | "index_document");
    tool.read_only_when = match tool.name.as_str() {
        "index_document" => Some(|arguments| member(arguments.get(), "content").is_none()),
        "delete_documents" => Some(|arguments| member(arguments.get(), "dry_run") == Some("true")),
        _ => None,
    };
    let properties = &mut tool.input_schema["properties"];
    // Reference documentation has neither types nor levels.
    if matches!(tool.name.as_str(), "search_external_docs" | "rag_query_external")
        && let Some(properties) = properties.as_object_mut()
    {
        properties.retain(|name, _| {
            !matches!(name.as_str(), "doc_types" | "promotion_levels" | "min_promotion_level" | "include_critical")
        });
    }
    if tool.name == "search_external_docs" {
        properties["query"]["description"] = "What is looked for.".into();
    }
    if tool.input_schema.get("required").is_none() {
        tool.input_schema["required"] = json!([]);
    }
    let answer = tool.output_schema.take();
    tool.output_schema = Some(json!({ "type": "object", "anyOf": [answer, error_schema()] }));
}

/// Returns the schema of `structuredContent` in a failed call.
fn error_schema() -> Value {
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
