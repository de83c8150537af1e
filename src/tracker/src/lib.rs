//! The built-in issue tracker: projects, issues, comments, people, their history.
//!
//! It previews writes and runs them, and knows nothing of policy, sessions or who decides. A write runs in one
//! transaction, after everything that the preview checked has been checked again.
//!
//! `tools.rs` defines the tools, `args.rs` parses writes, `plan.rs` checks one against the live state and makes its
//! diff, `writes.rs` does it. `queries.rs` and `reads.rs` are the reads; `reading.rs` says which of them show what a
//! preview shows.

mod args;
mod checks;
mod completion;
mod cursor;
mod history;
mod inserts;
mod model;
mod plan;
mod project_keys;
mod prompts;
mod queries;
mod reading;
mod reads;
mod refs;
mod render;
mod resources;
mod rows;
mod sample;
mod sample_data;
mod schema;
mod search;
mod storage;
#[cfg(test)]
mod tests;
mod tools;
mod uri;
mod workflow;
mod writes;

use std::{path::Path, sync::Arc};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Map, Value, value::RawValue};
use tokio::sync::broadcast;

use self::{
    args::Write,
    history::Actor,
    prompts::Prompt,
    queries::{GetIssue, ListIssues, ListProjects, Search},
    storage::{Storage, snapshot},
    uri::{Resource, SCHEME},
};
pub use self::{
    model::{IssueType, Priority, Status},
    storage::TrackerError,
    workflow::Workflow,
};
use countersign_config::TrackerConfig;
use countersign_domain::changes::Preview;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, Completion, CompletionRef, Module, PromptDef, PromptResult, Provider, ProviderEvent, ResourceDef,
    ResourceTemplateDef, ResourceText, ToolDef, ToolResult,
};

/// Events held for a receiver that is slow; beyond that it re-reads.
const EVENTS: usize = 1024;
/// Bytes of arguments up to which a preview is worked out on the caller's thread: no long text, no costly diff.
const QUICK_ARGUMENTS: usize = 2048;

/// The module. Named `tracker` in routes and changes.
pub struct Tracker {
    storage: Arc<Storage>,
    workflow: Arc<Workflow>,
    events: broadcast::Sender<ProviderEvent>,
}

/// A time as the database keeps it: UTC with milliseconds, so that it sorts as text.
fn now_text(at: Timestamp) -> String {
    format!("{at:.3}")
}

impl Tracker {
    /// What it offers, without its data.
    ///
    /// # Errors
    /// A workflow that names no status.
    pub fn offers(config: &TrackerConfig) -> Result<Vec<ToolDef>, TrackerError> {
        Workflow::from_config(&config.workflow).map(|workflow| tools::tools(&workflow)).map_err(TrackerError::Workflow)
    }

    /// Opens or creates `tracker.db` in the data directory; a new one gets the sample project if configured.
    /// Blocks for a few milliseconds.
    ///
    /// # Errors
    /// A workflow that names no status, a file that cannot be opened, or one of a newer version.
    pub fn open(data_dir: &Path, config: &TrackerConfig) -> Result<Arc<Self>, TrackerError> {
        let workflow = Workflow::from_config(&config.workflow).map_err(TrackerError::Workflow)?;
        let now = Timestamp::now();
        let storage = Storage::open(data_dir, |tx, new| {
            if new && config.sample_project {
                sample::fill(tx, now)?;
            }
            config.people.iter().try_for_each(|name| inserts::name_person(tx, name, &now_text(now)))
        })?;
        let (events, _) = broadcast::channel(EVENTS);
        Ok(Arc::new(Self { storage: Arc::new(storage), workflow: Arc::new(workflow), events }))
    }

    async fn search(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args = Search::parse(arguments)?;
        self.storage.read_slow(&ctx.cancel, move |conn| search::search(conn, &args)).await
    }

    async fn list_issues(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args = ListIssues::parse(arguments)?;
        if args.filter.is_quick() {
            return self.storage.read(|conn| reads::list_issues(conn, &args));
        }
        self.storage.read_slow(&ctx.cancel, move |conn| reads::list_issues(conn, &args)).await
    }

    async fn get_issue(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args = GetIssue::parse(arguments)?;
        if args.include.is_empty() {
            return self.storage.read(|conn| reads::get_issue(conn, &self.workflow, &args));
        }
        let workflow = Arc::clone(&self.workflow);
        self.storage.read_slow(&ctx.cancel, move |conn| reads::get_issue(conn, &workflow, &args)).await
    }

