//! Named points at which a test can end the process at once, like a crash or a power cut.
//!
//! They do nothing in release builds unless compiled with `--cfg crash_points`, and nothing anywhere unless
//! `COUNTERSIGN_CRASH_AT` names the point. With `COUNTERSIGN_CRASH_AFTER=n` the n-th pass crashes (the first is 1).
//! The crash proof (`tests/durability/crash_proof/points.rs`) lists all points and ends a gateway at each.

#[cfg(any(debug_assertions, crash_points))]
mod armed {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    pub(super) fn pass(point: &str) {
        static ARMED: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let point = std::env::var("COUNTERSIGN_CRASH_AT").ok()?;
            let after = std::env::var("COUNTERSIGN_CRASH_AFTER").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
            Some((point, AtomicU64::new(after)))
        });
        if let Some((armed, remaining)) = armed
            && armed == point
            && remaining.fetch_sub(1, Ordering::Relaxed) == 1
        {
            // Not `exit`, because nothing may be flushed, unlocked or closed.
            std::process::abort();
        }
    }
}

/// Ends the process here if a test asked for it.
#[inline]
pub fn crash_point(point: &str) {
    #[cfg(any(debug_assertions, crash_points))]
    armed::pass(point);
    #[cfg(not(any(debug_assertions, crash_points)))]
    let _ = point;
}
