//! Tests the tracker through the `Provider` trait, on a real file and on a real database server.

mod conformity;
mod hostile;
mod invariants;
mod plans;
mod reads;
mod resources;
mod runs;
mod writes;

use std::{path::Path, sync::Arc};

use serde_json::{Value, json, value::to_raw_value};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{
    Tracker,
    db::{Row, RowResult},
    storage::ReadKind,
};
use countersign_config::TrackerConfig;
use countersign_domain::{
    changes::Preview,
    principal::{Principal, Role},
};
use countersign_postgres::url_of;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, List, Module as _, PresentValues, Provider, ProviderEvent};
use countersign_store::StoreLocation;

/// A tracker on a database of its own.
pub(super) struct Fixture {
    pub tracker: Arc<Tracker>,
    pub dir: TempDir,
}

pub(super) fn config(sample_project: bool) -> TrackerConfig {
    TrackerConfig { enabled: true, workflow: std::collections::BTreeMap::new(), sample_project, people: Vec::new() }
}

/// Returns a database of its own for each directory: in PostgreSQL if this is the module `on_postgres`, otherwise in a
/// SQLite file.
pub(super) fn location_of(dir: &Path) -> StoreLocation {
    if module_path!().ends_with("on_postgres") {
        return StoreLocation::server(&url_of(dir), None).unwrap();
    }
    StoreLocation::directory(dir)
}

impl Fixture {
    /// Opens an empty tracker.
    pub fn empty() -> Self {
        Self::with_config(&config(false))
    }

    pub fn sample() -> Self {
        Self::with_config(&config(true))
    }

    pub fn with_config(config: &TrackerConfig) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), config)
    }

    fn in_dir(dir: TempDir, config: &TrackerConfig) -> Self {
        Self { tracker: Tracker::open(&location_of(dir.path()).module_storage().unwrap(), config).unwrap(), dir }
    }

    /// Opens the tracker again, as a later start does.
    pub fn reopen(self, config: &TrackerConfig) -> Self {
        Self::in_dir(self.dir, config)
    }

    /// Calls a tool as `agent-1` without a change, and returns the structured answer.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value, McpError> {
        self.call_as(&context("agent-1", None), tool, arguments).await
    }

    pub async fn call_as(&self, ctx: &CallContext, tool: &str, arguments: Value) -> Result<Value, McpError> {
        let arguments = to_raw_value(&arguments).unwrap();
        let result = self.tracker.call(tool, &arguments, ctx).await?;
        assert!(!result.is_error);
        Ok(serde_json::from_str(result.structured_content.unwrap().get()).unwrap())
    }

    pub async fn call_for_text(&self, tool: &str, arguments: Value) -> String {
        let arguments = to_raw_value(&arguments).unwrap();
        let result = self.tracker.call(tool, &arguments, &context("agent-1", None)).await.unwrap();
        countersign_provider::text::content_text(&result.content)
    }

    pub async fn preview(&self, tool: &str, arguments: Value) -> Result<Preview, McpError> {
        let arguments = to_raw_value(&arguments).unwrap();
        self.tracker.preview(tool, &arguments, &context("agent-1", None)).await
    }

    /// Reads the fields of a write again, after it has returned this structured answer.
    pub async fn read_back(&self, tool: &str, arguments: Value, answer: &Value) -> PresentValues {
        let arguments = to_raw_value(&arguments).unwrap();
        let result = to_raw_value(&json!({ "structuredContent": answer })).unwrap();
        self.tracker.read_back(tool, &arguments, &result, &context("agent-1", None)).unwrap().await.unwrap()
    }

    /// Checks that the preview and the run refuse a write with the same error and change no data. Returns the error.
    pub async fn assert_refused(&self, tool: &str, arguments: Value) -> McpError {
        let before = self.dump().await;
        let by_preview = self.preview(tool, arguments.clone()).await.expect_err("the preview refuses the write");
        let by_run = self.call(tool, arguments).await.expect_err("the run refuses the write");
        assert_eq!(by_preview, by_run);
        assert_eq!(self.dump().await, before, "a refused write changed data");
        by_preview
    }

    /// Checks that a write is refused because the argument at `pointer` breaks a rule.
    pub async fn assert_invalid(&self, tool: &str, arguments: Value, pointer: &str, rule: &str) {
        assert_invalid(&self.assert_refused(tool, arguments).await, pointer, rule);
    }

    /// Checks that a write is refused because it names an entity that does not exist.
    pub async fn assert_missing(&self, tool: &str, arguments: Value, entity: &str) {
        assert_missing(&self.assert_refused(tool, arguments).await, entity);
    }

    /// Returns all data that a write can change, as text.
    pub async fn dump(&self) -> Vec<String> {
        let columns = [
            ("people", "id, uuid, name, kind, principal, created_at"),
            (
                "projects",
                "id, uuid, key, name, description, next_number, issue_count, open_count, created_at, created_by",
            ),
            (
                "issues",
                "id, uuid, key, type, title, description, status, priority, assignee, parent, estimated_hours, version, updated_at",
            ),
            ("comments", "id, uuid, issue, author, person, content, change_id, created_at"),
            ("history", "id, project, issue_uuid, issue_key, at, actor, change_id, action, changes"),
            ("runs", "change_id, tool, at, content, structured"),
        ];
        let mut all = Vec::new();
        for (table, names) in columns {
            let read = move |row: &Row| -> RowResult<String> {
                let cells: RowResult<Vec<String>> =
                    (0..names.split(", ").count()).map(|index| Ok(format!("{:?}", row.value(index)?))).collect();
                Ok(format!("{table}: {}", cells?.join(", ")))
            };
            all.extend(self.rows(&format!("SELECT {names} FROM {table} ORDER BY 1"), read).await);
        }
        all
    }

    /// Reads the rows of a statement from the tracker's database.
    pub async fn rows<T: Send + 'static>(
        &self,
        sql: &str,
        read: impl FnMut(&Row) -> RowResult<T> + Send + 'static,
    ) -> Vec<T> {
        let sql = sql.to_owned();
        self.tracker
            .storage
            .read(ReadKind::Snapshot, &CancellationToken::new(), move |db| Ok(db.query_all(&sql, &[], read).unwrap()))
            .await
            .unwrap()
    }

    pub async fn create_project(&self, key: &str) -> String {
        let created =
            self.call("create_project", json!({ "name": format!("Project {key}"), "key": key })).await.unwrap();
        to_text(&created["project"]["id"])
    }

    /// Creates an issue, and returns its id.
    pub async fn create_issue(&self, project: &str, kind: &str, title: &str, parent: Option<&str>) -> String {
        let mut arguments = json!({ "projectId": project, "type": kind, "title": title });
        if let Some(parent) = parent {
            arguments["parentId"] = json!(parent);
        }
        to_text(&self.call("create_issue", arguments).await.unwrap()["issue"]["id"])
    }

    /// Returns the id that `agent-1` got among the people with its first write.
    pub async fn agent_id(&self) -> String {
        let answer = self.call("list_projects", json!({ "includePeople": true })).await.unwrap();
        let people = answer["people"].as_array().unwrap();
        to_text(&people.iter().find(|p| p["principal"] == "agent-1").unwrap()["id"])
    }

    pub async fn read(&self, uri: &str) -> Result<Value, McpError> {
        let read = self.tracker.read_resource(uri, &context("agent-1", None)).await?;
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].uri, uri);
        assert_eq!(read[0].mime_type, "application/json");
        Ok(serde_json::from_str(&read[0].text).unwrap())
    }
}

