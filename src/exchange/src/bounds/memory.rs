//! Counts the bytes that the gateway keeps for each principal beyond its requests: what clients say of themselves,
//! subscriptions, tasks, messages that wait for their readers, frames for those who come back. One bound is of each
//! principal, and one of all together.
//!
//! Where there is no room, the connections that have not been read for longest are closed. A principal's are closed only
//! after [`GRACE`], as long as the bound of all holds: several long answers at once are no attack.
//!
//! It counts where something is kept or let go, never on the way of a call that keeps nothing. Counting is atomic; a lock
//! is taken for the first bytes of a share only.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use super::eviction::now;
use countersign_protocol::{ErrorKind, McpError};

/// Bytes by which what covers much grows and shrinks.
const STEP: usize = 16 << 10;

/// Bytes of one connection's messages that are not counted: no more than its buffers may hold anyway.
pub const EXEMPT_BYTES: usize = 16 << 10;

/// Milliseconds for which a connection may leave a message unread before its principal's other connections count more.
const GRACE: u64 = 1000;

/// Messages that wait for a peer, who may not be reading.
pub trait Unread: Send + Sync {
    /// Since when the peer has taken nothing of them, by [`now`]; `None` where nothing waits or it is being used just now.
    fn since(&self) -> Option<u64>;

    /// Ends the connection and drops the messages; `false` where it is being used just now.
    fn close(&self) -> bool;
}

/// The memory of all principals: each has up to `limits.principal_memory`, all together up to `limits.total_memory`.
pub struct Memory {
    max: usize,
    max_all: usize,
    all: AtomicUsize,
    accounts: Mutex<HashMap<Arc<str>, Weak<Account>>>,
}

/// The memory of one principal.
struct Account {
    memory: Arc<Memory>,
    principal: Arc<str>,
    bytes: AtomicUsize,
    /// Its connections with more than [`EXEMPT_BYTES`] bytes of messages, now or earlier.
    connections: Mutex<Vec<Weak<dyn Unread>>>,
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut accounts = self.memory.accounts.lock();
        // Another one may have come up under the name meanwhile.
        if accounts.get(&self.principal).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.principal);
        }
    }
}

/// The bound that is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Full {
    Principal,
    All,
}

impl Memory {
    /// So many bytes for each principal, and for all of them; never less than one principal may have.
    #[must_use]
    pub fn new(max: usize, max_all: usize) -> Arc<Self> {
        Arc::new(Self { max, max_all: max_all.max(max), all: AtomicUsize::new(0), accounts: Mutex::default() })
    }

    /// A principal's, of nothing yet.
    #[must_use]
    pub fn share(self: &Arc<Self>, principal: &str) -> Share {
        Share { memory: Arc::clone(self), principal: principal.into(), account: None, bytes: 0 }
    }

    /// Takes so many bytes for a principal; given back when dropped.
    ///
    /// # Errors
    /// `OVERLOADED` where it has no room for them.
    pub fn take(self: &Arc<Self>, principal: &str, bytes: usize) -> Result<Share, McpError> {
        let mut share = self.share(principal);
        let Err(full) = share.try_grow(bytes) else { return Ok(share) };
        let (max, why) = match full {
            Full::Principal => (
                self.max,
                "the gateway keeps as much for this principal as it may (limits.principal_memory); end sessions, \
                 subscriptions or tasks that are no longer needed",
            ),
            Full::All => (
                self.max_all,
                "the gateway keeps as much for all principals as it may (limits.total_memory); try again later, or end \
                 sessions, subscriptions or tasks that are no longer needed",
            ),
        };
        Err(McpError::new(ErrorKind::Overloaded, why).with("limit", max as u64))
    }

    /// Returns the bytes that are kept for a principal.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn used_by(&self, principal: &str) -> usize {
        let account = self.accounts.lock().get(principal).and_then(Weak::upgrade);
        account.map_or(0, |account| account.bytes.load(Ordering::Relaxed))
    }

    /// Returns the bytes that are kept for all principals.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn used_total(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    fn account(self: &Arc<Self>, principal: &Arc<str>) -> Arc<Account> {
        let mut accounts = self.accounts.lock();
        if let Some(account) = accounts.get(principal).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(Account {
            memory: Arc::clone(self),
            principal: Arc::clone(principal),
            bytes: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        accounts.insert(Arc::clone(principal), Arc::downgrade(&account));
        account
    }
}

impl Account {
    /// Closes the connection that was left unread for longest, if that was before then: of this principal or of all.
    fn close_unread(&self, full: Full, before: u64) -> bool {
        let mut unread = match full {
            Full::Principal => self.unread(before),
            Full::All => {
                let accounts: Vec<_> = self.memory.accounts.lock().values().filter_map(Weak::upgrade).collect();
                accounts.iter().flat_map(|account| account.unread(before)).collect()
            }
        };
        unread.sort_by_key(|(since, _)| *since);
        unread.iter().any(|(_, connection)| connection.close())
    }

