//! Named points at which a test can end the process at once, like a crash or a power cut.
//!
//! A point ends the process only if `COUNTERSIGN_CRASH_AT` names it, and in release builds only if they were compiled with
//! `--cfg crash_points`. With `COUNTERSIGN_CRASH_AFTER=n`, the process ends when it reaches the point for the n-th time. With
//! `COUNTERSIGN_CRASH_HANGS=1`, the thread hangs at the point instead.
//! The crash proof (`tests/durability/crash_proof/points.rs`) lists all points and ends a gateway at each.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

/// Ends the process here if a test asked for it.
#[inline]
pub fn crash_point(point: &str) {
    static CRASH_POINT: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
    if !cfg!(any(debug_assertions, crash_points)) {
        return;
    }
    let armed = CRASH_POINT.get_or_init(|| {
        let point = std::env::var("COUNTERSIGN_CRASH_AT").ok()?;
        let after = std::env::var("COUNTERSIGN_CRASH_AFTER").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        Some((point, AtomicU64::new(after)))
    });
    if let Some((armed_point, remaining)) = armed
        && armed_point == point
        && remaining.fetch_sub(1, Ordering::Relaxed) == 1
    {
        while std::env::var_os("COUNTERSIGN_CRASH_HANGS").is_some() {
            std::thread::park();
        }
        // `exit` would flush, unlock and close files, which a crash does not.
        std::process::abort();
    }
}
