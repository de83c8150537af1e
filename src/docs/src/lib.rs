//! The built-in knowledge base: folders of Markdown that agents search and ask, and to which they propose documents that
//! a person approves.
//!
//! It previews writes and runs them, and knows nothing of policy, sessions or who decides. The files are the truth: whatever
//! is indexed is derived from them. A write replaces one file as a whole, or removes files, inside its project's folder.
//!
//! Each part uses only those before it: `model.rs` has what all speak of; `text` reads documents, `index` finds them,
//! `remote` asks models, `library` holds the projects and their folders, `answer` writes answers, `tools` is what clients see.

mod answer;
mod index;
mod library;
mod model;
mod remote;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod text;
mod tools;

use std::{path::Path, sync::Arc};

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::{Semaphore, broadcast};

use self::{
    answer::Answerer,
    library::Library,
    model::Collection,
    remote::{Embedder, Generator},
    tools::{
        args::{Change, Look, Write},
        blocking, completion, definitions, plan,
        reads::{Reader, SEARCHES},
        resources, run, whose,
    },
};
use countersign_config::DocsConfig;
use countersign_domain::changes::Preview;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, Completion, CompletionRef, Module, PromptDef, PromptResult, Provider, ProviderEvent, Report,
    ResourceDef, ResourceTemplateDef, ResourceText, SessionNotes, ToolDef, ToolResult, text::one_line,
};
pub use library::DocsError;

/// Events held for a receiver that is slow; beyond that it re-reads.
const EVENTS: usize = 1024;

/// The module. Named `docs` in routes and changes.
pub struct Docs {
    reader: Reader,
    events: broadcast::Sender<ProviderEvent>,
}

impl Docs {
    /// What it offers, without its data.
    #[must_use]
    pub fn offers() -> Vec<ToolDef> {
        definitions::tools()
    }

    /// Opens the projects, and begins to synchronize and to watch them. Must run inside an actix system.
    ///
    /// # Errors
    /// A project's root that is no folder; indexes that can be neither read nor made.
    pub fn open(data_dir: &Path, config: &DocsConfig) -> Result<Arc<Self>, DocsError> {
        let (events, _) = broadcast::channel(EVENTS);
        let embedder = match &config.embeddings {
            Some(endpoint) => {
                let cache = library::folder(data_dir)?.join("embeddings.db");
                Some(Embedder::new(endpoint, &cache).map_err(|error| DocsError::Cache(error.to_string()))?)
            }
            None => None,
        };
        let library = Library::open(data_dir, config, embedder.as_ref(), &events)?;
        let answerer = Answerer { generator: config.generation.as_ref().map(Generator::new) };
        Ok(Arc::new(Self {
            reader: Reader { library, embedder, answerer, turns: Arc::new(Semaphore::new(SEARCHES)) },
            events,
        }))
    }

    async fn look(&self, look: Look, ctx: &CallContext) -> Result<ToolResult, McpError> {
        match look {
            Look::Refresh { whose, path } => self.reader.refresh(&whose, &path, ctx).await,
            Look::DryRun(delete) => self.reader.dry_run(delete, ctx).await,
        }
    }
}

fn unknown_tool(tool: &str) -> McpError {
    let shown = one_line(tool, 64).into_owned();
    McpError::new(ErrorKind::ToolNotFound, format!("The documents have no tool `{shown}`.")).with("tool", shown)
}

impl Provider for Docs {
    fn name(&self) -> &str {
        "docs"
    }

    fn tools(&self) -> Vec<ToolDef> {
        definitions::tools()
    }

    fn resources<'a>(&'a self, ctx: &'a CallContext) -> BoxFuture<'a, Result<Vec<ResourceDef>, McpError>> {
        Box::pin(resources::list(&self.reader.library, ctx))
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        resources::templates()
    }

    fn prompts(&self) -> Vec<PromptDef> {
        completion::prompts()
    }

