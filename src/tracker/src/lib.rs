//! The built-in issue tracker: projects, issues, comments, people, and their history.
//!
//! It previews and runs writes, and knows nothing about policy, sessions or reviewers. A write runs in one transaction,
//! which repeats all checks of the preview.
//!
//! `tools.rs` defines the tools and `arguments.rs` their arguments. `plan.rs` checks a write against the live state and
//! makes its diff, and `writes.rs` carries it out. `reads.rs` and `search.rs` answer reads, and `preview_reads.rs` lists
//! the reads that reveal the data of a preview. `read_back.rs` reads the written fields after a run.

mod arguments;
mod checks;
mod cursor;
mod db;
mod history;
mod inserts;
mod model;
mod plan;
mod preview_reads;
mod project_keys;
mod read_back;
mod reads;
mod render;
mod resources;
mod rows;
mod sample;
mod sample_data;
mod search;
mod storage;
// The suite is compiled once for each database, and chooses the database by its module path.
#[cfg(test)]
#[path = "suite/mod.rs"]
#[allow(clippy::duplicate_mod, reason = "it is compiled once for each database")]
mod on_postgres;
#[cfg(test)]
#[path = "suite/mod.rs"]
mod on_sqlite;
mod tools;
mod uri;
mod words;
mod workflow;
mod writes;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, value::RawValue};
use tokio::sync::broadcast;

pub use self::storage::{TrackerError, copy_data};
use self::{
    arguments::{GetIssue, ListIssues, ListProjects, SearchIssues, Write},
    db::{Db, unwritten_error},
    history::Actor,
    storage::{ReadKind, Storage},
    uri::{ChangedResources, Resource, SCHEME},
    workflow::Workflow,
};
use countersign_config::TrackerConfig;
use countersign_domain::changes::Preview;
use countersign_protocol::McpError;
use countersign_provider::{
    CallContext, Module, Permit, PresentValues, Provider, ProviderEvent, ResourceDef, ResourceTemplateDef,
    ResourceText, ToolDef, ToolResult, schema::parse_arguments, text::unknown_tool_error,
};
use countersign_store::ModuleStorage;

/// The maximum length of arguments whose preview is made on the caller's thread. Longer arguments may need a costly
/// diff.
const MAX_QUICK_ARGUMENT_BYTES: usize = 2048;

/// The tracker as a module, named `tracker` in routes and changes.
pub struct Tracker {
    storage: Storage,
    workflow: Arc<Workflow>,
}

impl Tracker {
    /// Returns the tools without opening any data.
    ///
    /// # Errors
    /// Fails if the workflow is invalid.
    pub fn tool_definitions(config: &TrackerConfig) -> Result<Vec<ToolDef>, TrackerError> {
        Workflow::from_config(&config.workflow).map(|workflow| tools::tools(&workflow)).map_err(TrackerError::Workflow)
    }

    /// Opens or creates `tracker.db` in the data directory, or the tracker's tables in PostgreSQL. A new tracker gets the
    /// sample project if that is configured. Blocks for a few milliseconds.
    ///
    /// # Errors
    /// Fails if the workflow is invalid, or the database cannot be opened or is of a newer version.
    pub fn open(location: &ModuleStorage, config: &TrackerConfig) -> Result<Arc<Self>, TrackerError> {
        let workflow = Workflow::from_config(&config.workflow).map_err(TrackerError::Workflow)?;
        let now = Timestamp::now();
        let storage = Storage::open(location, |db, is_new| {
            if is_new && config.sample_project {
                sample::fill(db, now)?;
            }
            config.people.iter().try_for_each(|name| inserts::ensure_named_person(db, name, &now.into()))
        })?;
        Ok(Arc::new(Self { storage, workflow: Arc::new(workflow) }))
    }

    /// Checks a write against the live state again and carries it out, in one transaction. A change that has run
    /// before is not run again: its recorded result is returned.
    async fn write(&self, tool: &str, write: Write, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let workflow = Arc::clone(&self.workflow);
        let (tool, ctx) = (tool.to_owned(), ctx.clone());
        let run = move |db: Db<'_>| {
            let CallContext { principal, change_id, permit, .. } = &ctx;
            if let Some(id) = change_id
                && let Some(result) = writes::find_recorded_result(db, id)?
            {
                return Ok((result, ChangedResources::default()));
            }
            if let Some(permit) = permit {
                Permit::check(Some(permit))?;
                if let Some(id) = change_id
                    && !db.is_claimed(id).map_err(unwritten_error)?
                {
                    return Err(Permit::expired_error());
                }
            }
            let actor =
                Actor { name: principal.name.clone(), change_id: change_id.clone(), at: Timestamp::now().into() };
            let plan = plan::plan(db, &workflow, &write)?;
            ctx.check_state(&plan.fingerprint())?;
            let (result, changed_resources) = plan.carry_out(db, &workflow, principal, &actor)?;
            writes::record_result(db, &tool, &actor, &result)?;
            Ok((result, changed_resources))
        };
        self.storage.write(run).await
    }
}

