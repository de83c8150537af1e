//! Bounds the bytes of request bodies and messages that are being read or answered: per connection and in total.
//!
//! Bytes are reserved as they are read. Without room, reading stops and the peer has to wait. A peer that waits too
//! long gets an `OVERLOADED` error. A reservation is released when the last user of its bytes drops it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;

use countersign_protocol::{ErrorKind, McpError};

/// The bytes of each connection's bodies that do not count in the total, because the connection's buffers may hold as
/// many anyway.
const EXEMPT_BODY_BYTES: usize = 64 << 10;

/// The size up to which a complete line or message is not counted at all.
pub const UNCOUNTED_MESSAGE_BYTES: usize = 1024;

/// The budget of bytes for all connections together.
pub struct BodyBudget {
    free_bytes: Semaphore,
    /// The maximum number of bytes of all connections.
    max: usize,
    /// The maximum number of bytes of one connection.
    max_per_connection: usize,
    max_wait: Duration,
}

impl BodyBudget {
    /// Creates the budget for all connections and for each one. A reader waits for room for at most `max_wait`.
    pub fn new(max: usize, max_per_connection: usize, max_wait: Duration) -> Arc<Self> {
        let max = max.min(Semaphore::MAX_PERMITS);
        let max_per_connection = max_per_connection.min(Semaphore::MAX_PERMITS);
        Arc::new(Self { free_bytes: Semaphore::new(max), max, max_per_connection, max_wait })
    }

    /// Returns the reserved bytes that count in the total.
    pub fn reserved_bytes(&self) -> usize {
        self.max.saturating_sub(self.free_bytes.available_permits())
    }

    /// Creates the budget of one more connection.
    #[must_use]
    pub fn connection_budget(self: &Arc<Self>) -> Arc<ConnectionBudget> {
        let free_bytes = Semaphore::new(self.max_per_connection);
        Arc::new(ConnectionBudget { total: Arc::clone(self), free_bytes, reserved: AtomicUsize::new(0) })
    }
}

/// The budget of bytes for one connection.
pub struct ConnectionBudget {
    total: Arc<BodyBudget>,
    free_bytes: Semaphore,
    reserved: AtomicUsize,
}

impl ConnectionBudget {
    /// Creates a reservation of no bytes yet.
    #[must_use]
    pub fn new_reservation(self: &Arc<Self>) -> Reservation {
        Reservation { connection: Arc::clone(self), bytes: 0, counted: 0 }
    }
}

/// Reserved bytes, which are released when this is dropped.
pub struct Reservation {
    connection: Arc<ConnectionBudget>,
    bytes: usize,
    /// The part of the bytes that counts in the total.
    counted: usize,
}

impl Reservation {
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes, and waits until there is room for them.
    ///
    /// # Errors
    /// `OVERLOADED` after `transports.http.body_wait`.
    pub async fn grow(&mut self, bytes: usize) -> Result<(), McpError> {
        if self.try_grow(bytes) {
            return Ok(());
        }
        let connection = Arc::clone(&self.connection);
        let bytes_before = self.bytes;
        let waited = tokio::time::timeout(connection.total.max_wait, async {
            take(&connection.free_bytes, bytes).await;
            // The bytes count for the connection while this waits for the total. Otherwise several bodies of one
            // connection could wait without counting.
            self.bytes += bytes;
            let before = connection.reserved.fetch_add(bytes, Ordering::Relaxed);
            let counted = counted_bytes(before, bytes);
            take(&connection.total.free_bytes, counted).await;
            self.counted += counted;
        });
        waited.await.map_err(|_| {
            // If the bytes were already counted for the connection, the total is the limit that was reached.
            let max =
                if self.bytes == bytes_before { connection.total.max_per_connection } else { connection.total.max };
            let message = "there is no room for the body at the moment (transports.http.max_body_bytes and \
                       max_connection_body_bytes); try again";
            McpError::new(ErrorKind::Overloaded, message).with("limit", max as u64).with("retryAfter", 1)
        })
    }

    /// Reserves more bytes if there is room for them now.
    #[must_use]
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let connection = &*self.connection;
        let Some(connection_permit) = permits(bytes).and_then(|n| connection.free_bytes.try_acquire_many(n).ok())
        else {
            return false;
        };
        let before = connection.reserved.fetch_add(bytes, Ordering::Relaxed);
        let counted = counted_bytes(before, bytes);
        if counted > 0 {
            let Some(total_permit) =
                permits(counted).and_then(|n| connection.total.free_bytes.try_acquire_many(n).ok())
            else {
                connection.reserved.fetch_sub(bytes, Ordering::Relaxed);
                return false;
            };
            total_permit.forget();
        }
        connection_permit.forget();
        self.bytes += bytes;
        self.counted += counted;
        true
    }
}

