//! Calls a second of one principal, of which a large one counts as several, and one that took a module's thread long too.
//! Keyed by the authenticated name, of which there are as many as there are keys.

use std::{num::NonZeroU32, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use countersign_config::LimitsConfig;

/// The shared limiter.
pub struct Limiter {
    /// None where there is no limit.
    limiter: Option<DefaultKeyedRateLimiter<String>>,
    /// Calls a second.
    rate: u32,
    /// Bytes for which a call counts as one more; 0 for none.
    bytes: usize,
    burst: NonZeroU32,
}

impl Limiter {
    /// A rate of 0 is no limit.
    #[must_use]
    pub fn new(limits: &LimitsConfig) -> Self {
        let burst = NonZeroU32::new(limits.rate_burst).unwrap_or(NonZeroU32::MIN);
        let limiter = NonZeroU32::new(limits.rate_per_second)
            .map(|rate| RateLimiter::keyed(Quota::per_second(rate).allow_burst(burst)));
        Self { limiter, rate: limits.rate_per_second, bytes: limits.rate_bytes, burst }
    }

    /// Takes the calls that could have been made in that time, or as many of them as are left: nobody keeps more than one
    /// thread of a module busy for longer than their burst.
    pub fn charge(&self, principal: &String, time: Duration, nodes: usize) {
        let Some(limiter) = &self.limiter else { return };
        let calls = u128::from(self.rate) * time.as_micros() / 1_000_000 * nodes.max(1) as u128;
        let mut left = u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get());
        let mut step = left;
        while let Some(calls) = NonZeroU32::new(step.min(left)) {
            match limiter.check_key_n(principal, calls) {
                Ok(Ok(())) => left -= calls.get(),
                _ => step /= 2,
            }
        }
    }

    /// Admits a call. If several nodes share the limit, a call counts once for each node.
    ///
    /// # Errors
    /// The seconds after which it may be tried again.
    pub fn admits(&self, principal: &String, bytes: usize, nodes: usize) -> Result<(), u64> {
        use governor::clock::Clock;
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let more = if bytes < self.bytes { 0 } else { bytes.checked_div(self.bytes).unwrap_or(0) };
        let admitted = if more == 0 && nodes <= 1 {
            limiter.check_key(principal)
        } else {
            // What is more than a burst takes the whole burst: it would never come through else.
            let calls = u32::try_from(more.saturating_add(1).saturating_mul(nodes.max(1))).unwrap_or(u32::MAX);
            let calls = calls.min(self.burst.get());
            limiter.check_key_n(principal, NonZeroU32::new(calls).unwrap_or(NonZeroU32::MIN)).unwrap_or(Ok(()))
        };
        admitted.map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            wait.as_secs().saturating_add(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::Config;

    #[test]
    fn one_principal_does_not_spend_anothers_budget() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 2, ..Config::default().limits };
        let limiter = Limiter::new(&limits);
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert!(limiter.admits(&a, 100, 1).is_ok());
        assert!(limiter.admits(&a, 100, 1).is_ok());
        assert!(limiter.admits(&a, 100, 1).is_err_and(|wait| wait > 0));
        assert!(limiter.admits(&b, 100, 1).is_ok());
    }

    #[test]
    fn time_counts_as_the_calls_that_could_be_made_in_it() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 10, ..Config::default().limits };
        let (limiter, a, b) = (Limiter::new(&limits), "a".to_owned(), "b".to_owned());
        limiter.charge(&a, Duration::from_millis(4500), 1);
        assert_eq!((0..10).filter(|_| limiter.admits(&a, 0, 1).is_ok()).count(), 6);
        assert!(limiter.admits(&b, 0, 1).is_ok());
        limiter.charge(&b, Duration::from_secs(1000), 1);
        assert!(limiter.admits(&b, 0, 1).is_err(), "what is left is taken");
    }

    #[test]
    fn nodes_share_the_limit() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 6, ..Config::default().limits };
        let (limiter, a, b) = (Limiter::new(&limits), "a".to_owned(), "b".to_owned());
        assert_eq!((0..6).filter(|_| limiter.admits(&a, 0, 3).is_ok()).count(), 2);
        assert_eq!((0..6).filter(|_| limiter.admits(&b, 0, 100).is_ok()).count(), 1, "never none at all");
    }

    #[test]
    fn zero_is_no_limit() {
        let limits = LimitsConfig { rate_per_second: 0, ..Config::default().limits };
        let limiter = Limiter::new(&limits);
        assert!((0..10_000).all(|_| limiter.admits(&"a".to_owned(), 1 << 20, 1).is_ok()));
    }

    #[test]
    fn bytes_count_as_calls_and_a_large_call_is_not_held_back_for_ever() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 10, rate_bytes: 1024, ..Config::default().limits };
        let (limiter, a) = (Limiter::new(&limits), "a".to_owned());
        assert!(limiter.admits(&a, 1023, 1).is_ok(), "one call");
        assert!(limiter.admits(&a, 8 * 1024, 1).is_ok(), "nine calls");
        assert!(limiter.admits(&a, 0, 1).is_err());
        let (limiter, b) = (Limiter::new(&limits), "b".to_owned());
        assert!(limiter.admits(&b, 1 << 20, 1).is_ok(), "the whole burst");
        assert!(limiter.admits(&b, 0, 1).is_err());
        let free = Limiter::new(&LimitsConfig { rate_bytes: 0, ..limits });
        assert!((0..10).all(|_| free.admits(&a, 1 << 20, 1).is_ok()), "bytes are not counted");
    }
}