    /// Runs a write: checks it against the live state once more, does it, and commits, all in one transaction.
    async fn write(&self, tool: &str, write: Write, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let workflow = Arc::clone(&self.workflow);
        let (tool, principal, change_id) = (tool.to_owned(), Arc::clone(&ctx.principal), ctx.change_id.clone());
        let events = self.events.clone();
        let run = move |tx: &rusqlite::Transaction<'_>| {
            if let Some(id) = &change_id
                && let Some(result) = writes::earlier_run(tx, id)?
            {
                return Ok((result, uri::Touched::default()));
            }
            let actor = Actor { name: principal.name.clone(), change_id, at: now_text(Timestamp::now()) };
            let plan = plan::plan(tx, &workflow, &write)?;
            let applied = writes::apply(tx, &workflow, &plan, &principal, &actor)?;
            writes::remember_run(tx, &tool, &actor, &applied.result)?;
            Ok((applied.result, applied.touched))
        };
        let announce = move |(_, touched): &(ToolResult, uri::Touched)| {
            // Nobody listening is no failure.
            if !touched.uris().is_empty() {
                let _ = events.send(ProviderEvent::ResourcesUpdated(touched.uris().to_vec()));
            }
            if touched.list_changed {
                let _ = events.send(ProviderEvent::ResourceListChanged);
            }
        };
        self.storage.write(run, announce).await.map(|(result, _)| result)
    }
}

fn unknown_tool(tool: &str) -> McpError {
    let shown: String = tool.chars().take(64).collect();
    McpError::new(ErrorKind::ToolNotFound, format!("The tracker has no tool `{shown}`.")).with("tool", shown)
}

impl Provider for Tracker {
    fn name(&self) -> &str {
        "tracker"
    }

    fn tools(&self) -> Vec<ToolDef> {
        tools::tools(&self.workflow)
    }

    fn resources<'a>(&'a self, _ctx: &'a CallContext) -> BoxFuture<'a, Result<Vec<ResourceDef>, McpError>> {
        Box::pin(async move { self.storage.read(resources::list) })
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        resources::templates()
    }

    fn prompts(&self) -> Vec<PromptDef> {
        prompts::list()
    }

    fn uri_schemes(&self) -> Vec<String> {
        vec![SCHEME.to_owned()]
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(async move {
            match tool {
                "get_issue" => self.get_issue(arguments, ctx).await,
                "list_projects" => {
                    let args = ListProjects::parse(arguments)?;
                    if args.include_people {
                        return self.storage.read_slow(&ctx.cancel, move |c| reads::list_projects(c, &args)).await;
                    }
                    self.storage.read(|conn| reads::list_projects(conn, &args))
                }
                "list_issues" => self.list_issues(arguments, ctx).await,
                "search_issues" => self.search(arguments, ctx).await,
                _ => {
                    let write = Write::parse(tool, arguments).ok_or_else(|| unknown_tool(tool))??;
                    self.write(tool, write, ctx).await
                }
            }
        })
    }

    fn preview<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>> {
        Box::pin(async move {
            let write = Write::parse(tool, arguments).ok_or_else(|| unknown_tool(tool))??;
            let workflow = Arc::clone(&self.workflow);
            let work = move |conn: &rusqlite::Connection| plan::plan(conn, &workflow, &write).map(|p| p.preview());
            // The old texts of an update or a deletion may be long although the arguments are short.
            let quick = arguments.get().len() <= QUICK_ARGUMENTS && !matches!(tool, "update_issue" | "delete_issue");
            if quick {
                return self.storage.read(|conn| snapshot(conn, work));
            }
            self.storage.read_slow(&ctx.cancel, work).await
        })
    }

    fn reads(&self, tool: &str, arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
        reading::reads(tool, arguments)
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }
}

impl Module for Tracker {
    fn read_resource<'a>(
        &'a self,
        uri: &'a str,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceText>, McpError>> {
        Box::pin(async move {
            let resource = Resource::parse(uri).ok_or_else(|| resources::unknown(uri))?;
            let (workflow, uri) = (Arc::clone(&self.workflow), uri.to_owned());
            if matches!(resource, Resource::Issue(_)) {
                return self.storage.read(|conn| {
                    snapshot(conn, |conn| resources::read(conn, &workflow, &resource, &uri)).map(|text| vec![text])
                });
            }
            let read = move |conn: &rusqlite::Connection| resources::read(conn, &workflow, &resource, &uri);
            self.storage.read_slow(&ctx.cancel, read).await.map(|text| vec![text])
        })
    }

    fn get_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<PromptResult, McpError>> {
        Box::pin(async move {
            let prompt = Prompt::parse(name, arguments, Timestamp::now())?;
            self.storage.read_slow(&ctx.cancel, move |conn| prompts::get(conn, &prompt)).await
        })
    }

    fn complete<'a>(
        &'a self,
        reference: &'a CompletionRef,
        argument: (&'a str, &'a str),
        _context: &'a Map<String, Value>,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<Completion, McpError>> {
        Box::pin(async move {
            let (reference, name, typed) = (reference.clone(), argument.0.to_owned(), argument.1.to_owned());
            self.storage.read_slow(&ctx.cancel, move |conn| completion::complete(conn, &reference, &name, &typed)).await
        })
    }
}
