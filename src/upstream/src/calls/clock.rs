//! The time of one call: it stands still while the upstream waits for an answer to a question of its own, and starts
//! again with progress, up to a maximum (2025-11-25/basic/lifecycle#timeouts; 2026-07-28 says the same of progress).

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

/// How often a clock that stands still is looked at, at most.
const LOOK: Duration = Duration::from_millis(50);
/// Progress makes a call live up to so many times its time-out.
const STRETCH: u32 = 10;

/// Passes on what an upstream sends with a call, and keeps its time.
pub struct Clock {
    /// On a shared stream, what is for the gateway may come as part of the only call.
    upstream: Weak<Upstream>,
    inner: Arc<dyn Listener>,
    timeout: Duration,
    hands: Mutex<Hands>,
    /// Itself, for the answers to questions.
    me: Weak<Self>,
}

struct Hands {
    deadline: Instant,
    /// Whatever progress there is.
    last: Instant,
    /// Questions of the upstream that wait for an answer.
    asked: u32,
    stands_since: Instant,
}

impl Clock {
    #[must_use]
    pub fn new(upstream: Weak<Upstream>, inner: Arc<dyn Listener>, timeout: Duration) -> Arc<Self> {
        let now = Instant::now();
        let hands =
            Hands { deadline: now + timeout, last: now + timeout.saturating_mul(STRETCH), asked: 0, stands_since: now };
        Arc::new_cyclic(|me| Self { upstream, inner, timeout, hands: Mutex::new(hands), me: me.clone() })
    }

    /// Resolves when the time is over.
    pub async fn run_out(&self) {
        let mut reached = None;
        loop {
            let next = {
                let hands = self.hands.lock();
                if hands.asked > 0 {
                    Instant::now() + hands.deadline.saturating_duration_since(hands.stands_since).max(LOOK)
                } else if reached.is_some_and(|reached| reached >= hands.deadline) {
                    return;
                } else {
                    hands.deadline
                }
            };
            tokio::time::sleep_until(next).await;
            reached = Some(next);
        }
    }

    /// What is left; nothing less than zero.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.hands.lock().deadline.saturating_duration_since(Instant::now())
    }

    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Listener for Clock {
    fn notification(&self, notification: UpstreamNotification) {
        if notification.method == "notifications/progress" {
            let mut hands = self.hands.lock();
            hands.deadline = (Instant::now() + self.timeout).min(hands.last).max(hands.deadline);
        } else if self.upstream.upgrade().is_some_and(|upstream| upstream.heard(&notification, false)) {
            return;
        }
        self.inner.notification(notification);
    }

    fn request(&self, mut request: UpstreamRequest) {
        {
            let mut hands = self.hands.lock();
            if hands.asked == 0 {
                hands.stands_since = Instant::now();
            }
            hands.asked += 1;
        }
        let clock = self.me.clone();
        let reply = request.reply;
        // Dropping the new one answers too, so the clock goes on in any case.
        request.reply = Replier::new(move |answer| {
            if let Some(clock) = clock.upgrade() {
                let mut hands = clock.hands.lock();
                hands.asked = hands.asked.saturating_sub(1);
                if hands.asked == 0 {
                    let stood = hands.stands_since.elapsed();
                    hands.deadline += stood;
                    hands.last += stood;
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
    struct Keeps(Mutex<Vec<UpstreamRequest>>);
    impl Listener for Keeps {
        fn notification(&self, _: UpstreamNotification) {}
        fn request(&self, request: UpstreamRequest) {
            self.0.lock().push(request);
        }
    }

    fn question() -> UpstreamRequest {
        UpstreamRequest {
            id: RequestId::from_text("1"),
            method: "elicitation/create".into(),
            params: None,
            reply: Replier::new(|_| {}),
            cancelled: CancellationToken::new(),
        }
    }

    async fn runs_for(clock: &Clock) -> u64 {
        let began = Instant::now();
        clock.run_out().await;
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn it_stands_still_while_a_question_is_open_whatever_becomes_of_it() {
        let keeps = Arc::new(Keeps::default());
        let clock = Clock::new(Weak::new(), keeps.clone(), Duration::from_secs(10));
        let (ran, ()) = tokio::join!(runs_for(&clock), async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            clock.request(question());
            clock.request(question());
            tokio::time::sleep(Duration::from_secs(100)).await;
            let first = keeps.0.lock().pop().unwrap();
            first.reply.answer(Ok(Box::<RawValue>::default()));
            tokio::time::sleep(Duration::from_secs(100)).await;
            keeps.0.lock().clear();
        });
        assert_eq!(ran, 210);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_starts_it_again_but_not_for_ever() {
        let clock = Clock::new(Weak::new(), Arc::new(Keeps::default()), Duration::from_secs(10));
        let progress = async {
            loop {
                tokio::time::sleep(Duration::from_secs(4)).await;
                clock.notification(UpstreamNotification { method: "notifications/progress".into(), params: None });
            }
        };
        tokio::select! {
            ran = runs_for(&clock) => assert_eq!(ran, 100),
            () = progress => {}
        }
    }
}
