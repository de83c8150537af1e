//! Collects memory of this thread that other threads have freed, and returns it to the system.
//!
//! If one thread frees memory of another, the program's allocator (mimalloc) collects it when the owning thread
//! allocates again, and returns it to the system at a still later allocation. An idle thread does neither: after 35
//! proposals of 7 MiB, their threads kept 500 MB (`scripts/memory proposals`). Code that creates large values therefore
//! calls [`collect_after_large`], or [`collect_if_large`] if their size varies. On a thread without tasks it calls
//! [`note_allocation`], and then [`run_round`] after each [`time_to_next_round`].

use std::{cell::Cell, hint::black_box, time::Duration};

use actix::Arbiter;

use crate::is_large;

/// The time between two rounds. It is about the lifetime of large values, and longer than the allocator waits before it
/// returns memory.
const ROUND_INTERVAL: Duration = Duration::from_millis(150);

/// The size in bytes above which an allocation starts the collection rounds.
const MIN_TRACKED_BYTES: usize = 256 << 10;

/// The number of rounds after a large value: the first collects freed memory, and the second returns it to the system.
const COLLECTION_ROUNDS: u8 = 2;

/// The time after which the blocking threads that `offload` used have ended, so that this thread can collect the memory
/// that they left.
const POOL_THREAD_LIFETIME: Duration = Duration::from_secs(12);

/// The allocator tidies a thread's heap once per this number of allocations above 1 KiB (`mi_option_generic_collect`,
/// with some margin). It also has a function for this, but that requires unsafe code.
const SMALL_ALLOCATIONS: usize = 10_100;
const SMALL_ALLOCATION_BYTES: usize = 2 << 10;

/// The allocator returns the free memory of a segment (32 MiB) only when something in that segment is freed later.
/// Allocating and freeing this many blocks of this size touches every segment with free memory. The blocks are never
/// written to, so they take no memory themselves.
const SEGMENT_ALLOCATIONS: usize = 64;
const SEGMENT_ALLOCATION_BYTES: usize = 512 << 10;

thread_local! {
    /// The number of remaining rounds.
    static ROUNDS_LEFT: Cell<u8> = const { Cell::new(0) };
    /// `true` while a task runs the rounds.
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

/// Collects freed memory of this thread in a fraction of a millisecond.
pub fn collect() {
    for _ in 0..SMALL_ALLOCATIONS {
        black_box(Vec::<u8>::with_capacity(SMALL_ALLOCATION_BYTES));
    }
    let segments: [Vec<u8>; SEGMENT_ALLOCATIONS] =
        std::array::from_fn(|_| Vec::with_capacity(SEGMENT_ALLOCATION_BYTES));
    black_box(segments);
}

/// Schedules collections after this thread created or freed something large. Does nothing on a thread outside of an
/// actix system.
pub fn collect_after_large() {
    // The task is spawned with the handle, because some callers run where `spawn_local` is not possible.
    let Some(thread) = Arbiter::try_current() else { return };
    ROUNDS_LEFT.set(COLLECTION_ROUNDS);
    if !IS_SCHEDULED.replace(true) {
        thread.spawn(async {
            while let Some(pause) = time_to_next_round() {
                tokio::time::sleep(pause).await;
                run_round();
            }
            IS_SCHEDULED.set(false);
            tokio::time::sleep(POOL_THREAD_LIFETIME).await;
            collect();
        });
    }
}

/// Calls [`collect_after_large`] if what this thread created or freed is large by its size.
pub fn collect_if_large(bytes: usize) {
    if is_large(bytes) {
        collect_after_large();
    }
}

/// Collects before this thread creates something large, if an earlier large value may have been freed.
pub fn collect_before_large() {
    if ROUNDS_LEFT.get() > 0 {
        collect();
    }
}

/// Records an allocation on a thread that runs no tasks.
pub fn note_allocation(bytes: usize) {
    if bytes > MIN_TRACKED_BYTES {
        ROUNDS_LEFT.set(COLLECTION_ROUNDS);
    }
}

/// Returns the time until the next [`run_round`], or `None` if none is due.
pub fn time_to_next_round() -> Option<Duration> {
    (ROUNDS_LEFT.get() > 0).then_some(ROUND_INTERVAL)
}

/// Runs a collection round.
pub fn run_round() {
    ROUNDS_LEFT.set(ROUNDS_LEFT.get().saturating_sub(1));
    collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn thread_collects_twice_after_last_large_allocation() {
        tokio::time::pause();
        collect_after_large();
        tokio::time::sleep(ROUND_INTERVAL * 3 / 2).await;
        assert_eq!(ROUNDS_LEFT.get(), 1);
        collect_after_large();
        assert_eq!(ROUNDS_LEFT.get(), COLLECTION_ROUNDS);
        tokio::time::sleep(ROUND_INTERVAL * 3).await;
        assert_eq!(ROUNDS_LEFT.get(), 0);
        collect_after_large();
        assert_eq!(ROUNDS_LEFT.get(), COLLECTION_ROUNDS, "the rounds start again");
    }
}
