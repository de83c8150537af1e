//! Limits the concurrent calls of an upstream, and the calls that wait.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The slots for concurrent calls, and the queue of calls that wait for a slot.
#[derive(Debug)]
pub struct CallSlots {
    permits: Semaphore,
    max: usize,
    max_queue: usize,
    waiting: AtomicUsize,
}

/// The reason why a call gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The queue is full.
    QueueFull,
    /// No slot became free in time.
    Timeout,
}

impl CallSlots {
    #[must_use]
    pub fn new(max: usize, max_queue: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self { permits: Semaphore::new(max), max, max_queue, waiting: AtomicUsize::new(0) }
    }

    /// Acquires a slot. Waits for at most `max_wait`, in order of arrival.
    ///
    /// # Errors
    /// See [`NoSlot`].
    pub async fn acquire(&self, max_wait: Duration) -> Result<SemaphorePermit<'_>, NoSlot> {
        if let Ok(slot) = self.permits.try_acquire() {
            return Ok(slot);
        }
        let _waiting = self.enqueue()?;
        match tokio::time::timeout(max_wait, self.permits.acquire()).await {
            Ok(Ok(slot)) => Ok(slot),
            _ => Err(NoSlot::Timeout),
        }
    }

    /// Joins the queue of calls that wait for a slot here or for a link of their own.
    ///
    /// # Errors
    /// [`NoSlot::QueueFull`]
    pub fn enqueue(&self) -> Result<CounterGuard<'_>, NoSlot> {
        let waiting = CounterGuard::new(&self.waiting);
        if self.queued() > self.max_queue { Err(NoSlot::QueueFull) } else { Ok(waiting) }
    }

    /// Returns the number of calls in flight.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.max.saturating_sub(self.permits.available_permits())
    }

    #[must_use]
    pub fn queued(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Keeps a counter incremented until the guard is dropped.
#[derive(Debug)]
pub struct CounterGuard<'a>(&'a AtomicUsize);

impl<'a> CounterGuard<'a> {
    pub fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for CounterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queue_is_bounded_and_times_out() {
        let call_slots = CallSlots::new(1, 1);
        let first = call_slots.acquire(Duration::ZERO).await.unwrap();
        let (second, third) =
            tokio::join!(call_slots.acquire(Duration::from_secs(5)), call_slots.acquire(Duration::from_secs(5)));
        assert_eq!(second.unwrap_err(), NoSlot::Timeout);
        assert_eq!(third.unwrap_err(), NoSlot::QueueFull);
        assert_eq!((call_slots.in_use(), call_slots.queued()), (1, 0));
        let (next, ()) = tokio::join!(call_slots.acquire(Duration::from_secs(5)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first);
        });
        assert!(next.is_ok());
        assert_eq!((call_slots.in_use(), call_slots.queued()), (1, 0));
    }
}
