//! The task of one webhook: follows the feed from its position, enqueues matching events, and sends them.
//!
//! Deliveries are durable from before they are sent until they have arrived, so that every event is sent at least once
//! even if the process dies. Deliveries in flight are then sent again with the same id. Only the leader among several
//! nodes sends, and a new leader continues where the old one stopped.

use std::{
    future::{Future, poll_fn},
    mem,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt as _, Stream, StreamExt as _, future::OptionFuture, stream::FuturesUnordered};
use metrics::counter;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    WebhookStatus,
    cleanup::store_of_leader,
    event_filter::{EventFilter, event_facts},
    lanes::Lanes,
    send::{AttemptOutcome, DeliveryId, DeliverySender, FailedAttempt},
};
use countersign_config::WebhookConfig;
use countersign_domain::changes::Claimant;
use countersign_feed::{Feed, FeedEvent, FeedSubscription};
use countersign_net::random_byte;
use countersign_runtime::{
    background::{self, UnfinishedWorkError},
    crash::crash_point,
};
use countersign_store::{
    Nodes, StoreError,
    webhooks::{AttemptResult, Deliveries, DeliveryState, PendingDelivery},
};
use countersign_telemetry::metrics as telemetry;

/// The maximum number of pending deliveries. Further events stay in the feed.
const MAX_WAITING: usize = 256;
/// The maximum number of events that are enqueued with one write.
const MAX_BATCH: usize = 64;
/// The number of non-matching events after which the position is stored. A restart reads these events again.
const MAX_UNRECORDED_EVENTS: u64 = 512;
/// The pause before a failed write to the store is retried.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The interval between leadership checks.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The interval between reads of the store, for deliveries that another node requeued, or for the leader's progress.
const STORE_POLL_INTERVAL: Duration = Duration::from_secs(3);

/// The maximum wait for answers to deliveries in flight when the worker stops.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A command to a webhook's worker.
pub(super) enum Command {
    /// Sends all pending deliveries at once and requeues those that were given up. Answers the number of the latter.
    Retry(oneshot::Sender<usize>),
    /// Sends a test event.
    Test(oneshot::Sender<AttemptOutcome>),
}

/// The worker of one webhook.
pub(super) struct Worker {
    pub config: Arc<WebhookConfig>,
    pub store: Arc<dyn Deliveries>,
    pub feed: Feed,
    pub nodes: Arc<dyn Nodes>,
    /// The dashboard's URL, to which the name of a page is appended.
    pub dashboard_url: Arc<str>,
    pub status: Arc<Mutex<WebhookStatus>>,
    pub commands: mpsc::Receiver<Command>,
    /// Cancelled when the gateway ends, or the webhook is changed or removed.
    pub stop: CancellationToken,
    /// Dropped when the worker has stopped.
    pub _ended: DropGuard,
}

/// An attempt with its outcome.
type FinishedAttempt = (PendingDelivery, AttemptOutcome);

/// The progress of a worker that sends deliveries.
struct Progress {
    filter: EventFilter,
    feed: Option<FeedSubscription>,
    /// The number of the last event that was read.
    position: u64,
    /// The position that is recorded in the store.
    recorded: u64,
    lanes: Lanes,
}

impl Worker {
    /// Runs until the worker is stopped.
    pub(super) async fn run(mut self) {
        let _name = telemetry::ConfiguredName::new(&["webhook"], &self.config.name);
        let sender = DeliverySender::for_leader(Arc::clone(&self.nodes));
        let test_sender = DeliverySender::for_any_node(Arc::clone(&self.nodes));
        let unfenced_store = Arc::clone(&self.store);
        while let Some(claimant) = self.wait_until_leader(&test_sender).await {
            self.store = store_of_leader(&unfenced_store, claimant.as_ref());
            let _ = self.serve(&sender, &test_sender).await;
            self.store = Arc::clone(&unfenced_store);
            if self.stop.is_cancelled() || claimant.is_none() {
                return;
            }
            {
                // Only the leader knows whether the receiver fails.
                let mut status = self.status.lock();
                (status.failing, status.last_error) = (false, None);
            }
            tracing::warn!(
                webhook = self.config.name,
                "another node may be sending now; deliveries in flight are sent again"
            );
        }
    }

