//! The bytes of bodies and messages that are on their way in or being answered: of one connection, and of all together.
//!
//! They are counted as they come. Where there is no room for more, no more is read, and the peer has to wait; who waits
//! too long is told that the gateway is overloaded. What is counted is given back with the last of what was counted for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;

use countersign_protocol::{ErrorKind, McpError};

/// Bytes of each connection that are not counted in the sum of all: as many as its buffers may hold anyway.
const EXEMPT_BYTES: usize = 64 << 10;

/// Lines and messages that come whole in so few bytes are not counted at all.
pub const SMALL: usize = 1024;

/// The bytes that all connections hold together.
pub struct Inflow {
    room: Semaphore,
    /// Bytes of all, and of one connection.
    max: usize,
    max_connection: usize,
    patience: Duration,
}

impl Inflow {
    /// Bounds the bytes of all connections and of each one; `patience` is how long a reader waits for room.
    #[must_use]
    pub fn new(max: usize, max_connection: usize, patience: Duration) -> Arc<Self> {
        let max = max.min(Semaphore::MAX_PERMITS);
        let max_connection = max_connection.min(Semaphore::MAX_PERMITS);
        Arc::new(Self { room: Semaphore::new(max), max, max_connection, patience })
    }

    /// Bytes that count in the sum of all.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.max.saturating_sub(self.room.available_permits())
    }

    /// Opens the account of one more connection.
    #[must_use]
    pub fn intake(self: &Arc<Self>) -> Arc<Intake> {
        let room = Semaphore::new(self.max_connection);
        Arc::new(Intake { all: Arc::clone(self), room, held: AtomicUsize::new(0) })
    }
}

/// The bytes that one connection holds.
pub struct Intake {
    all: Arc<Inflow>,
    room: Semaphore,
    held: AtomicUsize,
}

impl Intake {
    /// Nothing yet.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> Held {
        Held { of: Arc::clone(self), bytes: 0, counted: 0 }
    }
}

/// Bytes that are held; given back when dropped.
pub struct Held {
    of: Arc<Intake>,
    bytes: usize,
    /// Those of them that count in the sum of all.
    counted: usize,
}

impl Held {
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds so many more, once there is room for them.
    ///
    /// # Errors
    /// `OVERLOADED` after `transports.http.body_wait`.
    pub async fn grow(&mut self, bytes: usize) -> Result<(), McpError> {
        if self.try_grow(bytes) {
            return Ok(());
        }
        let of = Arc::clone(&self.of);
        let held = self.bytes;
        let waited = tokio::time::timeout(of.all.patience, async {
            take(&of.room, bytes).await;
            // It counts for the connection while it waits for all, or several of its bodies would count none.
            self.bytes += bytes;
            let before = of.held.fetch_add(bytes, Ordering::Relaxed);
            let counted = counted_bytes(before, bytes);
            take(&of.all.room, counted).await;
            self.counted += counted;
        });
        waited.await.map_err(|_| {
            // Its connection had room where the bytes were counted already.
            let max = if self.bytes == held { of.all.max_connection } else { of.all.max };
            let why = "there is no room for the body at the moment (transports.http.max_body_bytes and \
                       max_connection_body_bytes); try again";
            McpError::new(ErrorKind::Overloaded, why).with("limit", max as u64).with("retryAfter", 1)
        })
    }

    /// Holds so many more if there is room for them now.
    #[must_use]
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let of = &*self.of;
        let Some(own) = permits(bytes).and_then(|n| of.room.try_acquire_many(n).ok()) else { return false };
        let before = of.held.fetch_add(bytes, Ordering::Relaxed);
        let counted = counted_bytes(before, bytes);
        if counted > 0 {
            let Some(all) = permits(counted).and_then(|n| of.all.room.try_acquire_many(n).ok()) else {
                of.held.fetch_sub(bytes, Ordering::Relaxed);
                return false;
            };
            all.forget();
        }
        own.forget();
        self.bytes += bytes;
        self.counted += counted;
        true
    }
}

/// Returns how many of `bytes` more bytes count in the total.
fn counted_bytes(before: usize, bytes: usize) -> usize {
    bytes.min((before + bytes).saturating_sub(EXEMPT_BYTES))
}

