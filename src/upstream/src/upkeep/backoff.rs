//! How long to wait before a server that ended is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
/// Whoever lived that long starts anew.
const HEALTHY: Duration = Duration::from_secs(60);

/// Exponential, from half a second to a minute, with jitter so that servers which fell together do not rise together.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The pause before the next start of what lived for `lived` (zero where it did not start at all): between half
    /// and all of the step, which doubles each time.
    pub fn pause(&mut self, lived: Duration) -> Duration {
        self.pause_with(lived, random())
    }

    /// `share`: from 0 to 255, how much of the second half of the step.
    fn pause_with(&mut self, lived: Duration, share: u8) -> Duration {
        if lived >= HEALTHY {
            self.next = FIRST;
        }
        let step = self.next;
        self.next = (step * 2).min(LONGEST);
        step / 2 + step / 2 * u32::from(share) / 255
    }

    /// As if nothing had ever failed.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }
}

fn random() -> u8 {
    let mut byte = [255];
    // Without randomness there is no jitter, which is no reason to fail.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_a_minute_and_starts_anew_after_a_healthy_life() {
        let mut backoff = Backoff::default();
        let steps: Vec<u64> =
            (0..9).map(|_| backoff.pause_with(Duration::ZERO, 255).as_millis().try_into().unwrap()).collect();
        assert_eq!(steps, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(backoff.pause_with(HEALTHY, 0), FIRST / 2);
        assert_eq!(backoff.pause_with(HEALTHY / 2, 255), FIRST * 2);
        backoff.reset();
        for _ in 0..100 {
            let pause = backoff.clone().pause(Duration::ZERO);
            assert!((FIRST / 2..=FIRST).contains(&pause), "{pause:?}");
        }
    }
}
