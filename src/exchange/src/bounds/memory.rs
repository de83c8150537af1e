//! Bounds the memory that the gateway keeps for each principal beyond its requests: client facts, subscriptions, tasks
//! and their results, unread messages, and frames for clients that come back. There is a limit for each principal and one
//! for all together.
//!
//! Without room, the connection or the task that was left unread for longest is given up: the connection is closed, and
//! the task with its result is forgotten. If only the principal's own limit is reached, that happens only after
//! [`UNREAD_GRACE_MS`], because several long answers at once are not an attack.
//!
//! Bytes are counted when something is stored or released, so a call that stores nothing costs nothing. Counting is
//! atomic; only the first bytes of a share take a lock.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use super::eviction::monotonic_ms;
use countersign_protocol::{ErrorKind, McpError};

/// The step in bytes by which shares of messages and replay frames grow and shrink.
const GROWTH_STEP: usize = 16 << 10;

/// The bytes of each connection's messages that are not counted, because the connection's buffers may hold as many
/// anyway.
pub const EXEMPT_MESSAGE_BYTES: usize = 16 << 10;

/// The time in milliseconds for which a client may leave a message or a result unread before it may be given up for
/// something else of its principal.
const UNREAD_GRACE_MS: u64 = 1000;

/// A holder of memory whose content its client may never read: a connection with messages, or a task with a result.
pub trait UnreadHolder: Send + Sync {
    /// Returns the time, by [`monotonic_ms`], since which the client has read nothing. Returns `None` if nothing waits, or
    /// if the holder is in use at the moment.
    fn unread_since(&self) -> Option<u64>;

    /// Ends the connection or the task, and releases its memory. Returns `false` if the holder is in use at the moment.
    fn close(&self) -> bool;
}

/// A holder that may be gone.
pub type WeakHolder = Weak<dyn UnreadHolder>;

/// The memory of all principals: each may take up to `limits.principal_memory`, all together up to
/// `limits.total_memory`.
pub struct MemoryBudget {
    max_per_principal: usize,
    max_total: usize,
    total: AtomicUsize,
    principals: Mutex<HashMap<Arc<str>, Weak<PrincipalMemory>>>,
}

/// The memory of one principal.
struct PrincipalMemory {
    memory: Arc<MemoryBudget>,
    principal: Arc<str>,
    bytes: AtomicUsize,
    /// The connections that have, or had, more than [`EXEMPT_MESSAGE_BYTES`] bytes of messages, and the tasks with results.
    holders: Mutex<Vec<WeakHolder>>,
}

impl Drop for PrincipalMemory {
    fn drop(&mut self) {
        let mut principals = self.memory.principals.lock();
        // Another memory may have been created under the name meanwhile.
        if principals.get(&self.principal).is_some_and(|memory| memory.strong_count() == 0) {
            principals.remove(&self.principal);
        }
    }
}

/// The limit that has no room left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExhaustedLimit {
    Principal,
    Total,
}

impl MemoryBudget {
    /// Creates the memory with a limit in bytes for each principal and one for all together. A total limit below that of
    /// a principal is raised to it.
    pub fn new(max_per_principal: usize, max_total: usize) -> Arc<Self> {
        let max_total = max_total.max(max_per_principal);
        Arc::new(Self { max_per_principal, max_total, total: AtomicUsize::new(0), principals: Mutex::default() })
    }

    /// Creates an empty share of a principal.
    #[must_use]
    pub fn share(self: &Arc<Self>, principal: &str) -> MemoryShare {
        MemoryShare {
            memory: Arc::clone(self),
            principal: principal.into(),
            principal_memory: None,
            bytes: 0,
            has_holder: false,
        }
    }

    /// Takes bytes for a principal, which are released when the share is dropped.
    ///
    /// # Errors
    /// `OVERLOADED` if there is no room for them.
    pub fn take(self: &Arc<Self>, principal: &str, bytes: usize) -> Result<MemoryShare, McpError> {
        let mut share = self.share(principal);
        let Err(exhausted) = share.try_grow(bytes) else { return Ok(share) };
        let (max, message) = match exhausted {
            ExhaustedLimit::Principal => (
                self.max_per_principal,
                "the memory limit for this principal is reached (limits.principal_memory); end sessions, \
                 subscriptions or tasks that are no longer needed",
            ),
            ExhaustedLimit::Total => (
                self.max_total,
                "the memory limit for all principals is reached (limits.total_memory); try again later, or end \
                 sessions, subscriptions or tasks that are no longer needed",
            ),
        };
        Err(McpError::new(ErrorKind::Overloaded, message).with("limit", max as u64))
    }