/// Parses a call of a tool that writes.
///
/// # Errors
/// `TOOL_NOT_FOUND` for any other tool, and the errors of the arguments.
fn parse_write(tool: &str, arguments: &RawValue) -> Result<Write, McpError> {
    Write::parse(tool, arguments).ok_or_else(|| unknown_tool_error("The tracker", tool))?
}

#[async_trait]
impl Provider for Tracker {
    fn name(&self) -> &str {
        "tracker"
    }

    fn tools(&self) -> Vec<ToolDef> {
        tools::tools(&self.workflow)
    }

    async fn resources(&self, ctx: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
        self.storage.read(ReadKind::Statement, &ctx.cancel, resources::list).await
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        resources::templates()
    }

    fn uri_prefixes(&self) -> Vec<String> {
        vec![SCHEME.to_owned()]
    }

    async fn call(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        match tool {
            "list_projects" => {
                let args: ListProjects = parse_arguments(arguments)?;
                let kind = if args.include_people { ReadKind::Slow } else { ReadKind::Statement };
                self.storage.read(kind, &ctx.cancel, move |db| reads::list_projects(db, &args)).await
            }
            "list_issues" => {
                let args: ListIssues = parse_arguments(arguments)?;
                let kind = if args.has_index() { ReadKind::Statement } else { ReadKind::Slow };
                self.storage.read(kind, &ctx.cancel, move |db| reads::list_issues(db, &args)).await
            }
            "get_issue" => {
                let args: GetIssue = parse_arguments(arguments)?;
                let workflow = Arc::clone(&self.workflow);
                let kind = if args.include.is_empty() { ReadKind::Statement } else { ReadKind::Slow };
                self.storage.read(kind, &ctx.cancel, move |db| reads::get_issue(db, &workflow, &args)).await
            }
            "search_issues" => {
                let args: SearchIssues = parse_arguments(arguments)?;
                self.storage.read(ReadKind::Slow, &ctx.cancel, move |db| search::search(db, &args)).await
            }
            _ => self.write(tool, parse_write(tool, arguments)?, ctx).await,
        }
    }

    async fn preview(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<Preview, McpError> {
        let write = parse_write(tool, arguments)?;
        let workflow = Arc::clone(&self.workflow);
        let read = move |db: Db<'_>| plan::plan(db, &workflow, &write).map(|plan| plan.preview());
        // The old texts of an update or a deletion may be long although the arguments are short.
        let is_quick =
            arguments.get().len() <= MAX_QUICK_ARGUMENT_BYTES && !matches!(tool, "update_issue" | "delete_issue");
        let kind = if is_quick { ReadKind::Snapshot } else { ReadKind::Slow };
        self.storage.read(kind, &ctx.cancel, read).await
    }

    fn read_back<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        result: &'a RawValue,
        ctx: &'a CallContext,
    ) -> Option<BoxFuture<'a, Result<PresentValues, McpError>>> {
        let write = Write::parse(tool, arguments)?.ok()?;
        let (workflow, result) = (Arc::clone(&self.workflow), result.to_owned());
        let read = move |db: Db<'_>| read_back::read_back(db, &workflow, &write, &result);
        Some(Box::pin(self.storage.read(ReadKind::Snapshot, &ctx.cancel, read)))
    }

    fn preview_reads(&self, tool: &str, arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
        preview_reads::preview_reads(tool, arguments)
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.storage.events()
    }
}

#[async_trait]
impl Module for Tracker {
    async fn read_resource(&self, uri: &str, ctx: &CallContext) -> Result<Vec<ResourceText>, McpError> {
        let resource = Resource::parse(uri).ok_or_else(|| resources::unknown_resource(uri))?;
        let (workflow, uri) = (Arc::clone(&self.workflow), uri.to_owned());
        let kind = if let Resource::Issue(_) = resource { ReadKind::Statement } else { ReadKind::Slow };
        let read = move |db: Db<'_>| resources::read(db, &workflow, &resource, &uri).map(|text| vec![text]);
        self.storage.read(kind, &ctx.cancel, read).await
    }
}
