//! Computes the pauses between attempts that fail.

use std::time::Duration;

/// An exponential backoff: each pause is twice as long as the one before it, up to `longest`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// Returns the pause after a failure that follows `earlier_failures` consecutive failures, without jitter.
    #[must_use]
    pub fn pause_without_jitter(self, earlier_failures: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(earlier_failures)).min(self.longest)
    }

    /// Returns a random pause between half of [`Self::pause_without_jitter`] and all of it, so that clients that failed
    /// together do not return together.
    #[must_use]
    pub fn pause(self, earlier_failures: u32) -> Duration {
        self.pause_with_jitter(earlier_failures, random_byte())
    }

    /// Returns the pause for the given jitter: half of [`Self::pause_without_jitter`] for 0, all of it for 255.
    #[must_use]
    pub fn pause_with_jitter(self, earlier_failures: u32, jitter: u8) -> Duration {
        let half = self.pause_without_jitter(earlier_failures) / 2;
        half + half * u32::from(jitter) / 255
    }
}

/// Returns a random byte. Returns 255 if the system has no randomness, because missing jitter is no reason to fail.
pub fn random_byte() -> u8 {
    let mut byte = [255];
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(60) };
        let pauses: Vec<u128> =
            (0..9).map(|earlier_failures| backoff.pause_with_jitter(earlier_failures, 255).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(backoff.pause_without_jitter(u32::MAX), backoff.longest);
        assert_eq!(backoff.pause_with_jitter(1, 0), backoff.first);
        for _ in 0..100 {
            let pause = backoff.pause(0);
            assert!((backoff.first / 2..=backoff.first).contains(&pause), "{pause:?}");
        }
    }
}