    /// Waits until this node is the leader, and returns its claimant, which a single node does not have. Returns `None` if the
    /// worker is to stop.
    async fn wait_until_leader(&mut self, test_sender: &DeliverySender) -> Option<Option<Claimant>> {
        let mut next_poll = Instant::now();
        loop {
            let claimant = self.nodes.claimant();
            if self.nodes.is_leader() && self.nodes.holds_claim(claimant.as_ref()) {
                return Some(claimant);
            }
            if next_poll <= Instant::now() {
                let (position, lanes) = self.load_position().await?;
                self.publish_status(position, &lanes);
                next_poll = Instant::now() + STORE_POLL_INTERVAL;
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(LEADER_CHECK_INTERVAL) => {}
                Some(command) = self.commands.recv() => match command {
                    // The leader finds the deliveries with their new time in the store.
                    Command::Retry(answer) => _ = answer.send(self.retry_waiting(&mut Lanes::default()).await),
                    Command::Test(answer) => self.spawn_test(test_sender, answer),
                }
            }
        }
    }

    fn spawn_test(&self, sender: &DeliverySender, answer: oneshot::Sender<AttemptOutcome>) {
        let (config, sender, url) = (Arc::clone(&self.config), sender.clone(), Arc::clone(&self.dashboard_url));
        background::spawn(async move {
            let _ = answer.send(send_test(&config, &sender, &url).await);
        });
    }

