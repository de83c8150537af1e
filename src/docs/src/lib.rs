//! The built-in knowledge base: folders of Markdown that agents search and ask, and to which they propose documents
//! that a person approves.
//!
//! It previews and runs writes. It knows nothing about policy or reviewers, and of a session only its notes, which hold
//! the active project. The files are the source of truth: everything in the index is derived from them. A write replaces
//! one file as a whole, or removes files, inside its project's folder.
//!
//! Each part uses only those before it: `model.rs` has the shared types, `text` parses documents, `index` searches
//! them, `remote` calls models, `library` manages projects and their folders, `answer` writes answers, and `tools` is
//! the interface for clients.

mod answer;
mod index;
mod library;
#[cfg(test)]
mod measure;
mod model;
mod remote;
#[cfg(test)]
mod tests;
mod text;
mod tools;

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::{Semaphore, broadcast};

use self::{
    library::Library,
    model::Collection,
    remote::{Embedder, Generator},
    tools::{
        args::{ReadOnlyCall, WriteCall, WritingToolCall},
        completion, definitions, plan, read_back,
        reads::{MAX_CONCURRENT_SEARCHES, Reader},
        resources, run, run_blocking, tenant,
    },
};
use countersign_config::DocsConfig;
use countersign_domain::changes::Preview;
use countersign_protocol::McpError;
use countersign_provider::{
    CallContext, Completion, CompletionRef, Module, PresentValues, PromptDef, PromptResult, Provider, ProviderEvent,
    Report, ResourceDef, ResourceTemplateDef, ResourceText, SessionNotes, ToolDef, ToolResult,
    text::unknown_tool_error,
};
pub use library::DocsError;

/// The maximum number of events that are held for a slow receiver. A receiver that misses events reads everything
/// again.
const EVENT_CAPACITY: usize = 1024;

/// The query of the search that an agent must be allowed to make to see the preview of a deletion. Only the tenant of this
/// search matters, so its text is arbitrary.
const ANY_QUERY: &str = "documents";

/// The knowledge base as a module, named `docs` in routes and changes.
pub struct Docs {
    reader: Reader,
    events: broadcast::Sender<ProviderEvent>,
}

impl Docs {
    /// Returns the tools without opening any data.
    pub fn tool_definitions() -> Vec<ToolDef> {
        definitions::tools()
    }

    /// Opens the projects, and starts to synchronize and watch them. Must run inside an actix system.
    ///
    /// # Errors
    /// Fails if a project's root is not a folder, or an index can neither be read nor created.
    pub fn open(data_dir: &Path, config: &DocsConfig) -> Result<Arc<Self>, DocsError> {
        let (events, _) = broadcast::channel(EVENT_CAPACITY);
        let embedder = match &config.embeddings {
            Some(endpoint) => {
                let cache = library::index_folder(data_dir)?.join("embeddings.db");
                Some(Embedder::new(endpoint, &cache).map_err(|error| DocsError::Cache(error.to_string()))?)
            }
            None => None,
        };
        let library = Library::open(data_dir, config, embedder.as_ref(), &events)?;
        Ok(Arc::new(Self {
            reader: Reader {
                library,
                embedder,
                generator: config.generation.as_ref().map(Generator::new),
                search_slots: Arc::new(Semaphore::new(MAX_CONCURRENT_SEARCHES)),
            },
            events,
        }))
    }
}

/// Parses a call of a writing tool.
///
/// # Errors
/// `TOOL_NOT_FOUND` for a tool that never writes or does not exist, and the errors of the arguments.
fn parse_writing_call(tool: &str, arguments: &RawValue) -> Result<WritingToolCall, McpError> {
    WritingToolCall::parse(tool, arguments).ok_or_else(|| unknown_tool_error("The knowledge base", tool))?
}

#[async_trait]
impl Provider for Docs {
    fn name(&self) -> &str {
        "docs"
    }

    fn tools(&self) -> Vec<ToolDef> {
        definitions::tools()
    }

    async fn resources(&self, ctx: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
        resources::list(&self.reader.library, ctx).await
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        resources::templates()
    }

    fn prompts(&self) -> Vec<PromptDef> {
        completion::prompts()
    }

    fn uri_prefixes(&self) -> Vec<String> {
        vec![resources::SCHEME.to_owned()]
    }

