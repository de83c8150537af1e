//! The task of one webhook: follows the feed from its place, takes in what concerns it, and sends it.
//!
//! What is taken in is durable before it is sent and until it has arrived, so that every event goes out at least once,
//! whatever ends the process; what was under way then goes out again, under the same id. Of several nodes of one store the
//! one that leads sends; another takes over where that one stood.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt as _, Stream, StreamExt as _, stream::FuturesUnordered};
use metrics::counter;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Shared, Status,
    lanes::Lanes,
    send::{AttemptOutcome, Failed, Id, Sender},
    wanted::Wanted,
};
use countersign_config::WebhookConfig;
use countersign_domain::{
    changes::Claimant,
    webhooks::event::{Facts, outward},
};
use countersign_feed::{Feed, FeedEvent, FeedSubscription};
use countersign_net::random_byte;
use countersign_runtime::crash::crash_point;
use countersign_store::{
    Nodes, StoreError,
    webhooks::{Deliveries, DeliveryState, Tried, Waiting},
};
use countersign_telemetry::metrics as telemetry;

/// Deliveries that wait; while there are so many, no more are taken in.
const WINDOW: usize = 256;
/// Events taken in with one write.
const BATCH: usize = 64;
/// Events that concern nobody are noted as looked at after so many: after a restart they are looked at again.
const UNNOTED: u64 = 512;
/// Before a write to the store is tried again.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked whether this node still leads, or does by now.
const TURN: Duration = Duration::from_millis(250);
/// How often it is looked what another node has asked to be sent again, or how far the leading one is.
const LOOK: Duration = Duration::from_secs(3);

/// How long the answers to what is under way are waited for at the end.
pub(super) const FINISH: Duration = Duration::from_secs(2);

/// What a webhook is asked from outside.
pub(super) enum Command {
    /// Everything that waits goes out at once, and what was given up waits again. Answers how many of these.
    Retry(oneshot::Sender<usize>),
    /// Sends an event that says that it is a test.
    Test(oneshot::Sender<AttemptOutcome>),
}

pub(super) struct Worker {
    pub config: Arc<WebhookConfig>,
    pub store: Arc<dyn Deliveries>,
    pub feed: Feed,
    pub nodes: Arc<dyn Nodes>,
    /// The dashboard's address, up to the name of a page.
    pub link: Arc<str>,
    pub shared: Arc<Shared>,
    pub commands: mpsc::Receiver<Command>,
    /// The gateway ends, or the webhook is another or none by now.
    pub stop: CancellationToken,
    /// Dropped when it has stopped.
    pub _ended: DropGuard,
}

struct Sent {
    waiting: Waiting,
    outcome: AttemptOutcome,
}

enum Next {
    End,
    Sent(Sent),
    Command(Command),
    Event(Option<Arc<FeedEvent>>),
    Due,
    /// It is looked who leads, and what others have asked for.
    Look,
}

impl Worker {
    /// Runs until it is stopped.
    pub(super) async fn run(mut self) {
        let _name = telemetry::ConfiguredName::new(&["webhook"], &self.config.name);
        let (sender, tests) = (Sender::leading(Arc::clone(&self.nodes)), Sender::always(Arc::clone(&self.nodes)));
        let all = Arc::clone(&self.store);
        while let Some(by) = self.turn(&tests).await {
            self.store = by.as_ref().and_then(|by| all.led_by(by)).unwrap_or_else(|| Arc::clone(&all));
            self.serve(&sender, &tests).await;
            self.store = Arc::clone(&all);
            if self.stop.is_cancelled() || by.is_none() {
                return;
            }
            tracing::warn!(
                webhook = self.config.name,
                "another node may send by now; what was under way goes out again"
            );
        }
    }

    /// Waits until this node leads; as what. `None` when it is to stop.
    async fn turn(&mut self, tests: &Sender) -> Option<Option<Claimant>> {
        let mut look = Instant::now();
        loop {
            let by = self.nodes.claimant();
            if self.nodes.leads() && self.nodes.holds(by.as_ref()) {
                return Some(by);
            }
            if look <= Instant::now() {
                let (seen, waiting) = self.begin().await?;
                let mut lanes = Lanes::default();
                waiting.into_iter().for_each(|waiting| lanes.push(waiting, Instant::now()));
                self.told(seen, &lanes);
                look = Instant::now() + LOOK;
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(TURN) => {}
                Some(command) = self.commands.recv() => match command {
                    // Whoever leads finds what waits again.
                    Command::Retry(answer) => {
                        let again = self.again(&mut Lanes::default()).await;
                        let _ = answer.send(again);
                    }
                    Command::Test(answer) => self.test(tests, answer),
                }
            }
        }
    }

