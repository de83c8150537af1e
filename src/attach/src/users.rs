//! Who still uses a detached gateway: it ends some time after the last of them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// How long a gateway waits for its first user, however short its linger is: whoever started it is on the way.
const FIRST: Duration = Duration::from_secs(30);

/// Counts users: attached processes, sessions, feed subscribers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Users {
    state: Arc<(Mutex<State>, Notify)>,
}

#[derive(Debug)]
struct State {
    present: usize,
    /// There was one.
    ever: bool,
    /// When the last one left, or something was last asked for.
    last: Instant,
}

/// A user, until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct UserGuard(Users);

impl Default for Users {
    fn default() -> Self {
        Self { state: Arc::new((Mutex::new(State { present: 0, ever: false, last: Instant::now() }), Notify::new())) }
    }
}

impl Users {
    /// Somebody is there.
    pub fn enter(&self) -> UserGuard {
        self.with(|state| {
            state.present += 1;
            state.ever = true;
        });
        UserGuard(self.clone())
    }

    /// Somebody was there for a moment: a request without a session.
    pub fn touch(&self) {
        self.with(|state| state.last = Instant::now());
    }

    /// Since when nobody is there; `None` while somebody is.
    #[must_use]
    pub fn absent_since(&self) -> Option<Instant> {
        self.with(|state| (state.present == 0).then_some(state.last))
    }

    /// Returns once nobody was there for `linger` (at first, for 30 s if that is longer). Cancel-safe.
    pub async fn gone_for(&self, linger: Duration) {
        loop {
            let now = Instant::now();
            // While somebody is there, the end is at least `linger` away.
            let (end, absent) = self.with(|state| {
                let wait = if state.ever { linger } else { linger.max(FIRST) };
                let absent = state.present == 0;
                (if absent { state.last } else { now } + wait, absent)
            });
            if absent && end <= now {
                return;
            }
            let wake = end.max(now + Duration::from_millis(1));
            // Whoever leaves leaves a permit behind, so that no leaving is missed.
            let _ = tokio::time::timeout_at(wake.into(), self.state.1.notified()).await;
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for UserGuard {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.present = state.present.saturating_sub(1);
            state.last = Instant::now();
        });
        self.0.state.1.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn it_is_over_only_when_nobody_is_there() {
        let users = Users::default();
        assert!(users.gone_for(Duration::ZERO).now_or_never().is_none(), "the first is still on the way");
        let (first, second) = (users.enter(), users.enter());
        assert!(users.absent_since().is_none());
        assert!(users.gone_for(Duration::ZERO).now_or_never().is_none());
        drop(first);
        assert!(users.absent_since().is_none());
        let before = Instant::now();
        drop(second);
        assert!(users.absent_since().unwrap() >= before);
        assert!(users.gone_for(Duration::from_secs(3600)).now_or_never().is_none());
        // Somebody who waits before the first has come sees him go.
        let users = Users::default();
        let gone = users.gone_for(Duration::ZERO);
        tokio::pin!(gone);
        assert!(gone.as_mut().now_or_never().is_none());
        drop(users.enter());
        gone.await;
        users.touch();
        users.gone_for(Duration::ZERO).await;
    }
}