    /// Returns the bytes that are kept for a principal.
    #[cfg(any(test, feature = "testing"))]
    pub fn used_by(&self, principal: &str) -> usize {
        let principal_memory = self.principals.lock().get(principal).and_then(Weak::upgrade);
        principal_memory.map_or(0, |memory| memory.bytes.load(Ordering::Relaxed))
    }

    /// Returns the bytes that are kept for all principals.
    #[cfg(any(test, feature = "testing"))]
    pub fn used_total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    fn principal_memory(self: &Arc<Self>, principal: &Arc<str>) -> Arc<PrincipalMemory> {
        let mut principals = self.principals.lock();
        if let Some(principal_memory) = principals.get(principal).and_then(Weak::upgrade) {
            return principal_memory;
        }
        let principal_memory = Arc::new(PrincipalMemory {
            memory: Arc::clone(self),
            principal: Arc::clone(principal),
            bytes: AtomicUsize::new(0),
            holders: Mutex::default(),
        });
        principals.insert(Arc::clone(principal), Arc::downgrade(&principal_memory));
        principal_memory
    }
}

impl PrincipalMemory {
    /// Closes holders whose clients have read nothing since before `unread_before`, those left unread for longest first,
    /// until there is room for `bytes`. Considers the holders of this principal, or of all principals if the total limit is
    /// exhausted. Returns `false` if none could be closed.
    fn close_unread(&self, exhausted: ExhaustedLimit, bytes: usize, unread_before: u64) -> bool {
        let mut unread = match exhausted {
            ExhaustedLimit::Principal => self.unread_holders(unread_before),
            ExhaustedLimit::Total => {
                let memories: Vec<_> = self.memory.principals.lock().values().filter_map(Weak::upgrade).collect();
                memories.iter().flat_map(|memory| memory.unread_holders(unread_before)).collect()
            }
        };
        unread.sort_by_key(|(since, _)| *since);
        let used = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed);
        let has_room = || match exhausted {
            ExhaustedLimit::Principal => used(&self.bytes) <= self.memory.max_per_principal.saturating_sub(bytes),
            ExhaustedLimit::Total => used(&self.memory.total) <= self.memory.max_total.saturating_sub(bytes),
        };
        let mut has_closed = false;
        for (_, holder) in &unread {
            has_closed |= holder.close();
            if has_closed && has_room() {
                break;
            }
        }
        has_closed
    }

    fn take(&self, bytes: usize, max: usize, max_total: usize) -> Result<(), ExhaustedLimit> {
        take_bytes(&self.bytes, bytes, max).map_err(|()| ExhaustedLimit::Principal)?;
        take_bytes(&self.memory.total, bytes, max_total).map_err(|()| {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            ExhaustedLimit::Total
        })
    }

    fn is_within(&self, max: usize, max_total: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) <= max && self.memory.total.load(Ordering::Relaxed) <= max_total
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn add_holder(&self, holder: WeakHolder) {
        let mut holders = self.holders.lock();
        if holders.len() == holders.capacity() {
            holders.retain(|holder| holder.strong_count() > 0);
        }
        holders.push(holder);
    }

    /// Returns the principal's holders whose clients have read nothing since before `unread_before`, each with that time.
    fn unread_holders(&self, unread_before: u64) -> Vec<(u64, Arc<dyn UnreadHolder>)> {
        let holders = self.holders.lock();
        let unread = holders.iter().filter_map(Weak::upgrade);
        unread.filter_map(|h| Some((h.unread_since()?, h))).filter(|(since, _)| *since < unread_before).collect()
    }
}

fn take_bytes(used: &AtomicUsize, bytes: usize, max: usize) -> Result<(), ()> {
    let add_within_limit = |used: usize| used.checked_add(bytes).filter(|used| *used <= max);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_within_limit).map(drop).map_err(drop)
}

/// The bytes that one holder has taken of its principal's memory.
pub struct MemoryShare {
    memory: Arc<MemoryBudget>,
    principal: Arc<str>,
    /// `None` until the first bytes are taken.
    principal_memory: Option<Arc<PrincipalMemory>>,
    bytes: usize,
    /// `true` once the connection of the share is among the holders that may be closed.
    has_holder: bool,
}

