//! Counts the bytes that the gateway keeps for each principal beyond its requests: what clients say of themselves,
//! subscriptions, tasks, frames for those who come back.
//!
//! It counts where something is kept or let go, never on the way of a call that keeps nothing.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use countersign_protocol::{ErrorKind, McpError};

/// Bytes by which what covers much grows and shrinks.
const STEP: usize = 16 << 10;

/// What each principal has of `limits.principal_memory`.
pub struct Memory {
    /// Bytes for each principal.
    max: usize,
    /// Of those who have any.
    taken: Mutex<HashMap<Arc<str>, usize>>,
}

impl Memory {
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// A principal's, of nothing yet.
    #[must_use]
    pub fn share(self: &Arc<Self>, principal: &str) -> Share {
        Share { memory: Arc::clone(self), principal: principal.into(), bytes: 0 }
    }

    /// Takes so many bytes for a principal; given back when dropped.
    ///
    /// # Errors
    /// `OVERLOADED` where it has no room for them.
    pub fn take(self: &Arc<Self>, principal: &str, bytes: usize) -> Result<Share, McpError> {
        let mut share = self.share(principal);
        if share.grow(bytes) {
            return Ok(share);
        }
        let why = "the gateway keeps as much for this principal as it may (limits.principal_memory); end sessions, \
                   subscriptions or tasks that are no longer needed";
        Err(McpError::new(ErrorKind::Overloaded, why).with("limit", self.max as u64))
    }

    /// What a principal has taken.
    #[must_use]
    pub fn of(&self, principal: &str) -> usize {
        self.taken.lock().get(principal).copied().unwrap_or_default()
    }
}

/// Bytes of one principal.
pub struct Share {
    memory: Arc<Memory>,
    principal: Arc<str>,
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
        self.grow_within(bytes, self.memory.max)
    }

    /// Makes it fit so many bytes, in steps; `false` where there is no room. It is for what can be forgotten when there
    /// is none, and takes no more than half of what there is: the rest is for what cannot.
    #[must_use]
    pub fn cover(&mut self, bytes: usize) -> bool {
        let wanted = bytes.div_ceil(STEP) * STEP;
        if wanted > self.bytes {
            return self.grow_within(wanted - self.bytes, self.memory.max / 2);
        }
        if wanted + 2 * STEP < self.bytes {
            self.shrink_to(wanted);
        }
        true
    }

    fn grow_within(&mut self, bytes: usize, max: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut taken = self.memory.taken.lock();
        let all = taken.get(&self.principal).copied().unwrap_or_default();
        if bytes > max.saturating_sub(all) {
            return false;
        }
        taken.insert(Arc::clone(&self.principal), all + bytes);
        self.bytes += bytes;
        true
    }

    /// Gives back all but so many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let Some(back) = self.bytes.checked_sub(bytes).filter(|back| *back > 0) else { return };
        self.bytes = bytes;
        let mut taken = self.memory.taken.lock();
        if let Some(all) = taken.get_mut(&self.principal) {
            *all -= back.min(*all);
            if *all == 0 {
                taken.remove(&self.principal);
            }
        }
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
        let memory = Memory::new(100);
        let alice = memory.take("alice", 60).unwrap();
        assert_eq!(memory.take("alice", 41).err().unwrap().kind, ErrorKind::Overloaded);
        let bob = memory.take("bob", 100).unwrap();
        let more = memory.take("alice", 40).unwrap();
        assert_eq!((memory.of("alice"), memory.of("bob")), (100, 100));
        drop((alice, bob));
        assert_eq!((memory.of("alice"), memory.of("bob")), (40, 0));
        drop(more);
        assert!(memory.taken.lock().is_empty());
    }

    #[test]
    fn a_share_grows_and_shrinks_within_the_bound() {
        let memory = Memory::new(100);
        let mut share = memory.take("alice", 0).unwrap();
        assert!(share.grow(100));
        assert!(!share.grow(1));
        assert!(!share.grow(usize::MAX));
        share.shrink_to(30);
        assert_eq!((share.bytes(), memory.of("alice")), (30, 30));
        share.shrink_to(50);
        assert_eq!(share.bytes(), 30);
        drop(share);
        assert_eq!(memory.of("alice"), 0);
    }

    #[test]
    fn what_can_be_forgotten_leaves_half_to_what_cannot() {
        let memory = Memory::new(10 * STEP);
        let mut ring = memory.take("alice", 0).unwrap();
        assert!(ring.cover(1) && ring.cover(STEP) && ring.cover(5 * STEP));
        assert!(!ring.cover(5 * STEP + 1));
        let rest = memory.take("alice", 5 * STEP).unwrap();
        assert!(ring.cover(0));
        assert_eq!(memory.of("alice"), rest.bytes());
        assert!(!ring.cover(1), "there is no half left");
    }
}
