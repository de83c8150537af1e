//! Webhooks send events of the feed to the configured addresses, at least once and in order for each change.
//!
//! Webhooks never delay other parts: an absent receiver costs a bounded number of rows, and the feed keeps the other
//! events. [`countersign_domain::webhooks`] formats the events, which never contain arguments or diffs.
//!
//! `worker.rs` follows the feed for one webhook from a stored position, [`event_filter`] selects its events, [`lanes`]
//! orders the deliveries, and [`send`] makes one attempt. [`Webhooks::apply`] applies a new configuration: a webhook that
//! keeps its name, even disabled, keeps its position and pending deliveries.

mod cleanup;
pub mod event_filter;
mod fence;
pub mod lanes;
pub mod send;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix::ArbiterHandle;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use self::{
    cleanup::{delete_others, store_of_leader},
    worker::{Command, Worker},
};
use countersign_config::{WebhookConfig, WebhooksConfig};
use countersign_domain::changes::ChangeState;
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::background;
use countersign_store::{
    Nodes, StoreError,
    webhooks::{Deliveries, Delivery},
};

/// The state of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookStatus {
    /// The number up to which all events of the feed are delivered, given up or filtered out.
    pub position: u64,
    pub waiting: usize,
    /// The receiver has failed several times in a row.
    pub failing: bool,
    #[schema(required)]
    pub last_error: Option<String>,
    #[schema(required)]
    pub next_attempt_at: Option<Timestamp>,
}

/// A webhook in a listing, without its secret, and with only scheme, host and port of its address.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Webhook)]
pub struct WebhookSummary {
    pub name: String,
    /// The scheme, host and port. The path may be a credential.
    pub url: String,
    #[schema(pattern = "^(json|slack|teams|discord|text)$")]
    pub format: &'static str,
    /// Globs of event types.
    pub events: Vec<String>,
    /// Globs of tools; an empty list matches all.
    pub tools: Vec<String>,
    /// Globs of servers; an empty list matches all.
    pub servers: Vec<String>,
    /// The states of changes; an empty list matches all.
    pub states: Vec<ChangeState>,
    /// The number of the last event in the feed.
    pub head: u64,
    #[serde(flatten)]
    pub status: WebhookStatus,
}

/// The result of a test delivery.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WebhookTested)]
pub struct TestResult {
    pub delivered: bool,
    #[schema(required)]
    pub status: Option<u16>,
    #[schema(required)]
    pub error: Option<String>,
}

