//! Counts failed attempts to authenticate, and rate-limits clients that fail too often.
//!
//! A valid credential is never held back, even if others fail from the same address: it is verified first, and only
//! failures are counted. The exceptions are opaque tokens that this gateway does not know yet: no issuer is asked about
//! them for an address whose tokens were refused too often. The limit stops clients with a wrong credential from
//! retrying all the time, and keeps the log short. It does not protect from guessing, which is hopeless anyway: keys and
//! sign-in codes have 256 random bits. Memory is bounded: if too many addresses fail at once, all that are not yet beyond
//! the limit share one count.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use dashmap::DashMap;
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};

use countersign_protocol::{ErrorKind, McpError};

/// The maximum number of tracked sources.
const MAX_TRACKED_SOURCES: usize = 8192;
/// The number of failures in a row before the limit applies.
const MAX_FAILURES_IN_A_ROW: NonZeroU32 = match NonZeroU32::new(10) {
    Some(n) => n,
    None => NonZeroU32::MIN,
};
/// The time after which one failure is forgotten.
const FORGET_FAILURE_AFTER: Duration = Duration::from_secs(5);
/// The minimum interval between two log entries about too many failures, and between two removals of expired counts.
const MIN_REPEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The source of failures that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptSource {
    /// An address. An IPv6 network of 64 bits counts as one, since a host may own all of it.
    Peer(IpAddr),
    /// One wrong key from one address, as a client with an outdated configuration sends it. Its failures do not count
    /// for other clients of the host.
    WrongKey(IpAddr, u64),
    /// All sources beyond `MAX_TRACKED_SOURCES` that are not yet beyond the limit, and peers without an address.
    Untracked,
}

impl AttemptSource {
    pub fn for_peer(peer: Option<IpAddr>) -> Self {
        peer.map_or(Self::Untracked, |ip| Self::Peer(client_network(ip)))
    }
    pub fn for_wrong_key(peer: Option<IpAddr>, key_hash: u64) -> Self {
        peer.map_or(Self::Untracked, |ip| Self::WrongKey(client_network(ip), key_hash))
    }
}

/// Returns the address itself, or the network of 64 bits of an IPv6 address.
fn client_network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The failure counts of all clients.
pub struct FailedAttempts {
    limiter: DefaultKeyedRateLimiter<AttemptSource>,
    /// The times at which sources beyond the limit may try again.
    blocked_until: DashMap<AttemptSource, Instant>,
    clock: DefaultClock,
    /// The time of the last removal of expired counts, which iterates over all of them.
    last_sweep: Mutex<Option<Instant>>,
    /// The time of the last log entry about too many failures.
    last_warning: Mutex<Option<Instant>>,
}

impl Default for FailedAttempts {
    fn default() -> Self {
        let quota = Quota::with_period(FORGET_FAILURE_AFTER).unwrap_or(Quota::per_second(NonZeroU32::MIN));
        Self {
            limiter: RateLimiter::keyed(quota.allow_burst(MAX_FAILURES_IN_A_ROW)),
            blocked_until: DashMap::new(),
            clock: DefaultClock::default(),
            last_sweep: Mutex::default(),
            last_warning: Mutex::default(),
        }
    }
}

/// Returns `true` and records the time if the last recorded time is at least [`MIN_REPEAT_INTERVAL`] ago.
fn record_if_due(last: &Mutex<Option<Instant>>, now: Instant) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = last.is_none_or(|at| now.saturating_duration_since(at) >= MIN_REPEAT_INTERVAL);
    if is_due {
        *last = Some(now);
    }
    is_due
}

fn rate_limited(wait: Duration) -> McpError {
    McpError::new(ErrorKind::RateLimited, "too many failed attempts; try again later")
        .with("retryAfter", wait.as_secs().saturating_add(1))
}