    fn uri_schemes(&self) -> Vec<String> {
        vec![resources::SCHEME.to_owned()]
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(async move {
            match tool {
                "activate_project" => self.reader.activate(arguments, ctx).await,
                "list_doc_types" => self.reader.list_types(arguments).await,
                "semantic_search" => self.reader.search(arguments, Collection::Docs).await,
                "search_external_docs" => self.reader.search(arguments, Collection::External).await,
                "rag_query" => self.reader.ask(arguments, Collection::Docs, ctx).await,
                "rag_query_external" => self.reader.ask(arguments, Collection::External, ctx).await,
                _ => match Change::parse(tool, arguments).ok_or_else(|| unknown_tool(tool))?? {
                    Change::Looks(look) => self.look(look, ctx).await,
                    Change::Writes(write) => {
                        run::run(&self.reader.library, write, ctx, self.reader.embedder.is_some()).await
                    }
                },
            }
        })
    }

    fn report(&self) -> Report {
        let mut all = Report::default();
        for project in self.reader.library.projects() {
            let Report { details, warnings } = project.report();
            all.details.extend(details);
            all.warnings.extend(warnings);
        }
        all
    }

    fn in_session(
        &self,
        tool: &str,
        arguments: &RawValue,
        notes: &SessionNotes,
    ) -> Result<Option<Box<RawValue>>, McpError> {
        let by_branch =
            |project: &str| self.reader.library.project(project).is_none_or(|project| project.is_by_branch());
        whose::completed(tool, arguments, notes, by_branch)
    }

    fn preview<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>> {
        Box::pin(async move {
            let library = Arc::clone(&self.reader.library);
            match Change::parse(tool, arguments).ok_or_else(|| unknown_tool(tool))?? {
                Change::Writes(write) => {
                    let turn = whose::project(&library, write.project())?.writing().await;
                    let ctx = ctx.clone();
                    blocking(move || {
                        let _turn = turn;
                        ctx.charged(|| plan::plan(&library, &write, &ctx.cancel).map(plan::Plan::preview))
                    })
                    .await
                }
                Change::Looks(look) => Ok(plan::nothing(&look)),
            }
        })
    }

    fn reads(&self, tool: &str, arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
        let Some(change) = Change::parse(tool, arguments) else { return Ok(Vec::new()) };
        // A search shows what a document says.
        let search = |whose: &tools::args::Whose, query: &str| {
            let mut arguments = json!({ "query": query });
            for (name, value) in [("project_name", &whose.project_name), ("branch_name", &whose.branch_name)] {
                if let Some(value) = value {
                    arguments[name] = value.as_str().into();
                }
            }
            vec![("semantic_search", arguments)]
        };
        Ok(match change? {
            Change::Writes(Write::Put { whose, path, .. } | Write::Promote { whose, path, .. })
            | Change::Looks(Look::Refresh { whose, path }) => search(&whose, &path),
            Change::Writes(Write::Delete(delete)) | Change::Looks(Look::DryRun(delete)) => {
                let whose = tools::args::Whose { project_name: Some(delete.project), branch_name: delete.branch };
                search(&whose, "documents")
            }
        })
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }
}

impl Module for Docs {
    fn read_resource<'a>(
        &'a self,
        uri: &'a str,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceText>, McpError>> {
        Box::pin(resources::read(&self.reader.library, uri, ctx))
    }

    fn may_subscribe<'a>(&'a self, uri: &'a str, ctx: &'a CallContext) -> BoxFuture<'a, Result<(), McpError>> {
        Box::pin(async move { resources::admit(&self.reader.library, uri, ctx).map(drop) })
    }

    fn get_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<PromptResult, McpError>> {
        Box::pin(async move { completion::get(&self.reader.library, name, arguments, ctx) })
    }

    fn complete<'a>(
        &'a self,
        reference: &'a CompletionRef,
        argument: (&'a str, &'a str),
        context: &'a Map<String, Value>,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Completion, McpError>> {
        Box::pin(completion::complete(&self.reader.library, reference, argument, context, ctx))
    }
}
