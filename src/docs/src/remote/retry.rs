//! Sends a request again that may go better the next time. None of these requests changes anything at the server.

use std::time::Duration;

use bytes::Bytes;

use super::{breaker::Breaker, error::RemoteError, http::Http};

const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// Who asks to be left alone for longer is not waited for.
const MAX_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Patient {
    http: Http,
    breaker: Breaker,
}

impl Patient {
    pub fn new(http: Http) -> Self {
        Self { http, breaker: Breaker::default() }
    }

    /// `read` makes out what an answer says.
    pub async fn ask<T>(
        &self,
        body: Bytes,
        max: usize,
        read: impl Fn(&[u8]) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let mut attempt = 0;
        loop {
            self.breaker.admit()?;
            let outcome = self.http.post(body.clone(), max).await.and_then(|answer| read(&answer));
            self.breaker.record(&outcome);
            attempt += 1;
            let error = match outcome {
                Err(error) if error.passes() && attempt < ATTEMPTS => error,
                outcome => return outcome,
            };
            let wanted = match &error {
                RemoteError::Status { after, .. } => *after,
                _ => None,
            };
            if wanted.is_some_and(|after| after > MAX_PAUSE) {
                return Err(error);
            }
            tokio::time::sleep(wanted.unwrap_or_else(|| backoff(attempt))).await;
        }
    }
}

/// Twice as long each time, and somewhere between half and all of it, so that those who failed together do not come back
/// together.
fn backoff(attempt: u32) -> Duration {
    let whole = PAUSE.saturating_mul(1 << attempt.min(8));
    let entropy = nanoid::nanoid!(2, &nanoid::alphabet::SAFE).bytes().map(u32::from).sum::<u32>() % 64;
    whole / 2 + whole / 2 * entropy / 64
}