    fn take(&self, bytes: usize, max: usize, max_all: usize) -> Result<(), Full> {
        take(&self.bytes, bytes, max).map_err(|()| Full::Principal)?;
        take(&self.memory.all, bytes, max_all).map_err(|()| {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            Full::All
        })
    }

    fn is_within(&self, max: usize, max_all: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) <= max && self.memory.all.load(Ordering::Relaxed) <= max_all
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.all.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn join(&self, connection: Weak<dyn Unread>) {
        let mut connections = self.connections.lock();
        if connections.len() == connections.capacity() {
            connections.retain(|connection| connection.strong_count() > 0);
        }
        connections.push(connection);
    }

    /// Its connections that were left unread since before then.
    fn unread(&self, before: u64) -> Vec<(u64, Arc<dyn Unread>)> {
        let connections = self.connections.lock();
        let unread = connections.iter().filter_map(Weak::upgrade);
        unread.filter_map(|c| Some((c.since()?, c))).filter(|(since, _)| *since < before).collect()
    }
}

fn take(taken: &AtomicUsize, bytes: usize, max: usize) -> Result<(), ()> {
    let room = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= max);
    taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).map(drop).map_err(drop)
}

/// Bytes of one principal.
pub struct Share {
    memory: Arc<Memory>,
    principal: Arc<str>,
    /// `None` until the first bytes are taken.
    account: Option<Arc<Account>>,
    bytes: usize,
}