    /// Sends deliveries with `sender` while this node is the leader, and test events with `test_sender`. Returns `None`
    /// early if the worker is to stop.
    async fn serve(&mut self, sender: &DeliverySender, test_sender: &DeliverySender) -> Option<()> {
        let mut had_peers = self.nodes.live_count() > 1;
        let (position, lanes) = self.load_position().await?;
        let (filter, feed) = (EventFilter::new(&self.config), self.feed.subscribe(Some(position)));
        let mut progress = Progress { filter, feed, position, recorded: position, lanes };
        let mut next_poll = Instant::now() + STORE_POLL_INTERVAL;
        let mut in_flight = FuturesUnordered::new();
        while self.nodes.is_leader() {
            let lanes = &mut progress.lanes;
            while let Some(delivery) = lanes.take_next(Instant::now()) {
                in_flight.push(self.send_delivery(sender, delivery));
            }
            self.publish_status(progress.position, lanes);
            let has_room = lanes.len() < MAX_WAITING;
            let next_event = OptionFuture::from(progress.feed.as_mut().map(FeedSubscription::next));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.drain(&mut in_flight, lanes).await;
                    return None;
                }
                Some(sent) = in_flight.next() => self.record_attempt(sent, lanes).await?,
                Some(command) = self.commands.recv() => match command {
                    Command::Retry(answer) => _ = answer.send(self.retry_waiting(lanes).await),
                    Command::Test(answer) => self.spawn_test(test_sender, answer),
                },
                event = next_event, if has_room => match event.flatten() {
                    Some(event) => self.enqueue(event, &mut progress).await?,
                    None => {
                        // The store could not be read, or the gateway is ending.
                        sleep(STORE_RETRY_DELAY).await;
                        progress.feed = Some(self.feed.subscribe(Some(progress.position))?);
                    }
                },
                Some(()) = OptionFuture::from(lanes.next_due().map(sleep_until)) => {}
                () = sleep(LEADER_CHECK_INTERVAL) => if next_poll <= Instant::now() {
                    // Another node may have requeued deliveries, and may have left since.
                    let has_peers = self.nodes.live_count() > 1;
                    if mem::replace(&mut had_peers, has_peers) || has_peers {
                        let name = self.config.name.clone();
                        lanes.extend(self.run_on_store(move |store| store.pending(&name)).await?);
                    }
                    next_poll = Instant::now() + STORE_POLL_INTERVAL;
                },
            }
        }
        Some(())
    }

    /// Enqueues the deliveries of an event, and of further events that can be read without waiting.
    async fn enqueue(&self, first: Arc<FeedEvent>, progress: &mut Progress) -> Option<()> {
        let mut deliveries = Vec::new();
        let mut event = Some(first);
        while let Some(next) = event {
            if let Some(seq) = next.seq {
                progress.position = progress.position.max(seq);
            }
            deliveries.extend(self.to_delivery(&next, &progress.filter));
            let has_room = deliveries.len() < MAX_BATCH.min(MAX_WAITING.saturating_sub(progress.lanes.len()));
            event = progress.feed.as_mut().filter(|_| has_room).and_then(|feed| feed.next().now_or_never()).flatten();
        }
        let position = progress.position;
        if deliveries.is_empty() && position - progress.recorded < MAX_UNRECORDED_EVENTS {
            return Some(());
        }
        let (name, rows) = (self.config.name.clone(), deliveries.clone());
        crash_point("before_take_in");
        let ids = self.run_on_store(move |store| store.enqueue(&name, position, &rows)).await?;
        crash_point("after_take_in");
        progress.recorded = position;
        progress.lanes.extend(deliveries.into_iter().zip(ids).map(|(delivery, id)| PendingDelivery { id, ..delivery }));
        Some(())
    }

    /// Waits for the answers to deliveries in flight, so that no later delivery of any node overtakes them.
    async fn drain(&self, in_flight: &mut (impl Stream<Item = FinishedAttempt> + Unpin), lanes: &mut Lanes) {
        let record_answers = async {
            while let Some(attempt) = in_flight.next().await {
                if self.record_attempt(attempt, lanes).await.is_none() {
                    return;
                }
            }
        };
        if timeout(DRAIN_TIMEOUT, record_answers).await.is_err() {
            tracing::warn!(
                webhook = self.config.name,
                "a receiver does not answer; deliveries in flight are sent again unless the webhook was removed"
            );
        }
    }

    /// Loads the position in the feed and the pending deliveries.
    async fn load_position(&self) -> Option<(u64, Lanes)> {
        let head = self.feed.subscribe(None)?.position();
        let name = self.config.name.clone();
        let loaded = self.run_on_store(move |store| Ok((store.position(&name, head)?, store.pending(&name)?))).await;
        let (position, pending) = loaded?;
        let mut lanes = Lanes::default();
        lanes.extend(pending);
        Some((position, lanes))
    }

    /// Turns an event into a delivery if it matches the filter.
    fn to_delivery(&self, event: &FeedEvent, filter: &EventFilter) -> Option<PendingDelivery> {
        if let (Some(seq), None) = (event.seq, &event.change) {
            tracing::warn!(webhook = self.config.name, to = seq, "events were pruned before they could be delivered");
            return None;
        }
        if !filter.accepts_kind(&event.kind) {
            return None;
        }
        let facts = event_facts(event);
        filter.accepts(&event.kind, &facts).then(|| PendingDelivery {
            id: 0,
            key: event.seq.map_or_else(new_unnumbered_key, |seq| seq.to_string()),
            seq: event.seq,
            kind: event.kind.clone().into_owned(),
            subject: facts.subject,
            event: String::from_utf8_lossy(&event.json).into_owned(),
            attempts: 0,
            since: self.nodes.now(),
        })
    }

    fn send_delivery(
        &self,
        sender: &DeliverySender,
        delivery: PendingDelivery,
    ) -> impl Future<Output = FinishedAttempt> + use<> {
        let (config, sender, url) = (Arc::clone(&self.config), sender.clone(), Arc::clone(&self.dashboard_url));
        let nodes = Arc::clone(&self.nodes);
        async move {
            let id = DeliveryId::new(&delivery.key, delivery.seq, &delivery.kind, &delivery.event);
            let link = page_url(&url, &delivery.kind, &delivery.subject);
            let body = config.format.render_body(&delivery.event, &link, config.template.as_ref());
            let mut sending = std::pin::pin!(sender.send(&config, &id, body));
            // The process may have been suspended before this poll, and another node may have sent later events since.
            let outcome = poll_fn(|cx| if nodes.is_leader() { sending.as_mut().poll(cx) } else { Poll::Pending }).await;
            (delivery, outcome)
        }
    }

    /// Records the outcome of an attempt. Returns `None` if the worker is to stop.
    async fn record_attempt(&self, (delivery, outcome): FinishedAttempt, lanes: &mut Lanes) -> Option<()> {
        let (now, name, id) = (self.nodes.now(), self.config.name.clone(), delivery.id);
        let (status, failed) = match outcome {
            Ok(status) => (Some(status), None),
            Err(failed) => (failed.status, Some(failed)),
        };
        // A clock that was set back must not expire deliveries.
        let waited = Duration::try_from(now.duration_since(delivery.since)).unwrap_or_default();
        let state = match &failed {
            None => DeliveryState::Delivered,
            Some(failed) if failed.is_gone || waited >= self.config.give_up_after => DeliveryState::GivenUp,
            Some(_) => DeliveryState::Waiting,
        };
        let error = failed.as_ref().map(|failed| failed.error.clone());
        let record = AttemptResult { attempts: delivery.attempts.saturating_add(1), status, error };
        crash_point("after_delivery");
        self.run_on_store(move |store| store.record_attempt(&name, id, state, &record, now)).await?;
        crash_point("after_delivery_noted");
        self.count_attempt(state);
        match failed {
            None => self.handle_delivered(&delivery, lanes),
            Some(failed) => self.handle_failure(&delivery, state, failed, lanes),
        }
        Some(())
    }

    fn handle_delivered(&self, delivery: &PendingDelivery, lanes: &mut Lanes) {
        let is_back = lanes.record_delivered(&delivery.subject, Instant::now());
        {
            let mut status = self.status.lock();
            status.failing &= !is_back;
            status.last_error = None;
        }
        if is_back {
            tracing::info!(webhook = self.config.name, "the webhook's receiver is back");
            self.announce("webhook.recovered", None);
        }
    }

    fn handle_failure(
        &self,
        delivery: &PendingDelivery,
        state: DeliveryState,
        failed: FailedAttempt,
        lanes: &mut Lanes,
    ) {
        let FailedAttempt { error, retry_after, .. } = failed;
        let (now, name, attempts) = (Instant::now(), &self.config.name, delivery.attempts.saturating_add(1));
        tracing::debug!(webhook = name, id = delivery.id, attempts, error, "a delivery failed");
        let is_failing = lanes.record_failure(&delivery.subject, retry_after, random_byte(), now);
        if state == DeliveryState::GivenUp {
            tracing::warn!(webhook = name, id = delivery.id, attempts, error, "a delivery was given up");
            lanes.remove_first(&delivery.subject, now);
        }
        {
            let mut status = self.status.lock();
            status.failing |= is_failing;
            status.last_error = Some(error.clone());
        }
        if is_failing {
            tracing::warn!(
                webhook = name,
                error,
                "the webhook's receiver does not accept deliveries; they are kept and retried"
            );
            self.announce("webhook.failing", Some(&error));
        }
    }

    /// Requeues all given-up deliveries, and makes all pending ones due. Returns the number of the former.
    async fn retry_waiting(&self, lanes: &mut Lanes) -> usize {
        let now = self.nodes.now();
        let mut requeued = 0;
        loop {
            let name = self.config.name.clone();
            let batch = self.run_on_store(move |store| store.requeue_given_up(&name, MAX_WAITING, now)).await;
            let (count, pending) = batch.unwrap_or_default();
            requeued += count;
            if count < MAX_WAITING {
                lanes.extend(pending);
                lanes.make_all_due(Instant::now());
                return requeued;
            }
        }
    }

    /// Repeats a store operation until it succeeds. Returns `None` if the worker is to stop, or another node has taken over.
    async fn run_on_store<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Deliveries) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Option<T> {
        let work = Arc::new(work);
        loop {
            let (store, work) = (Arc::clone(&self.store), Arc::clone(&work));
            match background::spawn_blocking(move || work(&*store)).await {
                Ok(Ok(value)) => return Some(value),
                Ok(Err(StoreError::HandedOver)) => return None,
                Ok(Err(error)) => tracing::error!(webhook = self.config.name, %error, "the store failed; trying again"),
                Err(UnfinishedWorkError) => {
                    tracing::error!(webhook = self.config.name, "an operation of the store panicked; trying again")
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(STORE_RETRY_DELAY) => {}
            }
        }
    }

    /// Updates the shared status and the metrics.
    fn publish_status(&self, position: u64, lanes: &Lanes) {
        let next = lanes.next_due().filter(|_| lanes.lowest_seq().is_some());
        let remaining = next.map(|at| at.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero());
        let next = remaining.and_then(|wait| self.nodes.now().checked_add(wait).ok());
        {
            let mut status = self.status.lock();
            status.position = lanes.lowest_seq().map_or(position, |first| first.saturating_sub(1));
            status.waiting = lanes.len();
            status.next_attempt_at = next;
        }
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!(telemetry::WEBHOOK_WAITING, "webhook" => self.config.name.clone()).set(lanes.len() as f64);
    }

    fn count_attempt(&self, state: DeliveryState) {
        let outcome = match state {
            DeliveryState::Delivered => "delivered",
            DeliveryState::Waiting => "failed",
            DeliveryState::GivenUp => "given_up",
        };
        let name = self.config.name.clone();
        counter!(telemetry::WEBHOOK_ATTEMPTS, "webhook" => name, "outcome" => outcome).increment(1);
    }

    fn announce(&self, kind: &str, error: Option<&str>) {
        self.feed.publish_live(&json!({
            "type": kind, "at": self.nodes.now().to_string(), "webhook": self.config.name, "error": error,
        }));
    }
}

