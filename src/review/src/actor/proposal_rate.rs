//! Limits the changes that one principal may propose per minute, so that a flood does not bury the reviewers.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicUsize, Ordering},
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock as _};

use countersign_protocol::{ErrorKind, McpError};

/// The number of tracked principals at which those without recent proposals are first removed.
const FIRST_REMOVAL: usize = 1024;

/// One rate limit for each principal. Principals without recent proposals are removed, because there is no bound on their
/// number: with access tokens, each client of each person is a principal.
pub(crate) struct ProposalRate {
    limiter: Option<DefaultKeyedRateLimiter<String>>,
    max: u32,
    /// The number of tracked principals at which the next removal is due. It iterates over all of them, so it must be rare.
    next_removal: AtomicUsize,
}

impl ProposalRate {
    /// Allows a burst of `per_minute` changes and the same number per minute on average; 0 means no limit.
    pub(crate) fn new(per_minute: u32) -> Self {
        let limiter = NonZeroU32::new(per_minute).map(|rate| RateLimiter::keyed(Quota::per_minute(rate)));
        Self { limiter, max: per_minute, next_removal: AtomicUsize::new(FIRST_REMOVAL) }
    }

    /// Admits changes that are proposed together. Each node counts them once for every live node, so that all nodes share the
    /// limit. More changes than the limit use all of it.
    ///
    /// # Errors
    /// `RATE_LIMITED` with `retryAfter` (seconds).
    pub(crate) fn admit(&self, principal: &str, changes: usize, node_count: usize) -> Result<(), McpError> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let share = u32::try_from(changes.saturating_mul(node_count)).unwrap_or(u32::MAX).clamp(1, self.max);
        let Some(share) = NonZeroU32::new(share) else { return Ok(()) };
        if limiter.len() >= self.next_removal.load(Ordering::Relaxed) {
            limiter.retain_recent();
            self.next_removal.store(limiter.len().saturating_mul(2).max(FIRST_REMOVAL), Ordering::Relaxed);
        }
        // The share is never above the limit, so it always fits.
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
            limited.admit("a", 1, 1).unwrap();
        }
        let refused = limited.admit("a", 1, 1).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::RateLimited);
        assert!((1..=60).contains(&refused.data["retryAfter"].as_u64().unwrap()), "{refused:?}");
        limited.admit("b", 2, 1).unwrap();
        assert!(limited.admit("b", 2, 1).is_err(), "calls of a plan count one by one");
        limited.admit("c", 50, 2).unwrap();
        assert!(limited.admit("c", 1, 1).is_err(), "a plan of more calls than the limit uses all of it");
        let unlimited = ProposalRate::new(0);
        assert!((0..10_000).all(|_| unlimited.admit("a", 1, 1).is_ok()));
    }

    #[test]
    fn principals_without_recent_proposals_are_removed() {
        // At this rate, a proposal is no longer recent after some nanoseconds.
        let limited = ProposalRate::new(u32::MAX);
        for n in 0..2 * FIRST_REMOVAL {
            limited.admit(&format!("https://idp.example#person#client{n}"), 1, 1).unwrap();
        }
        assert!(limited.limiter.unwrap().len() <= FIRST_REMOVAL);
    }
}