fn permits(bytes: usize) -> Option<u32> {
    u32::try_from(bytes).ok()
}

/// Takes permits for good. One by one acquisition of many is fair: who waits for much is not passed by for ever.
async fn take(room: &Semaphore, mut bytes: usize) {
    while bytes > 0 {
        let step = permits(bytes).unwrap_or(u32::MAX);
        match room.acquire_many(step).await {
            Ok(permit) => permit.forget(),
            // It is never closed.
            Err(_) => return std::future::pending().await,
        }
        bytes -= usize::try_from(step).unwrap_or(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.of.held.fetch_sub(self.bytes, Ordering::Relaxed);
            self.of.room.add_permits(self.bytes);
        }
        if self.counted > 0 {
            self.of.all.room.add_permits(self.counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const KIB: usize = 1024;

    fn inflow(max: usize, max_connection: usize) -> Arc<Inflow> {
        Inflow::new(max, max_connection, Duration::from_secs(5))
    }

    #[test]
    fn a_little_of_each_connection_is_free_and_the_rest_counts() {
        let all = inflow(100 * KIB, 1000 * KIB);
        let intakes: Vec<_> = (0..10).map(|_| all.intake()).collect();
        let mut free: Vec<_> = intakes.iter().map(Intake::hold).collect();
        assert!(free.iter_mut().all(|held| held.try_grow(EXEMPT_BYTES)));
        assert_eq!(all.room.available_permits(), 100 * KIB);
        let mut more = intakes[0].hold();
        assert!(more.try_grow(60 * KIB));
        assert!(!intakes[1].hold().try_grow(41 * KIB));
        assert!(intakes[1].hold().try_grow(40 * KIB));
        assert_eq!(all.room.available_permits(), 40 * KIB);
        drop((more, free));
        assert_eq!(all.room.available_permits(), 100 * KIB);
        assert!(intakes.iter().all(|intake| intake.room.available_permits() == 1000 * KIB));
    }

    #[test]
    fn one_connection_does_not_have_it_all() {
        let all = inflow(1000 * KIB, 100 * KIB);
        let (one, other) = (all.intake(), all.intake());
        let mut held = one.hold();
        assert!(held.try_grow(100 * KIB));
        assert!(!one.hold().try_grow(1));
        assert!(other.hold().try_grow(100 * KIB));
        drop(held);
        assert!(one.hold().try_grow(100 * KIB));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_is_told_of_the_bound_that_is_reached() {
        let told = async |held: &mut Held, bytes| held.grow(bytes).await.unwrap_err().data["limit"].as_u64();
        let all = inflow(100 * KIB, 200 * KIB);
        let (one, other) = (all.intake(), all.intake());
        let mut first = one.hold();
        assert!(first.try_grow(EXEMPT_BYTES + 90 * KIB));
        // Its connection has room for this, and nearly none is left then.
        assert_eq!(told(&mut other.hold(), 150 * KIB).await, Some(100 * KIB as u64));
        assert_eq!(told(&mut one.hold(), 150 * KIB).await, Some(200 * KIB as u64));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_room_when_there_is_some_and_is_told_when_there_is_none() {
        let all = inflow(100 * KIB, 1000 * KIB);
        let (one, other) = (all.intake(), all.intake());
        let mut first = one.hold();
        assert!(first.try_grow(EXEMPT_BYTES + 100 * KIB));
        let mut second = other.hold();
        let error = second.grow(EXEMPT_BYTES + KIB).await.unwrap_err();
        assert_eq!((error.kind, error.data["retryAfter"].as_u64()), (ErrorKind::Overloaded, Some(1)));
        // It gives back what it had got until then.
        drop(second);
        assert_eq!((other.room.available_permits(), other.held.load(Ordering::Relaxed)), (1000 * KIB, 0));
        let mut third = other.hold();
        let (grown, ()) = tokio::join!(third.grow(EXEMPT_BYTES + KIB), async { drop(first) });
        grown.unwrap();
        assert_eq!((third.bytes(), all.room.available_permits()), (EXEMPT_BYTES + KIB, 99 * KIB));
    }
}
