//! Calls a second of one principal. Keyed by the authenticated name, of which there are as many as there are keys.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::{
    config::LimitsConfig,
    protocol::{ErrorKind, McpError},
    session::Exchange,
};

/// The shared limiter.
pub struct Limiter(Option<DefaultKeyedRateLimiter<String>>);

impl Limiter {
    /// A rate of 0 is no limit.
    #[must_use]
    pub fn new(limits: &LimitsConfig) -> Self {
        Self(NonZeroU32::new(limits.rate_per_second).map(|rate| {
            let burst = NonZeroU32::new(limits.rate_burst).unwrap_or(rate);
            RateLimiter::keyed(Quota::per_second(rate).allow_burst(burst))
        }))
    }

    fn admits(&self, principal: &String) -> Result<(), u64> {
        use governor::clock::Clock;
        let Some(limiter) = &self.0 else { return Ok(()) };
        limiter.check_key(principal).map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            wait.as_secs().saturating_add(1)
        })
    }
}

/// # Errors
/// `RATE_LIMITED` with `retryAfter` (seconds).
pub fn check(exchange: &Exchange) -> Result<(), McpError> {
    exchange
        .gateway
        .limiter
        .admits(&exchange.identity.principal.name)
        .map_err(|wait| McpError::new(ErrorKind::RateLimited, "too many requests, slow down").with("retryAfter", wait))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn one_principal_does_not_spend_anothers_budget() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 2, ..Config::default().limits };
        let limiter = Limiter::new(&limits);
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert!(limiter.admits(&a).is_ok());
        assert!(limiter.admits(&a).is_ok());
        assert!(limiter.admits(&a).is_err_and(|wait| wait > 0));
        assert!(limiter.admits(&b).is_ok());
    }

    #[test]
    fn zero_is_no_limit() {
        let limits = LimitsConfig { rate_per_second: 0, ..Config::default().limits };
        let limiter = Limiter::new(&limits);
        assert!((0..10_000).all(|_| limiter.admits(&"a".to_owned()).is_ok()));
    }
}