/// Returns the URL of the dashboard page about an event's subject.
fn page_url(dashboard_url: &str, kind: &str, subject: &str) -> String {
    match kind.split_once('.').map_or("", |(subject_kind, _)| subject_kind) {
        "change" => format!("{dashboard_url}inbox/{subject}"),
        "rule" => format!("{dashboard_url}rules"),
        "provider" => format!("{dashboard_url}servers"),
        "webhook" => format!("{dashboard_url}webhooks"),
        _ => format!("{dashboard_url}inbox"),
    }
}

/// Sends a test event about no change.
async fn send_test(config: &WebhookConfig, sender: &DeliverySender, dashboard_url: &str) -> AttemptOutcome {
    let at = sender.now();
    let event = json!({
        "type": "webhook.test", "at": at.to_string(), "actor": "countersign", "comment": null,
        "change": { "id": "none", "summary": "A test of this webhook; nothing was proposed", "tool": "none",
            "provider": "countersign", "proposer": { "principal": "countersign" } },
    })
    .to_string();
    let link = page_url(dashboard_url, "webhook.test", "");
    let body = config.format.render_body(&event, &link, config.template.as_ref());
    sender.send(config, &DeliveryId::new("test", None, "webhook.test", &event), body).await
}

/// Returns a key for an event without a number. It contains no `-`, so that a double click selects all of it.
fn new_unnumbered_key() -> String {
    format!("live_{}", nanoid::nanoid!(16, &nanoid::alphabet::SAFE[2..]))
}

#[cfg(test)]
mod tests;