    fn test(&self, sender: &Sender, answer: oneshot::Sender<AttemptOutcome>) {
        let (config, sender, link) = (Arc::clone(&self.config), sender.clone(), Arc::clone(&self.link));
        actix::spawn(async move {
            let _ = answer.send(test(&config, &sender, &link).await);
        });
    }

    /// Sends as long as this node leads, and tests by the other one.
    async fn serve(&mut self, sender: &Sender, tests: &Sender) {
        let wanted = Wanted::new(&self.config);
        let Some((mut seen, waiting)) = self.begin().await else { return };
        let mut look = Instant::now() + LOOK;
        let mut noted = seen;
        let mut lanes = Lanes::default();
        waiting.into_iter().for_each(|waiting| lanes.push(waiting, Instant::now()));
        let mut under_way = FuturesUnordered::new();
        let mut feed = self.feed.subscribe(Some(seen));
        loop {
            if !self.nodes.leads() {
                return;
            }
            while let Some(waiting) = lanes.take(Instant::now()) {
                under_way.push(self.send(sender, waiting));
            }
            self.told(seen, &lanes);
            let room = lanes.len() < WINDOW;
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => Next::End,
                Some(sent) = under_way.next() => Next::Sent(sent),
                Some(command) = self.commands.recv() => Next::Command(command),
                event = listen(feed.as_mut()), if room => Next::Event(event),
                () = until(lanes.next()) => Next::Due,
                () = sleep(TURN) => Next::Look,
            };
            match next {
                Next::End => return self.finish(&mut under_way, &mut lanes).await,
                Next::Due => {}
                Next::Look => {
                    if look <= Instant::now() && self.nodes.live() > 1 {
                        let name = self.config.name.clone();
                        let Some(waiting) = self.durably(move |store| store.waiting(&name)).await else { return };
                        let new: Vec<_> = waiting.into_iter().filter(|waiting| !lanes.has(waiting.id)).collect();
                        new.into_iter().for_each(|waiting| lanes.push(waiting, Instant::now()));
                        look = Instant::now() + LOOK;
                    }
                }
                Next::Sent(sent) => {
                    if !self.sent(sent, &mut lanes).await {
                        return;
                    }
                }
                Next::Command(Command::Retry(answer)) => {
                    let again = self.again(&mut lanes).await;
                    let _ = answer.send(again);
                }
                Next::Command(Command::Test(answer)) => self.test(tests, answer),
                Next::Event(None) => {
                    // The store could not be read, or the gateway ends.
                    sleep(STORE_PAUSE).await;
                    feed = self.feed.subscribe(Some(seen));
                    if feed.is_none() {
                        return;
                    }
                }
                Next::Event(Some(event)) => {
                    let mut taken = Vec::new();
                    let mut event = Some(event);
                    while let Some(next) = event {
                        if let Some(seq) = next.seq {
                            seen = seen.max(seq);
                        }
                        taken.extend(self.concerning(&next, &wanted));
                        let more = taken.len() < BATCH.min(WINDOW.saturating_sub(lanes.len()));
                        event = feed.as_mut().filter(|_| more).and_then(|feed| feed.next().now_or_never()).flatten();
                    }
                    if taken.is_empty() && seen - noted < UNNOTED {
                        continue;
                    }
                    let (name, rows) = (self.config.name.clone(), taken.clone());
                    crash_point("before_take_in");
                    let Some(ids) = self.durably(move |store| store.take_in(&name, seen, &rows)).await else {
                        return;
                    };
                    crash_point("after_take_in");
                    noted = seen;
                    let numbered = taken.into_iter().zip(ids).map(|(waiting, id)| Waiting { id, ..waiting });
                    numbered.for_each(|waiting| lanes.push(waiting, Instant::now()));
                }
            }
        }
    }

    /// Waits for the answers to what is under way, so that what goes out next, from wherever, does not overtake it.
    async fn finish(&self, under_way: &mut (impl Stream<Item = Sent> + Unpin), lanes: &mut Lanes) {
        let answered = async {
            while let Some(sent) = under_way.next().await {
                if !self.sent(sent, lanes).await {
                    return;
                }
            }
        };
        if timeout(FINISH, answered).await.is_err() {
            tracing::warn!(webhook = self.config.name, "a receiver does not answer; what was under way goes out again");
        }
    }

    /// Where it stands in the feed, and what waits from before.
    async fn begin(&self) -> Option<(u64, Vec<Waiting>)> {
        let head = self.feed.subscribe(None)?.position();
        let name = self.config.name.clone();
        self.durably(move |store| Ok((store.position(&name, head)?, store.waiting(&name)?))).await
    }

    /// The event as a delivery, if it is one of those that this webhook wants.
    fn concerning(&self, event: &FeedEvent, wanted: &Wanted) -> Option<Waiting> {
        if let (Some(seq), None) = (event.seq, &event.change) {
            tracing::warn!(webhook = self.config.name, to = seq, "events were pruned before they could be delivered");
            return None;
        }
        if !wanted.is_kind(&event.kind) {
            return None;
        }
        let facts = Facts::of(&event.json);
        wanted.wants(&event.kind, &facts).then(|| Waiting {
            id: 0,
            key: event.seq.map_or_else(new_live_key, |seq| seq.to_string()),
            seq: event.seq,
            kind: event.kind.clone().into_owned(),
            subject: facts.subject,
            event: outward(&event.json),
            attempts: 0,
            since: self.nodes.now(),
        })
    }

    fn send(&self, sender: &Sender, waiting: Waiting) -> impl Future<Output = Sent> + use<> {
        let (config, sender, link) = (Arc::clone(&self.config), sender.clone(), Arc::clone(&self.link));
        let nodes = Arc::clone(&self.nodes);
        async move {
            let id = Id::new(&waiting.key, waiting.seq, &waiting.kind, &waiting.event);
            let link = page(&link, &waiting.kind, &waiting.subject);
            let body = config.format.body(&waiting.event, &link, config.template.as_ref());
            let mut sending = std::pin::pin!(sender.send(&config, &id, body));
            // A process that was stopped wakes with it in its hands, and another node may have sent what comes after it.
            let outcome = poll_fn(|cx| if nodes.leads() { sending.as_mut().poll(cx) } else { Poll::Pending }).await;
            Sent { waiting, outcome }
        }
    }

    /// Notes what came of it. Answers false when it is to stop.
    async fn sent(&self, Sent { waiting, outcome }: Sent, lanes: &mut Lanes) -> bool {
        let (now, name) = (self.nodes.now(), self.config.name.clone());
        let attempts = waiting.attempts.saturating_add(1);
        let (state, tried, failed) = match outcome {
            AttemptOutcome::Delivered(status) => {
                (DeliveryState::Delivered, Tried { attempts, status: Some(status), error: None }, None)
            }
            AttemptOutcome::Failed(failed) => {
                // A clock that was set back makes nothing old.
                let waited = Duration::try_from(now.duration_since(waiting.since)).unwrap_or_default();
                let over = failed.gone || waited >= self.config.give_up_after;
                let state = if over { DeliveryState::GivenUp } else { DeliveryState::Waiting };
                (state, Tried { attempts, status: failed.status, error: Some(failed.error.clone()) }, Some(failed))
            }
        };
        let id = waiting.id;
        crash_point("after_delivery");
        if self.durably(move |store| store.tried(&name, id, state, &tried, now)).await.is_none() {
            return false;
        }
        crash_point("after_delivery_noted");
        self.counted(state);
        match (state, failed) {
            (DeliveryState::Delivered, _) | (_, None) => self.arrived(&waiting, lanes),
            (_, Some(failed)) => self.refused(&waiting, attempts, state, failed, lanes),
        }
        true
    }

    fn arrived(&self, waiting: &Waiting, lanes: &mut Lanes) {
        if lanes.delivered(&waiting.subject, Instant::now()) {
            tracing::info!(webhook = self.config.name, "the webhook's receiver is back");
            self.shared.update(|status| (status.failing, status.last_error) = (false, None));
            self.announce("webhook.recovered", None);
        } else {
            self.shared.update(|status| status.last_error = None);
        }
    }

    fn refused(&self, waiting: &Waiting, attempts: u32, state: DeliveryState, failed: Failed, lanes: &mut Lanes) {
        let Failed { error, retry_after, .. } = failed;
        let (now, name) = (Instant::now(), &self.config.name);
        tracing::debug!(webhook = name, id = waiting.id, attempts, error, "a delivery failed");
        let away = lanes.failed(&waiting.subject, retry_after, random_byte(), now);
        if state == DeliveryState::GivenUp {
            tracing::warn!(webhook = name, id = waiting.id, attempts, error, "a delivery was given up");
            lanes.given_up(&waiting.subject, now);
        } else {
            lanes.tried(&waiting.subject, attempts);
        }
        self.shared.update(|status| {
            status.failing |= away;
            status.last_error = Some(error.clone());
        });
        if away {
            tracing::warn!(webhook = name, error, "the webhook's receiver does not take deliveries; they are kept");
            self.announce("webhook.failing", Some(&error));
        }
    }

    async fn again(&self, lanes: &mut Lanes) -> usize {
        let (now, name) = (self.nodes.now(), self.config.name.clone());
        let again = self.durably(move |store| store.again(&name, WINDOW, now)).await;
        let (again, waiting) = again.unwrap_or_default();
        waiting.into_iter().for_each(|waiting| lanes.push(waiting, Instant::now()));
        lanes.hurry(Instant::now());
        again
    }

    /// Does it until it is done; `None` when it is to stop, or another node does this by now.
    async fn durably<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Deliveries) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Option<T> {
        let work = Arc::new(work);
        loop {
            let (store, work) = (Arc::clone(&self.store), Arc::clone(&work));
            match tokio::task::spawn_blocking(move || work(&*store)).await {
                Ok(Ok(done)) => return Some(done),
                Ok(Err(StoreError::HandedOver)) => return None,
                Ok(Err(error)) => tracing::error!(webhook = self.config.name, %error, "the store failed; trying again"),
                Err(error) => tracing::error!(webhook = self.config.name, %error, "a write to the store ended"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(STORE_PAUSE) => {}
            }
        }
    }

    /// For those who look at it.
    fn told(&self, seen: u64, lanes: &Lanes) {
        let next = lanes.next().filter(|_| lanes.first().is_some());
        let soon = next.map(|at| at.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero());
        let next = soon.and_then(|wait| self.nodes.now().checked_add(wait).ok());
        self.shared.update(|status| {
            *status = Status {
                position: lanes.first().map_or(seen, |first| first.saturating_sub(1)),
                waiting: lanes.len(),
                next_attempt_at: next,
                ..std::mem::take(status)
            };
        });
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!(telemetry::WEBHOOK_WAITING, "webhook" => self.config.name.clone()).set(lanes.len() as f64);
    }

    fn counted(&self, state: DeliveryState) {
        let outcome = match state {
            DeliveryState::Delivered => "delivered",
            DeliveryState::Waiting => "failed",
            DeliveryState::GivenUp => "given_up",
        };
        let name = self.config.name.clone();
        counter!(telemetry::WEBHOOK_ATTEMPTS, "webhook" => name, "outcome" => outcome).increment(1);
    }

    fn announce(&self, kind: &str, error: Option<&str>) {
        self.feed.publish_session(&json!({
            "type": kind, "at": self.nodes.now().to_string(), "webhook": self.config.name, "error": error,
        }));
    }
}