/// Returns how many of the additional bytes count in the total.
fn counted_bytes(before: usize, bytes: usize) -> usize {
    bytes.min((before + bytes).saturating_sub(EXEMPT_BODY_BYTES))
}

fn permits(bytes: usize) -> Option<u32> {
    u32::try_from(bytes).ok()
}

/// Takes permits permanently. The semaphore is fair, so a request for many permits is not overtaken forever.
async fn take(free_bytes: &Semaphore, mut bytes: usize) {
    while bytes > 0 {
        let step = permits(bytes).unwrap_or(u32::MAX);
        match free_bytes.acquire_many(step).await {
            Ok(permit) => permit.forget(),
            // The semaphore is never closed.
            Err(_) => return std::future::pending().await,
        }
        bytes -= usize::try_from(step).unwrap_or(bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.connection.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
            self.connection.free_bytes.add_permits(self.bytes);
        }
        if self.counted > 0 {
            self.connection.total.free_bytes.add_permits(self.counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const KIB: usize = 1024;

    fn budget(max: usize, max_per_connection: usize) -> Arc<BodyBudget> {
        BodyBudget::new(max, max_per_connection, Duration::from_secs(5))
    }

    #[test]
    fn only_bytes_beyond_exempt_ones_count_in_total() {
        let total = budget(100 * KIB, 1000 * KIB);
        let connections: Vec<_> = (0..10).map(|_| total.connection_budget()).collect();
        let mut exempt: Vec<_> = connections.iter().map(ConnectionBudget::new_reservation).collect();
        assert!(exempt.iter_mut().all(|reservation| reservation.try_grow(EXEMPT_BODY_BYTES)));
        assert_eq!(total.free_bytes.available_permits(), 100 * KIB);
        let mut more = connections[0].new_reservation();
        assert!(more.try_grow(60 * KIB));
        assert!(!connections[1].new_reservation().try_grow(41 * KIB));
        assert!(connections[1].new_reservation().try_grow(40 * KIB));
        assert_eq!(total.free_bytes.available_permits(), 40 * KIB);
        drop((more, exempt));
        assert_eq!(total.free_bytes.available_permits(), 100 * KIB);
        assert!(connections.iter().all(|connection| connection.free_bytes.available_permits() == 1000 * KIB));
    }

    #[test]
    fn one_connection_cannot_reserve_whole_total() {
        let total = budget(1000 * KIB, 100 * KIB);
        let (first, second) = (total.connection_budget(), total.connection_budget());
        let mut reservation = first.new_reservation();
        assert!(reservation.try_grow(100 * KIB));
        assert!(!first.new_reservation().try_grow(1));
        assert!(second.new_reservation().try_grow(100 * KIB));
        drop(reservation);
        assert!(first.new_reservation().try_grow(100 * KIB));
    }

    #[tokio::test(start_paused = true)]
    async fn overload_error_states_limit_that_was_reached() {
        let limit_in_error = async |reservation: &mut Reservation, bytes| {
            reservation.grow(bytes).await.unwrap_err().data["limit"].as_u64()
        };
        let total = budget(100 * KIB, 200 * KIB);
        let (first_connection, second_connection) = (total.connection_budget(), total.connection_budget());
        let mut first = first_connection.new_reservation();
        assert!(first.try_grow(EXEMPT_BODY_BYTES + 90 * KIB));
        // The second connection has room for the bytes, but the total has not.
        assert_eq!(limit_in_error(&mut second_connection.new_reservation(), 150 * KIB).await, Some(100 * KIB as u64));
        assert_eq!(limit_in_error(&mut first_connection.new_reservation(), 150 * KIB).await, Some(200 * KIB as u64));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_reader_gets_released_room_or_overload_error() {
        let total = budget(100 * KIB, 1000 * KIB);
        let (first_connection, second_connection) = (total.connection_budget(), total.connection_budget());
        let mut first = first_connection.new_reservation();
        assert!(first.try_grow(EXEMPT_BODY_BYTES + 100 * KIB));
        let mut second = second_connection.new_reservation();
        let error = second.grow(EXEMPT_BODY_BYTES + KIB).await.unwrap_err();
        assert_eq!((error.kind, error.data["retryAfter"].as_u64()), (ErrorKind::Overloaded, Some(1)));
        // The failed reservation releases the bytes that it had reserved.
        drop(second);
        assert_eq!(
            (second_connection.free_bytes.available_permits(), second_connection.reserved.load(Ordering::Relaxed)),
            (1000 * KIB, 0)
        );
        let mut third = second_connection.new_reservation();
        let (grown, ()) = tokio::join!(third.grow(EXEMPT_BODY_BYTES + KIB), async { drop(first) });
        grown.unwrap();
        assert_eq!((third.bytes(), total.free_bytes.available_permits()), (EXEMPT_BODY_BYTES + KIB, 99 * KIB));
    }
}
