//! Counts failed attempts to authenticate, and rate-limits clients that fail too often.
//!
//! A valid credential is never held back, even if others fail from the same address: it is verified first, and only
//! failures are counted. Opaque tokens that this gateway does not know yet are the exception: their issuer is not asked
//! on behalf of an address whose tokens it has just refused too often. The length of the secrets makes guessing
//! hopeless, not this limit: keys and sign-in codes have 256 random bits, so a million guesses a second for ten years
//! hit an existing one with a chance of 2^-208. The limit stops clients with a wrong credential from retrying all the
//! time, and keeps the log short. Memory is bounded: if too many addresses fail at once, new ones share one count.

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

/// The maximum number of tracked subjects.
const MAX_TRACKED: usize = 8192;
/// The number of failures in a row before the limit applies.
const MAX_FAILURES_IN_A_ROW: NonZeroU32 = match NonZeroU32::new(10) {
    Some(n) => n,
    None => NonZeroU32::MIN,
};
/// The time after which one failure is forgotten.
const FORGET_FAILURE_AFTER: Duration = Duration::from_secs(5);

/// The source of failures that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// An address. An IPv6 network of 64 bits counts as one, since a host may own all of it.
    Peer(IpAddr),
    /// One wrong key from one address, as a client with an outdated configuration sends it. Its failures do not count
    /// for other clients of the host.
    WrongKey(IpAddr, u64),
    /// All subjects beyond the bound, and peers without an address.
    Untracked,
}

impl Subject {
    #[must_use]
    pub fn for_peer(peer: Option<IpAddr>) -> Self {
        peer.map_or(Self::Untracked, |ip| Self::Peer(network_of(ip)))
    }
    #[must_use]
    pub fn for_wrong_key(peer: Option<IpAddr>, key_hash: u64) -> Self {
        peer.map_or(Self::Untracked, |ip| Self::WrongKey(network_of(ip), key_hash))
    }
}

fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The failure counts of all clients.
pub struct FailedAttempts {
    limiter: DefaultKeyedRateLimiter<Subject>,
    /// The times until which subjects beyond the limit are to wait.
    waits: DashMap<Subject, Instant>,
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
            waits: DashMap::new(),
            clock: DefaultClock::default(),
            last_sweep: Mutex::default(),
            last_warning: Mutex::default(),
        }
    }
}

/// Returns `true` at most once every [`FORGET_FAILURE_AFTER`], and then records the time.
fn is_due(last: &Mutex<Option<Instant>>, now: Instant) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let due = last.is_none_or(|at| now.saturating_duration_since(at) >= FORGET_FAILURE_AFTER);
    if due {
        *last = Some(now);
    }
    due
}

fn rate_limited(wait: Duration) -> McpError {
    McpError::new(ErrorKind::RateLimited, "too many failed attempts; try again later")
        .with("retryAfter", wait.as_secs().saturating_add(1))
}

impl FailedAttempts {
    /// Counts a verified failure. Returns the given error, or `RATE_LIMITED` with `retryAfter` in seconds after too
    /// many failures.
    pub fn record_failure(&self, subject: Subject, now: Instant, error: McpError) -> McpError {
        let subject = self.tracked(subject, now);
        let Err(not_until) = self.limiter.check_key(&subject) else { return error };
        if is_due(&self.last_warning, now) {
            tracing::warn!(?subject, "too many failed attempts to authenticate");
        }
        let wait = not_until.wait_time_from(self.clock.now());
        if self.waits.len() >= MAX_TRACKED {
            self.waits.retain(|_, until| *until > now);
        }
        self.waits.insert(subject, now + wait);
        rate_limited(wait)
    }

    /// Checks, without counting an attempt, that a subject is within the limit.
    ///
    /// # Errors
    /// `RATE_LIMITED` with `retryAfter` as in [`Self::record_failure`].
    pub fn check(&self, subject: Subject, now: Instant) -> Result<(), McpError> {
        let until = self.waits.get(&self.tracked(subject, now)).map(|until| *until);
        match until.map(|until| until.saturating_duration_since(now)) {
            Some(wait) if !wait.is_zero() => Err(rate_limited(wait)),
            _ => Ok(()),
        }
    }

    /// Returns the subject under which an attempt counts, after removing expired counts if there are too many.
    fn tracked(&self, subject: Subject, now: Instant) -> Subject {
        if self.limiter.len() >= MAX_TRACKED && is_due(&self.last_sweep, now) {
            self.limiter.retain_recent();
        }
        if self.limiter.len() < MAX_TRACKED { subject } else { Subject::Untracked }
    }

    #[cfg(test)]
    fn tracked_subjects(&self) -> usize {
        self.limiter.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong() -> McpError {
        McpError::new(ErrorKind::Unauthorized, "wrong")
    }
    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn eleventh_failure_is_rate_limited() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        let subject = Subject::for_peer(ip(1));
        for _ in 0..10 {
            assert_eq!(attempts.record_failure(subject, now, wrong()).kind, ErrorKind::Unauthorized);
        }
        let error = attempts.record_failure(subject, now, wrong());
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert!(error.data["retryAfter"].as_u64().unwrap() <= 6);
        assert_eq!(attempts.check(subject, now).unwrap_err().kind, ErrorKind::RateLimited);
        assert_eq!(attempts.check(subject, now + FORGET_FAILURE_AFTER), Ok(()));
        assert_eq!(attempts.check(Subject::for_peer(ip(2)), now), Ok(()));
        assert_eq!(attempts.record_failure(Subject::for_peer(ip(2)), now, wrong()).kind, ErrorKind::Unauthorized);
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        let last = (0..11_u128).map(|n| {
            let ip = IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + n));
            attempts.record_failure(Subject::for_peer(Some(ip)), now, wrong()).kind
        });
        assert_eq!(last.last(), Some(ErrorKind::RateLimited));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(Subject::for_peer(Some(mapped)), Subject::for_peer(ip(1)));
    }

    #[test]
    fn tracked_addresses_are_bounded() {
        let (attempts, now) = (FailedAttempts::default(), Instant::now());
        for n in 0..20_000_u32 {
            attempts.record_failure(Subject::Peer(IpAddr::from(n.to_be_bytes())), now, wrong());
        }
        assert!(attempts.tracked_subjects() <= MAX_TRACKED + 1);
        assert!(attempts.waits.len() <= MAX_TRACKED);
    }
}