impl FailedAttempts {
    /// Counts a credential that failed its verification. Returns the given error, or `RATE_LIMITED` with
    /// `retryAfter` in seconds after too many failures.
    pub fn record_failure(&self, source: AttemptSource, now: Instant, error: McpError) -> McpError {
        let source = self.counted_source(source, now);
        let Err(not_until) = self.limiter.check_key(&source) else { return error };
        if record_if_due(&self.last_warning, now) {
            tracing::warn!(?source, "too many failed attempts to authenticate");
        }
        let wait = not_until.wait_time_from(self.clock.now());
        if self.blocked_until.len() >= MAX_TRACKED_SOURCES {
            self.blocked_until.retain(|_, until| *until > now);
        }
        self.blocked_until.insert(source, now + wait);
        rate_limited(wait)
    }

    /// Checks, without counting an attempt, that a source is within the limit.
    ///
    /// # Errors
    /// `RATE_LIMITED` with `retryAfter` as in [`Self::record_failure`].
    pub fn check(&self, source: AttemptSource, now: Instant) -> Result<(), McpError> {
        let blocked_until = self.blocked_until.get(&self.counted_source(source, now)).map(|until| *until);
        match blocked_until.map(|until| until.saturating_duration_since(now)) {
            Some(wait) if !wait.is_zero() => Err(rate_limited(wait)),
            _ => Ok(()),
        }
    }

    /// Returns the source under which an attempt counts, after removing expired counts if there are too many.
    fn counted_source(&self, source: AttemptSource, now: Instant) -> AttemptSource {
        if self.limiter.len() >= MAX_TRACKED_SOURCES && record_if_due(&self.last_sweep, now) {
            self.limiter.retain_recent();
        }
        let is_tracked = self.limiter.len() < MAX_TRACKED_SOURCES || self.blocked_until.contains_key(&source);
        if is_tracked { source } else { AttemptSource::Untracked }
    }

    #[cfg(test)]
    fn tracked_sources(&self) -> usize {
        self.limiter.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_credential() -> McpError {
        McpError::new(ErrorKind::Unauthorized, "wrong")
    }
    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn eleventh_failure_is_rate_limited() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        let source = AttemptSource::for_peer(ip(1));
        for _ in 0..10 {
            assert_eq!(attempts.record_failure(source, now, wrong_credential()).kind, ErrorKind::Unauthorized);
        }
        let error = attempts.record_failure(source, now, wrong_credential());
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert!(error.data["retryAfter"].as_u64().unwrap() <= 6);
        assert_eq!(attempts.check(source, now).unwrap_err().kind, ErrorKind::RateLimited);
        assert_eq!(attempts.check(source, now + FORGET_FAILURE_AFTER), Ok(()));
        assert_eq!(attempts.check(AttemptSource::for_peer(ip(2)), now), Ok(()));
        assert_eq!(
            attempts.record_failure(AttemptSource::for_peer(ip(2)), now, wrong_credential()).kind,
            ErrorKind::Unauthorized
        );
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        let kinds = (0..11_u128).map(|n| {
            let ip = IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + n));
            attempts.record_failure(AttemptSource::for_peer(Some(ip)), now, wrong_credential()).kind
        });
        assert_eq!(kinds.last(), Some(ErrorKind::RateLimited));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(AttemptSource::for_peer(Some(mapped)), AttemptSource::for_peer(ip(1)));
    }

    #[test]
    fn full_table_does_not_unblock_anybody() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        let source = AttemptSource::for_peer(ip(1));
        for _ in 0..11 {
            attempts.record_failure(source, now, wrong_credential());
        }
        for n in 1..u32::try_from(MAX_TRACKED_SOURCES).unwrap() {
            attempts.record_failure(AttemptSource::Peer(IpAddr::from(n.to_be_bytes())), now, wrong_credential());
        }
        assert_eq!(attempts.tracked_sources(), MAX_TRACKED_SOURCES);
        assert_eq!(attempts.check(AttemptSource::for_peer(ip(2)), now), Ok(()));
        assert_eq!(attempts.check(source, now).unwrap_err().kind, ErrorKind::RateLimited);
    }

    #[test]
    fn tracked_addresses_are_bounded() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        for n in 0..20_000_u32 {
            attempts.record_failure(AttemptSource::Peer(IpAddr::from(n.to_be_bytes())), now, wrong_credential());
        }
        assert!(attempts.tracked_sources() <= MAX_TRACKED_SOURCES + 1);
        assert!(attempts.blocked_until.len() <= MAX_TRACKED_SOURCES);
    }
}
