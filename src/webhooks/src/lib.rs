//! Webhooks: the feed's events, sent to addresses that the configuration names, at least once and in order for each
//! change.
//!
//! Never holds up anything else: a receiver that is away costs a bounded number of rows, and the feed keeps the rest.
//! What goes out is worded in [`countersign_domain::webhooks`]: what happened, never the arguments or the diff.
//!
//! `worker.rs` follows the feed for one webhook from a stored place, [`wanted`] says which events it gets, [`lanes`]
//! which goes out next, [`send`] makes one attempt. [`Webhooks::apply`] puts another configuration into force: a
//! webhook that stays by its name keeps its place and what waits.

mod fence;
mod forget;
pub mod lanes;
pub mod send;
#[cfg(test)]
mod testing;
pub mod wanted;
mod worker;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use actix::ArbiterHandle;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::{
    forget::Forgetful,
    worker::{Command, Worker},
};
use countersign_config::WebhookConfig;
use countersign_domain::changes::ChangeState;
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::{
    Nodes, StoreError,
    webhooks::{Deliveries, Delivery},
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
    /// Globs; none is all.
    pub tools: Vec<String>,
    pub servers: Vec<String>,
    pub states: Vec<ChangeState>,
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
    stop: CancellationToken,
    ended: CancellationToken,
}

/// What all workers share.
struct Ground {
    store: Arc<dyn Deliveries>,
    nodes: Arc<dyn Nodes>,
    thread: ArbiterHandle,
    /// The dashboard's address, up to the name of a page.
    link: Arc<str>,
    shutdown: CancellationToken,
}

/// All webhooks of a gateway.
pub struct Webhooks {
    feed: Feed,
    /// None until they begin, and where nothing is sent.
    ground: OnceLock<Ground>,
    /// In the order of the configuration.
    running: Arc<Mutex<Vec<Arc<Running>>>>,
    /// One set of them after another.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Webhooks {
    /// None yet, see [`Self::begin`].
    #[must_use]
    pub fn none(feed: Feed) -> Self {
        Self { feed, ground: OnceLock::new(), running: Arc::default(), turn: Arc::default() }
    }

    /// Starts their tasks on `thread`; once. `link` is the dashboard's address, up to the name of a page.
    ///
    /// # Errors
    /// Those of opening the database.
    pub async fn begin(
        &self,
        (store, nodes): (Arc<dyn Deliveries>, Arc<dyn Nodes>),
        configured: &[WebhookConfig],
        link: &str,
        thread: ArbiterHandle,
        shutdown: &CancellationToken,
    ) -> Result<(), StoreError> {
        let ground =
            self.ground.get_or_init(|| Ground { store, nodes, thread, link: link.into(), shutdown: shutdown.clone() });
        // Who is one of several may have been started with an older configuration: it is looked at once it leads.
        self.replace(configured, ground.nodes.claimant().is_none()).await?;
        let (running, turn) = (Arc::clone(&self.running), Arc::clone(&self.turn));
        let forgetful = Forgetful { store: Arc::clone(&ground.store), nodes: Arc::clone(&ground.nodes), turn };
        let names = move || {
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            running.iter().map(|running| running.config.name.clone()).collect()
        };
        let shutdown = shutdown.clone();
        ground.thread.spawn_fn(move || drop(actix::spawn(forgetful.run(names, shutdown))));
        Ok(())
    }

    /// Exactly these instead of those before. What is the same runs on; one that has changed is stopped and goes on from
    /// its place, where what was under way goes out again; one that is gone is forgotten with all that waited for it.
    ///
    /// # Errors
    /// Those of the database; the webhooks are these nevertheless.
    pub async fn apply(&self, configured: &[WebhookConfig]) -> Result<(), StoreError> {
        // A node whose configuration is older must not forget what another one sends.
        let forget = self.ground.get().is_some_and(|ground| ground.nodes.leads());
        self.replace(configured, forget).await
    }

