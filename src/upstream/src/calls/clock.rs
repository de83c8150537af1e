//! The time limit of one call. It is suspended while the upstream waits for an answer to its question, and restarts with
//! progress up to a maximum (2025-11-25/basic/lifecycle#timeouts; 2026-07-28 has the same rule for progress).

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    link::{Listener, UpstreamNotification},
    server::Upstream,
};
use countersign_provider::request::{Replier, UpstreamRequest};

/// Minimum interval between checks of a suspended clock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Progress extends a call to at most this multiple of its time limit.
const MAX_TIMEOUT_FACTOR: u32 = 10;

/// Forwards the messages that an upstream sends during a call, and keeps the call's time limit.
pub struct CallClock {
    /// Handles notifications for the gateway itself, which look like part of the only call on a shared stream.
    upstream: Weak<Upstream>,
    inner: Arc<dyn Listener>,
    timeout: Duration,
    state: Mutex<ClockState>,
    /// A reference to itself for the answers to questions.
    weak_self: Weak<Self>,
}

struct ClockState {
    deadline: Instant,
    /// The latest possible deadline, regardless of progress.
    latest_deadline: Instant,
    /// The number of the upstream's questions without an answer.
    open_questions: u32,
    suspended_at: Instant,
}

impl CallClock {
    #[must_use]
    pub fn new(upstream: Weak<Upstream>, inner: Arc<dyn Listener>, timeout: Duration) -> Arc<Self> {
        let now = Instant::now();
        let state = ClockState {
            deadline: now + timeout,
            latest_deadline: now + timeout.saturating_mul(MAX_TIMEOUT_FACTOR),
            open_questions: 0,
            suspended_at: now,
        };
        Arc::new_cyclic(|weak_self| Self {
            upstream,
            inner,
            timeout,
            state: Mutex::new(state),
            weak_self: weak_self.clone(),
        })
    }

    /// Waits until the time limit is reached.
    pub async fn expired(&self) {
        let mut reached = None;
        loop {
            let next = {
                let state = self.state.lock();
                if state.open_questions > 0 {
                    Instant::now() + state.deadline.saturating_duration_since(state.suspended_at).max(POLL_INTERVAL)
                } else if reached.is_some_and(|reached| reached >= state.deadline) {
                    return;
                } else {
                    state.deadline
                }
            };
            tokio::time::sleep_until(next).await;
            reached = Some(next);
        }
    }

    /// Returns the remaining time, or zero.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.state.lock().deadline.saturating_duration_since(Instant::now())
    }

    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Listener for CallClock {
    fn notification(&self, notification: UpstreamNotification) {
        if notification.method == "notifications/progress" {
            let mut state = self.state.lock();
            state.deadline = (Instant::now() + self.timeout).min(state.latest_deadline).max(state.deadline);
        } else if self.upstream.upgrade().is_some_and(|upstream| upstream.handle_notification(&notification, false)) {
            return;
        }
        self.inner.notification(notification);
    }

    fn request(&self, mut request: UpstreamRequest) {
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
        self.inner.request(request);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use countersign_protocol::RequestId;

    #[derive(Default)]
    struct QuestionKeeper(Mutex<Vec<UpstreamRequest>>);
    impl Listener for QuestionKeeper {
        fn notification(&self, _: UpstreamNotification) {}
        fn request(&self, request: UpstreamRequest) {
            self.0.lock().push(request);
        }
    }

    fn question() -> UpstreamRequest {
        UpstreamRequest {
            id: RequestId::from_raw("\"1\""),
            method: "elicitation/create".into(),
            params: None,
            reply: Replier::new(|_| {}),
            cancelled: CancellationToken::new(),
        }
    }

    async fn seconds_until_expired(clock: &CallClock) -> u64 {
        let began = Instant::now();
        clock.expired().await;
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn clock_is_suspended_while_question_is_open() {
        let keeper = Arc::new(QuestionKeeper::default());
        let clock = CallClock::new(Weak::new(), keeper.clone(), Duration::from_secs(10));
        let (elapsed_secs, ()) = tokio::join!(seconds_until_expired(&clock), async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            clock.request(question());
            clock.request(question());
            tokio::time::sleep(Duration::from_secs(100)).await;
            let first = keeper.0.lock().pop().unwrap();
            first.reply.answer(Ok(Box::<RawValue>::default()));
            tokio::time::sleep(Duration::from_secs(100)).await;
            keeper.0.lock().clear();
        });
        assert_eq!(elapsed_secs, 210);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_extends_deadline_up_to_maximum() {
        let clock = CallClock::new(Weak::new(), Arc::new(QuestionKeeper::default()), Duration::from_secs(10));
        let progress = async {
            loop {
                tokio::time::sleep(Duration::from_secs(4)).await;
                clock.notification(UpstreamNotification { method: "notifications/progress".into(), params: None });
            }
        };
        tokio::select! {
            elapsed_secs = seconds_until_expired(&clock) => assert_eq!(elapsed_secs, 100),
            () = progress => {}
        }
    }
}
