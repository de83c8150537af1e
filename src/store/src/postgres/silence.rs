//! Tells a server that has fallen silent from one that is slow: a slow one answers others meanwhile.

use std::{
    future::Future,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

/// A server that is asked each second and has answered nothing for so long, on any connection, is silent.
const MAX_SILENCE: Duration = Duration::from_secs(4);

/// When the server answered last, on any connection.
pub(super) struct SilenceDetector {
    answered: Mutex<Instant>,
    asks_regularly: AtomicBool,
}

impl Default for SilenceDetector {
    fn default() -> Self {
        Self { answered: Mutex::new(Instant::now()), asks_regularly: AtomicBool::new(false) }
    }
}

impl SilenceDetector {
    /// Declares that the server is asked each second from now on, so that silence has a meaning.
    pub fn asks_regularly(&self) {
        self.asks_regularly.store(true, Ordering::Release);
    }

    /// Waits for an answer until `end`; `None` then, or as soon as the server is silent.
    pub async fn answer<T, E>(&self, end: Instant, work: impl Future<Output = Result<T, E>>) -> Option<Result<T, E>> {
        let asked = Instant::now();
        let mut work = std::pin::pin!(work);
        loop {
            if let Ok(answer) = timeout_at(self.gives_up_at(asked, end), &mut work).await {
                if answer.is_ok() {
                    *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                }
                return Some(answer);
            }
            if self.gives_up_at(asked, end) <= Instant::now() {
                return None;
            }
        }
    }

    /// Returns the time at which a request sent at `asked` gives up, unless the server answers anybody before.
    fn gives_up_at(&self, asked: Instant, end: Instant) -> Instant {
        if !self.asks_regularly.load(Ordering::Acquire) {
            return end;
        }
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        end.min(answered.max(asked) + MAX_SILENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;

    const END: Duration = Duration::from_secs(35);

    fn asks() -> SilenceDetector {
        let silence = SilenceDetector::default();
        silence.asks_regularly();
        silence
    }

    async fn answered(silence: &SilenceDetector) {
        silence.answer(Instant::now() + END, async { Ok::<_, StoreError>(()) }).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn answer_is_given_up_once_nobody_is_answered() {
        let (silence, began) = (asks(), Instant::now());
        let never = std::future::pending::<Result<(), StoreError>>();
        assert!(silence.answer(began + END, never).await.is_none());
        assert_eq!(began.elapsed(), MAX_SILENCE);
        // An error may be that of a connection: it is no sign of life.
        let refused = silence.answer(began + END, async { Err::<(), _>(StoreError::Closed) });
        assert!(refused.await.unwrap().is_err());
        assert!(silence.gives_up_at(began, began + END) <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answer_is_waited_for_while_others_are_answered() {
        let (silence, began) = (asks(), Instant::now());
        let slow = async {
            tokio::time::sleep(MAX_SILENCE * 5).await;
            Ok::<_, StoreError>(())
        };
        let others = async {
            for _ in 0..25 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                answered(&silence).await;
            }
        };
        let (slow, ()) = tokio::join!(silence.answer(began + END, slow), others);
        slow.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_means_nothing_where_nobody_asks_regularly() {
        let (silence, began) = (SilenceDetector::default(), Instant::now());
        let never = std::future::pending::<Result<(), StoreError>>();
        assert!(silence.answer(began + END, never).await.is_none());
        assert_eq!(began.elapsed(), END);
    }
}
