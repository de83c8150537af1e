//! Counts the users of a detached gateway, which ends some time after its last user has left.

use std::time::{Duration, Instant};

use tokio::{sync::watch, time::timeout_at};

/// The minimum time that a gateway waits for its first user, whatever its linger time: its starter is about to connect.
const FIRST_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of users: attached processes, sessions and feed subscribers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Users {
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The current number of users.
    count: usize,
    /// `true` once there has been a user.
    had_user: bool,
    /// The time at which the last user left, or of the start before the first user.
    idle_since: Instant,
}

/// Counts as a user until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct UserGuard(Users);

impl Default for Users {
    fn default() -> Self {
        Self { state: watch::Sender::new(State { count: 0, had_user: false, idle_since: Instant::now() }) }
    }
}

impl Users {
    /// Adds a user until the guard is dropped.
    pub fn add_user(&self) -> UserGuard {
        self.state.send_modify(|state| {
            state.count += 1;
            state.had_user = true;
        });
        UserGuard(self.clone())
    }

    /// Waits until there were no users for `linger`, and before the first user for at least 30 s. Cancel-safe.
    pub async fn wait_until_idle(&self, linger: Duration) {
        let mut states = self.state.subscribe();
        while let Ok(state) = states.wait_for(|state| state.count == 0).await.map(|state| *state) {
            let wait = if state.had_user { linger } else { linger.max(FIRST_USER_TIMEOUT) };
            // The wait begins again with each user.
            if timeout_at((state.idle_since + wait).into(), states.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for UserGuard {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| {
            state.count = state.count.saturating_sub(1);
            state.idle_since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn gateway_is_idle_only_without_users() {
        let users = Users::default();
        assert!(users.wait_until_idle(Duration::ZERO).now_or_never().is_none(), "the first user is still connecting");
        let (first, second) = (users.add_user(), users.add_user());
        assert!(users.wait_until_idle(Duration::ZERO).now_or_never().is_none());
        drop(first);
        assert!(users.wait_until_idle(Duration::ZERO).now_or_never().is_none());
        drop(second);
        assert!(users.wait_until_idle(Duration::from_secs(3600)).now_or_never().is_none());
        // A waiter that started before the first user notices when that user leaves.
        let users = Users::default();
        let idle = users.wait_until_idle(Duration::ZERO);
        tokio::pin!(idle);
        assert!(idle.as_mut().now_or_never().is_none());
        drop(users.add_user());
        idle.await;
    }
}
