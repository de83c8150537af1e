//! How many calls an upstream gets at a time, and how many wait for a place.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit};

/// See the module's page.
#[derive(Debug)]
pub struct Places {
    free: Semaphore,
    max: usize,
    max_queue: usize,
    waiting: AtomicUsize,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Too many wait already.
    QueueFull,
    /// None came free in time.
    TooLong,
}

impl Places {
    #[must_use]
    pub fn new(max: usize, max_queue: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Semaphore::new(max), max, max_queue, waiting: AtomicUsize::new(0) }
    }

    /// Takes a place, waiting for it at most so long, in the order of arrival.
    ///
    /// # Errors
    /// See [`NoPlace`].
    pub async fn take(&self, at_most: Duration) -> Result<SemaphorePermit<'_>, NoPlace> {
        if let Ok(place) = self.free.try_acquire() {
            return Ok(place);
        }
        let _waiting = self.queue()?;
        match tokio::time::timeout(at_most, self.free.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(NoPlace::TooLong),
        }
    }

    /// One more that waits: for a place here, or for a link of its own.
    ///
    /// # Errors
    /// [`NoPlace::QueueFull`]
    pub fn queue(&self) -> Result<Waiting<'_>, NoPlace> {
        let waiting = Waiting(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.max_queue {
            return Err(NoPlace::QueueFull);
        }
        Ok(waiting)
    }

    /// Calls under way.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.max.saturating_sub(self.free.available_permits())
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Counts one that waits until it is dropped.
#[derive(Debug)]
pub struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_waiting_ends() {
        let places = Places::new(1, 1);
        let first = places.take(Duration::ZERO).await.unwrap();
        let (second, third) = tokio::join!(places.take(Duration::from_secs(5)), places.take(Duration::from_secs(5)));
        assert_eq!(second.unwrap_err(), NoPlace::TooLong);
        assert_eq!(third.unwrap_err(), NoPlace::QueueFull);
        assert_eq!((places.taken(), places.waiting()), (1, 0));
        let (next, ()) = tokio::join!(places.take(Duration::from_secs(5)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first);
        });
        assert!(next.is_ok());
        assert_eq!((places.taken(), places.waiting()), (1, 0));
    }
}
