//! The names of the points at which the gateway can end itself (`countersign_runtime::crash`).

/// All crash points, in the order of their subjects.
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
    "before_decide",
    "after_decide",
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
    // A step that is withdrawn because its plan has stopped.
    "before_plan_stop",
    "after_plan_stop",
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
