//! The kinds of transitions, by which the feed and the audit trail name them.

use strum::{IntoStaticStr, VariantArray};

/// The transitions of the state machine, by their names on the feed and in the audit trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", prefix = "change.")]
pub enum EventKind {
    Created,
    Voted,
    Edited,
    Approved,
    Unapproved,
    Rejected,
    Expired,
    Withdrawn,
    Stale,
    Refreshed,
    Executing,
    #[strum(serialize = "asked")]
    QuestionAsked,
    #[strum(serialize = "answered")]
    QuestionAnswered,
    Applied,
    Failed,
    OutcomeUnknown,
    Settled,
    Verified,
}

impl EventKind {
    pub const VARIANTS: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns the name in the audit trail.
    pub fn as_str(self) -> &'static str {
        self.feed_type().trim_start_matches("change.")
    }

    /// Returns the event type on the feed.
    pub fn feed_type(self) -> &'static str {
        self.into()
    }
}
