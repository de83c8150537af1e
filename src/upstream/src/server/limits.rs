//! The limits of an upstream's calls: how many run and wait at the same time, and how long each may take.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use globset::{Glob, GlobMatcher};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{Upstream, connection::UpstreamConnection, gateway_requests::GatewayRequestError};
use crate::link::{LinkError, LinkKind, Listener, UpstreamNotification};
use countersign_config::UpstreamConfig;
use countersign_protocol::Era;
use countersign_provider::request::{Replier, UpstreamRequest};
use countersign_runtime::background;

/// The time after which a call also waits for the end of the gateway. Calls that are answered sooner do not take the lock
/// of the token, which the callers of all threads share.
const END_WATCH_DELAY: Duration = Duration::from_millis(50);
/// The minimum interval between checks of a suspended clock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Progress extends a call to at most this multiple of its time limit.
const MAX_TIMEOUT_FACTOR: u32 = 10;

/// The number of consecutive timeouts after which the server is probed.
const TIMEOUTS_BEFORE_PROBE: u32 = 3;
/// The time limit of a probe. A server that works sequentially may still be busy with a request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The slots for concurrent calls, and the queue of calls that wait for a slot.
#[derive(Debug)]
pub struct CallSlots {
    permits: Semaphore,
    max: usize,
    max_queue: usize,
    waiting: AtomicUsize,
}

impl CallSlots {
    pub fn new(max: usize, max_queue: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self { permits: Semaphore::new(max), max, max_queue, waiting: AtomicUsize::new(0) }
    }

    /// Acquires a slot. Waits for at most `max_wait`, in order of arrival.
    ///
    /// # Errors
    /// Returns the reason why the call gets no slot.
    pub async fn acquire(&self, max_wait: Duration) -> Result<SemaphorePermit<'_>, &'static str> {
        if let Ok(slot) = self.permits.try_acquire() {
            return Ok(slot);
        }
        let _waiting = self.enqueue().ok_or("too many calls wait for this server (max_queue)")?;
        match tokio::time::timeout(max_wait, self.permits.acquire()).await {
            Ok(Ok(slot)) => Ok(slot),
            _ => Err("no call slot became free in time (max_in_flight)"),
        }
    }

    /// Joins the queue of calls that wait for a slot here or for a link of their own. Returns `None` if it is full.
    pub fn enqueue(&self) -> Option<CounterGuard<'_>> {
        let waiting = CounterGuard::new(&self.waiting);
        (self.queued() <= self.max_queue).then_some(waiting)
    }

    /// Returns the number of calls in flight.
    pub fn in_use(&self) -> usize {
        self.max.saturating_sub(self.permits.available_permits())
    }

    /// Returns the number of calls that wait.
    pub fn queued(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Keeps a counter incremented until the guard is dropped.
#[derive(Debug)]
pub struct CounterGuard<'a>(&'a AtomicUsize);

impl<'a> CounterGuard<'a> {
    pub fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for CounterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The configured time limits of an upstream.
#[derive(Debug)]
pub struct CallTimeouts {
    default_timeout: Duration,
    tools: Vec<(GlobMatcher, Duration)>,
}

impl CallTimeouts {
    /// Builds the limits. The globs were validated with the configuration.
    pub fn new(config: &UpstreamConfig) -> Self {
        let tools = config.tool_timeouts.iter();
        let tools = tools.filter_map(|(glob, time)| Some((Glob::new(glob).ok()?.compile_matcher(), *time)));
        Self { default_timeout: config.timeout, tools: tools.collect() }
    }

    /// Returns the time limit of a call. `tool` is the upstream's own name of the tool.
    pub fn for_call(&self, method: &str, tool: Option<&str>) -> Duration {
        if self.tools.is_empty() || method != "tools/call" {
            return self.default_timeout;
        }
        let configured = tool.and_then(|tool| self.tools.iter().find(|(glob, _)| glob.is_match(tool)));
        configured.map_or(self.default_timeout, |(_, time)| *time)
    }
}

/// The clock of one call. It also forwards the messages that an upstream sends during the call. It is suspended while
/// the upstream waits for an answer to its question, and restarts with progress up to a maximum
/// (2025-11-25/basic/lifecycle#timeouts; 2026-07-28 has the same rule for progress).
pub struct CallClock {
    /// Handles the notifications for the gateway itself, which a link with one stream attributes to the only call.
    upstream: Weak<Upstream>,
    listener: Arc<dyn Listener>,
    /// The time limit of the call.
    pub timeout: Duration,
    /// The time from which [`Self::wait_for_end`] watches for the end of the gateway.
    watches_end_from: Instant,
    state: Mutex<ClockState>,
    /// Used by the answers to questions, which continue the clock.
    weak_self: Weak<Self>,
}

/// The reason why the gateway no longer waits for the answer to a call.
pub enum CallEnd {
    Expired,
    GatewayEnded,
}

struct ClockState {
    deadline: Instant,
    /// The latest possible deadline, regardless of progress.
    latest_deadline: Instant,
    /// The number of questions of the upstream that have no answer yet.
    open_questions: u32,
    suspended_at: Instant,
}

impl CallClock {
    pub fn new(upstream: Weak<Upstream>, listener: Arc<dyn Listener>, timeout: Duration) -> Arc<Self> {
        let now = Instant::now();
        let state = ClockState {
            deadline: now + timeout,
            latest_deadline: now + timeout.saturating_mul(MAX_TIMEOUT_FACTOR),
            open_questions: 0,
            suspended_at: now,
        };
        Arc::new_cyclic(|weak_self| Self {
            upstream,
            listener,
            timeout,
            watches_end_from: now + END_WATCH_DELAY.min(timeout),
            state: Mutex::new(state),
            weak_self: weak_self.clone(),
        })
    }

