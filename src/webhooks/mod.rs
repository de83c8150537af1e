//! Webhooks: the feed's events, sent to addresses that the configuration names.
//!
//! Each webhook follows the durable feed from a stored place ([`worker`]): at least once, in order for each change
//! ([`lanes`]), signed ([`sign`]), as the event itself or as a message for a chat ([`format`], [`template`]). An event
//! says what happened, never the arguments or the diff. Nothing here holds up anything else: a receiver that is away
//! costs a bounded number of rows, and the feed keeps the rest.

pub mod format;
pub mod lanes;
pub mod send;
pub mod sign;
pub mod template;
mod worker;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use actix::Arbiter;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::worker::{Command, Worker};
use crate::{
    config::WebhookConfig,
    pending::Feed,
    protocol::{ErrorKind, McpError},
    store::{
        StoreError,
        webhooks::{Delivery, WebhookStore},
    },
};

/// How a webhook is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Everything of the feed up to here is through.
    pub position: u64,
    pub waiting: usize,
    pub failing: bool,
    pub last_error: Option<String>,
    pub next_attempt_at: Option<Timestamp>,
}

struct Shared(Mutex<Status>);

impl Shared {
    fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn read(&self) -> Status {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A webhook as it is listed: never its secret, of its address only scheme, host and port.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    pub name: String,
    pub url: String,
    pub format: &'static str,
    pub events: Vec<String>,
    pub position: u64,
    /// The end of the feed.
    pub head: u64,
    pub waiting: usize,
    pub failing: bool,
    pub last_error: Option<String>,
    pub next_attempt_at: Option<Timestamp>,
}

/// What came of a test.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tested {
    pub delivered: bool,
    pub status: Option<u16>,
    pub error: Option<String>,
}

struct Running {
    config: Arc<WebhookConfig>,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// All webhooks of a gateway.
pub struct Webhooks {
    /// None where there are no webhooks.
    store: Option<Arc<WebhookStore>>,
    running: Vec<Running>,
    feed: Feed,
}

impl Webhooks {
    /// Starts their tasks on `thread`. `link` is what stands before the id of a change in a link to it.
    ///
    /// # Errors
    /// Those of opening the database.
    pub fn start(
        data: &Path,
        configured: &[WebhookConfig],
        feed: Feed,
        link: &str,
        thread: &Arbiter,
        shutdown: &CancellationToken,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(WebhookStore::open(data)?);
        store.keep_only(&configured.iter().map(|webhook| webhook.name.clone()).collect::<Vec<_>>())?;
        let link: Arc<str> = link.into();
        let mut running = Vec::with_capacity(configured.len());
        for webhook in configured {
            let (commands, queue) = mpsc::channel(8);
            let (config, shared) = (Arc::new(webhook.clone()), Arc::new(Shared(Mutex::default())));
            let worker = Worker {
                config: Arc::clone(&config),
                store: Arc::clone(&store),
                feed: feed.clone(),
                link: Arc::clone(&link),
                shared: Arc::clone(&shared),
                commands: queue,
                shutdown: shutdown.clone(),
            };
            thread.spawn_fn(move || drop(actix::spawn(worker.run())));
            running.push(Running { config, shared, commands });
        }
        Ok(Self { store: Some(store), running, feed })
    }

    /// For a gateway whose doors are all that is looked at.
    #[must_use]
    pub const fn none(feed: Feed) -> Self {
        Self { store: None, running: Vec::new(), feed }
    }

    /// In the order of the configuration.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let head = self.feed.subscribe(None).map_or(0, |feed| feed.position());
        self.running
            .iter()
            .map(|Running { config, shared, .. }| {
                let Status { position, waiting, failing, last_error, next_attempt_at } = shared.read();
                Listed {
                    name: config.name.clone(),
                    url: config.url.shown(),
                    format: config.format.as_str(),
                    events: config.events.clone(),
                    position,
                    head: head.max(position),
                    waiting,
                    failing,
                    last_error,
                    next_attempt_at,
                }
            })
            .collect()
    }

    /// Deliveries below a number, the newest first.
    ///
    /// # Errors
    /// `NOT_FOUND`, those of the store.
    pub async fn deliveries(&self, name: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, McpError> {
        let name = self.find(name)?.config.name.clone();
        let Some(store) = self.store.clone() else { return Ok(Vec::new()) };
        let read = tokio::task::spawn_blocking(move || store.deliveries(&name, below, limit));
        let read = read.await.map_err(|_| gone())?;
        read.map_err(|error| {
            tracing::error!(%error, "deliveries cannot be read");
            error.to_mcp()
        })
    }

    /// Sends what waits at once, and what was given up again; answers how many of these.
    ///
    /// # Errors
    /// `NOT_FOUND`; `SHUTTING_DOWN`
    pub async fn retry(&self, name: &str) -> Result<usize, McpError> {
        let (answer, done) = oneshot::channel();
        self.find(name)?.commands.send(Command::Retry(answer)).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())
    }

    /// Sends an event that says that it is a test, past everything that waits.
    ///
    /// # Errors
    /// `NOT_FOUND`; `SHUTTING_DOWN`
    pub async fn test(&self, name: &str) -> Result<Tested, McpError> {
        let (answer, done) = oneshot::channel();
        self.find(name)?.commands.send(Command::Test(answer)).await.map_err(|_| gone())?;
        Ok(match done.await.map_err(|_| gone())? {
            send::Outcome::Delivered(status) => Tested { delivered: true, status: Some(status), error: None },
            send::Outcome::Failed(failed) => {
                Tested { delivered: false, status: failed.status, error: Some(failed.error) }
            }
        })
    }

    fn find(&self, name: &str) -> Result<&Running, McpError> {
        let found = self.running.iter().find(|running| running.config.name == name);
        found.ok_or_else(|| McpError::new(ErrorKind::NotFound, "There is no webhook of this name"))
    }
}

fn gone() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down")
}
