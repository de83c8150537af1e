//! Limits the changes that one principal may propose per minute, so that a flood does not bury the reviewers.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock as _};

use countersign_protocol::{ErrorKind, McpError};

/// One rate limit for each authenticated name. The number of names is bounded by the number of keys.
pub(crate) struct ProposalRate {
    limiter: Option<DefaultKeyedRateLimiter<String>>,
    max: u32,
}

impl ProposalRate {
    /// Allows a burst of `per_minute` changes and the same number per minute on average; 0 means no limit.
    pub(crate) fn new(per_minute: u32) -> Self {
        let limiter = NonZeroU32::new(per_minute).map(|rate| RateLimiter::keyed(Quota::per_minute(rate)));
        Self { limiter, max: per_minute }
    }

    /// Admits one change. Each node counts the change once for every live node, so that all nodes share the limit.
    ///
    /// # Errors
    /// `RATE_LIMITED` with `retryAfter` (seconds).
    pub(crate) fn admit(&self, principal: &str, nodes: usize) -> Result<(), McpError> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let share = u32::try_from(nodes).unwrap_or(u32::MAX).clamp(1, self.max);
        let Some(share) = NonZeroU32::new(share) else { return Ok(()) };
        // The share is never above the limit, so one change always fits.
        let Ok(checked) = limiter.check_key_n(&principal.to_owned(), share) else { return Ok(()) };
        checked.map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            McpError::new(
                ErrorKind::RateLimited,
                "Too many changes were proposed within a minute; people must decide on each of them, so propose fewer",
            )
            .with("limit", "changes.max_proposals_per_minute")
            .with("max", self.max)
            .with("retryAfter", wait.as_secs().saturating_add(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limits_one_principal_only() {
        let limited = ProposalRate::new(3);
        for _ in 0..3 {
            limited.admit("a", 1).unwrap();
        }
        let refused = limited.admit("a", 1).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::RateLimited);
        assert!((1..=60).contains(&refused.data["retryAfter"].as_u64().unwrap()), "{refused:?}");
        limited.admit("b", 1).unwrap();
        let unlimited = ProposalRate::new(0);
        assert!((0..10_000).all(|_| unlimited.admit("a", 1).is_ok()));
    }
}
