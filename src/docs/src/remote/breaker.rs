//! Leaves a server alone that failed several times in a row, and asks it again with one request after a while.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::RemoteError;

/// Failures in a row after which it is left alone.
const FAILURES: u32 = 5;
/// For how long.
const COOLDOWN: Duration = Duration::from_secs(20);

#[derive(Default)]
struct State {
    failures: u32,
    /// Nothing is sent before that.
    until: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Breaker(Mutex<State>);

impl Breaker {
    /// # Errors
    /// [`RemoteError::Open`]
    pub fn admit(&self) -> Result<(), RemoteError> {
        let mut state = self.0.lock();
        match state.until {
            Some(until) if Instant::now() < until => Err(RemoteError::Open),
            Some(_) => {
                // Whoever comes while this one is under way is refused.
                state.until = Some(Instant::now() + COOLDOWN);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub fn record<T>(&self, outcome: &Result<T, RemoteError>) {
        let mut state = self.0.lock();
        match outcome {
            Err(error) if error.counts() => {
                state.failures += 1;
                if state.failures >= FAILURES {
                    state.until = Some(Instant::now() + COOLDOWN);
                }
            }
            // It says what is wrong with a request, so it is there.
            Ok(_) | Err(_) => *state = State::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_is_left_alone_and_asked_again_with_one_request() {
        let breaker = Breaker::default();
        let failed: Result<(), _> = Err(RemoteError::Unreachable("x".into()));
        for _ in 0..FAILURES {
            assert_eq!(breaker.admit(), Ok(()));
            breaker.record(&failed);
        }
        assert_eq!(breaker.admit(), Err(RemoteError::Open));
        tokio::time::advance(COOLDOWN).await;
        assert_eq!(breaker.admit(), Ok(()));
        assert_eq!(breaker.admit(), Err(RemoteError::Open), "one at a time");
        breaker.record(&failed);
        assert_eq!(breaker.admit(), Err(RemoteError::Open));
        tokio::time::advance(COOLDOWN).await;
        assert_eq!(breaker.admit(), Ok(()));
        breaker.record(&Ok(()));
        assert_eq!((breaker.admit(), breaker.admit()), (Ok(()), Ok(())));
    }

    #[test]
    fn an_error_of_the_request_is_none_of_the_server() {
        let breaker = Breaker::default();
        for _ in 0..20 {
            breaker.record::<()>(&Err(RemoteError::status(400, b"bad", None)));
        }
        assert_eq!(breaker.admit(), Ok(()));
    }
}
