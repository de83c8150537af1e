//! State of the principals that send requests: the rate of their calls, and keys that call tools although they may
//! decide on changes.

use std::{collections::HashSet, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

use countersign_config::LimitsConfig;
use countersign_domain::principal::Principal;
use countersign_provider::Meter;

/// Limits the calls per second of each principal. A large call, or one that occupies a module's thread for long, counts
/// as several. The limiter is keyed by the authenticated name, so it has at most one entry for each key.
pub struct Limiter {
    /// `None` if there is no limit.
    limiter: Option<DefaultKeyedRateLimiter<String>>,
    calls_per_second: u32,
    /// The number of bytes for which a call counts as one more; 0 turns this off.
    bytes_per_call: usize,
    burst: NonZeroU32,
    /// Returns the number of live nodes, which share the limit.
    live_nodes: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Limiter {
    /// Creates the limiter. A rate of 0 means no limit.
    pub fn new(limits: &LimitsConfig, live_nodes: Box<dyn Fn() -> usize + Send + Sync>) -> Self {
        let burst = NonZeroU32::new(limits.rate_burst).unwrap_or(NonZeroU32::MIN);
        let limiter = NonZeroU32::new(limits.rate_per_second)
            .map(|rate| RateLimiter::keyed(Quota::per_second(rate).allow_burst(burst)));
        Self { limiter, calls_per_second: limits.rate_per_second, bytes_per_call: limits.rate_bytes, burst, live_nodes }
    }

    /// Returns a meter that charges the time that a module takes for a call to the principal, even if the client has
    /// disconnected by then.
    #[must_use]
    pub fn meter(self: &Arc<Self>, principal: &Arc<Principal>) -> Meter {
        let (limiter, principal) = (Arc::clone(self), Arc::clone(principal));
        Meter(Arc::new(move |time| limiter.charge(&principal.name, time)))
    }

    /// Takes the calls that could have been made in `time`, or as many as are left. This bounds the time for which a
    /// principal can occupy more than one thread of a module.
    pub fn charge(&self, principal: &String, time: Duration) {
        let Some(limiter) = &self.limiter else { return };
        let calls =
            u128::from(self.calls_per_second) * time.as_micros() / 1_000_000 * (self.live_nodes)().max(1) as u128;
        let mut remaining = u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get());
        let mut step = remaining;
        while let Some(calls) = NonZeroU32::new(step.min(remaining)) {
            match limiter.check_key_n(principal, calls) {
                Ok(Ok(())) => remaining -= calls.get(),
                _ => step /= 2,
            }
        }
    }

    /// Counts one call, unless the principal's rate is exceeded. If several nodes share the limit, a call counts once
    /// for each node.
    ///
    /// # Errors
    /// The number of seconds after which the call may be tried again.
    pub fn check_rate(&self, principal: &String, bytes: usize) -> Result<(), u64> {
        use governor::clock::Clock;
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let nodes = (self.live_nodes)();
        let extra_calls = bytes.checked_div(self.bytes_per_call).unwrap_or(0);
        let admitted = if extra_calls == 0 && nodes <= 1 {
            limiter.check_key(principal)
        } else {
            // A call that is larger than a burst takes the whole burst, because it could never be admitted otherwise.
            let calls = u32::try_from(extra_calls.saturating_add(1).saturating_mul(nodes.max(1))).unwrap_or(u32::MAX);
            let calls = calls.min(self.burst.get());
            limiter.check_key_n(principal, NonZeroU32::new(calls).unwrap_or(NonZeroU32::MIN)).unwrap_or(Ok(()))
        };
        admitted.map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            wait.as_secs().saturating_add(1)
        })
    }
}

/// The maximum number of keys that are remembered. Further keys are not logged.
const MAX_KEYS: usize = 1000;

/// Keys that may decide on changes and have called tools. An agent may hold such a key by mistake, so each is logged
/// once.
#[derive(Default)]
pub struct DecidingKeys(Mutex<HashSet<String>>);

