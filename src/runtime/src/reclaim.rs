//! Makes this thread take back what other threads have freed of its memory, and give it back to the system.
//!
//! The allocator of the program (mimalloc) leaves what one thread allocated and another one freed to the first, which
//! finds it when it allocates again; and what is free goes back to the system a moment later, at the next occasion. A
//! thread that rests has none: after 35 proposals of 7 MiB, the threads that had handled them kept 500 MB
//! (`scripts/memory proposals`). So who makes something large calls [`collect_after_large`], or [`made`] on a thread that runs no
//! tasks, which then has a [`round`] after each [`pause`].

use std::{cell::Cell, hint::black_box, time::Duration};

use actix::Arbiter;

/// About as long as what was made lives, and longer than the allocator waits before it gives something back.
const ROUND_INTERVAL: Duration = Duration::from_millis(150);

/// Fewer bytes than that are not worth a round.
const MIN_TRACKED_BYTES: usize = 256 << 10;

/// What is freed is collected in one round and given back in the next.
const COLLECTION_ROUNDS: u8 = 2;

/// When threads that ran something large aside (`aside`) have ended, and left what they had to others.
const POOL_THREAD_LIFETIME: Duration = Duration::from_secs(12);

/// A thread's heap is tidied up once in so many allocations of more than a KiB (`mi_option_generic_collect`, and what
/// it may be late). There is a function for it, too, which only unsafe code can call.
const ALLOCATIONS: usize = 10_100;
const ALLOCATION_BYTES: usize = 2 << 10;

/// What is free in a segment (32 MiB) goes back to the system when something else is freed there, a moment later: so many
/// allocations of so many bytes, which nobody writes to, take what is free in all of them.
const SEGMENT_ALLOCATIONS: usize = 64;
const SEGMENT_ALLOCATION_BYTES: usize = 512 << 10;

thread_local! {
    /// Rounds that are left, and whether a task is to run them.
    static ROUNDS_LEFT: Cell<u8> = const { Cell::new(0) };
    static HAS_TASK: Cell<bool> = const { Cell::new(false) };
}

/// Collects what was freed of this thread's memory, in a fraction of a millisecond.
pub fn collect() {
    for _ in 0..ALLOCATIONS {
        black_box(Vec::<u8>::with_capacity(ALLOCATION_BYTES));
    }
    let spans: [Vec<u8>; SEGMENT_ALLOCATIONS] = std::array::from_fn(|_| Vec::with_capacity(SEGMENT_ALLOCATION_BYTES));
    black_box(spans);
}

/// This thread has made or freed something large: collects in a moment, and again. Does nothing on a thread that is not
/// one of an actix system.
pub fn collect_after_large() {
    // By its handle: a task of this thread may run outside of where others can be spawned directly.
    let Some(thread) = Arbiter::try_current() else { return };
    ROUNDS_LEFT.set(COLLECTION_ROUNDS);
    if !HAS_TASK.replace(true) {
        thread.spawn(async {
            while let Some(pause) = pause() {
                tokio::time::sleep(pause).await;
                round();
            }
            HAS_TASK.set(false);
            tokio::time::sleep(POOL_THREAD_LIFETIME).await;
            collect();
        });
    }
}

/// This thread is about to make something large: what it made before, if that was a moment ago, may be free by now.
pub fn collect_before_large() {
    if ROUNDS_LEFT.get() > 0 {
        collect();
    }
}

/// This thread, which runs no tasks, has made something of so many bytes.
pub fn made(bytes: usize) {
    if bytes > MIN_TRACKED_BYTES {
        ROUNDS_LEFT.set(COLLECTION_ROUNDS);
    }
}

/// How long until the next [`round`], if there is one.
#[must_use]
pub fn pause() -> Option<Duration> {
    (ROUNDS_LEFT.get() > 0).then_some(ROUND_INTERVAL)
}

/// Collects after a [`pause`].
pub fn round() {
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
        assert_eq!(ROUNDS_LEFT.get(), COLLECTION_ROUNDS, "and begins anew");
    }
}
