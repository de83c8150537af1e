//! Distinguishes a server that has stopped answering from a slow one, which still answers other requests.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::error;
use crate::StoreError;

/// The time without any answer, on any connection, after which a server that is queried each second counts as silent.
const MAX_SILENCE: Duration = Duration::from_secs(4);

/// Detects a silent server by the time of its last answer on any connection.
pub(super) struct SilenceDetector {
    last_answer: Mutex<Instant>,
    expects_regular_answers: AtomicBool,
}

impl Default for SilenceDetector {
    fn default() -> Self {
        Self { last_answer: Mutex::new(Instant::now()), expects_regular_answers: AtomicBool::new(false) }
    }
}

impl SilenceDetector {
    /// Declares that the server is queried each second from now on, so that a missing answer means silence.
    pub fn expect_regular_answers(&self) {
        self.expects_regular_answers.store(true, Ordering::Release);
    }

    /// Returns `true` if the server is queried each second and has not answered for [`MAX_SILENCE`].
    pub fn is_silent(&self) -> bool {
        self.expects_regular_answers.load(Ordering::Acquire) && self.last_answer.lock().elapsed() >= MAX_SILENCE
    }

    /// Waits for an answer like [`Self::answer`], and returns an error if there is none.
    pub async fn require_answer<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.answer(limit, work).await.unwrap_or_else(|| Err(error::no_answer()))
    }

    /// Waits for an answer for at most `limit`. Returns `None` after that, or as soon as the server counts as silent.
    pub async fn answer<T, E>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        let mut answer = None;
        let work = async {
            let result = work.await;
            let is_success = result.is_ok();
            answer = Some(result);
            is_success
        };
        self.wait(limit, pin!(work)).await;
        answer
    }

    /// Waits like [`Self::answer`] for work that returns `true` for success. It is compiled once, and not for each kind of work.
    async fn wait(&self, limit: Duration, mut work: Pin<&mut dyn Future<Output = bool>>) {
        let sent_at = Instant::now();
        let end = sent_at + limit;
        loop {
            if let Ok(is_success) = timeout_at(self.gives_up_at(sent_at, end), &mut work).await {
                if is_success {
                    *self.last_answer.lock() = Instant::now();
                }
                return;
            }
            if self.gives_up_at(sent_at, end) <= Instant::now() {
                return;
            }
        }
    }

    /// Returns the time at which a request sent at `sent_at` gives up, unless the server answers some request before.
    fn gives_up_at(&self, sent_at: Instant, end: Instant) -> Instant {
        if !self.expects_regular_answers.load(Ordering::Acquire) {
            return end;
        }
        let last_answer = *self.last_answer.lock();
        end.min(last_answer.max(sent_at) + MAX_SILENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Duration = Duration::from_secs(35);

    fn polled_detector() -> SilenceDetector {
        let silence = SilenceDetector::default();
        silence.expect_regular_answers();
        silence
    }

    async fn receive_answer(silence: &SilenceDetector) {
        silence.answer(END, async { Ok::<_, StoreError>(()) }).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn request_gives_up_when_server_is_silent() {
        let (silence, began) = (polled_detector(), Instant::now());
        let never = std::future::pending::<Result<(), StoreError>>();
        assert!(!silence.is_silent());
        assert!(silence.answer(END, never).await.is_none());
        assert_eq!((began.elapsed(), silence.is_silent()), (MAX_SILENCE, true));
        // An error is no sign of life, because it may come from the connection.
        let refused = silence.answer(END, async { Err::<(), _>(StoreError::Closed) });
        assert!(refused.await.unwrap().is_err());
        assert!(silence.gives_up_at(began, began + END) <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answer_is_awaited_while_server_answers_others() {
        let silence = polled_detector();
        let slow = async {
            tokio::time::sleep(MAX_SILENCE * 5).await;
            Ok::<_, StoreError>(())
        };
        let others = async {
            for _ in 0..25 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                receive_answer(&silence).await;
            }
        };
        let (slow, ()) = tokio::join!(silence.answer(END, slow), others);
        slow.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_ignored_without_regular_queries() {
        let (silence, began) = (SilenceDetector::default(), Instant::now());
        let never = std::future::pending::<Result<(), StoreError>>();
        assert!(silence.answer(END, never).await.is_none());
        assert_eq!(began.elapsed(), END);
    }
}
