//! What a rule asks of the review of a call. Frozen into the change when it is proposed, so that a configuration that
//! comes later does not alter what was asked of a change that is already there.

use serde::{Deserialize, Serialize};

/// What becomes of a change that nobody decided on in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExpiry {
    /// `expired`: the agent may propose it again.
    #[default]
    Expire,
    /// `rejected`, by the system.
    Reject,
}

/// What the caller of a reviewed tool gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnReview {
    /// At once: it is pending.
    #[default]
    Return,
    /// The call stays open for [`Terms::hold_for`], for a decision to be its answer.
    Hold,
    /// A task; clients that take none may not propose.
    Task,
}

/// Who may approve what a reviewer has corrected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Editing {
    /// Whoever may decide; where more than one approval is needed, nobody who corrected it.
    #[default]
    Allowed,
    /// Nobody who corrected it.
    Other,
    /// Nobody may correct it.
    Forbidden,
}

impl Editing {
    /// As in a configuration.
    pub const NAMES: [(&str, Self); 3] =
        [("allowed", Self::Allowed), ("other", Self::Other), ("forbidden", Self::Forbidden)];
}

impl<'de> Deserialize<'de> for Editing {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum StoredEditing {
            Name(String),
            /// Of changes that are older than the second word.
            Flag(bool),
        }
        match StoredEditing::deserialize(deserializer)? {
            StoredEditing::Flag(true) => Ok(Self::Allowed),
            StoredEditing::Flag(false) => Ok(Self::Forbidden),
            StoredEditing::Name(word) => {
                let known = Self::NAMES.iter().find(|(known, _)| *known == word);
                known.map(|(_, editing)| *editing).ok_or_else(|| serde::de::Error::custom("no way of editing"))
            }
        }
    }
}

/// Times are in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// Roles and groups (`policy.groups`) whose members may decide; empty: everybody who may decide at all.
    pub reviewers: Vec<String>,
    /// Approvals that it needs, each by another owner.
    pub quorum: u32,
    /// Until it expires; none where `changes.expire_after` says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<u64>,
    pub on_expiry: OnExpiry,
    /// A decision needs a comment.
    pub require_comment: bool,
    /// Whether reviewers may correct the arguments, and whether they may then approve them.
    pub edit: Editing,
    pub on_review: OnReview,
    pub hold_for: u64,
    /// How long an approval may be undone before the change runs.
    pub undo_for: u64,
    /// Only a change whose preview shows live state ([`super::PreviewNote::is_live`]) may be approved.
    pub preview_required: bool,
    /// Clients that can show a URL are asked to open the change's page.
    pub open_page: bool,
    /// What the tool asks while the approved call runs is asked of the proposer's client; else it is declined. The
    /// answers are input that no reviewer has seen.
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
    /// Whether one approval is all that is asked for, and it may be given without a look at each call's preview.
    #[must_use]
    pub const fn single_approval_suffices(&self) -> bool {
        self.quorum <= 1 && !self.preview_required
    }

    /// Whether an approval by whoever corrected the arguments counts.
    #[must_use]
    pub const fn editors_may_approve(&self) -> bool {
        self.quorum < 2 && matches!(self.edit, Editing::Allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editing_of_older_changes_is_parsed() {
        for (json, is) in [
            ("true", Editing::Allowed),
            ("false", Editing::Forbidden),
            (r#""allowed""#, Editing::Allowed),
            (r#""other""#, Editing::Other),
            (r#""forbidden""#, Editing::Forbidden),
        ] {
            assert_eq!(serde_json::from_str::<Editing>(json).unwrap(), is);
        }
        assert!(serde_json::from_str::<Editing>("1").is_err() && serde_json::from_str::<Editing>(r#""x""#).is_err());
        assert_eq!(serde_json::to_string(&Editing::Other).unwrap(), r#""other""#);
        let counts = |edit, quorum| Terms { edit, quorum, ..Terms::default() }.editors_may_approve();
        assert!(counts(Editing::Allowed, 1) && !counts(Editing::Allowed, 2) && !counts(Editing::Other, 1));
    }
}