pub(super) fn context(name: &str, change_id: Option<&str>) -> CallContext {
    let principal = Arc::new(Principal::new(name, Role::Agent));
    CallContext { change_id: change_id.map(str::to_owned), ..CallContext::new(principal) }
}

pub(super) fn to_text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no string: {value}")).to_owned()
}

#[track_caller]
pub(super) fn assert_invalid(error: &McpError, pointer: &str, rule: &str) {
    assert_eq!(error.kind, ErrorKind::ValidationFailed, "{error}");
    let problem = &error.data["details"]["errors"][0];
    assert_eq!((&problem["pointer"], &problem["rule"]), (&json!(pointer), &json!(rule)), "{error}");
}

#[track_caller]
pub(super) fn assert_missing(error: &McpError, entity: &str) {
    assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
    assert_eq!(error.data["entityType"], entity, "{error}");
}

/// An id that no entity has.
pub(super) const UNKNOWN_ID: &str = "00000000-0000-4000-8000-000000000000";

/// Returns the URIs of all pending events, and whether the list of resources has changed.
pub(super) fn drain_events(receiver: &mut tokio::sync::broadcast::Receiver<ProviderEvent>) -> (Vec<String>, bool) {
    let (mut uris, mut list_changed) = (Vec::new(), false);
    while let Ok(event) = receiver.try_recv() {
        match event {
            ProviderEvent::ResourcesUpdated(more) => uris.extend(more),
            ProviderEvent::ListChanged(list) => list_changed |= list == List::Resources,
            ProviderEvent::PrivateResourcesUpdated(private) => {
                panic!("the tracker has no private resources: {private:?}")
            }
            ProviderEvent::AccountListChanged { .. } => {}
        }
    }
    (uris, list_changed)
}
