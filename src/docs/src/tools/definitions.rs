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
    args::{
        ActivateArgs, AskArgs, DeleteDocumentsArgs, IndexDocumentArgs, SearchArgs, TenantSelector, UpdateLevelArgs,
    },
};

/// Returns all tools in the order of `tools/list`.
pub(crate) fn tools() -> Vec<ToolDef> {
    let mut tools = vec![
        ToolDef::for_types::<ActivateArgs, ActivatedProject>(
            "activate_project",
            "Activate project",
            "Selects the project for later calls of this session, and waits until its documents are indexed. Call it first. Stateless clients pass project_name in each call instead.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<TenantSelector, ListedTypes>(
            "list_doc_types",
            "List document types",
            "Lists the document types of the active project, each with its purpose, its folder and the required front matter.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<SearchArgs, SearchResults>(
            "semantic_search",
            "Search documents",
            "Finds documents of the active project by their content, best match first, each with its best passage. Use it before you solve a problem that the team may have solved before.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<AskArgs, AnsweredQuestion>(
            "rag_query",
            "Ask the documents",
            "Answers a question from the documents of the active project, and cites them with line numbers. The sources always include critical documents unless include_critical is false.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<SearchArgs, SearchResults>(
            "search_external_docs",
            "Search reference documentation",
            "Finds pages of the project's read-only reference documentation, best match first, each with its best passage.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<AskArgs, AnsweredQuestion>(
            "rag_query_external",
            "Ask the reference documentation",
            "Answers a question from the project's reference documentation, and cites pages with line numbers.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<IndexDocumentArgs, IndexedDocument>(
            "index_document",
            "Write or index a document",
            "With content: proposes to create or replace the document; a person sees the diff and decides. The YAML front matter must match the schema of its type (see list_doc_types). Without content: updates the index from the existing file.",
            ToolAnnotations::REPLACING,
        ),
        ToolDef::for_types::<UpdateLevelArgs, UpdatedLevel>(
            "update_promotion_level",
            "Set promotion level",
            "Proposes another promotion level for a document; a person decides. Critical documents come first in every answer.",
            ToolAnnotations::REPLACING,
        ),
        ToolDef::for_types::<DeleteDocumentsArgs, DeletedDocuments>(
            "delete_documents",
            "Delete documents",
            "Proposes to delete documents of a project: their files on the checked-out branch, and their index entries on other branches. Without paths, branch_name and path_hash, it deletes all documents. A person sees the list and decides. With dry_run, it only returns the list.",
            ToolAnnotations::REPLACING,
        ),
    ];
    for tool in &mut tools {
        finish_definition(tool);
    }
    tools
}

/// Adds what the types of a tool do not say: how long it runs, which of its calls only read, and the form of its
/// errors. Removes arguments that reference documentation does not have.
fn finish_definition(tool: &mut ToolDef) {
    tool.long_running =
        matches!(tool.name.as_str(), "activate_project" | "rag_query" | "rag_query_external" | "index_document");
    tool.read_only_when = match tool.name.as_str() {
        "index_document" => Some(|arguments| member(arguments.get(), "content").is_none()),
        "delete_documents" => Some(|arguments| member(arguments.get(), "dry_run") == Some("true")),
        _ => None,
    };
    // Reference documentation has neither types nor levels.
    if matches!(tool.name.as_str(), "search_external_docs" | "rag_query_external")
        && let Some(properties) = tool.input_schema["properties"].as_object_mut()
    {
        properties.retain(|name, _| {
            !matches!(name.as_str(), "doc_types" | "promotion_levels" | "min_promotion_level" | "include_critical")
        });
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