    async fn call(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        match tool {
            "activate_project" => self.reader.activate(arguments, ctx).await,
            "list_doc_types" => self.reader.list_types(arguments).await,
            "semantic_search" => self.reader.search(arguments, Collection::Docs).await,
            "search_external_docs" => self.reader.search(arguments, Collection::External).await,
            "rag_query" => self.reader.ask(arguments, Collection::Docs, ctx).await,
            "rag_query_external" => self.reader.ask(arguments, Collection::External, ctx).await,
            _ => match parse_writing_call(tool, arguments)? {
                WritingToolCall::Read(ReadOnlyCall::Refresh { selector, path }) => {
                    self.reader.refresh(&selector, &path, ctx).await
                }
                WritingToolCall::Read(ReadOnlyCall::DryRun(request)) => self.reader.dry_run(request, ctx).await,
                WritingToolCall::Write(write) => {
                    run::run_write(&self.reader.library, write, ctx, self.reader.embedder.is_some()).await
                }
            },
        }
    }

    fn report(&self) -> Report {
        let mut all = Report::default();
        for project in &self.reader.library.projects {
            let Report { details, warnings } = project.report();
            all.details.extend(details);
            all.warnings.extend(warnings);
        }
        all
    }

    fn complete_arguments(
        &self,
        tool: &str,
        arguments: &RawValue,
        notes: &SessionNotes,
    ) -> Result<Option<Box<RawValue>>, McpError> {
        let tracks_branches =
            |project: &str| self.reader.library.project(project).is_none_or(|project| project.tracks_branches());
        tenant::complete_arguments(tool, arguments, notes, tracks_branches)
    }

    async fn preview(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<Preview, McpError> {
        let library = Arc::clone(&self.reader.library);
        match parse_writing_call(tool, arguments)? {
            WritingToolCall::Write(write) => {
                let files_guard = tenant::require_project(&library, write.project())?.lock_files().await;
                let ctx = ctx.clone();
                run_blocking(move || {
                    let _files_guard = files_guard;
                    ctx.run_charged(|| plan::plan_write(&library, &write, &ctx.cancel).map(plan::Plan::preview))
                })
                .await
            }
            WritingToolCall::Read(read_call) => Ok(plan::unchanged_preview(&read_call)),
        }
    }

    fn read_back<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        _: &'a RawValue,
        _: &'a CallContext,
    ) -> Option<BoxFuture<'a, Result<PresentValues, McpError>>> {
        let WritingToolCall::Write(write) = WritingToolCall::parse(tool, arguments)?.ok()? else { return None };
        let (selector, path, is_promotion) = match write {
            WriteCall::Put { selector, path, .. } => (selector, path, false),
            WriteCall::Promote { selector, path, .. } => (selector, path, true),
            WriteCall::Delete(_) => return None,
        };
        let library = Arc::clone(&self.reader.library);
        Some(Box::pin(run_blocking(move || {
            let text = read_back::document_text(&library, &selector, &path)?;
            Ok(match is_promotion {
                true => read_back::promotion_values(text.as_deref()),
                false => vec![("file", text)],
            })
        })))
    }

    fn preview_reads(&self, tool: &str, arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
        let Some(call) = WritingToolCall::parse(tool, arguments) else { return Ok(Vec::new()) };
        let (project, branch, query) = match call? {
            WritingToolCall::Write(
                WriteCall::Put { selector, path, .. } | WriteCall::Promote { selector, path, .. },
            )
            | WritingToolCall::Read(ReadOnlyCall::Refresh { selector, path }) => {
                (selector.project_name, selector.branch_name, path)
            }
            WritingToolCall::Write(WriteCall::Delete(request))
            | WritingToolCall::Read(ReadOnlyCall::DryRun(request)) => {
                (Some(request.project_name), request.branch_name, ANY_QUERY.to_owned())
            }
        };
        let mut arguments = json!({ "query": query });
        for (name, value) in [("project_name", project), ("branch_name", branch)] {
            if let Some(value) = value {
                arguments[name] = value.into();
            }
        }
        // The preview shows a part of the document's text, as a search does.
        Ok(vec![("semantic_search", arguments)])
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }
}

#[async_trait]
impl Module for Docs {
    async fn read_resource(&self, uri: &str, ctx: &CallContext) -> Result<Vec<ResourceText>, McpError> {
        resources::read(&self.reader.library, uri, ctx).await
    }

    async fn check_subscription(&self, uri: &str, ctx: &CallContext) -> Result<(), McpError> {
        resources::parse_for_session(&self.reader.library, uri, ctx).map(drop)
    }

    async fn get_prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        ctx: &CallContext,
    ) -> Result<PromptResult, McpError> {
        completion::get_prompt(&self.reader.library, name, arguments, ctx)
    }

    async fn complete(
        &self,
        reference: &CompletionRef,
        argument: (&str, &str),
        context: &Map<String, Value>,
        ctx: &CallContext,
    ) -> Result<Completion, McpError> {
        completion::complete(&self.reader.library, reference, argument, context, ctx).await
    }
}
