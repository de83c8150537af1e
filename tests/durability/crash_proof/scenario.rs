//! The scenarios of a change: what its agent and reviewers do, and the scenarios that bring a gateway past a named point.

use super::chance::Chance;

/// The intended scenario of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Approve,
    Edit,
    /// Approved, undone, and then approved again, rejected, or left.
    Undo,
    Reject,
    Withdraw,
    Leave,
    /// Its target changes before the approval.
    Move,
    /// Its target changes after the approval, within the undo time.
    MoveLate,
    /// Its target changes, and a reviewer refreshes the diff.
    Refresh,
    /// Nobody decides in time.
    Expire,
    /// Its answer is lost, and a person settles the outcome.
    Settle,
    /// Proposed as a task, and cancelled as one or approved.
    Task,
    /// A standing rule is created from it, used, and revoked.
    Rule,
    /// A plan of many calls instead of one change.
    Plan,
    /// A plan of many calls, of which one step is rejected.
    RejectedPlan,
}

impl Scenario {
    pub fn any(chance: &mut Chance) -> Self {
        match chance.below(42) {
            0..16 => Self::Approve,
            16..20 => Self::Edit,
            20..22 => Self::Undo,
            22..25 => Self::Reject,
            25..27 => Self::Withdraw,
            27 => Self::Leave,
            28..30 => Self::Move,
            30 => Self::MoveLate,
            31..33 => Self::Refresh,
            33 => Self::Expire,
            34..36 => Self::Settle,
            36..38 => Self::Task,
            38..40 => Self::Rule,
            40 => Self::Plan,
            _ => Self::RejectedPlan,
        }
    }

    /// Returns the scenario that brings a gateway past the point; `None` if every scenario does.
    pub fn reaching_point(point: &str) -> Option<Self> {
        Some(match point {
            "before_edit" | "after_edit" => Self::Edit,
            "before_undo" | "after_undo" => Self::Undo,
            "before_stale" | "between_stale_and_refresh" | "after_refresh" => Self::Move,
            "before_withdraw" | "after_withdraw" => Self::Withdraw,
            "before_expire" | "after_expire" => Self::Expire,
            "before_settle" | "after_settle" => Self::Settle,
            "before_task_answer" => Self::Task,
            "before_plan_stop" | "after_plan_stop" => Self::RejectedPlan,
            point if point.contains("_rule_") => Self::Rule,
            _ => return None,
        })
    }

    /// Returns the server's name of the tool for this scenario.
    pub fn server(self, chance: &mut Chance) -> String {
        match self {
            Self::Undo => "undo".into(),
            Self::Move | Self::MoveLate | Self::Refresh => "doc".into(),
            Self::Expire => "brief".into(),
            Self::Rule => "ruled".into(),
            _ => format!("count{}", chance.below(super::world::UPSTREAM_NAMES as u64)),
        }
    }

    /// Returns how the upstream answers.
    pub fn mode(self, chance: &mut Chance) -> &'static str {
        match (self, chance.below(20)) {
            (Self::Settle, _) => "lost",
            (Self::Rule, _) | (_, 0..11) => "ok",
            (_, 11..15) => "slow",
            (_, 15) => "long",
            (_, 16..18) => "fail",
            _ => "lost",
        }
    }
}