/// The page of the dashboard that shows what an event is about.
fn page(link: &str, kind: &str, subject: &str) -> String {
    match kind.split_once('.').map_or("", |(what, _)| what) {
        "change" => format!("{link}inbox/{subject}"),
        "rule" => format!("{link}rules"),
        "provider" => format!("{link}servers"),
        "webhook" => format!("{link}webhooks"),
        _ => format!("{link}inbox"),
    }
}

/// Something that says what it is, of no change.
async fn test(config: &WebhookConfig, sender: &Sender, link: &str) -> AttemptOutcome {
    let at = sender.now();
    let event = json!({
        "type": "webhook.test", "at": at.to_string(), "actor": "countersign", "comment": null,
        "change": { "id": "none", "summary": "A test of this webhook; nothing was proposed", "tool": "none",
            "provider": "countersign", "proposer": { "principal": "countersign" } },
    })
    .to_string();
    let body = config.format.body(&event, &page(link, "webhook.test", ""), config.template.as_ref());
    sender.send(config, &Id::new("test", None, "webhook.test", &event), body).await
}

async fn listen(feed: Option<&mut FeedSubscription>) -> Option<Arc<FeedEvent>> {
    match feed {
        Some(feed) => feed.next().await,
        None => None,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns a key for the delivery of an event that has no number: without `-`, so that a double click selects all of it.
fn new_live_key() -> String {
    format!("live_{}", nanoid::nanoid!(16, &nanoid::alphabet::SAFE[2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_live_events_have_no_dashes() {
        let id = || new_live_key().trim_start_matches("live_").to_owned();
        assert!((0..200).all(|_| id().bytes().all(|byte| byte.is_ascii_alphanumeric())));
    }
}