impl DecidingKeys {
    /// Logs a warning at the first tool call with a key that may decide. Returns `true` if this was that call.
    pub fn note_call(&self, principal: &Principal, transport: &str) -> bool {
        let Some(key) = principal.key_id.as_ref().filter(|_| principal.role.may_decide()) else { return false };
        let mut logged_keys = self.0.lock();
        if logged_keys.contains(key) || logged_keys.len() >= MAX_KEYS {
            return false;
        }
        logged_keys.insert(key.clone());
        tracing::warn!(
            principal = %principal.name, role = principal.role.as_str(), %key, transport,
            "a key that may decide on changes calls tools; an agent must not hold it. Give agents keys of their own: \
             `countersign keys create --role agent --name NAME`"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::Config;
    use countersign_domain::principal::Role;

    fn for_one_node(limits: &LimitsConfig) -> Limiter {
        Limiter::new(limits, Box::new(|| 1))
    }

    #[test]
    fn each_principal_has_its_own_budget() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 2, ..Config::default().limits };
        let limiter = for_one_node(&limits);
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert!(limiter.check_rate(&a, 100).is_ok());
        assert!(limiter.check_rate(&a, 100).is_ok());
        assert!(limiter.check_rate(&a, 100).is_err_and(|wait| wait > 0));
        assert!(limiter.check_rate(&b, 100).is_ok());
    }

    #[test]
    fn charged_time_counts_as_calls() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 10, ..Config::default().limits };
        let (limiter, a, b) = (for_one_node(&limits), "a".to_owned(), "b".to_owned());
        limiter.charge(&a, Duration::from_millis(4500));
        assert_eq!((0..10).filter(|_| limiter.check_rate(&a, 0).is_ok()).count(), 6);
        assert!(limiter.check_rate(&b, 0).is_ok());
        limiter.charge(&b, Duration::from_secs(1000));
        assert!(limiter.check_rate(&b, 0).is_err(), "the charge takes the whole rest");
    }

    #[test]
    fn call_counts_once_per_node() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 6, ..Config::default().limits };
        let (limiter, a, b) = (Limiter::new(&limits, Box::new(|| 3)), "a".to_owned(), "b".to_owned());
        assert_eq!((0..6).filter(|_| limiter.check_rate(&a, 0).is_ok()).count(), 2);
        let limiter = Limiter::new(&limits, Box::new(|| 100));
        assert_eq!((0..6).filter(|_| limiter.check_rate(&b, 0).is_ok()).count(), 1, "never none at all");
    }

    #[test]
    fn rate_of_zero_means_no_limit() {
        let limits = LimitsConfig { rate_per_second: 0, ..Config::default().limits };
        let limiter = for_one_node(&limits);
        assert!((0..10_000).all(|_| limiter.check_rate(&"a".to_owned(), 1 << 20).is_ok()));
    }

    #[test]
    fn large_call_counts_as_several_but_is_admitted() {
        let limits = LimitsConfig { rate_per_second: 1, rate_burst: 10, rate_bytes: 1024, ..Config::default().limits };
        let (limiter, a) = (for_one_node(&limits), "a".to_owned());
        assert!(limiter.check_rate(&a, 1023).is_ok(), "one call");
        assert!(limiter.check_rate(&a, 8 * 1024).is_ok(), "nine calls");
        assert!(limiter.check_rate(&a, 0).is_err());
        let (limiter, b) = (for_one_node(&limits), "b".to_owned());
        assert!(limiter.check_rate(&b, 1 << 20).is_ok(), "the whole burst");
        assert!(limiter.check_rate(&b, 0).is_err());
        let free = for_one_node(&LimitsConfig { rate_bytes: 0, ..limits });
        assert!((0..10).all(|_| free.check_rate(&a, 1 << 20).is_ok()), "bytes are not counted");
    }

    fn principal(role: Role, key: Option<&str>) -> Principal {
        Principal { key_id: key.map(str::to_owned), ..Principal::new("alice", role) }
    }

    #[test]
    fn key_that_may_decide_is_logged_once() {
        let keys = DecidingKeys::default();
        for role in [Role::Reviewer, Role::Admin] {
            let key = format!("key_{}", role.as_str());
            assert!(keys.note_call(&principal(role, Some(&key)), "http"), "{key}");
            assert!(!keys.note_call(&principal(role, Some(&key)), "websocket"), "{key}");
        }
        assert!(!keys.note_call(&principal(Role::Agent, Some("key_3")), "http"));
        assert!(!keys.note_call(&Principal::local_agent(), "http"));
    }

    #[test]
    fn number_of_keys_is_bounded() {
        let keys = DecidingKeys::default();
        let logged = (0..MAX_KEYS + 10)
            .filter(|n| keys.note_call(&principal(Role::Reviewer, Some(&format!("key_{n}"))), "http"))
            .count();
        assert_eq!(logged, MAX_KEYS);
    }
}
