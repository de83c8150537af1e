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
mod cursor;
mod db;
mod history;
mod inserts;
mod model;
mod plan;
mod project_keys;
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
// One suite, which does not name a database, on both of them: it looks up which one it is told to be on.
#[cfg(test)]
#[path = "suite/mod.rs"]
mod on_a_file;
#[cfg(test)]
#[path = "suite/mod.rs"]
#[allow(clippy::duplicate_mod, reason = "it is compiled once for each database")]
mod on_a_server;
mod tools;
mod uri;
mod words;
mod workflow;
mod writes;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, value::RawValue};
use tokio::sync::broadcast;

use self::{
    args::Write,
    db::{Db, not_written},
    history::Actor,
    queries::{GetIssue, ListIssues, ListProjects, Search},
    storage::Storage,
    uri::{Resource, SCHEME, Touched},
};
pub use self::{
    model::{IssueType, Priority, Status},
    storage::{TrackerError, move_data},
    workflow::Workflow,
};
use countersign_config::TrackerConfig;
use countersign_domain::changes::Preview;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, Module, Permit, Provider, ProviderEvent, ResourceDef, ResourceTemplateDef, ResourceText, ToolDef,
    ToolResult,
};
use countersign_store::Room;

/// Events held for a receiver that is slow; beyond that it re-reads.
const EVENTS: usize = 1024;
/// Bytes of arguments up to which a preview is worked out on the caller's thread: no long text, no costly diff.
const QUICK_ARGUMENTS: usize = 2048;

/// The module. Named `tracker` in routes and changes.
pub struct Tracker {
    storage: Storage,
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

    /// Opens or creates `tracker.db` in the data directory, or the tracker's tables on a server; new ones get the sample
    /// project if configured. Blocks for a few milliseconds.
    ///
    /// # Errors
    /// A workflow that names no status, a database that cannot be opened, or one of a newer version.
    pub fn open(room: &Room, config: &TrackerConfig) -> Result<Arc<Self>, TrackerError> {
        let workflow = Workflow::from_config(&config.workflow).map_err(TrackerError::Workflow)?;
        let now = Timestamp::now();
        let (events, _) = broadcast::channel(EVENTS);
        let told = events.clone();
        let announce = move |touched: Touched| {
            // Nobody listening is no failure.
            let list_changed = touched.list_changed;
            if !touched.uris().is_empty() {
                let _ = told.send(ProviderEvent::ResourcesUpdated(touched.into_uris()));
            }
            if list_changed {
                let _ = told.send(ProviderEvent::ResourceListChanged);
            }
        };
        let storage = Storage::open(room, Box::new(announce), |db, new| {
            if new && config.sample_project {
                sample::fill(db, now)?;
            }
            config.people.iter().try_for_each(|name| inserts::name_person(db, name, &now_text(now)))
        })?;
        Ok(Arc::new(Self { storage, workflow: Arc::new(workflow), events }))
    }

    async fn search(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args = Search::parse(arguments)?;
        self.storage.read_slow(&ctx.cancel, move |db| search::search(db, &args)).await
    }

    async fn list_issues(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args = ListIssues::parse(arguments)?;
        if args.filter.is_quick() {
            return self.storage.read(move |db| reads::list_issues(db, &args)).await;
        }
        self.storage.read_slow(&ctx.cancel, move |db| reads::list_issues(db, &args)).await
    }

    async fn get_issue(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args = GetIssue::parse(arguments)?;
        let (workflow, alone) = (Arc::clone(&self.workflow), args.include.is_empty());
        let read = move |db: Db<'_>| reads::get_issue(db, &workflow, &args);
        if alone {
            return self.storage.read(read).await;
        }
        self.storage.read_slow(&ctx.cancel, read).await
    }

    /// Runs a write: checks it against the live state once more, does it, and commits, all in one transaction.
    async fn write(&self, tool: &str, write: Write, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let workflow = Arc::clone(&self.workflow);
        let (tool, ctx) = (tool.to_owned(), ctx.clone());
        let run = move |db: Db<'_>| {
            let CallContext { principal, change_id, permit, .. } = &ctx;
            if let Some(id) = change_id
                && let Some(result) = writes::earlier_run(db, id)?
            {
                return Ok((result, Touched::default()));
            }
            if let Some(permit) = permit {
                Permit::check(Some(permit))?;
                if let Some(id) = change_id
                    && !db.is_claimed(id).map_err(|error| not_written(&error))?
                {
                    return Err(Permit::expired_error());
                }
            }
            let actor =
                Actor { name: principal.name.clone(), change_id: change_id.clone(), at: now_text(Timestamp::now()) };
            let plan = plan::plan(db, &workflow, &write)?;
            ctx.check_state(&plan.fingerprint())?;
            let applied = writes::apply(db, &workflow, &plan, principal, &actor)?;
            writes::remember_run(db, &tool, &actor, &applied.result)?;
            Ok((applied.result, applied.touched))
        };
        self.storage.write(run).await
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
        Box::pin(self.storage.read(resources::list))
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        resources::templates()
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
                    self.storage.read(move |db| reads::list_projects(db, &args)).await
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
            let work = move |db: Db<'_>| plan::plan(db, &workflow, &write).map(|p| p.preview());
            // The old texts of an update or a deletion may be long although the arguments are short.
            let quick = arguments.get().len() <= QUICK_ARGUMENTS && !matches!(tool, "update_issue" | "delete_issue");
            if quick {
                return self.storage.read_whole(work).await;
            }
            self.storage.read_slow(&ctx.cancel, work).await
        })
    }

    fn preview_reads(&self, tool: &str, arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
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
            let quick = matches!(resource, Resource::Issue(_));
            let read = move |db: Db<'_>| resources::read(db, &workflow, &resource, &uri).map(|text| vec![text]);
            if quick {
                return self.storage.read_whole(read).await;
            }
            self.storage.read_slow(&ctx.cancel, read).await
        })
    }
}
