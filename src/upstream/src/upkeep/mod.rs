//! Keeps an upstream connected and its lists fresh, for as long as it is configured. Runs on the upstreams' thread.

mod lists;
mod subscriptions;
mod survey;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix::{Actor, Context};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{lists::refresh, survey::Survey};
use crate::{
    catalog::ListKinds,
    link::{LinkError, LinkKind, Listener, detect, handshake},
    server::{
        Phase, Upstream, UpstreamActor,
        held::{Held, Traffic},
    },
};
use countersign_config::UpstreamTarget;
use countersign_net::Backoff;
use countersign_protocol::Era;
use countersign_provider::ProviderEvent;

/// A connection that lived so long was a good one: the next try comes at once.
const GOOD: Duration = Duration::from_secs(10);
/// A call may hurry the next try, but not more often than this.
const HURRY: Duration = Duration::from_secs(1);
/// After the first word of a change: what else comes meanwhile is read with it.
const SETTLE: Duration = Duration::from_millis(100);
/// A server that goes on and on about changes is believed, but every new list costs all clients a route table: after
/// so many words of it in a row the pause doubles with each, up to 32 times.
const PATIENT: u32 = 5;
/// Without a word for so long, the row has ended.
const QUIET: Duration = Duration::from_secs(5);
/// How often idle links are looked for.
const LOOK: Duration = Duration::from_secs(15);
/// How long connecting may take before another replica is tried; servers may install themselves first.
const CONNECT: Duration = Duration::from_secs(120);

/// Messages that wait; each is work that somebody awaits, and bounded where it comes from.
const MAILBOX: usize = 1024;

impl Actor for UpstreamActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        actix::spawn(run(Arc::clone(&self.0)));
    }
}

impl Upstream {
    /// Starts the actor on this thread; tests do. [`crate::Upstreams`] starts it on the one for all upstreams.
    pub fn start(self: &Arc<Self>) {
        let _ = self.actor.set(UpstreamActor(Arc::clone(self)).start());
    }
}

/// The pauses before a server that ended, or was not reached, is tried again.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(60) };

/// Runs until [`Upstream::close`].
async fn run(upstream: Arc<Upstream>) {
    let mut failures = 0_u32;
    let mut era: Option<Era> = None;
    while !upstream.stop.is_cancelled() {
        upstream.set_phase(Phase::Connecting);
        let began = Instant::now();
        let connected = tokio::select! {
            connected = connect(&upstream, &mut era) => connected,
            () = upstream.stop.cancelled() => break,
        };
        let lost = connected.is_ok();
        let error = match connected {
            Ok((held, surveyor)) => {
                let up = Instant::now();
                let error = serve(&upstream, &held, surveyor).await;
                if upstream.stop.is_cancelled() {
                    break;
                }
                if matches!(error, LinkError::Protocol(_)) {
                    era = None;
                }
                upstream.meters.restarted();
                tracing::warn!(upstream = %upstream.config.name, %error, "the connection to it has ended");
                if up.elapsed() >= GOOD {
                    failures = 0;
                    continue;
                }
                error
            }
            Err(error) => {
                if matches!(upstream.config.target, UpstreamTarget::Command { .. }) {
                    upstream.meters.restarted();
                }
                // Once is told loudly, the rest is repetition.
                if failures == 0 {
                    tracing::warn!(upstream = %upstream.config.name, %error, "it cannot be reached; trying again");
                } else {
                    tracing::debug!(upstream = %upstream.config.name, %error, failures, "it cannot be reached");
                }
                if !matches!(error, LinkError::Unreachable(_)) {
                    // Perhaps it is another kind of server than it was.
                    era = None;
                }
                error
            }
        };
        // Calls wait for the try that comes at once after a loss, and are told of the later ones that they would wait long.
        if failures > 0 || !lost {
            upstream.set_phase(Phase::Down(error));
        } else {
            upstream.set_phase(Phase::Connecting);
        }
        pause(&upstream, began, BACKOFF.pause(failures)).await;
        failures = failures.saturating_add(1);
    }
    upstream.close();
}

/// Waits, but less long if a call comes.
async fn pause(upstream: &Upstream, began: Instant, wait: Duration) {
    let hurried = async {
        tokio::time::sleep_until(began + HURRY).await;
        upstream.nudge.notified().await;
    };
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = hurried => {}
        () = upstream.stop.cancelled() => {}
    }
}

/// The plain connection, and the one that the lists were read on, if that is another.
type Connected = (Arc<Held>, Option<Arc<Held>>);

/// Connects to the first endpoint that answers, beginning with the one that did last, and reads the lists.
async fn connect(upstream: &Arc<Upstream>, era: &mut Option<Era>) -> Result<Connected, LinkError> {
    let count = upstream.endpoints.len();
    let mut first_error = None;
    for at in (0..count).map(|step| (upstream.home() + step) % count.max(1)) {
        let opened = tokio::time::timeout(CONNECT, open(upstream, at, *era)).await;
        let opened = opened.unwrap_or_else(|_| Err(LinkError::Lost("it took too long to open".into())));
        let error = match opened {
            Ok(held) => {
                upstream.home.store(at, Ordering::Relaxed);
                let surveyor = survey::open(upstream, &held).await;
                match first_lists(upstream, at, surveyor.as_ref().unwrap_or(&held)).await {
                    Ok(()) => {
                        *era = Some(held.era);
                        return Ok((held, surveyor));
                    }
                    Err(error) => {
                        held.close();
                        surveyor.inspect(|held| held.close());
                        error
                    }
                }
            }
            Err(error) => error,
        };
        first_error.get_or_insert(error);
    }
    Err(first_error.unwrap_or_else(|| LinkError::Unreachable("it has no address".into())))
}