    /// Waits until the time limit is reached, or until `gateway_ended` is cancelled.
    pub async fn wait_for_end(&self, gateway_ended: &CancellationToken) -> CallEnd {
        tokio::time::sleep_until(self.watches_end_from).await;
        // Boxed, so that calls that are answered sooner do not reserve its memory.
        Box::pin(async {
            tokio::select! {
                () = gateway_ended.cancelled() => CallEnd::GatewayEnded,
                () = self.wait_until_expired() => CallEnd::Expired,
            }
        })
        .await
    }

    /// Waits until the time limit is reached.
    pub async fn wait_until_expired(&self) {
        let mut slept_until = None;
        loop {
            let next = {
                let state = self.state.lock();
                if state.open_questions > 0 {
                    Instant::now() + state.deadline.saturating_duration_since(state.suspended_at).max(POLL_INTERVAL)
                } else if slept_until.is_some_and(|slept_until| slept_until >= state.deadline) {
                    return;
                } else {
                    state.deadline
                }
            };
            tokio::time::sleep_until(next).await;
            slept_until = Some(next);
        }
    }

    /// Returns the remaining time, or zero.
    pub fn remaining(&self) -> Duration {
        self.state.lock().deadline.saturating_duration_since(Instant::now())
    }
}

impl Listener for CallClock {
    fn handle_notification(&self, notification: UpstreamNotification) {
        if notification.method == "notifications/progress" {
            let mut state = self.state.lock();
            // The answer to an open question adds the time of the suspension.
            let now = if state.open_questions > 0 { state.suspended_at } else { Instant::now() };
            state.deadline = (now + self.timeout).min(state.latest_deadline).max(state.deadline);
        } else if self.upstream.upgrade().is_some_and(|upstream| upstream.handle_notification(&notification, false)) {
            return;
        }
        self.listener.handle_notification(notification);
    }

    fn handle_request(&self, mut request: UpstreamRequest) {
        {
            let mut state = self.state.lock();
            if state.open_questions == 0 {
                state.suspended_at = Instant::now();
            }
            state.open_questions += 1;
        }
        let clock = self.weak_self.clone();
        let reply = request.reply;
        // Dropping the new reply answers too, so the clock always continues.
        request.reply = Replier::new(move |answer| {
            if let Some(clock) = clock.upgrade() {
                let mut state = clock.state.lock();
                state.open_questions = state.open_questions.saturating_sub(1);
                if state.open_questions == 0 {
                    let suspended_for = state.suspended_at.elapsed();
                    state.deadline += suspended_for;
                    state.latest_deadline += suspended_for;
                }
            }
            reply.answer(answer);
        });
        self.listener.handle_request(request);
    }
}

/// The consecutive timeouts on one connection, which show that a server stopped answering on a shared stream.
///
/// A child process that hangs does not exit, and every caller that shares it would have to wait for a timeout. After
/// several consecutive timeouts the server is probed. Without an answer, the connection is abandoned, its calls fail,
/// and a new one is opened.
#[derive(Debug, Default)]
pub struct TimeoutStreak {
    timeouts: AtomicU32,
    is_probed: AtomicBool,
}

impl TimeoutStreak {
    /// Resets the count after any answer.
    pub fn record_answer(&self) {
        // The count is usually zero already. Many threads read it, and a needless write would slow all of them down.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a timeout. Returns `true` if the server must be probed now.
    fn record_timeout(&self) -> bool {
        self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_BEFORE_PROBE
            && !self.is_probed.swap(true, Ordering::AcqRel)
    }
}

impl Upstream {
    /// Records that a call on the connection timed out, and starts a probe if necessary.
    pub(crate) fn record_call_timeout(&self, connection: &Arc<UpstreamConnection>) {
        // On other kinds of links, each request has its own stream and cannot block other requests.
        if connection.kind != LinkKind::SingleStream || !connection.timeout_streak.record_timeout() {
            return;
        }
        let (weak_self, connection) = (self.weak_self.clone(), Arc::clone(connection));
        background::spawn(async move {
            if let Some(upstream) = weak_self.upgrade() {
                upstream.probe(&connection).await;
            }
        });
    }

    /// Checks with a harmless request that the server still answers, and closes the connection if it does not.
    async fn probe(&self, connection: &UpstreamConnection) {
        // The stateless era has no ping (2026-07-28/changelog).
        let method = if connection.era == Era::Modern { "server/discover" } else { "ping" };
        match self.send_gateway_request(connection, method, "{}", PROBE_TIMEOUT).await {
            Err(GatewayRequestError::Timeout) => {
                tracing::warn!(
                    upstream = %self.config.name,
                    "the upstream answers neither calls nor {method}; the gateway closes the connection"
                );
                connection.abandon(LinkError::Lost("it no longer answered, and is started again".to_owned()));
            }
            // The connection has ended already.
            Err(GatewayRequestError::Link(_)) => {}
            // An error proves that the server is alive too.
            Ok(_) | Err(GatewayRequestError::Rpc(_) | GatewayRequestError::Malformed(_)) => {
                connection.timeout_streak.is_probed.store(false, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests;
