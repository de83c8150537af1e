//! Counts failed attempts to authenticate and tells those who fail too often to wait.
//!
//! Whoever has the right credential is never held back, however many others fail, from the same address too: a credential
//! is verified before anything is counted, and only failures are. So what makes guessing hopeless is not this but the
//! length of what would have to be guessed: keys and sign-in codes are 256 bits of randomness, and at a million guesses a
//! second for ten years the chance to hit one is 2^-208 for each that exists. What is counted here keeps a client with a
//! wrong credential from asking all the time, and the log short. Memory is bounded: when too many addresses fail at once,
//! the newcomers share one count.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};

use countersign_protocol::{ErrorKind, McpError};

/// Addresses that are remembered at a time.
const MAX_TRACKED: usize = 8192;
/// Failures in a row that are just refused, and how long one takes to be forgotten.
const BURST: NonZeroU32 = match NonZeroU32::new(10) {
    Some(n) => n,
    None => NonZeroU32::MIN,
};
const FORGET_ONE_AFTER: Duration = Duration::from_secs(5);

/// Whose failures are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// An address; an IPv6 network of 64 bits is one, since a host may own all of it.
    Peer(IpAddr),
    /// One wrong key from one address, again and again: a client with an old configuration, whose failures are not its
    /// neighbours' on the same host.
    Repeat(IpAddr, u64),
    /// Everyone beyond the bound, and peers without an address.
    Others,
}

impl Subject {
    #[must_use]
    pub fn peer(peer: Option<IpAddr>) -> Self {
        peer.map_or(Self::Others, |ip| Self::Peer(network(ip)))
    }
    #[must_use]
    pub fn repeat(peer: Option<IpAddr>, of: u64) -> Self {
        peer.map_or(Self::Others, |ip| Self::Repeat(network(ip), of))
    }
}

fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The counts of one endpoint.
pub struct Attempts {
    limiter: DefaultKeyedRateLimiter<Subject>,
    clock: DefaultClock,
    /// When the counts were last cleared of those who waited long enough; clearing walks through all of them.
    swept: Mutex<Option<Instant>>,
    /// When the log was last told of somebody who fails too often.
    told: Mutex<Option<Instant>>,
}

impl Default for Attempts {
    fn default() -> Self {
        let quota = Quota::with_period(FORGET_ONE_AFTER).unwrap_or(Quota::per_second(NonZeroU32::MIN));
        Self {
            limiter: RateLimiter::keyed(quota.allow_burst(BURST)),
            clock: DefaultClock::default(),
            swept: Mutex::default(),
            told: Mutex::default(),
        }
    }
}

/// Whether the last time was so long ago that it is time again; notes it then.
fn is_due(last: &Mutex<Option<Instant>>, now: Instant) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let due = last.is_none_or(|at| now.saturating_duration_since(at) >= FORGET_ONE_AFTER);
    if due {
        *last = Some(now);
    }
    due
}

impl Attempts {
    /// Counts a failure: of an attempt that was verified and is wrong. Answers the given error, or `RATE_LIMITED` with
    /// `retryAfter` (seconds) where it was one too many.
    pub fn failed(&self, subject: Subject, now: Instant, error: McpError) -> McpError {
        let subject = if self.has_room(now) { subject } else { Subject::Others };
        let Err(not_until) = self.limiter.check_key(&subject) else { return error };
        if is_due(&self.told, now) {
            tracing::warn!(?subject, "too many failed attempts to authenticate");
        }
        limited(not_until.wait_time_from(self.clock.now()))
    }

    fn has_room(&self, now: Instant) -> bool {
        if self.limiter.len() < MAX_TRACKED {
            return true;
        }
        if is_due(&self.swept, now) {
            self.limiter.retain_recent();
        }
        self.limiter.len() < MAX_TRACKED
    }

    #[cfg(test)]
    fn tracked(&self) -> usize {
        self.limiter.len()
    }
}

fn limited(wait: Duration) -> McpError {
    McpError::new(ErrorKind::RateLimited, "too many failed attempts; try again later")
        .with("retryAfter", wait.as_secs().saturating_add(1))
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
    fn the_eleventh_failure_is_told_to_wait_and_others_are_not() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let subject = Subject::peer(ip(1));
        for _ in 0..10 {
            assert_eq!(attempts.failed(subject, now, wrong()).kind, ErrorKind::Unauthorized);
        }
        let error = attempts.failed(subject, now, wrong());
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert!(error.data["retryAfter"].as_u64().unwrap() <= 6);
        assert_eq!(attempts.failed(Subject::peer(ip(2)), now, wrong()).kind, ErrorKind::Unauthorized);
    }

    #[test]
    fn a_host_does_not_escape_by_walking_through_its_ipv6_network() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let last = (0..11_u128).map(|n| {
            let ip = IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + n));
            attempts.failed(Subject::peer(Some(ip)), now, wrong()).kind
        });
        assert_eq!(last.last(), Some(ErrorKind::RateLimited));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(Subject::peer(Some(mapped)), Subject::peer(ip(1)));
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_fail() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for n in 0..20_000_u32 {
            attempts.failed(Subject::Peer(IpAddr::from(n.to_be_bytes())), now, wrong());
        }
        assert!(attempts.tracked() <= MAX_TRACKED + 1);
    }
}
