//! The terms that a rule sets for the review of a call. They are copied into the change when it is proposed, so that
//! later configurations do not affect it.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

/// The state of a change after nobody decided on it in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OnExpiry {
    /// The change is `expired`, and the agent may propose it again.
    #[default]
    Expire,
    /// The change is `rejected` by the system.
    Reject,
}

/// The answer to the caller of a reviewed tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OnReview {
    /// The call returns at once and reports that the change is pending.
    #[default]
    Return,
    /// The call stays open for [`Terms::hold_for`] and returns the decision if there is one.
    Hold,
    /// The call returns a task. Clients without task support cannot propose.
    Task,
}

/// Selects the reviewers who may approve arguments that a reviewer has edited.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
    ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Editing {
    /// Every reviewer may approve. Editors may not approve if more than one approval is required.
    #[default]
    Allowed,
    /// Every reviewer except the editors may approve.
    Other,
    /// Nobody may edit the arguments.
    Forbidden,
}

/// The terms of a review. Times are in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// Roles and groups (`policy.groups`) whose members may decide. Empty means every reviewer.
    #[schema(required)]
    pub reviewers: Vec<String>,
    /// The number of required approvals, each by another owner.
    #[schema(required, minimum = 1)]
    pub quorum: u32,
    /// Time until the change expires, if it is not `changes.expire_after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<u64>,
    #[schema(required)]
    pub on_expiry: OnExpiry,
    /// A decision requires a comment.
    #[schema(required)]
    pub require_comment: bool,
    /// Tells whether reviewers may edit the arguments, and whether editors may then approve.
    #[schema(required)]
    pub edit: Editing,
    #[schema(required)]
    pub on_review: OnReview,
    /// The longest time that a held call stays open.
    #[schema(required)]
    pub hold_for: u64,
    /// The time during which an approval can be undone before the change runs.
    #[schema(required)]
    pub undo_for: u64,
    /// Only changes whose preview shows live state can be approved.
    // `PreviewNote::is_live` decides.
    #[schema(required)]
    pub preview_required: bool,
    /// Clients that can show a URL are asked to open the page of the change.
    #[schema(required)]
    pub open_page: bool,
    /// Questions of the tool during the approved call are passed to the proposer's client; otherwise they are declined.
    /// The answers are input that no reviewer has seen.
    #[schema(required)]
    pub questions: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            reviewers: Vec::new(),
            quorum: 1,
            expire_after: None,
            on_expiry: OnExpiry::Expire,
            require_comment: false,
            edit: Editing::Allowed,
            on_review: OnReview::Return,
            hold_for: 45,
            undo_for: 0,
            preview_required: false,
            open_page: false,
            questions: false,
        }
    }
}

impl Terms {
    /// Returns `true` if a single approval suffices and does not require a look at the preview of each call.
    #[must_use]
    pub const fn single_approval_suffices(&self) -> bool {
        self.quorum <= 1 && !self.preview_required
    }

    /// Returns `true` if approvals by editors of the arguments count.
    #[must_use]
    pub const fn editors_may_approve(&self) -> bool {
        self.quorum < 2 && matches!(self.edit, Editing::Allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editors_may_approve_only_alone_and_if_allowed() {
        let counts = |edit, quorum| Terms { edit, quorum, ..Terms::default() }.editors_may_approve();
        assert!(counts(Editing::Allowed, 1) && !counts(Editing::Allowed, 2) && !counts(Editing::Other, 1));
    }
}