impl MemoryShare {
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more bytes. Returns `false`, and changes nothing, if there is no room.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.try_grow(bytes).is_ok()
    }

    fn try_grow(&mut self, bytes: usize) -> Result<(), ExhaustedLimit> {
        let (max, max_total) = (self.memory.max_per_principal, self.memory.max_total);
        loop {
            let Err(exhausted) = self.grow_within(bytes, max, max_total) else { return Ok(()) };
            let unread_before = monotonic_ms().saturating_sub(UNREAD_GRACE_MS);
            if bytes > max || !self.principal_memory().close_unread(exhausted, bytes, unread_before) {
                return Err(exhausted);
            }
        }
    }

    /// Takes bytes for a result that `holder` keeps until they are needed for something else. Returns `false` if there is
    /// no room.
    #[must_use]
    pub fn cover_result(&mut self, bytes: usize, holder: WeakHolder) -> bool {
        self.principal_memory().add_holder(holder);
        self.grow(bytes)
    }

    /// Adjusts the share, in steps, to `bytes` of replay frames. Returns `false` if there is no room, and the
    /// caller then has to drop some. Replay frames may take at most half of each limit, so that half is left for
    /// what cannot be dropped.
    #[must_use]
    pub fn cover_replay(&mut self, bytes: usize) -> bool {
        let missing = self.release_excess(bytes);
        let (half, half_of_total) = (self.memory.max_per_principal / 2, self.memory.max_total / 2);
        if missing == 0 {
            // Unread messages may have taken part of the other half.
            if self.bytes > 0 && !self.principal_memory().is_within(half, half_of_total) {
                self.shrink_to(bytes.div_ceil(GROWTH_STEP) * GROWTH_STEP);
            }
            return self.bytes == 0 || self.principal_memory().is_within(half, half_of_total);
        }
        self.grow_within(missing, half, half_of_total).is_ok()
    }

    /// Adjusts the share, in steps, to `bytes` of messages, of which the peer has read none since `since`.
    /// Without room, holders that were left unread for longer are closed. Returns `false` if there are none, and the
    /// caller then has to close this connection.
    #[must_use]
    pub fn cover_messages(&mut self, bytes: usize, since: u64, connection: impl FnOnce() -> WeakHolder) -> bool {
        let missing = self.release_excess(bytes);
        if missing == 0 {
            return true;
        }
        if !std::mem::replace(&mut self.has_holder, true) {
            self.principal_memory().add_holder(connection());
        }
        let (mut max, max_total) = (self.memory.max_per_principal, self.memory.max_total);
        loop {
            let Err(exhausted) = self.grow_within(missing, max, max_total) else { return true };
            let grace_start = monotonic_ms().saturating_sub(UNREAD_GRACE_MS);
            let unread_before = if exhausted == ExhaustedLimit::Total { since } else { grace_start };
            if self.principal_memory().close_unread(exhausted, missing, unread_before) {
                continue;
            }
            if exhausted == ExhaustedLimit::Total || since < grace_start {
                return false;
            }
            // No holder is beyond its grace yet, so for now only the total limit applies.
            max = usize::MAX;
        }
    }

    /// Releases bytes if the share is more than one step larger than needed. Returns the number of missing bytes.
    fn release_excess(&mut self, bytes: usize) -> usize {
        let target = bytes.div_ceil(GROWTH_STEP) * GROWTH_STEP;
        if target + GROWTH_STEP < self.bytes {
            self.shrink_to(target);
        }
        target.saturating_sub(self.bytes)
    }

    fn principal_memory(&mut self) -> &PrincipalMemory {
        self.principal_memory.get_or_insert_with(|| self.memory.principal_memory(&self.principal))
    }

    fn grow_within(&mut self, bytes: usize, max: usize, max_total: usize) -> Result<(), ExhaustedLimit> {
        if bytes > 0 {
            self.principal_memory().take(bytes, max, max_total)?;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Releases memory until the share has at most `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let Some(released) = self.bytes.checked_sub(bytes).filter(|released| *released > 0) else { return };
        self.bytes = bytes;
        self.principal_memory().release(released);
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_per_principal_and_dropped_share_is_released() {
        let memory = MemoryBudget::new(100, 1000);
        let alice = memory.take("alice", 60).unwrap();
        assert_eq!(memory.take("alice", 41).err().unwrap().kind, ErrorKind::Overloaded);
        let bob = memory.take("bob", 100).unwrap();
        let more = memory.take("alice", 40).unwrap();
        assert_eq!((memory.used_by("alice"), memory.used_by("bob")), (100, 100));
        drop((alice, bob));
        assert_eq!((memory.used_by("alice"), memory.used_by("bob")), (40, 0));
        drop(more);
        assert!(memory.principals.lock().is_empty());
    }

    #[test]
    fn share_grows_and_shrinks_within_limit() {
        let memory = MemoryBudget::new(100, 100);
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
    fn replay_frames_take_at_most_half_of_limit() {
        let memory = MemoryBudget::new(10 * GROWTH_STEP, 10 * GROWTH_STEP);
        let mut replay = memory.take("alice", 0).unwrap();
        assert!(replay.cover_replay(1) && replay.cover_replay(GROWTH_STEP) && replay.cover_replay(5 * GROWTH_STEP));
        assert!(!replay.cover_replay(5 * GROWTH_STEP + 1));
        let rest = memory.take("alice", 5 * GROWTH_STEP).unwrap();
        assert!(replay.cover_replay(0));
        assert_eq!(memory.used_by("alice"), rest.bytes());
        assert!(!replay.cover_replay(1), "half of the limit is used by others");
    }

    /// A connection whose peer has read nothing since `since`.
    struct SilentConnection {
        since: u64,
        share: Mutex<Option<MemoryShare>>,
    }

    impl SilentConnection {
        fn new(memory: &Arc<MemoryBudget>, principal: &str, bytes: usize, since: u64) -> Arc<Self> {
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

    impl UnreadHolder for SilentConnection {
        fn unread_since(&self) -> Option<u64> {
            (!self.is_closed()).then_some(self.since)
        }

        fn close(&self) -> bool {
            *self.share.lock() = None;
            true
        }
    }

    fn no_connection() -> WeakHolder {
        Weak::<SilentConnection>::new()
    }

    #[test]
    fn total_limit_applies_across_principals() {
        let memory = MemoryBudget::new(100, 150);
        let _alice = memory.take("alice", 100).unwrap();
        let exhausted = memory.take("bob", 51).err().unwrap();
        assert_eq!((exhausted.kind, exhausted.data["limit"].as_u64()), (ErrorKind::Overloaded, Some(150)));
        assert_eq!((memory.used_by("bob"), memory.used_total()), (0, 100));
        let bob = memory.take("bob", 50).unwrap();
        drop(bob);
        assert_eq!(memory.used_total(), 100);
        // A total limit below the principal's limit is raised to it.
        assert!(MemoryBudget::new(100, 1).take("alice", 100).is_ok());
    }

    #[test]
    fn connection_left_unread_for_longest_is_closed_first() {
        let memory = MemoryBudget::new(4 * GROWTH_STEP, 4 * GROWTH_STEP);
        let recent = monotonic_ms();
        let silent = [3, 7, 5].map(|age| SilentConnection::new(&memory, "alice", GROWTH_STEP, recent - age));
        let assert_closed =
            |expected: [bool; 3]| assert_eq!(silent.each_ref().map(|silent| silent.is_closed()), expected);
        let mut share_of_alice = memory.share("alice");
        assert!(share_of_alice.cover_messages(GROWTH_STEP, recent, no_connection));
        assert_closed([false, false, false]);
        assert!(share_of_alice.cover_messages(2 * GROWTH_STEP, recent, no_connection));
        assert_closed([false, true, false]);
        // If the connection itself was left unread for longest, it has to be closed.
        assert!(!share_of_alice.cover_messages(3 * GROWTH_STEP, recent - 6, no_connection));
        assert_closed([false, true, false]);
        assert!(share_of_alice.cover_messages(3 * GROWTH_STEP, recent, no_connection));
        assert_closed([false, true, true]);
        // Connections of other principals may be closed, too.
        let mut share_of_bob = memory.share("bob");
        assert!(share_of_bob.cover_messages(GROWTH_STEP, recent, no_connection));
        assert_closed([true, true, true]);
        assert_eq!(memory.used_total(), 4 * GROWTH_STEP);
    }

    #[test]
    fn simultaneous_long_answers_close_no_connection_within_total() {
        let memory = MemoryBudget::new(2 * GROWTH_STEP, 6 * GROWTH_STEP);
        let silent = SilentConnection::new(&memory, "alice", 2 * GROWTH_STEP, monotonic_ms());
        let mut share_of_alice = memory.share("alice");
        assert!(share_of_alice.cover_messages(4 * GROWTH_STEP, monotonic_ms(), no_connection));
        assert!(!silent.is_closed());
        assert_eq!(memory.used_by("alice"), 6 * GROWTH_STEP);
        assert!(!memory.share("alice").grow(1), "bytes other than messages stay within the principal's limit");
    }
}