/// A webhook with its running worker.
struct RunningWebhook {
    config: Arc<WebhookConfig>,
    status: Arc<Mutex<WebhookStatus>>,
    commands: mpsc::Sender<Command>,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// The dependencies that all workers share.
pub struct WebhookContext {
    pub store: Arc<dyn Deliveries>,
    pub nodes: Arc<dyn Nodes>,
    /// The thread of the workers.
    pub thread: ArbiterHandle,
    /// The dashboard's URL, to which the name of a page is appended.
    pub dashboard_url: Arc<str>,
    pub shutdown: CancellationToken,
}

/// All webhooks of a gateway.
pub struct Webhooks {
    feed: Feed,
    /// Unset until [`Webhooks::start`], and in a gateway that sends nothing.
    context: OnceLock<WebhookContext>,
    /// Running webhooks in the order of the configuration.
    running: Mutex<Vec<Arc<RunningWebhook>>>,
    /// The names of all configured webhooks, including disabled ones.
    names: Mutex<Vec<String>>,
    /// Held while the set of webhooks changes.
    replace_lock: tokio::sync::Mutex<()>,
}

impl Webhooks {
    /// Creates an instance without webhooks, for [`Self::start`].
    pub fn new(feed: Feed) -> Self {
        Self {
            feed,
            context: OnceLock::new(),
            running: Mutex::default(),
            names: Mutex::default(),
            replace_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Starts the workers on their thread. Must be called at most once.
    ///
    /// # Errors
    /// Errors of opening the database.
    pub async fn start(
        self: &Arc<Self>,
        context: WebhookContext,
        configured: &WebhooksConfig,
    ) -> Result<(), StoreError> {
        let context = self.context.get_or_init(|| context);
        // One of several nodes may have an older configuration, so the cleanup task deletes webhooks once it is the leader.
        let deleting_store = context.nodes.claimant().is_none().then(|| Arc::clone(&context.store));
        self.replace(configured, deleting_store).await?;
        let webhooks = Arc::clone(self);
        context.thread.spawn_fn(move || drop(background::spawn(webhooks.delete_removed())));
        Ok(())
    }

    /// Replaces the set of webhooks. Unchanged webhooks keep running; changed ones are restarted at their position, and
    /// deliveries in flight are sent again; disabled ones stop and keep their pending deliveries; removed ones are deleted with
    /// theirs.
    ///
    /// # Errors
    /// Errors of the database. The set is replaced nevertheless.
    pub async fn apply(&self, configured: &WebhooksConfig) -> Result<(), StoreError> {
        let Some(context) = self.context.get() else { return Ok(()) };
        // Read before the check, so that the deletion fails if another node becomes the leader in between.
        let claimant = context.nodes.claimant();
        // A node with an older configuration must not delete webhooks of another node.
        let deleting_store = context.nodes.is_leader().then(|| store_of_leader(&context.store, claimant.as_ref()));
        match self.replace(configured, deleting_store).await {
            // The new leader deletes removed webhooks.
            Err(StoreError::HandedOver) => Ok(()),
            replaced => replaced,
        }
    }

    /// Replaces the set of webhooks like [`Self::apply`], and deletes removed ones from `deleting_store`, if it is given.
    async fn replace(
        &self,
        configured: &WebhooksConfig,
        deleting_store: Option<Arc<dyn Deliveries>>,
    ) -> Result<(), StoreError> {
        let Some(context) = self.context.get() else { return Ok(()) };
        let _guard = self.replace_lock.lock().await;
        let previous = self.running();
        let (unchanged, stopped): (Vec<_>, Vec<_>) =
            previous.into_iter().partition(|running| configured.enabled.iter().any(|now| *now == *running.config));
        // Two workers of one name would send in different orders.
        stop_all(&stopped).await;
        let names: Vec<String> = configured.entries().into_iter().map(|(name, _)| name.to_owned()).collect();
        self.names.lock().clone_from(&names);
        let deleted = match deleting_store {
            Some(store) => delete_others(store, names).await,
            None => Ok(()),
        };
        let now = configured.enabled.iter().map(|webhook| {
            let worker = unchanged.iter().find(|running| *running.config == *webhook);
            worker.map_or_else(|| Arc::new(context.start_worker(webhook, &self.feed)), Arc::clone)
        });
        *self.running.lock() = now.collect();
        deleted
    }

    /// Stops sending, and waits for the answers to deliveries in flight, so that a later sender does not overtake
    /// them.
    pub async fn drain(&self) {
        let all = async {
            let _guard = self.replace_lock.lock().await;
            stop_all(&self.running()).await;
        };
        // The timeout applies if the store does not answer.
        let _ = tokio::time::timeout(worker::DRAIN_TIMEOUT * 2, all).await;
    }

    fn running(&self) -> Vec<Arc<RunningWebhook>> {
        self.running.lock().clone()
    }

    /// Lists the webhooks in the order of the configuration.
    pub fn list(&self) -> Vec<WebhookSummary> {
        let head = self.feed.subscribe(None).map_or(0, |feed| feed.position());
        self.running()
            .iter()
            .map(|running| {
                let (config, status) = (&running.config, running.status.lock().clone());
                WebhookSummary {
                    name: config.name.clone(),
                    url: config.url.redacted(),
                    format: config.format.as_str(),
                    events: config.events.clone(),
                    tools: config.tools.clone(),
                    servers: config.servers.clone(),
                    states: config.states.clone(),
                    head: head.max(status.position),
                    status,
                }
            })
            .collect()
    }

    /// Returns deliveries with an id below `below`, newest first.
    ///
    /// # Errors
    /// `NOT_FOUND`, or errors of the store.
    pub async fn deliveries(&self, name: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, McpError> {
        let name = self.find(name)?.config.name.clone();
        let Some(store) = self.context.get().map(|context| Arc::clone(&context.store)) else { return Ok(Vec::new()) };
        let read_task = background::spawn_blocking(move || store.deliveries(&name, below, limit));
        read_task.await?.map_err(|error| {
            tracing::error!(%error, "deliveries cannot be read");
            error.to_mcp()
        })
    }

    /// Sends pending deliveries at once and requeues those that were given up. Returns the number of the latter.
    ///
    /// # Errors
    /// `NOT_FOUND`; `SHUTTING_DOWN`
    pub async fn retry(&self, name: &str) -> Result<usize, McpError> {
        self.run_command(name, Command::Retry).await
    }

    /// Returns the time limit of one attempt to deliver, or `None` if there is no webhook of this name.
    pub fn attempt_timeout(&self, name: &str) -> Option<Duration> {
        self.find(name).ok().map(|running| running.config.timeout)
    }

    /// Sends a test event ahead of all pending deliveries.
    ///
    /// # Errors
    /// `NOT_FOUND`; `SHUTTING_DOWN`
    pub async fn send_test(&self, name: &str) -> Result<TestResult, McpError> {
        Ok(match self.run_command(name, Command::Test).await? {
            Ok(status) => TestResult { delivered: true, status: Some(status), error: None },
            Err(failed) => TestResult { delivered: false, status: failed.status, error: Some(failed.error) },
        })
    }

    /// Sends a command to a worker and waits for the answer.
    async fn run_command<T>(
        &self,
        name: &str,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, McpError> {
        let (answer, result) = oneshot::channel();
        self.find(name)?.commands.send(command(answer)).await.map_err(|_| shutting_down_error())?;
        result.await.map_err(|_| shutting_down_error())
    }

    fn find(&self, name: &str) -> Result<Arc<RunningWebhook>, McpError> {
        let found = self.running().into_iter().find(|running| running.config.name == name);
        found.ok_or_else(|| McpError::new(ErrorKind::NotFound, "There is no webhook of this name"))
    }
}

/// Stops the webhooks, and waits until all workers have ended.
async fn stop_all(webhooks: &[Arc<RunningWebhook>]) {
    for running in webhooks {
        running.stop.cancel();
    }
    for running in webhooks {
        running.ended.cancelled().await;
    }
}

impl WebhookContext {
    fn start_worker(&self, webhook: &WebhookConfig, feed: &Feed) -> RunningWebhook {
        let (commands, queue) = mpsc::channel(8);
        let (config, status) = (Arc::new(webhook.clone()), Arc::default());
        let (stop, ended) = (self.shutdown.child_token(), CancellationToken::new());
        let worker = Worker {
            config: Arc::clone(&config),
            store: Arc::clone(&self.store),
            nodes: Arc::clone(&self.nodes),
            feed: feed.clone(),
            dashboard_url: Arc::clone(&self.dashboard_url),
            status: Arc::clone(&status),
            commands: queue,
            stop: stop.clone(),
            _ended: ended.clone().drop_guard(),
        };
        // If the thread has ended, the worker is dropped, which also marks it as ended.
        self.thread.spawn_fn(move || drop(background::spawn(worker.run())));
        RunningWebhook { config, status, commands, stop, ended }
    }
}

fn shutting_down_error() -> McpError {
    let message = "The gateway is shutting down, or the webhook is being reconfigured";
    McpError::new(ErrorKind::ShuttingDown, message).with("retryAfter", 1)
}