/// Opens the plain link of one endpoint. The era is asked for anew wherever that costs no child.
async fn open(upstream: &Arc<Upstream>, at: usize, era: Option<Era>) -> Result<Arc<Held>, LinkError> {
    let Some(endpoint) = upstream.endpoints.get(at) else {
        return Err(LinkError::Unreachable("it has no address".into()));
    };
    let connector = endpoint.connector();
    let traffic = Traffic::new(upstream.me.clone(), false);
    let listener = || Arc::clone(&traffic) as Arc<dyn Listener>;
    let known = upstream.negotiated();
    let (link, negotiated) = match (era, &known) {
        (Some(era), Some(known)) if connector.probe_apart() => {
            let none = countersign_protocol::capabilities::ClientCapabilities::default();
            handshake::open(&*connector, era, Some(known), &none, listener()).await?
        }
        _ => {
            let found = detect::detect(Arc::clone(&connector), &listener).await?;
            if !Arc::ptr_eq(&found.connector, &connector) {
                endpoint.set_connector(Arc::clone(&found.connector));
            }
            match found.link {
                Some(link) => (link, found.negotiated),
                None => {
                    let none = countersign_protocol::capabilities::ClientCapabilities::default();
                    let known = Some(&found.negotiated);
                    handshake::open(&*found.connector, found.era, known, &none, listener()).await?
                }
            }
        }
    };
    let held = Arc::new(Held::new(link, traffic, &negotiated));
    let instructions = negotiated.instructions.clone();
    let before = upstream.negotiated.swap(Some(Arc::new(negotiated)));
    if before.and_then(|before| before.instructions.clone()) != instructions {
        // They stand in the route table, which is built anew; no list has changed by this alone.
        upstream.emit(ProviderEvent::ToolListChanged);
    }
    upstream.forget_answers();
    if let Some(old) = endpoint.plain.swap(Some(Arc::clone(&held))) {
        old.close();
    }
    Ok(held)
}

async fn first_lists(upstream: &Upstream, at: usize, held: &Held) -> Result<(), LinkError> {
    refresh(upstream, held, ListKinds::all()).await?;
    if let Some(endpoint) = upstream.endpoints.get(at) {
        endpoint.breaker.reset();
        upstream.report_breaker();
    }
    let offered = upstream.offered.load();
    tracing::info!(
        upstream = %upstream.config.name,
        revision = upstream.negotiated().map_or("", |n| n.revision.as_str()),
        tools = offered.tools.len(), prompts = offered.prompts.len(), resources = offered.resources.len(),
        "connected"
    );
    upstream.set_phase(Phase::Up);
    Ok(())
}

/// Looks after a connection until it ends, and says why it did.
async fn serve(upstream: &Arc<Upstream>, held: &Arc<Held>, surveyor: Option<Arc<Held>>) -> LinkError {
    let over = CancellationToken::new();
    let _over = over.clone().drop_guard();
    let survey = Arc::new(Survey::of(surveyor));
    if held.era == Era::Legacy {
        actix::spawn(survey::run(Arc::clone(upstream), Arc::clone(held), Arc::clone(&survey), over.clone()));
    }
    actix::spawn(subscriptions::run(Arc::clone(upstream), Arc::clone(held), over));
    let began = Instant::now();
    let mut look = tokio::time::interval(LOOK);
    let (mut row, mut last) = (0_u32, began);
    loop {
        tokio::select! {
            () = held.ended() => return LinkError::Lost("its connection was closed".into()),
            () = upstream.stop.cancelled() => return LinkError::Lost("the gateway closes it".into()),
            () = upstream.doubt.notified() => {
                // Not again and again, for whatever it dislikes.
                if began.elapsed() >= GOOD {
                    held.retire();
                    return LinkError::Protocol("it speaks another revision now".into());
                }
            }
            () = upstream.wake.notified() => {
                row = if last.elapsed() < QUIET { row.saturating_add(1) } else { 0 };
                tokio::select! {
                    () = tokio::time::sleep(settle(row)) => {}
                    () = held.ended() => continue,
                    () = upstream.stop.cancelled() => continue,
                }
                last = Instant::now();
                let what = ListKinds::from_bits_truncate(upstream.dirty.swap(0, Ordering::AcqRel));
                let surveyor = survey.surveyor();
                let reader = surveyor.as_ref().unwrap_or(held);
                if let Err(error) = refresh(upstream, reader, what).await {
                    upstream.stain(what);
                    if surveyor.is_some() {
                        survey.lost();
                        tokio::time::sleep(SETTLE * 10).await;
                        continue;
                    }
                    if held.link.kind() == LinkKind::Stateless || matches!(error, LinkError::SessionGone) {
                        held.retire();
                        return error;
                    }
                    // A broken connection says so itself; until then, not at once again.
                    tokio::select! {
                        () = held.ended() => return error,
                        () = tokio::time::sleep(SETTLE * 10) => {}
                    }
                }
            }
            _ = look.tick() => upstream.endpoints.iter().for_each(|endpoint| endpoint.pool.close_idle()),
        }
    }
}

/// How long to wait after that many words of changes in a row.
fn settle(row: u32) -> Duration {
    SETTLE * 2_u32.pow(row.saturating_sub(PATIENT).min(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tells_of_changes_without_end_is_heard_less_often() {
        let pauses = [0, 5, 6, 8, 10, 1000].map(|row| settle(row).as_millis() / SETTLE.as_millis());
        assert_eq!(pauses, [1, 1, 2, 8, 32, 32]);
    }
}
