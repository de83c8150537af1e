//! Named points at which a test can end the process at once, like a crash or a power cut.
//!
//! They do nothing in release builds unless compiled with `--cfg crash_points`, and nothing anywhere unless
//! `COUNTERSIGN_CRASH_AT` names the point. With `COUNTERSIGN_CRASH_AFTER=n` the n-th pass crashes (the first is 1).

/// All crash points. The crash proof (`tests/durability/crash_proof`) ends a gateway at each.
pub const CRASH_POINTS: &[&str] = &[
    // Every transition: in the store's transaction after the change was written and before its audit entry, before and
    // after the commit, and before and after the announcement.
    "within_transaction",
    "before_commit",
    "after_commit",
    "between_commit_and_announce",
    "after_announce",
    // A proposal: after its preview, once it is durable, and before the answer as a task.
    "before_propose",
    "after_propose",
    "before_task_answer",
    // A decision: before the target is checked, and once it is durable.
    "before_approve",
    "after_approve",
    // A withdrawn approval.
    "before_undo",
    "after_undo",
    // An edit: after its preview, and once it is durable.
    "before_edit",
    "after_edit",
    // A changed target: after the check, after the old diff was rejected and before the new one is shown, and after
    // that.
    "before_stale",
    "between_stale_and_refresh",
    "after_refresh",
    // Changes that end without running.
    "before_withdraw",
    "after_withdraw",
    "before_expire",
    "after_expire",
    // Of an outcome that a person settles.
    "before_settle",
    "after_settle",
    // A run.
    "before_claim",
    "after_claim",
    "after_call",
    "before_result",
    "after_result",
    // Standing rules: recorded but not in force, in force, and used before the call is made.
    "before_rule_created",
    "between_rule_and_routes",
    "after_rule_created",
    "before_rule_revoked",
    "after_rule_revoked",
    "after_rule_used",
    // Webhooks: before and after events are accepted, and before and after a delivery is recorded.
    "before_take_in",
    "after_take_in",
    "after_delivery",
    "after_delivery_noted",
    // The removal of old data.
    "before_prune_commit",
    "after_prune_commit",
];

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