    async fn replace(&self, configured: &[WebhookConfig], forget: bool) -> Result<(), StoreError> {
        let Some(ground) = self.ground.get() else { return Ok(()) };
        let _turn = self.turn.lock().await;
        let before = self.running();
        let (stay, leave): (Vec<_>, Vec<_>) =
            before.into_iter().partition(|running| configured.iter().any(|now| *now == *running.config));
        // Two of one name would send in two orders.
        end(&leave).await;
        let names: Vec<String> = configured.iter().map(|webhook| webhook.name.clone()).collect();
        let store = Arc::clone(&ground.store);
        let kept = tokio::task::spawn_blocking(move || if forget { store.keep_only(&names) } else { Ok(()) }).await;
        let now = configured.iter().map(|webhook| {
            let stays = stay.iter().find(|running| *running.config == *webhook);
            stays.map_or_else(|| Arc::new(ground.start(webhook, &self.feed)), Arc::clone)
        });
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = now.collect();
        kept.unwrap_or(Err(StoreError::Closed))
    }

    /// Sends nothing any more, and waits for the answers to what is under way: before another node begins, or this one again.
    pub async fn finish(&self) {
        let all = async {
            let _turn = self.turn.lock().await;
            end(&self.running()).await;
        };
        // The store may be silent.
        let _ = tokio::time::timeout(worker::FINISH * 2, all).await;
    }

    fn running(&self) -> Vec<Arc<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// In the order of the configuration.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let head = self.feed.subscribe(None).map_or(0, |feed| feed.position());
        self.running()
            .iter()
            .map(|running| {
                let (config, shared) = (&running.config, &running.shared);
                let Status { position, waiting, failing, last_error, next_attempt_at } = shared.read();
                Listed {
                    name: config.name.clone(),
                    url: config.url.shown(),
                    format: config.format.as_str(),
                    events: config.events.clone(),
                    tools: config.tools.clone(),
                    servers: config.servers.clone(),
                    states: config.states.clone(),
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
        let Some(store) = self.ground.get().map(|ground| Arc::clone(&ground.store)) else { return Ok(Vec::new()) };
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
            send::AttemptOutcome::Delivered(status) => Tested { delivered: true, status: Some(status), error: None },
            send::AttemptOutcome::Failed(failed) => {
                Tested { delivered: false, status: failed.status, error: Some(failed.error) }
            }
        })
    }

    fn find(&self, name: &str) -> Result<Arc<Running>, McpError> {
        let found = self.running().into_iter().find(|running| running.config.name == name);
        found.ok_or_else(|| McpError::new(ErrorKind::NotFound, "There is no webhook of this name"))
    }
}

/// Stops them, and waits until all have.
async fn end(some: &[Arc<Running>]) {
    for running in some {
        running.stop.cancel();
    }
    for running in some {
        running.ended.cancelled().await;
    }
}

impl Ground {
    fn start(&self, webhook: &WebhookConfig, feed: &Feed) -> Running {
        let (commands, queue) = mpsc::channel(8);
        let (config, shared) = (Arc::new(webhook.clone()), Arc::new(Shared(Mutex::default())));
        let (stop, ended) = (self.shutdown.child_token(), CancellationToken::new());
        let worker = Worker {
            config: Arc::clone(&config),
            store: Arc::clone(&self.store),
            nodes: Arc::clone(&self.nodes),
            feed: feed.clone(),
            link: Arc::clone(&self.link),
            shared: Arc::clone(&shared),
            commands: queue,
            stop: stop.clone(),
            _ended: ended.clone().drop_guard(),
        };
        // A thread that has ended drops the worker, which has ended with that.
        self.thread.spawn_fn(move || drop(actix::spawn(worker.run())));
        Running { config, shared, commands, stop, ended }
    }
}

fn gone() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down, or the webhook is being reconfigured")
}