impl Share {
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more; `false` where there is no room, and then it stays as it was.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.try_grow(bytes).is_ok()
    }

    fn try_grow(&mut self, bytes: usize) -> Result<(), Full> {
        let (max, max_all) = (self.memory.max, self.memory.max_all);
        loop {
            let Err(full) = self.grow_within(bytes, max, max_all) else { return Ok(()) };
            if bytes > max || !self.account().close_unread(full, now().saturating_sub(GRACE)) {
                return Err(full);
            }
        }
    }

    /// Makes it fit so many bytes, in steps; `false` where there is no room, and then some of it is to be forgotten. No
    /// more than half of what there is goes to what can be forgotten: the rest is for what cannot.
    #[must_use]
    pub fn cover(&mut self, bytes: usize) -> bool {
        let more = self.step_to(bytes);
        let (half, half_of_all) = (self.memory.max / 2, self.memory.max_all / 2);
        if more == 0 {
            // Messages that waited may have had the other half, too.
            if self.bytes > 0 && !self.account().is_within(half, half_of_all) {
                self.shrink_to(bytes.div_ceil(STEP) * STEP);
            }
            return self.bytes == 0 || self.account().is_within(half, half_of_all);
        }
        self.grow_within(more, half, half_of_all).is_ok()
    }

    /// Makes it fit so many bytes of messages, in steps, of which the peer has taken none since then; `false` where there
    /// is no room, and no other connection that was left unread for longer: then this one is to be closed.
    #[must_use]
    pub fn cover_messages(&mut self, bytes: usize, since: u64, connection: impl FnOnce() -> Weak<dyn Unread>) -> bool {
        let more = self.step_to(bytes);
        if more == 0 {
            return true;
        }
        if self.account.is_none() {
            self.account().join(connection());
        }
        let (mut max, max_all) = (self.memory.max, self.memory.max_all);
        loop {
            let Err(full) = self.grow_within(more, max, max_all) else { return true };
            let late = now().saturating_sub(GRACE);
            let before = if full == Full::All { since } else { late };
            if self.account().close_unread(full, before) {
                continue;
            }
            if full == Full::All || since < late {
                return false;
            }
            // Nobody has waited for long: the bound of all is enough for the moment.
            max = usize::MAX;
        }
    }

    /// Gives back what is more than a step too much; gives the bytes that are missing.
    fn step_to(&mut self, bytes: usize) -> usize {
        let wanted = bytes.div_ceil(STEP) * STEP;
        if wanted + STEP < self.bytes {
            self.shrink_to(wanted);
        }
        wanted.saturating_sub(self.bytes)
    }

    fn account(&mut self) -> &Account {
        self.account.get_or_insert_with(|| self.memory.account(&self.principal))
    }

    fn grow_within(&mut self, bytes: usize, max: usize, max_all: usize) -> Result<(), Full> {
        if bytes > 0 {
            self.account().take(bytes, max, max_all)?;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Gives back all but so many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let Some(back) = self.bytes.checked_sub(bytes).filter(|back| *back > 0) else { return };
        self.bytes = bytes;
        self.account().give_back(back);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_its_own_and_gets_it_back() {
        let memory = Memory::new(100, 1000);
        let alice = memory.take("alice", 60).unwrap();
        assert_eq!(memory.take("alice", 41).err().unwrap().kind, ErrorKind::Overloaded);
        let bob = memory.take("bob", 100).unwrap();
        let more = memory.take("alice", 40).unwrap();
        assert_eq!((memory.used_by("alice"), memory.used_by("bob")), (100, 100));
        drop((alice, bob));
        assert_eq!((memory.used_by("alice"), memory.used_by("bob")), (40, 0));
        drop(more);
        assert!(memory.accounts.lock().is_empty());
    }

    #[test]
    fn a_share_grows_and_shrinks_within_the_bound() {
        let memory = Memory::new(100, 100);
        let mut share = memory.take("alice", 0).unwrap();
        assert!(share.grow(100));
        assert!(!share.grow(1));
        assert!(!share.grow(usize::MAX));
        share.shrink_to(30);
        assert_eq!((share.bytes(), memory.used_by("alice")), (30, 30));
        share.shrink_to(50);
        assert_eq!(share.bytes(), 30);
        drop(share);
        assert_eq!(memory.used_by("alice"), 0);
    }

    #[test]
    fn what_can_be_forgotten_leaves_half_to_what_cannot() {
        let memory = Memory::new(10 * STEP, 10 * STEP);
        let mut ring = memory.take("alice", 0).unwrap();
        assert!(ring.cover(1) && ring.cover(STEP) && ring.cover(5 * STEP));
        assert!(!ring.cover(5 * STEP + 1));
        let rest = memory.take("alice", 5 * STEP).unwrap();
        assert!(ring.cover(0));
        assert_eq!(memory.used_by("alice"), rest.bytes());
        assert!(!ring.cover(1), "there is no half left");
    }

    /// A connection whose peer has read nothing since then.
    struct Silent {
        since: u64,
        share: Mutex<Option<Share>>,
    }

    impl Silent {
        fn new(memory: &Arc<Memory>, principal: &str, bytes: usize, since: u64) -> Arc<Self> {
            let mut share = memory.share(principal);
            let silent = Arc::new(Self { since, share: Mutex::default() });
            assert!(share.cover_messages(bytes, since, || Arc::downgrade(&silent) as _));
            *silent.share.lock() = Some(share);
            silent
        }

        fn is_closed(&self) -> bool {
            self.share.lock().is_none()
        }
    }

    impl Unread for Silent {
        fn since(&self) -> Option<u64> {
            (!self.is_closed()).then_some(self.since)
        }

        fn close(&self) -> bool {
            *self.share.lock() = None;
            true
        }
    }

    fn no_connection() -> Weak<dyn Unread> {
        Weak::<Silent>::new()
    }

    /// The clock of [`now`] has gone past its first seconds.
    fn later() -> u64 {
        while now() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        now()
    }

    #[test]
    fn total_is_bounded_whoever_takes_it() {
        let memory = Memory::new(100, 150);
        let _alice = memory.take("alice", 100).unwrap();
        let full = memory.take("bob", 51).err().unwrap();
        assert_eq!((full.kind, full.data["limit"].as_u64()), (ErrorKind::Overloaded, Some(150)));
        assert_eq!((memory.used_by("bob"), memory.used_total()), (0, 100));
        let bob = memory.take("bob", 50).unwrap();
        drop(bob);
        assert_eq!(memory.used_total(), 100);
        // Where the bound of all is less, one principal still has its own.
        assert!(Memory::new(100, 1).take("alice", 100).is_ok());
    }

    #[test]
    fn connection_left_unread_for_longest_is_closed_first() {
        let memory = Memory::new(4 * STEP, 4 * STEP);
        let at = later();
        let silent = [7, 3, 5].map(|since| Silent::new(&memory, "alice", STEP, since));
        let closed = |expected: [bool; 3]| assert_eq!(silent.each_ref().map(|silent| silent.is_closed()), expected);
        let mut reads = memory.share("alice");
        assert!(reads.cover_messages(STEP, at, no_connection));
        closed([false, false, false]);
        assert!(reads.cover_messages(2 * STEP, at, no_connection));
        closed([false, true, false]);
        // One that was itself left unread for longer than all others is the one to go.
        assert!(!reads.cover_messages(3 * STEP, 4, no_connection));
        closed([false, true, false]);
        assert!(reads.cover_messages(3 * STEP, at, no_connection));
        closed([false, true, true]);
        // Nor are those of another principal spared.
        let mut others = memory.share("bob");
        assert!(others.cover_messages(STEP, at, no_connection));
        closed([true, true, true]);
        assert_eq!(memory.used_total(), 4 * STEP);
    }

    #[test]
    fn long_answers_at_one_moment_close_nobody_while_there_is_room() {
        let memory = Memory::new(2 * STEP, 6 * STEP);
        let silent = Silent::new(&memory, "alice", 2 * STEP, now());
        let mut reads = memory.share("alice");
        assert!(reads.cover_messages(4 * STEP, now(), no_connection));
        assert!(!silent.is_closed());
        assert_eq!(memory.used_by("alice"), 6 * STEP);
        assert!(!memory.share("alice").grow(1), "what cannot be forgotten keeps to the bound");
    }
}
