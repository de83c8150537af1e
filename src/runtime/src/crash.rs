//! Named points at which a test can make the process end at once, as a crash or a power cut would.
//!
//! Inert in release builds unless compiled with `--cfg crash_points`, and inert everywhere unless
//! `COUNTERSIGN_CRASH_AT` names the point. With `COUNTERSIGN_CRASH_AFTER=n` the n-th passage crashes (the first is 1).

/// All of them. The crash proof (`tests/durability/crash_proof`) ends a gateway at each.
pub const CRASH_POINTS: &[&str] = &[
    // Of every transition: in the store's transaction with the change written and its audit entry not, before and
    // after the commit, and around telling of it.
    "within_transaction",
    "before_commit",
    "after_commit",
    "between_commit_and_announce",
    "after_announce",
    // Of a proposal: after its preview, once it is durable, and before it is answered as a task.
    "before_propose",
    "after_propose",
    "before_task_answer",
    // Of a decision: before the target is looked at, and once it is durable.
    "before_approve",
    "after_approve",
    // Of an approval that is taken back.
    "before_undo",
    "after_undo",
    // Of an edit: after its preview, and once it is durable.
    "before_edit",
    "after_edit",
    // Of a target that moved: after it was looked at, with the old diff refused and the new one not shown, and after.
    "before_stale",
    "between_stale_and_refresh",
    "after_refresh",
    // Of what ends without running.
    "before_withdraw",
    "after_withdraw",
    "before_expire",
    "after_expire",
    // Of an outcome that a person settles.
    "before_settle",
    "after_settle",
    // Of a run.
    "before_claim",
    "after_claim",
    "after_call",
    "before_result",
    "after_result",
    // Of standing rules: on record and not in force, in force, used and the call not made.
    "before_rule_created",
    "between_rule_and_routes",
    "after_rule_created",
    "before_rule_revoked",
    "after_rule_revoked",
    "after_rule_used",
    // Of webhooks: before and after events are taken in, and around noting that one has arrived.
    "before_take_in",
    "after_take_in",
    "after_delivery",
    "after_delivery_noted",
    // Of the pruning of what is old.
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
        if let Some((armed, left)) = armed
            && armed == point
            && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            // Not `exit`: nothing may be flushed, unlocked or closed on the way.
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
